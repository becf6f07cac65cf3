"""Queries on information_schema. Only columns that cost no opening of every table are read for lists."""

import json
from base64 import b64decode
from contextlib import suppress
from typing import Any

from queryserver.engines.catalog_queries import qualified, read_rows
from queryserver.engines.protocol import ColumnStatistics, EngineSession, TableDescription
from queryserver.errors.statements import StatementRejected


def quoted(*parts: str) -> str:
    """A name between backquotes, with its database where two parts are given."""
    return qualified(*parts, mark="`")


def literal(text: str) -> str:
    """A string constant that reads the same in every `sql_mode`: hexadecimal."""
    return f"_utf8mb4 X'{text.encode().hex()}'" if text else "''"


DATABASES = "SELECT schema_name FROM information_schema.schemata"

HAS_DATABASE_COMMENTS = """
SELECT 1 FROM information_schema.columns
 WHERE table_schema = 'information_schema' AND table_name = 'SCHEMATA' AND column_name = 'SCHEMA_COMMENT'"""

MARIADB_FUNCTIONS = "SELECT function, '' FROM information_schema.sql_functions"

EXPLAINED_MARIADB_FUNCTIONS = """
SELECT f.function, coalesce(t.description, '')
  FROM information_schema.sql_functions f LEFT JOIN mysql.help_topic t ON t.name = f.function"""

EXPLAINED_MYSQL_FUNCTIONS = """
SELECT t.name, t.description
  FROM mysql.help_topic t JOIN mysql.help_category c ON c.help_category_id = t.help_category_id
 WHERE c.name LIKE '%Functions%'"""


def database_comment(database: str) -> str:
    """One row at most."""
    return f"SELECT schema_comment FROM information_schema.schemata WHERE schema_name = {literal(database)}"


def tables(database: str) -> str:
    """Name, type, comment."""
    return f"""
SELECT table_name, table_type, table_comment FROM information_schema.tables
 WHERE table_schema = {literal(database)} AND table_type <> 'SEQUENCE'"""


def table_name(database: str, table: str) -> str:
    """Names that the server takes for that one."""
    return f"""
SELECT table_name FROM information_schema.tables
 WHERE table_schema = {literal(database)} AND table_name = {literal(table)}"""


def table_names(database: str) -> str:
    """All names of tables and views."""
    return f"SELECT table_name FROM information_schema.tables WHERE table_schema = {literal(database)}"


def table(database: str, table: str) -> str:
    """Type, comment, rows, bytes, time of creation (seconds since 1970), then the properties."""
    return f"""
SELECT table_type, table_comment, table_rows, data_length + index_length,
       CAST(UNIX_TIMESTAMP(create_time) AS SIGNED),
       engine, row_format, table_collation, auto_increment, create_options
  FROM information_schema.tables
 WHERE {_of(database, table)}"""


def columns(database: str, table: str) -> str:
    """Name, type, comment, nullable, default, extra, key; in table order."""
    return f"""
SELECT column_name, column_type, column_comment, is_nullable, column_default, extra, column_key
  FROM information_schema.columns
 WHERE {_of(database, table)}
 ORDER BY ordinal_position"""


def partition_expressions(database: str, table: str) -> str:
    """The expressions that rows are told apart by; none without partitions."""
    return f"""
SELECT DISTINCT partition_expression FROM information_schema.partitions
 WHERE {_of(database, table)} AND partition_expression IS NOT NULL"""


def foreign_keys(database: str, table: str) -> str:
    """Column, and database, table and column that it refers to."""
    return f"""
SELECT column_name, referenced_table_schema, referenced_table_name, referenced_column_name
  FROM information_schema.key_column_usage
 WHERE {_of(database, table)} AND referenced_table_name IS NOT NULL
 ORDER BY constraint_name, ordinal_position"""


def functions(database: str) -> str:
    """Specific name, name, type of the result, comment."""
    return f"""
SELECT specific_name, routine_name, dtd_identifier, routine_comment
  FROM information_schema.routines
 WHERE routine_type = 'FUNCTION' AND routine_schema = {literal(database)}
 ORDER BY routine_name"""


def parameters(database: str) -> str:
    """Specific name of the function, name and type of the parameter; in order."""
    return f"""
SELECT specific_name, parameter_name, dtd_identifier
  FROM information_schema.parameters
 WHERE specific_schema = {literal(database)} AND ordinal_position > 0
 ORDER BY specific_name, ordinal_position"""


def mariadb_statistics(database: str, table: str, column: str) -> str:
    """Smallest, largest, part of NULLs, average bytes, rows per distinct value."""
    return f"""
SELECT min_value, max_value, nulls_ratio, avg_length, avg_frequency
  FROM mysql.column_stats
 WHERE db_name = {literal(database)} AND table_name = {literal(table)} AND column_name = {literal(column)}"""


def mysql_histogram(database: str, table: str, column: str) -> str:
    """The histogram as JSON text."""
    return f"""
SELECT CAST(histogram AS CHAR)
  FROM information_schema.column_statistics
 WHERE schema_name = {literal(database)} AND table_name = {literal(table)} AND column_name = {literal(column)}"""


def cardinality(database: str, table: str, column: str) -> str:
    """Distinct values of a column that an index begins with."""
    return f"""
SELECT max(cardinality) FROM information_schema.statistics
 WHERE {_of(database, table)} AND column_name = {literal(column)} AND seq_in_index = 1"""


def _of(database: str, table: str) -> str:
    return f"table_schema = {literal(database)} AND table_name = {literal(table)}"


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
        found = await read_rows(self._session, mariadb_statistics(table.database, table.name, column))
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
        found = await read_rows(self._session, mysql_histogram(table.database, table.name, column))
        return read_histogram(found[0][0], rows) if found and found[0][0] else None

    async def _of_indexes(self, table: TableDescription, column: str) -> ColumnStatistics:
        ((distinct,),) = await read_rows(self._session, cardinality(table.database, table.name, column))
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
