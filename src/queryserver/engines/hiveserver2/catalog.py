"""Implements the catalog operations that Hive, Spark and Impala share, and builds sample statements.

Also parses the output of DESCRIBE: sections, table kinds, file formats, statistics and dates.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from urllib.parse import unquote

from queryserver import errors
from queryserver.engines import protocol
from queryserver.engines.catalog_queries import Row, backquoted, escaped_literal, read_rows
from queryserver.engines.hiveserver2.errors import metadata_errors
from queryserver.engines.protocol import ForeignKey, TableColumn, TableKind
from queryserver.sql.types import SqlType, parse_type

_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_ZONES = {  # UTC offsets in hours of unambiguous zone names
    "UTC": 0, "GMT": 0, "Z": 0, "WET": 0, "CET": 1, "WEST": 1, "EET": 2, "CEST": 2, "EEST": 3, "JST": 9, "KST": 9,
    "EDT": -4, "EST": -5, "MDT": -6, "MST": -7, "PDT": -7, "PST": -8,
}  # fmt: skip

literal = escaped_literal  # backslash is the escape character in Hive, Impala and Spark


def cell(value: Any) -> str:
    """Convert a cell to a string without surrounding whitespace; NULL becomes an empty string."""
    return "" if value is None else str(value).strip()


def unescaped(text: str) -> str:
    r"""Decode Hive's escape sequences, which follow Java string literals: `\"`, `\\`, `\n`, `\u00eb`."""

    def character(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPED.get(code, code)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", character, text, flags=re.DOTALL) if "\\" in text else text


def utc_text(java_date: str) -> str:
    """Convert `Sat Nov 21 22:48:19 UTC 2026` to `2026-11-21T22:48:19Z`.

    Returns an empty string if the input is not a date or its zone is ambiguous.
    """
    match = re.fullmatch(r"\w{3} (\w{3} +\d{1,2} \d\d:\d\d:\d\d) ([\w:+-]+) (\d{4})", java_date)
    if match is None:
        return ""
    day, name, year = match.groups()
    if name in _ZONES:
        offset = timedelta(hours=_ZONES[name])
    elif custom := re.fullmatch(r"GMT([+-])(\d\d):?(\d\d)", name):
        offset = timedelta(hours=int(custom[2]), minutes=int(custom[3])) * (1 if custom[1] == "+" else -1)
    else:
        return ""
    try:
        local = datetime.strptime(f"{day} {year}", "%b %d %H:%M:%S %Y").replace(tzinfo=timezone(offset))
    except ValueError:
        return ""
    return local.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def known_text(text: str) -> str | None:
    """Return the text of a statistic; None if it is unknown, which engines write as an empty string, `NULL` or `-1`."""
    return None if text in {"", "NULL", "-1"} else text


def whole_number(text: str) -> int | None:
    value = real_number(text)
    return None if value is None else int(value)


def real_number(text: str) -> float | None:
    try:
        return float(text) if known_text(text) is not None else None
    except ValueError:
        return None


_KINDS = {
    "EXTERNAL_TABLE": TableKind.EXTERNAL,
    "EXTERNAL": TableKind.EXTERNAL,
    "VIRTUAL_VIEW": TableKind.VIEW,
    "VIEW": TableKind.VIEW,
    "MATERIALIZED_VIEW": TableKind.MATERIALIZED_VIEW,
}
_BY_SERDE = {"opencsvserde": "csv", "jsonserde": "json", "jsonserdeutf8": "json", "regexserde": "text"}
_BY_INPUT = ("parquet", "orc", "avro", "rcfile", "sequencefile", "json", "kudu", "iceberg", "text")


def table_kind(word: str) -> TableKind:
    """Return the table kind for the engine's table type, such as `VIRTUAL_VIEW`.

    An unknown type counts as a managed table.
    """
    return _KINDS.get(word.upper(), TableKind.MANAGED)


def file_format(details: Mapping[str, str], parameters: Mapping[str, str]) -> str:
    """Return the file format, such as `parquet`, `orc` or `kudu`; an empty string if the description contains none."""
    handler = parameters.get("storage_handler", "").lower()
    if "kudu" in handler:
        return "kudu"
    if "iceberg" in handler or parameters.get("table_type", "").upper() == "ICEBERG":
        return "iceberg"
    serde = (details.get("SerDe Library") or details.get("Serde Library", "")).rpartition(".")[2].lower()
    if serde in _BY_SERDE:
        return _BY_SERDE[serde]
    input_format = details.get("InputFormat", "").rpartition(".")[2].lower()
    return next((name for name in _BY_INPUT if name in input_format), "")


def rows_can_change(format_name: str, parameters: Mapping[str, str]) -> bool:
    """Return whether a table supports UPDATE and DELETE. Only Kudu, Iceberg, Delta, Hudi and full ACID tables do."""
    if format_name in {"kudu", "iceberg", "delta", "hudi"}:
        return True
    is_acid = parameters.get("transactional", "").lower() == "true"
    return is_acid and parameters.get("transactional_properties", "default").lower() != "insert_only"


def statistics(parameters: Mapping[str, str]) -> dict[str, str]:
    values = {
        name: known_text(parameters.get(name, "")) for name in ("numRows", "totalSize", "numFiles", "rawDataSize")
    }
    return {name: value for name, value in values.items() if value is not None}


def is_complex(kind: SqlType) -> bool:
    return kind.item is not None or kind.key is not None or bool(kind.fields)


def has_map(kind: SqlType) -> bool:
    parts = [part for part in (kind.item, kind.value, *(field.type for field in kind.fields)) if part is not None]
    return kind.key is not None or any(has_map(part) for part in parts)


@dataclass(slots=True)
class Layout:
    """A parsed table description. Keys in `details`, such as `Owner` and `Location`, have no trailing colon."""

    columns: list[TableColumn] = field(default_factory=list[TableColumn])
    partitions: list[TableColumn] = field(default_factory=list[TableColumn])
    details: dict[str, str] = field(default_factory=dict[str, str])
    parameters: dict[str, str] = field(default_factory=dict[str, str])
    foreign_keys: list[ForeignKey] = field(default_factory=list[ForeignKey])
    primary: set[str] = field(default_factory=set[str])
    not_null: set[str] = field(default_factory=set[str])
    defaults: dict[str, str] = field(default_factory=dict[str, str])

    def all_columns(self, *, has_constraints: bool) -> tuple[TableColumn, ...]:
        """Return all columns, partition columns last.

        If `has_constraints` is False, keys and nullability are unknown.
        """
        columns = (*self.columns, *self.partitions)
        if not has_constraints:
            return columns
        return tuple(
            replace(
                column,
                nullable=column.name not in self.not_null | self.primary,
                default=self.defaults.get(column.name),
                primary_key=column.name in self.primary,
            )
            for column in columns
        )


def read_layout(rows: Iterable[Row], clean: Callable[[str], str] = str) -> Layout:
    """Parse the output of DESCRIBE FORMATTED. `clean` decodes the engine's escape sequences in user-written text."""
    layout, section = Layout(), ""
    for row in rows:
        first, second, third = (cell(one) for one in row[:3])
        if first.startswith("#") and not second:
            section = first.lower()
        elif first == "# col_name" and second == "data_type":
            continue
        elif first.endswith(":") and not second:
            section = first.rstrip(":").lower()
        else:
            _add_row(layout, section, (first, second, third), clean)
    return layout


def _add_row(layout: Layout, section: str, row: tuple[str, str, str], clean: Callable[[str], str]) -> None:
    first, second, third = row
    if section in {"", "# partition information"}:
        if first:
            is_key = section != ""
            # Impala wraps long types over several lines.
            kind = re.sub(r"\s*\n\s*", "", clean(second).strip())
            column = TableColumn(clean(first), kind, clean(third), partition_key=is_key)
            (layout.partitions if is_key else layout.columns).append(column)
    elif section == "table parameters" and not first:
        if second:
            layout.parameters[clean(second)] = clean(third)
    elif section in _CONSTRAINTS:
        _add_constraint(layout, section, clean(first), clean(second))
    elif first.endswith(":") and section != "storage desc params":
        layout.details.setdefault(first.rstrip(":"), clean(second))


_CONSTRAINTS = frozenset({"# primary key", "# foreign keys", "# not null constraints", "# default constraints"})
_COLUMN, _PARENT, _DEFAULT = "Column Name:", "Parent Column Name:", "Default Value:"


def _add_constraint(layout: Layout, section: str, first: str, second: str) -> None:
    if section == "# foreign keys":
        if first.startswith(_PARENT) and second.startswith(_COLUMN):
            layout.foreign_keys.append(ForeignKey(second.removeprefix(_COLUMN), first.removeprefix(_PARENT)))
    elif first.startswith(_COLUMN):
        if section == "# primary key":
            layout.primary.add(second)
        elif section == "# not null constraints":
            layout.not_null.add(second)
        elif second.startswith(_DEFAULT):
            layout.defaults[first.removeprefix(_COLUMN)] = second.removeprefix(_DEFAULT)


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
    """Build the expression and the FROM clause that select the values at a path inside a column.

    The clause uses LATERAL VIEW explode or, if `joins` is set, Impala's collection joins.
    Raises NotSupported if the path does not exist in the column's type.
    """
    values = NestedValues(f"{table} t", f"t.{backquoted(column.name)}", parse_type(column.type), column.name)
    for number, segment in enumerate(nested, start=1):
        part, source, expression = values.type.part(segment), values.source, values.expression
        if part is None:
            raise errors.NotSupported(f"{values.name} has no element {segment}.")
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

    If `groups_maps` is False, the engine cannot compare maps, so their JSON representations are compared.
    Raises NotSupported for the maximum or minimum of values that contain maps, which have no order.
    """
    name, expression, source = backquoted(values.name), values.expression, values.source
    maps = has_map(values.type)
    if kind in {protocol.SampleKind.MAX, protocol.SampleKind.MIN}:
        if maps:
            raise errors.NotSupported(f"The values of {values.name} cannot be ordered.")
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
    """Return up to three partitions with the greatest values, in descending order. Numeric values compare as numbers.

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
    # A comparison with NULL is never true, so partitions without a value need their own condition.
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
NO_STATISTICS = protocol.ColumnStatistics(message="The engine has no statistics for this column.")


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
        """List the tables. The number of statements does not depend on the number of tables."""
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
            return protocol.ColumnStatistics(message="Views have no statistics.")
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
            raise errors.NotSupported(f"The columns of {table.name} cannot be selected.")
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
        """Read a column's statistics from DESCRIBE. Hive and Spark use the same names for them."""
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
        """Run a statement and return the first cell of each row."""
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
