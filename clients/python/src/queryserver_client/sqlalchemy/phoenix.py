"""The Phoenix dialect: writes with UPSERT, and reflection with the server's metadata calls."""

# SQLAlchemy's dialects narrow the types of overridden members.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false, reportPrivateUsage=false

from typing import Any

from sqlalchemy import exc
from sqlalchemy.engine import Connection
from sqlalchemy.sql.compiler import IdentifierPreparer

from queryserver_client.sqlalchemy.other import Backslashes, OtherDialect, PlainTypes, UnconstrainedDDLCompiler


class PhoenixCompiler(Backslashes):
    def visit_insert(self, insert_stmt: Any, *args: Any, **kw: Any) -> str:
        """Render UPSERT, Phoenix's only statement that writes rows. It replaces a row with the same key."""
        text = super().visit_insert(insert_stmt, *args, **kw)
        return text.replace("INSERT", "UPSERT", 1)

    def visit_update(self, update_stmt: Any, *args: Any, **kw: Any) -> str:
        raise exc.CompileError("Phoenix has no UPDATE: insert the row with its key again.")


class PhoenixTables(UnconstrainedDDLCompiler):
    def get_column_specification(self, column: Any, **kw: Any) -> str:
        """Render a column. Phoenix permits NOT NULL only for key columns."""
        name, kind = self.preparer.format_column(column), self.dialect.type_compiler_instance.process(column.type)
        default = self.get_column_default_string(column)
        text = f"{name} {kind} NOT NULL" if column.primary_key else f"{name} {kind}"
        return text if default is None else f"{text} DEFAULT {default}"

    def create_table_constraints(self, table: Any, *args: Any, **kw: Any) -> str:
        if not table.primary_key:
            raise exc.CompileError(f"Phoenix has no tables without a primary key: {table.name}")
        return super().create_table_constraints(table, *args, **kw)

    def visit_primary_key_constraint(self, constraint: Any, **kw: Any) -> str:
        """Render the primary key, which in Phoenix must have a name."""
        columns = ", ".join(self.preparer.quote(column.name) for column in constraint.columns)
        name = self.preparer.format_constraint(constraint) if constraint.name is not None else "pk"
        return f"CONSTRAINT {name} PRIMARY KEY ({columns})"


class PhoenixNames(IdentifierPreparer):
    """Quotes all names, so that no list of reserved words is needed.

    Case-insensitive names are quoted in upper case, because Phoenix converts unquoted names to upper case.
    """

    reserved_words = frozenset[str]()
    illegal_initial_characters = frozenset[str]()

    def quote(self, ident: str) -> str:
        name = super().quote(ident)
        is_plain = name == ident and getattr(ident, "quote", None) is None
        return self.quote_identifier(ident.upper()) if is_plain else name


class PhoenixTypes(PlainTypes):
    decimal = "DECIMAL"  # without a precision, it stores any number of digits


class PhoenixDialect(OtherDialect):
    name = "phoenix"
    supports_statement_cache = True
    engine_dialects = ("phoenix",)
    statement_compiler = PhoenixCompiler
    ddl_compiler = PhoenixTables
    type_compiler_cls = PhoenixTypes
    preparer = PhoenixNames
    requires_name_normalize = True
    supports_alter = False
    supports_multivalues_insert = False

    def _get_default_schema_name(self, connection: Connection) -> str:
        """Return "", the name of Phoenix's default schema."""
        return ""
