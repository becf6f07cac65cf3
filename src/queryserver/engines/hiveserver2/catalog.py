"""Reads metadata and builds sample statements in the ways that Hive, Spark and Impala have in common."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from queryserver import errors
from queryserver.engines import protocol
from queryserver.engines.catalog_queries import Row, backquoted, escaped_literal, read_rows
from queryserver.engines.hiveserver2.descriptions import cell, has_map, known_text, real_number, whole_number
from queryserver.engines.hiveserver2.errors import metadata_errors
from queryserver.sql.types import SqlType, parse_type

literal = escaped_literal  # backslash is the escape character in Hive, Impala and Spark


@dataclass(frozen=True, slots=True)
class NestedValues:
    """A FROM clause, and an expression that selects nested values from it. `name` is the path's last segment."""

    source: str
    expression: str
    type: SqlType
    name: str


def nested_values(
    table: str, column: protocol.TableColumn, nested: Sequence[str], *, joins: bool = False
) -> NestedValues:
    """Select the values at a path with LATERAL VIEW explode or, with `joins`, with Impala's collection joins.

    Raises NotSupported if the path does not exist in the column's type.
    """
    values = NestedValues(f"{table} t", f"t.{backquoted(column.name)}", parse_type(column.type), column.name)
    for number, segment in enumerate(nested, start=1):
        part, source, expression = values.type.part(segment), values.source, values.expression
        if part is None:
            raise errors.NotSupported(f"Below {values.name} there is no {segment}.")
        view = f"x{number}"
        if values.type.fields:
            expression = f"{expression}.{backquoted(segment)}"
        elif joins:
            source, expression = f"{source}, {expression} {view}", f"{view}.{segment}"
        else:
            # The view's column aliases prevent confusion with the table's columns.
            columns = "item" if segment == "item" else "k, v"
            source = f"{source} LATERAL VIEW explode({expression}) {view} AS {columns}"
            expression = f"{view}.{ {'item': 'item', 'key': 'k', 'value': 'v'}[segment] }"
        values = NestedValues(source, expression, part, segment)
    return values


def nested_sample_query(values: NestedValues, kind: protocol.SampleKind, *, groups_maps: bool) -> str:
    """Build a query for the distinct values with NULL last, or for the maximum or minimum.

    Without `groups_maps`, the engine cannot compare maps, so their JSON texts are compared. Maps have no maximum or
    minimum, so NotSupported is raised.
    """
    name, expression, source = backquoted(values.name), values.expression, values.source
    maps = has_map(values.type)
    if kind in {protocol.SampleKind.MAX, protocol.SampleKind.MIN}:
        if maps:
            raise errors.NotSupported(f"The values of {values.name} have no order.")
        return f"SELECT {kind.value}({expression}) AS {name} FROM {source}"
    if maps and not groups_maps:
        text = f"to_json({expression})"
        grouped = f"SELECT {text} AS k, first({expression}) AS v FROM {source} GROUP BY {text}"
        return f"SELECT q.v AS {name} FROM ({grouped}) q ORDER BY q.k NULLS LAST LIMIT {protocol.SAMPLE_ROWS}"
    distinct = f"SELECT DISTINCT {expression} AS v FROM {source}"
    return f"SELECT v AS {name} FROM ({distinct}) q ORDER BY {name} NULLS LAST LIMIT {protocol.SAMPLE_ROWS}"


_FIRST_SAMPLED_PARTITIONS = 3  # partitions that a sample reads first
_NUMERIC = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")

Partition = tuple[str, ...]
"""Partition values in column order, possibly followed by other cells, which are ignored."""


def newest_partitions(partitions: Sequence[Partition], columns: Sequence[protocol.TableColumn]) -> list[Partition]:
    """Return the partitions with the greatest values, in descending order. Numeric values compare as numbers.

    Partitions that have no value for a column are skipped.
    """

    def order(value: str, column: protocol.TableColumn) -> tuple[float, str]:
        return (float(value), "") if _is_number(value, column) else (0.0, value)

    cut = [one[: len(columns)] for one in partitions if len(one) >= len(columns)]
    complete = [one for one in cut if not {"__HIVE_DEFAULT_PARTITION__", "NULL"}.intersection(one)]
    complete.sort(key=lambda one: [order(*pair) for pair in zip(one, columns, strict=True)], reverse=True)
    return complete[:_FIRST_SAMPLED_PARTITIONS]


