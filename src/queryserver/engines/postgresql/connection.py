"""The asyncpg connection as the adapter needs it: declared type modifiers, cheap codecs, notices.

asyncpg drops the type modifier (the `20` of varchar(20)) from the server's RowDescription. While a statement is being
prepared, `_RowDescriptionTap` stands between the transport and asyncpg's protocol and keeps a copy of that message.
"""

import asyncio
import itertools
import socket
import struct
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import asyncpg
from asyncpg.prepared_stmt import PreparedStatement

from queryserver.engines.postgresql.message_guard import MessageGuard, Tap
from queryserver.errors.statements import EngineError, OutcomeUnknown, RowTooLarge, cell_too_large

_CLEAN_UP_S = 5
_DRIVER_ERRORS = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
_HEADER = struct.Struct("!cI")
_FIELD = struct.Struct("!IhIhih")
_COUNT = struct.Struct("!h")
_ROW_DESCRIPTION = b"T"
_ERROR: Final = b"E"
_LAST_OF_INTEREST = (_ROW_DESCRIPTION, b"n", _ERROR, b"Z")
"""RowDescription, NoData, ErrorResponse, ReadyForQuery: after the first of them no other description can come."""
NO_MODIFIER = -1

_NATIVE = frozenset({16, 17, 19, 20, 21, 23, 25, 26, 114, 700, 701, 705, 1042, 1043, 3802})
"""bool, bytea, name, integers, oid, floats and the text family: asyncpg's own decoders are the cheapest for them."""
_AS_INTEGERS = {1082: "int4", 1114: "int8", 1184: "int8"}
"""date, timestamp, timestamptz: days and microseconds since 2000 are what Arrow wants, and infinity survives."""


@dataclass(frozen=True, slots=True)
class Field:
    """One column as RowDescription declares it; `modifier` is -1 where there is none."""

    name: str
    type_oid: int
    modifier: int


class Connection(asyncpg.Connection):
    """A connection whose statements are described in full and whose notices go to `on_notice`."""

    def __init__(self, protocol: asyncio.Protocol, transport: asyncio.Transport, *rest: Any) -> None:
        super().__init__(protocol, transport, *rest)
        self.guard = MessageGuard(protocol, transport)
        self._driver_protocol: asyncio.Protocol = self.guard
        transport.set_protocol(self.guard)
        self._wire = transport
        self._names = itertools.count(1)
        self._as_text = set[int]()
        self.on_notice: Callable[[str], None] | None = None
        self.add_log_listener(self._notice)
        self._read_as_integers()

    async def prepare_described(self, sql: str) -> tuple[PreparedStatement, tuple[Field, ...]]:
        """The prepared statement and its columns, none when it has no result set. Nothing is executed.

        The statement has a name, so that the server itself sees when a table changes before the rows are read.
        """
        tap = _RowDescriptionTap(self._driver_protocol, self._read_others_as_text)
        self._wire.set_protocol(tap)
        try:
            statement = await self.prepare(sql, name=f"queryserver_{next(self._names)}")
        finally:
            self._wire.set_protocol(self._driver_protocol)
        columns = statement.get_attributes()
        described = tap.described or [(column.type.oid, NO_MODIFIER) for column in columns]
        return statement, tuple(
            Field(column.name, oid, modifier) for column, (oid, modifier) in zip(columns, described, strict=True)
        )

    @contextmanager
    def watched(self) -> Generator["RefusalTap"]:
        """Around a COPY: tells at once when the server has refused a row, which asyncpg asks for only at the end.

        Raises ConnectionResetError where the event loop takes writing to a lost connection for a mistake.
        """
        tap = RefusalTap(self._driver_protocol)
        self._wire.set_protocol(tap)
        try:
            yield tap
        except RuntimeError as error:
            if not tap.is_lost:
                raise
            lost = "the server has closed the connection"
            raise ConnectionResetError(lost) from error
        finally:
            self._wire.set_protocol(self._driver_protocol)

    def keep_alive(self, *, idle_s: int, interval_s: int, count: int) -> None:
        """Let the operating system notice that the server is gone: a silent one would be waited for."""
        connected: socket.socket | None = self._wire.get_extra_info("socket")
        if connected is None or connected.family == socket.AF_UNIX:
            return
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, count)

    async def clean(self) -> bool:
        """Make the session as it was after its login; False when there is any doubt."""
        self.on_notice = None
        if self.is_closed():
            return False
        try:
            async with asyncio.timeout(_CLEAN_UP_S):
                if self.is_in_transaction():
                    await self.execute("ROLLBACK")
                await self.execute("DISCARD ALL")
        except _DRIVER_ERRORS:
            return False
        return True

    async def end_transaction(self) -> bool:
        """Undo the transaction that is open, if any; False when the server did not say so."""
        try:
            async with asyncio.timeout(_CLEAN_UP_S):
                await self.execute("ROLLBACK")
        except _DRIVER_ERRORS:
            return False
        return True

    async def shut(self) -> None:
        """Close the connection, by force when the server does not answer."""
        self.on_notice = None
        self.guard.drop_rest()
        with suppress(*_DRIVER_ERRORS):
            await self.close(timeout=_CLEAN_UP_S)

    def _read_others_as_text(self, oids: set[int]) -> None:
        """Everything that JSON shows as text, or that is parsed here, travels as the server's own text.

        asyncpg would look these types up in the catalogue, and cannot decode all of them.
        """
        settings: Any = self.get_settings()
        for oid in oids - _NATIVE - _AS_INTEGERS.keys() - self._as_text:
            settings.set_builtin_type_codec(oid, f"text of {oid}", "pg_catalog", "scalar", "text", "text")
            self._as_text.add(oid)

    def _read_as_integers(self) -> None:
        settings: Any = self.get_settings()
        for oid, codec in _AS_INTEGERS.items():
            settings.set_builtin_type_codec(oid, codec, "pg_catalog", "scalar", codec, "binary")

    def _notice(self, _connection: object, message: Any) -> None:
        if self.on_notice is not None:
            for line in f"{message.severity}:  {message.message}".splitlines():
                self.on_notice(line)


