"""Connections that are logged in and clean, ready for the next session: a SCRAM login costs about 10 ms."""

import asyncio
import ssl as tls
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import asyncpg

from queryserver.domain.errors import CredentialsRequired, EngineUnavailable
from queryserver.engines.postgresql.errors import connect_errors
from queryserver.engines.postgresql.wire import Connection

_CLEAN_UP_S = 5.0
_SESSION_DEFAULTS = {"TimeZone": "UTC", "DateStyle": "ISO", "IntervalStyle": "postgres"}


@dataclass(frozen=True, slots=True)
class PostgresqlAddress:
    """One database of a server, the login used when a session brings none, and the limits of the pool.

    `host` may be the directory of a unix socket. `ssl` takes libpq's words (`prefer`, `require`, `verify-full`, …).
    """

    host: str
    port: int
    database: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ssl: str | tls.SSLContext = "prefer"
    application_name: str = "queryserver"
    connect_timeout_s: int = 10
    max_idle: int = 8
    idle_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Login:
    """Who a connection is; connections are never handed to another login."""

    user: str
    password: str = field(repr=False)


class ConnectionPool:
    """Idle connections of one address, by login. The number of connections in use is the callers' affair."""

    def __init__(self, address: PostgresqlAddress) -> None:
        self._address = address
        self._idle: deque[tuple[float, Login, Connection]] = deque()
        self._reaper: asyncio.Task[None] | None = None
        self._closed = False

    def login(self, user: str | None, password: str | None) -> Login:
        """The login of a session: its own credentials, else those of the address. Raises CredentialsRequired."""
        if user is not None:
            return Login(user, password or "")
        if self._address.user is None:
            raise CredentialsRequired("PostgreSQL needs a user and a password.")
        return Login(self._address.user, self._address.password or "")

    async def take(self, login: Login) -> Connection:
        """A clean connection, the one used last if there is one. Raises EngineUnavailable, CredentialsRequired."""
        if self._closed:
            raise EngineUnavailable("This PostgreSQL connector is closed.")
        for position in reversed(range(len(self._idle))):
            _, owner, connection = self._idle[position]
            if connection.is_closed():
                del self._idle[position]
            elif owner == login:
                del self._idle[position]
                return connection
        return await self._connect(login)

    @asynccontextmanager
    async def borrowed(self, login: Login) -> AsyncGenerator[Connection]:
        """A clean connection for one call; any exception puts it in doubt. Raises as `take`."""
        connection = await self.take(login)
        try:
            yield connection
        except BaseException:
            await self.discard(connection)
            raise
        await self.give_back(login, connection)

    async def give_back(self, login: Login, connection: Connection) -> None:
        """Clean a connection for the next session, or close it when that fails or enough are idle."""
        connection.on_notice = None
        if self._closed or len(self._idle) >= self._address.max_idle or not await _cleaned(connection):
            await self.discard(connection)
            return
        self._idle.append((time.monotonic(), login, connection))
        if self._reaper is None or self._reaper.done():
            self._reaper = asyncio.create_task(self._reap(), name="postgresql pool")

    async def discard(self, connection: Connection) -> None:
        """Close a connection that is in doubt. Limited in time, never raises."""
        connection.on_notice = None
        with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
            await connection.close(timeout=_CLEAN_UP_S)

    async def close(self) -> None:
        """Close all idle connections; those in use are closed when they come back. Idempotent."""
        self._closed = True
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.wait({self._reaper})
        while self._idle:
            await self.discard(self._idle.pop()[2])

    async def _connect(self, login: Login) -> Connection:
        address = self._address
        with connect_errors():
            return await asyncpg.connect(
                host=address.host,
                port=address.port,
                user=login.user,
                password=login.password,
                database=address.database,
                ssl=address.ssl,
                timeout=address.connect_timeout_s,
                statement_cache_size=0,
                connection_class=Connection,
                server_settings={"application_name": address.application_name, **_SESSION_DEFAULTS},
            )

    async def _reap(self) -> None:
        """Close connections that nobody took for `idle_s`; ends when none is left."""
        while self._idle:
            rest_s = self._idle[0][0] + self._address.idle_s - time.monotonic()
            if rest_s > 0:
                await asyncio.sleep(rest_s)
            else:
                await self.discard(self._idle.popleft()[2])


async def _cleaned(connection: Connection) -> bool:
    """Whether the connection is as after its login; False when there is any doubt."""
    if connection.is_closed():
        return False
    try:
        async with asyncio.timeout(_CLEAN_UP_S):
            if connection.is_in_transaction():
                await connection.execute("ROLLBACK")
            await connection.execute("DISCARD ALL")
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
        return False
    return True
