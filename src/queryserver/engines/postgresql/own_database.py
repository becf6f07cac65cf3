"""The service's own database, which no connector uses, by whatever address and name it is reached."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import asyncpg

from queryserver.errors.statements import EngineUnavailable
from queryserver.platform.addresses import HostRefused

_CALL_S = 5
_KNOWN_FOR_S = 60.0
"""A database that is moved or restored gets another identity."""
_AGAIN_S = 5.0
"""Until the attempt after one that failed or was cancelled: each takes up to `_CALL_S`, for which all requests wait."""

_DATABASE = """
SELECT pg_catalog.current_database()::text AS name, oid::bigint AS number, {cluster} AS cluster
  FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()"""
_WITH_CLUSTER = _DATABASE.format(cluster="(SELECT system_identifier FROM pg_catalog.pg_control_system())")
_WITHOUT_CLUSTER = _DATABASE.format(cluster="NULL::bigint")
_NO_SUCH_CATALOGUE = (asyncpg.SyntaxOrAccessError, asyncpg.FeatureNotSupportedError)
"""Of servers that only speak the protocol of PostgreSQL, and of administrators who revoke a function."""
_DRIVER_ERRORS = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
_NO_ANSWER = "The database of this service did not answer."


class Queries(Protocol):
    """A connection of asyncpg, or a test's."""

    async def fetchrow(self, query: str, *, timeout: float | None = None) -> asyncpg.Record | None:
        """The first row."""
        ...


@dataclass(frozen=True, slots=True)
class DatabaseIdentity:
    """What its server calls a database: replicas share it, copies do not."""

    name: str
    number: int
    cluster: int | None
    """None: this login may not read it."""

    def is_same(self, other: "DatabaseIdentity", *, on_one_server: bool) -> bool:
        """Whether both are one database; `on_one_server` is what the addresses say."""
        if self.cluster is None or other.cluster is None:
            return on_one_server and (self.name == other.name or self.number == other.number)
        return (self.cluster, self.number) == (other.cluster, other.number)


class OwnDatabase:
    """The database that the service itself uses, by its address `dsn`. Connects when its identity is first needed.

    While it is out of reach, its last known identity counts for other servers: statements there can be stopped. At its
    own server nothing is served.
    """

    def __init__(self, dsn: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._dsn = dsn
        self._clock = clock
        self._reading = asyncio.Lock()
        self._known: DatabaseIdentity | None = None
        self._failure = ""
        """Of the last attempt to read it."""
        self._read_again_at: float | None = None

    async def require_other(self, connection: Queries, *, on_own_server: bool) -> None:
        """Raises HostRefused: `connection` leads to the service's database; EngineUnavailable: that is not known.

        With `on_own_server` its address is that of the service's server: there a database without identity is refused.
        """
        try:
            found = await _identity(connection)
        except _DRIVER_ERRORS as error:
            raise EngineUnavailable("The database did not say which one it is.") from error
        if found is None:
            if on_own_server:
                raise HostRefused("Connections to this database are not allowed here: it does not say which one it is.")
            return
        async with self._reading:
            if self._read_again_at is None or self._clock() >= self._read_again_at:
                self._failure = _NO_ANSWER
                try:
                    self._known, self._failure = await self._read(), ""
                except EngineUnavailable as error:
                    self._failure = error.message
                finally:
                    self._read_again_at = self._clock() + (_AGAIN_S if self._failure else _KNOWN_FOR_S)
            if self._known is None or (on_own_server and self._failure):
                raise EngineUnavailable(self._failure)
            own = self._known
        if own.is_same(found, on_one_server=on_own_server):
            raise HostRefused(f"Connections to {found.name} are not allowed here: it is the service's own database.")

    async def _read(self) -> DatabaseIdentity:
        try:
            connection = await asyncpg.connect(self._dsn, timeout=_CALL_S, statement_cache_size=0)
            try:
                found = await _identity(connection)
            finally:
                await connection.close(timeout=_CALL_S)
        except _DRIVER_ERRORS as error:
            raise EngineUnavailable(_NO_ANSWER) from error
        if found is None:
            raise EngineUnavailable("The database of this service does not say which one it is.")
        return found


async def _identity(connection: Queries) -> DatabaseIdentity | None:
    for query in (_WITH_CLUSTER, _WITHOUT_CLUSTER):
        with suppress(*_NO_SUCH_CATALOGUE):
            row = await connection.fetchrow(query, timeout=_CALL_S)
            return None if row is None else DatabaseIdentity(row["name"], row["number"], row["cluster"])
    return None
