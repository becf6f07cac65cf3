"""The SQLite dialect: SQLAlchemy's own, including its reflection, with the DB-API of this package."""

# SQLAlchemy's dialects narrow the types of overridden members.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false, reportPrivateUsage=false

import datetime as dt
from typing import Any

from sqlalchemy import types as sqltypes
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.sqlite.base import SQLiteDialect
from sqlalchemy.engine import Connection, reflection

from queryserver_client.sqlalchemy import types
from queryserver_client.sqlalchemy.connector import QueryserverDialect


class _Native:
    """Converts only strings: SQLite stores dates as text, but the server already converts those in date columns."""

    def result_processor(self, dialect: Any, coltype: Any) -> types.Process:
        read: types.Process = super().result_processor(dialect, coltype)  # pyright: ignore[reportAttributeAccessIssue]

        def process(value: Any) -> Any:
            return read(value) if isinstance(value, str) else value

        return process


class Date(_Native, sqlite.DATE):
    def result_processor(self, dialect: Any, coltype: Any) -> types.Process:
        read = super().result_processor(dialect, coltype)
        return lambda value: value.date() if isinstance(value, dt.datetime) else read(value)


class DateTime(_Native, sqlite.DATETIME):
    pass


class Time(_Native, sqlite.TIME):
    pass


class SqliteDialect(QueryserverDialect, SQLiteDialect):
    supports_statement_cache = True
    engine_dialects = ("sqlite",)
    supports_native_decimal = False
    colspecs = {
        **SQLiteDialect.colspecs,
        sqltypes.Date: Date,
        sqltypes.DateTime: DateTime,
        sqltypes.Time: Time,
        sqltypes.Numeric: types.Numeric,
        sqltypes.Float: types.Float,
    }

    def __init__(self, *, dbapi: Any = None, paramstyle: Any = None, **options: Any) -> None:
        """Initialize without the module `sqlite3`, whose version is irrelevant because SQLite runs on the server."""
        SQLiteDialect.__init__(self, paramstyle=paramstyle or self.default_paramstyle, **options)
        self.dbapi = dbapi

    def _get_server_version_info(self, connection: Connection) -> tuple[int, ...]:
        found = connection.exec_driver_sql("SELECT sqlite_version()").scalar_one()
        return tuple(int(part) for part in str(found).split("."))

    @reflection.cache
    def get_schema_names(self, connection: Connection, **kw: Any) -> list[str]:
        """Return only `main`, because other database files cannot be attached."""
        return ["main"]
