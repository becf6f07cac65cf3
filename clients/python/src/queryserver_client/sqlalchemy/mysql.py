"""The MySQL and MariaDB dialect: SQLAlchemy's own, including its reflection, with the DB-API of this package."""

# SQLAlchemy's dialects narrow the types of overridden members.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false, reportPrivateUsage=false

import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import types as sqltypes
from sqlalchemy.dialects import mysql
from sqlalchemy.dialects.mysql.base import MySQLDialect as Engine
from sqlalchemy.dialects.mysql.base import MySQLExecutionContext

from queryserver_client.sqlalchemy import types
from queryserver_client.sqlalchemy.connector import QueryserverDialect
from queryserver_client.sqlalchemy.types import Process

_LEVELS = ("SERIALIZABLE", "READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ")
_CODES = (
    (re.compile(r"Table .* doesn't exist"), 1146),
    (re.compile(r"Unknown database"), 1049),
    (re.compile(r"Unknown table"), 1051),
)


class Numeric(mysql.NUMERIC):
    """MySQL's NUMERIC, which its compiler requires in casts, with the value conversion for this DB-API."""

    def bind_processor(self, dialect: Any) -> Any:
        return None

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        return types.Numeric(asdecimal=self.asdecimal).result_processor(dialect, coltype)


class Float(mysql.FLOAT):
    def bind_processor(self, dialect: Any) -> Any:
        return None

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        as_given = types.Float(asdecimal=self.asdecimal, decimal_return_scale=self._effective_decimal_return_scale)
        return as_given.result_processor(dialect, coltype)


class Time(mysql.TIME):
    """A time of day, or a string for other values such as `-01:00:00` or `100:00:00`.

    The DB-API already returns these types, whereas MySQL's own drivers return a timedelta.
    """

    def result_processor(self, dialect: Any, coltype: Any) -> None:
        return None


class Bit(mysql.BIT):
    """Bits as an integer. The DB-API returns BIT(1) as a bool, and wider types as bytes."""

    def result_processor(self, dialect: Any, coltype: Any) -> Process:
        return lambda value: int.from_bytes(value, "big") if isinstance(value, bytes) else value


class MySQLDialect(QueryserverDialect, Engine):
    supports_statement_cache = True
    execution_ctx_cls = MySQLExecutionContext
    engine_dialects = ("mysql",)
    colspecs = {
        **Engine.colspecs,
        sqltypes.Numeric: Numeric,
        sqltypes.Float: Float,
        sqltypes.Time: Time,
        mysql.TIME: Time,
        mysql.BIT: Bit,
    }

    def _get_server_version_info(self, connection: Any) -> Any:
        return Engine._get_server_version_info(self, connection)

    def _engine_levels(self, dbapi_connection: Any) -> Sequence[str]:
        return _LEVELS

    def _engine_level(self, dbapi_connection: Any) -> str:
        return Engine.get_isolation_level(self, dbapi_connection)

    def _set_engine_level(self, dbapi_connection: Any, level: Any) -> None:
        Engine.set_isolation_level(self, dbapi_connection, level)
        dbapi_connection.commit()

    def _detect_charset(self, connection: Any) -> str:
        return "utf8mb4"

    def _extract_error_code(self, exception: Any) -> int | None:
        """Derive the error number from the message, because the server returns MySQL's message without the number."""
        text = str(exception)
        return next((code for words, code in _CODES if words.search(text)), None)
