"""Reads the metadata of a PostgreSQL database with the session's role. `<DB>` in the API is a schema.

The queries read PostgreSQL's system catalogs (manual, chapter 53), which is much faster than information_schema. Names
are always escaped by `literal`. All result columns are plain strings, numbers or booleans in every release.
"""

from collections.abc import Sequence
from contextlib import suppress

from queryserver import errors
from queryserver.engines import protocol
from queryserver.engines.catalog_queries import (
    Folding,
    Row,
    SessionCatalog,
    build_summaries,
    identifier,
    merged_functions,
    name_candidates,
    nulls_last_key,
    qualified,
    read_rows,
    sample_query,
    table_columns,
)
from queryserver.sql.types import parse_type

_TABLE_KINDS = {
    "v": protocol.TableKind.VIEW,
    "m": protocol.TableKind.MATERIALIZED_VIEW,
    "f": protocol.TableKind.EXTERNAL,
}

_ORDERED = frozenset({
    "smallint", "integer", "bigint", "numeric", "real", "double", "text", "varchar", "character", "name", "boolean",
    "date", "timestamp", "time", "interval", "uuid", "bytea", "jsonb", "inet", "cidr", "oid", "money", "bit", "char",
    "macaddr",
})  # fmt: skip
"""Types whose values are known to have a sort order, unlike json, xml and point."""


def literal(text: str) -> str:
    """Return a string literal that is valid for any `standard_conforming_strings` setting."""
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'"


def _any(texts: Sequence[str]) -> str:
    return f"IN ({', '.join(map(literal, texts))})"


_SCHEMAS = r"""
SELECT nspname FROM pg_catalog.pg_namespace
 WHERE has_schema_privilege(oid, 'USAGE') AND nspname !~ '^pg_(toast|temp_\d|toast_temp_\d)'"""

_IS_TABLE = "c.relkind IN ('r', 'p', 'v', 'm', 'f')"
_MAY_USE = """(has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
        OR has_any_column_privilege(c.oid, 'SELECT, INSERT, UPDATE, REFERENCES'))"""

# Functions with these types are hidden, because no query can call them.
_INTERNAL_TYPES = (
    "internal", "cstring", "trigger", "event_trigger", "language_handler", "fdw_handler", "index_am_handler",
    "table_am_handler", "tsm_handler",
)  # fmt: skip
_INTERNAL = f"ARRAY[{', '.join(map(literal, _INTERNAL_TYPES))}]::regtype[]::oid[]"


