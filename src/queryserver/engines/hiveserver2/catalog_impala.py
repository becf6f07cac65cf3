"""Metadata of Apache Impala."""

from collections.abc import Sequence

from queryserver.domain.catalog import (
    ColumnStatistics,
    DatabaseDescription,
    FunctionDescription,
    SampleKind,
    TableColumn,
    TableDescription,
    TableKind,
    TableSummary,
)
from queryserver.domain.errors.base import NotSupported
from queryserver.domain.errors.statements import StatementRejected
from queryserver.domain.sql_types import parse_type
from queryserver.engines.catalog_queries import Row
from queryserver.engines.hiveserver2.catalog import NO_STATISTICS, FamilyCatalog, once
from queryserver.engines.hiveserver2.catalog_hive import described
from queryserver.engines.hiveserver2.catalog_layout import Layout, read_layout
from queryserver.engines.hiveserver2.catalog_partitions import Partition
from queryserver.engines.hiveserver2.catalog_paths import Place, joined
from queryserver.engines.hiveserver2.catalog_quoting import literal, qualified, quoted
from queryserver.engines.hiveserver2.catalog_text import cell, real, whole
from queryserver.engines.hiveserver2.catalog_types import is_complex

_BUILTINS = "_impala_builtins"
_TOTAL = "Total"


class ImpalaCatalog(FamilyCatalog):
    """A Catalog."""

    # Between back-ticks a backslash takes the next character along, and a doubled back-tick is the end of one name and
    # the begin of another.
    unquotable = "`\\"

    async def _tables(self, database: str) -> list[TableSummary]:
        rows = await self._read(f"SHOW TABLES IN {quoted(database)}")
        views = await self._views(database)
        kinds = {True: TableKind.VIEW, False: TableKind.MANAGED}
        return [
            TableSummary(cell(row[0]), kinds[cell(row[0]) in views], cell(row[1]) if len(row) > 1 else "")
            for row in rows
        ]

    async def _views(self, database: str) -> set[str]:
        """Impala before 4.2 does not know SHOW VIEWS: there views cannot be told from tables without loading each."""
        try:
            return {cell(row[0]) for row in await self._read(f"SHOW VIEWS IN {quoted(database)}")}
        except StatementRejected as error:
            if "Syntax error" in error.message or "ParseException" in error.message:
                return set()
            raise

    def _described_database(self, name: str, rows: Sequence[Row]) -> DatabaseDescription:
        """The first row is name, location, comment; sections `Owner: ` and `Parameter: ` follow."""
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
        constraints = "kudu" in layout.parameters.get("storage_handler", "").lower()
        if constraints:
            await self._add_constraints(database, table, layout)
        return described(database, table, layout, tells_constraints=constraints)

    async def _add_constraints(self, database: str, table: str, layout: Layout) -> None:
        """Of a Kudu table the plain DESCRIBE tells name, type, comment, primary_key, key_unique, nullable, default."""
        for row in await self._read(f"DESCRIBE {qualified(database, table)}"):
            cells = [cell(one) for one in row]
            if len(cells) > 6:
                layout.primary |= {cells[0]} if cells[3] == "true" else set()
                layout.not_null |= {cells[0]} if cells[5] == "false" else set()
                layout.defaults |= {cells[0]: cells[6]} if cells[6] else {}

    async def _column_statistics(self, table: TableDescription, column: str) -> ColumnStatistics:
        """One statement tells all columns: name, type, distinct values, NULLs, max and avg size, trues, falses."""
        rows = await self._read(f"SHOW COLUMN STATS {qualified(table.database, table.name)}")
        told = {cell(row[0]): [cell(one) for one in row[2:]] for row in rows}.get(column.lower(), [])
        told += [""] * (6 - len(told))
        # Sizes of types of fixed width are always told: they are no statistics of the values.
        if whole(told[0]) is None and whole(told[1]) is None:
            return NO_STATISTICS
        return ColumnStatistics(
            distinct_count=whole(told[0]),
            num_nulls=whole(told[1]),
            max_col_len=whole(told[2]),
            avg_col_len=real(told[3]),
            num_trues=whole(told[4]),
            num_falses=whole(told[5]),
        )

    async def _builtin_functions(self) -> list[FunctionDescription]:
        return _functions(await self._read(f"SHOW FUNCTIONS IN {_BUILTINS}"))

    async def _own_functions(self, database: str) -> list[FunctionDescription]:
        return _functions(await self._read(f"SHOW FUNCTIONS IN {quoted(database)}"))

    async def _function(self, database: str | None, name: str) -> FunctionDescription | None:
        """A pattern finds too much rather than too little: `*` and `|` mean something in it."""
        place = _BUILTINS if database is None else quoted(database)
        rows = await self._read(f"SHOW FUNCTIONS IN {place} LIKE {literal(name.lower())}")
        return next((one for one in _functions(rows) if one.name == name.lower()), None)

    async def _partitions(self, table: str) -> list[Partition]:
        """The first cells of each row are the values, counts and sizes follow; the last row is a total."""
        rows = [[cell(one) for one in row] for row in await self._read(f"SHOW PARTITIONS {table}")]
        return [tuple(row) for row in rows if row[0] != _TOTAL]

    def analyze_statement(self, table: TableDescription, column: str | None) -> str:
        """COMPUTE STATS, for the table or one column."""
        self._check_column(column or "")
        statement = f"COMPUTE STATS {qualified(table.database, table.name)}"
        return statement if column is None else f"{statement} ({quoted(column)})"

    def _place(self, table: str, column: TableColumn, nested: Sequence[str]) -> Place:
        for name in (column.name, *nested):
            self._check_column(name)
        return joined(table, column, nested)

    def _sample_of_values(self, place: Place, kind: SampleKind) -> str:
        if is_complex(place.type):
            raise NotSupported(f"Impala cannot compare the values of {place.name}.")
        return super()._sample_of_values(place, kind)

    def _shown_columns(self, table: TableDescription) -> list[str]:
        """As `*` does it: complex columns are left out."""
        return [
            column.name
            for column in table.columns
            if self._is_quotable(column.name) and not is_complex(parse_type(column.type))
        ]

    def _check_column(self, name: str) -> None:
        if not self._is_quotable(name):
            raise NotSupported(f"Impala cannot quote the name {name}.")


def _functions(rows: Sequence[Row]) -> list[FunctionDescription]:
    """Of rows: return type, signature `abs(BIGINT)`, binary type, is persistent."""
    found = list[FunctionDescription]()
    for row in rows:
        returned, signature, binary, persistent = (cell(one) for one in row[:4])
        name, bracket, rest = signature.partition("(")
        found.append(FunctionDescription(name.lower(), bracket + rest, returned, binary, persistent))
    return once(found)
