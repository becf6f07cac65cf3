"""The only module that uses undocumented parts of asyncpg (ADR 80).

It uses these names:

- The arguments of `Connection`: asyncpg documents that `connect` accepts a subclass, but not that the constructor's
  first arguments are the protocol and the transport. The engine inserts a filter between them, which collects the rows,
  limits their sizes and reads type modifiers: asyncpg makes a Python object of each value, accepts rows of any size and
  discards the modifiers.
- `ConnectionSettings.set_builtin_type_codec` and `register_data_types`: the documented methods query the catalog for
  each type, which takes milliseconds on each new connection, and reject some types.
- `ConnectionSettings.get_text_codec`: asyncpg documents no translation of PostgreSQL's names of encodings.
- `Connection._mark_stmts_as_closed`: asyncpg closes each prepared statement with a round trip of its own, even after
  DISCARD ALL has already closed it.
- `PreparedStatement._state`, and `Cursor`'s constructor, `_bind_exec`, `_exec`, `_exhausted`, `_close_portal` and
  `_portal_name`: a documented cursor needs an additional round trip before the first rows, treats a short chunk as the
  last one, and cannot be closed before its end.

`tests/unit/platform/test_asyncpg_internals.py` fails if one of these names changes.
"""

import asyncio
import struct
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import asyncpg
import asyncpg.cursor
from asyncpg.pool import PoolConnectionProxy
from asyncpg.prepared_stmt import PreparedStatement

TapT = TypeVar("TapT", bound=asyncio.Protocol)

_ARRAYS = tuple(
    {
        "oid": oid,
        "ns": "pg_catalog",
        "name": f"_{element}",
        "kind": b"b",
        "basetype": None,
        "elemtype": element_oid,
        "elemdelim": ",",
        "range_subtype": None,
        "attrtypoids": None,
        "attrnames": None,
    }
    for oid, element, element_oid in (
        (1000, "bool", 16),
        (1001, "bytea", 17),
        (1007, "int4", 23),
        (1016, "int8", 20),
        (1185, "timestamptz", 1184),
        (2951, "uuid", 2950),
    )
)
"""Array types whose OIDs are the same in every PostgreSQL release. Text arrays are built into asyncpg."""


def register_arrays(connection: asyncpg.Connection | PoolConnectionProxy) -> None:
    """Register common array types on a new connection.

    Otherwise asyncpg queries the server for the element types, which takes 10 ms of server time for the first array
    type and 4 ms for each further type. If an asyncpg release breaks this call, asyncpg runs those queries again.
    """
    with suppress(AttributeError, KeyError, TypeError, asyncpg.InterfaceError, asyncpg.InternalClientError):
        settings: Any = connection.get_settings()
        settings.register_data_types(_ARRAYS)


_LENGTH = struct.Struct("!I")
_HEADER = struct.Struct("!cI")
_READY = b"Z"
_AT_ANY_TIME = (b"S", b"N", b"A")
"""ParameterStatus, NoticeResponse and NotificationResponse, which the driver accepts at any time."""


class _SkippedReply(asyncio.Protocol):
    """Discards the reply to one simple query, and then passes the rest on to `receiver` and calls `done` with it."""

    def __init__(self, receiver: asyncio.Protocol, done: Callable[[asyncio.Protocol], None]) -> None:
        self.receiver = receiver
        self._done = done
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        buffer, at = self._buffer + bytes(data), 0
        while len(buffer) - at >= _HEADER.size:
            kind, length = _HEADER.unpack_from(buffer, at)
            end = at + 1 + length
            if end > len(buffer):
                break
            if kind in _AT_ANY_TIME:
                self.receiver.data_received(buffer[at:end])
            at = end
            if kind == _READY:
                self._done(self.receiver)
                if at < len(buffer):
                    self.receiver.data_received(buffer[at:])
                return
        self._buffer = buffer[at:]

    def eof_received(self) -> bool | None:
        return self.receiver.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.receiver.connection_lost(exc)

    def pause_writing(self) -> None:
        self.receiver.pause_writing()

    def resume_writing(self) -> None:
        self.receiver.resume_writing()


