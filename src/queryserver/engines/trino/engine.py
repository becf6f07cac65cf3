"""Implements the engine and the table loader for one Trino or Presto coordinator."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute

from queryserver import errors
from queryserver.engines.catalog_queries import Row, identifier, literal, qualified, read_rows
from queryserver.engines.loader import RowsWriter, StatementLoader, WrittenRows, cell_texts, execute
from queryserver.engines.protocol import (
    EngineCapabilities,
    EngineSession,
    LoadColumn,
    OperationHandle,
    SessionOptions,
    TableLoad,
    TableName,
)
from queryserver.engines.trino import protocol
from queryserver.engines.trino.catalog import TrinoCatalog, split_database
from queryserver.engines.trino.coordinator import Coordinator, TrinoClient
from queryserver.engines.trino.operation import TrinoOperation
from queryserver.engines.trino.session import TrinoSession
from queryserver.formats.arrow import BaseType
from queryserver.identity.model import User
from queryserver.sql.literals import TRINO
from queryserver.sql.parameters import NO_PARAMETERS

_kernels: Any = pyarrow.compute

_READER_THREADS = 2
_NOT_SUPPORTED = "NOT_SUPPORTED"
# In Trino, TIMESTAMP without a precision stores only milliseconds.
_MICROSECOND_TYPES: Mapping[BaseType, str] = {BaseType.DATETIME: "TIMESTAMP(6)"}


class TrinoLoader(StatementLoader):
    """Implements `TableLoader`. The database is a schema or `catalog.schema`. Trino converts names to lower case."""

    max_statement_bytes = 900_000
    """Trino's default for `query.max-length` is a million characters.

    The difference is reserved for the statement text around the rows.
    """

    def __init__(
        self, session: EngineSession, executor: Executor, *, catalog: str, schema: str, read_only: bool = False
    ) -> None:
        super().__init__(session, executor, read_only=read_only)
        self._catalog = catalog
        self._schema = schema

    async def exists(self, table: TableName) -> bool:
        return bool(await self._kinds(table))

    async def is_view(self, table: TableName) -> bool:
        return any(kind != "BASE TABLE" for (kind,) in await self._kinds(table))

    def check_names(self, load: TableLoad) -> None:
        """Do nothing: Trino allows any quoted name, and itself rejects names that differ only in case."""

    def qualified_name(self, table: TableName) -> str:
        return qualified(*self._where(table), table.name)

    async def create(self, table: TableName, columns: Sequence[LoadColumn]) -> Sequence[str]:
        """Create the table with the best column definitions that the catalog accepts.

        Some catalogs do not support NOT NULL, and some do not support microseconds.
        """
        plain = tuple(column.declared for column in columns)
        fine = tuple(_MICROSECOND_TYPES.get(column.type.base, column.declared) for column in columns)
        rules = (False,) if all(column.nullable for column in columns) else (True, False)
        refusal: protocol.TrinoRejected | None = None
        for types, not_null in [(types, rule) for types in dict.fromkeys((fine, plain)) for rule in rules]:
            definitions = ", ".join(
                f"{identifier(column.name)} {kind}{' NOT NULL' if not_null and not column.nullable else ''}"
                for column, kind in zip(columns, types, strict=True)
            )
            try:
                await execute(self._session, f"CREATE TABLE {self.qualified_name(table)} ({definitions})")
            except protocol.TrinoRejected as error:
                if error.name != _NOT_SUPPORTED:
                    raise
                refusal = error
            else:
                return types
        raise refusal or errors.StatementRejected("A table requires at least one column.")

    def writer(self, columns: Sequence[LoadColumn], types: Sequence[str]) -> RowsWriter:
        texts = [_text_writer(column, kind) for column, kind in zip(columns, types, strict=True)]

        def write(batch: pa.RecordBatch) -> WrittenRows:
            cells = [write_one(column).to_pylist() for write_one, column in zip(texts, batch.columns, strict=True)]
            # With escaped quotes, the JSON can be used as a string literal.
            return [orjson.dumps(row).replace(b"'", b"\\u0027") for row in zip(*cells, strict=True)]

        return write

    def insert(self, load: TableLoad, types: Sequence[str], rows: Sequence[bytes]) -> str:
        names = ", ".join(identifier(column.name) for column in load.columns)
        values = ", ".join(
            _value(column, kind, f"r[{number}]")
            for number, (column, kind) in enumerate(zip(load.columns, types, strict=True), 1)
        )
        text = b",".join(rows).decode()
        return (
            f"INSERT INTO {self.qualified_name(load.staging)} ({names}) SELECT {values}"
            f" FROM UNNEST(CAST(json_parse('[{text}]') AS ARRAY(ARRAY(VARCHAR)))) AS rows (r)"
        )

    async def rename(self, table: TableName, name: TableName) -> bool:
        try:
            await execute(
                self._session, f"ALTER TABLE {self.qualified_name(table)} RENAME TO {self.qualified_name(name)}"
            )
        except protocol.TrinoRejected as error:
            if error.name != _NOT_SUPPORTED:
                raise
            return False
        return True

    def _where(self, table: TableName) -> tuple[str, str]:
        default = (self._catalog, self._schema)
        catalog, schema = split_database(table.database, self._catalog) if table.database else default
        if not catalog or not schema:
            raise errors.StatementRejected("The database must have the form catalog.schema.")
        return catalog, schema

    async def _kinds(self, table: TableName) -> list[Row]:
        """Return one row that contains the table's type, or no row if the table does not exist."""
        catalog, schema = self._where(table)
        source = qualified(catalog, "information_schema", "tables")
        return await read_rows(
            self._session,
            f"SELECT table_type FROM {source}"
            f" WHERE table_schema = {literal(schema.lower())} AND table_name = {literal(table.name.lower())}",
        )


