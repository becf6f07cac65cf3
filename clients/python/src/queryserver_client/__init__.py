"""Python client for queryserver.

    async with connect("https://…", token=…) as db:
        result = await db.query("duckdb", "SELECT * FROM sales WHERE id = ?", [7])
        print(await result.rows())

`connect_sync` provides the same API without `await`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queryserver_client.connection import Connection, connect
    from queryserver_client.credentials import Secret
    from queryserver_client.errors import (
        ApiError,
        AuthenticationError,
        ConfigurationError,
        Conflict,
        ConnectionLost,
        ConversionFailed,
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
    from queryserver_client.files import Entry
    from queryserver_client.imports import FileOptions, ImportColumn, ImportFile
    from queryserver_client.result import Result
    from queryserver_client.retries import Retries
    from queryserver_client.shares import Share, SharedResult, Shares
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
    "ConversionFailed",
    "Entry",
    "Event",
    "FileOptions",
    "ImportColumn",
    "ImportFile",
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
    "Secret",
    "ServerUnavailable",
    "Share",
    "SharedResult",
    "Shares",
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

_PLACES = {
    "connection": ("Connection", "connect"),
    "credentials": ("Secret",),
    "errors": (
        "ApiError",
        "AuthenticationError",
        "ConfigurationError",
        "Conflict",
        "ConnectionLost",
        "ConversionFailed",
        "MissingPackage",
        "NoResultSet",
        "NotFound",
        "OutcomeUnknown",
        "PermissionDenied",
        "QueryserverError",
        "ResultGone",
        "ServerUnavailable",
        "StatementCanceled",
        "StatementError",
        "StatementTimeout",
        "TooManyRequests",
        "Truncated",
        "WaitTimeout",
    ),
    "files": ("Entry",),
    "imports": ("FileOptions", "ImportColumn", "ImportFile"),
    "result": ("Result",),
    "retries": ("Retries",),
    "shares": ("Share", "SharedResult", "Shares"),
    "statement": ("Statement",),
    "status": ("Event", "Logs", "Progress", "Status"),
    "sync": ("connect_sync",),
    "values": ("Column",),
}
"""Public names by module. A module is imported on first use of one of its names; `qs --help` imports none of them."""
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
