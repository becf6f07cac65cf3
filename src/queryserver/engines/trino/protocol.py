"""The client protocol: where the coordinator is, the state of the client, pages of results."""

import re
from base64 import b64encode
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Self, cast
from urllib.parse import quote_plus, unquote_plus, urlsplit

import httpx
import orjson

from queryserver.engines.connections import RETRY_S, no_connection
from queryserver.engines.protocol import SessionOptions
from queryserver.errors.statements import (
    CredentialsRequired,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    LineColumn,
    OutcomeUnknown,
    StatementDenied,
    StatementRejected,
)
from queryserver.identity.model import User
from queryserver.platform.addresses import AddressRules, HttpServer

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
        raise CredentialsRequired(_body_text(body) or "Trino refused the login.")
    if status in {404, 410}:
        raise Expired
    raise _rejected(_body_text(body) or f"Trino refused the request (HTTP {status}).", f"HTTP_{status}")


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


def _body_text(body: bytes) -> str:
    """What a proxy or the coordinator says in plain text; of a page only its first line."""
    text = body[:_MESSAGE_CHARS].decode(errors="replace")
    lines = [line.strip() for line in _MARKUP.sub(" ", text).splitlines() if line.strip()]
    return lines[0][:500] if lines else ""


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the two engines that speak the protocol: they differ in the names of headers and in what they offer."""

    dialect: str
    header_prefix: str
    capabilities: str = ""
    """What we understand of newer answers: without `PARAMETRIC_DATETIME` times are cut to milliseconds."""
    encodings: str = ""
    """Encodings of spooled results that we can read, best first; empty: the engine knows none."""

    def header(self, name: str) -> str:
        """The engine's header of that name: `X-Trino-User`."""
        return f"{self.header_prefix}{name}"


TRINO = Variant("trino", "X-Trino-", "PATH,PARAMETRIC_DATETIME,SESSION_AUTHORIZATION", "json+zstd,json")
PRESTO = Variant("presto", "X-Presto-")


class Authentication(StrEnum):
    """How the coordinator knows who logs in."""

    NONE = "NONE"
    BASIC = "BASIC"
    JWT = "JWT"
    """By the caller's own token."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, in seconds."""

    connect_s: float = 10.0
    answer_s: float = 30.0
    """For the next bytes of an answer; the coordinator itself answers a look after at most 1 s."""
    retry_s: float = RETRY_S
    """How long a request is tried again in vain before the statement is given up."""
    stop_s: float = 5.0
    """For each of the calls that end something."""
    open_s: float = 20.0
    """For the opening of a session."""


@dataclass(frozen=True, slots=True)
class Login:
    """As whom requests are sent. `user` is whose rights count; the secrets are never shown."""

    user: str
    username: str = ""
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class TrinoAddress(HttpServer):
    """A coordinator and what its connector says about sessions (Contract platform 5.11: trino)."""

    catalog: str = ""
    schema: str = ""
    username: str | None = ""
    """Empty: the caller's name; None: callers give theirs through create_session."""
    password: str | None = field(default=None, repr=False)
    authentication: Authentication = Authentication.NONE
    has_impersonation: bool = False
    """Log in as `username`, run statements as the caller."""
    ssl_validate: bool = True
    ssl_ca: str = ""
    """PEM text of the authorities to trust instead of the system's."""
    session_properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    client_tags: str = ""
    source: str = "queryserver"
    time_zone: str = ""
    patience: Patience = Patience()
    cell_max_bytes: int = 16 * 1024 * 1024
    """Largest value of a result; answers with rows that are much larger are not read to their end."""
    rules: AddressRules = field(default_factory=AddressRules)

    @property
    def path(self) -> str:
        """What stands before `/v1`, where a proxy has the coordinator below a path."""
        return urlsplit(self.url).path.rstrip("/")

    def login(self, user: User, options: SessionOptions) -> Login:
        """As whom a session of `user` runs. Raises CredentialsRequired."""
        if self.authentication is Authentication.JWT:
            if not options.external_token:
                raise CredentialsRequired("This data source wants your own token.")
            return Login(user.username, token=options.external_token)
        given = options.credentials
        if given is not None and (self.username is None or self.authentication is Authentication.BASIC):
            password = given.password if self.authentication is Authentication.BASIC else None
            return Login(given.username, given.username, password)
        if given is not None and given.username != user.username:
            # Nobody would check the password, and the name alone decides what may be seen.
            raise CredentialsRequired("This data source takes no login of your own.")
        if self.username is None:
            raise CredentialsRequired("This data source wants your own user name and password.")
        name = self.username or user.username
        runs_as = user.username if self.has_impersonation else name
        if self.authentication is Authentication.BASIC:
            return Login(runs_as, name, self.password or "")
        return Login(runs_as)


