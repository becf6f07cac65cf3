"""Implements the PostgreSQL engine, its user logins, and the check that protects the service's own database."""

import asyncio
import hmac
import os
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
from queryserver.engines.postgresql.connection import Plan, PostgresqlConnection, PostgresqlStatement, prepare_session
from queryserver.engines.postgresql.errors import connect_errors
from queryserver.engines.postgresql.estimates import PostgresqlSession
from queryserver.engines.postgresql.loader import PostgresqlLoader
from queryserver.engines.postgresql.parameters import PARAMETERS
from queryserver.engines.protocol import (
    NO_CONTEXT,
    Catalog,
    EngineCapabilities,
    SessionOptions,
    StatementContext,
    TableLoader,
)
from queryserver.engines.sessions import DatabaseAddress, PooledSessions, StreamedSession
from queryserver.errors.statements import EngineError, EngineUnavailable
from queryserver.identity.model import User
from queryserver.platform.addresses import AddressRules, HostRefused
from queryserver.platform.threads import Tasks
from queryserver.sql.markers import BoundStatement

_CHECK_TIMEOUT_S = 5
_IDENTITY_CACHE_S = 60.0
"""How long an identity is cached. It expires because a moved or restored database gets a new identity."""
_RETRY_PAUSE_S = 5.0
"""Pause after a failed attempt. An attempt takes up to twice `_CHECK_TIMEOUT_S`, and all requests wait for it."""

_DATABASE = """
SELECT pg_catalog.current_database()::text AS name, oid::bigint AS number, {cluster} AS cluster
  FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()"""
_WITH_CLUSTER = _DATABASE.format(cluster="(SELECT system_identifier FROM pg_catalog.pg_control_system())")
_WITHOUT_CLUSTER = _DATABASE.format(cluster="NULL::bigint")
_NO_IDENTITY = (asyncpg.SyntaxOrAccessError, asyncpg.FeatureNotSupportedError)
"""Errors of servers that only implement PostgreSQL's protocol, and errors if the login may not call the function."""
_DRIVER_ERRORS = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
_NO_ANSWER = "The service's own database did not respond."


class Queries(Protocol):
    """The query method of an asyncpg connection, which tests can fake."""

    async def fetchrow(self, query: str, *, timeout: float | None = None) -> asyncpg.Record | None:
        """Run a query and return its first row."""
        ...


@dataclass(frozen=True, slots=True)
class DatabaseIdentity:
    """The identity of a database. Replicas have the same identity; copies do not."""

    name: str
    number: int
    cluster: int | None
    """The system identifier of the database server; None if the login may not read it."""

    def is_same(self, other: "DatabaseIdentity", *, on_one_server: bool) -> bool:
        """Return whether both are the same database. Set `on_one_server` if both addresses belong to one server."""
        if self.cluster is None or other.cluster is None:
            return on_one_server and (self.name == other.name or self.number == other.number)
        return (self.cluster, self.number) == (other.cluster, other.number)


class OwnDatabase:
    """The service's own database at the address `dsn`. Connects only when the database's identity is first needed.

    While this database is unreachable, connections to its server are refused. Connections to other servers are checked
    against its last known identity, so that statements on them can still be canceled. `tasks` must be closed after the
    engines that use this object.
    """

    def __init__(self, dsn: str, tasks: Tasks, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._dsn = dsn
        self._clock = clock
        self._tasks = tasks
        self._reading: asyncio.Task[None] | None = None
        """Shared by all callers, so canceling one caller must not cancel it. Its own timeouts limit its duration."""
        self._known: DatabaseIdentity | None = None
        self._failure = ""
        """Message from the last attempt to read the identity; empty if it succeeded."""
        self._read_again_at: float | None = None

    async def require_other(self, connection: Queries, *, on_own_server: bool) -> None:
        """Check that `connection` does not lead to the service's own database.

        Set `on_own_server` if the address belongs to the service's database server; a database there must report an
        identity. Raises HostRefused, or EngineUnavailable if the check is impossible.
        """
        try:
            found = await _identity(connection)
        except _DRIVER_ERRORS as error:
            raise EngineUnavailable("The database did not identify itself.") from error
        if found is None:
            if on_own_server:
                raise HostRefused("Connections to this database are not allowed here: it does not identify itself.")
            return
        if self._reading is None and (self._read_again_at is None or self._clock() >= self._read_again_at):
            self._reading = self._tasks.start(self._refresh(), "own-database")
        if (reading := self._reading) is not None:
            await asyncio.wait({reading})
            if not reading.cancelled():  # canceled if the service stops before its database responds
                reading.result()
        if self._known is None or (on_own_server and self._failure):
            raise EngineUnavailable(self._failure)
        own = self._known
        if own.is_same(found, on_one_server=on_own_server):
            raise HostRefused(f"Connections to {found.name} are not allowed here: it is the service's own database.")

    async def _refresh(self) -> None:
        self._failure = _NO_ANSWER
        try:
            # A second try is needed because the first one times out if this process was suspended.
            self._known, self._failure = await self._read(tries=2), ""
        except EngineUnavailable as error:
            self._failure = error.message
        finally:
            self._read_again_at = self._clock() + (_RETRY_PAUSE_S if self._failure else _IDENTITY_CACHE_S)
            self._reading = None

    async def _read(self, *, tries: int) -> DatabaseIdentity:
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT_S):
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
            raise EngineUnavailable("The service's own database does not identify itself.")
        return found


