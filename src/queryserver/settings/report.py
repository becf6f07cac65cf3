"""The effective settings as a TOML text: every value with its origin, secrets masked."""

import json
import re
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from queryserver.settings.schema import SECRET_OPTIONS, Key, keys, value_of
from queryserver.settings.section import Section
from queryserver.settings.tree import Settings

MASK = "********"

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SECRET_NAME = re.compile(r"pass|secret|token|credential|key", re.IGNORECASE)
_SECRETS_IN_ADDRESS = (
    re.compile(r"((?<=://)[^\s/@:]{0,256}:)[^\s/]{1,1024}(?=@)"),
    re.compile(r"([?&][^=&#\s]{0,64}(?:pass|secret|token|credential|key|sig)[^=&#\s]{0,64}=)[^&#\s]+", re.IGNORECASE),
)


def as_toml(settings: Settings) -> str:
    """Every key with its value and, as a comment, its origin."""
    return "\n".join(_section(settings, settings, "")) + "\n"


def shown_value(settings: Settings, name: str) -> str:
    """The effective value under a full name as text, secrets masked; empty for tables and for what is no key."""
    section: Any = settings
    names = iter(name.split("."))
    for part in names:
        key = keys(type(section)).get(part)
        if key is None:
            return ""
        value: Any = value_of(section, key)
        if key.entries:
            value = value.get(next(names, ""))
        if key.has_free_names:
            option = next(names, "")
            return _as_text(_shown_option(option, value.get(option, "")))
        if not isinstance(value, Section) or key.is_secret:
            return "" if key.entries else _as_text(_shown(key, value))
        section = value
    return ""


def _as_text(value: Any) -> str:
    return _text(value) if isinstance(value, str | Path) else toml_value(value)


def _section(settings: Settings, section: Section, prefix: str) -> Iterator[str]:
    """Plain values first: in TOML what follows the head of a table belongs to it."""
    known = keys(type(section)).values()
    plain = [key for key in known if not (key.section or key.entries or key.has_free_names)]
    if plain:
        yield f"\n[{prefix[:-1]}]"
    for key in plain:
        value = value_of(section, key)
        if value is not None or key.kind is Path:
            yield f"{_name(key.name)} = {toml_value(_shown(key, value))}  # {settings.origin(prefix + key.name)}"
    for key in known:
        if key not in plain:
            yield from _tables(settings, key, value_of(section, key), f"{prefix}{_name(key.name)}")


def _tables(settings: Settings, key: Key, value: Any, name: str) -> Iterator[str]:
    if isinstance(value, Section):
        yield from _section(settings, value, f"{name}.")
    elif key.entries:
        for entry, section in value.items():
            yield from _section(settings, section, f"{name}.{_name(entry)}.")
    elif value:
        yield f"\n[{name}]"
        for option, setting in value.items():
            shown, origin = toml_value(_shown_option(option, setting)), settings.origin(f"{name}.{option}")
            yield f"{_name(option)} = {shown}  # {origin}"


def _shown(key: Key, value: Any) -> Any:
    if key.is_secret:
        return MASK if _is_set(value) else ""
    return "" if value is None else value


def _is_set(value: Any) -> bool:
    return bool(value.get_secret_value() if isinstance(value, SecretStr) else value)


def _shown_option(name: str, value: Any) -> Any:
    return MASK if value and (name in SECRET_OPTIONS or _SECRET_NAME.search(name)) else value


def _name(text: str) -> str:
    return text if _PLAIN_NAME.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def toml_value(value: Any) -> str:
    """A value as TOML writes it."""
    match value:
        case bool() | int() | float():
            return json.dumps(value)
        case tuple() | list():
            return f"[{', '.join(toml_value(item) for item in value)}]"
        case Path() | IPv4Network() | IPv6Network():
            return json.dumps(str(value), ensure_ascii=False)
        case Mapping():
            return "{" + ", ".join(f"{_name(name)} = {toml_value(item)}" for name, item in value.items()) + "}"
        case _:
            return json.dumps(_text(value), ensure_ascii=False)


def _text(value: object) -> str:
    """As written, without passwords and tokens in addresses, which are no secrets by their names."""
    text = str(value)
    for secret in _SECRETS_IN_ADDRESS:
        text = secret.sub(rf"\1{MASK}", text)
    return text
