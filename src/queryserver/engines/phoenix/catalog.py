"""Metadata of Phoenix: lists from SYSTEM.CATALOG, columns by the Query Server's own call.

The columns that a view has from its table are not in SYSTEM.CATALOG: only the driver puts them together.
"""

from collections.abc import Mapping, Sequence

from queryserver.engines.catalog_queries import (
    Folding,
    Row,
    choose,
    escaped_literal,
    identifier,
    metadata_errors,
    qualified,
    read_rows,
    sample_query,
    spellings,
)
from queryserver.engines.metadata import (
    ColumnStatistics,
    DatabaseDescription,
    FunctionDescription,
    SampleKind,
    TableColumn,
    TableDescription,
    TableKind,
    TableSummary,
)
from queryserver.engines.phoenix.connection import Connection
from queryserver.engines.phoenix.errors import Phase, avatica_errors
from queryserver.engines.phoenix.statement import native_type, row_values
from queryserver.engines.protocol import EngineSession
from queryserver.errors.base import NotSupported
from queryserver.errors.statements import (
    EngineUnavailable,
    OutcomeUnknown,
    SessionLost,
    TableNotFound,
    database_not_found,
)

_NO_STATISTICS = "Phoenix keeps no statistics of columns."
_UPDATABLE = 3
# Places in the rows of java.sql.DatabaseMetaData.getColumns, with the three that Phoenix adds at the end.
_SCHEMA, _TABLE, _NAME, _TYPE, _SIZE, _DIGITS, _NULLABLE, _DEFAULT, _POSITION, _KEY = 1, 2, 3, 5, 6, 8, 10, 12, 16, 28
_KINDS = {"v": TableKind.VIEW}
# A row of a table itself: neither a column, nor a column family, nor a link to another table or an index.
_HEADS = "TENANT_ID IS NULL AND COLUMN_NAME IS NULL AND COLUMN_FAMILY IS NULL AND TABLE_TYPE IN ('u', 'v', 's')"