def newest_first_query(
    table: str, names: Sequence[str], columns: Sequence[protocol.TableColumn], wanted: Sequence[Partition]
) -> str:
    """Build a query that returns rows of the wanted partitions first, followed by rows of the other partitions.

    Each branch is limited to the sample size, so that no unnecessary rows are read.
    """
    selected = ", ".join(backquoted(name) for name in names)
    conditions = list[str]()
    for partition in wanted:
        tests = list[str]()
        for value, column in zip(partition, columns, strict=True):
            constant = value if _is_number(value, column) else literal(value)
            if not _is_number(value, column) and not column.type.lower().startswith(("string", "varchar", "char")):
                constant = f"CAST({constant} AS {column.type})"
            tests.append(f"{backquoted(column.name)} = {constant}")
        conditions.append(f"({' AND '.join(tests)})")
    # NULL equals nothing, so partitions without a value need their own condition.
    absent = " OR ".join(f"{backquoted(column.name)} IS NULL" for column in columns)
    others = f"NOT ({' OR '.join(conditions)}) OR {absent}"
    rank = "sample_rank"
    while rank in {name.lower() for name in names}:
        rank += "_"
    branches = [
        f"SELECT {number} AS {rank}, b{number}.* FROM"
        f" (SELECT {selected} FROM {table} WHERE {condition} LIMIT {protocol.SAMPLE_ROWS}) b{number}"
        for number, condition in enumerate([*conditions, others])
    ]
    union = "\nUNION ALL ".join(branches)
    return f"SELECT {selected} FROM (\n{union}\n) q ORDER BY {rank} LIMIT {protocol.SAMPLE_ROWS}"


def _is_number(value: str, column: protocol.TableColumn) -> bool:
    return column.type.lower().startswith(_NUMERIC) and re.fullmatch(r"-?\d+(\.\d+)?", value) is not None


_STATISTICS: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("min", "max"), known_text),
    **dict.fromkeys(("num_nulls", "distinct_count", "max_col_len", "num_trues", "num_falses"), whole_number),
    "avg_col_len": real_number,
}
NO_STATISTICS = protocol.ColumnStatistics(message="The engine has no statistics of this column.")


