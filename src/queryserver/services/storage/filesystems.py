"""Which stores the caller has, and what is told about them (Contract storage 5.1, 5.2)."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from queryserver.db.accounts import AccountRepository
from queryserver.domain.errors.base import PermissionDenied
from queryserver.domain.errors.files import InvalidPath, NotADirectory, PathNotFound, StorageError
from queryserver.domain.files import ClusterFacts, Scheme, StoragePath
from queryserver.domain.lru import LruCache
from queryserver.interfaces.storage import ClusterFileSystem, FileSystem, TrashStorage
from queryserver.services.storage.stores import Caller, Place, Stores

_FACTS_KEPT_S = 60.0
_FACTS_WITHIN_S = 2.0
_MAX_FACTS = 1000


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a caller is told about an HDFS cluster. Without an answer of it nothing is known."""

    facts: ClusterFacts | None = None
    users: Sequence[str] = ()
    """All users of the service, for superusers of HDFS."""
    groups: Sequence[str] = ()

    @property
    def is_trash_enabled(self) -> bool:
        """Whether the server empties trashes."""
        return self.facts is not None and self.facts.is_trash_enabled

    @property
    def is_superuser(self) -> bool:
        """Whether HDFS lets the caller do everything."""
        return self.facts is not None and self.facts.is_superuser


@dataclass(frozen=True, slots=True)
class KnownFileSystem:
    """A store that the caller may use; its home need not exist. `cluster`: only of HDFS."""

    scheme: Scheme
    home: StoragePath
    cluster: Cluster | None


class FileSystems:
    """Tells of stores. A store that does not answer never fails these calls."""

    def __init__(
        self, stores: Stores, names: AccountRepository, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stores = stores
        self._names = names
        self._facts = LruCache[str, ClusterFacts](_MAX_FACTS, life_s=_FACTS_KEPT_S, clock=clock)

    async def all(self, caller: Caller) -> Sequence[KnownFileSystem]:
        """The stores of a caller, in the order of Contract storage 5.1."""
        return [
            KnownFileSystem(
                file_system.scheme,
                self._stores.home(caller, file_system.scheme),
                await self.cluster(caller, file_system),
            )
            for file_system in self._stores.permitted(caller)
        ]

    async def cluster(self, caller: Caller, file_system: FileSystem) -> Cluster | None:
        """What the cluster says about itself and the caller, at most 60 s old; None for other stores than HDFS."""
        if not isinstance(file_system, ClusterFileSystem):
            return None
        facts = await self._facts_of(caller, file_system)
        if facts is None or not facts.is_superuser:
            return Cluster(facts)
        users, groups = await self._names.names()
        return Cluster(facts, users, groups)

    async def has_trash(self, caller: Caller, place: Place) -> bool:
        """Whether deleted entries of the store can be kept."""
        if not isinstance(place.storage, TrashStorage):
            return False
        cluster = await self.cluster(caller, place.file_system)
        return cluster is None or cluster.is_trash_enabled

    async def existing_home(self, caller: Caller, place: Place) -> StoragePath | None:
        """The caller's home on the store of `place`; None when it is not there, or cannot be looked at."""
        home = self._stores.home(caller, place.path.scheme)
        if home.is_root:
            return home
        try:
            status = await place.storage.stat(home.path)
        except (InvalidPath, PathNotFound, NotADirectory, PermissionDenied, StorageError):
            return None
        return home if status.is_directory else None

    async def _facts_of(self, caller: Caller, file_system: ClusterFileSystem) -> ClusterFacts | None:
        name = caller.acting.name
        if (kept := self._facts.get(name)) is not None:
            return kept
        try:
            async with asyncio.timeout(_FACTS_WITHIN_S):
                facts = await file_system.facts(caller.acting)
        except (TimeoutError, StorageError, PermissionDenied):
            return None
        self._facts.put(name, facts)
        return facts