def _text_writer(column: LoadColumn, kind: str) -> Callable[[pa.Array], pa.Array]:
    is_duration = column.type.base is BaseType.DURATION
    is_coarse = is_duration or (column.type.base is BaseType.DATETIME and kind not in _MICROSECOND_TYPES.values())

    def write(values: pa.Array) -> pa.Array:
        milliseconds = _milliseconds(column, values) if is_coarse else values
        return milliseconds.cast(pa.string()) if is_duration else cell_texts(values)

    return write


def _milliseconds(column: LoadColumn, values: pa.Array) -> pa.Array:
    """Convert values to milliseconds. Raises StatementRejected for finer values, which Trino would round."""
    microseconds = values.cast(pa.int64())
    whole = _kernels.divide(microseconds, 1000)
    if _kernels.any(_kernels.not_equal(_kernels.multiply(whole, 1000), microseconds)).as_py():
        raise errors.StatementRejected(f'Column "{column.name}" contains a value more precise than milliseconds.')
    return whole


def _value(column: LoadColumn, kind: str, text: str) -> str:
    if column.type.base is BaseType.DURATION:  # a string cannot be cast to an interval
        return f"CAST({text} AS BIGINT) * INTERVAL '0.001' SECOND"
    if column.type.base is BaseType.BINARY:
        return f"from_base64({text})"
    return f"CAST({text} AS {kind})"


