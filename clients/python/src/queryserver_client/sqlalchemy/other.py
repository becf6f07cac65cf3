"""Engines without a SQLAlchemy dialect: standard SQL with the engine's quotes, reflection with the metadata calls."""

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
    """The statement that selects the current schema, if the engine has one."""

    colspecs = {sqltypes.Numeric: types.Numeric, sqltypes.Float: types.Float, sqltypes.Uuid: types.Uuid}

    def _get_default_schema_name(self, connection: Connection) -> str | None:
        if self.default_schema_statement is None:
            return None
        name = connection.exec_driver_sql(self.default_schema_statement).scalar_one()
        return None if name is None else str(name)  # trino has no schema unless its connector names one


class ManyRows(DefaultDialect):
    """Must precede other base classes. For engines where an INSERT of one row takes as long as one of hundreds.

    Batches have fewer rows than for other engines, because Trino accepts at most 1 MB of SQL.
    """

    use_insertmanyvalues = True
    insertmanyvalues_page_size = 200


class Backslashes(SQLCompiler):
    """For engines whose string literals use a backslash as escape character."""

    def render_literal_value(self, value: Any, type_: Any) -> str:
        text = super().render_literal_value(value, type_)
        if len(text) < 2 or text[0] != "'" or text[-1] != "'":
            return text
        inner = text[1:-1].replace("''", "'")  # rendered by its type
        return "'" + inner.replace("\\", "\\\\").replace("'", "\\'") + "'"


class UnconstrainedDDLCompiler(DDLCompiler):
    """For engines without these constraints. Tables are created without them."""

    def visit_foreign_key_constraint(self, constraint: Any, **kw: Any) -> Any:
        return None  # omits this part of the statement

    visit_unique_constraint = visit_check_constraint = visit_foreign_key_constraint

    def visit_column_check_constraint(self, constraint: Any, **kw: Any) -> str:
        return ""


class Indexless(DDLCompiler):
    """For engines without indexes. Tables are created without them, and nothing is sent."""

    def visit_create_index(self, create: Any, **kw: Any) -> str:
        return ""

    def visit_drop_index(self, drop: Any, **kw: Any) -> str:
        return ""


class Keyless(Indexless, UnconstrainedDDLCompiler):
    def visit_primary_key_constraint(self, constraint: Any, **kw: Any) -> Any:
        return None


class QuotedNames(IdentifierPreparer):
    """For engines where quoting does not change a name. All names are quoted, so that reserved words are not a
    problem.
    """

    def _requires_quotes(self, value: str) -> bool:
        return True


class TrinoCompiler(SQLCompiler):
    def limit_clause(self, select: Any, **kw: Any) -> str:
        """Render OFFSET before LIMIT."""
        text = ""
        if select._offset_clause is not None:
            text += f"\nOFFSET {self.process(select._offset_clause, **kw)}"
        if select._limit_clause is not None:
            text += f"\nLIMIT {self.process(select._limit_clause, **kw)}"
        return text


class PlainTypes(GenericTypeCompiler):
    """For engines that have few type names, each in one form. UUIDs are texts."""

    text = "VARCHAR"
    single = "FLOAT"
    bytes = "VARBINARY"
    decimal = "DECIMAL(38, 10)"
    """Used if no precision is given, because DECIMAL alone has no fraction."""

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
        """Render the type with Python's microseconds. TIMESTAMP alone has milliseconds."""
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
    supports_alter = False  # ALTER would only add constraints, which are not supported
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
