"""Filters data between the transport and asyncpg: collects rows, limits messages, and reads what asyncpg ignores.

`RowReceiver` keeps the bytes of rows from asyncpg, and limits the sizes of chunks, rows and values. `RowDescriptionTap`
reads type modifiers (the `20` in varchar(20)) from the server's RowDescription, because asyncpg drops them.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from queryserver.engines.postgresql.rows import WireRows
from queryserver.formats.arrow import ROW_SIZE_FACTOR

NO_MODIFIER = -1


class Tap(asyncio.Protocol):
    """A filter between the transport and asyncpg's protocol that forwards all calls."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol

    def data_received(self, data: bytes) -> None:
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


_HEADER = struct.Struct("!cI")
_WORD = struct.Struct("!i")
_COUNT_BYTES = 2
_DATA_ROW: Final = b"D"
_READY: Final = b"Z"
_COMMAND_COMPLETE: Final = b"C"
_ERROR_RESPONSE: Final = b"E"
_DESCRIPTION_ENDS = (b"T", b"n", _ERROR_RESPONSE, _READY)
"""RowDescription, NoData, ErrorResponse and ReadyForQuery. No description follows the first of these messages."""
_FIELD = struct.Struct("!IhIhih")
_COUNT = struct.Struct("!h")

CHUNK_BYTES = 8 * 1024 * 1024
"""A chunk ends with the row that makes it exceed this size."""


@dataclass(frozen=True, slots=True)
class SizeViolation:
    """What exceeded the limit: a value, a row of a chunk (`row` counts from 0), or another message (`row` is None)."""

    limit_bytes: int
    row: int | None
    column: int | None


