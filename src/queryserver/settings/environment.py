"""Settings from environment variables: `QUERYSERVER__DESKTOP__HTTP_PORT=9000`, in any case."""

import json
from collections.abc import Mapping
from typing import Any

from queryserver.settings.schema import Key, keys
from queryserver.settings.section import Section
from queryserver.settings.tree import Settings

PREFIX = "queryserver__"
CONFIG_FILE = "QUERYSERVER_CONFIG"
DATA_DIRECTORY = "QUERYSERVER_DATA_DIR"
ADMIN_PASSWORD = "QUERYSERVER_ADMIN_PASSWORD"  # noqa: S105 the name of a variable

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})


def from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """The variables as a nested table, each value in the type of its key where the text allows it.

    A variable of a whole table holds JSON; variables of keys within it go first.
    """
    values: dict[str, Any] = {}
    if environ.get(DATA_DIRECTORY):
        values["desktop"] = {"data_dir": environ[DATA_DIRECTORY]}
    for name, text in sorted(environ.items(), key=lambda variable: (variable[0].count("__"), variable[0])):
        if name.lower().startswith(PREFIX):
            path = name.lower()[len(PREFIX) :].split("__")
            _put(values, path, _converted(path, text))
    return values


def _put(values: dict[str, Any], path: list[str], value: Any) -> None:
    *tables, last = path
    for table in tables:
        inner = values.get(table)
        if not isinstance(inner, dict):
            inner = values[table] = {}
        values = inner
    present = values.get(last)
    values[last] = {**present, **value} if isinstance(present, dict) and isinstance(value, dict) else value


def _converted(path: list[str], text: str) -> Any:
    """A text that does not fit stays as it is: the check of the types tells of it."""
    section: type[Section] | None = Settings
    key: Key | None = None
    names = iter(path)
    for name in names:
        key = keys(section).get(name) if section else None
        if key is None:
            return text
        section = key.section
        if key.entries:
            section = key.entries
            if next(names, None) is None:
                return _json(text)
            key = None
    return _json(text) if key is None or key.section else _leaf(key, text)


def _leaf(key: Key, text: str) -> Any:
    if key.kind is bool:
        return _flag(text)
    if key.kind is int:
        return _whole(text)
    if key.has_free_names or (key.is_list and text.lstrip().startswith("[")):
        return _json(text)
    return text


def _flag(text: str) -> bool | str:
    word = text.strip().lower()
    if word in _TRUE:
        return True
    return False if word in _FALSE else text


def _whole(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
