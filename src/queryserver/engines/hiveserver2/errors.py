"""Translates failures of HiveServer2 calls into domain errors, and removes server internals from messages.

- ConnectionLost: the connection broke or could not be opened. `sent` is set if the server may have received the call.
- LoginRefused: the server refused the login.
- ServerRefused: the server replied with an error status.
"""

import re
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from enum import Enum, auto

import httpx

from queryserver import errors
from queryserver.engines import catalog_queries
from queryserver.engines.connections import connection_failure_message
from queryserver.engines.engine_messages import HIVE, IMPALA, SPARK, find_location
from queryserver.engines.hiveserver2.messages import MalformedMessage, ServerException
from queryserver.engines.hiveserver2.structs import TStatus, TStatusCode
from queryserver.engines.hiveserver2.transports import ReplyTooLarge

MAX_LINE_CHARACTERS = 64 * 1024
_PATH, _ADDRESS, _HOST = "(path)", "(address)", "(host)"

_PACKAGES = r"(?:[a-z][\w$]*\.)+"
_SOURCE = r"(?:Native Method|Unknown Source|<generated>|[\w$-]+\.(?:java|scala|kt|groovy)(?::\d+)?)"
_FRAME_TEXT = rf"at [\w$.<>/@-]+\({_SOURCE}\)(?: ~?\[[^\]\n]*\])?"
_MORE = r"\.\.\. \d+ (?:more|common frames omitted)"
_FRAME = re.compile(rf"(?<![\w.]){_FRAME_TEXT}")
# Stack frames whose line breaks are escape sequences (a backslash and a letter).
_ESCAPED_FRAME = re.compile(rf"(?:\\[nrt]){{1,4}}(?:{_FRAME_TEXT}|{_MORE})")
# The last alternative matches Impala stack frames.
_FRAME_LINE = re.compile(rf"[ \t]+at [\w$.<>/@-]+\(.*|[ \t]*{_MORE}[ \t]*|[ \t]+@ +0x[0-9a-f]+\b.*")
_HEADINGS = frozenset({"Driver stacktrace:", "Full stacktrace:"})
_CAUSE = re.compile(r"[ \t]*(?:Caused by|Suppressed):[ \t]*")

# These patterns match exception names before a message, package names of exceptions without a message, and package
# names of server classes.
_EXCEPTION = re.compile(rf"(?<![\w$.]){_PACKAGES}[A-Z][\w$]*(?:Exception|Error|Throwable|Failure):\s*")
_BARE_EXCEPTION = re.compile(rf"(?<![\w$.]){_PACKAGES}(?=[A-Z][\w$]*(?:Exception|Error)\b)")
_CLASSES = re.compile(r"(?<![\w$.'\"`])(?:org\.apache|javax?|scala|jdk|sun|com\.sun)(?:\.[a-z_][\w$]*)+\.(?=[A-Z])")

_ADDRESSES = re.compile(
    r"\bjdbc:[a-z0-9]+:[^\s'\"<>)\]]*[^\s'\"<>)\],;.]"  # a JDBC URL, which may contain a user name and password
    r"|\b(?:https?|ldaps?|thrift|spark|tcp):/{1,2}[^\s'\"<>)\],;]*[^\s'\"<>)\],;.]"
    # an address in the format that Java prints
    r"|(?<![\w/:.-])[\w-]+(?:\.[\w-]+)*/(?:\d{1,3}(?:\.\d{1,3}){3}|<unresolved>)(?::\d+)?"
    r"|(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}:\d{2,5}\b"
)
_HOSTS = re.compile(
    r"(HS2 Host: \[)[^\]\s]+(?=\])|(\bError: Node: )[\w.-]+|(\()[\w.-]+(?= executor (?:driver|\d+)\))"
    r"|(\bto )[\w.-]+:\d+(?= failed on )"
)
_ENDS = r"[^\s'\"`,;()\[\]{}<>]*[^\s'\"`,;()\[\]{}<>.:]"
_PATHS = re.compile(
    rf"(\b(?:hdfs|viewfs|s3[an]?|abfss?|wasbs?|adl|gs|o3?fs|oss|cosn|obs|maprfs|s?webhdfs|har):/{_ENDS})"
    rf"|\bfile:/{_ENDS}"
    rf"|(?<![\w/.*-])/(?:opt|tmp|var|usr|etc|home|root|srv|mnt|run|proc|sys|dev|lib|lib64|bin|sbin|grid)/{_ENDS}"
    # job file directories of YARN and Spark
    rf"|(?<![\w:/.*-])(?:/[\w.-]+)*/(?:usercache|filecache|nm-local-dir|blockmgr-)(?:{_ENDS})?"
)