NO_TRANSACTION = "NONE"
_PROPERTY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


def _texts() -> dict[str, str]:
    return {}


@dataclass(slots=True)
class ClientState:
    """The changeable part, in Trino's words; `prepared` and `properties` are unquoted."""

    catalog: str = ""
    schema: str = ""
    path: str = ""
    properties: dict[str, str] = field(default_factory=_texts)
    roles: dict[str, str] = field(default_factory=_texts)
    prepared: dict[str, str] = field(default_factory=_texts)
    transaction: str = NO_TRANSACTION
    authorization_user: str = ""
    """Set by SET SESSION AUTHORIZATION."""

    def as_json(self) -> dict[str, Any]:
        """Readable by `of_json`."""
        return asdict(self)

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> Self:
        """Raises TypeError for what `as_json` did not write."""
        return cls(**fields)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Raises StatementRejected for a name that no property can have."""
        for name, value in properties.items():
            if not _PROPERTY.fullmatch(name):
                raise StatementRejected(f"Session property '{name[:100]}' does not exist")
            self.properties[name] = value

    def absorb(self, headers: httpx.Headers, variant: Variant) -> None:
        """Carry out what the headers of an answer say about the session."""

        def told(name: str) -> Sequence[str]:
            return headers.get_list(variant.header(name))

        for name, key in (("Set-Catalog", "catalog"), ("Set-Schema", "schema"), ("Set-Path", "path")):
            for value in told(name):
                setattr(self, key, value)
        _update(self.properties, told("Set-Session"), told("Clear-Session"))
        _update(self.roles, told("Set-Role"), ())
        _update(self.prepared, told("Added-Prepare"), told("Deallocated-Prepare"))
        for value in told("Started-Transaction-Id"):
            self.transaction = value
        if told("Clear-Transaction-Id"):
            self.transaction = NO_TRANSACTION
        for value in told("Set-Authorization-User"):
            self.authorization_user = value
        if told("Reset-Authorization-User"):
            self.authorization_user = ""


def request_headers(address: TrinoAddress, variant: Variant, login: Login, state: ClientState) -> httpx.Headers:
    """Headers of a request on behalf of a session."""
    named = {
        "User": state.authorization_user or login.user,
        "Original-User": login.user if state.authorization_user else "",
        "Source": address.source,
        "Catalog": state.catalog,
        "Schema": state.schema,
        "Path": state.path,
        "Time-Zone": address.time_zone,
        "Client-Tags": address.client_tags,
        "Client-Capabilities": variant.capabilities,
        "Query-Data-Encoding": variant.encodings,
        "Transaction-Id": state.transaction,
        "Session": _joined(state.properties),
        "Role": _joined(state.roles),
        "Prepared-Statement": _joined(state.prepared),
    }
    headers = httpx.Headers(
        [(variant.header(name).encode(), _one_line(value)) for name, value in named.items() if value]
    )
    # Between servers the coordinator would spend more time on compressing than the network on carrying.
    headers["Accept-Encoding"] = "identity"
    headers["User-Agent"] = address.source
    if login.token is not None:
        headers["Authorization"] = f"Bearer {login.token}"
    elif login.password is not None:
        headers["Authorization"] = f"Basic {_basic(login.username, login.password)}"
    return headers


def _basic(username: str, password: str) -> str:
    """Trino reads the pair as Latin-1; what has no place there can be meant for a proxy only."""
    pair = f"{username}:{password}"
    try:
        return b64encode(pair.encode("latin-1")).decode()
    except UnicodeEncodeError:
        return b64encode(pair.encode()).decode()


def _joined(entries: Mapping[str, str]) -> str:
    return ",".join(f"{name}={quote_plus(value)}" for name, value in entries.items())


def _update(entries: dict[str, str], added: Sequence[str], removed: Sequence[str]) -> None:
    for entry in added:
        name, _, value = entry.partition("=")
        entries[name.strip()] = unquote_plus(value)
    for name in removed:
        entries.pop(name.strip(), None)


def _one_line(value: str) -> bytes:
    """Header values are printable characters on one line; others than ASCII go as UTF-8."""
    return "".join(character if character.isprintable() else " " for character in value).strip().encode()


_WAITING = frozenset({"QUEUED", "WAITING_FOR_RESOURCES", "WAITING_FOR_PREREQUISITES", "DISPATCHING"})
_TELLTALE_COLUMNS = frozenset({("rows", "bigint"), ("result", "boolean")})

Json = Mapping[str, Any]


def _nothing() -> Json:
    return {}


@dataclass(frozen=True, slots=True)
class Page:
    """An answer. `uri` gives the same page again until `next_uri` is asked for."""

    uri: str
    query_id: str
    next_uri: str | None
    columns: Sequence[Json] = ()
    rows: Sequence[Sequence[Any]] = ()
    spooled: Json | None = None
    """Encoding and segments, where the rows are not in the answer itself."""
    row_count: int = 0
    """Rows of the answer, or of its segments."""
    error: Json | None = None
    update_type: str = ""
    update_count: int | None = None
    stats: Json = field(default_factory=_nothing)
    warnings: Sequence[Json] = ()

    @property
    def has_rows(self) -> bool:
        return bool(self.rows) or bool(self.spooled and self.spooled.get("segments"))

    @property
    def is_waiting(self) -> bool:
        """Whether the statement is in the engine's own queue."""
        return self.stats.get("state") in _WAITING

    @property
    def changes_only(self) -> bool:
        """Whether the statement has no result set of its own: Trino gives its count or `true` as a row."""
        if not self.update_type:
            return False
        described = [(column.get("name"), column.get("type")) for column in self.columns]
        return len(described) == 0 or (len(described) == 1 and described[0] in _TELLTALE_COLUMNS)

    @property
    def progress(self) -> int:
        """0 to 100."""
        told = self.stats.get("progressPercentage")
        if not isinstance(told, int | float):
            done, total = self.stats.get("completedSplits"), self.stats.get("totalSplits")
            told = 100 * done / total if isinstance(done, int) and isinstance(total, int) and total > 0 else 0
        return int(max(0, min(100, told)))


