"""A place that statements can be sent to (Contract platform 5: interpreter)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType


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

    def open_to(self, groups: frozenset[str], *, is_admin: bool) -> bool:
        """Interpreters without `groups` are open to all users."""
        return is_admin or self.groups is None or bool(self.groups & groups)