def without_internals(text: str) -> str:
    """Remove stack frames and Java exception names from a message, and mask details of the server.

    Addresses, host names and paths on the server's local disk are replaced with placeholders such as `(path)`.
    """
    text = _FRAME.sub("", _ESCAPED_FRAME.sub("", text))
    text = _CLASSES.sub("", _BARE_EXCEPTION.sub("", _EXCEPTION.sub("", text)))
    text = _ADDRESSES.sub(_ADDRESS, text)
    text = _HOSTS.sub(lambda match: f"{match[match.lastindex or 0]}{_HOST}", text)
    return _PATHS.sub(lambda match: match[1] or _PATH, text) if "/" in text else text


class LogFilter:
    """Cleans the lines of one log. The caller must pass all lines in order, starting with the first.

    Stack frames and exception names are removed. Each cause is kept only once, because servers repeat it for every task
    attempt. Lines are truncated to MAX_LINE_CHARACTERS characters.
    """

    def __init__(self) -> None:
        self._causes: deque[str] = deque(maxlen=100)

    def line(self, line: str) -> str | None:
        """Clean the next line for display; return None if it should be dropped."""
        line = line if len(line) <= MAX_LINE_CHARACTERS else f"{line[:MAX_LINE_CHARACTERS]}…"
        if _FRAME_LINE.fullmatch(line) or line.strip() in _HEADINGS:
            return None
        is_cause = (match := _CAUSE.match(line)) is not None
        text = line[match.end() :] if match else line
        shown = without_internals(text)
        if not is_cause:
            return shown if shown.strip() or not line.strip() else None
        if not shown.strip() or shown in self._causes:
            return None
        self._causes.append(shown)
        return f"Cause: {shown}"


class ConnectionLost(Exception):
    """The connection could not be opened, or was lost before the reply arrived.

    `sent` is set if the server may have received the call, and `timed_out` if the server may still be processing it.
    `is_refused` is set if the server rejected the login for a new connection. Such a login is not retried, because
    repeated attempts could lock the user's directory account.
    """

    def __init__(self, *, sent: bool, timed_out: bool = False, is_refused: bool = False) -> None:
        super().__init__("The connection was lost.")
        self.sent = sent
        self.timed_out = timed_out
        self.is_refused = is_refused


class LoginRefused(Exception):
    """The server refused the login. The exception's text is the server's message, if there is one."""


class ServerRefused(Exception):
    def __init__(self, status: TStatus) -> None:
        infos = status.info_messages or [""]
        message = clean_message(status.error_message or infos[0])
        super().__init__(message or "The engine rejected the call without an error message.")
        self.status = status


class Purpose(Enum):
    """The purpose of a call. It determines which domain error a failure is translated into."""

    OPEN = auto()  # opening a session; no statement was started
    SUBMIT = auto()
    FOLLOW = auto()  # any call about a running or finished statement


# All exceptions that a call can raise, including ServerRefused for an error status in the reply.
CALL_FAILURES = (ConnectionLost, LoginRefused, ServerRefused, ServerException, ReplyTooLarge)

# Transports raise these errors when a connection is no longer usable. After a NOT_SENT error, the server has not
# received the call.
LOST_IN_TRANSIT = (OSError, EOFError, TimeoutError, MalformedMessage, httpx.HTTPError, httpx.StreamError)
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout)

EXPIRED = "Results have expired: the statement no longer exists on the engine."
_NOT_STARTED = "The engine session no longer exists; the statement was not started."
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

_TIME_LIMIT = re.compile(r"(?i)query timed? ?out|time limit|exceeded .{0,40}timeout|timed ?out after")


@contextmanager
def connect_errors() -> Generator[None]:
    """Translate connection failures into EngineUnavailable or CredentialsRequired."""
    try:
        yield
    except LoginRefused as error:
        raise errors.CredentialsRequired(clean_message(str(error)) or "The data source rejected the login.") from error
    except (*LOST_IN_TRANSIT, ConnectionLost) as error:
        raise errors.EngineUnavailable(connection_failure_message("the engine", error)) from error


