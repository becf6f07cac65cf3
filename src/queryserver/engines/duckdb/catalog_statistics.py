"""What DuckDB keeps with the segments of a column: bounds and lengths, read without the values themselves.

The bounds hold for deleted rows too. How many NULLs or distinct values there are is not kept.
"""

from contextlib import suppress

from queryserver.domain.catalog import ColumnStatistics, TableDescription
from queryserver.domain.errors.statements import StatementRejected
from queryserver.domain.sql_types import parse_type
from queryserver.engines.catalog_queries import Row, read_rows
from queryserver.engines.quoting import literal
from queryserver.interfaces.engine import EngineSession

_BOUNDED = frozenset({
    "boolean", "tinyint", "smallint", "integer", "bigint", "hugeint", "utinyint", "usmallint", "uinteger", "ubigint",
    "uhugeint", "float", "double", "decimal", "date", "time", "timestamp", "timestamp_s",
    "timestamp_ms", "timestamp_ns",
})  # fmt: skip
"""Bounds of texts are cut to a few bytes."""


async def read_statistics(
    session: EngineSession, full_name: str, table: TableDescription, column: str
) -> ColumnStatistics:
    """The statistics of a column of the quoted table `full_name`."""
    declared = table.column(column)
    if declared is None or table.kind.is_view:
        return ColumnStatistics(message="A view has no statistics.")
    kind = parse_type(declared.type)
    is_bounded = kind.base in _BOUNDED and kind.item is None
    bounds = ", ".join(
        f"CAST({name}(CAST(stats.{name} AS {declared.type})) AS VARCHAR)" if is_bounded else "NULL"
        for name in ("min", "max")
    )
    query = (
        f"SELECT {bounds}, bool_or(CAST(stats.has_null AS BOOLEAN)), max(CAST(stats.max_string_length AS BIGINT)),"
        f" count(*) FROM pragma_storage_info({literal(full_name)})"
        f" WHERE column_name = {literal(declared.name)} AND segment_type = {literal(declared.type)}"
    )
    found: list[Row] = []
    with suppress(StatementRejected):  # an empty segment has no bounds to look at
        found = await read_rows(session, query)
    if not found or not found[0][4]:
        return ColumnStatistics(message="There are no statistics of this column.")
    least, most, has_null, length, _ = found[0]
    return ColumnStatistics(min=least, max=most, num_nulls=None if has_null else 0, max_col_len=length)
