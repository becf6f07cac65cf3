"""A place that statements can be sent to (Contract platform 5: interpreter)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType

from queryserver.domain.user import User


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
        """The name by which calls choose it (Contract editor 1.7); that of an instance says its dialect, too."""
        return f"{self.dialect}-{self.key}" if self.is_stored else self.key

    def open_to(self, user: User) -> bool:
        """Instances need a right; interpreters without `groups` are open to all users (Contract platform 4.3)."""
        if self.right is not None:
            return user.may_use(self.right)
        return user.is_admin or self.groups is None or bool(self.groups & user.groups)
