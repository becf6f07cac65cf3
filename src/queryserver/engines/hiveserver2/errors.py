"""What can go wrong between here and a HiveServer2, as domain errors: the only place where it is known.

WireLost            the connection broke, or was never whole; `sent` tells whether the server may have the call
LoginRefused        the server refused who we are
ServerRefused       an answer with an error status
"""

import re
from collections.abc import Generator
from contextlib import contextmanager
from enum import Enum, auto

import httpx

from queryserver.domain.errors.statements import (
    CredentialsRequired,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    OutcomeUnknown,
    SessionLost,
    StatementDenied,
    StatementRejected,
    TableNotFound,
    database_not_found,
)
from queryserver.engines import denials
from queryserver.engines.error_places import HIVE, IMPALA, SPARK, place_in
from queryserver.engines.hiveserver2.protocol.messages import MalformedMessage, ServerException
from queryserver.engines.hiveserver2.protocol.status import TStatus, TStatusCode
from queryserver.engines.hiveserver2.redaction import in_plain_words
from queryserver.engines.hiveserver2.transports import Overlong
from queryserver.engines.tls import no_connection

_FINE = frozenset({TStatusCode.SUCCESS, TStatusCode.SUCCESS_WITH_INFO, TStatusCode.STILL_EXECUTING})


class WireLost(Exception):
    """No answer will come.

    `sent`: the server may have received the call. `timed_out`: it may still work on it. `is_refused`: the server does
    not accept the login for a new connection; an attempt per second would lock the user's account in a directory.
    """

    def __init__(self, *, sent: bool, timed_out: bool = False, is_refused: bool = False) -> None:
        super().__init__("The connection was lost.")
        self.sent = sent
        self.timed_out = timed_out
        self.is_refused = is_refused


class LoginRefused(Exception):
    """The server's words about the login."""


class ServerRefused(Exception):
    """An answer whose status is an error."""

    def __init__(self, status: TStatus) -> None:
        super().__init__(message_of(status))
        self.status = status


class Purpose(Enum):
    """What a call is for decides what its failure means."""

    OPEN = auto()
    """The making of a session: nothing was started."""
    SUBMIT = auto()
    FOLLOW = auto()
    """Anything about a statement that was started."""


CALL_FAILURES = (WireLost, LoginRefused, ServerRefused, ServerException, Overlong)
"""What a call may end with, and the look at its answer's status."""

LOST_IN_TRANSIT = (OSError, EOFError, TimeoutError, MalformedMessage, httpx.HTTPError, httpx.StreamError)
"""What transports raise when a connection is no longer usable."""

NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout)
"""Those of them that say that the server does not have the call."""

EXPIRED = "Results have expired: the engine no longer knows this statement."
_UNAVAILABLE = re.compile(r"(?i)inactive HS2|limit per|connections? limit|reached the max|shutting down|quiesc")
_NOT_ALLOWED = re.compile(r"(?i)impersonat|proxy privilege|not authorized to delegate|authenticat|unauthorized|doas")
_NO_SESSION = re.compile(
    r"(?i)invalid session ?(?:handle|id)|session (?:handle|id)? ?not found|session (?:is )?closed|session expired"
    r"|invalid or expired session|unknown session"
)
_NO_OPERATION = re.compile(
    r"(?i)invalid operation ?handle|invalid query handle|invalid query id|query id .{1,60} not found"
    r"|unknown (?:query|operation)|query .{1,60} expired due to client inactivity|operation .{1,80} not found"
)
_DENIED = re.compile(
    r"(?i)AuthorizationException|AccessControlException|Permission denied"
    r"|does not have (?:\[?\w+\]? )?privileges?\b|INSUFFICIENT_PERMISSIONS|Insufficient privileges"
)
_PLACES = (*SPARK, *IMPALA, *HIVE)
_TIME_LIMIT = re.compile(r"(?i)query timed? ?out|time limit|exceeded .{0,40}timeout|timed ?out after")


@contextmanager
def connect_errors() -> Generator[None]:
    """Around the making of a connection: EngineUnavailable or CredentialsRequired come out."""
    try:
        yield
    except LoginRefused as error:
        raise CredentialsRequired(clean_message(str(error)) or "The data source refused the login.") from error
    except (*LOST_IN_TRANSIT, WireLost) as error:
        raise EngineUnavailable(no_connection("the engine", error)) from error


