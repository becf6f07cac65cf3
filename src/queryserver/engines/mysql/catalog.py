"""Metadata of a MySQL or MariaDB server, read from information_schema, which shows what the login may see.

Whether names differ by case alone is the server's setting: exactly that name comes first, then the only one alike.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from queryserver.domain.catalog import (
    ColumnStatistics,
    DatabaseDescription,
    ForeignKey,
    FunctionDescription,
    SampleKind,
    TableColumn,
    TableDescription,
    TableKind,
    TableProperty,
    TableSummary,
)
from queryserver.domain.errors.base import NotSupported
from queryserver.domain.errors.statements import TableNotFound, database_not_found
from queryserver.engines.catalog_queries import Folding, Row, choose, read_rows, summaries
from queryserver.engines.denials import metadata_errors
from queryserver.engines.mysql import catalog_sql as sql
from queryserver.engines.mysql.catalog_functions import FunctionReader
from queryserver.engines.mysql.catalog_statistics import StatisticsReader
from queryserver.engines.mysql.quoting import quoted
from queryserver.engines.sampling import sample_query
from queryserver.interfaces.engine import EngineSession

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
        """See the Protocol."""
        return [name for (name,) in await self._rows(sql.DATABASES)]

    async def database(self, database: str) -> DatabaseDescription:
        """See the Protocol. MariaDB keeps comments since release 10.5."""
        name = await self._database(database)
        rows = await self._rows(sql.database_comment(name)) if await self._rows(sql.HAS_DATABASE_COMMENTS) else []
        return DatabaseDescription(name, rows[0][0] or "" if rows else "")

    async def tables(self, database: str) -> Sequence[TableSummary]:
        """See the Protocol."""
        rows = await self._rows(sql.tables(await self._database(database)))
        return await summaries(rows, lambda row: TableSummary(row[0], _kind(row[1]), _comment(row[1], row[2])))

    async def table(self, database: str, table: str) -> TableDescription:
        """See the Protocol."""
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
        """See the Protocol."""
        with metadata_errors():
            return await StatisticsReader(self._session, mariadb=self._mariadb).read(table, column)

    async def functions(self, database: str | None) -> Sequence[FunctionDescription]:
        """See the Protocol."""
        reader = FunctionReader(self._rows, mariadb=self._mariadb)
        if database is not None:
            return await reader.stored(await self._database(database))
        current = await self._current_database()
        own = await reader.stored(current) if current else []
        names = {one.name.casefold() for one in own}
        return [*own, *(one for one in await reader.builtin() if one.name.casefold() not in names)]

    async def function(self, database: str | None, name: str) -> FunctionDescription | None:
        """See the Protocol."""
        found = {one.name: one for one in await self.functions(database)}
        chosen = choose(name, found, Folding.CASELESS)
        return None if chosen is None else found[chosen]

    async def sample_statement(
        self, table: TableDescription, column: str | None, nested: Sequence[str], kind: SampleKind
    ) -> str:
        """See the Protocol."""
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