class _CellSizeCheck:
    """Finds the first value above the limit while a DataRow arrives, from the length that precedes each value."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._skip = _COUNT_BYTES
        self._word = b""
        self._column = -1
        self.seen_bytes = 0

    def find(self, piece: bytes) -> int | None:
        """Return the column index once a length above the limit has arrived; None until then."""
        self.seen_bytes += len(piece)
        at = 0
        while at < len(piece):
            if self._skip:
                step = min(self._skip, len(piece) - at)
                self._skip -= step
                at += step
                continue
            needed = _WORD.size - len(self._word)
            self._word += piece[at : at + needed]
            at += needed
            if len(self._word) == _WORD.size:
                (length,) = _WORD.unpack(self._word)
                self._word, self._column = b"", self._column + 1
                if length > self._limit:
                    return self._column
                self._skip = max(length, 0)
        return None


class RowReceiver(Tap):
    """Passes messages to asyncpg, except rows while it collects them. Enforces limits once `limit` has been called."""

    def __init__(self, protocol: asyncio.Protocol, transport: asyncio.Transport) -> None:
        super().__init__(protocol)
        self._transport = transport
        self._cell_bytes: int | None = None
        self._header = b""
        self._kind, self._rest = b"", 0
        self._is_kept = False  # whether the current message is a row whose header asyncpg has not received
        self._cells: _CellSizeCheck | None = None
        self._rows: WireRows | None = None
        self._chunk_bytes: int | None = None
        self._is_dropping = False
        self._is_paused = False
        self._has_ended = False
        self._awaited: asyncio.Future[None] | None = None
        self._full = deque[WireRows]()
        self.refusal: SizeViolation | None = None
        """The reason why this receiver closed the connection; None if it did not."""

    def limit(self, cell_bytes: int) -> None:
        """Limit values to `cell_bytes`, and rows and other messages to a small multiple of it."""
        self._cell_bytes = cell_bytes

    def collect(self, *, in_chunks: bool) -> None:
        """Collect the rows of the next request, all together or in chunks.

        The connection is not read further while a full chunk waits to be taken.
        """
        self._chunk_bytes = CHUNK_BYTES if in_chunks else None
        self._rows, self._is_dropping, self._has_ended = WireRows(), False, False

    async def full_chunk(self) -> WireRows | None:
        """Wait for a full chunk and return it; None if the request has ended. `take_rest` then returns its rows."""
        if not self._full:
            self._resume()
            if not (self._has_ended or self._full):
                self._awaited = asyncio.get_running_loop().create_future()
                await self._awaited
        return self._full.popleft() if self._full else None

    def end_request(self, request: asyncio.Task[None]) -> None:
        """Note that the request has ended. Its error counts as seen, because the statement may have ended."""
        if not request.cancelled():
            request.exception()
        self._has_ended = True
        self._wake_up()

    def take_rest(self) -> WireRows:
        """Return the rows collected since the last full chunk, and stop collecting."""
        rows, self._rows = self._rows or WireRows(), None
        return rows

    def drop_rest(self) -> None:
        """Drop collected rows, and the rows that the request still yields."""
        self._full.clear()
        self._is_dropping = True
        if self._rows is not None and not self._rest:
            self._rows = WireRows()
        self._resume()

    def data_received(self, data: bytes) -> None:
        if self.refusal is None:
            self._take(self._header + data if self._header else bytes(data))

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_paused = False
        super().connection_lost(exc)

    def _take(self, data: bytes) -> None:
        """Collect the rows, and pass on the bytes between them."""
        self._header = b""
        at, begin, size = 0, 0, len(data)
        while at < size and self.refusal is None:
            if self._rest:
                piece = data[at : at + self._rest]
                at += len(piece)
                begin = self._continue_message(piece, begin, at)
            elif self._rows is not None and (end := self._collect_rows(self._rows, data, at)) > at:
                self._pass_on(data[begin:at])
                at = begin = end
            elif size - at < _HEADER.size:
                self._header, size = data[at:], at
            else:
                self._begin_message(*_HEADER.unpack_from(data, at))
                self._is_kept = self._rows is not None and self._kind == _DATA_ROW
                if self._rows is not None and self._is_kept:
                    self._pass_on(data[begin:at])
                    begin = at + _HEADER.size
                    self._rows.starts.append(self._rows.size)
                    self._rows.add(data[at:begin])
                at += _HEADER.size
        if self.refusal is None:
            self._pass_on(data[begin:size])

    def _collect_rows(self, rows: WireRows, data: bytes, begin: int) -> int:
        """Collect the complete rows from `begin`, and return the position after them.

        Nearly all rows of a result are handled here.
        """
        unpack, append, size = _HEADER.unpack_from, rows.starts.append, len(data)
        max_bytes = self._cell_bytes or size
        end = size if self._chunk_bytes is None else begin + self._chunk_bytes - rows.size
        last = min(end, size - _HEADER.size)
        at, shift = begin, rows.size - begin
        while at <= last:
            kind, length = unpack(data, at)
            if kind != _DATA_ROW or length > max_bytes or at + length >= size:
                break
            append(at + shift)
            at += length + 1
        if at > begin:
            rows.add(data[begin:at])
            self._end_row(rows)
        return at

    def _begin_message(self, kind: bytes, length: int) -> None:
        self._kind, self._rest = kind, max(length + 1 - _HEADER.size, 0)  # asyncpg refuses an impossible length
        self._cells = None
        limit = self._cell_bytes
        if limit is None or length <= limit:
            return
        if kind == _DATA_ROW:
            self._cells = _CellSizeCheck(limit)
        elif length > ROW_SIZE_FACTOR * limit:
            self._refuse(SizeViolation(ROW_SIZE_FACTOR * limit, None, None))

    def _continue_message(self, piece: bytes, begin: int, end: int) -> int:
        """Return the start of the bytes to pass on: `begin`, or `end` if the piece is part of a collected row."""
        self._rest -= len(piece)
        if self._cells is not None:
            self._check(self._cells, piece)
        if not self._is_kept:
            return begin
        if (rows := self._rows) is not None:  # otherwise, collecting has stopped in the middle of the row
            rows.add(piece)
            if not self._rest:
                self._end_row(rows)
        return end

    def _end_row(self, rows: WireRows) -> None:
        if self._is_dropping:
            self._rows = WireRows()
        elif self._chunk_bytes is not None and rows.size > self._chunk_bytes:
            self._full.append(rows)
            self._rows = WireRows()
            self._wake_up()
            if not self._is_paused and not self._transport.is_closing():
                self._is_paused = True
                self._transport.pause_reading()

    def _wake_up(self) -> None:
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def _check(self, cells: _CellSizeCheck, piece: bytes) -> None:
        column = cells.find(piece)
        limit = self._cell_bytes or 0
        row = None if self._rows is None else len(self._rows) - 1
        if column is not None:
            self._refuse(SizeViolation(limit, row, column))
        elif cells.seen_bytes > ROW_SIZE_FACTOR * limit:
            self._refuse(SizeViolation(ROW_SIZE_FACTOR * limit, row, None))

    def _refuse(self, refusal: SizeViolation) -> None:
        self.refusal = refusal
        self._transport.abort()

    def _pass_on(self, data: bytes) -> None:
        if data:
            super().data_received(data)


@dataclass(frozen=True, slots=True)
class Field:
    """A column as described by RowDescription. `modifier` is -1 if the type has no modifier."""

    name: str
    type_oid: int
    modifier: int


class RefusalTap(Tap):
    """Detects the server's ErrorResponse and a lost connection."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__(protocol)
        self._buffer = bytearray()
        self.has_refused = False
        self.is_lost = False

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._buffer)
            self.has_refused = self.has_refused or kind == _ERROR_RESPONSE
            if len(self._buffer) <= length:
                break
            del self._buffer[: length + 1]
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Resume writing, so that asyncpg's COPY fails instead of waiting forever."""
        self.has_refused = self.is_lost = True
        super().connection_lost(exc)
        self.resume_writing()


