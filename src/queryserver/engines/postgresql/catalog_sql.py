"""Queries on PostgreSQL's own catalogue (manual, chapter 53), which is much faster than information_schema.

Names come in through `literal` only. All columns have types that every release gives as plain text, number or boolean.
"""

from collections.abc import Sequence


def literal(text: str) -> str:
    """A string constant that reads the same whatever `standard_conforming_strings` is."""
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'"


SCHEMAS = r"""
SELECT nspname FROM pg_catalog.pg_namespace
 WHERE has_schema_privilege(oid, 'USAGE') AND nspname !~ '^pg_(toast|temp_\d|toast_temp_\d)'"""

_MAY_USE = """(has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
        OR has_any_column_privilege(c.oid, 'SELECT, INSERT, UPDATE, REFERENCES'))"""

_KINDS = "c.relkind IN ('r', 'p', 'v', 'm', 'f')"

# What nobody can call in a query: they take or give values inside the server.
_INTERNAL_TYPES = (
    "internal", "cstring", "trigger", "event_trigger", "language_handler", "fdw_handler", "index_am_handler",
    "table_am_handler", "tsm_handler",
)  # fmt: skip
_INTERNAL = f"ARRAY[{', '.join(literal(name) for name in _INTERNAL_TYPES)}]::regtype[]::oid[]"


def schema(spellings: Sequence[str]) -> str:
    """Oid, name, whether it may be used, owner, comment; `""` is the first schema of the search path."""
    wanted = _any(spellings) if any(spellings) else "= current_schema()"
    return f"""
SELECT n.oid, n.nspname, has_schema_privilege(n.oid, 'USAGE'), pg_get_userbyid(n.nspowner),
       obj_description(n.oid, 'pg_namespace')
  FROM pg_catalog.pg_namespace n
 WHERE n.nspname {wanted}
 ORDER BY n.nspname = {literal(spellings[0])} DESC LIMIT 1"""


def tables(schema_oid: int) -> str:
    """Name, kind, comment. One join, no function call per row but the check of the right."""
    return f"""
SELECT c.relname, c.relkind::text, d.description
  FROM pg_catalog.pg_class c
  LEFT JOIN pg_catalog.pg_description d
    ON d.objoid = c.oid AND d.classoid = 'pg_catalog.pg_class'::regclass AND d.objsubid = 0
 WHERE c.relnamespace = {schema_oid:d} AND {_KINDS} AND {_MAY_USE}"""


def table(schema_oid: int, spellings: Sequence[str]) -> str:
    """Oid, name, kind, whether it may be used, owner, comment, rows, bytes, whether rows can be changed.

    Since release 14 a table that was never analyzed has -1 rows, before it had 0.
    """
    return f"""
SELECT c.oid, c.relname, c.relkind::text, {_MAY_USE}, pg_get_userbyid(c.relowner), obj_description(c.oid, 'pg_class'),
       CASE WHEN c.reltuples > 0 OR (c.reltuples = 0 AND current_setting('server_version_num')::int >= 140000)
            THEN c.reltuples::bigint END,
       CASE WHEN c.relkind IN ('r', 'm') THEN pg_table_size(c.oid) END,
       CASE WHEN c.relkind = 'f' THEN pg_relation_is_updatable(c.oid, false) & 20 <> 0
            ELSE c.relkind IN ('r', 'p') END
  FROM pg_catalog.pg_class c
 WHERE c.relnamespace = {schema_oid:d} AND {_KINDS} AND c.relname {_any(spellings)}
 ORDER BY c.relname = {literal(spellings[0])} DESC LIMIT 1"""


def columns(table_oid: int) -> str:
    """Name, type, comment, nullable, default, identity, generated, primary key, partition key; in table order."""
    return f"""
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
 ORDER BY a.attnum"""


def foreign_keys(table_oid: int) -> str:
    """Column, and schema, table and column that it refers to."""
    return f"""
SELECT a.attname, n.nspname, c.relname, b.attname
  FROM pg_catalog.pg_constraint k
 CROSS JOIN LATERAL unnest(k.conkey, k.confkey) WITH ORDINALITY AS pair(own, other, place)
  JOIN pg_catalog.pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = pair.own
  JOIN pg_catalog.pg_attribute b ON b.attrelid = k.confrelid AND b.attnum = pair.other
  JOIN pg_catalog.pg_class c ON c.oid = k.confrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE k.conrelid = {table_oid:d} AND k.contype = 'f'
 ORDER BY k.conname, k.oid, pair.place"""


def functions(schema_oid: int | None, spellings: Sequence[str] = ()) -> str:
    """Schema, name, arguments, result, comment; of a schema, or all that need no schema before their name."""
    place = "pg_function_is_visible(p.oid)" if schema_oid is None else f"p.pronamespace = {schema_oid:d}"
    named = f"AND p.proname {_any(spellings)}" if spellings else ""
    return f"""
SELECT n.nspname, p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), d.description
  FROM pg_catalog.pg_proc p
  JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
  LEFT JOIN pg_catalog.pg_description d
    ON d.objoid = p.oid AND d.classoid = 'pg_catalog.pg_proc'::regclass AND d.objsubid = 0
 WHERE {place} {named} AND p.prokind IN ('f', 'a', 'w')
   AND NOT (n.nspname = 'pg_catalog'
            AND (p.prorettype = ANY ({_INTERNAL}) OR p.proargtypes::oid[] && {_INTERNAL}))
 ORDER BY p.proname, p.oid"""


def statistics(schema_name: str, table_name: str, column: str, *, of_partitions: bool) -> str:
    """Part of NULLs, distinct values (below 0: of a row), average bytes, most common values and their parts."""
    return f"""
SELECT null_frac::float8, n_distinct::float8, avg_width, most_common_vals::text, most_common_freqs::text
  FROM pg_catalog.pg_stats
 WHERE {_statistics_of(schema_name, table_name, column)}
 ORDER BY inherited = {"true" if of_partitions else "false"} DESC LIMIT 1"""


def extremes(schema_name: str, table_name: str, column: str, type_name: str, *, of_partitions: bool) -> str:
    """The smallest and the largest value that the statistics hold, compared as the column's type compares them."""
    return f"""
WITH known AS (
  SELECT unnest(histogram_bounds::text::{type_name}[] || most_common_vals::text::{type_name}[]) AS v
    FROM (SELECT * FROM pg_catalog.pg_stats WHERE {_statistics_of(schema_name, table_name, column)}
           ORDER BY inherited = {"true" if of_partitions else "false"} DESC LIMIT 1) AS s)
SELECT (SELECT v FROM known ORDER BY v LIMIT 1)::text, (SELECT v FROM known ORDER BY v DESC LIMIT 1)::text"""


def _statistics_of(schema_name: str, table_name: str, column: str) -> str:
    return f"schemaname = {literal(schema_name)} AND tablename = {literal(table_name)} AND attname = {literal(column)}"


def _any(spellings: Sequence[str]) -> str:
    return f"IN ({', '.join(literal(spelling) for spelling in spellings)})"