def parse(body: bytes, uri: str) -> Page:
    """The page that an answer is. Raises Transient for garbage, such as half a body."""
    try:
        answer = _object(orjson.loads(body))
        data = answer.get("data")
        spooled = data if isinstance(data, dict) else None
        rows = data if isinstance(data, list) else ()
        return Page(
            uri=uri,
            query_id=str(answer["id"]),
            next_uri=_text_or_none(answer.get("nextUri")),
            columns=_objects(answer.get("columns")),
            rows=rows,
            spooled=spooled,
            row_count=len(rows) if spooled is None else _rows_in_segments(spooled),
            error=None if answer.get("error") is None else _object(answer["error"]),
            update_type=_text_or_none(answer.get("updateType")) or "",
            update_count=None if answer.get("updateCount") is None else int(answer["updateCount"]),
            stats=_object(answer["stats"]),
            warnings=_objects(answer.get("warnings")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise Transient("Trino's answer cannot be read.") from error


def _text_or_none(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError
    return value


def _object(value: Any) -> Json:
    if not isinstance(value, dict):
        raise TypeError
    return cast("Json", value)


def _objects(values: Any) -> Sequence[Json]:
    return [_object(one) for one in values or ()]


def _rows_in_segments(spooled: Json) -> int:
    return sum(int(segment["metadata"]["rowsCount"]) for segment in _objects(spooled.get("segments")))
