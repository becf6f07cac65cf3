"""One coordinator as an Engine."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute

from queryserver.engines.catalog_queries import identifier, literal, qualified, read_rows
from queryserver.engines.loading import StatementLoader, Written, cell_texts, execute
from queryserver.engines.protocol import (
    EngineCapabilities,
    EngineSession,
    LoadColumn,
    OperationHandle,
    SessionOptions,
    TableLoad,
    TableName,
)
from queryserver.engines.trino.catalog import TrinoCatalog, split_database
from queryserver.engines.trino.coordinator import Coordinator, HttpClient
from queryserver.engines.trino.operation import TrinoOperation, TrinoSession
from queryserver.engines.trino.protocol import (
    TRINO,
    Authentication,
    ClientState,
    Expired,
    Login,
    Page,
    TrinoAddress,
    TrinoRejected,
    Variant,
)
from queryserver.errors.statements import (
    CredentialsRequired,
    EngineError,
    EngineUnavailable,
    OutcomeUnknown,
    StatementRejected,
)
from queryserver.identity.model import User
from queryserver.imports.model import BaseType

_kernels: Any = pyarrow.compute

_NOT_SUPPORTED = "NOT_SUPPORTED"
_COARSE_US = 1000
# Trino's bare TIMESTAMP keeps milliseconds only.
_FINE: Mapping[BaseType, str] = {BaseType.DATETIME: "TIMESTAMP(6)"}


class TrinoLoader(StatementLoader):
    """A TableLoader. Tables are named in a schema, or in `catalog.schema`; Trino keeps names in lower case."""

    max_statement_bytes = 900_000
    """`query.max-length` is a million characters unless it is set; the rest of the statement is small."""

    def __init__(
        self, session: EngineSession, executor: Executor, *, catalog: str, schema: str, read_only: bool = False
    ) -> None:
        super().__init__(session, executor, read_only=read_only)
        self._catalog = catalog
        self._schema = schema

    async def exists(self, table: TableName) -> bool:
        catalog, schema = self._where(table)
        source = qualified(catalog, "information_schema", "tables")
        found = await read_rows(
            self._session,
            f"SELECT 1 FROM {source}"
            f" WHERE table_schema = {literal(schema.lower())} AND table_name = {literal(table.name.lower())}",
        )
        return bool(found)

    async def is_view(self, table: TableName) -> bool:
        catalog, schema = self._where(table)
        found = await read_rows(
            self._session,
            f"SELECT table_type FROM {qualified(catalog, 'information_schema', 'tables')}"
            f" WHERE table_schema = {literal(schema.lower())} AND table_name = {literal(table.name.lower())}",
        )
        return any(kind != "BASE TABLE" for (kind,) in found)

    def check_names(self, load: TableLoad) -> None:
        """Trino takes any name between quotes, in lower case; it refuses two that become one."""

    def quoted(self, name: str) -> str:
        return identifier(name)

    def place(self, table: TableName) -> str:
        return qualified(*self._where(table), table.name)

    async def create(self, table: TableName, columns: Sequence[LoadColumn]) -> Sequence[str]:
        """With what the catalog can: some know no NOT NULL, some no microseconds."""
        refusal: TrinoRejected | None = None
        for types, keeps_null_out in _wishes(columns):
            definitions = ", ".join(
                f"{identifier(column.name)} {kind}{' NOT NULL' if keeps_null_out and not column.nullable else ''}"
                for column, kind in zip(columns, types, strict=True)
            )
            try:
                await execute(self._session, f"CREATE TABLE {self.place(table)} ({definitions})")
            except TrinoRejected as error:
                if error.name != _NOT_SUPPORTED:
                    raise
                refusal = error
            else:
                return types
        raise refusal or StatementRejected("A table needs a column.")

    def writer(self, columns: Sequence[LoadColumn], types: Sequence[str]) -> Callable[[pa.RecordBatch], Written]:
        texts = [_texts(column, kind) for column, kind in zip(columns, types, strict=True)]

        def write(batch: pa.RecordBatch) -> Written:
            cells = [write_one(column).to_pylist() for write_one, column in zip(texts, batch.columns, strict=True)]
            return [_without_quotes(orjson.dumps(row)) for row in zip(*cells, strict=True)]

        return write

    def insert(self, load: TableLoad, types: Sequence[str], rows: Sequence[bytes]) -> str:
        names = ", ".join(identifier(column.name) for column in load.columns)
        values = ", ".join(
            _value(column, kind, f"r[{place}]")
            for place, (column, kind) in enumerate(zip(load.columns, types, strict=True), 1)
        )
        text = b",".join(rows).decode()
        return (
            f"INSERT INTO {self.place(load.staging)} ({names}) SELECT {values}"
            f" FROM UNNEST(CAST(json_parse('[{text}]') AS ARRAY(ARRAY(VARCHAR)))) AS rows (r)"
        )

    async def rename(self, table: TableName, name: TableName) -> bool:
        try:
            await execute(self._session, f"ALTER TABLE {self.place(table)} RENAME TO {self.place(name)}")
        except TrinoRejected as error:
            if error.name != _NOT_SUPPORTED:
                raise
            return False
        return True

    def _where(self, table: TableName) -> tuple[str, str]:
        place = (self._catalog, self._schema)
        catalog, schema = split_database(table.database, self._catalog) if table.database else place
        if not catalog or not schema:
            raise StatementRejected("The database must be named as catalog.schema.")
        return catalog, schema


def _wishes(columns: Sequence[LoadColumn]) -> list[tuple[tuple[str, ...], bool]]:
    """Types and whether NOT NULL is wished, the best first."""
    plain = tuple(column.declared for column in columns)
    fine = tuple(_FINE.get(column.type.base, column.declared) for column in columns)
    needs_rule = not all(column.nullable for column in columns)
    rules = (True, False) if needs_rule else (False,)
    return [(types, rule) for types in dict.fromkeys((fine, plain)) for rule in rules]


def _texts(column: LoadColumn, kind: str) -> Callable[[pa.Array], pa.Array]:
    """What writes the values of a column as texts."""
    if column.type.base is BaseType.DURATION:
        return partial(_interval_texts, column)
    is_coarse = column.type.base is BaseType.DATETIME and kind not in _FINE.values()
    return partial(_coarse_texts, column) if is_coarse else cell_texts


def _interval_texts(column: LoadColumn, values: pa.Array) -> pa.Array:
    """Milliseconds."""
    return _milliseconds(column, values).cast(pa.string())


def _coarse_texts(column: LoadColumn, values: pa.Array) -> pa.Array:
    _milliseconds(column, values)
    return cell_texts(values)


def _milliseconds(column: LoadColumn, values: pa.Array) -> pa.Array:
    """Raises StatementRejected for values with a finer fraction: Trino would round it away."""
    microseconds = values.cast(pa.int64())
    whole = _kernels.divide(microseconds, _COARSE_US)
    if _kernels.any(_kernels.not_equal(_kernels.multiply(whole, _COARSE_US), microseconds)).as_py():
        raise StatementRejected(f'Column "{column.name}" has a value that milliseconds cannot hold.')
    return whole


def _value(column: LoadColumn, kind: str, text: str) -> str:
    """The value that a text stands for."""
    if column.type.base is BaseType.DURATION:  # no text can be cast to an interval
        return f"CAST({text} AS BIGINT) * INTERVAL '0.001' SECOND"
    if column.type.base is BaseType.BINARY:
        return f"from_base64({text})"
    return f"CAST({text} AS {kind})"


def _without_quotes(row: bytes) -> bytes:
    """JSON that may stand in a text constant: quotes are written by their number, and nothing else ends it."""
    return row.replace(b"'", b"\\u0027")


_READER_THREADS = 2
_LOOK = "SELECT 1"


class TrinoEngine:
    """Statements on one coordinator. `SessionOptions.database` names `catalog.schema`, or a schema."""

    def __init__(self, address: TrinoAddress, variant: Variant = TRINO, *, read_only: bool = False) -> None:
        self._address = address
        self._read_only = read_only
        self._variant = variant
        self._http = HttpClient(address)
        self._executor = ThreadPoolExecutor(_READER_THREADS, thread_name_prefix=variant.dialect)
        takes_token = self._address.authentication is Authentication.JWT
        self._capabilities = EngineCapabilities(
            explain_prefix="EXPLAIN ",
            reports_progress=True,
            wants_credentials=self._address.username is None and not takes_token,
            wants_external_token=takes_token,
            acts_as_caller=self._address.has_impersonation or not self._address.username,
            places=((self._address.host, self._address.port),),
        )

    @property
    def dialect(self) -> str:
        return self._variant.dialect

    @property
    def capabilities(self) -> EngineCapabilities:
        return self._capabilities

    @asynccontextmanager
    async def session(self, user: User, options: SessionOptions) -> AsyncGenerator[TrinoSession]:
        """A session with the catalog, schema and properties of `options`; leaving it stops what still runs in it."""
        coordinator = self._coordinator(self._address.login(user, options), self._first_state(options))
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
        rows_read: int,  # noqa: ARG002 the token says it more exactly
    ) -> AsyncGenerator[tuple[TrinoSession, OperationHandle]]:
        """Follow a statement of another process. Raises OutcomeUnknown, EngineUnavailable, CredentialsRequired."""
        with _readable_token():
            position: dict[str, Any] = json.loads(token)
            state = ClientState.of_json(position["session"])
            coordinator = self._coordinator(self._address.login(user, options), state)
            page = await self._page_at(coordinator, position)
            session = TrinoSession(coordinator)
            handle = session.follow(TrinoOperation(coordinator, page, skip=int(position["skip"])))
        try:
            yield session, handle
        finally:
            await asyncio.shield(session.leave())

    @property
    def lists_functions(self) -> bool:
        return True

    @asynccontextmanager
    async def catalog(self, user: User, options: SessionOptions) -> AsyncGenerator[TrinoCatalog]:
        """The metadata as `user` may see it."""
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
        """Raises EngineUnavailable or CredentialsRequired when statements could not be sent now."""
        # Whoever logs in may always act for itself, if for nobody else.
        itself = User(id=0, username=self._address.username or self._address.source)
        coordinator = self._coordinator(self._address.login(itself, SessionOptions()), ClientState())
        with _one_of_two():
            async with asyncio.timeout(self._address.patience.open_s):
                await coordinator.finish(_LOOK)

    async def close(self) -> None:
        await self._http.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _coordinator(self, login: Login, state: ClientState) -> Coordinator:
        return Coordinator(self._http, self._address, self._variant, login, state, self._executor)

    def _first_state(self, options: SessionOptions) -> ClientState:
        address = self._address
        state = ClientState(catalog=address.catalog, schema=address.schema)
        state.set_properties(address.session_properties)
        state.set_properties(options.settings)
        return state

    async def _check(self, coordinator: Coordinator, options: SessionOptions) -> None:
        """A login, a schema or a property that Trino refuses is refused here, before any statement."""
        try:
            async with asyncio.timeout(self._address.patience.open_s):
                if options.database:
                    catalog, schema = split_database(options.database, self._address.catalog)
                    await coordinator.finish(f"USE {qualified(*filter(None, (catalog, schema)))}")
                elif options.settings:
                    await coordinator.finish(_LOOK)
                else:
                    await coordinator.check()
        except TimeoutError:
            raise EngineUnavailable("Trino did not answer in time.") from None
        except OutcomeUnknown as error:
            raise EngineUnavailable(error.message) from error

    async def _page_at(self, coordinator: Coordinator, position: dict[str, Any]) -> Page:
        if position["uri"] is None:
            return Page("", position["query"], None, columns=position["columns"], update_count=position["changed"])
        try:
            return await coordinator.page(coordinator.own_uri(position["uri"]))
        except Expired:
            raise
        except OutcomeUnknown as error:
            raise EngineUnavailable(error.message) from error


@contextmanager
def _readable_token() -> Generator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise Expired from error


@contextmanager
def _one_of_two() -> Generator[None]:
    """Around a look whose statement cannot be wrong: every failure but a refused login means out of reach."""
    try:
        yield
    except TimeoutError:
        raise EngineUnavailable("Trino did not answer in time.") from None
    except (EngineUnavailable, CredentialsRequired):
        raise
    except EngineError as error:
        raise EngineUnavailable(error.message) from error
