"""Translates Trino's errors, builds request headers from login and session state, and parses result pages."""

import re
from base64 import b64encode
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, cast
from urllib.parse import quote_plus, unquote_plus, urlsplit

import httpx
import orjson

from queryserver import errors
from queryserver.engines.connections import RETRY_S, connection_failure_message
from queryserver.engines.protocol import NO_CONTEXT, SessionOptions, StatementContext
from queryserver.engines.statement_tags import short_tag
from queryserver.identity.model import User
from queryserver.platform.addresses import AddressRules, HttpServer

_MESSAGE_CHARS = 10_000


class TransientFailure(Exception):
    """A request failed for a reason that may be temporary. `reached` is set if it may have reached the server."""

    def __init__(self, message: str, *, reached: bool = True) -> None:
        super().__init__(message)
        self.message = message
        self.reached = reached


class TransientRefusal(TransientFailure):
    """The server responded with HTTP 429, 502, 503 or 504, so the request may be retried."""


class Expired(errors.OutcomeUnknown):
    """Trino no longer has the statement or its rows."""

    def __init__(self) -> None:
        super().__init__("Results have expired: the query no longer exists on Trino.")


class TrinoRejected(errors.StatementRejected):
    """An error reported by Trino. `name` is its `errorName`."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class TrinoDenied(TrinoRejected, errors.StatementDenied):
    """Trino reported that the user lacks a privilege."""


@contextmanager
def transport_errors() -> Generator[None]:
    """Translate httpx errors into TransientFailure."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        raise TransientFailure(connection_failure_message("Trino", error), reached=False) from error
    except httpx.TimeoutException as error:
        raise TransientFailure("Trino did not respond in time.") from error
    except (httpx.TransportError, httpx.DecodingError, httpx.StreamError) as error:
        raise TransientFailure("The connection to Trino was lost.") from error


def check_status(status: int, body: bytes) -> None:
    """Raise TransientFailure, CredentialsRequired, Expired or TrinoRejected unless the status is 200 or 204."""
    if status in {200, 204}:
        return
    if status in {429, 502, 503, 504}:
        raise TransientRefusal(f"Trino is currently unavailable (HTTP {status}).")
    if status == 401:
        raise errors.CredentialsRequired(_body_text(body) or "Trino rejected the login.")
    if status in {404, 410}:
        raise Expired
    raise _rejected(_body_text(body) or f"Trino rejected the request (HTTP {status}).", f"HTTP_{status}")


def final_error(transient: TransientFailure, *, sent: bool) -> errors.EngineError:
    """Return the error to raise after the last attempt. `sent` is set if Trino may be running the statement."""
    if sent:
        return errors.OutcomeUnknown(f"{transient.message} The statement may or may not have taken effect.")
    return errors.EngineUnavailable(transient.message)


def engine_error(error: Mapping[str, Any], *, before: int = 0, in_literal: bool = False) -> errors.EngineError:
    """Convert a page's `error` to a domain error.

    `before` is the length of the text on the same line that precedes the user's statement. It is subtracted from error
    positions. `in_literal` is set if the statement was sent in a string literal (EXECUTE IMMEDIATE).
    """
    name = str(error.get("errorName") or "")
    message = str(error.get("message") or name or "The query failed.").strip()[:_MESSAGE_CHARS]
    if name in {"EXCEEDED_TIME_LIMIT", "EXCEEDED_QUEUED_TIME_LIMIT"}:
        return errors.EngineTimeout(message)
    rejected = _rejected(message, name)
    match error.get("errorLocation"):
        # Lines and columns count from 1. Trino's parser counts code points.
        case {"lineNumber": int(line), "columnNumber": int(column)} if line > 0 and column > 0:
            if before and (line == 1 or (in_literal and _PARSER_MESSAGE in message)):
                # In a literal, the parser adds `before` to the column on every line, later stages only on the first.
                column = max(column - before, 1)
                rejected = _rejected(_POSITION.sub(f"line {line}:{column}: ", message), name)
            return rejected.at(errors.LineColumn(line, column))
        case _:
            return rejected


_PARSER_MESSAGE = ". Expecting: "
_POSITION = re.compile(r"\Aline \d+:\d+: ")


def _rejected(message: str, name: str) -> TrinoRejected:
    denied = name == "PERMISSION_DENIED" or message.startswith("Access Denied")
    return (TrinoDenied if denied else TrinoRejected)(message, name)


