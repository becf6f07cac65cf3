"""Statistics of columns: MySQL's histograms, MariaDB's tables of statistics, and the indexes of both."""

import json
from base64 import b64decode
from contextlib import suppress
from typing import Any

from queryserver.domain.catalog import ColumnStatistics, TableDescription
from queryserver.domain.errors.statements import StatementRejected
from queryserver.engines.catalog_queries import read_rows
from queryserver.engines.mysql import catalog_sql as sql
from queryserver.interfaces.engine import EngineSession

_NONE = ColumnStatistics(message="There are no statistics of this column; ANALYZE TABLE makes them.")


class StatisticsReader:
    """Reads what the server has; a login that may not read a source goes without it."""

    def __init__(self, session: EngineSession, *, mariadb: bool) -> None:
        self._session = session
        self._mariadb = mariadb

    async def read(self, table: TableDescription, column: str) -> ColumnStatistics:
        """The statistics of a column."""
        if table.kind.is_view:
            return ColumnStatistics(message="A view has no statistics.")
        rows = int(table.statistics["numRows"]) if "numRows" in table.statistics else None
        read = self._of_mariadb if self._mariadb else self._of_mysql
        found: ColumnStatistics | None = None
        with suppress(StatementRejected):
            found = await read(table, column, rows)
        return found or await self._of_indexes(table, column)

    async def _of_mariadb(self, table: TableDescription, column: str, rows: int | None) -> ColumnStatistics | None:
        found = await read_rows(self._session, sql.mariadb_statistics(table.database, table.name, column))
        if not found:
            return None
        least, most, nulls, length, frequency = found[0]
        filled = None if rows is None or nulls is None else rows * (1 - float(nulls))
        return ColumnStatistics(
            min=_text(least),
            max=_text(most),
            num_nulls=None if rows is None or nulls is None else round(rows * float(nulls)),
            distinct_count=None if filled is None or not frequency else round(filled / float(frequency)),
            avg_col_len=None if length is None else float(length),
        )

    async def _of_mysql(self, table: TableDescription, column: str, rows: int | None) -> ColumnStatistics | None:
        found = await read_rows(self._session, sql.mysql_histogram(table.database, table.name, column))
        return read_histogram(found[0][0], rows) if found and found[0][0] else None

    async def _of_indexes(self, table: TableDescription, column: str) -> ColumnStatistics:
        ((distinct,),) = await read_rows(self._session, sql.cardinality(table.database, table.name, column))
        return _NONE if distinct is None else ColumnStatistics(distinct_count=int(distinct))


def read_histogram(text: str, rows: int | None) -> ColumnStatistics:
    """MySQL's JSON: buckets `[value, share up to it]`, or `[lower, upper, share up to it, distinct values]`."""
    histogram: dict[str, Any] = json.loads(text)
    buckets: list[list[Any]] = histogram.get("buckets") or []
    is_singleton = histogram.get("histogram-type") == "singleton"
    nulls = histogram.get("null-values")
    return ColumnStatistics(
        min=_bound(buckets[0][0]) if buckets else None,
        max=_bound(buckets[-1][0 if is_singleton else 1]) if buckets else None,
        num_nulls=None if rows is None or nulls is None else round(rows * float(nulls)),
        distinct_count=len(buckets) if is_singleton else sum(int(bucket[3]) for bucket in buckets),
    )


def _bound(value: object) -> str:
    """Texts stand there as `base64:type254:…`."""
    text = str(value)
    return b64decode(text.rpartition(":")[2]).decode(errors="replace") if text.startswith("base64:") else text


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return None if value is None else str(value)
