"""Classifies connection failures, and removes secrets and foreign addresses from messages (Contract platform 5.8)."""

import re
import socket
import ssl
from collections.abc import Collection, Iterator, Mapping, Sequence
from urllib.parse import unquote, urlsplit

from queryserver import errors
from queryserver.connectors.model import MASK, SettingValue
from queryserver.connectors.secrets import secrets_of
from queryserver.platform.addresses import HostRefused, UnknownHost, literal_address

_MAX_CHARACTERS = 500
_MAX_CAUSES = 10
_MIN_SECRET_CHARACTERS = 3

_REASONS: Sequence[tuple[type[BaseException], str]] = (
    (UnknownHost, "dns"),
    (HostRefused, "refused"),
    (errors.CredentialsRequired, "auth"),
    (errors.EngineForbidden, "auth"),
    (errors.EngineTimeout, "timeout"),
    (errors.StatementDenied, "engine"),
    (errors.StatementRejected, "engine"),
    (ssl.SSLError, "tls"),
    (socket.gaierror, "dns"),
    (ConnectionRefusedError, "refused"),
    (TimeoutError, "timeout"),
)
"""Failure reasons by error type. The first match wins, and the error itself comes before its causes."""

_PATTERNS = (
    (re.compile(r"(?i)certificate|\btls\b|\bssl\b"), "tls"),
    (re.compile(r"(?i)timed? ?out|in time\b"), "timeout"),
    (re.compile(r"(?i)refused the connection|connection refused"), "refused"),
)
"""Failure reasons by message, for adapters whose drivers hide the cause."""

_TRACE = re.compile(r"\s*(?:Traceback \(|File \"|at [\w.$<>]+\(|\.\.\. \d+ (?:more|common)|Caused by: )")
_ADDRESSES = re.compile(
    r"""[a-z][a-z0-9+.-]*://[^\s'"<>)\]]+"""  # urls
    r"|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"  # IPv4
    r"|(?<![\w:.])\[?(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}\]?(?![\w:])"  # IPv6
    r"|\b[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9-]+)*:\d{2,5}\b",  # host:port
    re.IGNORECASE,
)
_FILES = re.compile(r"(?<![\w/:.])(?:/[\w.@+-]+){2,}/?")


def reason_of(error: BaseException) -> str:
    """Classify an error as `dns`, `refused`, `timeout`, `tls`, `auth`, `engine` or `other`."""
    for one in _causes(error):
        for kind, reason in _REASONS:
            if isinstance(one, kind):
                return reason
    if isinstance(error, errors.NotSupported):
        return "engine"
    if isinstance(error, OSError):
        return "refused"  # no route, network unreachable, reset
    text = error.message if isinstance(error, errors.QueryServerError) else ""
    return next((reason for pattern, reason in _PATTERNS if pattern.search(text)), "other")


def sanitized_message(
    error: BaseException, settings: Mapping[str, SettingValue], endpoints: Sequence[tuple[str, int]]
) -> str:
    """Return the error's text without traces, secrets, or addresses and files that the settings do not name."""
    if isinstance(error, errors.QueryServerError):
        text = error.message
    elif isinstance(error, TimeoutError):
        text = "The connection attempt timed out."
    elif isinstance(error, ConnectionRefusedError):
        text = "The connection was refused."
    elif isinstance(error, OSError):
        text = "The connection failed."
    else:
        text = "The test failed; see the server log."
    lines = list[str]()
    for line in text.strip().splitlines():
        if _TRACE.match(line):
            break
        lines.append(line.strip())
    # Truncated generously before the substitutions, whose time grows with the text, and to the limit after them, so
    # that no secret is split.
    text = " ".join(lines)[: 8 * _MAX_CHARACTERS]
    for secret in sorted(_secrets(settings), key=len, reverse=True):
        text = text.replace(secret, MASK)
    known = {host.lower() for host, _ in endpoints}
    text = _ADDRESSES.sub(lambda found: "(address)" if _is_foreign(found[0], known) else found[0], text)
    return _FILES.sub("(path)", text)[:_MAX_CHARACTERS].strip()


def _causes(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if one is None:
            return
        yield one
        one = one.__cause__ or one.__context__


def _secrets(settings: Mapping[str, SettingValue]) -> set[str]:
    """Return the secrets and the settings that contain them.

    Short strings are left out, because they match parts of words.
    """
    found = set[str]()
    for value in secrets_of(settings).values():
        text = str(value)
        found |= {text, unquote(text)}
        if "://" in text:
            parts = urlsplit(text)
            found |= {parts.password or "", unquote(parts.password or "")}
            found |= {piece.partition("=")[2] for piece in parts.query.split("&")}
    return {text for text in found if len(text) >= _MIN_SECRET_CHARACTERS}


def _is_foreign(text: str, known: Collection[str]) -> bool:
    """Whether the address belongs to a host that the settings do not name. Times of day do not count as addresses."""
    if "://" in text:
        try:
            return (urlsplit(text).hostname or "") not in known
        except ValueError:
            return True
    if literal_address(text) is not None:
        return text.strip("[]").lower() not in known
    return re.fullmatch(r"[\d:]+", text) is None and text.rpartition(":")[0].lower() not in known
