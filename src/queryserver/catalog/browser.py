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
    """Selects one page of the names that begin with `prefix`, compared case-insensitively."""

    prefix: str = ""
    page: int = 1
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Names(Generic[T]):
    """One page of a list. `truncated` is true if the list continues after this page."""

    shown: T
    truncated: bool


@dataclass(frozen=True, slots=True)
class Source:
    """The caller and the connector of a lookup. `refresh` bypasses the cache."""

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

    async def databases(self, source: Source, name_filter: NameFilter) -> Names[list[str]]:
        found = await self._lookup(source, queries.databases())
        return self._part(found, found, name_filter)

    async def database(self, source: Source, database: str) -> DatabaseDescription:
        return await self._lookup(source, queries.database(database))

    async def tables(self, source: Source, database: str, name_filter: NameFilter) -> Names[TableList]:
        found = await self._lookup(source, queries.tables(database))
        places = self._part(range(len(found.names)), found.names, name_filter)
        if len(places.shown) == len(found.names):
            return Names(found, truncated=False)
        columns = ([of[place] for place in places.shown] for of in (found.names, found.kinds, found.comments))
        return Names(TableList(*columns), places.truncated)

    async def table(self, source: Source, database: str, table: str) -> TableDescription:
        return await self._lookup(source, queries.table(database, table))

    async def column(self, source: Source, database: str, table: str, column: str) -> TableColumn:
        return queries.column_of(await self.table(source, database, table), column)

    async def statistics(self, source: Source, database: str, table: str, column: str) -> DescribedColumn:
        return await self._lookup(source, queries.column(database, table, column))

    async def functions(
        self, source: Source, database: str | None, name_filter: NameFilter
    ) -> Names[list[FunctionDescription]]:
        """List a database's functions, or with None built-in and default ones. Raises database_not_found."""
        if not self._lookups.lists_functions(self._connector(source)):
            if database is not None:
                await self.database(source, database)
            return Names([], truncated=False)
        found = await self._lookup(source, queries.functions(database))
        return self._part(found, [one.name for one in found], name_filter)

    async def function(self, source: Source, name: str) -> FunctionDescription | None:
        """Describe a function. Return None if the catalog has no functions. Raises function_not_found."""
        if not self._lookups.lists_functions(self._connector(source)):
            return None
        found = await self._lookup(source, queries.function(name))
        if found is None:
            raise function_not_found(name)
        return found

    def _connector(self, source: Source) -> Connector:
        return self._connectors.resolve(source.user, source.connector)

    async def _lookup(self, source: Source, query: CatalogQuery[T]) -> T:
        return await self._lookups.answer(source.user, self._connector(source), query, refresh=source.refresh)

    def _part(self, found: Sequence[T], names: Sequence[str], name_filter: NameFilter) -> Names[list[T]]:
        limit = min(name_filter.limit or self._max_names, self._max_names)
        if name_filter.prefix:
            prefix = name_filter.prefix.casefold()
            found = list(compress(found, [name.casefold().startswith(prefix) for name in names]))
        start = (name_filter.page - 1) * limit
        return Names(list(found[start : start + limit]), truncated=len(found) > start + limit)


class Analyses:
    """Starts the engine's statement that computes statistics, as an operation outside the history."""

    def __init__(self, lookups: Lookups, connectors: Connectors, submissions: Submissions) -> None:
        lookups.forwarding.register(_STATEMENT, self._statement)
        self._lookups = lookups
        self._connectors = connectors
        self._submissions = submissions

    async def start(
        self, user: User, connector: str, database: str, table: str, column: str | None
    ) -> RecordedStatement:
        """Start the operation. An unknown table or column starts nothing.

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
        """Build the statement. The table is looked up at the engine, since a cached one may have been dropped."""
        database, table, column = arguments
        async with self._lookups.catalog(user, source) as catalog:
            described = await catalog.table(database, table)
            name = None if column is None else queries.column_of(described, column).name
            return catalog.analyze_statement(described, name).encode()
