"""What can go wrong. Every exception of this package is a `QueryserverError`.

`ApiError` is a call that the server or a proxy refused, `StatementError` a statement that did not end well, and
`ConnectionLost` a server that could not be reached within the time for retries. Codes are those of the server's
contract; they never change, and messages may.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

_MAX_BODY_CHARACTERS = 500
_EXITS = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError)


def is_panic(error: BaseException) -> bool:
    """Whether it is a failure of a library in Rust, which ends no program and yet is no `Exception`."""
    return not isinstance(error, (Exception, *_EXITS))


class QueryserverError(Exception):
    """Base of all."""

    idempotency_key: str | None = None
    """Of the statement whose `query` or `submit` failed so, for `submit`: with it the same one runs once at most."""


class ConfigurationError(QueryserverError, ValueError):
    """The address or the credentials given to `connect` cannot be used."""


class MissingPackage(QueryserverError, ImportError):
    """An optional package is needed for what was called."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is needed: pip install 'queryserver-client[{extra}]'")
        self.package = package


class ConversionFailed(QueryserverError):
    """A package that was to take the rows cannot hold them, such as polars, whose panics are no `Exception`."""


class ConnectionLost(QueryserverError):
    """The server could not be reached, or its answer did not arrive, within the time for retries.

    `attempts` is the number of tries. `is_sent` is True when a request may have reached the server.
    """

    def __init__(self, message: str, *, attempts: int = 1, is_sent: bool = False) -> None:
        super().__init__(message)
        self.attempts = attempts
        self.is_sent = is_sent


class WaitTimeout(QueryserverError, TimeoutError):
    """The statement had not ended when the time given to `wait` was over. It goes on."""


class ApiError(QueryserverError):
    """A call that was answered with a failure (Contract editor 1.5, platform 1.4)."""

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
        """The stable word of the failure; empty in an answer that did not come from queryserver."""
        self.request_id = request_id
        """The id of the call in the server's log."""
        self.retry_after = retry_after
        """Seconds after which a repeat makes sense, when the server names them."""
        self.body = body or {}
        """The whole answer; `errors` holds the faults of single fields."""

    def __str__(self) -> str:
        named = f"{self.code}: {self.message}" if self.code else self.message
        return f"{named} (HTTP {self.status}, request {self.request_id})" if self.request_id else named

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickling, for programs that run queries in other processes."""
        return _rebuilt, (type(self), self.args, self.__dict__)


class AuthenticationError(ApiError):
    """401: there are no credentials, or they are not accepted (any more)."""


class PermissionDenied(ApiError):
    """403: the user may not do this."""


class NotFound(ApiError):
    """404: there is no such thing, or the user may not see it."""


class Conflict(ApiError):
    """409: what exists already stands against it."""


class TooManyRequests(ApiError):
    """429: a limit of the user is reached."""


class ServerUnavailable(ApiError):
    """502, 503, 504: the server, or what it needs, cannot be reached."""


class StatementError(QueryserverError):
    """A statement that did not end well (Contract editor 3.4)."""

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
        """Of the engine's error, or the class that fits it, `23000` for a constraint; None: not known."""
        self.operation_id = operation_id
        self.state = state
        """The exact state: failed, canceled, timed_out, expired, closed."""
        self.line = line
        """Line of the error in the statement, from 1, where the engine names it."""
        self.column = column
        self.request_id = request_id
        self.statement_id = statement_id
        """Of a script: the position, from 0, of the statement that failed, which `line` and `column` are places in."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickling, for programs that run queries in other processes."""
        return _rebuilt, (type(self), self.args, self.__dict__)


class StatementCanceled(StatementError):
    """It was canceled."""


class StatementTimeout(StatementError):
    """Its time limit passed."""


class OutcomeUnknown(StatementError):
    """The connection to the engine was lost after it was sent: it may or may not have taken effect."""


class ResultGone(StatementError):
    """It had succeeded, and its result is expired or closed."""


class NoResultSet(StatementError):
    """It succeeded and has no rows: what was called needs some."""


class Truncated(StatementError):
    """The server kept only the first rows, by a limit that the caller had not set (Contract editor 6.4).

    Execute it with `limit`, or take what was kept with `allow_truncated=True`.
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
    """The exception for an answer: `body` is its JSON object, or the text of another program, such as a proxy."""
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
    """The exception for an answer about a statement whose `status` is not 0 (Contract editor 1.4)."""
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
    """The texts of a field map (Contract platform 3.2)."""
    return "; ".join(f"{name}: {' '.join(map(str, texts))}" for name, texts in body.items() if isinstance(texts, list))


def _rebuilt(kind: type[Exception], args: tuple[Any, ...], facts: dict[str, Any]) -> Exception:
    made = kind.__new__(kind, *args)
    made.args = args
    made.__dict__.update(facts)
    return made
