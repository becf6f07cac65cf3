"""Where a PostgreSQL database is, and how to log in there."""

import ssl as tls
from dataclasses import dataclass, field

import asyncpg

from queryserver.domain.errors import CredentialsRequired
from queryserver.engines.postgresql.errors import connect_errors
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
    rules: AddressRules = field(default_factory=AddressRules)

    def login(self, credentials: Credentials | None) -> Login:
        """The login of a session: its own credentials, else those of the address. Raises CredentialsRequired."""
        if credentials is not None:
            return Login(credentials.username, credentials.password)
        if self.user is None:
            raise CredentialsRequired("PostgreSQL needs a user and a password.")
        return Login(self.user, self.password or "")

    async def connect(self, login: Login) -> Connection:
        """A new connection. Raises EngineUnavailable, CredentialsRequired, StatementRejected (unknown database)."""
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
        if self.keep_alive is not None:
            keep = self.keep_alive
            connection.keep_alive(idle_s=keep.idle_s, interval_s=keep.interval_s, count=keep.count)
        return connection
