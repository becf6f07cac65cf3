"""Metadata of a MySQL or MariaDB server, read from information_schema, which shows what the login may see.

Whether names differ by case alone is the server's setting: exactly that name comes first, then the only one alike.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

from queryserver.engines.catalog_queries import (
    Folding,
    Row,
    choose,
    metadata_errors,
    read_rows,
    sample_query,
    summaries,
)
from queryserver.engines.mysql import catalog_sql as sql
from queryserver.engines.mysql.catalog_sql import StatisticsReader, quoted
from queryserver.engines.protocol import (
    ColumnStatistics,
    DatabaseDescription,
    EngineSession,
    ForeignKey,
    FunctionDescription,
    SampleKind,
    TableColumn,
    TableDescription,
    TableKind,
    TableProperty,
    TableSummary,
)
from queryserver.errors.base import NotSupported
from queryserver.errors.statements import EngineForbidden, StatementRejected, TableNotFound, database_not_found

_NAME = re.compile(r"\w+")
_SYNTAX_LINES = 12


class FunctionReader:
    """Built-in functions are named by MariaDB since release 10.6, and by MySQL's help tables where they may be read."""

    def __init__(self, rows: Callable[[str], Awaitable[list[Row]]], *, mariadb: bool) -> None:
        self._rows = rows
        self._mariadb = mariadb

    async def stored(self, database: str) -> Sequence[FunctionDescription]:
        """The functions of a database."""
        arguments: dict[str, list[str]] = {}
        for function, name, kind in await self._rows(sql.parameters(database)):
            arguments.setdefault(function, []).append(f"{name} {kind}")
        return [
            FunctionDescription(
                name=name,
                signature=f"{name}({', '.join(arguments.get(specific, []))})",
                return_type=result or "",
                is_persistent="true",
                description=comment or "",
            )
            for specific, name, result, comment in await self._rows(sql.functions(database))
        ]

    async def builtin(self) -> Sequence[FunctionDescription]:
        """The server's own functions, explained where the help tables may be read; none where it tells none."""
        sources = (sql.EXPLAINED_MARIADB_FUNCTIONS, sql.MARIADB_FUNCTIONS)
        for query in sources if self._mariadb else (sql.EXPLAINED_MYSQL_FUNCTIONS,):
            try:
                rows = await self._rows(query)
            except (StatementRejected, EngineForbidden):
                continue
            described = {name: text for name, text in rows if _NAME.fullmatch(name)}
            return [
                FunctionDescription(name, _signature(name, text), is_builtin="BUILTIN", description=text)
                for name, text in described.items()
            ]
        return []


def _signature(name: str, text: str) -> str:
    """The calls in the syntax that the help begins with: `ABS(X)`, several apart by commas or on lines of their own."""
    calls: list[str] = []
    syntax = text.partition("\nDescription")[0] if text.startswith("Syntax") else ""
    for line in syntax.splitlines()[:_SYNTAX_LINES]:
        *whole, last = line.strip().rstrip(",").split("), ")
        calls += [call for call in (*(f"{part})" for part in whole), last) if _is_call(name, call)]
    return "\n".join(dict.fromkeys(calls)) or f"{name}()"


def _is_call(name: str, text: str) -> bool:
    return text.upper().startswith(f"{name.upper()}(") and text.endswith((")", "]"))


_VIEWS = frozenset({"VIEW", "SYSTEM VIEW"})
_NO_UPDATES = frozenset({"ARCHIVE", "PERFORMANCE_SCHEMA"})
_PROPERTIES = ("engine", "row_format", "table_collation", "auto_increment", "create_options")


async def is_mariadb(session: EngineSession) -> bool:
    """The two servers keep statistics differently."""
    ((version,),) = await read_rows(session, "SELECT VERSION()")
    return "mariadb" in str(version).lower()


