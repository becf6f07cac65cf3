"""Implements the engine for one Phoenix Query Server."""

import asyncio
import re
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from queryserver.engines.catalog_queries import identifier
from queryserver.engines.phoenix.catalog import PhoenixCatalog, PhoenixLoader
from queryserver.engines.phoenix.connection import PhoenixAddress, PhoenixClient, PhoenixConnection, connect
from queryserver.engines.phoenix.protocol import PARAMETERS
from queryserver.engines.phoenix.statement import PhoenixStatement
from queryserver.engines.protocol import EngineCapabilities, SessionOptions
from queryserver.engines.sessions import StreamedSession
from queryserver.errors.statements import EngineError, StatementRejected
from queryserver.identity.model import User

_CONVERTER_THREADS = 2
# Phoenix silently accepts any property, so only properties that affect a session are allowed.
_SETTINGS = re.compile(
    r"CurrentSCN|TenantId|UpsertBatchSize(?:Bytes)?|Consistency|RequestMetric|LogLevel"
    r"|phoenix\.(?:query|mutate|scan|upsert|connection|server\.page|trace|log|default)\.[\w.]+"
)


class PhoenixEngine:
    """Runs statements on one Query Server. `SessionOptions.database` is a schema name."""

    dialect = "phoenix"
    lists_functions = False  # SYSTEM.FUNCTION contains only user-defined functions, not built-in functions

    def __init__(self, address: PhoenixAddress, *, read_only: bool = False) -> None:
        self._address = address
        self._read_only = read_only
        self._http = PhoenixClient(address)
        self._executor = ThreadPoolExecutor(_CONVERTER_THREADS, thread_name_prefix="phoenix")
        self.capabilities = EngineCapabilities(
            explain_column="PLAN",
            wants_credentials=self._address.username is None,
            endpoints=((self._address.host, self._address.port),),
            parameters=PARAMETERS,
        )

    @asynccontextmanager
    async def session(self, user: User, options: SessionOptions) -> AsyncGenerator[StreamedSession]:  # noqa: ARG002 Phoenix has only logins
        """Open a session in the schema of `options`. Leaving the context cancels a running statement."""
        async with self._opened(options) as (session, _):
            yield session

    @asynccontextmanager
    async def catalog(self, user: User, options: SessionOptions) -> AsyncGenerator[PhoenixCatalog]:  # noqa: ARG002 as above
        async with self._opened(options) as (session, connection):
            yield PhoenixCatalog(session, connection)

    @asynccontextmanager
    async def loader(self, user: User, options: SessionOptions) -> AsyncGenerator[PhoenixLoader]:  # noqa: ARG002 as above
        async with self._opened(options) as (session, connection):
            yield PhoenixLoader(
                session, connection, self._executor, schema=connection.schema, read_only=self._read_only
            )

    @asynccontextmanager
    async def _opened(self, options: SessionOptions) -> AsyncGenerator[tuple[StreamedSession, PhoenixConnection]]:
        connection = await self._connect(options)
        session = StreamedSession(
            lambda sql, _context: PhoenixStatement(connection, sql),
            is_connected=lambda: not connection.is_lost,
            executor=self._executor,
        )
        try:
            if options.database:
                await _use(connection, options.database)
            if self._read_only:
                await connection.forbid_changes()
            yield session, connection
        finally:

            async def leave() -> None:
                await session.leave()
                await connection.close()

            await asyncio.shield(leave())

    async def ping(self) -> None:
        """Open and close a connection. Raises EngineUnavailable or CredentialsRequired."""
        connection = await self._connect(SessionOptions())
        await asyncio.shield(connection.close())

    async def close(self) -> None:
        await self._http.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _connect(self, options: SessionOptions) -> PhoenixConnection:
        login = self._address.login(options)
        for name in options.settings:
            if not _SETTINGS.fullmatch(name):
                raise StatementRejected(f"unknown connection property {name}")
        return await connect(self._http, self._address, login, options.settings)


async def _use(connection: PhoenixConnection, schema: str) -> None:
    """Select the session's schema. Try the exact name, then the name in upper case, because Phoenix folds names."""
    if '"' in schema:  # names cannot contain quotes
        raise StatementRejected(f"Schema does not exist schemaName={schema}")
    try:
        await _run(connection, f"USE {identifier(schema)}")
        connection.schema = schema
    except StatementRejected as error:
        if not error.message.startswith("ERROR 722 ") or schema == schema.upper():
            raise
        await _run(connection, f"USE {identifier(schema.upper())}")
        connection.schema = schema.upper()


async def _run(connection: PhoenixConnection, sql: str) -> None:
    statement = await connection.new_statement()
    try:
        await connection.execute(statement, sql, rows=1)
    except EngineError:
        await connection.close_statement(statement)
        raise
    await connection.close_statement(statement)
