"""Defines connectors, which are data sources for statements, and their stored instances (Contract platform 5)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
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
    reuse_max_age: timedelta = timedelta(0)
    """Default of `max_age_s`; zero: results are not reused unless the call requests it."""
    max_estimated_bytes: int | None = None
    """The most bytes that the engine may expect a statement to read."""
    max_estimated_cost: int | None = None
    """The highest cost of a plan, in the planner's units."""


class ResultSharing(StrEnum):
    """The users to whom results of a connector may be granted (Contract sharing 4.1)."""

    NEVER = "never"
    USERS_OF_CONNECTOR = "users_of_connector"
    ANYONE = "anyone"


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
    """Whether engine settings outside the allow list are refused rather than ignored."""
    retries_reads: bool = False
    """Whether a read-only statement is rerun once if its process has died (Contract editor 3.3)."""
    close_queries: bool = False
    """Whether close_session also closes the session's results (Contract editor 13)."""
    share_results: ResultSharing | None = None
    """None for the default, which depends on the engine (`Connectors.result_sharing`)."""
    right: str | None = None
    """The right to use a stored instance; None for an interpreter in the settings, which `groups` may use."""
    version: int = 0
    """The version of a stored instance; each version has its own engine."""

    @property
    def is_stored(self) -> bool:
        """Whether this is an instance stored in the service database."""
        return self.right is not None

    @property
    def reference(self) -> str:
        """The connector's name in API calls (Contract editor 1.7).

        This is the key, prefixed with the dialect for a stored instance.
        """
        return f"{self.dialect}-{self.key}" if self.is_stored else self.key


SettingValue: TypeAlias = str | int | float | bool

MASK = "********"
"""Replaces secrets in responses. In a request, it means that the secret is unchanged."""


def connector_right(connector_id: int) -> str:
    return f"connector:{connector_id}"


@dataclass(frozen=True, slots=True)
class ConnectorInstance:
    """A stored connector. Its secrets are unmasked: never log its settings or return them to clients."""

    id: int
    nice_name: str
    dialect: str
    interface: str
    description: str
    """If empty, the type's description applies."""
    settings: Mapping[str, SettingValue] = field(repr=False)
    """The stored settings, including settings that the type no longer lists."""
    groups: tuple[str, ...]
    """Groups with the right to use the connector, sorted."""
    version: int
    last_modified: datetime
    example_digest: str | None = None
    """Digest of the values that `examples/install` stored; None if a client created or edited the instance."""


@dataclass(frozen=True, slots=True)
class NewInstance:
    nice_name: str
    dialect: str
    interface: str
    description: str
    settings: Mapping[str, SettingValue] = field(repr=False)
    groups: tuple[str, ...] | None
    """None leaves the grants unchanged."""
    example_digest: str | None = None