class RefusalTap(Tap):
    """Sees the server's ErrorResponse, or that the server is gone."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__(protocol)
        self._kept = bytearray()
        self.has_refused = False
        self.is_lost = False

    def data_received(self, data: bytes) -> None:
        self._kept += data
        while len(self._kept) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._kept)
            self.has_refused = self.has_refused or kind == _ERROR
            if len(self._kept) <= length:
                break
            del self._kept[: length + 1]
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncpg's COPY would wait for ever for room to write; so it goes on, and finds out itself."""
        self.has_refused = self.is_lost = True
        super().connection_lost(exc)
        self.resume_writing()


class _RowDescriptionTap(Tap):
    """`learn` gets the type oids of the first RowDescription before asyncpg sees its end."""

    def __init__(self, protocol: asyncio.Protocol, learn: Callable[[set[int]], None]) -> None:
        super().__init__(protocol)
        self._learn = learn
        self._kept: bytearray | None = bytearray()
        self.described: list[tuple[int, int]] = []
        """Type oid and modifier by column."""

    def data_received(self, data: bytes) -> None:
        if self._kept is not None:
            self._kept += data
            self._look_at(self._kept)
        super().data_received(data)

    def _look_at(self, kept: bytearray) -> None:
        position = 0
        while position + _HEADER.size <= len(kept):
            kind, length = _HEADER.unpack_from(kept, position)
            end = position + 1 + length
            if end > len(kept):
                return
            if kind == _ROW_DESCRIPTION:
                self.described = _types(bytes(kept[position + _HEADER.size : end]))
                self._learn({oid for oid, _ in self.described})
            if kind in _LAST_OF_INTEREST:
                self._kept = None
                return
            position = end


def _types(body: bytes) -> list[tuple[int, int]]:
    """Type oid and modifier of each field of a RowDescription: a name that ends with NUL, then six numbers."""
    (count,) = _COUNT.unpack_from(body)
    found: list[tuple[int, int]] = []
    position = _COUNT.size
    for _ in range(count):
        position = body.index(b"\0", position) + 1
        _table, _column, type_oid, _size, modifier, _format = _FIELD.unpack_from(body, position)
        found.append((type_oid, modifier))
        position += _FIELD.size
    return found


@contextmanager
def refusals(guard: MessageGuard, columns: Sequence[str], rows_read: int = 0) -> Generator[None]:
    """Around the rows of a statement: the reason why the guard has ended the connection comes out, not the loss.

    `rows_read`: rows of the chunks before.
    """
    try:
        yield
    except EngineError as error:
        if guard.refusal is None:
            raise
        raise _reason(guard, columns, rows_read) from error


def _reason(guard: MessageGuard, columns: Sequence[str], rows_read: int) -> EngineError:
    refusal = guard.refusal
    if refusal is None or refusal.row is None:
        return OutcomeUnknown("PostgreSQL sent a message that is too large; the statement may have taken effect.")
    row = rows_read + refusal.row
    if refusal.column is None:
        return RowTooLarge(limit_bytes=refusal.limit_bytes, row=row)
    name = columns[refusal.column] if refusal.column < len(columns) else None
    return cell_too_large(limit_bytes=refusal.limit_bytes, row=row, column=name)
