"""HTTP failures and Trino's own errors as domain errors: the only place where both are known."""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from queryserver.engines.connections import no_connection
from queryserver.errors.places import LineColumn
from queryserver.errors.statements import (
    CredentialsRequired,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    OutcomeUnknown,
    StatementDenied,
    StatementRejected,
)

_TIME_LIMITS = frozenset({"EXCEEDED_TIME_LIMIT", "EXCEEDED_QUEUED_TIME_LIMIT"})
_NO_RIGHT = frozenset({"PERMISSION_DENIED"})
_CANCELED = "USER_CANCELED"
_MARKUP = re.compile(r"<[^>]*>")
_MESSAGE_CHARS = 10_000


class Transient(Exception):
    """An answer, or none, after which the same request may be sent again. `reached` tells whether it was sent."""

    def __init__(self, message: str, *, reached: bool = True) -> None:
        super().__init__(message)
        self.message = message
        self.reached = reached


class Refused(Transient):
    """An answer that asks to send the request again in a moment (HTTP 429, 502, 503, 504)."""


class Expired(OutcomeUnknown):
    """Trino no longer knows the statement, or its rows."""

    def __init__(self) -> None:
        super().__init__("Results have expired: Trino no longer knows this statement.")


class TrinoRejected(StatementRejected):
    """Trino's own error; `name` is its `errorName`."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class TrinoDenied(TrinoRejected, StatementDenied):
    """Trino's own error about a right that the user lacks."""


@contextmanager
def transport_errors() -> Generator[None]:
    """Around one HTTP exchange: Transient comes out."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        raise Transient(no_connection("Trino", error), reached=False) from error
    except httpx.TimeoutException as error:
        raise Transient("Trino did not answer in time.") from error
    except (httpx.TransportError, httpx.DecodingError, httpx.StreamError) as error:
        raise Transient("The connection to Trino was lost.") from error


def check_status(status: int, body: bytes) -> None:
    """Raises for any answer but 200 and 204: Transient, CredentialsRequired, OutcomeUnknown, StatementRejected."""
    if status in {200, 204}:
        return
    if status in {429, 502, 503, 504}:
        raise Refused(f"Trino cannot be reached now (HTTP {status}).")
    if status == 401:
        raise CredentialsRequired(_text(body) or "Trino refused the login.")
    if status in {404, 410}:
        raise Expired
    raise _rejected(_text(body) or f"Trino refused the request (HTTP {status}).", f"HTTP_{status}")


def given_up(transient: Transient, *, sent: bool) -> EngineError:
    """What it means that a request was tried in vain; `sent` tells whether Trino may be at work for the statement."""
    if sent:
        return OutcomeUnknown(f"{transient.message} The statement may or may not have taken effect.")
    return EngineUnavailable(transient.message)


def is_cancel(error: Mapping[str, Any]) -> bool:
    """Whether a statement's error says that its user stopped it."""
    return error.get("errorName") == _CANCELED


def engine_error(error: Mapping[str, Any]) -> EngineError:
    """The member `error` of an answer."""
    name = str(error.get("errorName") or "")
    message = str(error.get("message") or name or "The query failed.").strip()[:_MESSAGE_CHARS]
    if name in _TIME_LIMITS:
        return EngineTimeout(message)
    return _rejected(message, name).at(_place(error.get("errorLocation")))


def _place(location: object) -> LineColumn | None:
    """Line and column, both from 1; Trino's parser counts code points."""
    match location:
        case {"lineNumber": int(line), "columnNumber": int(column)} if line > 0 and column > 0:
            return LineColumn(line, column)
        case _:
            return None


def _rejected(message: str, name: str) -> TrinoRejected:
    denied = name in _NO_RIGHT or message.startswith("Access Denied")
    return (TrinoDenied if denied else TrinoRejected)(message, name)


def _text(body: bytes) -> str:
    """What a proxy or the coordinator says in plain text; of a page only its first line."""
    text = body[:_MESSAGE_CHARS].decode(errors="replace")
    lines = [line.strip() for line in _MARKUP.sub(" ", text).splitlines() if line.strip()]
    return lines[0][:500] if lines else ""
