"""Connectors that are kept in the service database (Contract platform 5.1)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

SettingValue: TypeAlias = str | int | float | bool

MASK = "********"
"""Stands in answers where a secret is, and in calls for "unchanged"."""


def connector_right(connector_id: int) -> str:
    """The right that opens an instance (Contract platform 4.3)."""
    return f"connector:{connector_id}"


@dataclass(frozen=True, slots=True)
class ConnectorInstance:
    """One stored connector. Its settings hold secrets in the clear, and only here: never log, never answer them."""

    id: int
    nice_name: str
    dialect: str
    interface: str
    description: str
    """Empty: that of the type."""
    settings: Mapping[str, SettingValue] = field(repr=False)
    """What differs from nothing: every name that was ever given or that the type lists."""
    groups: tuple[str, ...]
    """Groups with the right to it, sorted."""
    version: int
    last_modified: datetime
    example_digest: str | None = None
    """What `examples/install` put here and nobody edited since; None: not from there, or edited."""


@dataclass(frozen=True, slots=True)
class NewInstance:
    """An instance to be stored."""

    nice_name: str
    dialect: str
    interface: str
    description: str
    settings: Mapping[str, SettingValue] = field(repr=False)
    groups: tuple[str, ...] | None
    """None: whoever has it keeps it."""
    example_digest: str | None = None


@dataclass(frozen=True, slots=True)
class StoredInstances:
    """All instances by ascending id, and the number of the state that they are."""

    version: int
    instances: tuple[ConnectorInstance, ...]
