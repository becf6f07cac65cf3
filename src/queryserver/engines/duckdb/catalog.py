"""Reads a database's metadata from DuckDB's table functions. The contract's `<DB>` is a schema of the open database.

Names match case-insensitively. Qualified names start with the database name, because a schema may have the same name.
"""

import re
from collections.abc import Sequence
from contextlib import suppress

from queryserver import errors
from queryserver.engines import catalog_queries as queries
from queryserver.engines import protocol
from queryserver.sql.types import SqlType, parse_type

_TYPES_WITH_EXACT_BOUNDS = frozenset({
    "boolean", "tinyint", "smallint", "integer", "bigint", "hugeint", "utinyint", "usmallint", "uinteger", "ubigint",
    "uhugeint", "float", "double", "decimal", "date", "time", "timestamp", "timestamp_s",
    "timestamp_ms", "timestamp_ns",
})  # fmt: skip
"""Types whose stored minimum and maximum are exact. For text types, DuckDB truncates both to a few bytes."""

_THIS_DATABASE = "database_name = current_database()"
_TABLES = """
SELECT name, kind, comment, rows FROM (
  SELECT database_name, schema_name, table_name AS name, 'table' AS kind, comment, estimated_size AS rows
    FROM duckdb_tables()
   UNION ALL
  SELECT database_name, schema_name, view_name, 'view', comment, NULL FROM duckdb_views()
) WHERE {}"""
_CALLABLE = "function_type IN ('scalar', 'aggregate', 'window', 'macro', 'table', 'table_macro')"
_NAME = re.compile(r"[^\W\d]\w*")


class DuckdbCatalog(queries.SessionCatalog):
    """Implements `Catalog`. `database_name` is DuckDB's name for the file."""

    def __init__(self, session: protocol.EngineSession, database_name: str) -> None:
        super().__init__(session)
        self._database_name = database_name

    async def databases(self) -> Sequence[str]:
        """Return the names of the database's schemas."""
        return [
            name for (name,) in await self._rows(f"SELECT schema_name FROM duckdb_schemas() WHERE {_THIS_DATABASE}")
        ]

    async def database(self, database: str) -> protocol.DatabaseDescription:
        name, comment = await self._schema(database)
        return protocol.DatabaseDescription(name, comment or "")

    async def tables(self, database: str) -> Sequence[protocol.TableSummary]:
        schema, _ = await self._schema(database)
        rows = await self._rows(_TABLES.format(f"{_THIS_DATABASE} AND schema_name = {queries.literal(schema)}"))
        return await queries.build_summaries(
            rows,
            lambda row: protocol.TableSummary(row[0], protocol.TableKind.of(is_view=row[1] == "view"), row[2] or ""),
        )

    async def table(self, database: str, table: str) -> protocol.TableDescription:
        """Describe a table. The row count in `statistics` is DuckDB's estimate."""
        schema, _ = await self._schema(database)
        here = f"{_THIS_DATABASE} AND schema_name = {queries.literal(schema)}"
        found = await self._rows(_TABLES.format(f"{here} AND lower(name) = lower({queries.literal(table)})"))
        if not found:
            raise errors.TableNotFound(schema, table)
        name, kind, comment, rows = found[0]
        there = f"{here} AND table_name = {queries.literal(name)}"
        keys = await self._rows(
            "SELECT constraint_type, constraint_column_names, referenced_table, referenced_column_names"
            f" FROM duckdb_constraints() WHERE {there} AND constraint_type IN ('PRIMARY KEY', 'FOREIGN KEY')"
            " ORDER BY constraint_index"
        )
        return protocol.TableDescription(
            database=schema,
            name=name,
            columns=await self._columns(there, keys, is_view=kind == "view"),
            kind=protocol.TableKind.of(is_view=kind == "view"),
            comment=comment or "",
            support_updates=kind == "table",
            # Foreign keys cannot cross schemas.
            foreign_keys=tuple(
                protocol.ForeignKey(own, f"{schema}.{other_table}.{other}")
                for kind_of_key, own_columns, other_table, other_columns in keys
                if kind_of_key == "FOREIGN KEY"
                for own, other in zip(own_columns, other_columns, strict=True)
            ),
            statistics={} if rows is None else {"numRows": str(rows)},
        )

    async def column_statistics(self, table: protocol.TableDescription, column: str) -> protocol.ColumnStatistics:
        declared = table.column(column)
        if declared is None or table.kind.is_view:
            return protocol.ColumnStatistics(message="Views have no statistics.")
        kind = parse_type(declared.type)
        is_bounded = kind.base in _TYPES_WITH_EXACT_BOUNDS and kind.item is None
        bounds = ", ".join(
            f"CAST({name}(CAST(stats.{name} AS {declared.type})) AS VARCHAR)" if is_bounded else "NULL"
            for name in ("min", "max")
        )
        with suppress(errors.StatementRejected):  # an empty segment has no bounds
            found = await self._rows(
                f"SELECT {bounds}, bool_or(CAST(stats.has_null AS BOOLEAN)),"
                " max(CAST(stats.max_string_length AS BIGINT)), count(*)"
                f" FROM pragma_storage_info({queries.literal(self._full_name(table))})"
                f" WHERE column_name = {queries.literal(declared.name)}"
                f" AND segment_type = {queries.literal(declared.type)}"
            )
            if found and found[0][4]:
                least, most, has_null, length, _ = found[0]
                return protocol.ColumnStatistics(
                    min=least, max=most, num_nulls=None if has_null else 0, max_col_len=length
                )
        return protocol.ColumnStatistics(message="This column has no statistics.")

    async def functions(self, database: str | None) -> Sequence[protocol.FunctionDescription]:
        return await self._functions(await self._scope(database))

    async def function(self, database: str | None, name: str) -> protocol.FunctionDescription | None:
        wanted = f"lower(function_name) = lower({queries.literal(name)})"
        found = await self._functions(f"{await self._scope(database)} AND {wanted}")
        return found[0] if found else None

    async def sample_statement(
        self, table: protocol.TableDescription, column: str | None, nested: Sequence[str], kind: protocol.SampleKind
    ) -> str:
        if column is None or not nested:
            return await super().sample_statement(table, column, (), kind)
        return queries.sample_query(
            _nested_values_query(self._full_name(table), table, column, nested), queries.identifier(nested[-1]), kind
        )

    def analyze_statement(self, table: protocol.TableDescription, column: str | None) -> str:
        columns = "" if column is None else f" ({queries.identifier(column)})"
        return f"ANALYZE {self._full_name(table)}{columns}"

    def _full_name(self, table: protocol.TableDescription) -> str:
        return queries.qualified(self._database_name, table.database, table.name)

    async def _schema(self, database: str) -> queries.Row:
        wanted = f"lower({queries.literal(database)})" if database else "lower(current_schema())"
        found = await self._rows(
            f"SELECT schema_name, comment FROM duckdb_schemas() WHERE {_THIS_DATABASE}"
            f" AND lower(schema_name) = {wanted}"
        )
        if not found:
            raise errors.database_not_found(database)
        return found[0]

    async def _columns(
        self, there: str, keys: Sequence[queries.Row], *, is_view: bool
    ) -> tuple[protocol.TableColumn, ...]:
        primary = {column for kind, columns, _, _ in keys if kind == "PRIMARY KEY" for column in columns}
        rows = await self._rows(
            "SELECT column_name, data_type, comment, is_nullable, CASE WHEN NOT is_generated THEN column_default END"
            f" FROM duckdb_columns() WHERE {there} ORDER BY column_index"
        )
        described = ((*row, False, row[0] in primary, False) for row in rows)
        return queries.table_columns(described, is_view=is_view)

    async def _scope(self, database: str | None) -> str:
        """Return the SQL condition that selects a schema's functions.

        For None, the condition selects the built-in functions and the functions of the current schema.
        """
        if database is None:
            return f"(internal OR {_THIS_DATABASE} AND schema_name = current_schema())"
        schema, _ = await self._schema(database)
        return f"NOT internal AND {_THIS_DATABASE} AND schema_name = {queries.literal(schema)}"

    async def _functions(self, scope: str) -> list[protocol.FunctionDescription]:
        rows = await self._rows(
            "SELECT function_name, parameters, parameter_types, varargs, return_type, internal, description"
            f" FROM duckdb_functions() WHERE {_CALLABLE} AND {scope}"
            " ORDER BY function_name, len(parameters), parameter_types"
        )
        merged = [(name, _arguments(*row[:3]), *row[3:]) for name, *row in rows if _NAME.fullmatch(name)]
        return queries.merged_functions(merged, is_persistent="true")


