"""The DuckDB dialect: PostgreSQL's SQL where DuckDB supports it, and reflection with DuckDB's table functions.

DuckDB has no SERIAL type. An autoincrement primary key therefore gets its own sequence, `<table>_<column>_seq`, which
is created before the table and dropped after it.
"""

# SQLAlchemy's dialects narrow the types of overridden members.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false, reportPrivateUsage=false

from typing import Any

from sqlalchemy import cast as sa_cast
from sqlalchemy import types as sqltypes
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.dialects.postgresql.base import (
    PGDDLCompiler,
    PGDialect,
    PGExecutionContext,
    PGIdentifierPreparer,
    PGTypeCompiler,
)
from sqlalchemy.dialects.sqlite.json import JSONPathType
from sqlalchemy.engine import interfaces, reflection
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.schema import Column, Table

from queryserver_client.sqlalchemy.connector import QueryserverDialect
from queryserver_client.sqlalchemy.duckdb_reflection import DuckDBReflection
from queryserver_client.sqlalchemy.postgresql import CASTS, Interval, QuestionMarks, cast
from queryserver_client.sqlalchemy.types import type_of


class DuckDBCompiler(QuestionMarks):
    def visit_bitwise_xor_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        return f"xor({self.process(binary.left, **kw)}, {self.process(binary.right, **kw)})"

    def visit_json_path_getitem_op_binary(
        self, binary: Any, operator: Any, _cast_applied: bool = False, **kw: Any
    ) -> str:
        """Render access by JSON path: `-> '$."key"[0]'`, where PostgreSQL would use `#>`."""
        if not _cast_applied and binary.type._type_affinity is not sqltypes.JSON:
            return self.process(sa_cast(binary, binary.type), _cast_applied=True, **kw)
        sign = " ->> " if _cast_applied else " -> "
        return self._generate_generic_binary(binary, sign, **{**kw, "eager_grouping": True})


class DuckDBTypes(PGTypeCompiler):
    def visit_JSONB(self, type_: Any, **kw: Any) -> str:
        return "JSON"

    def visit_BYTEA(self, type_: Any, **kw: Any) -> Any:
        return "BLOB"

    visit_large_binary = visit_BLOB = visit_BYTEA

    def visit_TIMESTAMP(self, type_: Any, **kw: Any) -> str:
        return "TIMESTAMPTZ" if type_.timezone else "TIMESTAMP"

    def visit_TIME(self, type_: Any, **kw: Any) -> str:
        return "TIMETZ" if type_.timezone else "TIME"

    def visit_INTERVAL(self, type_: Any, **kw: Any) -> str:
        return "INTERVAL"

    def visit_FLOAT(self, type_: Any, **kw: Any) -> str:
        return "DOUBLE" if type_.precision is None or type_.precision > 24 else "FLOAT"

    def visit_CHAR(self, type_: Any, **kw: Any) -> str:
        return "VARCHAR"

    visit_VARCHAR = visit_NVARCHAR = visit_NCHAR = visit_TEXT = visit_CHAR


class DuckDBDefinitions(PGDDLCompiler):
    def get_column_specification(self, column: Column[Any], **kw: Any) -> str:
        if _numbered(column) is None:
            return super().get_column_specification(column, **kw)
        kind = self.dialect.type_compiler_instance.process(column.type, type_expression=column)
        name = _sequence(column.table, column, self.preparer).replace("'", "''")
        return f"{self.preparer.format_column(column)} {kind} DEFAULT nextval('{name}') NOT NULL"

    def visit_create_table(self, create: Any, **kw: Any) -> str:
        text = super().visit_create_table(create, **kw)
        found = [column for column in create.element.columns if _numbered(column) is not None]
        kind = "TEMPORARY SEQUENCE" if any("TEMP" in one.upper() for one in _prefixes(create.element)) else "SEQUENCE"
        before = [
            f"CREATE {kind} IF NOT EXISTS {_sequence(create.element, column, self.preparer)};" for column in found
        ]
        return "\n".join([*before, text]) if before else text

    def visit_drop_table(self, drop: Any, **kw: Any) -> str:
        text = super().visit_drop_table(drop, **kw)
        found = [column for column in drop.element.columns if _numbered(column) is not None]
        after = [f"DROP SEQUENCE IF EXISTS {_sequence(drop.element, column, self.preparer)}" for column in found]
        return ";".join([text, *after]) if after else text


