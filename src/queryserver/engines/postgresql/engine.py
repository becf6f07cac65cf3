"""One PostgreSQL database as an Engine."""

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial

from queryserver.domain.errors import EngineError, StatementRejected
from queryserver.domain.user import User
from queryserver.engines.connection_pool import ConnectionPool
from queryserver.engines.postgresql.address import Login, PostgresqlAddress
from queryserver.engines.postgresql.catalog import PostgresqlCatalog
from queryserver.engines.postgresql.errors import connect_errors
from queryserver.engines.postgresql.quoting import literal
from queryserver.engines.postgresql.statement import PostgresqlStatement
from queryserver.engines.postgresql.wire import Connection
from queryserver.engines.streamed_session import StreamedSession
from queryserver.interfaces.catalog import Catalog
from queryserver.interfaces.engine import EngineCapabilities, SessionOptions

_CONVERTER_THREADS = 2
_INTERRUPT_S = 5.0
_PING_S = 5.0


class PostgresqlEngine:
    """Statements on one database of one server. `SessionOptions.database` names a schema."""

    def __init__(self, address: PostgresqlAddress, *, read_only: bool = False) -> None:
        self._address = address
        self._read_only = read_only
        self._pool = ConnectionPool(address.connect, max_idle=address.max_idle, idle_s=address.idle_s)
        self._executor = ThreadPoolExecutor(_CONVERTER_THREADS, thread_name_prefix="postgresql")

    @property
    def dialect(self) -> str:
        return "postgresql"

    @property
    def capabilities(self) -> EngineCapabilities:
        return EngineCapabilities(explain_prefix="EXPLAIN ", wants_credentials=self._address.user is None)

    @asynccontextmanager
    async def session(self, user: User, options: SessionOptions) -> AsyncGenerator[StreamedSession]:  # noqa: ARG002 PostgreSQL knows the login only
        """A session whose `search_path` is the schema of `options`; leaving it stops what still runs in it."""
        login = self._address.login(options.credentials)
        connection = await self._pool.take(login)
        interrupt = partial(self._interrupt, login)
        session = StreamedSession(
            lambda sql: PostgresqlStatement(connection, sql, interrupt, read_only=self._read_only),
            is_connected=lambda: not connection.is_closed(),
            executor=self._executor,
        )
        try:
            with connect_errors():
                await _prepare_session(connection, options)
            yield session
        finally:
            await asyncio.shield(self._leave(login, connection, session))

    @property
    def lists_functions(self) -> bool:
        """See CatalogEngine."""
        return True

    @asynccontextmanager
    async def catalog(self, user: User, options: SessionOptions) -> AsyncGenerator[Catalog]:
        """See CatalogEngine."""
        async with self.session(user, options) as session:
            yield PostgresqlCatalog(session)

    async def ping(self) -> None:
        """Raises EngineUnavailable or CredentialsRequired when statements could not be sent now."""
        login = self._address.login(None)
        async with self._pool.borrowed(login) as connection:
            with connect_errors():
                async with asyncio.timeout(_PING_S):
                    await connection.execute("SELECT 1")

    async def close(self) -> None:
        await self._pool.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _leave(self, login: Login, connection: Connection, session: StreamedSession) -> None:
        await session.leave()
        if session.is_reusable:
            await self._pool.give_back(login, connection)
        else:
            await connection.shut()

    async def _interrupt(self, login: Login, process_id: int) -> None:
        """Send the stop signal from a second connection; the same login may do so. A failure is for another try."""
        with suppress(EngineError, TimeoutError):
            async with asyncio.timeout(_INTERRUPT_S), self._pool.borrowed(login) as connection:
                with connect_errors():
                    await connection.execute(f"SELECT pg_cancel_backend({process_id:d})")


async def _prepare_session(connection: Connection, options: SessionOptions) -> None:
    """Apply the schema and the settings in one round trip each; a fresh connection without them costs none."""
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
