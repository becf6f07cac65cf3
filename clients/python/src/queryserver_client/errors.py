"""The exceptions of this package, all of which are subclasses of `QueryserverError`.

`ApiError` means that the server or a proxy rejected a call, `StatementError` that a statement did not succeed, and
`ConnectionLost` that the server stayed unreachable until retries were exhausted. The codes are those of the server's
contract. They never change; messages may.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

_MAX_BODY_CHARACTERS = 500
_EXITS = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError)


def is_panic(error: BaseException) -> bool:
    """Return whether an error is a panic of a Rust library.

    A panic is a BaseException but not an Exception. Unlike KeyboardInterrupt, it need not end the program.
    """
    return not isinstance(error, (Exception, *_EXITS))


class QueryserverError(Exception):
    """Base class of all exceptions of this package."""

    idempotency_key: str | None = None
    """The idempotency key of the failed `query`, `script` or `submit`.

    If the same statement is passed to `submit` with this key, it still runs at most once.
    """


class ConfigurationError(QueryserverError, ValueError):
    """The address, credentials or other arguments are invalid."""


class MissingPackage(QueryserverError, ImportError):
    """The called function needs an optional package that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is required: pip install 'queryserver-client[{extra}]'")
        self.package = package


class ConversionFailed(QueryserverError):
    """Another package, such as polars, cannot represent the rows."""


class ConnectionLost(QueryserverError):
    """The server stayed unreachable, or no response arrived, until retries were exhausted.

    `attempts` is the number of attempts. `is_sent` is True if a request may have reached the server.
    """

    def __init__(self, message: str, *, attempts: int = 1, is_sent: bool = False) -> None:
        super().__init__(message)
        self.attempts = attempts
        self.is_sent = is_sent


class WaitTimeout(QueryserverError, TimeoutError):
    """The statement did not end within the timeout of `wait`. The statement continues."""


class ApiError(QueryserverError):
    """The response to a call reported a failure (Contract editor 1.5, platform 1.4)."""

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
        """The stable error code; empty if the response did not come from queryserver."""
        self.request_id = request_id
        """The id of the call in the server log."""
        self.retry_after = retry_after
        """Seconds to wait before a retry, if the server reports them."""
        self.body = body or {}
        """The whole response body. `errors` contains the errors of individual fields."""

    def __str__(self) -> str:
        named = f"{self.code}: {self.message}" if self.code else self.message
        return f"{named} (HTTP {self.status}, request {self.request_id})" if self.request_id else named

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling, for programs that run queries in other processes."""
        return _rebuilt, (type(self), self.args, self.__dict__)


class AuthenticationError(ApiError):
    """401: the credentials are missing, invalid or expired."""


class PermissionDenied(ApiError):
    """403: the user may not do this."""


class NotFound(ApiError):
    """404: the object does not exist, or the user may not see it."""


class Conflict(ApiError):
    """409: the call conflicts with the current state, for example because the object already exists."""


class TooManyRequests(ApiError):
    """429: one of the user's limits is reached."""


class ServerUnavailable(ApiError):
    """502, 503, 504: the server, or a service that it depends on, is unavailable."""


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
        """SQLSTATE of the engine error, or its class, such as `23000` for a constraint violation. None if unknown."""
        self.operation_id = operation_id
        self.state = state
        """Exact state: failed, canceled, timed_out, expired or closed."""
        self.line = line
        """1-based line of the error in the statement, if the engine reports it."""
        self.column = column
        self.request_id = request_id
        self.statement_id = statement_id
        """In a script: 0-based position of the failed statement, to which `line` and `column` refer."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling, for programs that run queries in other processes."""
        return _rebuilt, (type(self), self.args, self.__dict__)


class StatementCanceled(StatementError):
    """The statement was canceled."""


class StatementTimeout(StatementError):
    """The statement exceeded its timeout and was canceled."""


class OutcomeUnknown(StatementError):
    """The connection to the engine was lost after the statement was sent; it may or may not have taken effect."""


class ResultGone(StatementError):
    """The statement succeeded, but its result has expired or was closed."""


class NoResultSet(StatementError):
    """The statement succeeded but has no result set, which the call needs."""


class Truncated(StatementError):
    """The server stored only the first rows because of a limit that the caller did not set (Contract editor 6.4).

    Set `limit`, or accept the stored rows with `allow_truncated=True`.
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
    status: int, body: Mapping[str, Any] | str, *, request_id: str | None, retry_after: float | None, address: str = ""
) -> ApiError:
    """Return the exception for a failed call. `body` is the JSON object, or the text that e.g. a proxy returned.

    The message contains `address` if the response is a text, because it may come from another program.
    """
    kind = _BY_STATUS.get(status, ApiError)
    if isinstance(body, str):
        text = " ".join(body[:_MAX_BODY_CHARACTERS].split()) or "empty response"
        message = f"{address}{': ' if address else ''}HTTP {status}: {text}"
        return kind(message, status=status, request_id=request_id, retry_after=retry_after)
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
    """Return the exception for the response of a statement call whose `status` is not 0 (Contract editor 1.4)."""
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
    """Return the messages of a body that maps fields to messages (Contract platform 3.2)."""
    return "; ".join(f"{name}: {' '.join(map(str, texts))}" for name, texts in body.items() if isinstance(texts, list))


def _rebuilt(kind: type[Exception], args: tuple[Any, ...], facts: dict[str, Any]) -> Exception:
    made = kind.__new__(kind, *args)
    made.args = args
    made.__dict__.update(facts)
    return made
