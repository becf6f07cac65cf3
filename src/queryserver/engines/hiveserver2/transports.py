"""Exchanges messages over TCP, one call at a time. Messages are framed after a SASL login, and unframed otherwise.

A reply that exceeds the size limit is read and discarded, so that the connection stays usable.
"""

import asyncio
import struct
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from thrift.Thrift import TType

from queryserver.engines.hiveserver2.messages import IncompleteMessage, MalformedMessage

_Steps = Generator[int, bytes, None]
"""A parser that yields how many bytes it needs and is sent these bytes. A negative number skips that many bytes."""

_SIZES = {TType.BOOL: 1, TType.BYTE: 1, TType.DOUBLE: 8, TType.I16: 2, TType.I32: 4, TType.I64: 8}
_MESSAGE_HEADER = struct.Struct(">II")
_FIELD_ID = struct.Struct(">h")
_LENGTH = struct.Struct(">i")
_LIST_HEADER = struct.Struct(">bi")
_MAP_HEADER = struct.Struct(">bbi")
_FRAME_LENGTH = struct.Struct(">I")
_SEQUENCE_BYTES = 4
_MAX_NAME_BYTES = 100
_MAX_DEPTH = 16
_CELLS = (0, 3, 3)  # field numbers of the result, its `results` (TFetchResultsResp) and their `columns` (TRowSet)

READ_BYTES = 4 * 1024 * 1024  # size of a stream's read buffer
_SKIM_BYTES = 16 * 1024  # skipping this many bytes takes about 10 ms if they contain only empty values
_QUIET_S = 0.001

AnswerT = TypeVar("AnswerT")
AnswerT_co = TypeVar("AnswerT_co", covariant=True)


class CellTooLarge(Exception):
    """A cell exceeds the limit. `column` and `row` count from 0; `row` is relative to the message."""

    def __init__(self, *, column: int, row: int) -> None:
        super().__init__(f"cell {column}, {row}")
        self.column = column
        self.row = row


class MessageSkipper:
    """Skips one message without storing it. `largest_cell` is the maximum cell size in bytes; None means no limit."""

    def __init__(self, largest_cell: int | None = None) -> None:
        self._largest_cell = largest_cell
        self._path: list[int] = []
        self._header = bytearray()
        self._steps = self._message()
        self._missing, self._keeps = next(self._steps), True
        self.size = 0  # bytes of the message received so far

    def feed(self, piece: bytes | bytearray) -> bool:
        """Process the next bytes; return True once the message is complete. Raises CellTooLarge, MalformedMessage."""
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
        """Send the collected bytes to the parser. Return True at the end of the message."""
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
        if length > _MAX_NAME_BYTES:
            raise MalformedMessage("invalid Thrift message")
        yield -(length + _SEQUENCE_BYTES)
        yield from self._struct(0)

    def _struct(self, depth: int) -> _Steps:
        while (kind := (yield 1)[0]) != TType.STOP:
            (number,) = _FIELD_ID.unpack((yield _FIELD_ID.size))
            self._path.append(number)
            yield from self._value(kind, depth + 1)
            self._path.pop()

    def _value(self, kind: int, depth: int) -> _Steps:
        if depth > _MAX_DEPTH:
            raise MalformedMessage("nested too deeply")
        if kind in _SIZES:
            yield -_SIZES[kind]
        elif kind == TType.STRING:
            (length,) = _LENGTH.unpack((yield _LENGTH.size))
            if length < 0:
                raise MalformedMessage("invalid Thrift message")
            # A cell's path: _CELLS, the column index, the type's field, the `values` field, and the row index.
            path = self._path
            is_cell = len(path) == len(_CELLS) + 4 and tuple(path[:3]) == _CELLS and path[5] == 1
            if self._largest_cell is not None and length > self._largest_cell and is_cell:
                raise CellTooLarge(column=path[3], row=path[6])
            yield -length
        elif kind == TType.STRUCT:
            yield from self._struct(depth)
        elif kind in {TType.LIST, TType.SET}:
            inner, count = _LIST_HEADER.unpack((yield _LIST_HEADER.size))
            yield from self._elements((inner,), count, depth)
        elif kind == TType.MAP:
            key, value, count = _MAP_HEADER.unpack((yield _MAP_HEADER.size))
            yield from self._elements((key, value), count, depth)
        else:
            raise MalformedMessage("invalid Thrift message")

    def _elements(self, kinds: tuple[int, ...], count: int, depth: int) -> _Steps:
        if count < 0:
            raise MalformedMessage("invalid Thrift message")
        if all(kind in _SIZES for kind in kinds):
            yield -count * sum(_SIZES[kind] for kind in kinds)
            return
        for number in range(count):
            self._path.append(number)
            for kind in kinds:
                yield from self._value(kind, depth + 1)
            self._path.pop()


