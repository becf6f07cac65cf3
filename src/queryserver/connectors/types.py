"""Defines the catalog of connector types, with one row per dialect and interface (Contract platform 5.1).

`catalog.txt` is the table of Contract platform 5.10. `connectors/engine_builders.py` lists what else a new dialect
needs.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from queryserver import errors
from queryserver.connectors import options
from queryserver.connectors.model import ResultSharing, SettingValue
from queryserver.platform.settings.editor import GeneralSettings

Settings: TypeAlias = Mapping[str, SettingValue]
Flags: TypeAlias = Mapping[str, str | bool]


class RunSupport(StrEnum):
    """How this server can use connectors of a type."""

    YES = "yes"
    """Runs statements without further installation."""
    DRIVER = "driver"
    """Runs statements if the SQLAlchemy dialect in the URL is installed and allowed."""
    TEST = "test"
    """Can be tested, but accepts no statements."""
    NO = "no"
    """Can only be stored, listed and edited."""


class Category(StrEnum):
    """Categories of connector types, in listing order."""

    EDITOR = "editor"
    BROWSERS = "browsers"
    CATALOGS = "catalogs"
    OPTIMIZERS = "optimizers"
    SCHEDULERS = "schedulers"
    PLUGINS = "plugins"

    @property
    def label(self) -> str:
        return self.value.capitalize()


_ORDER = (
    "is_sql",
    "has_catalog",
    "has_database",
    "has_table",
    "has_live_queries",
    "has_optimizer_risks",
    "has_optimizer_values",
    "has_auto_limit",
    "has_reference_language",
    "has_reference_functions",
    "has_use_statement",
)
_QUOTES = {"b": "`", "d": '"'}
_SETTING = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^;]+)')


def flags(quote: str, letters: str) -> Flags:
    """Return all 13 flags of an SQL type. `quote` is b or d; `letters` are eleven T or F in catalog order."""
    is_sql, *others = (letter == "T" for letter in letters)
    return MappingProxyType(
        {
            "is_sql": is_sql,
            "sql_identifier_quote": _QUOTES[quote],
            "sql_identifier_comment_single": "--",
            **dict(zip(_ORDER[1:], others, strict=True)),
        }
    )


@dataclass(frozen=True, slots=True)
class ConnectorType:
    """One row of the catalog."""

    dialect: str
    interface: str
    nice_name: str
    runs: RunSupport
    settings: Settings
    """Setting names and default values for listings, in form order."""
    flags: Flags
    """Empty for types without SQL."""
    description: str
    category: Category

    @property
    def takes_statements(self) -> bool:
        """Whether an instance can run statements on this server."""
        return self.runs in {RunSupport.YES, RunSupport.DRIVER}


_MODELS: Mapping[tuple[str, str], type[options.Options]] = MappingProxyType(
    {
        ("trino", "trino"): options.TrinoOptions,
        ("phoenix", "phoenix"): options.PhoenixOptions,
        ("postgresql", "sqlalchemy"): options.TagOptions,
        ("mysql", "sqlalchemy"): options.TagOptions,
        ("sql", "sqlalchemy"): options.TagOptions,
        **{(dialect, "hiveserver2"): model for dialect, model in options.HS2_OPTIONS.items()},
    }
)
"""Models whose options are listed after the table's settings."""


def _row(line: str) -> ConnectorType:
    cells = (cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line))
    _, dialect, interface, category, name, description, quote, letters, runs, listed = cells
    settings = {setting: json.loads(value) for setting, value in _SETTING.findall(listed)}
    further = options.listed_options(_MODELS.get((dialect, interface), options.Options))
    return ConnectorType(
        dialect,
        interface,
        name,
        RunSupport(runs.partition(",")[0]),
        MappingProxyType({**settings, **{one: value for one, value in further.items() if one not in settings}}),
        MappingProxyType({}) if letters == "{}" else flags(quote, letters),
        "" if description == "-" else description,
        Category(category),
    )


TYPES: Sequence[ConnectorType] = tuple(
    map(_row, Path(__file__).with_name("catalog.txt").read_text("utf-8").splitlines())
)
"""All rows, in catalog order."""

Catalog: TypeAlias = Mapping[tuple[str, str], ConnectorType]

TYPES_BY_PAIR: Catalog = MappingProxyType({(row.dialect, row.interface): row for row in TYPES})
"""Types by dialect and interface, in catalog order."""


