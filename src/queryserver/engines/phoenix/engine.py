"""Implements the engine for one Phoenix Query Server."""

import asyncio
import re
from collections.abc import AsyncGenerator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace

from queryserver.engines.catalog_queries import identifier
from queryserver.engines.estimates import CostEstimate
from queryserver.engines.phoenix.catalog import PhoenixCatalog, PhoenixLoader
from queryserver.engines.phoenix.connection import PhoenixAddress, PhoenixClient, PhoenixConnection, connect
from queryserver.engines.phoenix.protocol import PARAMETERS
from queryserver.engines.phoenix.statement import PhoenixStatement
from queryserver.engines.protocol import EngineCapabilities, SessionOptions, StatementContext
from queryserver.engines.sessions import StreamedSession, run
from queryserver.errors.statements import EngineError, StatementRejected
from queryserver.identity.model import User
from queryserver.sql.markers import BoundStatement
from queryserver.sql.scanner import first_keyword

_CONVERTER_THREADS = 2
_ESTIMATED = frozenset({"SELECT", "WITH", "UPSERT", "DELETE"})
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
            enforces_read_only=True,
            estimates_bytes=True,
        )

    @asynccontextmanager
    async def session(self, user: User, options: SessionOptions) -> AsyncGenerator["PhoenixSession"]:  # noqa: ARG002 Phoenix has only logins
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
    async def _opened(self, options: SessionOptions) -> AsyncGenerator[tuple["PhoenixSession", PhoenixConnection]]:
        connection = await self._connect(options)
        session = PhoenixSession(connection, self._executor, read_only=self._read_only)
        try:
            if options.database:
                await _use(connection, options.database)
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


class PhoenixSession(StreamedSession):
    """Implements `EstimatingSession`. If `read_only` is set, the Query Server refuses all changes."""

    def __init__(self, connection: PhoenixConnection, executor: Executor, *, read_only: bool) -> None:
        def new_statement(sql: str | BoundStatement, context: StatementContext) -> PhoenixStatement:
            return PhoenixStatement(connection, sql, replace(context, read_only=context.read_only or read_only))

        super().__init__(new_statement, is_connected=lambda: not connection.is_lost, executor=executor)
        self._executor = executor
        self._connection = connection

    async def estimate(self, statement: str | BoundStatement) -> CostEstimate | None:
        """Return what EXPLAIN estimates from the table's statistics; None if there are no statistics."""
        text = statement if isinstance(statement, str) else statement.statement
        if first_keyword(text, "phoenix") not in _ESTIMATED:
            return None
        source = PhoenixStatement(self._connection, statement, prefix="EXPLAIN ")
        session = StreamedSession(
            lambda _sql, _context: source, is_connected=self._is_connected, executor=self._executor
        )
        try:
            answer = await run(session, statement, max_rows=1)
        except StatementRejected:  # the Query Server reports the reason when the statement runs
            return None
        finally:
            await asyncio.shield(session.leave())
        first = answer.rows[0].to_pylist()[0] if answer.rows and answer.rows[0].num_rows else {}
        size, rows = first.get("EST_BYTES_READ"), first.get("EST_ROWS_READ")
        return None if size is None else CostEstimate(scanned_bytes=size, rows=rows)


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
