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
from collections.abc import Generator, Sequence
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


class TappedConnection(asyncpg.Connection):
    """A connection on which a filter can be inserted between the transport and the driver's protocol."""

    def __init__(self, protocol: asyncio.Protocol, transport: asyncio.Transport, *rest: Any) -> None:
        super().__init__(protocol, transport, *rest)
        self.transport = transport
        self.receiver = protocol
        """The protocol that receives the server's bytes: the driver's, or the filter set with `receive_by`."""

    def receive_by(self, tap: asyncio.Protocol) -> None:
        """Make `tap` receive the server's bytes permanently. `tap` must pass them on to the driver's protocol."""
        self.receiver = tap
        self.transport.set_protocol(tap)

    @contextmanager
    def tapped(self, tap: TapT) -> Generator[TapT]:
        """Make `tap` receive the server's bytes while the context is open. `tap` must pass them on to `receiver`."""
        self.transport.set_protocol(tap)
        try:
            yield tap
        finally:
            self.transport.set_protocol(self.receiver)

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
