"""Connectors that are kept in the service database."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Protocol

from queryserver.domain.connector_instances import ConnectorInstance, NewInstance, SettingValue, StoredInstances
from queryserver.domain.connector_types import ConnectorType

CHANGED = "connectors"
"""Kind of the notice that tells every instance of a change; its subject is the number of the new state."""


class ConnectorRecords(Protocol):
    """Stored instances. Each call is one transaction; all raise DatabaseUnavailable.

    Every change counts the number of the state up by one and notifies all servers with its commit. Changes take turns.
    """

    async def all(self) -> StoredInstances:
        """All instances, as one state. One whose secrets cannot be opened any more comes without those."""
        ...

    async def find(self, connector_id: int) -> ConnectorInstance | None:
        """One instance as it is now; None when unknown or deleted."""
        ...

    async def create(self, new: NewInstance) -> ConnectorInstance:
        """Store a new one, under an id that was never used. Raises NameTaken, UnknownGroup."""
        ...

    async def change(self, instance: ConnectorInstance, new: NewInstance) -> ConnectorInstance:
        """Replace what is changeable of `instance`, whose version must still be the stored one.

        Raises VersionConflict, connector_not_found, NameTaken, UnknownGroup.
        """
        ...

    async def remove(self, connector_id: int) -> ConnectorInstance:
        """Leave only a tombstone of names; grants and index rows go with it.

        Raises connector_not_found, connector_in_use while a statement of it waits or runs.
        """
        ...

    async def unknown_groups(self, names: AbstractSet[str]) -> frozenset[str]:
        """Those names that no group has."""
        ...

    async def reseal(self) -> tuple[int, int]:
        """Encrypt all secrets anew with the present key: how many instances that were, and of how many it is lost."""
        ...


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
