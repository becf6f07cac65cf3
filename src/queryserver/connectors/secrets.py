"""Finds secrets in connector settings, masks them in responses, and restores masked secrets (Contract platform 5.1).

Secrets are the values of settings and URL options whose names contain one of `_WORDS`, and the password in the user
part of a URL.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from queryserver.connectors.model import MASK, SettingValue
from queryserver.errors.statements import secret_required

_WORDS = ("password", "passwd", "passphrase", "secret", "token", "privatekey", "credentialsjson", "accesskey", "apikey")
"""Parts of secret names. Comparisons ignore case and all characters except letters and digits."""

_SUPPLIED_LATER = "${PASSWORD}"
_RECEIVERS = frozenset({"server_host", "server_port", "host", "port", "username", "user", "driver"})
"""Settings that determine who receives a secret: host, port, user or driver."""

# The quantifier does not backtrack, because a URL may be long and crafted to be slow.
_OPTION = re.compile(r"(?<![\w.%+-])[\w.%+-]++=")
_THIN_JDBC = re.compile(r"jdbc:\w+:(?:\w+:)?", re.IGNORECASE)

Values = Mapping[str, SettingValue]


@dataclass(frozen=True, slots=True)
class _Span:
    """The position of a secret in a URL. `key` identifies the same secret in another URL."""

    key: str
    start: int
    end: int


def is_secret(name: str) -> bool:
    """Return whether a setting or URL option with this name contains a secret."""
    plain = re.sub(r"[^a-z0-9]", "", unquote(name).lower())
    return any(word in plain for word in _WORDS)


def masked(settings: Values) -> dict[str, SettingValue]:
    """Mask the settings for responses, in the same order. Empty secrets stay empty."""
    return {name: _replaced(name, value, lambda _key, text: MASK if text else "") for name, value in settings.items()}


def without_secrets(settings: Values) -> dict[str, SettingValue]:
    """Return the settings with empty secrets, for use when the secrets can no longer be decrypted."""
    return {name: _replaced(name, value, lambda _key, _text: "") for name, value in settings.items()}


def secrets_of(settings: Values) -> dict[str, SettingValue]:
    """Return the settings that contain a secret, with their complete values. They must only be stored encrypted."""
    hidden = masked(settings)
    return {name: value for name, value in settings.items() if hidden[name] != value}


def with_stored_secrets(settings: Values, stored: Values) -> dict[str, SettingValue]:
    """Replace masked secrets with the stored secrets.

    Raises secret_required if none is stored, or if the settings name a different address, driver or user.
    """
    taken = dict[str, list[str]]()
    lacking = dict[str, list[str]]()

    def unmask(name: str, value: SettingValue) -> SettingValue:
        known = dict(_secret_parts(name, stored.get(name, "")))

        def original(key: str, text: str) -> str:
            if unquote(text) != MASK:
                return text
            secret = known.get(key, "")
            if secret:
                taken[name] = ["Must be set again, because the address, driver or user has changed."]
            else:
                lacking[name] = ["Must be set, because no secret is stored."]
            return secret

        return _replaced(name, value, original)

    whole = {name: unmask(name, value) for name, value in settings.items()}
    problems = lacking or (taken if taken and _address(settings) != _address(stored) else {})
    if problems:
        raise secret_required(problems, "A secret is required.")
    return whole


def _replaced(name: str, value: SettingValue, by: Callable[[str, str], str]) -> SettingValue:
    """Replace each secret in the value with `by(key, text)`."""
    if is_secret(name):
        return by("", str(value)) if str(value) != _SUPPLIED_LATER else value
    if not isinstance(value, str):
        return value
    pieces, position = list[str](), 0
    for span in _spans(name, value):
        secret = value[span.start : span.end]
        pieces += [value[position : span.start], secret if secret == _SUPPLIED_LATER else by(span.key, secret)]
        position = span.end
    return "".join([*pieces, value[position:]])


def _secret_parts(name: str, value: SettingValue) -> Iterator[tuple[str, str]]:
    if is_secret(name):
        yield "", str(value)
    elif isinstance(value, str):
        yield from ((span.key, value[span.start : span.end]) for span in _spans(name, value))


def _spans(name: str, text: str) -> list[_Span]:
    """Return the positions of the secrets in a URL, in order. For any other string, return an empty list."""
    if not _may_be_url(name, text):
        return []
    start, at = _user_part(text)
    colon = _password_colon(text, start, at)
    user_part = [_Span("user part", colon + 1, at)] if colon is not None else []
    return [*user_part, *_option_spans(text, max(start, at))]


def _may_be_url(name: str, text: str) -> bool:
    return "://" in text or "url" in name.lower()


def _user_part(text: str) -> tuple[int, int]:
    """Return the offsets of the authority and of its `@`. They are equal if there is no user part.

    Passwords with unescaped reserved characters make a URL invalid, but must still be masked.
    """
    scheme = text.find("://")
    start = scheme + 3 if scheme >= 0 else 0
    if scheme < 0 and (jdbc := _THIN_JDBC.match(text)):
        start = jdbc.end()
    end = min((found for mark in "/?#" if (found := text.find(mark, start)) >= 0), default=len(text))
    at = text.rfind("@", start, end)
    if at >= 0:
        return start, at
    _, colon, port = text[start:end].rpartition(":")
    is_odd = (colon and not port.isdigit()) or scheme < 0
    at = text.rfind("@", start) if is_odd else -1
    return (start, at) if at >= 0 else (start, start)


def _password_colon(text: str, start: int, at: int) -> int | None:
    colon = text.find(":", start, at)
    if colon < 0 and "://" not in text:
        colon = text.find("/", start, at)  # jdbc:oracle:thin:user/password@host
    return colon if colon >= 0 else None


def _option_spans(text: str, start: int) -> list[_Span]:
    """Return the positions of option values with secret names, whatever characters separate the options."""
    spans, position = list[_Span](), start
    for found in _OPTION.finditer(text, start):
        name = found[0][:-1]
        if found.start() < position or not is_secret(name):
            continue
        ends = (end for mark in "&;" if (end := text.find(mark, found.end())) >= 0)
        position = min(ends, default=len(text))
        spans.append(_Span(f"{len(spans)} {unquote(name).lower()}", found.end(), position))
    return spans


def _address(settings: Values) -> dict[str, str]:
    """Return the settings that determine who receives the secrets: drivers, users, hosts and ports."""
    return {
        name: _normalized_address(name, str(value))
        for name, value in settings.items()
        if name in _RECEIVERS or (not is_secret(name) and isinstance(value, str) and _may_be_url(name, value))
    }


def _normalized_address(name: str, value: str) -> str:
    if name in _RECEIVERS:
        return value.strip()
    if "://" not in value:
        return str(_replaced(name, value, lambda _key, _text: ""))
    start, at = _user_part(value)
    colon = _password_colon(value, start, at)
    user = value[start : at if colon is None else colon]
    host = re.split(r"[/?#;]", value[at + 1 if at > start else start :], maxsplit=1)[0]
    return f"{value[:start].lower()}{user}@{host.lower()}"
