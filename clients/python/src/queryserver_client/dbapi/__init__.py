"""DB-API 2.0 (PEP 249) on top of queryserver.

    from queryserver_client import dbapi

    with dbapi.connect("https://…", "duckdb", token=…) as connection:
        cursor = connection.execute("SELECT * FROM sales WHERE id = ?", [7])
        print(cursor.fetchall())

A connection is one session on the server, which is opened with the first statement. On engines with transactions
(postgresql, mysql, duckdb, sqlite), the first statement begins a transaction, which `commit` or `rollback` ends, unless
`autocommit` is set. Other engines commit each statement individually.
"""

from queryserver_client.dbapi.connection import Connection, connect
from queryserver_client.dbapi.cursor import Cursor
from queryserver_client.dbapi.errors import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,  # noqa: A004
)
from queryserver_client.dbapi.types import (
    BINARY,
    DATETIME,
    NUMBER,
    ROWID,
    STRING,
    Binary,
    Date,
    DateFromTicks,
    Time,
    TimeFromTicks,
    Timestamp,
    TimestampFromTicks,
)

apilevel = "2.0"
threadsafety = 2
"""Threads may share the module and connections, but not cursors."""
paramstyle = "qmark"
"""`?` with a sequence; `:name` with a mapping is also supported."""

__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]
