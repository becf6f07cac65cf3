"""Settings as TOML texts: the effective values with their origins, secrets masked; and a file to begin with."""

import json
import re
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from queryserver.platform.settings.sections import SECRET_OPTIONS, Key, descriptions, keys, leaves, tables
from queryserver.platform.settings.tree import Settings

MASK = "********"

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SECRET_NAME = re.compile(r"pass|secret|token|credential|key", re.IGNORECASE)
_SECRETS_IN_ADDRESS = (
    re.compile(r"((?<=://)[^\s/@:]{0,256}:)[^\s/]{1,1024}(?=@)"),
    re.compile(r"([?&][^=&#\s]{0,64}(?:pass|secret|token|credential|key|sig)[^=&#\s]{0,64}=)[^&#\s]+", re.IGNORECASE),
)


def as_toml(settings: Settings) -> str:
    """Every key with its value and, as a comment, its origin."""
    lines, table = list[str](), None
    for path, key, value in leaves(settings):
        if value is None and key.kind is not Path:
            continue
        if path[:-1] != table:
            table = path[:-1]
            lines.append(f"\n[{'.'.join(map(_name, table))}]")
        shown, origin = toml_value(_shown(path[-1], key, value)), settings.origin(".".join(path))
        lines.append(f"{_name(path[-1])} = {shown}  # {origin}")
    return "\n".join(lines) + "\n"


def shown_value(settings: Settings, name: str) -> str:
    """The effective value under a full name as text, secrets masked; empty for tables and for what is no key."""
    for path, key, value in leaves(settings):
        if ".".join(path) == name:
            shown = _shown(path[-1], key, value)
            return _text(shown) if isinstance(shown, str | Path) else toml_value(shown)
    return ""


def sample_file() -> str:
    """A settings file in which every key is explained; with all of it commented out it changes nothing."""
    lines = [
        "# Settings of queryserver. Each value below is the default: uncomment a line to change it.",
        "# The environment goes first: QUERYSERVER__DESKTOP__HTTP_PORT=9000 for http_port of [desktop].",
        "# A secret may stand elsewhere: <key>_file names a file, <key>_script a command that prints it.",
    ]
    for name, section in tables(Settings, "NAME"):
        texts = descriptions(section)
        plain = [key for key in keys(section).values() if not key.is_table]
        lines += [f"\n# [{name}]"] if plain else []
        for key in plain:
            lines += [f"# {texts[key.name]}", f"# {_assignment(key)}"]
        for key in keys(section).values():
            if key.has_free_names:
                lines += [f"\n# [{name}.{key.name}]", f"# {texts[key.name]}"]
    return "\n".join(lines) + "\n"


def _assignment(key: Key) -> str:
    """The key with its default; alone when it has none."""
    if key.field.is_required():
        return f"{key.name} (required)"
    value = key.field.get_default(call_default_factory=True)
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    return f"{key.name} (absent)" if value is None else f"{key.name} = {toml_value(value)}"


def _shown(name: str, key: Key, value: Any) -> Any:
    if key.has_free_names:
        return MASK if value and (name in SECRET_OPTIONS or _SECRET_NAME.search(name)) else value
    if key.is_secret:
        is_set = value.get_secret_value() if isinstance(value, SecretStr) else value
        return MASK if is_set else ""
    return "" if value is None else value


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