def _body_text(body: bytes) -> str:
    """Return the first line of an error response as plain text without HTML tags."""
    text = re.sub(r"<[^>]*>", " ", body[:_MESSAGE_CHARS].decode(errors="replace"))
    return next((line.strip()[:500] for line in text.splitlines() if line.strip()), "")


@dataclass(frozen=True, slots=True)
class TrinoVariant:
    """The differences between Trino and Presto: header names and features."""

    dialect: str
    header_prefix: str
    capabilities: str = ""  # without `PARAMETRIC_DATETIME`, the engine truncates times to milliseconds
    encodings: str = ""  # encodings of spooled results, best first; empty if the engine does not support spooling

    executes_immediately: bool = False
    """Whether the engine supports EXECUTE IMMEDIATE, which accepts parameters."""
    estimates_bytes: bool = False
    """Whether EXPLAIN in JSON contains the size of each table scan."""
    scan_limit: str = ""
    """The session property that limits the bytes that a statement reads; empty if there is none."""

    def header(self, name: str) -> str:
        return f"{self.header_prefix}{name}"


TRINO = TrinoVariant(
    "trino",
    "X-Trino-",
    "PATH,PARAMETRIC_DATETIME,SESSION_AUTHORIZATION",
    "json+zstd,json",
    executes_immediately=True,
    estimates_bytes=True,
    scan_limit="query_max_scan_physical_bytes",
)
PRESTO = TrinoVariant("presto", "X-Presto-")


class TrinoAuthentication(StrEnum):
    NONE = "NONE"
    BASIC = "BASIC"
    JWT = "JWT"  # the caller's own token


@dataclass(frozen=True, slots=True)
class TrinoTimeouts:
    """Time limits in seconds."""

    connect_s: float = 10.0
    answer_s: float = 30.0  # until the next bytes of a response; the coordinator responds to a GET within 1 s
    retry_s: float = RETRY_S  # how long a request is retried before the statement is abandoned
    stop_s: float = 5.0  # for each cancel or close call
    open_s: float = 20.0  # to open a session


@dataclass(frozen=True, slots=True)
class TrinoLogin:
    """The credentials sent with requests, and the `user` whose privileges apply. Secrets never appear in the repr."""

    user: str
    username: str = ""
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class TrinoAddress(HttpServer):
    """A coordinator's address and the session configuration of its connector (Contract platform 5.11: trino)."""

    catalog: str = ""
    schema: str = ""
    username: str | None = ""  # if empty, the caller's name; None if callers must log in through create_session
    password: str | None = field(default=None, repr=False)
    authentication: TrinoAuthentication = TrinoAuthentication.NONE
    has_impersonation: bool = False  # log in as `username`, but run statements as the caller
    ssl_validate: bool = True
    ssl_ca: str = ""  # PEM text of the certificate authorities to trust instead of the system's
    session_properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    client_tags: str = ""
    source: str = "queryserver"
    time_zone: str = ""
    timeouts: TrinoTimeouts = TrinoTimeouts()
    cell_max_bytes: int = 16 * 1024 * 1024  # size limit of a value, which determines the size limit of a response
    rules: AddressRules = field(default_factory=AddressRules)

    @property
    def path(self) -> str:
        """The path prefix before `/v1`, for a coordinator behind a proxy."""
        return urlsplit(self.url).path.rstrip("/")

    def login(self, user: User, options: SessionOptions) -> TrinoLogin:
        """Return the login for the user's session. Raises CredentialsRequired."""
        if self.authentication is TrinoAuthentication.JWT:
            if not options.external_token:
                raise errors.CredentialsRequired("This data source requires your own token.")
            return TrinoLogin(user.username, token=options.external_token)
        credentials = options.credentials
        if credentials is not None and (self.username is None or self.authentication is TrinoAuthentication.BASIC):
            password = credentials.password if self.authentication is TrinoAuthentication.BASIC else None
            return TrinoLogin(credentials.username, credentials.username, password)
        if credentials is not None and credentials.username != user.username:
            # The user name would determine access, although no server would check the password.
            raise errors.CredentialsRequired("This data source does not accept your own login.")
        if self.username is None:
            raise errors.CredentialsRequired("This data source requires your own username and password.")
        name = self.username or user.username
        runs_as = user.username if self.has_impersonation else name
        if self.authentication is TrinoAuthentication.BASIC:
            return TrinoLogin(runs_as, name, self.password or "")
        return TrinoLogin(runs_as)


NO_TRANSACTION = "NONE"
_PROPERTY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


