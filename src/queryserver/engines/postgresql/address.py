"""Where a PostgreSQL database is, and how to log in there."""

import asyncio
import ssl as tls
from collections.abc import Sequence
from dataclasses import dataclass, field

import asyncpg

from queryserver.domain.errors.statements import CredentialsRequired
from queryserver.engines.postgresql.errors import connect_errors
from queryserver.engines.postgresql.own_database import OwnDatabase
from queryserver.engines.postgresql.wire import Connection
from queryserver.interfaces.engine import Credentials
from queryserver.network.addresses import AddressRules

_SESSION_DEFAULTS = {"TimeZone": "UTC", "DateStyle": "ISO", "IntervalStyle": "postgres"}


@dataclass(frozen=True, slots=True)
class Login:
    """Who a connection is."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """How the operating system notices that the server is gone while nothing is sent."""

    idle_s: int = 60
    interval_s: int = 15
    count: int = 4


@dataclass(frozen=True, slots=True)
class PostgresqlAddress:
    """One database of a server, the login used when a session brings none, and the limits of the pool.

    `host` may be the directory of a unix socket. `ssl` takes libpq's words (`prefer`, `require`, `verify-full`, …), and
    so does `server_state` (`any`, `primary`, …).
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
    server_state: str = "any"
    keep_alive: KeepAlive | None = KeepAlive()
    cell_max_bytes: int | None = None
    """Largest value of a result; a row with a larger one is refused before it is in memory."""
    rules: AddressRules = field(default_factory=AddressRules)
    own_database: OwnDatabase | None = None
    """The service's, which this must not be."""
    own_servers: AddressRules = field(default_factory=AddressRules)
    """Tells which servers have the service's database."""

    def login(self, credentials: Credentials | None) -> Login:
        """The login of a session: its own credentials, else those of the address. Raises CredentialsRequired."""
        if credentials is not None:
            return Login(credentials.username, credentials.password)
        if self.user is None:
            raise CredentialsRequired("PostgreSQL needs a user and a password.")
        return Login(self.user, self.password or "")

    async def connect(self, login: Login) -> Connection:
        """A new connection. Raises EngineUnavailable, CredentialsRequired, StatementRejected (unknown database).

        Of EngineUnavailable, HostRefused: a refused address, or the service's own database.
        """
        hosts = [self.host] if self.host.startswith("/") else list(await self.rules.resolve(self.host, self.port))
        with connect_errors():
            connection: Connection = await asyncpg.connect(
                host=hosts,
                port=self.port,
                user=login.user,
                password=login.password,
                database=self.database,
                ssl=self.ssl,
                timeout=self.connect_timeout_s,
                statement_cache_size=0,
                connection_class=Connection,
                target_session_attrs=self.server_state,
                server_settings={"application_name": self.application_name, **_SESSION_DEFAULTS},
            )
        if self.cell_max_bytes is not None:
            connection.guard.limit(self.cell_max_bytes)
        if self.keep_alive is not None:
            keep = self.keep_alive
            connection.keep_alive(idle_s=keep.idle_s, interval_s=keep.interval_s, count=keep.count)
        await self._require_other_database(connection, hosts)
        return connection

    async def _require_other_database(self, connection: Connection, hosts: Sequence[str]) -> None:
        """Close the connection and raise HostRefused when it leads to the service's own database."""
        if self.own_database is None:
            return
        try:
            on_own_server = await asyncio.to_thread(self.own_servers.is_database_server, hosts, self.port)
            await self.own_database.require_other(connection, on_own_server=on_own_server)
        except BaseException:  # a cancel too: the connection must not stay open
            await connection.shut()
            raise
