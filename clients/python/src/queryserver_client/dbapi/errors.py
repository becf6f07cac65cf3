"""The exceptions of PEP 249, and which of them a failure of the client becomes.

Each is also a `QueryserverError`, and `__cause__` is the client's own exception. The SQLSTATE decides where the server
gives one; else constraints and wrong values are found by the words that each engine uses.
"""

import re
from collections.abc import Generator
from contextlib import contextmanager

import queryserver_client.errors as client
from queryserver_client.engine_sessions import LOST


class Warning(Exception):  # noqa: A001 - the name is that of PEP 249
    """Important warnings. Never raised by this module."""


class Error(client.QueryserverError):
    """Base of the exceptions of this module."""

    code = ""
    """The stable word of the failure (Contract editor 1.5, 3.4)."""
    line: int | None = None
    """Line of the error in the statement, from 1, where the engine names it."""
    column: int | None = None
    sqlstate: str | None = None
    request_id: str | None = None
    operation_id = ""
    is_disconnect = False
    """Whether the connection is of no use any more: the session of the server is gone, or the server itself."""


class InterfaceError(Error):
    """A mistake in the use of this module: a closed cursor, a fetch without a result."""


class DatabaseError(Error):
    """Base of what the server and the engine report."""


class DataError(DatabaseError):
    """A value that does not fit: out of range, too long, not of the type."""


class OperationalError(DatabaseError):
    """The connection, the login, a limit, a cancel or a time-out; not the statement's text."""


class IntegrityError(DatabaseError):
    """A constraint refused the change."""


class InternalError(DatabaseError):
    """The server or the engine failed by itself."""


class ProgrammingError(DatabaseError):
    """The text of the statement, its parameters, or a name in it."""


class NotSupportedError(DatabaseError):
    """The engine cannot do this."""


_BY_CODE: dict[str, type[DatabaseError]] = {
    "rejected": ProgrammingError,
    "invalid_parameter": ProgrammingError,
    "missing_parameter": ProgrammingError,
    "payload_too_large": ProgrammingError,
    "dialect_not_found": OperationalError,
    "not_supported": NotSupportedError,
    "internal_error": InternalError,
    "result_store_failed": InternalError,
}
_BY_WORDS: tuple[tuple[re.Pattern[str], type[DatabaseError]], ...] = (
    (
        re.compile(
            r"constraint (error|failed)|violates|duplicate (key|entry)|cannot be null|foreign key constraint fails"
            r"|integrity constraint",
            re.IGNORECASE,
        ),
        IntegrityError,
    ),
    (
        re.compile(
            r"conversion error|out of range|invalid input (syntax|error)|value too long|division by zero|data too long"
            r"|incorrect .* value|datatype mismatch",
            re.IGNORECASE,
        ),
        DataError,
    ),
    (
        re.compile(r"database is locked|deadlock|serializ|lock wait timeout|out of memory", re.IGNORECASE),
        OperationalError,
    ),
    (re.compile(r"not (yet )?(supported|implemented)", re.IGNORECASE), NotSupportedError),
)


_BY_CLASS: dict[str, type[DatabaseError]] = {
    "0A": NotSupportedError,
    "21": ProgrammingError,
    "22": DataError,
    "23": IntegrityError,
    "25": InternalError,
    "28": OperationalError,
    "40": OperationalError,
    "42": ProgrammingError,
    "44": ProgrammingError,
    "53": OperationalError,
    "54": OperationalError,
    "55": OperationalError,
    "57": OperationalError,
    "58": OperationalError,
    "XX": InternalError,
}
"""By the class of a SQLSTATE, its first two characters, as drivers of PostgreSQL do."""


def _by_sqlstate(sqlstate: str | None) -> type[DatabaseError] | None:
    return _BY_CLASS.get(sqlstate[:2]) if sqlstate else None


@contextmanager
def translated() -> Generator[None]:
    """Around each call of the client: its failures leave as exceptions of PEP 249."""
    try:
        yield
    except Error:
        raise
    except client.QueryserverError as error:
        raise of_client(error) from error
    except TypeError as error:  # a parameter that has no form on the wire
        raise ProgrammingError(str(error)) from error


def of_client(error: client.QueryserverError) -> Error:
    """The exception of PEP 249 for a failure of the client."""
    kind = _kind_of(error)
    made = kind(str(error))
    made.code = getattr(error, "code", "")
    made.line, made.column = getattr(error, "line", None), getattr(error, "column", None)
    made.sqlstate = getattr(error, "sqlstate", None)
    made.request_id = getattr(error, "request_id", None)
    made.operation_id = getattr(error, "operation_id", "")
    made.is_disconnect = isinstance(error, client.ConnectionLost) or made.code in LOST
    return made


def _kind_of(error: client.QueryserverError) -> type[Error]:
    if isinstance(error, client.ConfigurationError | client.MissingPackage):
        return InterfaceError
    code = getattr(error, "code", "")
    if code in _BY_CODE:
        return _BY_CODE[code]
    if code == "engine_error":
        if (known := _by_sqlstate(getattr(error, "sqlstate", None))) is not None:
            return known
        text = str(error)
        return next((kind for words, kind in _BY_WORDS if words.search(text)), ProgrammingError)
    return OperationalError
