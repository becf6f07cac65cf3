"""Filters data between the transport and asyncpg: limits messages, and reads parts of messages that asyncpg ignores.

`MessageGuard` limits the sizes of chunks, rows and values. `RowDescriptionTap` reads type modifiers (the `20` in
varchar(20)) from the server's RowDescription, because asyncpg drops them.
"""

import asyncio
import struct
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

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
_CHUNK_ENDS: Final = frozenset({b"s", b"C"})
"""The messages PortalSuspended and CommandComplete."""
_CHUNK_MESSAGES: Final = frozenset({*_CHUNK_ENDS, _DATA_ROW, _READY, _ERROR_RESPONSE})
_SUSPENDED = b"s\0\0\0\4" + b"Z\0\0\0\5T"
"""PortalSuspended and ReadyForQuery inside a transaction, the only state in which portals exist."""
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


class MessageGuard(Tap):
    """Passes messages to asyncpg, and enforces limits once `limit` has been called."""

    def __init__(self, protocol: asyncio.Protocol, transport: asyncio.Transport) -> None:
        super().__init__(protocol)
        self._transport = transport
        self._cell_bytes: int | None = None
        self._header = b""
        self._kind, self._rest = b"", 0
        self._is_dropped = False
        self._cells: _CellSizeCheck | None = None
        self.in_chunk = False
        """Whether a chunk is being received.

        `begin_chunk` sets it; the caller resets it after the chunk or an error.
        """
        self._rows = 0
        self._bytes = 0
        self._owed = 0
        self._has_failed = False
        self.pending: list[bytes] | None = None
        """Data received after a chunk was ended early; None at other times."""
        self.was_cut = False
        """Whether the last chunk was ended early, so that more rows follow."""
        self.refusal: SizeViolation | None = None
        """The reason why the guard closed the connection; None if it did not."""

    def limit(self, cell_bytes: int) -> None:
        """Limit values to `cell_bytes`, and rows and other messages to a small multiple of it."""
        self._cell_bytes = cell_bytes

    def begin_chunk(self) -> None:
        """Prepare for a chunk. Call this just before asyncpg requests rows from a portal."""
        self.in_chunk, self.was_cut, self._has_failed = self._cell_bytes is not None, False, False
        self._rows = self._bytes = 0
        if self.pending is not None:
            # Deferred, because asyncpg accepts rows only while it waits for them.
            asyncio.get_running_loop().call_soon(self._go_on)

    def drop_rest(self) -> None:
        """Drop the remaining rows of a chunk that was ended early. Call this before sending another request."""
        self.in_chunk = False
        self._go_on()

    def data_received(self, data: bytes) -> None:
        if self.pending is not None:
            self.pending.append(data)
        elif self.refusal is None:
            self._take(self._header + data if self._header else bytes(data))

    def _go_on(self) -> None:
        pending, self.pending = self.pending, None
        if pending is None:
            return
        if not self._transport.is_closing():
            self._transport.resume_reading()
        for data in pending:
            self.data_received(data)

    def _take(self, data: bytes) -> None:
        """Pass on the bytes meant for asyncpg, in a single call if no bytes are dropped."""
        self._header = b""
        at, begin, size = 0, 0, len(data)
        while at < size and self.refusal is None:
            if self._rest:
                end = min(at + self._rest, size)
                self._rest -= end - at
                if self._cells is not None:
                    self._check(self._cells, data[at:end])
                at = end
                begin = at if self._is_dropped else begin
            elif not self._owed:
                at = self._skip_rows(data, at, size)
            if self._ends_chunk:
                self._pass_on(data[begin:at])
                self.in_chunk, self.was_cut = False, True
                self._owed += 1
                self.pending = [data[at:]] if at < size else []
                self._transport.pause_reading()
                self._pass_on(_SUSPENDED)
                return
            if self._rest or at == size:
                continue
            if size - at < _HEADER.size:
                self._header = data[at:]
                size = at
                break
            self._begin_message(*_HEADER.unpack_from(data, at))
            if self._is_dropped:
                self._pass_on(data[begin:at])
                begin = at + _HEADER.size
            at += _HEADER.size
        if self.refusal is None:
            self._pass_on(data[begin:size])

    def _skip_rows(self, data: bytes, at: int, size: int) -> int:
        """Skip complete rows that can be passed on unchanged, and return the offset after them.

        Nearly all rows of a result are handled here.
        """
        unpack, most = _HEADER.unpack_from, self._cell_bytes or size
        max_bytes = CHUNK_BYTES - self._bytes if self.in_chunk else size
        rows, begin = 0, at
        while size - at > _HEADER.size and at - begin <= max_bytes:
            kind, length = unpack(data, at)
            if kind != _DATA_ROW or length > most or at + length >= size:
                break
            at += length + 1
            rows += 1
        if rows:
            self._kind = _DATA_ROW
            self._rows += rows
            self._bytes += at - begin
        return at

    def _begin_message(self, kind: bytes, length: int) -> None:
        self._kind, self._rest = kind, length + 1 - _HEADER.size
        self._is_dropped = bool(self._owed) and kind in _CHUNK_MESSAGES and self._is_hidden(kind)
        self._cells = None
        limit = self._cell_bytes
        if kind == _DATA_ROW:
            self._rows += 1
            self._bytes += length
            if limit is not None and length > limit:
                self._cells = _CellSizeCheck(limit)
                self._is_dropped = self._is_dropped or length > ROW_SIZE_FACTOR * limit
        elif limit is not None and length > ROW_SIZE_FACTOR * limit:
            self._refuse(SizeViolation(ROW_SIZE_FACTOR * limit, None, None))

    def _is_hidden(self, kind: bytes) -> bool:
        """Return whether to hide a message from asyncpg, which has already received the end of the chunk."""
        if kind == _READY:
            self._owed -= 1
            return True
        if kind == _ERROR_RESPONSE:
            # The first error has the reason; later errors only report that the transaction has failed.
            swallowed, self._has_failed = self._has_failed or not self.in_chunk, True
            return swallowed
        return kind in _CHUNK_ENDS or not self.in_chunk

    def _check(self, cells: _CellSizeCheck, piece: bytes) -> None:
        column = cells.find(piece)
        limit = self._cell_bytes or 0
        if column is not None:
            self._refuse(SizeViolation(limit, self._rows - 1, column))
        elif cells.seen_bytes > ROW_SIZE_FACTOR * limit:
            self._refuse(SizeViolation(ROW_SIZE_FACTOR * limit, self._rows - 1, None))

    def _refuse(self, refusal: SizeViolation) -> None:
        self.refusal = refusal
        self._transport.abort()

    @property
    def _ends_chunk(self) -> bool:
        """Whether the row just completed makes the chunk exceed its target size."""
        is_large = self.in_chunk and self._bytes > CHUNK_BYTES and not self._has_failed
        return is_large and self._kind == _DATA_ROW and not self._rest

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
                self._rest = length + 1 - _HEADER.size
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