@dataclass(slots=True)
class ClientState:
    """Session state that statements may change. Values are stored without URL encoding."""

    catalog: str = ""
    schema: str = ""
    path: str = ""
    properties: dict[str, str] = field(default_factory=dict[str, str])
    roles: dict[str, str] = field(default_factory=dict[str, str])
    prepared: dict[str, str] = field(default_factory=dict[str, str])
    transaction: str = NO_TRANSACTION
    authorization_user: str = ""  # set by SET SESSION AUTHORIZATION

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set session properties. Raises StatementRejected for an invalid name."""
        for name, value in properties.items():
            if not _PROPERTY.fullmatch(name):
                raise errors.StatementRejected(f"Session property '{name[:100]}' does not exist")
            self.properties[name] = value

    def apply_headers(self, headers: httpx.Headers, variant: TrinoVariant) -> None:
        """Apply the session changes from response headers."""

        def values(name: str) -> Sequence[str]:
            return headers.get_list(variant.header(name))

        for name, key in (
            ("Set-Catalog", "catalog"),
            ("Set-Schema", "schema"),
            ("Set-Path", "path"),
            ("Started-Transaction-Id", "transaction"),
            ("Set-Authorization-User", "authorization_user"),
        ):
            for value in values(name):
                setattr(self, key, value)
        _update(self.properties, values("Set-Session"), values("Clear-Session"))
        _update(self.roles, values("Set-Role"), ())
        _update(self.prepared, values("Added-Prepare"), values("Deallocated-Prepare"))
        if values("Clear-Transaction-Id"):
            self.transaction = NO_TRANSACTION
        if values("Reset-Authorization-User"):
            self.authorization_user = ""


_MAX_CLIENT_INFO_BYTES = 512


def context_headers(address: TrinoAddress, context: StatementContext) -> Mapping[str, str]:
    """Return the values of the headers that name the caller and the operation; empty if the context names nothing.

    A resource group can select statements by the client tags `connector=<key>` and `read_only`. Commas separate tags,
    so a connector whose key contains one has no tag.
    """
    tags = [address.client_tags]
    if context.connector and "," not in context.connector:
        tags.append(f"connector={context.connector}")
    if context.read_only:
        tags.append("read_only")
    return {
        "Client-Info": short_tag(context, _MAX_CLIENT_INFO_BYTES),
        "Client-Tags": ",".join(filter(None, tags)),
        "Trace-Token": context.traceparent or context.operation_id,
    }


_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(B|kB|MB|GB|TB|PB)\s*")
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def _limits(variant: TrinoVariant, state: ClientState, context: StatementContext) -> Mapping[str, str]:
    """Return the session property with the context's limit, unless the session has set a lower one."""
    if context.max_scanned_bytes is None or not variant.scan_limit:
        return {}
    match = _SIZE.fullmatch(state.properties.get(variant.scan_limit, ""))
    if match and float(match[1]) * 1024 ** _UNITS.index(match[2]) < context.max_scanned_bytes:
        return {}
    return {variant.scan_limit: f"{context.max_scanned_bytes}B"}


def request_headers(
    address: TrinoAddress,
    variant: TrinoVariant,
    login: TrinoLogin,
    state: ClientState,
    context: StatementContext = NO_CONTEXT,
) -> httpx.Headers:
    named = {
        "User": state.authorization_user or login.user,
        "Original-User": login.user if state.authorization_user else "",
        "Source": address.source,
        "Catalog": state.catalog,
        "Schema": state.schema,
        "Path": state.path,
        "Time-Zone": address.time_zone,
        **context_headers(address, context),
        "Client-Capabilities": variant.capabilities,
        "Query-Data-Encoding": variant.encodings,
        "Transaction-Id": state.transaction,
        "Session": _joined({**state.properties, **_limits(variant, state, context)}),
        "Role": _joined(state.roles),
        "Prepared-Statement": _joined(state.prepared),
    }
    # Header values must be printable and on a single line; they are sent as UTF-8.
    headers = httpx.Headers(
        [
            (variant.header(name).encode(), "".join(c if c.isprintable() else " " for c in value).strip().encode())
            for name, value in named.items()
            if value
        ]
    )
    # Between servers, compression takes the coordinator more time than it saves on the network.
    headers["Accept-Encoding"] = "identity"
    headers["User-Agent"] = address.source
    if context.traceparent:
        headers["traceparent"] = context.traceparent  # a coordinator with tracing makes its spans children of this one
    if login.token is not None:
        headers["Authorization"] = f"Bearer {login.token}"
    elif login.password is not None:
        pair = f"{login.username}:{login.password}"
        try:
            raw = pair.encode("latin-1")  # the encoding that Trino expects
        except UnicodeEncodeError:
            raw = pair.encode()  # Trino itself cannot check such a login, but a proxy can
        headers["Authorization"] = f"Basic {b64encode(raw).decode()}"
    return headers


