"""Connectors that are kept in the service database."""

from collections.abc import Mapping
from typing import Protocol

from queryserver.domain.connector_instances import SettingValue
from queryserver.domain.connector_types import ConnectorType

CHANGED = "connectors"
"""Kind of the notice that tells every instance of a change; its subject is the number of the new state."""


class ConnectorChecks(Protocol):
    """What this server can say about settings without connecting to anything."""

    async def require_valid(self, row: ConnectorType, settings: Mapping[str, SettingValue]) -> None:
        """Raises ConnectorRefused, or the subclass that fits, with a text for each setting that is wrong.

        `settings` are complete and of the types that `row` wants. A driver that is not installed is no mistake of
        theirs.
        """
        ...

    async def is_runnable(self, row: ConnectorType, settings: Mapping[str, SettingValue]) -> bool:
        """Whether this server has what it needs to run statements through them."""
        ...
