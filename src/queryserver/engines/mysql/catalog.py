"""Reads the metadata of a MySQL or MariaDB server from information_schema, which contains only visible objects.

Whether names may differ only in case depends on the server's settings. An exact match takes precedence over a unique
case-insensitive match. Queries for lists read only columns for which the server need not open every table.
"""

import json
import re
from base64 import b64decode
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from queryserver import errors
from queryserver.engines import catalog_queries as queries
from queryserver.engines import protocol
from queryserver.sql.literals import mysql_text as literal

_VIEWS = frozenset({"VIEW", "SYSTEM VIEW"})
_NO_UPDATES = frozenset({"ARCHIVE", "PERFORMANCE_SCHEMA"})
_PROPERTIES = ("engine", "row_format", "table_collation", "auto_increment", "create_options")

_HAS_DATABASE_COMMENTS = """
SELECT 1 FROM information_schema.columns
 WHERE table_schema = 'information_schema' AND table_name = 'SCHEMATA' AND column_name = 'SCHEMA_COMMENT'"""

_MARIADB_FUNCTIONS = "SELECT function, '' FROM information_schema.sql_functions"
_EXPLAINED_MARIADB_FUNCTIONS = """
SELECT f.function, coalesce(t.description, '')
  FROM information_schema.sql_functions f LEFT JOIN mysql.help_topic t ON t.name = f.function"""
_EXPLAINED_MYSQL_FUNCTIONS = """
SELECT t.name, t.description
  FROM mysql.help_topic t JOIN mysql.help_category c ON c.help_category_id = t.help_category_id
 WHERE c.name LIKE '%Functions%'"""
_NAME = re.compile(r"\w+")
_SYNTAX_LINES = 12


