"""What ANALYZE left in pg_stats about a column. The values there are a sample's: near to the truth, not exact."""

from contextlib import suppress

from queryserver.domain.catalog import ColumnStatistics, TableDescription
from queryserver.domain.errors.statements import StatementRejected
from queryserver.domain.sql_types import parse_type
from queryserver.engines.catalog_queries import read_rows
from queryserver.engines.postgresql import catalog_sql as sql
from queryserver.interfaces.engine import EngineSession


async def read_statistics(session: EngineSession, table: TableDescription, column: str) -> ColumnStatistics:
    """What the server knows of the column; the role sees those that it may read."""
    declared = table.column(column)
    if table.kind.is_view and "numRows" not in table.statistics:
        return ColumnStatistics(message="A view has no statistics.")
    of_partitions = any(one.partition_key for one in table.columns)
    query = sql.statistics(table.database, table.name, column, of_partitions=of_partitions)
    found = await read_rows(session, query)
    if declared is None or not found:
        return ColumnStatistics(message="There are no statistics; ANALYZE makes them.")
    null_part, distinct, width, common, parts = found[0]
    rows = int(table.statistics["numRows"]) if "numRows" in table.statistics else None
    least, most = None, None
    if parse_type(declared.type).item is None:
        least, most = await _extremes(session, table, column, declared.type, of_partitions=of_partitions)
    counts = _counts(common, parts, rows) if declared.type == "boolean" else {}
    return ColumnStatistics(
        min=least,
        max=most,
        num_nulls=None if rows is None else round(null_part * rows),
        distinct_count=_distinct(distinct, rows),
        avg_col_len=float(width),
        num_trues=counts.get("t"),
        num_falses=counts.get("f"),
    )


async def _extremes(
    session: EngineSession, table: TableDescription, column: str, type_name: str, *, of_partitions: bool
) -> tuple[str | None, str | None]:
    query = sql.extremes(table.database, table.name, column, type_name, of_partitions=of_partitions)
    with suppress(StatementRejected):  # a type whose values have no order, or whose name is not visible any more
        ((least, most),) = await read_rows(session, query)
        return least, most
    return None, None


def _distinct(distinct: float, rows: int | None) -> int | None:
    """Above 0 a count, below 0 a part of the rows, 0 unknown (manual 53.27)."""
    if distinct > 0:
        return round(distinct)
    return None if not distinct or rows is None else round(-distinct * rows)


def _counts(common: str | None, parts: str | None, rows: int | None) -> dict[str, int]:
    """How often true and false stand in a boolean column, from `{t,f}` and `{0.75,0.25}`."""
    if common is None or parts is None or rows is None:
        return {}
    values, shares = common.strip("{}").split(","), parts.strip("{}").split(",")
    counted = {value: round(float(share) * rows) for value, share in zip(values, shares, strict=True)}
    return {"t": 0, "f": 0} | counted