def _joined(entries: Mapping[str, str]) -> str:
    return ",".join(f"{name}={quote_plus(value)}" for name, value in entries.items())


def _update(entries: dict[str, str], added: Sequence[str], removed: Sequence[str]) -> None:
    for entry in added:
        name, _, value = entry.partition("=")
        entries[name.strip()] = unquote_plus(value)
    for name in removed:
        entries.pop(name.strip(), None)


_WAITING = frozenset({"QUEUED", "WAITING_FOR_RESOURCES", "WAITING_FOR_PREREQUISITES", "DISPATCHING"})
_COUNT_COLUMNS = frozenset({("rows", "bigint"), ("result", "boolean")})

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TrinoPage:
    """A page of a statement's result. `uri` returns the same page again until `next_uri` is requested."""

    uri: str
    query_id: str
    next_uri: str | None
    columns: Sequence[Json] = ()
    rows: Sequence[Sequence[Any]] = ()
    spooled: Json | None = None  # encoding and segments, if the page itself does not contain the rows
    row_count: int = 0  # number of rows in the page or its segments
    error: Json | None = None
    update_type: str = ""
    update_count: int | None = None
    stats: Json = field(default_factory=dict[str, Any])
    warnings: Sequence[Json] = ()

    @property
    def has_rows(self) -> bool:
        return bool(self.rows) or bool(self.spooled and self.spooled.get("segments"))

    @property
    def is_waiting(self) -> bool:
        return self.stats.get("state") in _WAITING

    @property
    def changes_only(self) -> bool:
        """Whether the statement has an effect but no result set. Trino then returns a row count or `true` as a row."""
        if not self.update_type:
            return False
        described = [(column.get("name"), column.get("type")) for column in self.columns]
        return not described or (len(described) == 1 and described[0] in _COUNT_COLUMNS)

    @property
    def progress(self) -> int:
        """Progress in percent, as reported by Trino or, if it reports none, computed from the completed splits."""
        percent = self.stats.get("progressPercentage")
        if not isinstance(percent, int | float):
            done, total = self.stats.get("completedSplits"), self.stats.get("totalSplits")
            percent = 100 * done / total if isinstance(done, int) and isinstance(total, int) and total > 0 else 0
        return int(max(0, min(100, percent)))

    @property
    def scanned_bytes(self) -> int | None:
        """The bytes read from data sources so far. Some catalogs, such as `tpch`, always report 0."""
        counts = [self.stats.get(name) for name in ("physicalInputBytes", "processedBytes")]
        return max((count for count in counts if isinstance(count, int)), default=None)


def parse(body: bytes, uri: str) -> TrinoPage:
    """Parse a response body. Raises TransientFailure if the body is invalid, for example truncated."""
    try:
        answer = _object(orjson.loads(body))
        data = answer.get("data")
        spooled = data if isinstance(data, dict) else None
        rows = data if isinstance(data, list) else ()
        segments = _objects(spooled.get("segments")) if spooled is not None else ()
        in_segments = sum(int(segment["metadata"]["rowsCount"]) for segment in segments)
        return TrinoPage(
            uri=uri,
            query_id=str(answer["id"]),
            next_uri=_text_or_none(answer.get("nextUri")),
            columns=_objects(answer.get("columns")),
            rows=rows,
            spooled=spooled,
            row_count=len(rows) if spooled is None else in_segments,
            error=None if answer.get("error") is None else _object(answer["error"]),
            update_type=_text_or_none(answer.get("updateType")) or "",
            update_count=None if answer.get("updateCount") is None else int(answer["updateCount"]),
            stats=_object(answer["stats"]),
            warnings=_objects(answer.get("warnings")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise TransientFailure("Trino returned an invalid response.") from error


def _text_or_none(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError
    return value


def _object(value: Any) -> Json:
    if not isinstance(value, dict):
        raise TypeError
    return cast("Json", value)


def _objects(values: Any) -> Sequence[Json]:
    return [_object(value) for value in values or ()]