async def _identity(connection: Queries) -> DatabaseIdentity | None:
    for query in (_WITH_CLUSTER, _WITHOUT_CLUSTER):
        with suppress(*_NO_IDENTITY):
            row = await connection.fetchrow(query, timeout=_CHECK_TIMEOUT_S)
            return None if row is None else DatabaseIdentity(row["name"], row["number"], row["cluster"])
    return None


_SESSION_DEFAULTS = {"TimeZone": "UTC", "DateStyle": "ISO", "IntervalStyle": "postgres"}


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """TCP keepalive settings, with which the operating system detects a lost server on an idle connection."""

    idle_s: int = 60
    interval_s: int = 15
    count: int = 4


@dataclass(frozen=True, slots=True)
class PostgresqlAddress(DatabaseAddress):
    """The address of one database on a server. `host` may be a Unix socket directory.

    `ssl` (`prefer`, `verify-full`, …) and `server_state` (`any`, `primary`, …) accept libpq's values.
    """

    product: ClassVar[str] = "PostgreSQL"
    ssl: str | tls.SSLContext = "prefer"
    application_name: str = "queryserver"
    clean_up_s: float = PostgresqlConnection.clean_up_s
    server_state: str = "any"
    keep_alive: KeepAlive | None = KeepAlive()
    own_database: OwnDatabase | None = None
    """The service's own database. Connections to it are refused."""
    own_servers: AddressRules = field(default_factory=AddressRules)
    """Matches the servers that host the service's own database."""

    async def connect(self, login: DatabaseLogin) -> PostgresqlConnection:
        """Open a connection. Raises EngineUnavailable, CredentialsRequired, StatementRejected (unknown database).

        Raises HostRefused, a kind of EngineUnavailable, for a refused address and for the service's own database.
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
        connection.usual_name = connection.current_name
        if self.cell_max_bytes is not None:
            connection.rows.limit(self.cell_max_bytes)
        if self.keep_alive is not None:
            keep = self.keep_alive
            connection.keep_alive(idle_s=keep.idle_s, interval_s=keep.interval_s, count=keep.count)
        if self.own_database is not None:
            try:
                on_own_server = await asyncio.to_thread(self.own_servers.is_database_server, hosts, self.port)
                await self.own_database.require_other(connection, on_own_server=on_own_server)
            except BaseException:  # includes cancellation: the connection must not stay open
                await connection.disconnect()
                raise
        return connection


_START_S = 60
"""Timeout for the admin connection, which may have to start the server and create its cluster (2 s on an idle
machine).
"""
_CALL_S = 10
_MAX_CONNECTIONS = 20
"""Maximum number of connections per user."""

_RULES = f"LOGIN INHERIT CONNECTION LIMIT {_MAX_CONNECTIONS} VALID UNTIL 'infinity'"


class UserLogins:
    """Creates one role per user. The role in `admin_dsn` must be allowed to create roles and grant the groups.

    Sessions act as `group`. A login inherits only from `login_group`, which may connect, and not from `group`. Changing
    an object's owner requires the rights of both roles, so no login can take over objects that `group` owns. `role_of`
    returns a user's role name, a plain identifier. Passwords are derived from the password in `admin_dsn`, so that all
    processes set the same password for a role.
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
        """Return a user's login. Call `repair` before using the login."""
        role = self._role_of(user_id)
        self._roles.add(role)
        return DatabaseLogin(role, hmac.digest(self._key, role.encode(), "sha256").hex())

    def is_own(self, login: DatabaseLogin) -> bool:
        """Return whether this login was created for a user; False for the connector's login."""
        return login.user in self._roles

    async def repair(self, login: DatabaseLogin) -> None:
        """Create the role if necessary, and reset its password, limits, groups and settings.

        Waits for an open transaction in which the user changes the role. Raises EngineUnavailable, StatementRejected.
        """
        role = login.user
        async with self._making.setdefault(role, asyncio.Lock()):
            with connect_errors():
                connection = await asyncpg.connect(self._admin_dsn, timeout=_START_S, command_timeout=_CALL_S)
                try:
                    async with connection.transaction():
                        await self._create_role(connection, role, login.password)
                finally:
                    await connection.close(timeout=_CALL_S)

    async def _create_role(self, connection: asyncpg.Connection, role: str, password: str) -> None:
        # The lock prevents conflicts with concurrent changes to a role, including changes by other processes.
        await connection.execute("SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext($1))", role)
        if not await connection.fetchval("SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = $1", role):
            await connection.execute(f"CREATE ROLE {role}")
        # The password is hexadecimal and needs no quoting.
        await connection.execute(f"ALTER ROLE {role} {_RULES} PASSWORD '{password}'")
        await connection.execute(f"GRANT {self._login_group} TO {role}")
        await connection.execute(f"GRANT {self.group} TO {role} WITH INHERIT FALSE, SET TRUE")
        await connection.execute(f"ALTER ROLE {role} RESET ALL")
        await connection.execute(f"ALTER ROLE {role} IN DATABASE {self._database} RESET ALL")


