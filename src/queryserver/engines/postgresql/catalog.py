"""Metadata of a PostgreSQL database, read as the session's role. `<DB>` is a schema."""

from collections.abc import Sequence
from contextlib import suppress

from queryserver.engines.catalog_queries import (
    Folding,
    Row,
    identifier,
    metadata_errors,
    nulls_last,
    qualified,
    read_rows,
    sample_query,
    spellings,
    summaries,
)
from queryserver.engines.postgresql import catalog_sql as sql
from queryserver.engines.protocol import (
    SAMPLE_ROWS,
    ColumnStatistics,
    DatabaseDescription,
    EngineSession,
    ForeignKey,
    FunctionDescription,
    SampleKind,
    TableColumn,
    TableDescription,
    TableKind,
    TableSummary,
)
from queryserver.errors.base import NotSupported
from queryserver.errors.statements import EngineForbidden, StatementRejected, TableNotFound, database_not_found
from queryserver.sql.types import parse_type

_ORDERED = frozenset({
    "smallint", "integer", "bigint", "numeric", "real", "double", "text", "varchar", "character", "name", "boolean",
    "date", "timestamp", "time", "interval", "uuid", "bytea", "jsonb", "inet", "cidr", "oid", "money", "bit", "char",
    "macaddr",
})  # fmt: skip
"""Types whose values are known to have an order; json, xml, point and others have none."""


class Sampler:
    """Makes the query of a sample; the server is asked whether the values of an uncommon type can be sorted."""

    def __init__(self, session: EngineSession, table: TableDescription) -> None:
        self._session = session
        self._table = table

    async def statement(self, column: str | None, nested: Sequence[str], kind: SampleKind) -> str:
        """Raises NotSupported for a path that is not the elements of an array."""
        source = qualified(self._table.database, self._table.name)
        if column is None:
            return sample_query(source, None, kind)
        name = identifier(column)
        if nested:
            self._check_elements(column, nested)
            name, source = identifier(nested[-1]), f"{source}, unnest({source}.{name}) AS {identifier(nested[-1])}"
        plain = sample_query(source, name, kind)
        if await self._can_sort(column, plain):
            return plain
        return _sorted_as_text(name, source, kind)

    def _check_elements(self, column: str, nested: Sequence[str]) -> None:
        declared = self._table.column(column)
        if declared is None or parse_type(declared.type).item is None or list(nested) != ["item"]:
            raise NotSupported("PostgreSQL reads the elements of arrays only.")

    async def _can_sort(self, column: str, statement: str) -> bool:
        declared = self._table.column(column)
        parsed = parse_type(declared.type if declared is not None else "")
        if (parsed.item or parsed).base in _ORDERED:
            return True
        try:
            await read_rows(self._session, f"EXPLAIN {statement}")
        except StatementRejected:
            return False
        return True


def _sorted_as_text(name: str, source: str, kind: SampleKind) -> str:
    key = f"{name}::text"
    if kind in (SampleKind.MAX, SampleKind.MIN):
        return sample_query(source, name, kind, order=lambda _, direction: nulls_last(key, direction))
    return f"SELECT DISTINCT ON ({key}) {name} FROM {source} ORDER BY {key} NULLS LAST LIMIT {SAMPLE_ROWS}"


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


_KINDS = {"v": TableKind.VIEW, "m": TableKind.MATERIALIZED_VIEW, "f": TableKind.EXTERNAL}


class PostgresqlCatalog:
    """A Catalog."""

    def __init__(self, session: EngineSession) -> None:
        self._session = session

    async def databases(self) -> Sequence[str]:
        """Schemas that the role may use."""
        return [name for (name,) in await self._rows(sql.SCHEMAS)]

    async def database(self, database: str) -> DatabaseDescription:
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
        with metadata_errors():
            return await read_statistics(self._session, table, column)

    async def functions(self, database: str | None) -> Sequence[FunctionDescription]:
        oid = None if database is None else (await self._schema(database))[0]
        return _functions(await self._rows(sql.functions(oid)))

    async def function(self, database: str | None, name: str) -> FunctionDescription | None:
        oid = None if database is None else (await self._schema(database))[0]
        wanted = spellings(name, Folding.LOWER)
        found = {one.name: one for one in _functions(await self._rows(sql.functions(oid, wanted)))}
        return next((found[spelling] for spelling in wanted if spelling in found), None)

    async def sample_statement(
        self, table: TableDescription, column: str | None, nested: Sequence[str], kind: SampleKind
    ) -> str:
        return await Sampler(self._session, table).statement(column, nested, kind)

    def analyze_statement(self, table: TableDescription, column: str | None) -> str:
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
