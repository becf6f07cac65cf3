"""Metadata of Hive's family: what Hive, Spark and Impala have in common."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from queryserver.domain.catalog import (
    ColumnStatistics,
    DatabaseDescription,
    FunctionDescription,
    SampleKind,
    TableColumn,
    TableDescription,
    TableSummary,
)
from queryserver.domain.errors.base import NotSupported
from queryserver.domain.errors.statements import StatementRejected, TableNotFound, database_not_found
from queryserver.engines.catalog_queries import Row, read_rows
from queryserver.engines.hiveserver2.catalog_partitions import Partition, newest, newest_first
from queryserver.engines.hiveserver2.catalog_paths import Place, exploded
from queryserver.engines.hiveserver2.catalog_quoting import qualified, quoted
from queryserver.engines.hiveserver2.catalog_sampling import some_rows, values_at
from queryserver.engines.hiveserver2.catalog_text import cell, known, real, whole
from queryserver.engines.hiveserver2.errors import metadata_errors
from queryserver.interfaces.engine import EngineSession

NO_STATISTICS = ColumnStatistics(message="The engine has no statistics of this column.")
OF_A_VIEW = ColumnStatistics(message="A view has no statistics.")


class FamilyCatalog(ABC):
    """A Catalog. A subclass per engine reads what the engines tell in different ways.

    All three keep names of databases and tables in lower case and find them in any.
    """

    groups_maps = True
    unquotable = ""
    """Characters that no quotes can hold: names with them exist nowhere in the engine."""

    def __init__(self, session: EngineSession) -> None:
        self._session = session
        self._current = ""

    async def databases(self) -> Sequence[str]:
        """SHOW DATABASES tells the name in its first column."""
        return [cell(row[0]) for row in await self._read("SHOW DATABASES")]

    async def database(self, database: str) -> DatabaseDescription:
        """Raises database_not_found."""
        name = await self._name(database)
        with metadata_errors(database):
            rows = await self._read(f"DESCRIBE DATABASE EXTENDED {quoted(name)}")
        if not rows:
            raise database_not_found(database)
        return self._described_database(name, rows)

    async def tables(self, database: str) -> Sequence[TableSummary]:
        """Tables and views in two statements at most."""
        name = await self._name(database)
        with metadata_errors(database):
            return await self._tables(name)

    async def table(self, database: str, table: str) -> TableDescription:
        """Raises database_not_found, TableNotFound."""
        name = await self._name(database)
        if not self._is_quotable(table):
            raise TableNotFound(name, table)
        try:
            with metadata_errors(name, table):
                rows = await self._read(f"DESCRIBE FORMATTED {qualified(name, table.lower())}")
        except TableNotFound:
            await self.database(database)  # Spark and Impala miss the table also where there is no such database
            raise
        return await self._described_table(name, table.lower(), rows)

    async def column_statistics(self, table: TableDescription, column: str) -> ColumnStatistics:
        """What the engine already knows of a column."""
        if table.kind.is_view:
            return OF_A_VIEW
        with metadata_errors(table.database, table.name):
            return await self._column_statistics(table, column)

    async def functions(self, database: str | None) -> Sequence[FunctionDescription]:
        """Built-in functions, or those of one database."""
        if database is None:
            return await self._builtin_functions()
        name = (await self.database(database)).name
        with metadata_errors(database):
            return await self._own_functions(name)

    async def function(self, database: str | None, name: str) -> FunctionDescription | None:
        """None: unknown."""
        found = None if database is None else await self._name(database)
        with metadata_errors(found or ""):
            return await self._function(found, name)

    async def sample_statement(
        self, table: TableDescription, column: str | None, nested: Sequence[str], kind: SampleKind
    ) -> str:
        """Rows, distinct values, or the largest or smallest."""
        source = qualified(table.database, table.name)
        if column is None:
            return await self._sample_of_rows(table, source)
        found = table.column(column) or TableColumn(column, "")
        return self._sample_of_values(self._place(source, found, nested), kind)

    def analyze_statement(self, table: TableDescription, column: str | None) -> str:
        """ANALYZE TABLE, which counts rows or looks at one column."""
        statement = f"ANALYZE TABLE {qualified(table.database, table.name)} COMPUTE STATISTICS"
        return statement if column is None else f"{statement} FOR COLUMNS {quoted(column)}"

    @abstractmethod
    async def _tables(self, database: str) -> list[TableSummary]: ...

    @abstractmethod
    def _described_database(self, name: str, rows: Sequence[Row]) -> DatabaseDescription: ...

    @abstractmethod
    async def _described_table(self, database: str, table: str, rows: Sequence[Row]) -> TableDescription: ...

    @abstractmethod
    async def _column_statistics(self, table: TableDescription, column: str) -> ColumnStatistics: ...

    @abstractmethod
    async def _builtin_functions(self) -> list[FunctionDescription]: ...

    @abstractmethod
    async def _own_functions(self, database: str) -> list[FunctionDescription]: ...

    @abstractmethod
    async def _function(self, database: str | None, name: str) -> FunctionDescription | None: ...

    @abstractmethod
    async def _partitions(self, table: str) -> list[Partition]:
        """From the quoted name."""
        ...

    def _place(self, table: str, column: TableColumn, nested: Sequence[str]) -> Place:
        return exploded(table, column, nested)

    def _sample_of_values(self, place: Place, kind: SampleKind) -> str:
        return values_at(place, kind, groups_maps=self.groups_maps)

    def _shown_columns(self, table: TableDescription) -> list[str]:
        return [column.name for column in table.columns]

    async def _sample_of_rows(self, table: TableDescription, source: str) -> str:
        names = self._shown_columns(table)
        if not names:
            raise NotSupported(f"The columns of {table.name} cannot be shown as rows.")
        keys = [column for column in table.columns if column.partition_key]
        wanted = newest(await self._known_partitions(source), keys) if keys else []
        return newest_first(source, names, keys, wanted) if wanted else some_rows(source, names)

    async def _known_partitions(self, source: str) -> list[Partition]:
        """None where the engine keeps no list of them, as for tables of other catalogues."""
        try:
            return await self._partitions(source)
        except StatementRejected:
            return []

    def _is_quotable(self, name: str) -> bool:
        return not any(character in name for character in self.unquotable)

    async def _read(self, statement: str) -> list[Row]:
        return await read_rows(self._session, statement)

    async def _name(self, database: str) -> str:
        """As the engine keeps it; the session's own for an empty one."""
        if not self._is_quotable(database):
            raise database_not_found(database)
        if database:
            return database.lower()
        if not self._current:
            self._current = cell((await self._read("SELECT current_database()"))[0][0])
        return self._current


