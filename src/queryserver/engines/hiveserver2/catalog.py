"""Metadata of Hive's family: what Hive, Spark and Impala have in common."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from queryserver.engines.catalog_queries import Row, escaped_literal, identifier, read_rows
from queryserver.engines.hiveserver2.descriptions import cell, has_map, known, real, whole
from queryserver.engines.hiveserver2.errors import metadata_errors
from queryserver.engines.protocol import (
    SAMPLE_ROWS,
    ColumnStatistics,
    DatabaseDescription,
    EngineSession,
    FunctionDescription,
    SampleKind,
    TableColumn,
    TableDescription,
    TableSummary,
)
from queryserver.errors.base import NotSupported
from queryserver.errors.statements import StatementRejected, TableNotFound, database_not_found
from queryserver.sql.types import SqlType, parse_type

literal = escaped_literal
"""A string constant: backslashes escape in Hive, Impala and Spark alike."""


def quoted(name: str) -> str:
    """A name between back-ticks, those within it doubled."""
    return identifier(name, mark="`")


def qualified(*names: str) -> str:
    """Quoted names joined by points."""
    return ".".join(quoted(name) for name in names)


@dataclass(frozen=True, slots=True)
class Place:
    """A FROM clause in which `expression` has the values; `name` is the last segment of their path."""

    source: str
    expression: str
    type: SqlType
    name: str


def exploded(table: str, column: TableColumn, nested: Sequence[str]) -> Place:
    """With LATERAL VIEW explode. Raises NotSupported for a path that the type does not have."""
    return _walk(table, column, nested, _explode)


def joined(table: str, column: TableColumn, nested: Sequence[str]) -> Place:
    """With Impala's joins of collections. Raises NotSupported for a path that the type does not have."""
    return _walk(table, column, nested, _join)


def _walk(
    table: str, column: TableColumn, nested: Sequence[str], enter: Callable[[Place, int, str], tuple[str, str]]
) -> Place:
    place = Place(f"{table} t", f"t.{quoted(column.name)}", parse_type(column.type), column.name)
    for number, segment in enumerate(nested, start=1):
        part = place.type.part(segment)
        if part is None:
            raise NotSupported(f"Below {place.name} there is no {segment}.")
        if place.type.fields:
            place = Place(place.source, f"{place.expression}.{quoted(segment)}", part, segment)
        else:
            source, expression = enter(place, number, segment)
            place = Place(source, expression, part, segment)
    return place


def _explode(place: Place, number: int, part: str) -> tuple[str, str]:
    """Aliases stand behind that of their view: no column of the table can be taken for one of them."""
    columns = "item" if part == "item" else "k, v"
    view = f"x{number}"
    source = f"{place.source} LATERAL VIEW explode({place.expression}) {view} AS {columns}"
    return source, f"{view}.{ {'item': 'item', 'key': 'k', 'value': 'v'}[part] }"


def _join(place: Place, number: int, part: str) -> tuple[str, str]:
    alias = f"x{number}"
    return f"{place.source}, {place.expression} {alias}", f"{alias}.{part}"


def some_rows(table: str, names: Sequence[str]) -> str:
    """Any rows. The columns are named: Hive puts the table's name before those of `*`."""
    return f"SELECT {', '.join(quoted(name) for name in names)} FROM {table} LIMIT {SAMPLE_ROWS}"


def values_at(place: Place, kind: SampleKind, *, groups_maps: bool) -> str:
    """Distinct values with NULL last, or the largest or smallest.

    `groups_maps` says that the engine tells equal maps; else their JSON text does. Maps have no order of size.
    """
    name = quoted(place.name)
    maps = has_map(place.type)
    if kind in {SampleKind.MAX, SampleKind.MIN}:
        if maps:
            raise NotSupported(f"The values of {place.name} have no order.")
        return f"SELECT {kind.value}({place.expression}) AS {name} FROM {place.source}"
    if maps and not groups_maps:
        text = f"to_json({place.expression})"
        grouped = f"SELECT {text} AS k, first({place.expression}) AS v FROM {place.source} GROUP BY {text}"
        return f"SELECT q.v AS {name} FROM ({grouped}) q ORDER BY q.k NULLS LAST LIMIT {SAMPLE_ROWS}"
    distinct = f"SELECT DISTINCT {place.expression} AS v FROM {place.source}"
    return f"SELECT v AS {name} FROM ({distinct}) q ORDER BY {name} NULLS LAST LIMIT {SAMPLE_ROWS}"


NEWEST = 3
"""So many partitions are read one after the other before the rest."""

_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_NUMERIC = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_TEXTS = ("string", "varchar", "char")
_NO_VALUE = frozenset({"__HIVE_DEFAULT_PARTITION__", "NULL"})

Partition = tuple[str, ...]
"""Values in the order of the partition columns; what follows them is of no interest here."""


def read_partition(path: str) -> Partition:
    """`dt=2024-01-10/name=a%2Fb` as Hive and Spark write it."""
    return tuple(unquote(part.partition("=")[2]) for part in path.split("/"))


def newest(partitions: Sequence[Partition], columns: Sequence[TableColumn]) -> list[Partition]:
    """The greatest values, greatest first; numbers compare as numbers. Those that lack a value are left out."""
    cut = [one[: len(columns)] for one in partitions if len(one) >= len(columns)]
    whole = [one for one in cut if not _NO_VALUE.intersection(one)]
    whole.sort(key=lambda one: [_order(*pair) for pair in zip(one, columns, strict=True)], reverse=True)
    return whole[:NEWEST]


def newest_first(table: str, names: Sequence[str], columns: Sequence[TableColumn], wanted: Sequence[Partition]) -> str:
    """The statement: each branch is cut at the sample's size, so that no partition is read further than needed."""
    selected = ", ".join(quoted(name) for name in names)
    conditions = [_holds(partition, columns) for partition in wanted]
    rank = "sample_rank"
    while rank in {name.lower() for name in names}:
        rank += "_"
    branches = [
        f"SELECT {number} AS {rank}, b{number}.* FROM"
        f" (SELECT {selected} FROM {table} WHERE {condition} LIMIT {SAMPLE_ROWS}) b{number}"
        for number, condition in enumerate([*conditions, _holds_none(conditions, columns)])
    ]
    union = "\nUNION ALL ".join(branches)
    return f"SELECT {selected} FROM (\n{union}\n) q ORDER BY {rank} LIMIT {SAMPLE_ROWS}"


def _order(value: str, column: TableColumn) -> tuple[float, str]:
    is_number = column.type.lower().startswith(_NUMERIC) and _NUMBER.fullmatch(value)
    return (float(value), "") if is_number else (0.0, value)


def _holds(partition: Partition, columns: Sequence[TableColumn]) -> str:
    pairs = zip(partition, columns, strict=True)
    tests = (f"{quoted(column.name)} = {_constant(value, column)}" for value, column in pairs)
    return "(" + " AND ".join(tests) + ")"


def _holds_none(conditions: Sequence[str], columns: Sequence[TableColumn]) -> str:
    """A partition without a value is compared with nothing: it must be asked for by itself."""
    absent = " OR ".join(f"{quoted(column.name)} IS NULL" for column in columns)
    return f"NOT ({' OR '.join(conditions)}) OR {absent}"


def _constant(value: str, column: TableColumn) -> str:
    kind = column.type.lower()
    if kind.startswith(_NUMERIC) and _NUMBER.fullmatch(value):
        return value
    return literal(value) if kind.startswith(_TEXTS) else f"CAST({literal(value)} AS {column.type})"


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
