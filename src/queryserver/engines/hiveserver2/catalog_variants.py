"""Implements the catalog operations that differ between Apache Hive, Impala and Spark."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from queryserver import errors
from queryserver.engines.catalog_queries import Row, backquoted
from queryserver.engines.hiveserver2.catalog import (
    NO_STATISTICS,
    HiveFamilyCatalog,
    Layout,
    Partition,
    cell,
    file_format,
    is_complex,
    known_text,
    literal,
    nested_sample_query,
    nested_values,
    read_layout,
    real_number,
    rows_can_change,
    statistics,
    table_kind,
    unescaped,
    utc_text,
    whole_number,
)
from queryserver.engines.protocol import (
    ColumnStatistics,
    DatabaseDescription,
    FunctionDescription,
    SampleKind,
    TableColumn,
    TableDescription,
    TableKind,
    TableProperty,
    TableSummary,
)
from queryserver.sql.types import parse_type


class HiveCatalog(HiveFamilyCatalog):
    """Implements `Catalog` for Hive, which returns user-written text with the escape sequences of Java strings."""

    def _text(self, value: object) -> str:
        return unescaped(cell(value))

    async def _tables(self, database: str) -> list[TableSummary]:
        try:
            rows = await self._read(f"SHOW EXTENDED TABLES IN {backquoted(database)}")
        except errors.StatementRejected as error:
            if "ParseException" not in error.message:
                raise
        else:
            return [TableSummary(self._text(row[0]), table_kind(cell(row[1]))) for row in rows]
        # Before Hive 4, no statement lists table kinds. SHOW VIEWS exists since Hive 2.2.
        rows = await self._read(f"SHOW TABLES IN {backquoted(database)}")
        views = {row[0] for row in await self._read(f"SHOW VIEWS IN {backquoted(database)}")}
        return [TableSummary(self._text(row[0]), TableKind.of(is_view=row[0] in views)) for row in rows]

    def _described_database(self, name: str, rows: Sequence[Row]) -> DatabaseDescription:
        """Parse the row: name, comment, location, managed location (Hive 4), owner name, owner type, …, parameters."""
        cells = list(map(self._text, rows[0]))
        owner = 4 if len(cells) > 6 else 3
        return DatabaseDescription(
            name,
            comment=cells[1],
            location=cells[2],
            owner_name=cells[owner],
            owner_type=cells[owner + 1],
            parameters=cells[-1],
        )

    async def _described_table(self, database: str, table: str, rows: Sequence[Row]) -> TableDescription:
        return described(database, table, read_layout(rows, unescaped), has_constraints=True)

    async def _builtin_functions(self) -> list[FunctionDescription]:
        """List the built-in functions. Their names have no database prefix."""
        names = await self._names("SHOW FUNCTIONS")
        return _builtin(name for name in names if "." not in name.strip("."))

    async def _user_functions(self, database: str) -> list[FunctionDescription]:
        names, start = await self._names("SHOW FUNCTIONS"), f"{database}."
        own = [name.removeprefix(start) for name in names if name.startswith(start)]
        return await self._described_functions(database, own)

    async def _function(self, database: str | None, name: str) -> FunctionDescription | None:
        names = (name,) if database is None else (database, name)
        lines = await self._names(f"DESCRIBE FUNCTION EXTENDED {backquoted(*names)}")
        if not lines or lines[0].endswith("does not exist."):
            return None
        prefix = "Function type:"
        kind = next((one.removeprefix(prefix) for one in lines if one.startswith(prefix)), "")
        signature, _, _ = lines[0].partition(" - ")
        return FunctionDescription(
            name,
            signature=signature.removeprefix(f"{database}.") if "(" in signature else "",
            is_builtin=kind,
            is_persistent={"BUILTIN": "true", "PERSISTENT": "true", "TEMPORARY": "false"}.get(kind, ""),
            description="\n".join(lines),
        )


def _builtin(names: Iterable[str]) -> list[FunctionDescription]:
    return [FunctionDescription(name, is_builtin="BUILTIN", is_persistent="true") for name in dict.fromkeys(names)]


def described(database: str, table: str, layout: Layout, *, has_constraints: bool) -> TableDescription:
    kind = table_kind(layout.details.get("Table Type", ""))
    format_name = "" if kind is TableKind.VIEW else file_format(layout.details, layout.parameters)
    return TableDescription(
        database,
        table,
        layout.all_columns(has_constraints=has_constraints and not kind.is_view),
        kind=kind,
        comment=layout.parameters.get("comment", ""),
        support_updates=not kind.is_view and rows_can_change(format_name, layout.parameters),
        location=known_text(layout.details.get("Location", "")) or "",
        owner=layout.details.get("Owner", ""),
        create_time=utc_text(layout.details.get("CreateTime", "")),
        format=format_name,
        foreign_keys=tuple(layout.foreign_keys),
        properties=tuple(TableProperty(name, value) for name, value in layout.parameters.items()),
        statistics=statistics(layout.parameters),
    )


_BUILTINS = "_impala_builtins"


class ImpalaCatalog(HiveFamilyCatalog):
    # Between backticks, a backslash escapes the next character, and a doubled backtick ends one name and starts
    # another name.
    unquotable = "`\\"

    async def _tables(self, database: str) -> list[TableSummary]:
        rows = await self._read(f"SHOW TABLES IN {backquoted(database)}")
        try:
            views = set(await self._names(f"SHOW VIEWS IN {backquoted(database)}"))
        except errors.StatementRejected as error:
            if "Syntax error" not in error.message and "ParseException" not in error.message:
                raise
            views = set[str]()  # SHOW VIEWS exists since Impala 4.2; any alternative would load every table
        return [
            TableSummary(name, TableKind.of(is_view=name in views), cell(row[1]) if len(row) > 1 else "")
            for name, row in ((cell(row[0]), row) for row in rows)
        ]

    def _described_database(self, name: str, rows: Sequence[Row]) -> DatabaseDescription:
        """Parse the first row (name, location, comment), and the sections `Owner: ` and `Parameter: ` after it."""
        first = [cell(one) for one in rows[0]]
        owner, parameters, section = ("", ""), list[str](), ""
        for row in rows[1:]:
            title, left, right = (cell(one) for one in row[:3])
            section = title or section
            if section.startswith("Owner") and not title:
                owner = (left, right)
            elif section.startswith("Parameter") and not title:
                parameters.append(f"{left}={right}")
        return DatabaseDescription(
            name,
            comment=first[2],
            location=first[1],
            owner_name=owner[0],
            owner_type=owner[1],
            parameters=", ".join(parameters),
        )

    async def _described_table(self, database: str, table: str, rows: Sequence[Row]) -> TableDescription:
        layout = read_layout(rows)
        is_kudu = "kudu" in layout.parameters.get("storage_handler", "").lower()
        # For a Kudu table, DESCRIBE returns name, type, comment, primary_key, key_unique, nullable and default.
        for row in await self._read(f"DESCRIBE {backquoted(database, table)}") if is_kudu else ():
            cells = [cell(one) for one in row]
            if len(cells) > 6:
                layout.primary |= {cells[0]} if cells[3] == "true" else set()
                layout.not_null |= {cells[0]} if cells[5] == "false" else set()
                layout.defaults |= {cells[0]: cells[6]} if cells[6] else {}
        return described(database, table, layout, has_constraints=is_kudu)

    async def _column_statistics(self, table: TableDescription, column: str) -> ColumnStatistics:
        """Read the column's row from SHOW COLUMN STATS.

        The cells are name, type, distinct values, NULLs, maximum size, average size, trues and falses.
        """
        rows = await self._read(f"SHOW COLUMN STATS {backquoted(table.database, table.name)}")
        cells = {cell(row[0]): [cell(one) for one in row[2:]] for row in rows}.get(column.lower(), [])
        distinct, nulls, longest, average, trues, falses = (cells + [""] * 6)[:6]
        # Fixed-width types always have sizes, even if the column has not been analyzed.
        if whole_number(distinct) is None and whole_number(nulls) is None:
            return NO_STATISTICS
        return ColumnStatistics(
            distinct_count=whole_number(distinct),
            num_nulls=whole_number(nulls),
            max_col_len=whole_number(longest),
            avg_col_len=real_number(average),
            num_trues=whole_number(trues),
            num_falses=whole_number(falses),
        )

    async def _builtin_functions(self) -> list[FunctionDescription]:
        return _functions(await self._read(f"SHOW FUNCTIONS IN {_BUILTINS}"))

    async def _user_functions(self, database: str) -> list[FunctionDescription]:
        return _functions(await self._read(f"SHOW FUNCTIONS IN {backquoted(database)}"))

    async def _function(self, database: str | None, name: str) -> FunctionDescription | None:
        """Find a function by name.

        Names are compared, because `*` and `|` have a special meaning in the pattern and can match other functions.
        """
        source = _BUILTINS if database is None else backquoted(database)
        rows = await self._read(f"SHOW FUNCTIONS IN {source} LIKE {literal(name.lower())}")
        return next((one for one in _functions(rows) if one.name == name.lower()), None)

    async def _partitions(self, table: str) -> list[Partition]:
        """List partitions. Each row contains the partition values, then counts and sizes; the last row is a total."""
        rows = [[cell(one) for one in row] for row in await self._read(f"SHOW PARTITIONS {table}")]
        return [tuple(row) for row in rows if row[0] != "Total"]

    def analyze_statement(self, table: TableDescription, column: str | None) -> str:
        self._check_column(column or "")
        statement = f"COMPUTE STATS {backquoted(table.database, table.name)}"
        return statement if column is None else f"{statement} ({backquoted(column)})"

    def _sample_of_values(self, source: str, column: TableColumn, nested: Sequence[str], kind: SampleKind) -> str:
        for name in (column.name, *nested):
            self._check_column(name)
        values = nested_values(source, column, nested, joins=True)
        if is_complex(values.type):
            raise errors.NotSupported(f"Impala cannot compare the values of {values.name}.")
        return nested_sample_query(values, kind, groups_maps=self.groups_maps)

    def _selectable_columns(self, table: TableDescription) -> list[str]:
        """Return the columns that `*` selects. Complex types are omitted."""
        return [
            column.name
            for column in table.columns
            if self._is_quotable(column.name) and not is_complex(parse_type(column.type))
        ]

    def _check_column(self, name: str) -> None:
        if not self._is_quotable(name):
            raise errors.NotSupported(f"Impala cannot quote the name {name}.")


def _functions(rows: Sequence[Row]) -> list[FunctionDescription]:
    """Parse rows of return type, signature (such as `abs(BIGINT)`), binary type and persistence. Merge overloads."""
    by_name = dict[str, FunctionDescription]()
    for row in rows:
        returned, text, binary, persistent = (cell(one) for one in row[:4])
        name, bracket, rest = text.partition("(")
        name, signature = name.lower(), bracket + rest
        first = by_name.get(name)
        if first is None:
            by_name[name] = FunctionDescription(name, signature, returned, binary, persistent)
        elif signature not in first.signature.split("\n"):
            by_name[name] = replace(first, signature=f"{first.signature}\n{signature}")
    return list(by_name.values())


_NO_FUNCTION = re.compile(r"UNRESOLVED_ROUTINE|ROUTINE_NOT_FOUND|NoSuchFunctionException|Undefined function")


class SparkCatalog(HiveFamilyCatalog):
    groups_maps = False
    describe_column = "EXTENDED"

    async def _tables(self, database: str) -> list[TableSummary]:
        """List the tables without temporary views, which belong to no database.

        Comments are omitted, because reading them would take one statement per table.
        """
        rows = await self._read(f"SHOW TABLES IN {backquoted(database)}")
        views = {cell(row[1]) for row in await self._read(f"SHOW VIEWS IN {backquoted(database)}") if not row[2]}
        names = [cell(row[1]) for row in rows if not row[2]]
        return [TableSummary(name, TableKind.of(is_view=name in views)) for name in names]

    def _described_database(self, name: str, rows: Sequence[Row]) -> DatabaseDescription:
        details = {cell(row[0]): cell(row[1]) for row in rows}
        return DatabaseDescription(
            name,
            comment=details.get("Comment", ""),
            location=details.get("Location", ""),
            owner_name=details.get("Owner", ""),
            parameters=details.get("Properties", ""),
        )

    async def _described_table(self, database: str, table: str, rows: Sequence[Row]) -> TableDescription:
        columns, details = _read_description(rows)
        # DESCRIBE shows the properties in a format that cannot be parsed.
        listed = await self._read(f"SHOW TBLPROPERTIES {backquoted(database, table)}")
        properties = {str(row[0]): str(row[1]) for row in listed if len(row) > 1}
        kind = table_kind(details.get("Type", ""))
        format_name = "" if kind.is_view else details.get("Provider", "").lower()
        if format_name in {"", "hive"} and not kind.is_view:
            format_name = file_format(details, properties)
        # `658 bytes, 2 rows`; the row count is present only after ANALYZE.
        size = re.match(r"(?P<totalSize>\d+) bytes(?:, (?P<numRows>\d+) rows)?", details.get("Statistics", ""))
        return TableDescription(
            database,
            table,
            columns,
            kind=kind,
            comment=details.get("Comment", ""),
            support_updates=not kind.is_view and rows_can_change(format_name, {}),
            location=details.get("Location", ""),
            owner=details.get("Owner", ""),
            create_time=utc_text(details.get("Created Time", "")),
            format=format_name,
            properties=tuple(TableProperty(name, value) for name, value in properties.items()),
            statistics={name: size[name] for name in ("numRows", "totalSize") if size[name]} if size else {},
        )

    async def _builtin_functions(self) -> list[FunctionDescription]:
        return _builtin(await self._names("SHOW SYSTEM FUNCTIONS"))

    async def _user_functions(self, database: str) -> list[FunctionDescription]:
        names = await self._names(f"SHOW USER FUNCTIONS IN {backquoted(database)}")
        return await self._described_functions(database, [name.rpartition(".")[2] for name in names if "." in name])

    async def _function(self, database: str | None, name: str) -> FunctionDescription | None:
        names = (name,) if database is None else (database, name)
        try:
            rows = await self._read(f"DESCRIBE FUNCTION EXTENDED {backquoted(*names)}")
        except errors.StatementRejected as error:
            if _NO_FUNCTION.search(error.message):
                return None
            raise
        text = "\n".join(str(row[0]) for row in rows)
        usage = text.partition("Usage:")[2].partition("Extended Usage:")[0]
        # Each overload starts with `name(arguments) - description`.
        signatures = re.findall(rf"^\s*({re.escape(name)}\(.*?\)) - ", usage, re.MULTILINE | re.IGNORECASE)
        is_builtin = database is None and "Function: spark_catalog." not in text
        return FunctionDescription(
            name,
            signature="\n".join(dict.fromkeys(signatures)),
            is_builtin="BUILTIN" if is_builtin else "",
            is_persistent="true",
            description=text.strip(),
        )


def _read_description(rows: Sequence[Row]) -> tuple[tuple[TableColumn, ...], dict[str, str]]:
    """Parse the columns and details in the output of Spark's DESCRIBE FORMATTED."""
    columns, partitions, section = list[TableColumn](), set[str](), ""
    details, defaults = dict[str, str](), dict[str, str]()
    for row in rows:
        first, second, third = ("" if one is None else str(one) for one in row[:3])
        if first.startswith("# ") and not second:
            section = first
        elif not first and not second:
            section = "#"
        elif section == "":
            columns.append(TableColumn(first, second, third))
        elif section == "# Partition Information" and first != "# col_name":
            partitions.add(first)
        elif section == "# Partitioning":
            partitions.add(second)
        elif section == "# Detailed Table Information":
            details.setdefault(first, second)
        elif section == "# Column Default Values":
            defaults[first] = third
    described = (replace(one, default=defaults.get(one.name), partition_key=one.name in partitions) for one in columns)
    return tuple(described), details