def told_statistics(values: Mapping[str, str]) -> ColumnStatistics:
    """From the names that Hive and Spark give them: `min`, `num_nulls`, `avg_col_len`, …"""
    found = ColumnStatistics(
        min=known(values.get("min", "")),
        max=known(values.get("max", "")),
        num_nulls=whole(values.get("num_nulls", "")),
        distinct_count=whole(values.get("distinct_count", "")),
        avg_col_len=real(values.get("avg_col_len", "")),
        max_col_len=whole(values.get("max_col_len", "")),
        num_trues=whole(values.get("num_trues", "")),
        num_falses=whole(values.get("num_falses", "")),
    )
    return NO_STATISTICS if found == ColumnStatistics() else found


def once(functions: Iterable[FunctionDescription]) -> list[FunctionDescription]:
    """Each name once, the signatures of its overloads joined by line breaks; the first tells the rest."""
    found = dict[str, FunctionDescription]()
    for function in functions:
        first = found.get(function.name)
        if first is None:
            found[function.name] = function
        elif function.signature not in first.signature.split("\n"):
            signature = f"{first.signature}\n{function.signature}"
            found[function.name] = FunctionDescription(
                first.name, signature, first.return_type, first.is_builtin, first.is_persistent, first.description
            )
    return list(found.values())
