"""The PEP 249 exceptions, and the mapping of client failures to them.

Each exception is also a `QueryserverError`. `client_error` is the client's own exception, which is not chained, so that
a traceback contains each message only once. For engine errors, the class depends on the SQLSTATE if the server provides
one, otherwise on the wording of the engine's message.
"""

import re
from collections.abc import Generator
from contextlib import contextmanager

import queryserver_client.errors as client
from queryserver_client.engine_sessions import LOST


class Warning(Exception):  # noqa: A001 - the name is that of PEP 249
    """Required by PEP 249. Never raised by this module."""


class Error(client.QueryserverError):
    """Base class of the exceptions in this module."""

    code = ""
    """The stable error code (Contract editor 1.5, 3.4)."""
    line: int | None = None
    """The 1-based line of the error in the statement, if the engine reports it."""
    column: int | None = None
    sqlstate: str | None = None
    request_id: str | None = None
    operation_id = ""
    is_disconnect = False
    """Whether the connection is unusable because the session no longer exists or the server is unreachable."""
    client_error: client.QueryserverError | None = None
    """The exception of the client, such as `StatementError`."""


class InterfaceError(Error):
    """Wrong use of this module: a closed cursor, or a fetch without a result."""


class DatabaseError(Error):
    """Base class of errors that the server or the engine reports."""


class DataError(DatabaseError):
    """An invalid value: out of range, too long, or of the wrong type."""


class OperationalError(DatabaseError):
    """An error unrelated to the SQL: connection, login, limit, cancellation or timeout."""


class IntegrityError(DatabaseError):
    """A constraint violation."""


class InternalError(DatabaseError):
    """An internal failure of the server or the engine."""


class ProgrammingError(DatabaseError):
    """An error in the SQL, in its parameters, or in a name."""


class NotSupportedError(DatabaseError):
    """The engine does not support the requested operation."""


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
"""Exception by SQLSTATE class (the first two characters), as in PostgreSQL drivers."""


def _by_sqlstate(sqlstate: str | None) -> type[DatabaseError] | None:
    return _BY_CLASS.get(sqlstate[:2]) if sqlstate else None


@contextmanager
def translated() -> Generator[None]:
    """Translate errors of client calls to PEP 249 exceptions."""
    try:
        yield
    except Error:
        raise
    except client.QueryserverError as error:
        raise of_client(error) from None
    except TypeError as error:  # a parameter that cannot be encoded
        raise ProgrammingError(str(error)) from None


def of_client(error: client.QueryserverError) -> Error:
    """Return the PEP 249 exception for an error of the client."""
    kind = _kind_of(error)
    made = kind(str(error))
    made.client_error = error
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
