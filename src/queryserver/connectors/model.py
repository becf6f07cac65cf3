"""Connectors, the data sources of statements, and the stored instances of some of them (Contract platform 5)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class ConnectorLimits:
    """Editor settings that one connector may override (Contract editor 13, marked c)."""

    statement_timeout: timedelta
    session_idle: timedelta
    metadata_timeout: timedelta
    sample_timeout: timedelta
    shared_session: bool = False
    sample_views: bool = True


@dataclass(frozen=True, slots=True)
class Connector:
    """One configured data source. `key` is the settings key or the decimal id of a stored instance."""

    key: str
    dialect: str
    interface: str
    nice_name: str
    limits: ConnectorLimits
    options: Mapping[str, str | int | float | bool] = field(default_factory=lambda: MappingProxyType({}))
    groups: frozenset[str] | None = None
    read_only: bool = False
    strict_settings: bool = False
    """Whether engine settings outside of the allow list are refused, and not ignored."""
    retries_reads: bool = False
    """Statements that only read run once more when their process has died (Contract editor 3.3)."""
    close_queries: bool = False
    """Whether close_session closes the results of the session, too (Contract editor 13)."""
    right: str | None = None
    """The right that opens a stored instance; None: an interpreter of the settings, opened by `groups`."""
    version: int = 0
    """That of a stored instance: an engine belongs to one version."""

    @property
    def is_stored(self) -> bool:
        """Whether it is an instance of the service database."""
        return self.right is not None

    @property
    def reference(self) -> str:
        """The name in calls (Contract editor 1.7); that of an instance begins with its dialect."""
        return f"{self.dialect}-{self.key}" if self.is_stored else self.key


SettingValue: TypeAlias = str | int | float | bool

MASK = "********"
"""The text of a secret in answers; in calls it means "unchanged"."""


def connector_right(connector_id: int) -> str:
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
    """Every name that was ever given or that the type lists."""
    groups: tuple[str, ...]
    """Groups with the right to it, sorted."""
    version: int
    last_modified: datetime
    example_digest: str | None = None
    """Digest of what `examples/install` stored; None: it comes from a call, or was edited since."""


@dataclass(frozen=True, slots=True)
class NewInstance:
    nice_name: str
    dialect: str
    interface: str
    description: str
    settings: Mapping[str, SettingValue] = field(repr=False)
    groups: tuple[str, ...] | None
    """None: the grants stay as they are."""
    example_digest: str | None = None