@contextmanager
def call_errors(purpose: Purpose, *, hidden: str = "") -> Generator[None]:
    """Translate call failures into domain errors, depending on the call's purpose.

    `hidden` is removed from messages of the server: text that this service has added to the statement.
    """
    try:
        yield
    except ConnectionLost as error:
        if purpose is Purpose.OPEN:
            raise errors.EngineUnavailable(connection_failure_message("the engine", error)) from error
        if purpose is Purpose.SUBMIT and not error.sent:
            raise errors.SessionLost(_NOT_STARTED) from error
        raise errors.OutcomeUnknown("The connection to the engine was lost while the statement ran.") from error
    except LoginRefused as error:
        raise errors.CredentialsRequired(clean_message(str(error)) or "The data source rejected the login.") from error
    except ServerRefused as error:
        raise domain_error(without(hidden, str(error)), purpose, error.status.status_code) from error
    except ServerException as error:
        raise domain_error(without(hidden, clean_message(error.message)), purpose) from error
    except ReplyTooLarge as error:
        raise errors.OutcomeUnknown(f"The engine's response is too large: {error.size} bytes.") from error


def without(hidden: str, message: str) -> str:
    return message.replace(hidden, "") if hidden else message


def domain_error(message: str, purpose: Purpose, code: int = TStatusCode.ERROR) -> errors.EngineError:
    if purpose is Purpose.OPEN:
        if _NOT_ALLOWED.search(message):
            return errors.CredentialsRequired(message)
        return errors.EngineUnavailable(message) if _UNAVAILABLE.search(message) else errors.StatementRejected(message)
    if purpose is Purpose.SUBMIT and (_NO_SESSION.search(message) or code == TStatusCode.INVALID_HANDLE):
        return errors.SessionLost(_NOT_STARTED)
    if code == TStatusCode.INVALID_HANDLE or _NO_OPERATION.search(message) or _NO_SESSION.search(message):
        return errors.OutcomeUnknown(EXPIRED)
    if _TIME_LIMIT.search(message):
        return errors.EngineTimeout(message)
    refused = errors.StatementDenied(message) if _DENIED.search(message) else errors.StatementRejected(message)
    return refused.at(find_location(message, (*SPARK, *IMPALA, *HIVE)))


def check(status: TStatus) -> None:
    """Raise ServerRefused for an error status."""
    if status.status_code not in {TStatusCode.SUCCESS, TStatusCode.SUCCESS_WITH_INFO, TStatusCode.STILL_EXECUTING}:
        raise ServerRefused(status)


# Messages may contain statements of several megabytes, so no pattern may start a long scan at every newline or dot.
_STACK = re.compile(r"\n[ \t]*at [\w$.<>/@-]+\([^)\n]*\)|\n[ \t]*(?:Caused by|Suppressed): |\n[ \t]*\.\.\. \d+ more")
_WRAPPERS = re.compile(
    r"\A\s*(?:\*?(?:[a-z][\w$]*\.)+[A-Z][\w$]*\s*:\s*|Error running query:\s*|Failed to open new session:\s*"
    r"|\[[A-Z][A-Z0-9_.]*\]\s*(?=(?:[a-z][\w$]*\.)+[A-Z][\w$]*\s*:))"
)
_MESSAGE_CHARACTERS = 128 * 1024  # longer messages are truncated; records store only half as much


def clean_message(text: str) -> str:
    """Prepare an error message for users.

    Truncates the message, and removes stack traces, wrapper prefixes and server internals.
    """
    text = text[:_MESSAGE_CHARACTERS]
    is_wrapped = text.startswith("*")
    if match := _STACK.search(text):
        text = text[: match.start()]
    while match := _WRAPPERS.match(text):
        text = text[match.end() :]
    if is_wrapped:
        text = re.sub(r":\d+:\d+\s*\Z", "", text)
    return without_internals(text).strip()


_NO_DATABASE = re.compile(r"SCHEMA_NOT_FOUND|Error 10072\b|Database does not exist|NoSuchDatabaseException")
_NO_TABLE = re.compile(
    r"TABLE_OR_VIEW_NOT_FOUND|Error 10001\b|Table not found|NoSuchTableException|InvalidTableException"
    r"|Table or database name may not contain|Could not resolve (?:path|table reference)|Table does not exist"
)


@contextmanager
def metadata_errors(database: str, table: str = "") -> Generator[None]:
    """Translate errors of metadata queries that report a missing database, a missing table or a missing privilege.

    They become `database_not_found`, TableNotFound and EngineForbidden. All other errors stay unchanged.
    """
    try:
        with catalog_queries.metadata_errors():
            yield
    except errors.StatementRejected as error:
        if _NO_DATABASE.search(error.message):
            raise errors.database_not_found(database) from error
        if table and _NO_TABLE.search(error.message):
            raise errors.TableNotFound(database, table) from error
        raise