class HiveFamilyCatalog(ABC):
    """Implements `Catalog`. Subclasses handle each engine's statements and output formats.

    All three engines store database and table names in lower case and ignore case when they match names.
    """

    groups_maps = True
    describe_column = "FORMATTED"  # the DESCRIBE option that shows statistics
    unquotable = ""  # characters that cannot be quoted, so no name in the engine contains them

    def __init__(self, session: protocol.EngineSession) -> None:
        self._session = session
        self._current = ""

    async def databases(self) -> Sequence[str]:
        return await self._names("SHOW DATABASES")

    async def database(self, database: str) -> protocol.DatabaseDescription:
        name = await self._name(database)
        with metadata_errors(database):
            rows = await self._read(f"DESCRIBE DATABASE EXTENDED {backquoted(name)}")
        if not rows:
            raise errors.database_not_found(database)
        return self._described_database(name, rows)

    async def tables(self, database: str) -> Sequence[protocol.TableSummary]:
        """List the tables with at most two statements."""
        name = await self._name(database)
        with metadata_errors(database):
            return await self._tables(name)

    async def table(self, database: str, table: str) -> protocol.TableDescription:
        name = await self._name(database)
        if not self._is_quotable(table):
            raise errors.TableNotFound(name, table)
        try:
            with metadata_errors(name, table):
                rows = await self._read(f"DESCRIBE FORMATTED {backquoted(name, table.lower())}")
        except errors.TableNotFound:
            await self.database(database)  # Spark and Impala report a missing table even if the database is missing
            raise
        return await self._described_table(name, table.lower(), rows)

    async def column_statistics(self, table: protocol.TableDescription, column: str) -> protocol.ColumnStatistics:
        if table.kind.is_view:
            return protocol.ColumnStatistics(message="A view has no statistics.")
        with metadata_errors(table.database, table.name):
            return await self._column_statistics(table, column)

    async def functions(self, database: str | None) -> Sequence[protocol.FunctionDescription]:
        if database is None:
            return await self._builtin_functions()
        name = (await self.database(database)).name
        with metadata_errors(database):
            return await self._user_functions(name)

    async def function(self, database: str | None, name: str) -> protocol.FunctionDescription | None:
        name_of_database = None if database is None else await self._name(database)
        with metadata_errors(name_of_database or ""):
            return await self._function(name_of_database, name)

    async def sample_statement(
        self, table: protocol.TableDescription, column: str | None, nested: Sequence[str], kind: protocol.SampleKind
    ) -> str:
        source = backquoted(table.database, table.name)
        if column is not None:
            described = table.column(column) or protocol.TableColumn(column, "")
            return self._sample_of_values(source, described, nested, kind)
        names = self._selectable_columns(table)
        if not names:
            raise errors.NotSupported(f"The columns of {table.name} cannot be shown as rows.")
        keys = [column for column in table.columns if column.partition_key]
        partitions = list[Partition]()
        if keys:
            # The engine cannot list the partitions of some tables, such as tables in other catalogs.
            with suppress(errors.StatementRejected):
                partitions = await self._partitions(source)
        if wanted := newest_partitions(partitions, keys):
            return newest_first_query(source, names, keys, wanted)
        # The query lists the columns, because for `*` Hive prefixes column names with the table name.
        return f"SELECT {', '.join(map(backquoted, names))} FROM {source} LIMIT {protocol.SAMPLE_ROWS}"

    def analyze_statement(self, table: protocol.TableDescription, column: str | None) -> str:
        """Return the statement that counts the rows, or analyzes one column if `column` is set."""
        statement = f"ANALYZE TABLE {backquoted(table.database, table.name)} COMPUTE STATISTICS"
        return statement if column is None else f"{statement} FOR COLUMNS {backquoted(column)}"

    @abstractmethod
    async def _tables(self, database: str) -> list[protocol.TableSummary]: ...

    @abstractmethod
    def _described_database(self, name: str, rows: Sequence[Row]) -> protocol.DatabaseDescription: ...

    @abstractmethod
    async def _described_table(self, database: str, table: str, rows: Sequence[Row]) -> protocol.TableDescription: ...

    async def _column_statistics(self, table: protocol.TableDescription, column: str) -> protocol.ColumnStatistics:
        """Read a column's statistics as reported by Hive and Spark, which use the same names for them."""
        name = backquoted(table.database, table.name)
        rows = await self._read(f"DESCRIBE {self.describe_column} {name} {backquoted(column)}")
        values = {cell(row[0]): self._text(row[1]) for row in rows}
        statistics = {key: read(values.get(key, "")) for key, read in _STATISTICS.items()}
        has_any = any(one is not None for one in statistics.values())
        return protocol.ColumnStatistics(**statistics) if has_any else NO_STATISTICS

    @abstractmethod
    async def _builtin_functions(self) -> list[protocol.FunctionDescription]: ...

    @abstractmethod
    async def _user_functions(self, database: str) -> list[protocol.FunctionDescription]: ...

    @abstractmethod
    async def _function(self, database: str | None, name: str) -> protocol.FunctionDescription | None: ...

    async def _partitions(self, table: str) -> list[Partition]:
        """List the partitions of a table, given its quoted name.

        Hive and Spark return paths such as `dt=2024-01-10/name=a%2Fb`.
        """
        paths = await self._names(f"SHOW PARTITIONS {table}")
        return [tuple(unquote(part.partition("=")[2]) for part in path.split("/")) for path in paths]

    async def _described_functions(self, database: str, names: Iterable[str]) -> list[protocol.FunctionDescription]:
        functions = [await self._function(database, name) for name in names]
        return [function for function in functions if function is not None]

    def _sample_of_values(
        self, source: str, column: protocol.TableColumn, nested: Sequence[str], kind: protocol.SampleKind
    ) -> str:
        return nested_sample_query(nested_values(source, column, nested), kind, groups_maps=self.groups_maps)

    def _selectable_columns(self, table: protocol.TableDescription) -> list[str]:
        return [column.name for column in table.columns]

    def _is_quotable(self, name: str) -> bool:
        return not any(character in name for character in self.unquotable)

    def _text(self, value: object) -> str:
        """Convert a cell that may contain user-written text. Subclasses decode their engine's escape sequences."""
        return cell(value)

    async def _names(self, statement: str) -> list[str]:
        """Return the first cell of each row."""
        return [self._text(row[0]) for row in await self._read(statement)]

    async def _read(self, statement: str) -> list[Row]:
        return await read_rows(self._session, statement)

    async def _name(self, database: str) -> str:
        """Return the database's name in lower case; if it is empty, the name of the session's current database."""
        if not self._is_quotable(database):
            raise errors.database_not_found(database)
        if database:
            return database.lower()
        if not self._current:
            self._current = cell((await self._read("SELECT current_database()"))[0][0])
        return self._current
