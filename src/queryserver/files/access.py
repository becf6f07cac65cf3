"""Configured stores, store access, users' home directories, and file audit events.

Contract storage 2.5, 5.1, 10.1.
"""

import asyncio
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from queryserver import errors
from queryserver.files.model import (
    ClusterFacts,
    EntryKind,
    FileStatus,
    PathReader,
    Scheme,
    StoragePath,
    StorageUser,
    Transfer,
)
from queryserver.files.protocol import (
    ClusterFileSystem,
    FileSystem,
    ModeStorage,
    OwnedStorage,
    ReplicatedStorage,
    Storage,
    SummarizedStorage,
    TrashStorage,
)
from queryserver.identity.model import User, UsernameRule
from queryserver.identity.repository import AccountRepository
from queryserver.platform.caches import LruCache
from queryserver.platform.logs import AuditTrail

IMPERSONATE = "security.impersonate"

# A `doas` user need not have an account in queryserver, so the configured user name case rules do not apply.
_EXACT_USERNAME = UsernameRule(ignore_case=False, force_lowercase=False)

OBJECT_STORES = frozenset({Scheme.S3A})
"""Object stores, in which writing the first file implicitly creates its directory."""

_RIGHTS: Mapping[Scheme, str] = {
    Scheme.S3A: "filebrowser.s3_access",
    Scheme.ABFS: "filebrowser.abfs_access",
    Scheme.OFS: "filebrowser.ofs_access",
    Scheme.FILE: "filebrowser.file_access",
}


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated user, and the user whose permissions apply in the stores. The two differ if `doas` is set."""

    user: User
    acting: StorageUser

    @classmethod
    def of(cls, user: User) -> "Caller":
        return cls(user, StorageUser(user.username, is_admin=user.is_admin))


@dataclass(frozen=True, slots=True)
class Location:
    """A path together with its store, which is accessed with the caller's permissions."""

    path: StoragePath
    file_system: FileSystem
    storage: Storage

    def at(self, path: StoragePath) -> "Location":
        return Location(path, self.file_system, self.storage)

    async def find(self) -> FileStatus | None:
        """Return the entry at the path, or None if it does not exist."""
        try:
            return await self.storage.stat(self.path.path)
        except errors.PathNotFound:
            return None

    async def require_directory(self) -> None:
        """Raise an error unless the path is a directory: PathNotFound (with the path in `details`), NotADirectory or
        SymlinkNotFollowed.
        """
        self.check_directory(await self.find())

    async def require_directory_of_files(self) -> None:
        """Raise an error unless files can be created in this directory. In an object store, the directory need not
        exist if its bucket does.

        Raises the same errors as `require_directory`, and root_not_allowed above the bucket level.
        """
        levels = self.file_system.traits.container_levels
        names = self.path.names if levels else ()
        if len(names) < levels:
            raise errors.root_not_allowed("Files must be inside a bucket, container or volume.")
        found = await self.find()
        if found is None and self.path.scheme in OBJECT_STORES and len(names) > levels:
            found = await self.at(StoragePath(self.path.scheme, "/".join(names[:levels]))).find()
        self.check_directory(found)

    def check_directory(self, found: FileStatus | None) -> None:
        """Raise an error unless `found` is a directory: PathNotFound for None, SymlinkNotFollowed for a link (even to a
        directory), NotADirectory otherwise.
        """
        if found is None:
            raise self.missing()
        if found.kind is EntryKind.LINK:
            raise errors.SymlinkNotFollowed(f"{self.path} is a symbolic link; symbolic links are not followed.")
        if found.kind is not EntryKind.DIRECTORY:
            raise errors.NotADirectory(f"{self.path} is not a directory.")

    def missing(self) -> errors.PathNotFound:
        """Return a PathNotFound error with the path in `details`."""
        return errors.PathNotFound(f"{self.path} does not exist.", details={"path": str(self.path)})