_PLAIN_SQL = flags("d", "TFTTFFFFFFF")


def flags_of(dialect: str, interface: str) -> Flags:
    """Return the flags for a dialect and interface.

    An unknown pair has the flags of the dialect's first type or, if the dialect is unknown, those of plain SQL.
    """
    row = TYPES_BY_PAIR.get((dialect, interface)) or next((one for one in TYPES if one.dialect == dialect), None)
    return _PLAIN_SQL if row is None else row.flags


def with_defaults(row: ConnectorType, defaults: Settings) -> ConnectorType:
    """Return the type with these default values for its settings. Settings that it does not list are ignored."""
    return replace(row, settings={name: defaults.get(name, value) for name, value in row.settings.items()})


_MAX_S = 365 * 24 * 3600
_MAX_CHARACTERS = 64 * 1024
_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,19}\s*")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_NO_LINES = {ord(one): None for one in "\r\n\t"}
_MULTILINE_SETTINGS = frozenset({"ssl_ca", "credentials_json"})
_MAX_SHOWN_NAME_CHARACTERS = 100
GENERAL_CHOICES: Mapping[str, Sequence[str]] = MappingProxyType(
    {"retry": ("never", "read_only"), "share_results": tuple(ResultSharing)}
)
"""The words of each general setting that is a choice."""
GENERAL_MAXIMA: Mapping[str, int] = MappingProxyType(
    {name: _MAX_S for name in GeneralSettings.model_fields if name.endswith("_s")}
    | dict.fromkeys(("max_estimated_bytes", "max_estimated_cost"), 2**63 - 1)
)
"""The maximum of each general setting that is a positive integer."""
_GENERAL: Settings = MappingProxyType(
    {name: 1 if name in GENERAL_MAXIMA else False for name in GeneralSettings.model_fields}
    | {name: words[0] for name, words in GENERAL_CHOICES.items()}
)
"""Additional settings of every type that accepts statements, each with a sample value that shows its type."""


def complete_settings(row: ConnectorType, values: Mapping[str, object]) -> dict[str, SettingValue]:
    """Return the submitted settings in the row's order, converted to its types.

    Missing settings get the row's default values. Raises unknown_setting and ConnectorRefused, whose texts contain no
    values.
    """
    kinds = {**(_GENERAL if row.takes_statements else {}), **row.settings}
    unknown = [name for name in values if name not in kinds]
    if unknown:
        text = f"Connectors of {row.dialect} with interface {row.interface} have no such setting."
        raise errors.unknown_setting({name[:_MAX_SHOWN_NAME_CHARACTERS]: [text] for name in unknown})
    settings, problems = dict(row.settings), dict[str, list[str]]()
    for name, kind in kinds.items():
        if values.get(name) is None:
            continue
        try:
            settings[name] = _typed(name, values[name], kind)
        except ValueError as problem:
            problems[name] = [str(problem)]
    for name, maximum in GENERAL_MAXIMA.items():
        if not 1 <= int(settings.get(name, 1)) <= maximum:
            problems[name] = [f"Must be between 1 and {maximum}."]
    for name, words in GENERAL_CHOICES.items():
        if settings.get(name, words[0]) not in words and name not in problems:
            problems[name] = [f"Must be {', '.join(words[:-1])} or {words[-1]}."]
    if problems:
        raise errors.ConnectorRefused(problems)
    return settings


def _typed(name: str, value: object, kind: SettingValue) -> SettingValue:
    """Convert the value to the type of `kind`. Raises ValueError with the text to show."""
    problem = None
    if isinstance(kind, bool):
        if (flag := options.parse_flag(value)) is not None:
            return flag
        problem = "Must be true or false."
    elif isinstance(kind, int):
        text = value if isinstance(value, str) else str(value) if type(value) is int else ""
        if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
            text = str(int(value))
        if _WHOLE.fullmatch(text) and abs(int(text)) <= 2**63 - 1:
            return int(text)
        problem = "Must be an integer."
    elif not isinstance(value, str):
        problem = "Must be a string."
    elif len(value) > _MAX_CHARACTERS:
        problem = f"Must have at most {_MAX_CHARACTERS} characters."
    elif _CONTROLS.search(value.translate(_NO_LINES) if name in _MULTILINE_SETTINGS else value):
        problem = "Must not contain control characters."
    else:
        return value
    raise ValueError(problem)
