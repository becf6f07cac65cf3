"""The exceptions in this package. Each is a `QueryserverError`.

`ApiError` is a call that the server or a proxy rejected, `StatementError` a statement that did not succeed, and
`ConnectionLost` a server that was unavailable for the whole time for retries. Codes are those in the server's contract.
They never change, but messages may.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

_MAX_BODY_CHARACTERS = 500
_EXITS = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError)


def is_panic(error: BaseException) -> bool:
    """Return whether an error is a panic in a Rust library, which does not stop the program but is not an
    `Exception`.
    """
    return not isinstance(error, (Exception, *_EXITS))


class QueryserverError(Exception):
    """Base class of all exceptions."""

    idempotency_key: str | None = None
    """The idempotency key of the failed `query` or `submit`. Passing it to `submit` runs the same statement at most
    once.
    """


class ConfigurationError(QueryserverError, ValueError):
    """The address or the credentials passed to `connect` are invalid."""


class MissingPackage(QueryserverError, ImportError):
    """The called function needs an optional package."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is needed: pip install 'queryserver-client[{extra}]'")
        self.package = package


class ConversionFailed(QueryserverError):
    """A package cannot represent the rows, such as polars, whose panics are not an `Exception`."""


class ConnectionLost(QueryserverError):
    """The server was unavailable, or its response did not arrive, within the time for retries.

    `attempts` is the number of tries. `is_sent` is True if a request may have reached the server.
    """

    def __init__(self, message: str, *, attempts: int = 1, is_sent: bool = False) -> None:
        super().__init__(message)
        self.attempts = attempts
        self.is_sent = is_sent


class WaitTimeout(QueryserverError, TimeoutError):
    """The statement did not end within the timeout of `wait`. It continues."""


class ApiError(QueryserverError):
    """A call whose response reported a failure (Contract editor 1.5, platform 1.4)."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str = "",
        request_id: str | None = None,
        retry_after: float | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        """The HTTP status."""
        self.code = code
        """The stable error code. Empty in a response that did not come from queryserver."""
        self.request_id = request_id
        """The call's id in the server's log."""
        self.retry_after = retry_after
        """Seconds after which a retry makes sense, if the server reports them."""
        self.body = body or {}
        """The whole response. `errors` holds the errors of individual fields."""

    def __str__(self) -> str:
        named = f"{self.code}: {self.message}" if self.code else self.message
        return f"{named} (HTTP {self.status}, request {self.request_id})" if self.request_id else named

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling, for programs that run queries in other processes."""
        return _rebuilt, (type(self), self.args, self.__dict__)


class AuthenticationError(ApiError):
    """401: credentials are missing, or not (or no longer) accepted."""


class PermissionDenied(ApiError):
    """403: the user may not do this."""


class NotFound(ApiError):
    """404: the object does not exist, or the user may not see it."""


class Conflict(ApiError):
    """409: the call conflicts with existing data."""


class TooManyRequests(ApiError):
    """429: one of the user's limits is reached."""


class ServerUnavailable(ApiError):
    """502, 503, 504: the server, or a service that it needs, is unavailable."""


class StatementError(QueryserverError):
    """A statement that did not succeed (Contract editor 3.4)."""

    def __init__(
        self,
        message: str,
        *,
        code: str,
        operation_id: str = "",
        state: str = "",
        line: int | None = None,
        column: int | None = None,
        sqlstate: str | None = None,
        request_id: str | None = None,
        statement_id: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.sqlstate = sqlstate
        """The engine error's SQLSTATE, or its class, such as `23000` for a constraint. None if unknown."""
        self.operation_id = operation_id
        self.state = state
        """The exact state: failed, canceled, timed_out, expired, closed."""
        self.line = line
        """The line of the error in the statement, starting at 1, if the engine reports it."""
        self.column = column
        self.request_id = request_id
        self.statement_id = statement_id
        """In a script: the failed statement's position, starting at 0. `line` and `column` refer to this statement."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling, for programs that run queries in other processes."""
        return _rebuilt, (type(self), self.args, self.__dict__)


class StatementCanceled(StatementError):
    """The statement was canceled."""


class StatementTimeout(StatementError):
    """The statement's timeout was exceeded."""


class OutcomeUnknown(StatementError):
    """The connection to the engine was lost after the statement was sent, which may or may not have taken effect."""


class ResultGone(StatementError):
    """The statement succeeded, but its result is expired or closed."""


class NoResultSet(StatementError):
    """The statement succeeded without a result set, but the call needs one."""


class Truncated(StatementError):
    """The server kept only the first rows, because of a limit that the caller did not set (Contract editor 6.4).

    Execute the statement with `limit`, or accept the kept rows with `allow_truncated=True`.
    """


_BY_STATUS: Mapping[int, type[ApiError]] = {
    401: AuthenticationError,
    403: PermissionDenied,
    404: NotFound,
    409: Conflict,
    429: TooManyRequests,
    502: ServerUnavailable,
    503: ServerUnavailable,
    504: ServerUnavailable,
}
_BY_CODE: Mapping[str, type[StatementError]] = {
    "canceled": StatementCanceled,
    "statement_timeout": StatementTimeout,
    "outcome_unknown": OutcomeUnknown,
    "expired": ResultGone,
    "closed": ResultGone,
    "no_result_set": NoResultSet,
    "truncated": Truncated,
}


def api_error(
    status: int, body: Mapping[str, Any] | str, *, request_id: str | None, retry_after: float | None
) -> ApiError:
    """Return the exception for a response. `body` is its JSON object, or the text from another program, such as a
    proxy.
    """
    kind = _BY_STATUS.get(status, ApiError)
    if isinstance(body, str):
        text = " ".join(body[:_MAX_BODY_CHARACTERS].split()) or "no text"
        return kind(f"HTTP {status}: {text}", status=status, request_id=request_id, retry_after=retry_after)
    message = body.get("message") or body.get("error") or body.get("detail") or _field_errors(body) or f"HTTP {status}"
    return kind(
        str(message),
        status=status,
        code=str(body.get("code") or ""),
        request_id=request_id,
        retry_after=retry_after,
        body=body,
    )


def statement_error(body: Mapping[str, Any], *, request_id: str | None = None) -> StatementError:
    """Return the exception for a statement's response whose `status` is not 0 (Contract editor 1.4)."""
    code = str(body.get("code") or "")
    return _BY_CODE.get(code, StatementError)(
        str(body.get("message") or code),
        code=code,
        operation_id=str(body.get("history_uuid") or ""),
        state=str((body.get("query_status") or {}).get("state") or ""),
        line=body.get("line"),
        column=body.get("column"),
        sqlstate=body.get("sqlstate"),
        request_id=request_id,
        statement_id=body.get("statement_id"),
    )


def _field_errors(body: Mapping[str, Any]) -> str:
    """Return the texts in a field map (Contract platform 3.2)."""
    return "; ".join(f"{name}: {' '.join(map(str, texts))}" for name, texts in body.items() if isinstance(texts, list))


def _rebuilt(kind: type[Exception], args: tuple[Any, ...], facts: dict[str, Any]) -> Exception:
    made = kind.__new__(kind, *args)
    made.args = args
    made.__dict__.update(facts)
    return made
