"""One PostgreSQL database as an Engine."""

import asyncio
import hmac
import secrets
import ssl as tls
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Protocol
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import asyncpg

from queryserver.engines.connections import DatabaseLogin
from queryserver.engines.postgresql.catalog import PostgresqlCatalog
from queryserver.engines.postgresql.connection import (
    PostgresqlConnection,
    PostgresqlStatement,
    connect_errors,
    make_ready,
)
from queryserver.engines.postgresql.loading import PostgresqlLoader
from queryserver.engines.postgresql.parameters import PARAMETERS
from queryserver.engines.protocol import Catalog, EngineCapabilities, SessionOptions, TableLoader
from queryserver.engines.sessions import DatabaseAddress, PooledSessions, StreamedSession
from queryserver.engines.threaded import lower_priority
from queryserver.errors.statements import EngineError, EngineUnavailable
from queryserver.identity.model import User
from queryserver.platform.addresses import AddressRules, HostRefused
from queryserver.platform.threads import Tasks

_CHECK_WITHIN_S = 5
_KNOWN_FOR_S = 60.0
"""A database that is moved or restored gets another identity."""
_AGAIN_S = 5.0
"""Until the attempt after one that failed: each takes up to twice `_CHECK_WITHIN_S`, for which all requests wait."""

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
    own server nothing is served. `tasks` are to be closed after the engines that ask it.
    """

    def __init__(self, dsn: str, tasks: Tasks, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._dsn = dsn
        self._clock = clock
        self._tasks = tasks
        self._reading: asyncio.Task[None] | None = None
        """Of no caller: one that is canceled must not end what others wait for. It ends by its time-outs."""
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
        if self._reading is None and (self._read_again_at is None or self._clock() >= self._read_again_at):
            self._reading = self._tasks.start(self._refresh(), "own-database")
        if (reading := self._reading) is not None:
            await asyncio.wait({reading})
            if not reading.cancelled():  # when the service stops: then its database has not answered
                reading.result()
        if self._known is None or (on_own_server and self._failure):
            raise EngineUnavailable(self._failure)
        own = self._known
        if own.is_same(found, on_one_server=on_own_server):
            raise HostRefused(f"Connections to {found.name} are not allowed here: it is the service's own database.")

    async def _refresh(self) -> None:
        self._failure = _NO_ANSWER
        try:
            # Twice: the first one has timed out where this process was stopped for a while.
            self._known, self._failure = await self._read(tries=2), ""
        except EngineUnavailable as error:
            self._failure = error.message
        finally:
            self._read_again_at = self._clock() + (_AGAIN_S if self._failure else _KNOWN_FOR_S)
            self._reading = None

    async def _read(self, *, tries: int) -> DatabaseIdentity:
        try:
            async with asyncio.timeout(_CHECK_WITHIN_S):
                connection = await asyncpg.connect(self._dsn, statement_cache_size=0)
                try:
                    found = await _identity(connection)
                finally:
                    connection.terminate()
        except _DRIVER_ERRORS as error:
            if tries > 1 and isinstance(error, TimeoutError):
                return await self._read(tries=tries - 1)
            raise EngineUnavailable(_NO_ANSWER) from error
        if found is None:
            raise EngineUnavailable("The database of this service does not say which one it is.")
        return found


async def _identity(connection: Queries) -> DatabaseIdentity | None:
    for query in (_WITH_CLUSTER, _WITHOUT_CLUSTER):
        with suppress(*_NO_SUCH_CATALOGUE):
            row = await connection.fetchrow(query, timeout=_CHECK_WITHIN_S)
            return None if row is None else DatabaseIdentity(row["name"], row["number"], row["cluster"])
    return None


_SESSION_DEFAULTS = {"TimeZone": "UTC", "DateStyle": "ISO", "IntervalStyle": "postgres"}


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """How the operating system detects a lost server while nothing is sent."""

    idle_s: int = 60
    interval_s: int = 15
    count: int = 4


@dataclass(frozen=True, slots=True)
class PostgresqlAddress(DatabaseAddress):
    """One database of a server. `host` may be the directory of a unix socket.

    `ssl` takes the values of libpq (`prefer`, `verify-full`, …), and so does `server_state` (`any`, `primary`, …).
    """

    product: ClassVar[str] = "PostgreSQL"
    ssl: str | tls.SSLContext = "prefer"
    application_name: str = "queryserver"
    clean_up_s: float = PostgresqlConnection.clean_up_s
    server_state: str = "any"
    keep_alive: KeepAlive | None = KeepAlive()
    own_database: OwnDatabase | None = None
    """The service's, which this must not be."""
    own_servers: AddressRules = field(default_factory=AddressRules)
    """The servers that have the service's database."""

    async def connect(self, login: DatabaseLogin) -> PostgresqlConnection:
        """A new connection. Raises EngineUnavailable, CredentialsRequired, StatementRejected (unknown database).

        HostRefused, an EngineUnavailable, for a refused address, and for the service's own database.
        """
        hosts = [self.host] if self.host.startswith("/") else list(await self.rules.resolve(self.host, self.port))
        with connect_errors():
            connection: PostgresqlConnection = await asyncpg.connect(
                host=hosts,
                port=self.port,
                user=login.user,
                password=login.password,
                database=self.database,
                ssl=self.ssl,
                timeout=self.connect_timeout_s,
                statement_cache_size=0,
                connection_class=PostgresqlConnection,
                target_session_attrs=self.server_state,
                server_settings={"application_name": self.application_name, **_SESSION_DEFAULTS},
            )
        connection.clean_up_s = self.clean_up_s
        if self.cell_max_bytes is not None:
            connection.guard.limit(self.cell_max_bytes)
        if self.keep_alive is not None:
            keep = self.keep_alive
            connection.keep_alive(idle_s=keep.idle_s, interval_s=keep.interval_s, count=keep.count)
        if self.own_database is not None:
            try:
                on_own_server = await asyncio.to_thread(self.own_servers.is_database_server, hosts, self.port)
                await self.own_database.require_other(connection, on_own_server=on_own_server)
            except BaseException:  # a cancel too: the connection must not stay open
                await connection.shut()
                raise
        return connection