class PostgresqlCatalog(SessionCatalog):
    """Implements `Catalog` for PostgreSQL."""

    async def databases(self) -> Sequence[str]:
        """Return the schemas that the role may use."""
        return [name for (name,) in await self._rows(_SCHEMAS)]

    async def database(self, database: str) -> protocol.DatabaseDescription:
        _, name, _, owner, comment = await self._schema(database)
        return protocol.DatabaseDescription(name, comment or "", owner_name=owner, owner_type="ROLE")

    async def tables(self, database: str) -> Sequence[protocol.TableSummary]:
        """List the tables on which the role has any privilege.

        The privilege check is the only function called per row.
        """
        oid, *_ = await self._schema(database)
        rows = await self._rows(f"""
SELECT c.relname, c.relkind::text, d.description
  FROM pg_catalog.pg_class c
  LEFT JOIN pg_catalog.pg_description d
    ON d.objoid = c.oid AND d.classoid = 'pg_catalog.pg_class'::regclass AND d.objsubid = 0
 WHERE c.relnamespace = {oid:d} AND {_IS_TABLE} AND {_MAY_USE}""")
        return await build_summaries(
            rows,
            lambda row: protocol.TableSummary(
                row[0], _TABLE_KINDS.get(row[1], protocol.TableKind.MANAGED), row[2] or ""
            ),
        )

    async def table(self, database: str, table: str) -> protocol.TableDescription:
        """Describe a table. For a table that was never analyzed, the server reports -1 rows (0 before release 14)."""
        schema_oid, schema, *_ = await self._schema(database)
        names = name_candidates(table, Folding.LOWER)
        found = await self._rows(f"""
SELECT c.oid, c.relname, c.relkind::text, {_MAY_USE}, pg_get_userbyid(c.relowner), obj_description(c.oid, 'pg_class'),
       CASE WHEN c.reltuples > 0 OR (c.reltuples = 0 AND current_setting('server_version_num')::int >= 140000)
            THEN c.reltuples::bigint END,
       CASE WHEN c.relkind IN ('r', 'm') THEN pg_table_size(c.oid) END,
       CASE WHEN c.relkind = 'f' THEN pg_relation_is_updatable(c.oid, false) & 20 <> 0
            ELSE c.relkind IN ('r', 'p') END
  FROM pg_catalog.pg_class c
 WHERE c.relnamespace = {schema_oid:d} AND {_IS_TABLE} AND c.relname {_any(names)}
 ORDER BY c.relname = {literal(names[0])} DESC LIMIT 1""")
        if not found:
            raise errors.TableNotFound(schema, table)
        oid, name, relkind, may_use, owner, comment, rows, size, support_updates = found[0]
        if not may_use:
            raise errors.EngineForbidden(f"permission denied for table {name}")
        kind = _TABLE_KINDS.get(relkind, protocol.TableKind.MANAGED)
        known = {"numRows": rows, "totalSize": size}
        keys = await self._rows(f"""
SELECT a.attname, n.nspname, c.relname, b.attname
  FROM pg_catalog.pg_constraint k
 CROSS JOIN LATERAL unnest(k.conkey, k.confkey) WITH ORDINALITY AS pair(own, other, place)
  JOIN pg_catalog.pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = pair.own
  JOIN pg_catalog.pg_attribute b ON b.attrelid = k.confrelid AND b.attnum = pair.other
  JOIN pg_catalog.pg_class c ON c.oid = k.confrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE k.conrelid = {oid:d} AND k.contype = 'f'
 ORDER BY k.conname, k.oid, pair.place""")
        return protocol.TableDescription(
            database=schema,
            name=name,
            columns=await self._columns(oid, is_view=kind.is_view),
            kind=kind,
            comment=comment or "",
            support_updates=support_updates,
            owner=owner,
            foreign_keys=tuple(
                protocol.ForeignKey(own, f"{there}.{other}.{column}") for own, there, other, column in keys
            ),
            statistics={key: str(value) for key, value in known.items() if value is not None},
        )

    async def column_statistics(self, table: protocol.TableDescription, column: str) -> protocol.ColumnStatistics:
        """Return statistics from pg_stats, which shows only columns that the role may read."""
        declared = table.column(column)
        if table.kind.is_view and "numRows" not in table.statistics:
            return protocol.ColumnStatistics(message="Views have no statistics.")
        of_partitions = any(one.partition_key for one in table.columns)
        source = f"""pg_catalog.pg_stats
 WHERE schemaname = {literal(table.database)} AND tablename = {literal(table.name)} AND attname = {literal(column)}
 ORDER BY inherited = {"true" if of_partitions else "false"} DESC LIMIT 1"""
        found = await self._rows(
            "SELECT null_frac::float8, n_distinct::float8, avg_width, most_common_vals::text, most_common_freqs::text"
            f" FROM {source}"
        )
        if declared is None or not found:
            return protocol.ColumnStatistics(message="This column has no statistics. Run ANALYZE to collect them.")
        null_part, distinct, width, common, parts = found[0]
        rows = int(table.statistics["numRows"]) if "numRows" in table.statistics else None
        least, most = None, None
        if parse_type(declared.type).item is None:
            least, most = await self._extremes(source, declared.type)
        counts = _counts(common, parts, rows) if declared.type == "boolean" else {}
        if distinct <= 0:
            # A positive value is a count, a negative one a fraction of the rows, and 0 means unknown (manual 53.27).
            distinct = None if not distinct or rows is None else -distinct * rows
        return protocol.ColumnStatistics(
            min=least,
            max=most,
            num_nulls=None if rows is None else round(null_part * rows),
            distinct_count=None if distinct is None else round(distinct),
            avg_col_len=float(width),
            num_trues=counts.get("t"),
            num_falses=counts.get("f"),
        )

    async def functions(self, database: str | None) -> Sequence[protocol.FunctionDescription]:
        return await self._functions(database)

    async def function(self, database: str | None, name: str) -> protocol.FunctionDescription | None:
        wanted = name_candidates(name, Folding.LOWER)
        found = {one.name: one for one in await self._functions(database, f" AND p.proname {_any(wanted)}")}
        return next((found[spelling] for spelling in wanted if spelling in found), None)

    async def sample_statement(
        self, table: protocol.TableDescription, column: str | None, nested: Sequence[str], kind: protocol.SampleKind
    ) -> str:
        """Return a sample query. A nested path can lead only to array elements.

        Values without a sort order are sorted as text.
        """
        source = qualified(table.database, table.name)
        if column is None:
            return sample_query(source, None, kind)
        declared, name = table.column(column), identifier(column)
        parsed = parse_type(declared.type if declared is not None else "")
        if nested:
            if parsed.item is None or list(nested) != ["item"]:
                raise errors.NotSupported("PostgreSQL can only read elements of arrays.")
            name, source = identifier(nested[-1]), f"{source}, unnest({source}.{name}) AS {identifier(nested[-1])}"
        plain = sample_query(source, name, kind)
        if (parsed.item or parsed).base in _ORDERED or await self._can_run(plain):
            return plain
        key = f"{name}::text"
        if kind in (protocol.SampleKind.MAX, protocol.SampleKind.MIN):
            return sample_query(source, name, kind, order=lambda _, direction: nulls_last_key(key, direction))
        return f"SELECT DISTINCT ON ({key}) {name} FROM {source} ORDER BY {key} NULLS LAST LIMIT {protocol.SAMPLE_ROWS}"

    def analyze_statement(self, table: protocol.TableDescription, column: str | None) -> str:
        columns = "" if column is None else f" ({identifier(column)})"
        return f"ANALYZE {qualified(table.database, table.name)}{columns}"

    async def _schema(self, database: str) -> Row:
        """Return the OID, name, usage privilege, owner and comment of a schema. `""` is the current schema.

        Raises database_not_found, EngineForbidden.
        """
        names = name_candidates(database, Folding.LOWER)
        found = await self._rows(f"""
SELECT n.oid, n.nspname, has_schema_privilege(n.oid, 'USAGE'), pg_get_userbyid(n.nspowner),
       obj_description(n.oid, 'pg_namespace')
  FROM pg_catalog.pg_namespace n
 WHERE n.nspname {_any(names) if database else "= current_schema()"}
 ORDER BY n.nspname = {literal(names[0])} DESC LIMIT 1""")
        if not found:
            raise errors.database_not_found(database)
        if not found[0][2]:
            raise errors.EngineForbidden(f"permission denied for schema {found[0][1]}")
        return found[0]

    async def _columns(self, table_oid: int, *, is_view: bool) -> tuple[protocol.TableColumn, ...]:
        rows = await self._rows(f"""
SELECT a.attname, format_type(a.atttypid, a.atttypmod), col_description(a.attrelid, a.attnum),
       NOT (a.attnotnull OR t.typnotnull),
       CASE WHEN a.attgenerated::text = '' THEN pg_get_expr(d.adbin, d.adrelid) END,
       a.attidentity::text <> '',
       coalesce(a.attnum = ANY (i.indkey::int2[]), false), coalesce(a.attnum = ANY (p.partattrs::int2[]), false)
  FROM pg_catalog.pg_attribute a
  JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
  LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
  LEFT JOIN pg_catalog.pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
  LEFT JOIN pg_catalog.pg_partitioned_table p ON p.partrelid = a.attrelid
 WHERE a.attrelid = {table_oid:d} AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum""")
        return table_columns(rows, is_view=is_view)

    async def _extremes(self, source: str, type_name: str) -> tuple[str | None, str | None]:
        """Return the smallest and largest value in the statistics, in the sort order of the column's type."""
        with suppress(errors.StatementRejected):  # the type's values have no order, or its name is no longer visible
            ((least, most),) = await read_rows(
                self._session,
                f"""
WITH known AS (
  SELECT unnest(histogram_bounds::text::{type_name}[] || most_common_vals::text::{type_name}[]) AS v
    FROM (SELECT * FROM {source}) AS s)
SELECT (SELECT v FROM known ORDER BY v LIMIT 1)::text, (SELECT v FROM known ORDER BY v DESC LIMIT 1)::text""",
                context=self._context,
            )
            return least, most
        return None, None

    async def _functions(self, database: str | None, condition: str = "") -> list[protocol.FunctionDescription]:
        """List a schema's functions; if `database` is None, all visible functions. Overloads are merged."""
        scope = "pg_function_is_visible(p.oid)"
        if database is not None:
            scope = f"p.pronamespace = {(await self._schema(database))[0]:d}"
        rows = await self._rows(f"""
SELECT p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), n.nspname = 'pg_catalog',
       d.description
  FROM pg_catalog.pg_proc p
  JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
  LEFT JOIN pg_catalog.pg_description d
    ON d.objoid = p.oid AND d.classoid = 'pg_catalog.pg_proc'::regclass AND d.objsubid = 0
 WHERE {scope}{condition} AND p.prokind IN ('f', 'a', 'w')
   AND NOT (n.nspname = 'pg_catalog'
            AND (p.prorettype = ANY ({_INTERNAL}) OR p.proargtypes::oid[] && {_INTERNAL}))
 ORDER BY p.proname, p.oid""")
        return merged_functions(rows, is_persistent="true")

    async def _can_run(self, statement: str) -> bool:
        """Return whether the server can plan the statement.

        Planning fails if the statement sorts values that have no sort order.
        """
        try:
            await read_rows(self._session, f"EXPLAIN {statement}", context=self._context)
        except errors.StatementRejected:
            return False
        return True


def _counts(common: str | None, parts: str | None, rows: int | None) -> dict[str, int]:
    """Return the numbers of true and false values of a boolean column from texts such as `{t,f}` and `{0.75,0.25}`."""
    if common is None or parts is None or rows is None:
        return {}
    values, shares = common.strip("{}").split(","), parts.strip("{}").split(",")
    counted = {value: round(float(share) * rows) for value, share in zip(values, shares, strict=True)}
    return {"t": 0, "f": 0} | counted
