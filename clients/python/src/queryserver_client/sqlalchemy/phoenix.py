"""Phoenix behind a server: rows are written by UPSERT, and reflected by the metadata calls."""

# Dialects of SQLAlchemy narrow the types of what they override.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false, reportPrivateUsage=false

from typing import Any

from sqlalchemy import exc
from sqlalchemy.engine import Connection
from sqlalchemy.sql.compiler import GenericTypeCompiler

from queryserver_client.sqlalchemy.other import Backslashes, OtherDialect, Unconstrained


class PhoenixCompiler(Backslashes):
    def visit_insert(self, insert_stmt: Any, *args: Any, **kw: Any) -> str:
        """UPSERT, the only statement of Phoenix that writes: a row with the same key is replaced."""
        text = super().visit_insert(insert_stmt, *args, **kw)
        return text.replace("INSERT", "UPSERT", 1)

    def visit_update(self, update_stmt: Any, *args: Any, **kw: Any) -> str:
        raise exc.CompileError("Phoenix has no UPDATE: insert the row with its key again.")


class PhoenixTables(Unconstrained):
    def get_column_specification(self, column: Any, **kw: Any) -> str:
        """NOT NULL is for columns of the key only."""
        name, kind = self.preparer.format_column(column), self.dialect.type_compiler_instance.process(column.type)
        default = self.get_column_default_string(column)
        text = f"{name} {kind}" if default is None else f"{name} {kind} DEFAULT {default}"
        return f"{text} NOT NULL" if column.primary_key else text

    def create_table_constraints(self, table: Any, *args: Any, **kw: Any) -> str:
        if not table.primary_key:
            raise exc.CompileError(f"Phoenix has no tables without a primary key: {table.name}")
        return super().create_table_constraints(table, *args, **kw)

    def visit_primary_key_constraint(self, constraint: Any, **kw: Any) -> str:
        """It must have a name."""
        columns = ", ".join(self.preparer.quote(column.name) for column in constraint.columns)
        name = self.preparer.format_constraint(constraint) if constraint.name is not None else "pk"
        return f"CONSTRAINT {name} PRIMARY KEY ({columns})"


class PhoenixTypes(GenericTypeCompiler):
    def visit_NUMERIC(self, type_: Any, **kw: Any) -> str:
        return self.visit_DECIMAL(type_, **kw)

    def visit_FLOAT(self, type_: Any, **kw: Any) -> str:
        return "FLOAT" if type_.precision is not None and type_.precision <= 24 else "DOUBLE"

    def visit_REAL(self, type_: Any, **kw: Any) -> str:
        return "FLOAT"

    def visit_DATETIME(self, type_: Any, **kw: Any) -> str:
        return "TIMESTAMP"

    visit_TIMESTAMP = visit_DATETIME

    def visit_TEXT(self, type_: Any, **kw: Any) -> str:
        return "VARCHAR"

    visit_CLOB = visit_TEXT

    def visit_NVARCHAR(self, type_: Any, **kw: Any) -> str:
        return self.visit_VARCHAR(type_, **kw)

    def visit_NCHAR(self, type_: Any, **kw: Any) -> str:
        return self.visit_CHAR(type_, **kw)

    def visit_BLOB(self, type_: Any, **kw: Any) -> str:
        return "VARBINARY"

    visit_large_binary = visit_VARBINARY = visit_BLOB


class PhoenixDialect(OtherDialect):
    name = "phoenix"
    supports_statement_cache = True
    engine_dialects = ("phoenix",)
    statement_compiler = PhoenixCompiler
    ddl_compiler = PhoenixTables
    type_compiler_cls = PhoenixTypes
    requires_name_normalize = True
    supports_multivalues_insert = False

    def _get_default_schema_name(self, connection: Connection) -> str:
        """The schema without a name."""
        return ""