class ReplyTooLarge(Exception):
    """A reply of `size` bytes exceeded the limit. It was read completely, so the connection is still usable."""

    def __init__(self, size: int) -> None:
        super().__init__(f"a response of {size} bytes")
        self.size = size


@dataclass(frozen=True, slots=True)
class ReplySpec(Generic[AnswerT_co]):
    """How a transport handles a reply.

    `decode` raises IncompleteMessage for an incomplete reply. A reply longer than `max_bytes` is not stored, but
    skipped by a MessageSkipper with `largest_cell`.
    """

    decode: Callable[[bytes], AnswerT_co]
    max_bytes: int
    largest_cell: int | None = None


class Transport(Protocol):
    """Exchanges messages over one authenticated connection."""

    def is_closed(self) -> bool:
        """Return whether either side has closed the connection."""
        ...

    async def exchange(self, call: bytes, expected: ReplySpec[AnswerT]) -> AnswerT:
        """Send a call and decode its reply. Raises ReplyTooLarge, CellTooLarge, and stream or HTTP errors."""
        ...

    async def close(self) -> None:
        """Close the connection within a limited time. Never raises an error."""
        ...


class StreamTransport:
    """Base class of the two TCP transports."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def is_closed(self) -> bool:
        return self._writer.is_closing() or self._reader.at_eof()

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(2.0):
                await self._writer.wait_closed()
            return
        self._writer.transport.abort()

    async def _more(self, max_bytes: int = READ_BYTES) -> bytes:
        piece = await self._reader.read(max_bytes)
        if not piece:
            raise EOFError
        return piece


class FramedTransport(StreamTransport):
    """Prefixes each message with its length in four bytes."""

    async def exchange(self, call: bytes, expected: ReplySpec[AnswerT]) -> AnswerT:
        self._writer.write(_FRAME_LENGTH.pack(len(call)) + call)
        await self._writer.drain()
        (length,) = _FRAME_LENGTH.unpack(await self._reader.readexactly(_FRAME_LENGTH.size))
        if length > 2**31 - 1:  # servers write lengths as signed integers
            raise MalformedMessage("the response is too long")
        if length <= expected.max_bytes:
            return expected.decode(await self._reader.readexactly(length))
        skimmer = MessageSkipper(expected.largest_cell)
        while skimmer.size < length:
            await skip_in_steps(skimmer, await self._more(min(length - skimmer.size, READ_BYTES)))
        raise ReplyTooLarge(length)


class UnframedTransport(StreamTransport):
    """Exchanges messages without a length prefix. A message is complete once it can be decoded.

    A small reply usually arrives in one read. A larger reply is decoded again only when no data has arrived for an
    interval that grows with the decoding time, so that all attempts together take a fraction of the transfer time.
    """

    async def exchange(self, call: bytes, expected: ReplySpec[AnswerT]) -> AnswerT:
        self._writer.write(call)
        await self._writer.drain()
        buffer = bytearray(await self._more())
        quiet_s = _QUIET_S
        loop = asyncio.get_running_loop()
        while len(buffer) <= expected.max_bytes:
            begun = loop.time()
            try:
                return expected.decode(bytes(buffer))
            except IncompleteMessage:
                quiet_s = max(_QUIET_S, 4 * (loop.time() - begun))
            buffer += await self._more()
            with suppress(TimeoutError):
                while len(buffer) <= expected.max_bytes:
                    async with asyncio.timeout(quiet_s):
                        piece = await self._more()
                    buffer += piece
        skimmer = MessageSkipper(expected.largest_cell)
        is_whole = await skip_in_steps(skimmer, buffer)
        buffer.clear()
        while not is_whole:
            is_whole = await skip_in_steps(skimmer, await self._more())
        raise ReplyTooLarge(skimmer.size)


async def skip_in_steps(skimmer: MessageSkipper, piece: bytes | bytearray) -> bool:
    """Feed the skimmer in small steps, so that many small values do not block the event loop."""
    is_whole = False
    for start in range(0, len(piece), _SKIM_BYTES):
        is_whole = skimmer.feed(piece[start : start + _SKIM_BYTES])
        await asyncio.sleep(0)
    return is_whole