_START_S = 60
"""The server may start with this connection, and its cluster be made first: two seconds on an idle machine."""
_CALL_S = 10
_MOST_CONNECTIONS = 20
"""Of one user."""

_RULES = f"LOGIN INHERIT CONNECTION LIMIT {_MOST_CONNECTIONS} VALID UNTIL 'infinity'"


class UserLogins:
    """Logins of users as roles of their own, made with `admin_dsn`, whose role may create roles and grant the groups.

    Sessions act as `group`. A login inherits nothing of it, but only `login_group`, which may connect: the owner of an
    object gives it to a role only while it has the rights of both, so no login can take over what `group` owns.
    `role_of` names the role of a user, a plain identifier. Passwords derive from the one in `admin_dsn`, so that all
    processes give a role the same password.
    """

    def __init__(
        self, admin_dsn: str, *, group: str, login_group: str, database: str, role_of: Callable[[int], str]
    ) -> None:
        self.group = group
        self._login_group = login_group
        self._admin_dsn = admin_dsn
        self._database = database
        self._role_of = role_of
        self._key = (urlsplit(admin_dsn).password or secrets.token_urlsafe(32)).encode()
        self._roles = set[str]()
        self._making = WeakValueDictionary[str, asyncio.Lock]()

    def login(self, user_id: int) -> DatabaseLogin:
        """The login of a user; `repair` before it is used."""
        role = self._role_of(user_id)
        self._roles.add(role)
        return DatabaseLogin(role, hmac.digest(self._key, role.encode(), "sha256").hex())

    def is_own(self, login: DatabaseLogin) -> bool:
        """Whether it is the login of a user, and not that of the connector."""
        return login.user in self._roles

    async def repair(self, login: DatabaseLogin) -> None:
        """Make the role, or restore its password, rules and group, without settings.

        A transaction of the user that changes the role delays the user's own connections. Raises EngineUnavailable,
        StatementRejected.
        """
        role = login.user
        async with self._making.setdefault(role, asyncio.Lock()):
            with connect_errors():
                connection = await asyncpg.connect(self._admin_dsn, timeout=_START_S, command_timeout=_CALL_S)
                try:
                    async with connection.transaction():
                        await self._make(connection, role, login.password)
                finally:
                    await connection.close(timeout=_CALL_S)

    async def _make(self, connection: asyncpg.Connection, role: str, password: str) -> None:
        # Two changes of one role at once would collide, also those of two processes.
        await connection.execute("SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext($1))", role)
        if not await connection.fetchval("SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = $1", role):
            await connection.execute(f"CREATE ROLE {role}")
        # The password is hexadecimal: no quoting is needed.
        await connection.execute(f"ALTER ROLE {role} {_RULES} PASSWORD '{password}'")
        await connection.execute(f"GRANT {self._login_group} TO {role}")
        await connection.execute(f"GRANT {self.group} TO {role} WITH INHERIT FALSE, SET TRUE")
        await connection.execute(f"ALTER ROLE {role} RESET ALL")
        await connection.execute(f"ALTER ROLE {role} IN DATABASE {self._database} RESET ALL")