class TappedConnection(asyncpg.Connection):
    """A connection on which a filter can be inserted between the transport and the driver's protocol."""

    def __init__(self, protocol: asyncio.Protocol, transport: asyncio.Transport, *rest: Any) -> None:
        super().__init__(protocol, transport, *rest)
        self.transport = transport
        self.receiver = protocol
        """The protocol that receives the server's bytes: the driver's, or the filter set with `receive_by`."""
        self._skipped: _SkippedReply | None = None

    def receive_by(self, tap: asyncio.Protocol) -> None:
        """Make `tap` receive the server's bytes permanently. `tap` must pass them on to the driver's protocol."""
        self.receiver = tap
        self._deliver_to(tap)

    @contextmanager
    def tapped(self, tap: TapT) -> Generator[TapT]:
        """Make `tap` receive the server's bytes while the context is open. `tap` must pass them on to `receiver`."""
        self._deliver_to(tap)
        try:
            yield tap
        finally:
            self._deliver_to(self.receiver)

    def send_ahead(self, command: str) -> None:
        """Send a command without results just before the driver's next request, without a round trip of its own.

        The command must not fail, because its reply is discarded. `command` must be ASCII.
        """
        if self._skipped is not None or self.transport.is_closing():
            return
        body = command.encode("ascii") + b"\0"
        self._skipped = skipped = _SkippedReply(self.receiver, self._reply_skipped)
        self.transport.set_protocol(skipped)
        self.transport.write(b"Q" + _LENGTH.pack(_LENGTH.size + len(body)) + body)

    def _reply_skipped(self, receiver: asyncio.Protocol) -> None:
        self._skipped = None
        self._deliver_to(receiver)

    def _deliver_to(self, protocol: asyncio.Protocol) -> None:
        if self._skipped is None:
            self.transport.set_protocol(protocol)
        else:
            self._skipped.receiver = protocol

    def forget_statements(self) -> None:
        """Do not close the prepared statements of earlier sessions, which the server has already discarded."""
        self._mark_stmts_as_closed()

    @property
    def text_encoding(self) -> str:
        """The name of Python's codec for text under the session's current `client_encoding`."""
        settings: Any = self.get_settings()
        return settings.get_text_codec().name

    def decode_as(self, codec: str, oid: int, *, text: bool = False) -> None:
        """Decode values of type `oid` like those of asyncpg's built-in type `codec`.

        If `text` is set, the server's text representation is decoded, otherwise the binary one.
        """
        settings: Any = self.get_settings()
        settings.set_builtin_type_codec(
            oid, f"{codec} of {oid}", "pg_catalog", "scalar", codec, "text" if text else "binary"
        )


class Portal(asyncpg.cursor.Cursor):
    """A cursor that binds its statement and requests the first rows in a single round trip."""

    def __init__(self, connection: asyncpg.Connection, prepared: PreparedStatement, values: Sequence[Any]) -> None:
        super().__init__(connection, prepared.get_query(), _state_of(prepared), tuple(values), None)

    async def request(self, count: int) -> Sequence[Sequence[Any]]:
        """Request the next rows, at most `count`, and return those that no filter has kept."""
        records: Any = await (self._exec(count, None) if self._portal_name else self._bind_exec(count, None))
        return records

    @property
    def is_exhausted(self) -> bool:
        """Whether the server has sent the last row."""
        return self._exhausted

    async def close(self) -> None:
        """Close the portal without ending the transaction.

        An open portal prevents its tables from being dropped or altered, even after its last row was read.
        """
        if self._portal_name:
            await self._close_portal(None)


def _state_of(prepared: Any) -> Any:
    return prepared._state  # noqa: SLF001 see above
