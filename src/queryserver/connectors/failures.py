"""Why a connection failed, in words that tell nothing but what concerns it (Contract platform 5.8)."""

import base64
import re
import socket
import ssl
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import unquote, urlencode, urlsplit

import orjson

from queryserver.connectors.model import MASK, SettingValue
from queryserver.connectors.secrets import secrets_of
from queryserver.errors.base import NotSupported, QueryServerError
from queryserver.errors.statements import (
    CredentialsRequired,
    EngineForbidden,
    EngineTimeout,
    StatementDenied,
    StatementRejected,
)
from queryserver.identity.model import User
from queryserver.platform.addresses import AddressRules, HostRefused, UnknownHost, literal_address
from queryserver.platform.outbound import HttpAnswer, HttpExchanges, HttpRequest

_MOST = 500
_CAUSES = 10
_LEAST_SECRET = 3
_ELSEWHERE = "(address)"

_REASONS: Sequence[tuple[type[BaseException], str]] = (
    (UnknownHost, "dns"),
    (HostRefused, "refused"),
    (CredentialsRequired, "auth"),
    (EngineForbidden, "auth"),
    (EngineTimeout, "timeout"),
    (StatementDenied, "engine"),
    (StatementRejected, "engine"),
    (ssl.SSLError, "tls"),
    (socket.gaierror, "dns"),
    (ConnectionRefusedError, "refused"),
    (TimeoutError, "timeout"),
)
"""The first that an error is decides; then the first that one of its causes is."""

_WORDS = (
    (re.compile(r"(?i)certificate|\btls\b|\bssl\b"), "tls"),
    (re.compile(r"(?i)timed? ?out|in time\b"), "timeout"),
    (re.compile(r"(?i)refused the connection|connection refused"), "refused"),
)
"""Adapters whose drivers hide the cause say it themselves."""

_TRACE = re.compile(r"\s*(?:Traceback \(|File \"|at [\w.$<>]+\(|\.\.\. \d+ (?:more|common)|Caused by: )")
_PLACES = re.compile(
    r"""[a-z][a-z0-9+.-]*://[^\s'"<>)\]]+"""  # urls
    r"|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"  # IPv4
    r"|(?<![\w:.])\[?(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}\]?(?![\w:])"  # IPv6
    r"|\b[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9-]+)*:\d{2,5}\b",  # host:port
    re.IGNORECASE,
)
_FILES = re.compile(r"(?<![\w/:.])(?:/[\w.@+-]+){2,}/?")


def reason_of(error: BaseException) -> str:
    """`dns`, `refused`, `timeout`, `tls`, `auth`, `engine` or `other`."""
    for one in _causes(error):
        for kind, reason in _REASONS:
            if isinstance(one, kind):
                return reason
    if isinstance(error, NotSupported):
        return "engine"
    if isinstance(error, OSError):
        return "refused"  # no route, network unreachable, reset
    text = error.message if isinstance(error, QueryServerError) else ""
    return next((reason for words, reason in _WORDS if words.search(text)), "other")


def cleaned(error: BaseException, settings: Mapping[str, SettingValue], places: Sequence[tuple[str, int]]) -> str:
    """What to tell of an error: no trace, no secret, no address or file but those that the settings name."""
    if isinstance(error, QueryServerError):
        text = error.message
    elif isinstance(error, OSError):
        text = _of_the_system(error)
    else:
        text = "The test failed; the log of this server says why."
    lines = list[str]()
    for line in text.strip().splitlines():
        if _TRACE.match(line):
            break
        lines.append(line.strip())
    # Cut before the patterns, whose time grows with the text, and after them: a secret must not be torn.
    text = " ".join(lines)[: 8 * _MOST]
    for secret in sorted(_secrets(settings), key=len, reverse=True):
        text = text.replace(secret, MASK)
    known = {host.lower() for host, _ in places}
    text = _PLACES.sub(lambda found: _ELSEWHERE if _is_elsewhere(found[0], known) else found[0], text)
    return _FILES.sub("(path)", text)[:_MOST].strip()


def _causes(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    for _ in range(_CAUSES):
        if one is None:
            return
        yield one
        one = one.__cause__ or one.__context__


def _of_the_system(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "No connection came about in time."
    if isinstance(error, ConnectionRefusedError):
        return "The connection was refused."
    return "No connection could be made."


def _secrets(settings: Mapping[str, SettingValue]) -> set[str]:
    """Texts that hold a secret, whole and by themselves; short ones would tear words apart."""
    found = set[str]()
    for value in secrets_of(settings).values():
        text = str(value)
        found |= {text, unquote(text)}
        if "://" in text:
            parts = urlsplit(text)
            found |= {parts.password or "", unquote(parts.password or "")}
            found |= {piece.partition("=")[2] for piece in parts.query.split("&")}
    return {text for text in found if len(text) >= _LEAST_SECRET}


def _is_elsewhere(found: str, known: Collection[str]) -> bool:
    """Whether it names a host that the settings do not; times of day look like addresses and are none."""
    is_time = "://" not in found and literal_address(found) is None and re.fullmatch(r"[\d:]+", found) is not None
    return not is_time and _host(found) not in known


def _host(place: str) -> str:
    if "://" in place:
        try:
            return urlsplit(place).hostname or ""
        except ValueError:
            return ""
    if literal_address(place) is not None:
        return place.strip("[]").lower()
    return place.rpartition(":")[0].lower()


_REFUSED = frozenset({401, 403})
_MAX_BYTES = 256 * 1024
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class RestQuestion:
    """A GET that only a server of the type answers with an object that has `member`, a text."""

    url: str
    member: str
    tells_version: bool = False
    as_user: bool = False
    """Names the caller the way WebHDFS wants it; the url has a query then."""
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)


class RestAttempt:
    """See `connectors.tests.Attempt`."""

    def __init__(self, rules: AddressRules, question: "RestQuestion") -> None:
        self._exchanges = HttpExchanges(rules)
        self._question = question

    @asynccontextmanager
    async def login(self, user: User) -> AsyncGenerator["RestLogin"]:
        """See the Protocol. The one exchange that there is proves the login, too."""
        question, url = self._question, self._question.url
        if question.as_user:
            url = f"{url}&{urlencode({'user.name': user.username})}"
        answer = await self._exchanges.send(HttpRequest(url, headers=question.headers, max_bytes=_MAX_BYTES))
        if answer.status in _REFUSED:
            raise CredentialsRequired("The server refused the login.")
        yield RestLogin(answer, question)

    async def close(self) -> None:
        await self._exchanges.__aexit__()


class RestLogin:
    """See `connectors.tests.LoggedIn`."""

    def __init__(self, answer: HttpAnswer, question: "RestQuestion") -> None:
        self._answer = answer
        self._question = question

    async def try_it(self) -> str | None:
        """See the Protocol. Raises StatementRejected: the answer is not what such a server says."""
        if self._answer.status != 200:
            raise StatementRejected(f"The server answered with HTTP {self._answer.status}.")
        try:
            told = orjson.loads(self._answer.body)
        except orjson.JSONDecodeError:
            told = None
        value = told.get(self._question.member) if isinstance(told, dict) else None
        if not isinstance(value, str):
            raise StatementRejected("The server answered, but not as one of this type.")
        return value[:_SHOWN] if self._question.tells_version else None


def basic(username: str, password: str) -> Mapping[str, str]:
    """The header of a login; none without a user."""
    if not username:
        return {}
    return {"Authorization": f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"}