_NICENESS = 5
"""Of the processes of our own server that work on statements. They share locks with those that serve the service."""


class PostgresqlEngine:
    """Statements on one database of one server. `SessionOptions.database` names a schema.

    With `user_logins` each user's sessions log in as a role of their own. `canceled` gives the error of a statement
    that something else than this engine has canceled; without it the error is the server's.
    """

    dialect = "postgresql"
    lists_functions = True

    def __init__(
        self,
        address: PostgresqlAddress,
        *,
        read_only: bool = False,
        user_logins: UserLogins | None = None,
        canceled: Callable[[], EngineError] | None = None,
    ) -> None:
        self._canceled = canceled
        self._address = address
        self._read_only = read_only
        self._user_logins = user_logins
        self._sessions = PooledSessions("postgresql", self._connect, connect_errors, idle_s=address.idle_s)
        self.capabilities = EngineCapabilities(
            wants_credentials=address.user is None, endpoints=((address.host, address.port),), parameters=PARAMETERS
        )

    def session(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[StreamedSession]:
        """A session whose `search_path` is the schema of `options`; leaving it stops what still runs in it."""
        login = self._login(user, options)

        async def interrupt(process_id: int) -> None:
            # The same login may stop its statements.
            signal = f"SELECT pg_cancel_backend({process_id:d})"
            await self._sessions.interrupt(login, lambda connection: connection.execute(signal))

        new_source = partial(
            PostgresqlStatement, interrupt_process=interrupt, read_only=self._read_only, canceled=self._canceled
        )
        return self._sessions.session(login, new_source, partial(make_ready, options, self._acting_role))

    @asynccontextmanager
    async def catalog(self, user: User, options: SessionOptions) -> AsyncGenerator[Catalog]:
        async with self.session(user, options) as session:
            yield PostgresqlCatalog(session)

    def loader(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[TableLoader]:
        prepare = partial(make_ready, options, self._acting_role)
        make = partial(PostgresqlLoader, read_only=self._read_only, canceled=self._canceled)
        return self._sessions.lent(self._login(user, options), prepare, make)

    async def ping(self) -> None:
        await self._sessions.call(self._address.login(None), lambda connection: connection.execute("SELECT 1"))

    async def close(self) -> None:
        await self._sessions.close()

    @property
    def _acting_role(self) -> str | None:
        return self._user_logins.group if self._user_logins is not None else None

    def _login(self, user: User, options: SessionOptions) -> DatabaseLogin:
        if self._user_logins is not None and options.credentials is None:
            return self._user_logins.login(user.id)
        return self._address.login(options.credentials)

    async def _connect(self, login: DatabaseLogin) -> PostgresqlConnection:
        if self._user_logins is None or not self._user_logins.is_own(login):
            return await self._address.connect(login)
        await self._user_logins.repair(login)
        connection = await self._address.connect(login)
        # Only a server that is our own makes such logins: its processes run beside this one.
        lower_priority(connection.get_server_pid(), niceness=_NICENESS)
        return connection