@contextmanager
def call_errors(purpose: Purpose) -> Generator[None]:
    """Around calls. See Purpose for what comes out."""
    try:
        yield
    except WireLost as error:
        raise _lost(purpose, error) from error
    except LoginRefused as error:
        raise CredentialsRequired(clean_message(str(error)) or "The data source refused the login.") from error
    except ServerRefused as error:
        raise domain_error(str(error), purpose, error.status.status_code) from error
    except ServerException as error:
        raise domain_error(clean_message(error.message), purpose) from error
    except Overlong as error:
        raise OutcomeUnknown(f"The engine's answer is too large: {error.size} bytes.") from error


def _lost(purpose: Purpose, error: WireLost) -> EngineError:
    if purpose is Purpose.OPEN:
        return EngineUnavailable(no_connection("the engine", error))
    if purpose is Purpose.SUBMIT and not error.sent:
        return SessionLost("The engine session is gone; the statement was not started.")
    return OutcomeUnknown("The connection to the engine was lost while the statement ran.")


def domain_error(message: str, purpose: Purpose, code: int = TStatusCode.ERROR) -> EngineError:
    """What the server's words mean."""
    if purpose is Purpose.OPEN:
        return _open_error(message)
    if purpose is Purpose.SUBMIT and (_NO_SESSION.search(message) or code == TStatusCode.INVALID_HANDLE):
        return SessionLost("The engine session is gone; the statement was not started.")
    if code == TStatusCode.INVALID_HANDLE or _NO_OPERATION.search(message) or _NO_SESSION.search(message):
        return OutcomeUnknown(EXPIRED)
    if _TIME_LIMIT.search(message):
        return EngineTimeout(message)
    refused = StatementDenied(message) if _DENIED.search(message) else StatementRejected(message)
    return refused.at(place_in(message, _PLACES))


def _open_error(message: str) -> EngineError:
    if _NOT_ALLOWED.search(message):
        return CredentialsRequired(message)
    return EngineUnavailable(message) if _UNAVAILABLE.search(message) else StatementRejected(message)


def check(status: TStatus) -> None:
    """Raises ServerRefused for a status that is an error."""
    if status.status_code not in _FINE:
        raise ServerRefused(status)


def message_of(status: TStatus) -> str:
    """The engine's own words of a status."""
    infos = status.info_messages or [""]
    return clean_message(status.error_message or infos[0]) or "The engine refused the call without a reason."


# Messages hold statements of megabytes: no pattern may begin a long look anew at each blank line or dot.
_STACK = re.compile(r"\n[ \t]*at [\w$.<>/@-]+\([^)\n]*\)|\n[ \t]*(?:Caused by|Suppressed): |\n[ \t]*\.\.\. \d+ more")
_WRAPPERS = re.compile(
    r"\A\s*(?:\*?(?:[a-z][\w$]*\.)+[A-Z][\w$]*\s*:\s*|Error running query:\s*|Failed to open new session:\s*"
    r"|\[[A-Z][A-Z0-9_.]*\]\s*(?=(?:[a-z][\w$]*\.)+[A-Z][\w$]*\s*:))"
)
_POSITIONS = re.compile(r":\d+:\d+\s*\Z")
_LONGEST = 128 * 1024
"""Characters of a message that are looked at; records keep half of it."""


def clean_message(text: str) -> str:
    """The text without stack traces, Java's names of exceptions, addresses, and paths of the server's own disk."""
    text = text[:_LONGEST]
    is_wrapped = text.startswith("*")
    if found := _STACK.search(text):
        text = text[: found.start()]
    while found := _WRAPPERS.match(text):
        text = text[found.end() :]
    if is_wrapped:
        text = _POSITIONS.sub("", text)
    return in_plain_words(text).strip()


_NO_DATABASE = re.compile(r"SCHEMA_NOT_FOUND|Error 10072\b|Database does not exist|NoSuchDatabaseException")
_NO_TABLE = re.compile(
    r"TABLE_OR_VIEW_NOT_FOUND|Error 10001\b|Table not found|NoSuchTableException|InvalidTableException"
    r"|Table or database name may not contain|Could not resolve (?:path|table reference)|Table does not exist"
)
_NO_FUNCTION = re.compile(r"UNRESOLVED_ROUTINE|ROUTINE_NOT_FOUND|NoSuchFunctionException|Undefined function")


@contextmanager
def metadata_errors(database: str, table: str = "") -> Generator[None]:
    """Turn a refusal into database_not_found, TableNotFound or EngineForbidden where the engine's text tells so."""
    try:
        with denials.metadata_errors():
            yield
    except StatementRejected as error:
        if _NO_DATABASE.search(error.message):
            raise database_not_found(database) from error
        if table and _NO_TABLE.search(error.message):
            raise TableNotFound(database, table) from error
        raise


def is_unknown_function(error: StatementRejected) -> bool:
    """Whether the engine says that there is no such function."""
    return _NO_FUNCTION.search(error.message) is not None
