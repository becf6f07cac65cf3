"""One PostgreSQL database as an Engine."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from queryserver.domain.errors.statements import StatementRejected
from queryserver.domain.user import User
from queryserver.engines.connection_pool import ConnectionPool
from queryserver.engines.pooled_sessions import PooledSessions
from queryserver.engines.postgresql.address import Login, PostgresqlAddress
from queryserver.engines.postgresql.catalog import PostgresqlCatalog
from queryserver.engines.postgresql.errors import connect_errors
from queryserver.engines.postgresql.loading import PostgresqlLoader
from queryserver.engines.postgresql.quoting import literal
from queryserver.engines.postgresql.statement import PostgresqlStatement
from queryserver.engines.postgresql.user_logins import UserLogins
from queryserver.engines.postgresql.wire import Connection
from queryserver.engines.streamed_session import StreamedSession
from queryserver.engines.threads import lower_priority
from queryserver.interfaces.catalog import Catalog
from queryserver.interfaces.engine import EngineCapabilities, SessionOptions
from queryserver.interfaces.loading import TableLoader

_NICENESS = 5
"""Of the processes of our own server that work on statements. They share locks with those that serve the service."""


class PostgresqlEngine:
    """Statements on one database of one server. `SessionOptions.database` names a schema.

    With `user_logins` each user's sessions log in as a role of their own.
    """

    def __init__(
        self, address: PostgresqlAddress, *, read_only: bool = False, user_logins: UserLogins | None = None
    ) -> None:
        self._address = address
        self._read_only = read_only
        self._user_logins = user_logins
        pool = ConnectionPool(self._connect, max_idle=address.max_idle, idle_s=address.idle_s)
        self._sessions = PooledSessions("postgresql", pool, connect_errors)
        self._capabilities = EngineCapabilities(
            explain_prefix="EXPLAIN ",
            wants_credentials=self._address.user is None,
            places=((self._address.host, self._address.port),),
        )

    @property
    def dialect(self) -> str:
        return "postgresql"

    @property
    def capabilities(self) -> EngineCapabilities:
        return self._capabilities

    @asynccontextmanager
    async def session(self, user: User, options: SessionOptions) -> AsyncGenerator[StreamedSession]:
        """A session whose `search_path` is the schema of `options`; leaving it stops what still runs in it."""
        login = self._login(user, options)
        new_source = partial(self._statement, partial(self._interrupt, login))
        async with self._sessions.session(login, new_source, partial(_prepare, options, self._acting_role)) as session:
            yield session

    @property
    def lists_functions(self) -> bool:
        """See CatalogEngine."""
        return True

    @asynccontextmanager
    async def catalog(self, user: User, options: SessionOptions) -> AsyncGenerator[Catalog]:
        """See CatalogEngine."""
        async with self.session(user, options) as session:
            yield PostgresqlCatalog(session)

    @asynccontextmanager
    async def loader(self, user: User, options: SessionOptions) -> AsyncGenerator[TableLoader]:
        """See LoadingEngine."""
        login = self._login(user, options)
        async with self._sessions.connection(login, partial(_prepare, options, self._acting_role)) as (
            connection,
            executor,
        ):
            yield PostgresqlLoader(connection, executor, read_only=self._read_only)

    async def ping(self) -> None:
        """Raises EngineUnavailable or CredentialsRequired when statements could not be sent now."""
        await self._sessions.call(self._address.login(None), partial(_run, "SELECT 1"))

    async def close(self) -> None:
        await self._sessions.close()

    @property
    def _acting_role(self) -> str | None:
        return self._user_logins.group if self._user_logins is not None else None

    def _login(self, user: User, options: SessionOptions) -> Login:
        if self._user_logins is not None and options.credentials is None:
            return self._user_logins.login(user.id)
        return self._address.login(options.credentials)

    async def _connect(self, login: Login) -> Connection:
        if self._user_logins is None or not self._user_logins.is_own(login):
            return await self._address.connect(login)
        await self._user_logins.repair(login)
        connection = await self._address.connect(login)
        # Only a server that is our own makes such logins: its processes run beside this one.
        lower_priority(connection.get_server_pid(), niceness=_NICENESS)
        return connection

    def _statement(
        self, interrupt: Callable[[int], Awaitable[None]], connection: Connection, sql: str
    ) -> PostgresqlStatement:
        return PostgresqlStatement(connection, sql, interrupt, read_only=self._read_only)

    async def _interrupt(self, login: Login, process_id: int) -> None:
        """The same login may stop its statements."""
        await self._sessions.interrupt(login, partial(_run, f"SELECT pg_cancel_backend({process_id:d})"))


async def _run(sql: str, connection: Connection) -> None:
    await connection.execute(sql)


async def _prepare(options: SessionOptions, role: str | None, connection: Connection) -> None:
    """Apply the role, the schema and the settings in one round trip each; a fresh connection without them costs none.

    The role is not kept by DISCARD ALL.
    """
    if role is not None:
        await connection.execute(f"SET ROLE {role}")
    if options.settings:
        calls = [f"set_config({literal(k)}, {literal(v)}, false)" for k, v in options.settings.items()]
        await connection.execute(f"SELECT {', '.join(calls)}")
    if options.database is not None:
        schema = literal(options.database)
        tag = await connection.execute(
            f"SELECT set_config('search_path', quote_ident({schema}), false)"  # noqa: S608 the name is quoted
            f" FROM pg_catalog.pg_namespace WHERE nspname = {schema}"
        )
        if tag != "SELECT 1":
            raise StatementRejected(f'schema "{options.database}" does not exist')
