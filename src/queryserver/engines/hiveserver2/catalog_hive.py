"""Metadata of Apache Hive."""

from collections.abc import Sequence

from queryserver.domain.catalog import (
    ColumnStatistics,
    DatabaseDescription,
    FunctionDescription,
    TableDescription,
    TableKind,
    TableProperty,
    TableSummary,
)
from queryserver.domain.errors.statements import StatementRejected
from queryserver.engines.catalog_queries import Row
from queryserver.engines.hiveserver2.catalog import FamilyCatalog, told_statistics
from queryserver.engines.hiveserver2.catalog_formats import file_format, rows_can_change, statistics, table_kind
from queryserver.engines.hiveserver2.catalog_layout import Layout, read_layout
from queryserver.engines.hiveserver2.catalog_partitions import Partition, read_partition
from queryserver.engines.hiveserver2.catalog_quoting import qualified, quoted
from queryserver.engines.hiveserver2.catalog_text import cell, known, unescaped, utc_text

_UNKNOWN_FUNCTION = "does not exist."
_FUNCTION_TYPE = "Function type:"


class HiveCatalog(FamilyCatalog):
    """A Catalog. Hive writes texts as in Java's source, backslashes and all."""

    async def databases(self) -> Sequence[str]:
        """Names of all databases."""
        return [unescaped(name) for name in await super().databases()]

    async def _tables(self, database: str) -> list[TableSummary]:
        try:
            rows = await self._read(f"SHOW EXTENDED TABLES IN {quoted(database)}")
        except StatementRejected as error:
            if "ParseException" not in error.message:
                raise
            return await self._tables_of_old(database)
        return [TableSummary(unescaped(cell(row[0])), table_kind(cell(row[1]))) for row in rows]

    async def _tables_of_old(self, database: str) -> list[TableSummary]:
        """Before Hive 4 no statement tells kinds; views are listed since Hive 2.2."""
        rows = await self._read(f"SHOW TABLES IN {quoted(database)}")
        views = {row[0] for row in await self._read(f"SHOW VIEWS IN {quoted(database)}")}
        kinds = {True: TableKind.VIEW, False: TableKind.MANAGED}
        return [TableSummary(unescaped(cell(row[0])), kinds[row[0] in views]) for row in rows]

    def _described_database(self, name: str, rows: Sequence[Row]) -> DatabaseDescription:
        """One row: name, comment, location, in Hive 4 the managed location, owner's name and type, …, parameters."""
        cells = [unescaped(cell(one)) for one in rows[0]]
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
        return described(database, table, read_layout(rows, unescaped), tells_constraints=True)

    async def _column_statistics(self, table: TableDescription, column: str) -> ColumnStatistics:
        rows = await self._read(f"DESCRIBE FORMATTED {qualified(table.database, table.name)} {quoted(column)}")
        return told_statistics({cell(row[0]): unescaped(cell(row[1])) for row in rows})

    async def _builtin_functions(self) -> list[FunctionDescription]:
        """Functions of a database have its name before theirs."""
        names = [unescaped(cell(row[0])) for row in await self._read("SHOW FUNCTIONS")]
        return [
            FunctionDescription(name, is_builtin="BUILTIN", is_persistent="true")
            for name in dict.fromkeys(names)
            if "." not in name.strip(".")
        ]

    async def _own_functions(self, database: str) -> list[FunctionDescription]:
        rows = await self._read("SHOW FUNCTIONS")
        names = [unescaped(cell(row[0])) for row in rows]
        start = f"{database}."
        found = [await self._function(database, name.removeprefix(start)) for name in names if name.startswith(start)]
        return [function for function in found if function is not None]

    async def _function(self, database: str | None, name: str) -> FunctionDescription | None:
        names = (name,) if database is None else (database, name)
        rows = await self._read(f"DESCRIBE FUNCTION EXTENDED {qualified(*names)}")
        lines = [unescaped(cell(row[0])) for row in rows]
        if not lines or lines[0].endswith(_UNKNOWN_FUNCTION):
            return None
        word = next((one.removeprefix(_FUNCTION_TYPE) for one in lines if one.startswith(_FUNCTION_TYPE)), "")
        signature, _, _ = lines[0].partition(" - ")
        return FunctionDescription(
            name,
            signature=signature.removeprefix(f"{database}.") if "(" in signature else "",
            is_builtin=word,
            is_persistent={"BUILTIN": "true", "PERSISTENT": "true", "TEMPORARY": "false"}.get(word, ""),
            description="\n".join(lines),
        )

    async def _partitions(self, table: str) -> list[Partition]:
        return [read_partition(unescaped(cell(row[0]))) for row in await self._read(f"SHOW PARTITIONS {table}")]


def described(database: str, table: str, layout: Layout, *, tells_constraints: bool) -> TableDescription:
    """The table of a description in Hive's layout."""
    kind = table_kind(layout.details.get("Table Type", ""))
    format_name = "" if kind is TableKind.VIEW else file_format(layout.details, layout.parameters)
    return TableDescription(
        database,
        table,
        layout.all_columns(tells_constraints=tells_constraints and not kind.is_view),
        kind=kind,
        comment=layout.parameters.get("comment", ""),
        support_updates=not kind.is_view and rows_can_change(format_name, layout.parameters),
        location=known(layout.details.get("Location", "")) or "",
        owner=layout.details.get("Owner", ""),
        create_time=utc_text(layout.details.get("CreateTime", "")),
        format=format_name,
        foreign_keys=tuple(layout.foreign_keys),
        properties=tuple(TableProperty(name, value) for name, value in layout.parameters.items()),
        statistics=statistics(layout.parameters),
    )
