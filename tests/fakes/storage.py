"""In-memory stores. `MemoryFileSystem` imitates any kind of store, because a test chooses its scheme, traits and
powers.
"""

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache

from tests.fakes.storage_tree import Entry, MemoryTree

from queryserver.errors.base import InvalidParameter, PermissionDenied
from queryserver.errors.files import EntryChanged, PathExists, PathNotFound, StorageError, VerificationFailed
from queryserver.files.model import (
    RESERVED_PREFIX,
    ClusterFacts,
    ContentSummary,
    EntryKind,
    FileStatus,
    Scheme,
    StorageUser,
    names_of,
)
from queryserver.files.protocol import PIECE_BYTES, Batch, PartPlan, StorageTraits, StoredPart

NOBODY = StorageUser("nobody")
_TREE_PAGE = 1000


class MemoryStorage:
    """One user's view of an in-memory tree, without any optional capability."""

    def __init__(
        self, tree: MemoryTree | None = None, user: StorageUser = NOBODY, traits: StorageTraits | None = None
    ) -> None:
        self.tree = tree or MemoryTree()
        self.user = user
        self.traits = traits or StorageTraits(lists_in_order=True)

    async def stat(self, path: str) -> FileStatus:
        self._check(path)
        self.tree.existing(path)
        return self.tree.status(path)

    async def list_directory(
        self, path: str, *, cursor: str | None = None, batch_size: int = 1000
    ) -> AsyncGenerator[Batch]:
        self._check(path)
        self.tree.directory(path)
        ordered = sorted((self._order(child), child) for child in self.tree.children(path))
        if not self.traits.lists_in_order:
            ordered.reverse()
        # The cursor's entry may have been deleted, so the listing continues at the cursor's position in the sort order.
        left = [(key, child) for key, child in ordered if cursor is None or self._follows(key, cursor)]
        while True:
            now, left = left[:batch_size], left[batch_size:]
            entries = tuple(self.tree.status(child) for _, child in now if child in self.tree.entries)
            # Hadoop's stores report the number of remaining entries.
            yield Batch(entries, now[-1][0] if left else None, len(left) if self.traits.acts_as_user else None)
            if not left:
                return

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, version: FileStatus | None = None
    ) -> AsyncGenerator[bytes]:
        self._check(path)
        content = self.tree.file(path).content
        if version is not None and not self.tree.status(path).is_same_content(version):
            raise EntryChanged(f"{path} was modified concurrently.")
        wanted = content[offset:] if length is None else content[offset : offset + length]
        for start in range(0, len(wanted), PIECE_BYTES):
            yield wanted[start : start + PIECE_BYTES]

    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        del size_bytes  # this store does not verify the announced size
        self._check(path)
        self.tree.free_for_file(path, overwrite=overwrite)
        content = b"".join([piece async for piece in body])
        self.tree.free_for_file(path, overwrite=overwrite)
        return self.tree.put(path, content)

    async def mkdir(self, path: str, *, permissions: int | None = None) -> None:
        self._check(path)
        if path in self.tree.entries:
            raise PathExists(f"{path} already exists.")
        if len(names_of(path)) <= self.traits.container_levels:
            raise PermissionDenied(f"{path} cannot be made.")
        mode = 0o755 if permissions is None else permissions
        self.tree.make_parents(path, mode)
        self.tree.entries[path] = Entry(EntryKind.DIRECTORY, permissions=mode)

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> FileStatus:
        self._check(source)
        self._check(target)
        entry = self.tree.file(source)
        self.tree.free_for_file(target, overwrite=overwrite)
        return self.tree.put(target, entry.content, entry)

    async def delete(self, path: str, *, recursive: bool) -> None:
        self._check(path)
        self.tree.remove(path, recursive=recursive)

    async def begin_parts(self, plan: PartPlan) -> str:
        self._check(plan.path)
        self.tree.directory(plan.path.rpartition("/")[0])
        staging = f"{RESERVED_PREFIX}parts_{secrets.token_hex(16)}"
        self.tree.staging_table[staging] = {}
        return staging

    async def write_part(self, plan: PartPlan, staging: str, index: int, body: AsyncIterator[bytes]) -> StoredPart:
        self._check(plan.path)
        if staging not in self.tree.staging_table:
            raise PathNotFound("The parts are gone.")
        content = b"".join([piece async for piece in body])
        expected = min(plan.part_bytes, plan.size_bytes - index * plan.part_bytes)
        if len(content) != expected:
            raise VerificationFailed(f"Part {index} has {len(content)} bytes instead of {expected}.")
        self.tree.staging_table[staging][index] = content
        return StoredPart(index, len(content), f"receipt-{index}")

    async def join_parts(
        self, plan: PartPlan, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus:
        self._check(plan.path)
        if staging not in self.tree.staging_table:
            raise PathNotFound("The parts are gone.")
        if [part.receipt for part in parts] != [f"receipt-{part.index}" for part in parts]:
            raise StorageError("These receipts are not those that were given.")
        content = self.tree.joined(staging, list(parts))
        if len(content) != plan.size_bytes:
            raise VerificationFailed(f"{len(content)} bytes are stored instead of {plan.size_bytes}.")
        self.tree.free_for_file(plan.path, overwrite=overwrite)
        del self.tree.staging_table[staging]
        return self.tree.put(plan.path, content)

    async def read_parts(self, plan: PartPlan, staging: str, parts: Sequence[StoredPart]) -> AsyncGenerator[bytes]:
        self._check(plan.path)
        if staging not in self.tree.staging_table:
            raise PathNotFound("The parts are gone.")
        yield self.tree.joined(staging, list(parts))

    async def discard_parts(self, plan: PartPlan, staging: str) -> None:
        self._check(plan.path)
        self.tree.staging_table.pop(staging, None)

    async def sweep_orphans(self, path: str, older_than_s: float) -> int:
        """Return 0, because an in-memory tree has no orphaned files."""
        del older_than_s
        self._check(path)
        self.tree.directory(path)
        return 0

    def _check(self, path: str) -> None:
        self.tree.check(self.user.name, path)

    def _order(self, child: str) -> str:
        """Return the sort key of an entry. Object stores sort by key, in which the name of a folder ends with a
        slash.
        """
        name = child.rpartition("/")[2]
        is_prefix = self.traits.container_levels and self.tree.entries[child].kind is EntryKind.DIRECTORY
        return f"{name}/" if is_prefix else name

    def _follows(self, key: str, cursor: str) -> bool:
        return key > cursor if self.traits.lists_in_order else key < cursor


class Renames(MemoryStorage):
    """Implements `RenamingStorage`. In stores with containers, a rename must stay within one container."""

    def can_rename(self, source: str, target: str) -> bool:
        levels = self.traits.container_levels
        return names_of(source)[:levels] == names_of(target)[:levels]

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        self._check(source)
        self._check(target)
        self.tree.move(source, target, overwrite=overwrite)


class Trashes(MemoryStorage):
    """Implements `TrashStorage` with the trash in the user's home directory."""

    async def trash_root(self, path: str) -> str:
        self._check(path)
        return f"user/{self.user.name}/.Trash"


class Replicates(MemoryStorage):
    """Implements `ReplicatedStorage`."""

    async def set_replication(self, path: str, factor: int) -> None:
        self._check(path)
        if not 1 <= factor <= 512:
            raise InvalidParameter("The factor is from 1 to 512.")
        self.tree.file(path).replication = factor


class SumsUp(MemoryStorage):
    """Implements `SummarizedStorage`."""

    async def content_summary(self, path: str) -> ContentSummary:
        self._check(path)
        self.tree.existing(path)
        entries = [self.tree.entries[entry] for entry in {path, *self.tree.inner(path)}]
        length = sum(len(entry.content) for entry in entries)
        kinds = [entry.kind for entry in entries]
        return ContentSummary(kinds.count(EntryKind.DIRECTORY), kinds.count(EntryKind.FILE), length, length)


class HasModes(MemoryStorage):
    """Implements `ModeStorage`."""

    async def set_permissions(self, path: str, permissions: int) -> None:
        self._check(path)
        self.tree.existing(path).permissions = permissions


class HasOwners(MemoryStorage):
    """Implements `OwnedStorage`."""

    async def set_owner(self, path: str, *, owner: str | None, group: str | None) -> None:
        self._check(path)
        entry = self.tree.existing(path)
        entry.owner = entry.owner if owner is None else owner
        entry.group = entry.group if group is None else group


class KeepsUnseen(MemoryStorage):
    """Implements `UnlistedUploads`. A test adds the uploads to `tree.unseen`."""

    async def abort_unlisted_uploads(self, path: str, older_than_s: float) -> int:
        self._check(path)
        before = datetime.now(UTC) - timedelta(seconds=older_than_s)
        old = [upload for upload in self.tree.unseen if upload[0] == path and upload[1] < before]
        for upload in old:
            self.tree.unseen.remove(upload)
        return len(old)


class ListsFlat(MemoryStorage):
    """Implements `FlatStorage` with pages of 1000 keys. Folders without children appear as marker keys."""

    async def list_tree(self, path: str) -> AsyncGenerator[Sequence[FileStatus]]:
        self._check(path)
        keys = sorted((self._key(entry), entry) for entry in self.tree.inner(path))
        listed = [entry for key, entry in keys if not key.endswith("/") or not self.tree.children(entry)]
        for start in range(0, max(len(listed), 1), _TREE_PAGE):
            yield tuple(self.tree.status(entry) for entry in listed[start : start + _TREE_PAGE])

    def _key(self, path: str) -> str:
        return f"{path}/" if self.tree.entries[path].kind is EntryKind.DIRECTORY else path


class Power(Enum):
    """The optional capabilities of a store."""

    RENAME = Renames
    TRASH = Trashes
    REPLICATION = Replicates
    SUMMARY = SumsUp
    MODES = HasModes
    OWNERS = HasOwners
    UNSEEN = KeepsUnseen
    FLAT = ListsFlat


LIKE_LOCAL = frozenset({Power.RENAME, Power.TRASH, Power.SUMMARY, Power.MODES})
LIKE_HDFS = frozenset(Power) - {Power.UNSEEN, Power.FLAT}
LIKE_S3 = frozenset({Power.UNSEEN, Power.FLAT})
LIKE_ABFS = frozenset({Power.RENAME, Power.MODES, Power.OWNERS})
LIKE_OZONE = LIKE_HDFS - {Power.TRASH}


class MemoryFileSystem:
    """An in-memory store. `traits` and `powers` determine its behavior and optional capabilities. `is_closed` is set by
    `close`.

    If `traits` has `container_levels`, users cannot create containers; a test passes them in `containers`.
    """

    def __init__(
        self,
        scheme: Scheme = Scheme.FILE,
        traits: StorageTraits | None = None,
        powers: Collection[Power] = LIKE_LOCAL,
        *,
        containers: Sequence[str] = (),
        private: Mapping[str, str] | None = None,
    ) -> None:
        self._scheme = scheme
        self._traits = traits or StorageTraits()
        self._powers = frozenset(powers)
        self.tree = MemoryTree(self._traits.container_levels, private or {})
        self.is_closed = False
        for container in containers:
            self.tree.make_container(container)

    @property
    def scheme(self) -> Scheme:
        return self._scheme

    @property
    def traits(self) -> StorageTraits:
        return self._traits

    def as_user(self, user: StorageUser) -> MemoryStorage:
        return _with(self._powers)(self.tree, user, self._traits)

    async def close(self) -> None:
        self.is_closed = True


class MemoryCluster(MemoryFileSystem):
    """An in-memory store with a superuser."""

    def __init__(self, facts: ClusterFacts, traits: StorageTraits | None = None) -> None:
        super().__init__(Scheme.HDFS, traits, LIKE_HDFS)
        self._facts = facts

    async def facts(self, user: StorageUser) -> ClusterFacts:
        del user
        return self._facts


@cache
def _with(powers: frozenset[Power]) -> type[MemoryStorage]:
    """Return a Storage class that implements exactly these powers, because services check for them with
    `isinstance`.
    """
    classes = tuple(power.value for power in Power if power in powers)
    return type("MemoryStorageWithPowers", (*classes, MemoryStorage), {})