class MysqlCatalog:
    """A Catalog."""

    def __init__(self, session: EngineSession, *, mariadb: bool) -> None:
        self._session = session
        self._mariadb = mariadb

    async def databases(self) -> Sequence[str]:
        return [name for (name,) in await self._rows(sql.DATABASES)]

    async def database(self, database: str) -> DatabaseDescription:
        """See the Protocol. MariaDB keeps comments since release 10.5."""
        name = await self._database(database)
        rows = await self._rows(sql.database_comment(name)) if await self._rows(sql.HAS_DATABASE_COMMENTS) else []
        return DatabaseDescription(name, rows[0][0] or "" if rows else "")

    async def tables(self, database: str) -> Sequence[TableSummary]:
        rows = await self._rows(sql.tables(await self._database(database)))
        return await summaries(rows, lambda row: TableSummary(row[0], _kind(row[1]), _comment(row[1], row[2])))

    async def table(self, database: str, table: str) -> TableDescription:
        schema = await self._database(database)
        name = await self._table(schema, table)
        found = await self._rows(sql.table(schema, name))
        if not found:
            raise TableNotFound(schema, table)
        kind, comment, rows, size, created, *properties = found[0]
        is_view = kind in _VIEWS
        known = {} if is_view else {"numRows": rows, "totalSize": size}
        return TableDescription(
            database=schema,
            name=name,
            columns=await self._columns(schema, name, is_view=is_view),
            kind=_kind(kind),
            comment=_comment(kind, comment),
            support_updates=not is_view and str(properties[0]).upper() not in _NO_UPDATES,
            create_time=_utc(created),
            foreign_keys=tuple(
                ForeignKey(own, f"{other_schema}.{other}.{column}")
                for own, other_schema, other, column in await self._rows(sql.foreign_keys(schema, name))
            ),
            properties=tuple(
                TableProperty(key, str(value))
                for key, value in zip(_PROPERTIES, properties, strict=True)
                if value not in (None, "")
            ),
            statistics={key: str(value) for key, value in known.items() if value is not None},
        )

    async def column_statistics(self, table: TableDescription, column: str) -> ColumnStatistics:
        with metadata_errors():
            return await StatisticsReader(self._session, mariadb=self._mariadb).read(table, column)

    async def functions(self, database: str | None) -> Sequence[FunctionDescription]:
        reader = FunctionReader(self._rows, mariadb=self._mariadb)
        if database is not None:
            return await reader.stored(await self._database(database))
        current = await self._current_database()
        own = await reader.stored(current) if current else []
        names = {one.name.casefold() for one in own}
        return [*own, *(one for one in await reader.builtin() if one.name.casefold() not in names)]

    async def function(self, database: str | None, name: str) -> FunctionDescription | None:
        found = {one.name: one for one in await self.functions(database)}
        chosen = choose(name, found, Folding.CASELESS)
        return None if chosen is None else found[chosen]

    async def sample_statement(
        self, table: TableDescription, column: str | None, nested: Sequence[str], kind: SampleKind
    ) -> str:
        if nested:
            raise NotSupported("MySQL has no nested columns.")
        value = None if column is None else quoted(column)
        return sample_query(quoted(table.database, table.name), value, kind, order=_order)

    def analyze_statement(self, table: TableDescription, column: str | None) -> str:
        """See the Protocol. MariaDB has its histograms under another name."""
        statement = f"ANALYZE TABLE {quoted(table.database, table.name)}"
        if column is None:
            return statement
        if self._mariadb:
            return f"{statement} PERSISTENT FOR COLUMNS ({quoted(column)}) INDEXES ()"
        return f"{statement} UPDATE HISTOGRAM ON {quoted(column)}"

    async def _current_database(self) -> str | None:
        ((name,),) = await self._rows("SELECT DATABASE()")
        return name

    async def _database(self, database: str) -> str:
        wanted = database or await self._current_database() or ""
        found = choose(wanted, await self.databases(), Folding.CASELESS)
        if found is None:
            raise database_not_found(database)
        return found

    async def _table(self, schema: str, table: str) -> str:
        """The table's own spelling. All names are read only when the exact one is not there."""
        exact = [name for (name,) in await self._rows(sql.table_name(schema, table))]
        if table in exact:
            return table
        names = [name for (name,) in await self._rows(sql.table_names(schema))]
        found = choose(table, names, Folding.CASELESS)
        if found is None:
            raise TableNotFound(schema, table)
        return found

    async def _columns(self, schema: str, table: str, *, is_view: bool) -> tuple[TableColumn, ...]:
        partition_keys = {
            part.strip().strip("`")
            for (expression,) in await self._rows(sql.partition_expressions(schema, table))
            for part in expression.split(",")
        }
        return tuple(
            TableColumn(
                name=name,
                type=kind,
                comment=comment or "",
                nullable=nullable == "YES",
                # MariaDB tells the expression, and for the lack of one the word.
                default=None if self._mariadb and default == "NULL" else default,
                autoincrement=None if is_view else "auto_increment" in extra.lower(),
                primary_key=key == "PRI",
                partition_key=name in partition_keys,
            )
            for name, kind, comment, nullable, default, extra, key in await self._rows(sql.columns(schema, table))
        )

    async def _rows(self, query: str) -> list[Row]:
        with metadata_errors():
            return await read_rows(self._session, query)


def _kind(table_type: str) -> TableKind:
    return TableKind.VIEW if table_type in _VIEWS else TableKind.MANAGED


def _comment(table_type: str, comment: str | None) -> str:
    """The servers give views the comment `VIEW`."""
    return "" if table_type in _VIEWS else comment or ""


def _utc(epoch_s: int | None) -> str:
    return "" if epoch_s is None else datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _order(value: str, direction: str) -> str:
    """MySQL has no NULLS LAST."""
    return f"{value} IS NULL, {value} {direction}"