def _arguments(names: Sequence[str], types: Sequence[str | None], varargs: str | None) -> str:
    pairs = [f"{name} {kind}" if kind else name for name, kind in zip(names, types, strict=False)]
    return ", ".join([*pairs, f"{varargs}..."] if varargs else pairs)


def _nested_values_query(source: str, table: protocol.TableDescription, column: str, nested: Sequence[str]) -> str:
    """Build a subquery that selects the values at a nested path. The last segment names the subquery's column.

    Raises NotSupported if the path does not exist in the column's type.
    """
    declared = table.column(column)
    kind = parse_type(declared.type) if declared is not None else None
    query = f"SELECT {queries.identifier(column)} AS v FROM {source}"
    for segment in nested:
        step = _path_step(kind, segment) if kind is not None else None
        if kind is None or step is None:
            raise errors.NotSupported(f"DuckDB cannot read {'.'.join([column, *nested])} of this column.")
        query, kind = f"SELECT {step} AS v FROM ({query})", kind.part(segment)
    return f"(SELECT v AS {queries.identifier(nested[-1])} FROM ({query}))"


def _path_step(kind: SqlType, segment: str) -> str | None:
    """Return the SQL expression for one path segment applied to a value `v`; None if the type has no such part."""
    part = kind.part(segment)
    if part is None:
        return None
    if kind.item is not None:
        return "unnest(v)"
    if kind.key is not None:
        return "unnest(map_keys(v))" if segment == "key" else "unnest(map_values(v))"
    (field,) = [field for field in kind.fields if field.type is part]
    return f"struct_extract(v, {queries.literal(field.name)})"
