"""Statements that change metadata. Each returns a summary with Impala's wording."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import duckdb
from tests.engines.scripted_hs2.sql_text import for_duckdb, name_of, text_of
from tests.engines.scripted_hs2.warehouse import StatementRefusal, Table

if TYPE_CHECKING:
    from tests.engines.scripted_hs2.statements import Context

QUERY_OPTIONS: Mapping[str, str] = {
    "MEM_LIMIT": "0",
    "REQUEST_POOL": "",
    "QUERY_TIMEOUT_S": "0",
    "IDLE_SESSION_TIMEOUT": "0",
    "EXEC_TIME_LIMIT_S": "0",
    "NUM_NODES": "0",
    "BATCH_SIZE": "0",
    "CLIENT_IDENTIFIER": "",
    "EXPLAIN_LEVEL": "1",
    "SCAN_BYTES_LIMIT": "0",
}
_TYPES = {
    "INTEGER": "int", "BIGINT": "bigint", "SMALLINT": "smallint", "TINYINT": "tinyint", "VARCHAR": "string",
    "DOUBLE": "double", "FLOAT": "float", "BOOLEAN": "boolean", "DATE": "date", "TIMESTAMP": "timestamp",
    "BLOB": "binary", '"NULL"': "boolean", "HUGEINT": "decimal(38,0)",
}  # fmt: skip
_COLUMN = re.compile(
    r"\s*(`[^`]*`|\w+)\s+([\w ]+?(?:\([\d,\s]*\))?)(?:\s+COMMENT\s+('(?:\\.|[^'])*'))?\s*", re.IGNORECASE
)
_COMMAS = re.compile(r",(?![^()]*\))(?=(?:[^']*'[^']*')*[^']*$)")
_NAME = re.compile(r"\w+", re.ASCII)


def impala_type(duckdb_type: str) -> str:
    """Return Impala's name for a DuckDB type."""
    return _TYPES.get(duckdb_type, duckdb_type.lower().replace(" ", ""))


def create_database(context: "Context", match: re.Match[str]) -> str:
    context.warehouse.create_database(name_of(match.group(1)), text_of(match.group(2) or "''"))
    return "Database has been created."


def drop_database(context: "Context", match: re.Match[str]) -> str:
    context.warehouse.drop_database(name_of(match.group(1)))
    return "Database has been dropped."


def comment_database(context: "Context", match: re.Match[str]) -> str:
    context.warehouse.database(name_of(match.group(1))).comment = text_of(match.group(2))
    return "Updated database."


def create_table(context: "Context", match: re.Match[str]) -> str:
    external, database, name, declared, comment, stored = match.groups()
    database, name = _place(context, database, name)
    columns = list[tuple[str, str, str]]()
    for part in _COMMAS.split(declared):
        column = _COLUMN.fullmatch(part)
        if column is None:
            raise StatementRefusal(f"ParseException: Syntax error in line 1:\n{part}")
        kind = column.group(2).lower().replace(" ", "")
        columns.append((name_of(column.group(1)), kind, text_of(column.group(3) or "''")))
    if not _NAME.fullmatch(name):
        raise StatementRefusal(f"AnalysisException: Invalid table/view name: {name}")
    if name in context.warehouse.database(database).tables:
        raise StatementRefusal(f"AnalysisException: Table already exists: {database}.{name}")
    cells = ", ".join(f'"{column}" {kind}' for column, kind, _ in columns)
    context.warehouse.rows.cursor().execute(f'CREATE TABLE "{database}"."{name}" ({cells})')
    context.warehouse.database(database).tables[name] = Table(
        columns, text_of(comment or "''"), (stored or "text").upper(), is_external=bool(external)
    )
    return "Table has been created."


def create_view(context: "Context", match: re.Match[str]) -> str:
    database, name = _place(context, match.group(1), match.group(2))
    cursor = context.warehouse.rows.cursor()
    try:
        cursor.execute(f'CREATE VIEW "{database}"."{name}" AS {for_duckdb(match.group(4))}')
    except duckdb.Error as error:
        raise StatementRefusal("AnalysisException: Could not resolve table reference of the view") from error
    described = cursor.execute(f'DESCRIBE "{database}"."{name}"').fetchall()
    columns = [(column, impala_type(kind), "") for column, kind, *_ in described]
    comment = text_of(match.group(3) or "''")
    context.warehouse.database(database).tables[name] = Table(columns, comment, is_view=True)
    return "View has been created."


def drop_table(context: "Context", match: re.Match[str]) -> str:
    word, database, name = match.groups()
    database, name = _place(context, database, name)
    table = context.warehouse.table(database, name)
    if table.is_view != (word.lower() == "view"):
        raise StatementRefusal(f"AnalysisException: DROP {word.upper()} not allowed on this object: {database}.{name}")
    context.warehouse.rows.cursor().execute(f'DROP {word} "{database}"."{name}"')
    del context.warehouse.databases[database].tables[name]
    return f"{word.capitalize()} has been dropped."


def compute_statistics(context: "Context", match: re.Match[str]) -> str:
    database, name = _place(context, match.group(1), match.group(2))
    table = context.warehouse.table(database, name)
    if table.is_view:
        raise StatementRefusal(f"AnalysisException: COMPUTE STATS not supported for view: {database}.{name}")
    wanted = (
        [name_of(one) for one in match.group(3).split(",")] if match.group(3) else [one[0] for one in table.columns]
    )
    rows = context.warehouse.rows.cursor()
    source = f'"{database}"."{name}"'
    for column in wanted:
        if column not in {one[0] for one in table.columns}:
            raise StatementRefusal(f"AnalysisException: {column} not found in table: {name}")
        counts = rows.execute(
            f'SELECT count(DISTINCT "{column}"), count(*) - count("{column}") FROM {source}'
        ).fetchone()
        table.column_statistics[column] = counts or (0, 0)
    (count,) = rows.execute(f"SELECT count(*) FROM {source}").fetchone() or (0,)
    table.properties |= {"numRows": str(count)}
    return f"Updated 1 partition(s) and {len(wanted)} column(s)."


def _place(context: "Context", database: str | None, name: str) -> tuple[str, str]:
    found = name_of(database) if database else context.database
    context.warehouse.database(found)
    return found, name_of(name)
