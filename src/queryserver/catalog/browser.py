"""Lists, describes and analyzes the objects in a data source, and returns sample rows and values.

Contract editor 10.1 to 10.5.
."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any, Generic, TypeVar

import orjson

from queryserver.catalog import queries
from queryserver.catalog.lookups import Lookups, lookup_context
from queryserver.catalog.queries import CatalogQuery, DescribedColumn, TableList, column_of, nested_type
from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.engines.protocol import (
    SAMPLE_ROWS,
    DatabaseDescription,
    FunctionDescription,
    SampleKind,
    TableColumn,
    TableDescription,
)
from queryserver.engines.sessions import run
from queryserver.errors.base import InvalidParameter
from queryserver.errors.statements import EngineForbidden, PageRowTooLarge, StatementDenied, function_not_found
from queryserver.formats.arrow import CellForm, Column, ResultType
from queryserver.formats.cells import RenderedRows, render_page, rendering_memory
from queryserver.identity.model import User
from queryserver.platform.fair_queue import ByteBudget
from queryserver.statements.model import RecordedStatement
from queryserver.statements.submission import Submission, Submissions

T = TypeVar("T")

_STATEMENT = "analyze"

HELLO = "SELECT 'Hello World!'"
NOT_SAMPLED = "Views cannot be sampled with this connector."
_ROWS = "sample"
_SAMPLE_STATEMENT = "sample-statement"
_THREAD_ABOVE_BYTES = 1024 * 1024
_THREAD_ABOVE_COLUMNS = 40


@dataclass(frozen=True, slots=True)
class NameFilter:
    """A request for one page of the names that start with `prefix` and contain `part`, ignoring case."""

    prefix: str = ""
    page: int = 1
    limit: int | None = None
    part: str = ""


@dataclass(frozen=True, slots=True)
class NamePage(Generic[T]):
    """One page of a list of named objects. `truncated` is True if the list continues after this page."""

    items: T
    truncated: bool


@dataclass(frozen=True, slots=True)
class LookupSource:
    """The caller and the connector of a lookup. If `refresh` is set, the lookup bypasses the cache."""

    user: User
    connector: str | None
    refresh: bool = False


class CatalogBrowser:
    """Reads metadata from the cache, or from the engine with the caller's rights.

    All methods raise UnknownDialect, NotSupported, CredentialsRequired, EngineForbidden, EngineUnavailable,
    EngineTimeout and StatementRejected.
    """

    def __init__(self, lookups: Lookups, connectors: Connectors, *, max_names: int) -> None:
        self._lookups = lookups
        self._connectors = connectors
        self._max_names = max_names

    async def databases(self, source: LookupSource, name_filter: NameFilter) -> NamePage[list[str]]:
        found = await self._lookup(source, queries.databases())
        return self._page(found, found, name_filter)

    async def database(self, source: LookupSource, database: str) -> DatabaseDescription:
        return await self._lookup(source, queries.database(database))

    async def tables(self, source: LookupSource, database: str, name_filter: NameFilter) -> NamePage[TableList]:
        found = await self._lookup(source, queries.tables(database))
        indexes = self._page(range(len(found.names)), found.names, name_filter)
        if len(indexes.items) == len(found.names):
            return NamePage(found, truncated=False)
        columns = ([column[index] for index in indexes.items] for column in (found.names, found.kinds, found.comments))
        return NamePage(TableList(*columns), indexes.truncated)

    async def table(self, source: LookupSource, database: str, table: str) -> TableDescription:
        return await self._lookup(source, queries.table(database, table))

    async def column(self, source: LookupSource, database: str, table: str, column: str) -> TableColumn:
        return queries.column_of(await self.table(source, database, table), column)

    async def statistics(self, source: LookupSource, database: str, table: str, column: str) -> DescribedColumn:
        return await self._lookup(source, queries.column(database, table, column))

    async def functions(
        self, source: LookupSource, database: str | None, name_filter: NameFilter
    ) -> NamePage[list[FunctionDescription]]:
        """List the functions of a database; for None, the built-in functions and those visible by default.

        The list is empty if the engine's catalog cannot list functions. Raises database_not_found.
        """
        if not self._lookups.lists_functions(self._connector(source)):
            if database is not None:
                await self.database(source, database)
            return NamePage([], truncated=False)
        found = await self._lookup(source, queries.functions(database))
        return self._page(found, [one.name for one in found], name_filter)

    async def function(self, source: LookupSource, name: str) -> FunctionDescription | None:
        """Describe a function, or return None if the engine's catalog cannot list functions.

        Raises function_not_found.
        """
        if not self._lookups.lists_functions(self._connector(source)):
            return None
        found = await self._lookup(source, queries.function(name))
        if found is None:
            raise function_not_found(name)
        return found

    def _connector(self, source: LookupSource) -> Connector:
        return self._connectors.resolve(source.user, source.connector)

    async def _lookup(self, source: LookupSource, query: CatalogQuery[T]) -> T:
        return await self._lookups.run(source.user, self._connector(source), query, refresh=source.refresh)

    def _page(self, found: Sequence[T], names: Sequence[str], name_filter: NameFilter) -> NamePage[list[T]]:
        limit = min(name_filter.limit or self._max_names, self._max_names)
        prefix, part = name_filter.prefix.casefold(), name_filter.part.casefold()
        if prefix or part:
            folded = (name.casefold() for name in names)
            found = list(compress(found, [name.startswith(prefix) and part in name for name in folded]))
        start = (name_filter.page - 1) * limit
        return NamePage(list(found[start : start + limit]), truncated=len(found) > start + limit)


class Analyses:
    """Starts operations that make the engine compute statistics. They do not appear in the history."""

    def __init__(self, lookups: Lookups, connectors: Connectors, submissions: Submissions) -> None:
        lookups.forwarding.register(_STATEMENT, self._statement)
        self._lookups = lookups
        self._connectors = connectors
        self._submissions = submissions

    async def start(
        self, user: User, connector: str, database: str, table: str, column: str | None
    ) -> RecordedStatement:
        """Start the operation, after checking that the table and the column exist.

        Raises UnknownDialect, NotSupported, CredentialsRequired, EngineError, database_not_found, TableNotFound,
        column_not_found, too_many_statements, quota_exceeded.
        """
        source = self._connectors.resolve(user, connector)
        found = await self._lookups.run_at_holder(
            user, source, _STATEMENT, [database, table, column], budget=source.limits.metadata_timeout
        )
        return await self._submissions.submit(
            user, Submission(connector=source.key, script=found.decode(), in_history=False)
        )

    async def _statement(self, user: User, source: Connector, arguments: Sequence[Any]) -> bytes:
        """Build the statement that computes statistics.

        Reads the table from the engine instead of the cache, because a cached table may have been dropped.
        """
        database, table, column = arguments
        async with self._lookups.catalog(user, source) as catalog:
            described = await catalog.table(database, table)
            name = None if column is None else queries.column_of(described, column).name
            return catalog.analyze_statement(described, name).encode()


@dataclass(frozen=True, slots=True)
class SampleTarget:
    """The object to sample: a table, one of its columns, or the values at the path `nested` within the column."""

    database: str
    table: str
    column: str | None = None
    nested: Sequence[str] = ()
    kind: SampleKind = SampleKind.DEFAULT


@dataclass(frozen=True, slots=True)
class TableSample:
    """Sampled rows as JSON. `message` explains why rows are missing; empty if the sample is complete."""

    columns: Sequence[Column] = ()
    rows_json: bytes = b"[]"
    message: str = ""


@dataclass(slots=True, eq=False)
class Samples:
    """Reads table data with the caller's rights, within `sample_timeout_s`. Only `start` stores the rows.

    All methods raise UnknownDialect, NotSupported, CredentialsRequired, EngineError, database_not_found,
    TableNotFound, column_not_found, nested_path_not_found.
    """

    lookups: Lookups
    connectors: Connectors
    submissions: Submissions
    threads: Executor
    budget: ByteBudget
    max_bytes: int

    def __post_init__(self) -> None:
        self.lookups.forwarding.register(_ROWS, self._rows_here)
        self.lookups.forwarding.register(_SAMPLE_STATEMENT, self._statement_here)

    async def read(self, user: User, connector: str | None, target: SampleTarget, form: CellForm) -> TableSample:
        _require_column(target)
        return await self._sample(user, self.connectors.resolve(user, connector), _arguments(target), form)

    async def hello(self, user: User, connector: str | None, form: CellForm) -> TableSample:
        """Run a constant query on the engine and return its row, as a connection test. Raises EngineTimeout."""
        return await self._sample(user, self.connectors.resolve(user, connector), None, form)

    async def start(
        self, user: User, connector: str | None, target: SampleTarget | None, *, timeout_s: int | None
    ) -> RecordedStatement | None:
        """Start sampling as an operation that does not appear in the history.

        Return None for a view if the connector does not sample views. Raises too_many_statements, quota_exceeded.
        """
        source = self.connectors.resolve(user, connector)
        statement: str | None = HELLO
        if target is not None:
            _require_column(target)
            budget = source.limits.metadata_timeout
            found = await self.lookups.run_at_holder(user, source, _SAMPLE_STATEMENT, _arguments(target), budget=budget)
            statement = found.decode() or None
        if statement is None:
            return None
        submission = Submission(
            connector=source.key, script=statement, limit=SAMPLE_ROWS, timeout_s=timeout_s, in_history=False
        )
        return await self.submissions.submit(user, submission)

    async def _sample(self, user: User, source: Connector, target: list[Any] | None, form: CellForm) -> TableSample:
        budget = source.limits.sample_timeout
        arguments = [target, form.is_escaped, form.big_numbers_as_text]
        packed = await self.lookups.run_at_holder(user, source, _ROWS, arguments, budget=budget)
        head, _, rows = packed.partition(b"\n")
        columns, message = orjson.loads(head)
        return TableSample([Column(name, ResultType(kind), *more) for name, kind, *more in columns], rows, message)

    async def _rows_here(self, user: User, source: Connector, arguments: Sequence[Any]) -> bytes:
        """Return a line of JSON with the columns and the message, followed by the rows as JSON."""
        target, *form_flags = arguments
        form = CellForm(*form_flags)
        statement = HELLO if target is None else (await self._statement_here(user, source, target)).decode()
        sample = await self._rows(user, source, statement, form) if statement else TableSample(message=NOT_SAMPLED)
        columns = [[one.name, one.type.value, one.native_type, one.comment] for one in sample.columns]
        return orjson.dumps([columns, sample.message]) + b"\n" + sample.rows_json

    async def _statement_here(self, user: User, source: Connector, arguments: Sequence[Any]) -> bytes:
        """Return the statement that samples the table; empty for a view if the connector does not sample views."""
        database, name, column, nested, kind = arguments
        async with self.lookups.catalog(user, source) as catalog:
            table = await catalog.table(database, name)
            if column is not None:
                found = column_of(table, column)
                nested_type(found, nested)
                column = found.name
            if table.kind.is_view and not source.limits.sample_views:
                return b""
            return (await catalog.sample_statement(table, column, nested, SampleKind(kind))).encode()

    async def _rows(self, user: User, source: Connector, statement: str, form: CellForm) -> TableSample:
        try:
            async with self.lookups.session(user, source) as session:
                context = lookup_context(user, source)
                answer = await run(session, statement, max_rows=SAMPLE_ROWS, max_bytes=self.max_bytes, context=context)
        except StatementDenied as error:
            # A sample request names an object instead of a statement, so the error for objects applies.
            raise EngineForbidden(error.message) from error
        render = partial(
            render_page,
            answer.rows,
            columns=answer.columns,
            escape=form.is_escaped,
            max_bytes=self.max_bytes,
            big_numbers_as_text=form.big_numbers_as_text,
        )
        loop, is_narrow = asyncio.get_running_loop(), len(answer.columns) <= _THREAD_ABOVE_COLUMNS

        def measure() -> int:
            return sum(map(rendering_memory, answer.rows))

        size_bytes = measure() if is_narrow else await loop.run_in_executor(self.threads, measure)
        if is_narrow and size_bytes <= _THREAD_ABOVE_BYTES:
            return _sample(answer.columns, render(), self.max_bytes)
        reservation = await self.budget.reserve(user.id, size_bytes)
        try:
            rendered = await loop.run_in_executor(self.threads, render)
        finally:
            reservation.release()
        return _sample(answer.columns, rendered, self.max_bytes)


def _sample(columns: Sequence[Column], rendered: RenderedRows, max_bytes: int) -> TableSample:
    if not rendered.is_cut:
        return TableSample(columns, rendered.json)
    if not rendered.rows:
        raise PageRowTooLarge(row=None, limit_bytes=max_bytes)
    message = (
        f"The sample ends before row {rendered.rows}, because it is limited to {max_bytes} bytes"
        " (`editor.batch_max_bytes`)."
    )
    return TableSample(columns, rendered.json, message)


def _arguments(target: SampleTarget) -> list[Any]:
    return [target.database, target.table, target.column, list(target.nested), target.kind.value]


def _require_column(target: SampleTarget) -> None:
    if target.column is None and target.kind is not SampleKind.DEFAULT:
        raise InvalidParameter(f"operation: {target.kind.value} requires a column.")
