"""Metadata of Spark SQL."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from queryserver.domain.catalog import (
    ColumnStatistics,
    DatabaseDescription,
    FunctionDescription,
    TableColumn,
    TableDescription,
    TableKind,
    TableProperty,
    TableSummary,
)
from queryserver.domain.errors.statements import StatementRejected
from queryserver.engines.catalog_queries import Row
from queryserver.engines.hiveserver2.catalog import FamilyCatalog, told_statistics
from queryserver.engines.hiveserver2.catalog_formats import file_format, rows_can_change, table_kind
from queryserver.engines.hiveserver2.catalog_partitions import Partition, read_partition
from queryserver.engines.hiveserver2.catalog_quoting import qualified, quoted
from queryserver.engines.hiveserver2.catalog_text import cell, utc_text
from queryserver.engines.hiveserver2.errors import is_unknown_function

_PARTITIONS, _TRANSFORMS = "# Partition Information", "# Partitioning"
_DETAILS, _DEFAULTS = "# Detailed Table Information", "# Column Default Values"
_SIZE = re.compile(r"(\d+) bytes(?:, (\d+) rows)?")


@dataclass(slots=True)
class _Sections:
    """A description of Spark taken apart."""

    columns: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    partitions: set[str] = field(default_factory=set[str])
    details: dict[str, str] = field(default_factory=dict[str, str])
    defaults: dict[str, str] = field(default_factory=dict[str, str])

    def table_columns(self) -> tuple[TableColumn, ...]:
        return tuple(
            TableColumn(name, kind, comment, default=self.defaults.get(name), partition_key=name in self.partitions)
            for name, kind, comment in self.columns
        )


class SparkCatalog(FamilyCatalog):
    """A Catalog."""

    groups_maps = False

    async def _tables(self, database: str) -> list[TableSummary]:
        """Temporary views, which are of no database, are left out. Comments of all tables would be dear."""
        rows = await self._read(f"SHOW TABLES IN {quoted(database)}")
        views = {cell(row[1]) for row in await self._read(f"SHOW VIEWS IN {quoted(database)}") if not row[2]}
        names = [cell(row[1]) for row in rows if not row[2]]
        return [TableSummary(name, TableKind.VIEW if name in views else TableKind.MANAGED) for name in names]

    def _described_database(self, name: str, rows: Sequence[Row]) -> DatabaseDescription:
        told = {cell(row[0]): cell(row[1]) for row in rows}
        return DatabaseDescription(
            name,
            comment=told.get("Comment", ""),
            location=told.get("Location", ""),
            owner_name=told.get("Owner", ""),
            parameters=told.get("Properties", ""),
        )

    async def _described_table(self, database: str, table: str, rows: Sequence[Row]) -> TableDescription:
        sections = _read_sections(rows)
        details = sections.details
        properties = await self._properties(database, table)
        kind = table_kind(details.get("Type", ""))
        format_name = "" if kind.is_view else _format(details, properties)
        return TableDescription(
            database,
            table,
            sections.table_columns(),
            kind=kind,
            comment=details.get("Comment", ""),
            support_updates=not kind.is_view and rows_can_change(format_name, {}),
            location=details.get("Location", ""),
            owner=details.get("Owner", ""),
            create_time=utc_text(details.get("Created Time", "")),
            format=format_name,
            properties=tuple(TableProperty(name, value) for name, value in properties.items()),
            statistics=_statistics(details.get("Statistics", "")),
        )

    async def _properties(self, database: str, table: str) -> dict[str, str]:
        """Asked for by themselves: DESCRIBE runs them together so that they cannot be taken apart."""
        rows = await self._read(f"SHOW TBLPROPERTIES {qualified(database, table)}")
        return {str(row[0]): str(row[1]) for row in rows if len(row) > 1}

    async def _column_statistics(self, table: TableDescription, column: str) -> ColumnStatistics:
        rows = await self._read(f"DESCRIBE EXTENDED {qualified(table.database, table.name)} {quoted(column)}")
        return told_statistics({cell(row[0]): cell(row[1]) for row in rows})

    async def _builtin_functions(self) -> list[FunctionDescription]:
        names = [cell(row[0]) for row in await self._read("SHOW SYSTEM FUNCTIONS")]
        return [FunctionDescription(name, is_builtin="BUILTIN", is_persistent="true") for name in dict.fromkeys(names)]

    async def _own_functions(self, database: str) -> list[FunctionDescription]:
        rows = await self._read(f"SHOW USER FUNCTIONS IN {quoted(database)}")
        names = [cell(row[0]).rpartition(".")[2] for row in rows if "." in cell(row[0])]
        found = [await self._function(database, name) for name in names]
        return [function for function in found if function is not None]

    async def _function(self, database: str | None, name: str) -> FunctionDescription | None:
        names = (name,) if database is None else (database, name)
        try:
            rows = await self._read(f"DESCRIBE FUNCTION EXTENDED {qualified(*names)}")
        except StatementRejected as error:
            if is_unknown_function(error):
                return None
            raise
        return _described_function(database, name, [str(row[0]) for row in rows])

    async def _partitions(self, table: str) -> list[Partition]:
        return [read_partition(cell(row[0])) for row in await self._read(f"SHOW PARTITIONS {table}")]


def _read_sections(rows: Sequence[Row]) -> _Sections:
    found, section = _Sections(), ""
    for row in rows:
        first, second, third = ("" if one is None else str(one) for one in row[:3])
        if first.startswith("# ") and not second:
            section = first
        elif not first and not second:
            section = "#"
        elif section == "":
            found.columns.append((first, second, third))
        elif section == _PARTITIONS and first != "# col_name":
            found.partitions.add(first)
        elif section == _TRANSFORMS:
            found.partitions.add(second)
        elif section == _DETAILS:
            found.details.setdefault(first, second)
        elif section == _DEFAULTS:
            found.defaults[first] = third
    return found


def _format(details: Mapping[str, str], properties: Mapping[str, str]) -> str:
    """The provider, or what Hive's input format tells for tables of the provider `hive`."""
    provider = details.get("Provider", "").lower()
    return provider if provider not in {"", "hive"} else file_format(details, properties)


def _statistics(text: str) -> dict[str, str]:
    """`658 bytes, 2 rows`; rows are known after ANALYZE only."""
    match = _SIZE.match(text)
    if match is None:
        return {}
    size, rows = match.groups()
    return {"totalSize": size} if rows is None else {"numRows": rows, "totalSize": size}


def _described_function(database: str | None, name: str, lines: Sequence[str]) -> FunctionDescription:
    text = "\n".join(lines)
    usage = text.partition("Usage:")[2].partition("Extended Usage:")[0]
    # One `name(arguments) - what it does` begins each overload.
    signatures = re.findall(rf"^\s*({re.escape(name)}\(.*?\)) - ", usage, re.MULTILINE | re.IGNORECASE)
    builtin = database is None and "Function: spark_catalog." not in text
    return FunctionDescription(
        name,
        signature="\n".join(dict.fromkeys(signatures)),
        is_builtin="BUILTIN" if builtin else "",
        is_persistent="true",
        description=text.strip(),
    )
