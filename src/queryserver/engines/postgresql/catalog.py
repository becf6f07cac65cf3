"""Metadata of a PostgreSQL database, read as the session's role. `<DB>` is a schema."""

from collections.abc import Sequence

from queryserver.domain.catalog import (
    ColumnStatistics,
    DatabaseDescription,
    ForeignKey,
    FunctionDescription,
    SampleKind,
    TableColumn,
    TableDescription,
    TableKind,
    TableSummary,
)
from queryserver.domain.errors.statements import EngineForbidden, TableNotFound, database_not_found
from queryserver.engines.catalog_queries import Folding, Row, read_rows, spellings, summaries
from queryserver.engines.denials import metadata_errors
from queryserver.engines.postgresql import catalog_sql as sql
from queryserver.engines.postgresql.catalog_samples import Sampler
from queryserver.engines.postgresql.catalog_statistics import read_statistics
from queryserver.engines.quoting import identifier, qualified
from queryserver.interfaces.engine import EngineSession

_KINDS = {"v": TableKind.VIEW, "m": TableKind.MATERIALIZED_VIEW, "f": TableKind.EXTERNAL}


class PostgresqlCatalog:
    """A Catalog."""

    def __init__(self, session: EngineSession) -> None:
        self._session = session

    async def databases(self) -> Sequence[str]:
        """Schemas that the role may use."""
        return [name for (name,) in await self._rows(sql.SCHEMAS)]

    async def database(self, database: str) -> DatabaseDescription:
        """See the Protocol."""
        _, name, _, owner, comment = await self._schema(database)
        return DatabaseDescription(name, comment or "", owner_name=owner, owner_type="ROLE")

    async def tables(self, database: str) -> Sequence[TableSummary]:
        """Those that the role has any right to."""
        oid, *_ = await self._schema(database)
        rows = await self._rows(sql.tables(oid))
        return await summaries(
            rows, lambda row: TableSummary(row[0], _KINDS.get(row[1], TableKind.MANAGED), row[2] or "")
        )

    async def table(self, database: str, table: str) -> TableDescription:
        """See the Protocol."""
        schema_oid, schema, *_ = await self._schema(database)
        found = await self._rows(sql.table(schema_oid, spellings(table, Folding.LOWER)))
        if not found:
            raise TableNotFound(schema, table)
        oid, name, relkind, may_use, owner, comment, rows, size, support_updates = found[0]
        if not may_use:
            raise EngineForbidden(f"permission denied for table {name}")
        kind = _KINDS.get(relkind, TableKind.MANAGED)
        known = {"numRows": rows, "totalSize": size}
        return TableDescription(
            database=schema,
            name=name,
            columns=tuple(_column(row, is_view=kind.is_view) for row in await self._rows(sql.columns(oid))),
            kind=kind,
            comment=comment or "",
            support_updates=support_updates,
            owner=owner,
            foreign_keys=tuple(
                ForeignKey(own, f"{other_schema}.{other}.{column}")
                for own, other_schema, other, column in await self._rows(sql.foreign_keys(oid))
            ),
            statistics={key: str(value) for key, value in known.items() if value is not None},
        )

    async def column_statistics(self, table: TableDescription, column: str) -> ColumnStatistics:
        """See the Protocol."""
        with metadata_errors():
            return await read_statistics(self._session, table, column)

    async def functions(self, database: str | None) -> Sequence[FunctionDescription]:
        """See the Protocol."""
        oid = None if database is None else (await self._schema(database))[0]
        return _functions(await self._rows(sql.functions(oid)))

    async def function(self, database: str | None, name: str) -> FunctionDescription | None:
        """See the Protocol."""
        oid = None if database is None else (await self._schema(database))[0]
        wanted = spellings(name, Folding.LOWER)
        found = {one.name: one for one in _functions(await self._rows(sql.functions(oid, wanted)))}
        return next((found[spelling] for spelling in wanted if spelling in found), None)

    async def sample_statement(
        self, table: TableDescription, column: str | None, nested: Sequence[str], kind: SampleKind
    ) -> str:
        """See the Protocol."""
        return await Sampler(self._session, table).statement(column, nested, kind)

    def analyze_statement(self, table: TableDescription, column: str | None) -> str:
        """See the Protocol."""
        columns = "" if column is None else f" ({identifier(column)})"
        return f"ANALYZE {qualified(table.database, table.name)}{columns}"

    async def _schema(self, database: str) -> Row:
        found = await self._rows(sql.schema(spellings(database, Folding.LOWER)))
        if not found:
            raise database_not_found(database)
        if not found[0][2]:
            raise EngineForbidden(f"permission denied for schema {found[0][1]}")
        return found[0]

    async def _rows(self, query: str) -> list[Row]:
        with metadata_errors():
            return await read_rows(self._session, query)


def _column(row: Row, *, is_view: bool) -> TableColumn:
    name, kind, comment, nullable, default, is_identity, is_key, is_partition_key = row
    numbered = is_identity or (default or "").startswith("nextval(")
    return TableColumn(
        name=name,
        type=kind,
        comment=comment or "",
        nullable=None if is_view else nullable,
        default=default,
        autoincrement=None if is_view else numbered,
        primary_key=is_key,
        partition_key=is_partition_key,
    )


def _functions(rows: Sequence[Row]) -> list[FunctionDescription]:
    """One function per name: the first overload's data, the signatures of all."""
    overloads: dict[str, list[Row]] = {}
    for row in rows:
        overloads.setdefault(row[1], []).append(row)
    return [
        FunctionDescription(
            name=name,
            signature="\n".join(dict.fromkeys(f"{name}({arguments})" for _, _, arguments, _, _ in same)),
            return_type=same[0][3] or "",
            is_builtin="BUILTIN" if same[0][0] == "pg_catalog" else "",
            is_persistent="true",
            description=same[0][4] or "",
        )
        for name, same in overloads.items()
    ]
