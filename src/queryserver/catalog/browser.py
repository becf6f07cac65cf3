"""Lists, describes and analyzes the objects in a data source (Contract editor 10.1 to 10.5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Generic, TypeVar

from queryserver.catalog import queries
from queryserver.catalog.lookups import Lookups
from queryserver.catalog.queries import CatalogQuery, DescribedColumn, TableList
from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.engines.protocol import DatabaseDescription, FunctionDescription, TableColumn, TableDescription
from queryserver.errors.statements import function_not_found
from queryserver.identity.model import User
from queryserver.statements.model import RecordedStatement
from queryserver.statements.submission import Submission, Submissions

T = TypeVar("T")

_STATEMENT = "analyze"


@dataclass(frozen=True, slots=True)
class NameFilter:
    """Selects one page of the names that start with `prefix`, ignoring case."""

    prefix: str = ""
    page: int = 1
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class NamePage(Generic[T]):
    """One page of a list of named objects. `truncated` is set if the list continues after this page."""

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
        """List the functions of a database. None lists the built-in and default ones. Raises database_not_found."""
        if not self._lookups.lists_functions(self._connector(source)):
            if database is not None:
                await self.database(source, database)
            return NamePage([], truncated=False)
        found = await self._lookup(source, queries.functions(database))
        return self._page(found, [one.name for one in found], name_filter)

    async def function(self, source: LookupSource, name: str) -> FunctionDescription | None:
        """Describe a function. None if the catalog does not list functions. Raises function_not_found."""
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
        if name_filter.prefix:
            prefix = name_filter.prefix.casefold()
            found = list(compress(found, [name.casefold().startswith(prefix) for name in names]))
        start = (name_filter.page - 1) * limit
        return NamePage(list(found[start : start + limit]), truncated=len(found) > start + limit)


class Analyses:
    """Starts statements that make the engine compute statistics, as operations outside the history."""

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
        """Build the statement. Reads the table from the engine, because a cached table may have been dropped."""
        database, table, column = arguments
        async with self._lookups.catalog(user, source) as catalog:
            described = await catalog.table(database, table)
            name = None if column is None else queries.column_of(described, column).name
            return catalog.analyze_statement(described, name).encode()