class MysqlCatalog(queries.SessionCatalog):
    nested_refusal = "MySQL has no nested columns."
    mark = "`"

    def __init__(self, session: protocol.EngineSession, *, mariadb: bool) -> None:
        super().__init__(session)
        self._mariadb = mariadb

    async def databases(self) -> Sequence[str]:
        return [name for (name,) in await self._rows("SELECT schema_name FROM information_schema.schemata")]

    async def database(self, database: str) -> protocol.DatabaseDescription:
        """Describe a database. Only MariaDB 10.5 and later support database comments."""
        name = await self._database(database)
        comment = ""
        if await self._rows(_HAS_DATABASE_COMMENTS):
            query = f"SELECT schema_comment FROM information_schema.schemata WHERE schema_name = {literal(name)}"
            comment = next((text or "" for (text,) in await self._rows(query)), "")
        return protocol.DatabaseDescription(name, comment)

    async def tables(self, database: str) -> Sequence[protocol.TableSummary]:
        rows = await self._rows(
            "SELECT table_name, table_type, table_comment FROM information_schema.tables"
            f" WHERE table_schema = {literal(await self._database(database))} AND table_type <> 'SEQUENCE'"
        )
        return await queries.build_summaries(
            rows,
            lambda row: protocol.TableSummary(
                row[0], protocol.TableKind.of(is_view=row[1] in _VIEWS), _comment(row[1], row[2])
            ),
        )

    async def table(self, database: str, table: str) -> protocol.TableDescription:
        schema = await self._database(database)
        name = await self._table(schema, table)
        found = await self._rows(f"""
SELECT table_type, table_comment, table_rows, data_length + index_length,
       CAST(UNIX_TIMESTAMP(create_time) AS SIGNED), {", ".join(_PROPERTIES)}
  FROM information_schema.tables
 WHERE {_table_condition(schema, name)}""")
        if not found:
            raise errors.TableNotFound(schema, table)
        kind, comment, rows, size, created_s, *properties = found[0]
        is_view = kind in _VIEWS
        known = {} if is_view else {"numRows": rows, "totalSize": size}
        keys = await self._rows(f"""
SELECT column_name, referenced_table_schema, referenced_table_name, referenced_column_name
  FROM information_schema.key_column_usage
 WHERE {_table_condition(schema, name)} AND referenced_table_name IS NOT NULL
 ORDER BY constraint_name, ordinal_position""")
        created = None if created_s is None else datetime.fromtimestamp(created_s, UTC)
        return protocol.TableDescription(
            database=schema,
            name=name,
            columns=await self._columns(schema, name, is_view=is_view),
            kind=protocol.TableKind.of(is_view=is_view),
            comment=_comment(kind, comment),
            support_updates=not is_view and str(properties[0]).upper() not in _NO_UPDATES,
            create_time="" if created is None else created.strftime("%Y-%m-%dT%H:%M:%SZ"),
            foreign_keys=tuple(
                protocol.ForeignKey(own, f"{other}.{table}.{column}") for own, other, table, column in keys
            ),
            properties=tuple(
                protocol.TableProperty(key, str(value))
                for key, value in zip(_PROPERTIES, properties, strict=True)
                if value not in (None, "")
            ),
            statistics={key: str(value) for key, value in known.items() if value is not None},
        )

    async def column_statistics(self, table: protocol.TableDescription, column: str) -> protocol.ColumnStatistics:
        """Return statistics from histograms, or from indexes if there is no histogram or the login may not read it."""
        if table.kind.is_view:
            return protocol.ColumnStatistics(message="Views have no statistics.")
        rows = int(table.statistics["numRows"]) if "numRows" in table.statistics else None
        with queries.metadata_errors():
            with suppress(errors.StatementRejected):
                read = self._statistics_of_mariadb if self._mariadb else self._statistics_of_mysql
                if (found := await read(table, column, rows)) is not None:
                    return found
            ((distinct,),) = await queries.read_rows(
                self._session,
                "SELECT max(cardinality) FROM information_schema.statistics"
                f" WHERE {_table_condition(table.database, table.name)}"
                f" AND column_name = {literal(column)} AND seq_in_index = 1",
            )
        if distinct is None:
            return protocol.ColumnStatistics(
                message="This column has no statistics. Run ANALYZE TABLE to collect them."
            )
        return protocol.ColumnStatistics(distinct_count=int(distinct))

    async def functions(self, database: str | None) -> Sequence[protocol.FunctionDescription]:
        if database is not None:
            return await self._stored_functions(await self._database(database))
        current = await self._current_database()
        own = await self._stored_functions(current) if current else []
        names = {one.name.casefold() for one in own}
        return [*own, *(one for one in await self._builtin_functions() if one.name.casefold() not in names)]

    async def function(self, database: str | None, name: str) -> protocol.FunctionDescription | None:
        found = {one.name: one for one in await self.functions(database)}
        chosen = queries.match_name(name, found, queries.Folding.CASELESS)
        return None if chosen is None else found[chosen]

    def analyze_statement(self, table: protocol.TableDescription, column: str | None) -> str:
        """Return the ANALYZE statement, which differs between MySQL and MariaDB for a single column."""
        statement = f"ANALYZE TABLE {self._full_name(table)}"
        if column is None:
            return statement
        if self._mariadb:
            return f"{statement} PERSISTENT FOR COLUMNS ({queries.backquoted(column)}) INDEXES ()"
        return f"{statement} UPDATE HISTOGRAM ON {queries.backquoted(column)}"

    def _order(self, value: str, direction: str) -> str:
        """Sort NULLs last with an extra sort key, because MySQL has no NULLS LAST."""
        return f"{value} IS NULL, {value} {direction}"

    async def _current_database(self) -> str | None:
        ((name,),) = await self._rows("SELECT DATABASE()")
        return name

    async def _database(self, database: str) -> str:
        wanted = database or await self._current_database() or ""
        found = queries.match_name(wanted, await self.databases(), queries.Folding.CASELESS)
        if found is None:
            raise errors.database_not_found(database)
        return found

    async def _table(self, schema: str, table: str) -> str:
        """Return the table's name as spelled by the server. All names are read only if there is no exact match."""
        names = f"SELECT table_name FROM information_schema.tables WHERE table_schema = {literal(schema)}"
        # The comparison in Python is needed because the server may also match other spellings.
        if (table,) in await self._rows(f"{names} AND table_name = {literal(table)}"):
            return table
        found = queries.match_name(table, [name for (name,) in await self._rows(names)], queries.Folding.CASELESS)
        if found is None:
            raise errors.TableNotFound(schema, table)
        return found

    async def _columns(self, schema: str, table: str, *, is_view: bool) -> tuple[protocol.TableColumn, ...]:
        expressions = await self._rows(
            "SELECT DISTINCT partition_expression FROM information_schema.partitions"
            f" WHERE {_table_condition(schema, table)} AND partition_expression IS NOT NULL"
        )
        partition_keys = {part.strip().strip("`") for (expression,) in expressions for part in expression.split(",")}
        rows = await self._rows(f"""
SELECT column_name, column_type, column_comment, is_nullable, column_default, extra, column_key
  FROM information_schema.columns
 WHERE {_table_condition(schema, table)}
 ORDER BY ordinal_position""")
        return tuple(
            protocol.TableColumn(
                name=name,
                type=kind,
                comment=comment or "",
                nullable=nullable == "YES",
                # MariaDB returns an expression, which is `NULL` for a column without a default.
                default=None if self._mariadb and default == "NULL" else default,
                autoincrement=None if is_view else "auto_increment" in extra.lower(),
                primary_key=key == "PRI",
                partition_key=name in partition_keys,
            )
            for name, kind, comment, nullable, default, extra, key in rows
        )

    async def _statistics_of_mariadb(
        self, table: protocol.TableDescription, column: str, rows: int | None
    ) -> protocol.ColumnStatistics | None:
        found = await queries.read_rows(
            self._session,
            "SELECT min_value, max_value, nulls_ratio, avg_length, avg_frequency FROM mysql.column_stats"
            f" WHERE db_name = {literal(table.database)} AND table_name = {literal(table.name)}"
            f" AND column_name = {literal(column)}",
        )
        if not found:
            return None
        least, most, nulls, length, frequency = found[0]
        filled = None if rows is None or nulls is None else rows * (1 - float(nulls))
        return protocol.ColumnStatistics(
            min=_text(least),
            max=_text(most),
            num_nulls=None if rows is None or nulls is None else round(rows * float(nulls)),
            distinct_count=None if filled is None or not frequency else round(filled / float(frequency)),
            avg_col_len=None if length is None else float(length),
        )

    async def _statistics_of_mysql(
        self, table: protocol.TableDescription, column: str, rows: int | None
    ) -> protocol.ColumnStatistics | None:
        found = await queries.read_rows(
            self._session,
            "SELECT CAST(histogram AS CHAR) FROM information_schema.column_statistics"
            f" WHERE schema_name = {literal(table.database)} AND table_name = {literal(table.name)}"
            f" AND column_name = {literal(column)}",
        )
        return read_histogram(found[0][0], rows) if found and found[0][0] else None

    async def _stored_functions(self, database: str) -> Sequence[protocol.FunctionDescription]:
        parameters = await self._rows(f"""
SELECT specific_name, parameter_name, dtd_identifier
  FROM information_schema.parameters
 WHERE specific_schema = {literal(database)} AND ordinal_position > 0
 ORDER BY specific_name, ordinal_position""")
        arguments: dict[str, list[str]] = {}
        for function, name, kind in parameters:
            arguments.setdefault(function, []).append(f"{name} {kind}")
        functions = await self._rows(f"""
SELECT specific_name, routine_name, dtd_identifier, routine_comment
  FROM information_schema.routines
 WHERE routine_type = 'FUNCTION' AND routine_schema = {literal(database)}
 ORDER BY routine_name""")
        return [
            protocol.FunctionDescription(
                name=name,
                signature=f"{name}({', '.join(arguments.get(specific, []))})",
                return_type=result or "",
                is_persistent="true",
                description=comment or "",
            )
            for specific, name, result, comment in functions
        ]

    async def _builtin_functions(self) -> Sequence[protocol.FunctionDescription]:
        """Return the functions that MariaDB 10.6 and later or MySQL's help tables list.

        The list is empty if the login cannot read these sources.
        """
        sources = (_EXPLAINED_MARIADB_FUNCTIONS, _MARIADB_FUNCTIONS)
        for query in sources if self._mariadb else (_EXPLAINED_MYSQL_FUNCTIONS,):
            with suppress(errors.StatementRejected, errors.EngineForbidden):
                described = {name: text for name, text in await self._rows(query) if _NAME.fullmatch(name)}
                return [
                    protocol.FunctionDescription(name, _signature(name, text), is_builtin="BUILTIN", description=text)
                    for name, text in described.items()
                ]
        return []