class Stores:
    """The configured stores, listed in the order of Contract storage 5.1. `${USER}` in `homes` stands for the user
    name.
    """

    def __init__(
        self, file_systems: Sequence[FileSystem], reader: PathReader, homes: Mapping[Scheme, str] | None = None
    ) -> None:
        self._file_systems = {file_system.scheme: file_system for file_system in file_systems}
        self._reader = reader
        self._homes = homes or {}

    @property
    def spellings(self) -> frozenset[str]:
        """All accepted scheme names of these stores, in lower case and without `://`."""
        return self._reader.spellings

    def caller(self, user: User, doas: str | None = None) -> Caller:
        """Return the caller, acting as `doas` if set. Raises ImpersonationNotAllowed, or InvalidParameter if `doas` is
        not a valid user name.
        """
        if not doas or doas == user.username:
            return Caller.of(user)
        if not user.may(IMPERSONATE):
            raise errors.ImpersonationNotAllowed("You are not allowed to impersonate other users.")
        try:
            name = _EXACT_USERNAME.read_exact(doas).shown
        except errors.InvalidUsername as error:
            raise errors.InvalidParameter(f"doas: {error.message}") from None
        return Caller(user, StorageUser(name))

    def path(self, text: str | None, *, parameter: str = "path") -> StoragePath:
        """Parse a path without calling a store. Raises the same errors as `PathReader.read`."""
        if not text or text.isspace():
            raise errors.MissingParameter(f"{parameter} is required.")
        return self._reader.read(text, parameter=parameter)

    def path_or_root(self, text: str | None) -> StoragePath:
        """Like `path`, but an empty or missing value denotes the default store's root."""
        return self._reader.read(text or "/")

    def location(self, caller: Caller, path: StoragePath) -> Location:
        """Return the path together with its store, which is accessed with the caller's permissions. Raises
        StorageNotConfigured, storage_access_denied.
        """
        file_system = self._file_system(path.scheme)
        if not may_use(caller.user, path.scheme):
            raise errors.storage_access_denied(f"You do not have access to the store {path.scheme}.")
        return Location(path, file_system, file_system.as_user(caller.acting))

    def require_rights(self, caller: Caller, user: User, scheme: Scheme) -> None:
        """Check that `user`, the caller's freshly loaded account, still has the permissions that the call needs. Raises
        storage_access_denied, ImpersonationNotAllowed.
        """
        if not may_use(user, scheme) or (caller.acting.is_admin and not user.is_admin):
            raise errors.storage_access_denied(f"You do not have access to the store {scheme}.")
        if caller.acting.name != caller.user.username and not user.may(IMPERSONATE):
            raise errors.ImpersonationNotAllowed("You are not allowed to impersonate other users.")

    def as_user(self, scheme: Scheme, user: StorageUser) -> Storage:
        """Return the store without checking access, for already authorized work. Raises StorageNotConfigured."""
        return self._file_system(scheme).as_user(user)

    def authorized_location(self, path: StoragePath, user: StorageUser) -> Location:
        """Like `as_user`, but return the path together with its store. Raises StorageNotConfigured."""
        file_system = self._file_system(path.scheme)
        return Location(path, file_system, file_system.as_user(user))

    def _file_system(self, scheme: Scheme) -> FileSystem:
        file_system = self._file_systems.get(scheme)
        if file_system is None:
            raise errors.StorageNotConfigured(f"The store {scheme} is not configured.")
        return file_system

    def with_available_stores(self, error: errors.QueryServerError, caller: Caller) -> errors.QueryServerError:
        """Append the stores available to the caller to the message of an UnknownScheme or StorageNotConfigured error.
        Return any other error unchanged.
        """
        if not isinstance(error, errors.UnknownScheme | errors.StorageNotConfigured):
            return error
        return type(error)(f"{error.message}{errors.known_names([one.scheme.value for one in self.permitted(caller)])}")

    def permitted(self, caller: Caller) -> Sequence[FileSystem]:
        return [self._file_systems[s] for s in Scheme if s in self._file_systems and may_use(caller.user, s)]

    def home(self, caller: Caller, scheme: Scheme) -> StoragePath:
        """Return the path of the caller's home directory on a store. The directory need not exist."""
        name = caller.acting.name
        if scheme in {Scheme.HDFS, Scheme.FILE}:
            return StoragePath(scheme, f"user/{name}")
        text = self._homes.get(scheme, "").replace("${USER}", name)
        try:
            return self._reader.read(text) if text else StoragePath(scheme, "")
        except errors.InvalidPath:
            # User names may exceed the maximum length of a file name.
            return StoragePath(scheme, "")

    def default_home(self, caller: Caller) -> StoragePath:
        """Return the caller's home directory on the default store. Raises StorageNotConfigured."""
        return self.home(caller, self._reader.read("/").scheme)


def may_use(user: User, scheme: Scheme) -> bool:
    """Return whether the user may access a store at all. Always True for HDFS, which checks permissions itself."""
    right = _RIGHTS.get(scheme)
    return right is None or user.may(right)


_FACTS_CACHED_S = 60.0
_FACTS_TIMEOUT_S = 2.0
_MAX_FACTS = 1000
_NO_HOME = errors.InvalidPath, errors.PathNotFound, errors.NotADirectory, errors.PermissionDenied, errors.StorageError


@dataclass(frozen=True, slots=True)
class Cluster:
    """An HDFS cluster as one caller sees it. `facts` is None if the cluster failed or did not respond in time."""

    facts: ClusterFacts | None = None
    users: Sequence[str] = ()
    """Names of all queryserver users. Like `groups`, filled in only if the caller is an HDFS superuser."""
    groups: Sequence[str] = ()

    @property
    def is_trash_enabled(self) -> bool:
        return self.facts is not None and self.facts.is_trash_enabled

    @property
    def is_superuser(self) -> bool:
        return self.facts is not None and self.facts.is_superuser


class Feature(StrEnum):
    """Optional calls of stores (Contract storage 5.1)."""

    SUMMARY = "summary"
    PERMISSIONS = "permissions"
    OWNERS = "owners"
    RECURSIVE = "recursive"
    REPLICATION = "replication"


