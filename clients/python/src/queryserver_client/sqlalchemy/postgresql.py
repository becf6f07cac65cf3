"""The PostgreSQL dialect: SQLAlchemy's own, including its reflection, with the DB-API of this package."""

# SQLAlchemy's dialects narrow the types of overridden members.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false, reportPrivateUsage=false

from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import types as sqltypes
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.dialects.postgresql.base import PGCompiler, PGDialect
from sqlalchemy.dialects.postgresql.pg_catalog import INT2VECTOR, OIDVECTOR

from queryserver_client.sqlalchemy import types
from queryserver_client.sqlalchemy.connector import QueryserverDialect

Kind = TypeVar("Kind", bound=type[Any])
_LEVELS = ("READ COMMITTED", "READ UNCOMMITTED", "REPEATABLE READ", "SERIALIZABLE")


def cast(kind: Kind) -> Kind:
    """Return a subclass of a type whose parameters are rendered with a cast: `?::INTEGER`."""
    made: Any = type(f"Cast{kind.__name__}", (kind,), {"render_bind_cast": True})
    return made


class QuestionMarks(PGCompiler):
    """Doubles the `?` in jsonb operators such as `?|`, because a single `?` is a placeholder."""

    def visit_custom_op_binary(self, element: Any, operator: Any, **kw: Any) -> str:
        text = f" {operator.opstring.replace('?', '??')} "
        return self._generate_generic_binary(element, text, eager_grouping=operator.eager_grouping, **kw)


class Interval(pg.INTERVAL):
    render_bind_cast = True

    def bind_processor(self, dialect: Any) -> types.Process:
        return types.interval_text

    def result_processor(self, dialect: Any, coltype: Any) -> types.Process:
        return types.interval_value

    def literal_processor(self, dialect: Any) -> types.Process:
        return lambda value: f"INTERVAL '{types.interval_text(value)}'"

    @classmethod
    def adapt_emulated_to_native(cls, interval: Any, **kw: Any) -> "Interval":
        return Interval(precision=interval.second_precision)


class IntIndex(sqltypes.JSON.JSONIntIndexType):
    """An index into a JSON array."""

    __visit_name__ = "json_int_index"
    render_bind_cast = True


class StrIndex(sqltypes.JSON.JSONStrIndexType):
    """A key of a JSON object."""

    __visit_name__ = "json_str_index"
    render_bind_cast = True


class _Vector:
    """Converts the space-separated numbers of catalog columns to a list."""

    def result_processor(self, dialect: Any, coltype: Any) -> types.Process:
        return lambda value: [int(one) for one in value.split()] if isinstance(value, str) else value


class _Int2Vector(_Vector, INT2VECTOR):
    cache_ok = True


class _OidVector(_Vector, OIDVECTOR):
    cache_ok = True


CASTS: dict[Any, Any] = {
    sqltypes.String: cast(sqltypes.String),
    sqltypes.Numeric: cast(types.Numeric),
    sqltypes.Float: cast(types.Float),
    sqltypes.Boolean: cast(sqltypes.Boolean),
    sqltypes.DateTime: cast(sqltypes.DateTime),
    sqltypes.Date: cast(sqltypes.Date),
    sqltypes.Time: cast(sqltypes.Time),
    sqltypes.Integer: cast(sqltypes.Integer),
    sqltypes.SmallInteger: cast(sqltypes.SmallInteger),
    sqltypes.BigInteger: cast(sqltypes.BigInteger),
    sqltypes.LargeBinary: cast(sqltypes.LargeBinary),
    sqltypes.Uuid: types.Uuid,
    sqltypes.Interval: Interval,
    sqltypes.JSON.JSONIntIndexType: IntIndex,
    sqltypes.JSON.JSONStrIndexType: StrIndex,
}


class PostgresqlDialect(QueryserverDialect, PGDialect):
    supports_statement_cache = True
    engine_dialects = ("postgresql",)
    statement_compiler = QuestionMarks
    colspecs = {
        **PGDialect.colspecs,
        **CASTS,
        sqltypes.JSON: cast(pg.JSON),
        pg.JSONB: cast(pg.JSONB),
        sqltypes.ARRAY: cast(pg.ARRAY),
        pg.INTERVAL: Interval,
        INT2VECTOR: _Int2Vector,
        OIDVECTOR: _OidVector,
    }

    def _get_server_version_info(self, connection: Any) -> Any:
        return PGDialect._get_server_version_info(self, connection)

    def _engine_levels(self, dbapi_connection: Any) -> Sequence[str]:
        return _LEVELS

    def _engine_level(self, dbapi_connection: Any) -> str:
        return PGDialect.get_isolation_level(self, dbapi_connection)

    def _set_engine_level(self, dbapi_connection: Any, level: str) -> None:
        with dbapi_connection.cursor() as cursor:
            cursor.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")
        dbapi_connection.commit()

    def set_readonly(self, connection: Any, value: bool) -> None:
        self._set_mode(connection, "READ ONLY" if value else "READ WRITE")

    def get_readonly(self, connection: Any) -> bool:
        return self._mode(connection, "transaction_read_only")

    def set_deferrable(self, connection: Any, value: bool) -> None:
        self._set_mode(connection, "DEFERRABLE" if value else "NOT DEFERRABLE")

    def get_deferrable(self, connection: Any) -> bool:
        return self._mode(connection, "transaction_deferrable")

    def _set_mode(self, connection: Any, mode: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION {mode}")
        connection.commit()

    def _mode(self, connection: Any, name: str) -> bool:
        with connection.cursor() as cursor:
            cursor.execute(f"SHOW {name}")
            return cursor.fetchone()[0] == "on"
