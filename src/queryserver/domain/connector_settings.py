"""Settings of a connector as its type wants them: known names, types, defaults (Contract platform 5.10, 5.11)."""

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from queryserver.domain.connector_instances import SettingValue
from queryserver.domain.connector_types import ConnectorType
from queryserver.domain.errors import ConnectorRefused, unknown_setting

_LONGEST_S = 365 * 24 * 3600
_MOST_CHARACTERS = 64 * 1024
_INT64_MAX = 2**63 - 1
_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,19}\s*")
_TRUE = frozenset({"true", "1", "yes", "on", "y", "t", "yea"})
_FALSE = frozenset({"false", "0", "no", "off", "n", "f", "nay", ""})
_CONTROLS = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_NO_LINES = {ord(one): None for one in "\r\n\t"}
_OF_LINES = frozenset({"ssl_ca", "credentials_json"})
_NAME_SHOWN = 100

_SECONDS = ("statement_timeout_s", "metadata_timeout_s", "sample_timeout_s", "session_idle_s")
_FLAGS = ("shared_session", "sample_views", "read_only")

UNLISTED: Mapping[str, SettingValue] = MappingProxyType({**dict.fromkeys(_SECONDS, 1), **dict.fromkeys(_FLAGS, False)})
"""What every type that runs here takes besides, each with a value of its type; absent: that of `[editor]`."""


def with_defaults(row: ConnectorType, defaults: Mapping[str, SettingValue]) -> ConnectorType:
    """The type with these defaults for what it lists; other names do not count."""
    return replace(row, settings=tuple((name, defaults.get(name, value)) for name, value in row.settings))


def complete_settings(row: ConnectorType, given: Mapping[str, object]) -> dict[str, SettingValue]:
    """What was given, in the order of the type and with its types; the defaults for what was not.

    Raises unknown_setting, ConnectorRefused; no text of theirs holds a value.
    """
    kinds = {**(UNLISTED if row.takes_statements else {}), **row.defaults}
    unknown = [name for name in given if name not in kinds]
    if unknown:
        text = f"Connectors of {row.dialect} with interface {row.interface} have no such setting."
        raise unknown_setting({name[:_NAME_SHOWN]: [text] for name in unknown})
    settings, problems = dict(row.settings), dict[str, list[str]]()
    for name, kind in kinds.items():
        if given.get(name) is None:
            continue
        try:
            settings[name] = _typed(name, given[name], kind)
        except ValueError as problem:
            problems[name] = [str(problem)]
    for name in _SECONDS:
        if not 1 <= int(settings.get(name, 1)) <= _LONGEST_S:
            problems[name] = [f"Must be between 1 and {_LONGEST_S}."]
    if problems:
        raise ConnectorRefused(problems)
    return settings


def _typed(name: str, value: object, kind: SettingValue) -> SettingValue:
    """The value in the type of `kind`. Raises ValueError that says what it must be."""
    if isinstance(kind, bool):
        return _flag(value)
    if isinstance(kind, int):
        return _whole(value)
    return _text(value, has_lines=name in _OF_LINES)


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word not in _TRUE | _FALSE:
        message = "Must be true or false."
        raise ValueError(message)
    return word in _TRUE


def _whole(value: object) -> int:
    text = value if isinstance(value, str) else str(value) if type(value) is int else ""
    if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        text = str(int(value))
    if not _WHOLE.fullmatch(text) or abs(int(text)) > _INT64_MAX:
        message = "Must be a whole number."
        raise ValueError(message)
    return int(text)


def _text(value: object, *, has_lines: bool) -> str:
    if not isinstance(value, str):
        message = "Must be text."
        raise ValueError(message)  # noqa: TRY004 told to the client like any bad value
    if len(value) > _MOST_CHARACTERS:
        message = f"Must have at most {_MOST_CHARACTERS} characters."
        raise ValueError(message)
    if _CONTROLS.search(value.translate(_NO_LINES) if has_lines else value):
        message = "Must be free of control characters."
        raise ValueError(message)
    return value