class CompletionTap(Tap):
    """Counts completed commands and changed rows."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__(protocol)
        self._header = b""
        self._rest = 0
        self._tag: bytearray | None = None
        self.commands = 0
        self.changed_rows = 0

    def data_received(self, data: bytes) -> None:
        at, buffer = 0, self._header + data
        while at < len(buffer):
            if self._rest:
                piece = buffer[at : at + self._rest]
                at += len(piece)
                self._rest -= len(piece)
                if self._tag is not None:
                    self._tag += piece
            elif len(buffer) - at >= _HEADER.size:
                kind, length = _HEADER.unpack_from(buffer, at)
                at += _HEADER.size
                self._rest = max(length + 1 - _HEADER.size, 0)
                self._tag = bytearray() if kind == _COMMAND_COMPLETE else None
            else:
                break
            if self._tag is not None and not self._rest:
                self._note(bytes(self._tag))
        self._header = buffer[at:]
        super().data_received(data)

    def _note(self, tag: bytes) -> None:
        """Count a command and its changed rows, the last word of a tag such as `INSERT 0 5` or `UPDATE 5`."""
        self.commands += 1
        last = tag.rstrip(b"\0").rpartition(b" ")[2]
        self.changed_rows += int(last) if last.isdigit() else 0
        self._tag = None


class RowDescriptionTap(Tap):
    """Passes the unknown type OIDs in the first RowDescription to `learn` before asyncpg receives the complete
    message.
    """

    def __init__(self, protocol: asyncio.Protocol, known: AbstractSet[int], learn: Callable[[set[int]], None]) -> None:
        super().__init__(protocol)
        self._known = known
        self._learn = learn
        self._buffer: bytearray | None = bytearray()
        self.described: list[tuple[int, int]] = []
        """The type OID and modifier of each column."""

    def data_received(self, data: bytes) -> None:
        if self._buffer is not None:
            self._buffer += data
            self._find_description(self._buffer)
        super().data_received(data)

    def _find_description(self, buffer: bytearray) -> None:
        position = 0
        while position + _HEADER.size <= len(buffer):
            kind, length = _HEADER.unpack_from(buffer, position)
            end = position + 1 + length
            if end > len(buffer):
                return
            if kind == b"T":
                self.described = _types(bytes(buffer[position + _HEADER.size : end]))
                if unknown := {oid for oid, _ in self.described} - self._known:
                    self._learn(unknown)
            if kind in _DESCRIPTION_ENDS:
                self._buffer = None
                return
            position = end


def _types(body: bytes) -> list[tuple[int, int]]:
    """Read each field's type OID and modifier from a RowDescription: a NUL-terminated name, then six numbers."""
    (count,) = _COUNT.unpack_from(body)
    found: list[tuple[int, int]] = []
    position = _COUNT.size
    for _ in range(count):
        position = body.index(b"\0", position) + 1
        _table, _column, type_oid, _size, modifier, _format = _FIELD.unpack_from(body, position)
        found.append((type_oid, modifier))
        position += _FIELD.size
    return found