class TrinoEngine:
    """Runs statements on one coordinator. `SessionOptions.database` is `catalog.schema` or a schema name."""

    lists_functions = True

    def __init__(
        self,
        address: protocol.TrinoAddress,
        variant: protocol.TrinoVariant = protocol.TRINO,
        *,
        read_only: bool = False,
    ) -> None:
        self._address = address
        self._read_only = read_only
        self._variant = variant
        self._http = TrinoClient(address)
        self._executor = ThreadPoolExecutor(_READER_THREADS, thread_name_prefix=variant.dialect)
        takes_token = address.authentication is protocol.TrinoAuthentication.JWT
        self.dialect = variant.dialect
        self.capabilities = EngineCapabilities(
            reports_progress=True,
            wants_credentials=address.username is None and not takes_token,
            wants_external_token=takes_token,
            acts_as_caller=address.has_impersonation or not address.username,
            endpoints=((address.host, address.port),),
            parameters=TRINO.support if variant.executes_immediately else NO_PARAMETERS,
            enforces_read_only=True,
            estimates_bytes=variant.estimates_bytes,
        )

    @asynccontextmanager
    async def session(self, user: User, options: SessionOptions) -> AsyncGenerator[TrinoSession]:
        """Open a session with the configured or requested catalog, schema and properties.

        Leaving the context cancels a running statement.
        """
        login = self._address.login(user, options)
        state = protocol.ClientState(catalog=self._address.catalog, schema=self._address.schema)
        state.set_properties(self._address.session_properties)
        state.set_properties(options.settings)
        coordinator = self._coordinator(login, state)
        await self._check(coordinator, options)
        session = TrinoSession(coordinator)
        try:
            yield session
        finally:
            await asyncio.shield(session.leave())

    @asynccontextmanager
    async def reattach(
        self,
        user: User,
        options: SessionOptions,
        token: str,
        *,
        rows_read: int,  # noqa: ARG002 the token has the exact position
    ) -> AsyncGenerator[tuple[TrinoSession, OperationHandle]]:
        """Attach to another process's statement. Raises OutcomeUnknown, EngineUnavailable, CredentialsRequired."""
        try:
            position: dict[str, Any] = json.loads(token)
            state = protocol.ClientState(**position["session"])
            coordinator = self._coordinator(self._address.login(user, options), state)
            page = await self._page_at(coordinator, position)
            session = TrinoSession(coordinator, in_own_transaction=bool(position.get("own_transaction")))
            handle = session.follow(TrinoOperation(coordinator, page, skip=int(position["skip"])))
        except (ValueError, KeyError, TypeError) as error:
            raise protocol.Expired from error
        try:
            yield session, handle
        finally:
            await asyncio.shield(session.leave())

    @asynccontextmanager
    async def catalog(self, user: User, options: SessionOptions) -> AsyncGenerator[TrinoCatalog]:
        async with self.session(user, options) as session:
            yield TrinoCatalog(session, catalog=self._address.catalog, schema=self._address.schema)

    @asynccontextmanager
    async def loader(self, user: User, options: SessionOptions) -> AsyncGenerator[TrinoLoader]:
        catalog, schema = self._address.catalog, self._address.schema
        if options.database:
            catalog, schema = split_database(options.database, catalog)
        async with self.session(user, options) as session:
            yield TrinoLoader(session, self._executor, catalog=catalog, schema=schema, read_only=self._read_only)

    async def ping(self) -> None:
        """Run `SELECT 1`. Raises EngineUnavailable or CredentialsRequired if this fails."""
        # A user is always allowed to impersonate itself.
        itself = User(id=0, username=self._address.username or self._address.source)
        coordinator = self._coordinator(self._address.login(itself, SessionOptions()), protocol.ClientState())
        try:
            async with asyncio.timeout(self._address.timeouts.open_s):
                await coordinator.finish("SELECT 1")
        except TimeoutError:
            raise errors.EngineUnavailable("Trino did not respond in time.") from None
        except (errors.EngineUnavailable, errors.CredentialsRequired):
            raise
        except errors.EngineError as error:  # the statement itself is valid
            raise errors.EngineUnavailable(error.message) from error

    async def close(self) -> None:
        await self._http.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _coordinator(self, login: protocol.TrinoLogin, state: protocol.ClientState) -> Coordinator:
        return Coordinator(self._http, self._address, self._variant, login, state, self._executor)

    async def _check(self, coordinator: Coordinator, options: SessionOptions) -> None:
        """Check login, schema and properties before the first statement. Raises the error that Trino reports."""
        try:
            async with asyncio.timeout(self._address.timeouts.open_s):
                if options.database:
                    catalog, schema = split_database(options.database, self._address.catalog)
                    await coordinator.finish(f"USE {qualified(*filter(None, (catalog, schema)))}")
                elif options.settings:
                    await coordinator.finish("SELECT 1")
                else:
                    await coordinator.check()
        except TimeoutError:
            raise errors.EngineUnavailable("Trino did not respond in time.") from None
        except errors.OutcomeUnknown as error:
            raise errors.EngineUnavailable(error.message) from error

    async def _page_at(self, coordinator: Coordinator, position: dict[str, Any]) -> protocol.TrinoPage:
        if position["uri"] is None:
            return protocol.TrinoPage(
                "", position["query"], None, columns=position["columns"], update_count=position["changed"]
            )
        try:
            return await coordinator.page(coordinator.own_uri(position["uri"]))
        except protocol.Expired:
            raise
        except errors.OutcomeUnknown as error:
            raise errors.EngineUnavailable(error.message) from error
