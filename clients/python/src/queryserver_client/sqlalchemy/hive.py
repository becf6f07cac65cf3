"""Hive, Impala and Spark SQL behind a server: back-ticks, their names of types, reflection by the metadata calls."""

# Dialects of SQLAlchemy narrow the types of what they override.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false, reportPrivateUsage=false

from typing import Any

from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.sql.compiler import DDLCompiler, GenericTypeCompiler, IdentifierPreparer

from queryserver_client.sqlalchemy.other import Backslashes, Keyless, ManyRows, OtherDialect


class BackTicks(IdentifierPreparer):
    def __init__(self, dialect: Any, **options: Any) -> None:
        super().__init__(dialect, initial_quote="`", final_quote="`", escape_quote="`", **options)


class HiveTypes(GenericTypeCompiler):
    def visit_VARCHAR(self, type_: Any, **kw: Any) -> str:
        return super().visit_VARCHAR(type_, **kw) if type_.length else "STRING"

    def visit_TEXT(self, type_: Any, **kw: Any) -> str:
        return "STRING"

    visit_CLOB = visit_NCHAR = visit_NVARCHAR = visit_UUID = visit_TEXT

    def visit_INTEGER(self, type_: Any, **kw: Any) -> str:
        return "INT"

    def visit_NUMERIC(self, type_: Any, **kw: Any) -> str:
        return self.visit_DECIMAL(type_, **kw)

    def visit_FLOAT(self, type_: Any, **kw: Any) -> str:
        return "FLOAT" if type_.precision is not None and type_.precision <= 24 else "DOUBLE"

    def visit_REAL(self, type_: Any, **kw: Any) -> str:
        return "FLOAT"

    def visit_DATETIME(self, type_: Any, **kw: Any) -> str:
        return "TIMESTAMP"

    visit_TIMESTAMP = visit_DATETIME

    def visit_BLOB(self, type_: Any, **kw: Any) -> str:
        return "BINARY"

    visit_large_binary = visit_BINARY = visit_VARBINARY = visit_BLOB


class HiveTables(DDLCompiler):
    """Keys are told to the planner; nothing enforces them, and Hive takes them only where the statement says so."""

    def visit_primary_key_constraint(self, constraint: Any, **kw: Any) -> str:
        return f"{super().visit_primary_key_constraint(constraint, **kw)} DISABLE NOVALIDATE"

    def visit_foreign_key_constraint(self, constraint: Any, **kw: Any) -> str:
        return f"{super().visit_foreign_key_constraint(constraint, **kw)} DISABLE NOVALIDATE"

    def visit_unique_constraint(self, constraint: Any, **kw: Any) -> str:
        return f"{super().visit_unique_constraint(constraint, **kw)} DISABLE NOVALIDATE"

    def visit_check_constraint(self, constraint: Any, **kw: Any) -> Any:
        return None


class HiveContext(DefaultExecutionContext):
    def _translate_colname(self, colname: str) -> tuple[str, str | None]:
        """Hive calls the columns of `SELECT *` `table.column`; rows have both names if the short is one column's."""
        name = colname.rpartition(".")[2]
        alike = [one for one in self.cursor.description or () if one[0].rpartition(".")[2] == name]
        return (name, colname) if name != colname and len(alike) == 1 else (colname, None)


class HiveDialect(ManyRows, OtherDialect):
    name = "hive"
    execution_ctx_cls = HiveContext
    supports_statement_cache = True
    engine_dialects = ("hive",)
    statement_compiler = Backslashes
    ddl_compiler = HiveTables
    type_compiler_cls = HiveTypes
    preparer = BackTicks
    default_schema_statement = "SELECT current_database()"


class ImpalaDialect(HiveDialect):
    name = "impala"
    execution_ctx_cls = DefaultExecutionContext
    supports_statement_cache = True
    engine_dialects = ("impala",)


class SparkDialect(HiveDialect):
    name = "sparksql"
    ddl_compiler = Keyless
    execution_ctx_cls = DefaultExecutionContext
    supports_statement_cache = True
    engine_dialects = ("sparksql",)