_NICENESS = 5
"""Niceness of user processes in the embedded server.

The value is small because these processes share locks with the service's processes.
"""


class PostgresqlEngine:
    """Runs statements on one database. `SessionOptions.database` is a schema name.

    If `user_logins` is set, each user's sessions log in with that user's own role. `canceled` returns the error for
    statements canceled by something other than this engine; if it is None, the server's error is raised.
    """

    dialect = "postgresql"
    lists_functions = True

    def __init__(
        self,
        address: PostgresqlAddress,
        *,
        read_only: bool = False,
        tags: bool = True,
        user_logins: UserLogins | None = None,
        canceled: Callable[[], EngineError] | None = None,
    ) -> None:
        self._canceled = canceled
        self._address = address
        self._read_only = read_only
        self._tags = tags
        self._user_logins = user_logins
        self._sessions = PooledSessions("postgresql", self._connect, connect_errors, idle_s=address.idle_s)
        self.capabilities = EngineCapabilities(
            wants_credentials=address.user is None,
            endpoints=((address.host, address.port),),
            parameters=PARAMETERS,
            enforces_read_only=True,
            estimates_bytes=True,
            estimates_cost=True,
        )

    def session(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[StreamedSession]:
        """Open a session with the schema in `options` as `search_path`.

        Leaving the context cancels a running statement.
        """
        login = self._login(user, options)

        async def interrupt(process_id: int) -> None:
            # A login may cancel its own statements.
            signal = f"SELECT pg_cancel_backend({process_id:d})"
            await self._sessions.interrupt(login, lambda connection: connection.execute(signal))

        new_statement = partial(
            PostgresqlStatement,
            interrupt_process=interrupt,
            tags=self._tags,
            read_only=self._read_only,
            canceled=self._canceled,
        )

        def new_session(connection: PostgresqlConnection) -> Callable[..., StreamedSession]:
            def new_plan(sql: str | BoundStatement, plan: Plan) -> PostgresqlStatement:
                return new_statement(connection, sql, NO_CONTEXT, plan=plan)

            return partial(PostgresqlSession, new_plan=new_plan)

        prepare = partial(prepare_session, options, self._acting_role)
        return self._sessions.session(login, new_statement, prepare, new_session)

    @asynccontextmanager
    async def catalog(self, user: User, options: SessionOptions) -> AsyncGenerator[Catalog]:
        async with self.session(user, options) as session:
            yield PostgresqlCatalog(session, StatementContext(user=user.username))

    def loader(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[TableLoader]:
        prepare = partial(prepare_session, options, self._acting_role)
        make = partial(PostgresqlLoader, read_only=self._read_only, tags=self._tags, canceled=self._canceled)
        return self._sessions.use_connection(self._login(user, options), prepare, make)

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
        # Only the embedded server has user logins, and its processes run on this machine.
        with suppress(OSError):  # the service may not be permitted to change the priority
            os.setpriority(os.PRIO_PROCESS, connection.get_server_pid(), _NICENESS)
        return connection