class DuckDBContext(PGExecutionContext):
    """PostgreSQL's execution context, unchanged: generated keys are fetched with RETURNING."""


class DuckDBDialect(QueryserverDialect, DuckDBReflection, DefaultDialect):
    name = "duckdb"
    supports_statement_cache = True
    engine_dialects = ("duckdb",)
    statement_compiler = DuckDBCompiler
    ddl_compiler = DuckDBDefinitions
    type_compiler_cls = DuckDBTypes
    preparer = PGIdentifierPreparer
    execution_ctx_cls = DuckDBContext
    bind_typing = interfaces.BindTyping.RENDER_CASTS
    construct_arguments = PGDialect.construct_arguments
    max_identifier_length = 9999

    supports_alter = True
    supports_comments = True
    supports_native_boolean = True
    supports_native_uuid = True
    supports_native_enum = False
    supports_sequences = True
    sequences_optional = False
    supports_default_values = True
    supports_default_metavalue = True
    supports_empty_insert = False
    supports_multivalues_insert = True
    supports_is_distinct_from = True
    use_insertmanyvalues = True
    use_insertmanyvalues_wo_returning = True
    insert_returning = update_returning = delete_returning = True
    postfetch_lastrowid = False
    preexecute_autoincrement_sequences = False
    supports_identity_columns = False
    div_is_floordiv = False

    # Attributes of the PostgreSQL dialect that its compiler uses.
    supports_smallserial = True
    supports_virtual_generated_columns = True
    _backslash_escapes = False
    _supports_create_index_concurrently = False
    _supports_drop_index_concurrently = False
    _supports_jsonb_subscripting = False
    _native_inet_types = None

    colspecs = {
        **CASTS,
        sqltypes.Enum: sqltypes.Enum,
        sqltypes.JSON: cast(sqltypes.JSON),
        sqltypes.JSON.JSONPathType: JSONPathType,
        sqltypes.ARRAY: cast(sqltypes.ARRAY),
        pg.INTERVAL: Interval,
    }

    def __init__(self, json_serializer: Any = None, json_deserializer: Any = None, **options: Any) -> None:
        super().__init__(**options)
        self._json_serializer, self._json_deserializer = json_serializer, json_deserializer

    def _get_default_schema_name(self, connection: Any) -> str:
        return str(connection.exec_driver_sql("SELECT current_schema()").scalar_one())

    def _get_server_version_info(self, connection: Any) -> tuple[int, ...]:
        found = str(connection.exec_driver_sql("SELECT version()").scalar_one())
        return tuple(int(part) for part in found.lstrip("v").split("-")[0].split(".") if part.isdecimal())

    def type_of_text(self, text: str) -> Any:
        if text.upper() == "FLOAT":
            return sqltypes.REAL()
        return type_of(text)

    @reflection.cache
    def has_sequence(self, connection: Any, sequence_name: str, schema: str | None = None, **kw: Any) -> bool:
        return sequence_name in self.get_sequence_names(connection, schema)

    def get_sequence_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        sql = (
            "SELECT sequence_name FROM duckdb_sequences() WHERE database_name = current_database() AND schema_name = ?"
        )
        return list(connection.exec_driver_sql(sql, (schema or self.default_schema_name,)).scalars())


def _numbered(column: Column[Any]) -> Column[Any] | None:
    """Return the column if it is an autoincrement primary key without another default, else None."""
    table: Any = column.table
    default: Any = column.default
    is_free = default is None or (default.is_sequence and default.optional)
    has_other = column.server_default is not None and column.identity is None
    return column if column is table._autoincrement_column and is_free and not has_other else None


def _prefixes(table: Table) -> list[str]:
    prefixes: Any = table._prefixes
    return [str(one[0] if isinstance(one, tuple) else one) for one in prefixes]


def _sequence(table: Any, column: Column[Any], preparer: Any) -> str:
    name = preparer.quote(f"{table.name}_{column.name}_seq")
    return f"{preparer.quote_schema(table.schema)}.{name}" if table.schema else name