def _table_condition(database: str, table: str) -> str:
    return f"table_schema = {literal(database)} AND table_name = {literal(table)}"


def _comment(table_type: str, comment: str | None) -> str:
    """Return a table's comment, omitting the word `VIEW` that servers return for views."""
    return "" if table_type in _VIEWS else comment or ""


def _signature(name: str, text: str) -> str:
    """Extract the signatures, such as `ABS(X)`, from a help text that separates them with commas or line breaks."""
    calls: list[str] = []
    syntax = text.partition("\nDescription")[0] if text.startswith("Syntax") else ""
    for line in syntax.splitlines()[:_SYNTAX_LINES]:
        *whole, last = line.strip().rstrip(",").split("), ")
        calls += [*(f"{part})" for part in whole), last]
    beginning = f"{name.upper()}("
    calls = [call for call in calls if call.upper().startswith(beginning) and call.endswith((")", "]"))]
    return "\n".join(dict.fromkeys(calls)) or f"{name}()"


def read_histogram(text: str, rows: int | None) -> protocol.ColumnStatistics:
    """Parse MySQL's JSON with buckets `[value, cumulative share]` or `[lower, upper, cumulative share, distinct]`."""
    histogram: dict[str, Any] = json.loads(text)
    buckets: list[list[Any]] = histogram.get("buckets") or []
    is_singleton = histogram.get("histogram-type") == "singleton"
    nulls = histogram.get("null-values")
    return protocol.ColumnStatistics(
        min=_bound(buckets[0][0]) if buckets else None,
        max=_bound(buckets[-1][0 if is_singleton else 1]) if buckets else None,
        num_nulls=None if rows is None or nulls is None else round(rows * float(nulls)),
        distinct_count=len(buckets) if is_singleton else sum(int(bucket[3]) for bucket in buckets),
    )


def _bound(value: object) -> str:
    """Convert a bound to text. The server stores strings as `base64:type254:…`."""
    text = str(value)
    return b64decode(text.rpartition(":")[2]).decode(errors="replace") if text.startswith("base64:") else text


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return None if value is None else str(value)
