"""Python client of queryserver.

    async with connect("https://…", token=…) as db:
        result = await db.query("duckdb", "SELECT * FROM sales WHERE id = ?", [7])
        print(await result.rows())

`connect_sync` gives the same without `await`.
"""

from queryserver_client.connection import Connection, connect
from queryserver_client.errors import (
    ApiError,
    AuthenticationError,
    ConfigurationError,
    Conflict,
    ConnectionLost,
    MissingPackage,
    NoResultSet,
    NotFound,
    OutcomeUnknown,
    PermissionDenied,
    QueryserverError,
    ResultGone,
    ServerUnavailable,
    StatementCanceled,
    StatementError,
    StatementTimeout,
    TooManyRequests,
    Truncated,
    WaitTimeout,
)
from queryserver_client.result import Result
from queryserver_client.retries import Retries
from queryserver_client.statement import Statement
from queryserver_client.status import Event, Logs, Progress, Status
from queryserver_client.sync import connect_sync
from queryserver_client.values import Column

__version__ = "0.1.0"

__all__ = [
    "ApiError",
    "AuthenticationError",
    "Column",
    "ConfigurationError",
    "Conflict",
    "Connection",
    "ConnectionLost",
    "Event",
    "Logs",
    "MissingPackage",
    "NoResultSet",
    "NotFound",
    "OutcomeUnknown",
    "PermissionDenied",
    "Progress",
    "QueryserverError",
    "Result",
    "ResultGone",
    "Retries",
    "ServerUnavailable",
    "Statement",
    "StatementCanceled",
    "StatementError",
    "StatementTimeout",
    "Status",
    "TooManyRequests",
    "Truncated",
    "WaitTimeout",
    "__version__",
    "connect",
    "connect_sync",
]
