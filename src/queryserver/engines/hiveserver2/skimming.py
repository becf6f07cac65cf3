"""A message that is too long to be kept: its bytes are read past, and the place of a cell that is too large is found.

The layout is that of Thrift's binary protocol. Nothing is kept but the few bytes of the header that is being read.
"""

import struct
from collections.abc import Generator

from thrift.Thrift import TType

from queryserver.engines.hiveserver2.protocol.messages import MalformedMessage

_Steps = Generator[int, bytes, None]
"""Gives how many bytes it needs next and receives them. A negative number: so many bytes are passed over unread."""

_SIZES = {
    TType.BOOL: 1,
    TType.BYTE: 1,
    TType.DOUBLE: 8,
    TType.I16: 2,
    TType.I32: 4,
    TType.I64: 8,
}
_MESSAGE_HEADER = struct.Struct(">II")
_FIELD_ID = struct.Struct(">h")
_LENGTH = struct.Struct(">i")
_LIST_HEADER = struct.Struct(">bi")
_MAP_HEADER = struct.Struct(">bbi")
_SEQUENCE_BYTES = 4
_LONGEST_NAME = 100
_DEEPEST = 16
_CELLS = (0, 3, 3)
"""Fields from the result over `results` to `columns` (TFetchResultsResp, TRowSet)."""


class CellFound(Exception):
    """A cell of the rows is larger than permitted. `column` and `row` count from 0, `row` within the message."""

    def __init__(self, *, column: int, row: int) -> None:
        super().__init__(f"cell {column}, {row}")
        self.column = column
        self.row = row


class Skimmer:
    """Reads past one message. `largest_cell`: the limit of one cell in bytes; None: texts may have any length."""

    def __init__(self, largest_cell: int | None = None) -> None:
        self._largest_cell = largest_cell
        self._path: list[int] = []
        self._header = bytearray()
        self._steps = self._message()
        self._missing, self._keeps = next(self._steps), True
        self.size = 0
        """Bytes of the message so far."""

    def feed(self, piece: bytes | bytearray) -> bool:
        """Take the next bytes; True once the message is whole. Raises CellFound, MalformedMessage."""
        self.size += len(piece)
        at = 0
        while at < len(piece):
            taken = min(self._missing, len(piece) - at)
            if self._keeps:
                self._header += piece[at : at + taken]
            at += taken
            self._missing -= taken
            if not self._missing and self._is_whole():
                if at < len(piece):
                    raise MalformedMessage("bytes after the end of the message")
                return True
        return False

    def _is_whole(self) -> bool:
        """Go on with the bytes that were wanted; True at the end of the message."""
        header = bytes(self._header)
        self._header.clear()
        try:
            wanted = self._steps.send(header)
            while wanted == 0:
                wanted = self._steps.send(b"")
        except StopIteration:
            return True
        self._missing, self._keeps = abs(wanted), wanted > 0
        return False

    def _message(self) -> _Steps:
        _, length = _MESSAGE_HEADER.unpack((yield _MESSAGE_HEADER.size))
        if length > _LONGEST_NAME:
            raise MalformedMessage("no thrift message")
        yield -(length + _SEQUENCE_BYTES)
        yield from self._struct(0)

    def _struct(self, depth: int) -> _Steps:
        while (kind := (yield 1)[0]) != TType.STOP:
            (number,) = _FIELD_ID.unpack((yield _FIELD_ID.size))
            self._path.append(number)
            yield from self._value(kind, depth + 1)
            self._path.pop()

    def _value(self, kind: int, depth: int) -> _Steps:
        if depth > _DEEPEST:
            raise MalformedMessage("nested too deep")
        if kind in _SIZES:
            yield -_SIZES[kind]
        elif kind == TType.STRING:
            yield from self._text()
        elif kind == TType.STRUCT:
            yield from self._struct(depth)
        elif kind in {TType.LIST, TType.SET}:
            inner, count = _LIST_HEADER.unpack((yield _LIST_HEADER.size))
            yield from self._elements((inner,), count, depth)
        elif kind == TType.MAP:
            key, value, count = _MAP_HEADER.unpack((yield _MAP_HEADER.size))
            yield from self._elements((key, value), count, depth)
        else:
            raise MalformedMessage("no thrift message")

    def _elements(self, kinds: tuple[int, ...], count: int, depth: int) -> _Steps:
        if count < 0:
            raise MalformedMessage("no thrift message")
        if all(kind in _SIZES for kind in kinds):
            yield -count * sum(_SIZES[kind] for kind in kinds)
            return
        for number in range(count):
            self._path.append(number)
            for kind in kinds:
                yield from self._value(kind, depth + 1)
            self._path.pop()

    def _text(self) -> _Steps:
        (length,) = _LENGTH.unpack((yield _LENGTH.size))
        if length < 0:
            raise MalformedMessage("no thrift message")
        if self._largest_cell is not None and length > self._largest_cell:
            self._check_cell()
        yield -length

    def _check_cell(self) -> None:
        """The path of a cell: _CELLS, number of the column, field of its type, field `values`, number of the row."""
        if len(self._path) == len(_CELLS) + 4 and tuple(self._path[:3]) == _CELLS and self._path[5] == 1:
            raise CellFound(column=self._path[3], row=self._path[6])