class PhoenixCatalog:
    """A Catalog. A database is a schema; `""` is the one without name, which is always there."""

    def __init__(self, session: EngineSession, connection: Connection) -> None:
        self._session = session
        self._connection = connection

    async def databases(self) -> Sequence[str]:
        rows = await self._rows("SELECT DISTINCT TABLE_SCHEM FROM SYSTEM.CATALOG WHERE TENANT_ID IS NULL")
        return sorted({name or "" for (name,) in rows} | {""})

    async def database(self, database: str) -> DatabaseDescription:
        return DatabaseDescription(await self._schema(database))

    async def tables(self, database: str) -> Sequence[TableSummary]:
        schema = await self._schema(database)
        rows = await self._rows(f"SELECT TABLE_NAME, TABLE_TYPE FROM SYSTEM.CATALOG WHERE {_in(schema)} AND {_HEADS}")
        return [TableSummary(name, _KINDS.get(kind, TableKind.MANAGED)) for name, kind in rows]

    async def table(self, database: str, table: str) -> TableDescription:
        schema = await self._schema(database)
        names = ", ".join(map(escaped_literal, spellings(table, Folding.UPPER)))
        rows = await self._rows(
            "SELECT TABLE_NAME, TABLE_TYPE, VIEW_TYPE FROM SYSTEM.CATALOG"
            f" WHERE {_in(schema)} AND TABLE_NAME IN ({names}) AND {_HEADS}"
        )
        found = {name: (kind, view_type) for name, kind, view_type in rows}
        name = choose(table, found, Folding.UPPER)
        if name is None:
            raise TableNotFound(schema, table)
        kind, view_type = found[name]
        return TableDescription(
            database=schema,
            name=name,
            columns=await self._columns(schema, name),
            kind=_KINDS.get(kind, TableKind.MANAGED),
            support_updates=view_type == _UPDATABLE if kind == "v" else True,
            statistics={} if kind == "v" else await self._statistics(schema, name),
        )

    async def column_statistics(self, table: TableDescription, column: str) -> ColumnStatistics:  # noqa: ARG002 there are none
        return ColumnStatistics(message=_NO_STATISTICS)

    async def functions(self, database: str | None) -> Sequence[FunctionDescription]:
        """See the Protocol. Phoenix lists no built-in functions, and its users' functions belong to no schema."""
        if database is not None:
            await self._schema(database)
        return []

    async def function(self, database: str | None, name: str) -> FunctionDescription | None:  # noqa: ARG002 as above
        return None

    async def sample_statement(
        self, table: TableDescription, column: str | None, nested: Sequence[str], kind: SampleKind
    ) -> str:
        if nested:
            raise NotSupported("Phoenix cannot read the items of an array one by one.")
        return sample_query(_source(table), None if column is None else identifier(column), kind)

    def analyze_statement(self, table: TableDescription, column: str | None) -> str:
        if column is not None:
            raise NotSupported("Phoenix analyzes whole tables only.")
        return f"UPDATE STATISTICS {_source(table)}"

    async def _rows(self, sql: str) -> list[Row]:
        with metadata_errors():
            return await read_rows(self._session, sql)

    async def _schema(self, wanted: str) -> str:
        """The schema's own name. Raises database_not_found."""
        if not wanted:
            return ""
        names = ", ".join(map(escaped_literal, spellings(wanted, Folding.UPPER)))
        rows = await self._rows(
            f"SELECT DISTINCT TABLE_SCHEM FROM SYSTEM.CATALOG WHERE TENANT_ID IS NULL AND TABLE_SCHEM IN ({names})"
        )
        found = choose(wanted, [name for (name,) in rows], Folding.UPPER)
        if found is None:
            raise database_not_found(wanted)
        return found

    async def _columns(self, schema: str, table: str) -> tuple[TableColumn, ...]:
        rows = list[Row]()
        try:
            with metadata_errors(), avatica_errors(Phase.OPENING):
                async for row in self._connection.columns_of(schema, table):
                    rows.append(tuple(row_values(row)))
        except (OutcomeUnknown, SessionLost) as error:
            raise EngineUnavailable(error.message) from error
        # What is asked for are patterns, in which `_` stands for any character.
        own = [row for row in rows if (row[_SCHEMA] or "", row[_TABLE]) == (schema, table)]
        return tuple(_column(row) for row in sorted(own, key=lambda row: row[_POSITION]))

    async def _statistics(self, schema: str, table: str) -> Mapping[str, str]:
        """Estimates of UPDATE STATISTICS; there are none of tables smaller than one of its steps."""
        physical = [f"{schema}:{table}", f"{schema}.{table}"] if schema else [table]
        names = ", ".join(map(escaped_literal, physical))
        rows = await self._rows(
            "SELECT SUM(GUIDE_POSTS_ROW_COUNT), SUM(GUIDE_POSTS_WIDTH) FROM SYSTEM.STATS"
            f" WHERE PHYSICAL_NAME IN ({names}) GROUP BY COLUMN_FAMILY"
        )
        if not rows:
            return {}
        return {"numRows": str(max(row[0] or 0 for row in rows)), "totalSize": str(sum(row[1] or 0 for row in rows))}


def _in(schema: str) -> str:
    return f"TABLE_SCHEM = {escaped_literal(schema)}" if schema else "TABLE_SCHEM IS NULL"


def _source(table: TableDescription) -> str:
    return qualified(table.database, table.name) if table.database else identifier(table.name)


def _column(row: Row) -> TableColumn:
    return TableColumn(
        name=row[_NAME],
        type=native_type(row[_TYPE], row[_SIZE], row[_DIGITS]),
        nullable=bool(row[_NULLABLE]),
        default=row[_DEFAULT],
        primary_key=row[_KEY] is not None,
    )