@dataclass(frozen=True, slots=True)
class AvailableFileSystem:
    """A store available to the caller. `home` need not exist; `cluster` is None for all stores except HDFS."""

    scheme: Scheme
    home: StoragePath
    cluster: Cluster | None
    has_trash: bool = False
    """Whether deletion moves entries to a trash by default."""
    features: Sequence[Feature] = ()
    """Optional calls that the store supports, in the order of `Feature`."""


def _features(caller: Caller, file_system: FileSystem) -> Sequence[Feature]:
    storage = file_system.as_user(caller.acting)
    is_supported = {
        Feature.SUMMARY: isinstance(storage, SummarizedStorage),
        Feature.PERMISSIONS: isinstance(storage, ModeStorage),
        Feature.OWNERS: isinstance(storage, OwnedStorage),
        Feature.RECURSIVE: isinstance(storage, ModeStorage) and file_system.traits.changes_modes_of_trees,
        Feature.REPLICATION: isinstance(storage, ReplicatedStorage),
    }
    return [feature for feature, supported in is_supported.items() if supported]


class FileSystems:
    """Describes the stores available to a caller. Its methods succeed even if a store does not respond."""

    def __init__(
        self, stores: Stores, names: AccountRepository, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stores = stores
        self._names = names
        self._facts = LruCache[str, ClusterFacts](_MAX_FACTS, life_s=_FACTS_CACHED_S, clock=clock)

    async def all(self, caller: Caller) -> Sequence[AvailableFileSystem]:
        return [await self._available(caller, file_system) for file_system in self._stores.permitted(caller)]

    async def _available(self, caller: Caller, file_system: FileSystem) -> AvailableFileSystem:
        home, cluster = self._stores.home(caller, file_system.scheme), await self.cluster(caller, file_system)
        has_trash = file_system.traits.deletes_to_trash and (cluster is None or cluster.is_trash_enabled)
        return AvailableFileSystem(file_system.scheme, home, cluster, has_trash, _features(caller, file_system))

    async def cluster(self, caller: Caller, file_system: FileSystem) -> Cluster | None:
        """Return cluster information at most 60 s old, or None for stores other than HDFS."""
        if not isinstance(file_system, ClusterFileSystem):
            return None
        facts = await self._cached_facts(caller, file_system)
        if facts is None or not facts.is_superuser:
            return Cluster(facts)
        users, groups = await self._names.names()
        return Cluster(facts, users, groups)

    async def has_trash(self, caller: Caller, location: Location) -> bool:
        """Return whether entries of the location's store can be moved to a trash."""
        if not isinstance(location.storage, TrashStorage):
            return False
        cluster = await self.cluster(caller, location.file_system)
        return cluster is None or cluster.is_trash_enabled

    async def existing_home(self, caller: Caller, location: Location) -> StoragePath | None:
        """Return the caller's home directory on the location's store, or None if it is missing or unreadable."""
        home = self._stores.home(caller, location.path.scheme)
        if home.is_root:
            return home
        try:
            status = await location.storage.stat(home.path)
        except _NO_HOME:
            return None
        return home if status.is_directory else None

    async def _cached_facts(self, caller: Caller, file_system: ClusterFileSystem) -> ClusterFacts | None:
        name = caller.acting.name
        if (cached := self._facts.get(name)) is not None:
            return cached
        try:
            async with asyncio.timeout(_FACTS_TIMEOUT_S):
                facts = await file_system.facts(caller.acting)
        except (TimeoutError, errors.StorageError, errors.PermissionDenied):
            return None
        self._facts.put(name, facts)
        return facts


_NO_FACTS: Mapping[str, str] = MappingProxyType({})


class AuditDetails:
    """Details that an operation adds to its audit event."""

    def __init__(self) -> None:
        self.size_bytes: int | None = None


class StorageAudit:
    """Records an audit event for each write, download and denied call."""

    def __init__(self, audit: AuditTrail) -> None:
        self._audit = audit

    @contextmanager
    def event(
        self, caller: Caller, operation: str, path: StoragePath | str, *, facts: Mapping[str, str] = _NO_FACTS
    ) -> Generator[AuditDetails]:
        """Record one event when the block ends. Its outcome is `ok`, the error code, or `interrupted`."""
        details, outcome = AuditDetails(), "interrupted"
        try:
            yield details
            outcome = "ok"
        except errors.QueryServerError as error:
            outcome = error.code
            raise
        finally:
            self.record(caller, operation, path, outcome, size_bytes=details.size_bytes, facts=facts)

    def record_takeover(self, transfer: Transfer, outcome: str) -> None:
        """Record the audit event of a move or copy that this process took over from a crashed process."""
        # Only GET requests accept `doas` (Contract storage 2.1), so the acting user is the caller.
        name = transfer.acting.name
        self._audit.record_path(name, f"storage.{transfer.kind}", str(transfer.source), outcome=outcome)

    def record(
        self,
        caller: Caller,
        operation: str,
        path: StoragePath | str,
        outcome: str = "ok",
        *,
        size_bytes: int | None = None,
        facts: Mapping[str, str] = _NO_FACTS,
    ) -> None:
        self._audit.record_path(
            caller.user.username,
            operation,
            str(path),
            outcome=outcome,
            effective_user=caller.acting.name,
            size_bytes=size_bytes,
            facts=facts,
        )
