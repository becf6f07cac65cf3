"""The Hive, Impala and Spark SQL dialects: backticks, type names, and reflection with the server's metadata calls."""

# SQLAlchemy's dialects narrow the types of overridden members.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false, reportPrivateUsage=false

from typing import Any

from sqlalchemy.engine.default import DefaultExecutionContext

from queryserver_client.sqlalchemy.other import (
    Backslashes,
    Indexless,
    Keyless,
    ManyRows,
    OtherDialect,
    PlainTypes,
    QuotedNames,
)


class BackTicks(QuotedNames):
    def __init__(self, dialect: Any, **options: Any) -> None:
        super().__init__(dialect, initial_quote="`", final_quote="`", escape_quote="`", **options)


class HiveTypes(PlainTypes):
    text = "STRING"
    bytes = "BINARY"

    def visit_VARCHAR(self, type_: Any, **kw: Any) -> str:
        return super().visit_VARCHAR(type_, **kw) if type_.length else "STRING"

    def visit_NVARCHAR(self, type_: Any, **kw: Any) -> str:
        return "STRING"

    visit_NCHAR = visit_NVARCHAR

    def visit_INTEGER(self, type_: Any, **kw: Any) -> str:
        return "INT"


class HiveTables(Indexless):
    """Declares keys DISABLE NOVALIDATE, as Hive requires: they are hints for the planner and are not enforced."""

    def get_column_specification(self, column: Any, **kw: Any) -> str:
        """Render a column, without NOT NULL if it has a default.

        Hive permits only one constraint per column, and a default counts as a constraint.
        """
        text = super().get_column_specification(column, **kw)
        return text.removesuffix(" NOT NULL") if self.get_column_default_string(column) is not None else text

    def define_constraint_cascades(self, constraint: Any) -> str:
        return ""

    define_constraint_match = define_constraint_deferrability = define_constraint_cascades

    def visit_primary_key_constraint(self, constraint: Any, **kw: Any) -> str:
        return f"{super().visit_primary_key_constraint(constraint, **kw)} DISABLE NOVALIDATE"

    def visit_foreign_key_constraint(self, constraint: Any, **kw: Any) -> str:
        return f"{super().visit_foreign_key_constraint(constraint, **kw)} DISABLE NOVALIDATE"

    def visit_unique_constraint(self, constraint: Any, **kw: Any) -> str:
        return f"{super().visit_unique_constraint(constraint, **kw)} DISABLE NOVALIDATE"

    def visit_check_constraint(self, constraint: Any, **kw: Any) -> Any:
        return None

    def visit_column_check_constraint(self, constraint: Any, **kw: Any) -> str:
        return ""


class ImpalaTables(Keyless):
    def get_column_specification(self, column: Any, **kw: Any) -> str:
        """Render a column without NOT NULL, which Impala permits only in Kudu tables, which need more clauses."""
        return super().get_column_specification(column, **kw).removesuffix(" NOT NULL")


class HiveContext(DefaultExecutionContext):
    def _translate_colname(self, colname: str) -> tuple[str, str | None]:
        """Map Hive's column names in `SELECT *`, such as `table.column`, to the column name if it is unique.

        The full name then also remains usable.
        """
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
    ddl_compiler = ImpalaTables
    supports_alter = False
    execution_ctx_cls = DefaultExecutionContext
    supports_statement_cache = True
    engine_dialects = ("impala",)


class SparkDialect(HiveDialect):
    name = "sparksql"
    ddl_compiler = Keyless
    supports_alter = False
    execution_ctx_cls = DefaultExecutionContext
    supports_statement_cache = True
    engine_dialects = ("sparksql",)
