"""What a type of connector is (Contract platform 5.1)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias

from queryserver.domain.connector_instances import SettingValue

Settings: TypeAlias = tuple[tuple[str, SettingValue], ...]
"""Names and default values in the order of the form."""

Flags: TypeAlias = Mapping[str, str | bool]


class Runs(StrEnum):
    """What this server does with connectors of a type."""

    YES = "yes"
    """Statements run, without further installation."""
    DRIVER = "driver"
    """Statements run when the SQLAlchemy dialect that the url names is installed and allowed."""
    TEST = "test"
    """A connection can be tested; no statement is taken."""
    NO = "no"
    """Can be stored, listed and edited, and nothing else."""


class Category(StrEnum):
    """Groups of a listing, in their order."""

    EDITOR = "editor"
    BROWSERS = "browsers"
    CATALOGS = "catalogs"
    OPTIMIZERS = "optimizers"
    SCHEDULERS = "schedulers"
    PLUGINS = "plugins"

    @property
    def label(self) -> str:
        """Name for people."""
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


def flags(quote: str, letters: str) -> Flags:
    """All 13 flags of an SQL type: `quote` is b or d, `letters` are eleven T or F in the catalogue's order."""
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
    """One row of the catalogue."""

    dialect: str
    interface: str
    nice_name: str
    runs: Runs
    settings: Settings = ()
    """With their defaults, as listings show them."""
    flags: Flags = field(default_factory=lambda: MappingProxyType({}))
    """Empty for what is not SQL."""
    description: str = ""
    category: Category = Category.EDITOR

    @property
    def defaults(self) -> Mapping[str, SettingValue]:
        """The listed settings by name."""
        return dict(self.settings)

    @property
    def takes_statements(self) -> bool:
        """Whether an instance may become an interpreter of this server."""
        return self.runs in {Runs.YES, Runs.DRIVER}
