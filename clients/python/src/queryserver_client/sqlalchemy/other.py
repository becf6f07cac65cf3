"""Dialects of engines for which SQLAlchemy has none: standard SQL, and reflection with the server's metadata calls."""

# SQLAlchemy's dialects narrow the types of overridden members.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false, reportPrivateUsage=false

from typing import Any

from sqlalchemy import types as sqltypes
from sqlalchemy.engine import Connection
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.sql.compiler import DDLCompiler, GenericTypeCompiler, IdentifierPreparer, SQLCompiler

from queryserver_client.sqlalchemy import types
from queryserver_client.sqlalchemy.connector import QueryserverDialect
from queryserver_client.sqlalchemy.reflection import MetadataCalls


class OtherDialect(QueryserverDialect, MetadataCalls, DefaultDialect):
    name = "queryserver"
    supports_statement_cache = True
    supports_native_boolean = True
    supports_multivalues_insert = True
    supports_sane_rowcount = False
    supports_sane_multi_rowcount = False
    supports_default_values = False
    supports_empty_insert = False
    postfetch_lastrowid = False
    default_schema_statement: str | None = None
    """SQL that selects the current schema; None if the engine has no such statement."""

    colspecs = {sqltypes.Numeric: types.Numeric, sqltypes.Float: types.Float, sqltypes.Uuid: types.Uuid}

    def _get_default_schema_name(self, connection: Connection) -> str | None:
        if self.default_schema_statement is None:
            return None
        name = connection.exec_driver_sql(self.default_schema_statement).scalar_one()
        return None if name is None else str(name)  # on trino, None unless the connector sets a schema


class ManyRows(DefaultDialect):
    """Mixin for engines on which inserting one row takes as long as inserting hundreds.

    It must precede other base classes. Batches are smaller than SQLAlchemy's default, because Trino accepts at
    most 1 MB of SQL.
    """

    use_insertmanyvalues = True
    insertmanyvalues_page_size = 200


class Backslashes(SQLCompiler):
    """Compiler for engines with backslash escapes in string literals."""

    def render_literal_value(self, value: Any, type_: Any) -> str:
        text = super().render_literal_value(value, type_)
        if len(text) < 2 or text[0] != "'" or text[-1] != "'":
            return text
        inner = text[1:-1].replace("''", "'")  # undo the quoting of the string type
        return "'" + inner.replace("\\", "\\\\").replace("'", "\\'") + "'"


class UnconstrainedDDLCompiler(DDLCompiler):
    """Omits foreign key, unique and check constraints, for engines that do not support them."""

    def visit_foreign_key_constraint(self, constraint: Any, **kw: Any) -> Any:
        return None  # omits this part of the statement

    visit_unique_constraint = visit_check_constraint = visit_foreign_key_constraint

    def visit_column_check_constraint(self, constraint: Any, **kw: Any) -> str:
        return ""


class Indexless(DDLCompiler):
    """Compiles index statements to nothing, for engines without indexes. Nothing is sent."""

    def visit_create_index(self, create: Any, **kw: Any) -> str:
        return ""

    def visit_drop_index(self, drop: Any, **kw: Any) -> str:
        return ""


class Keyless(Indexless, UnconstrainedDDLCompiler):
    def visit_primary_key_constraint(self, constraint: Any, **kw: Any) -> Any:
        return None


class QuotedNames(IdentifierPreparer):
    """Quotes all names, so that no list of reserved words is needed.

    Only for engines on which quoting does not change the meaning of a name.
    """

    def _requires_quotes(self, value: str) -> bool:
        return True


class TrinoCompiler(SQLCompiler):
    def limit_clause(self, select: Any, **kw: Any) -> str:
        """Render OFFSET before LIMIT, as Trino requires."""
        text = ""
        if select._offset_clause is not None:
            text += f"\nOFFSET {self.process(select._offset_clause, **kw)}"
        if select._limit_clause is not None:
            text += f"\nLIMIT {self.process(select._limit_clause, **kw)}"
        return text


class PlainTypes(GenericTypeCompiler):
    """Type names for engines with few types. UUIDs are stored as strings."""

    text = "VARCHAR"
    single = "FLOAT"
    bytes = "VARBINARY"
    decimal = "DECIMAL(38, 10)"
    """Type if no precision is given. Plain DECIMAL would have no decimal places."""

    def visit_NUMERIC(self, type_: Any, **kw: Any) -> str:
        return self.visit_DECIMAL(type_, **kw)

    def visit_DECIMAL(self, type_: Any, **kw: Any) -> str:
        return self.decimal if type_.precision is None else super().visit_DECIMAL(type_, **kw)

    def visit_FLOAT(self, type_: Any, **kw: Any) -> str:
        return self.single if type_.precision is not None and type_.precision <= 24 else "DOUBLE"

    def visit_REAL(self, type_: Any, **kw: Any) -> str:
        return self.single

    def visit_DATETIME(self, type_: Any, **kw: Any) -> str:
        return "TIMESTAMP"

    visit_TIMESTAMP = visit_DATETIME

    def visit_TEXT(self, type_: Any, **kw: Any) -> str:
        return self.text

    visit_CLOB = visit_UUID = visit_uuid = visit_TEXT

    def visit_NVARCHAR(self, type_: Any, **kw: Any) -> str:
        return self.visit_VARCHAR(type_, **kw)

    def visit_NCHAR(self, type_: Any, **kw: Any) -> str:
        return self.visit_CHAR(type_, **kw)

    def visit_BLOB(self, type_: Any, **kw: Any) -> str:
        return self.bytes

    visit_large_binary = visit_BINARY = visit_VARBINARY = visit_BLOB


class TrinoTypes(PlainTypes):
    single = "REAL"

    def visit_DATETIME(self, type_: Any, **kw: Any) -> str:
        """Render the type with microseconds, as in Python. Plain TIMESTAMP has only milliseconds."""
        return "TIMESTAMP(6) WITH TIME ZONE" if type_.timezone else "TIMESTAMP(6)"

    def visit_TIMESTAMP(self, type_: Any, **kw: Any) -> str:
        return "TIMESTAMP WITH TIME ZONE" if type_.timezone else "TIMESTAMP"


class TrinoNames(QuotedNames):
    def quote_schema(self, schema: str, force: Any = None) -> str:
        """Quote each part of `catalog.schema`. A part that contains a dot is already quoted (Contract editor 10)."""
        return ".".join(
            part if part.startswith('"') and part.endswith('"') else self.quote(part) for part in name_parts(schema)
        )


class TrinoDialect(ManyRows, OtherDialect):
    name = "trino"
    supports_statement_cache = True
    engine_dialects = ("trino",)
    statement_compiler = TrinoCompiler
    ddl_compiler = Keyless
    type_compiler_cls = TrinoTypes
    preparer = TrinoNames
    supports_alter = False  # SQLAlchemy uses ALTER only to add constraints, which Trino does not support
    default_schema_statement = "SELECT current_schema"
    div_is_floordiv = True


def name_parts(name: str) -> list[str]:
    """Split a name at the dots outside double quotes."""
    parts, is_quoted = [""], False
    for letter in name:
        is_quoted ^= letter == '"'
        if letter == "." and not is_quoted:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
