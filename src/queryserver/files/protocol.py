"""What a file store is to this service. Sizes and offsets are bytes.

A `FileSystem` is one configured store; `as_user` gives it as one user sees it: a `Storage`. What only some stores can
do is a Protocol of its own. Services ask `isinstance` before anything is sent to the store, so that a missing power is
reported without a call (Contract storage 11).

Paths are relative to the store's root, with `/` between names, and empty for the root. In an object store the first
name is the bucket or container, in Ozone the service. Every adapter checks each path with `names_of` of
`files/model.py`.

Every call may raise InvalidPath, PermissionDenied (the store refuses this user), PathNotFound, NotADirectory (a part of
the path is a file), StorageUnavailable, StorageError. Each wait has a time-out that ends in StorageUnavailable.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from queryserver.files.escapes import Escapes
from queryserver.files.model import ClusterFacts, ContentSummary, FileStatus, Scheme, StorageUser

PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StorageTraits:
    """What callers must know about a store before they call it."""

    lists_in_order: bool = False
    """Whether listings come in code-point order of names (object stores: of keys, a folder counting as `name/`)."""
    container_levels: int = 0
    """How many first levels of paths are buckets, containers, or services with volumes and buckets."""
    acts_as_user: bool = False
    """Whether the store decides what the user may; otherwise a right of this service is needed."""
    deletes_to_trash: bool = False
    """Whether a delete that does not say otherwise goes to the trash."""
    changes_modes_of_trees: bool = False
    """Whether chmod and chown may be recursive."""
    home_parent: str = ""
    """Path of the directory that holds the homes, which is never deleted; empty: none."""
    min_part_bytes: int = 1
    """Smallest part of a part upload, except for the last."""
    escapes: Escapes = Escapes.NONE
    """Which names of the store have escaped names in paths."""
    max_copy_bytes: int | None = None
    """Larger files are left out by copies within the store (Ozone, Contract storage 7.3)."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive entries of a directory."""

    entries: Sequence[FileStatus]
    cursor: str | None
    """Where the listing goes on behind these entries; None: they are the last."""
    remaining: int | None = None
    """How many entries follow, where the store reports it exactly."""


@dataclass(frozen=True, slots=True)
class PartPlan:
    """A file that arrives in parts, in any order (Contract storage 9.2)."""

    path: str
    size_bytes: int
    part_bytes: int
    parts: int

    def size_of(self, index: int) -> int:
        """Bytes of one part; the last one has the rest."""
        return max(0, min(self.part_bytes, self.size_bytes - index * self.part_bytes))


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One part that arrived. `receipt` is given back to the store when the parts are joined."""

    index: int
    size_bytes: int
    receipt: str


async def no_bytes() -> AsyncGenerator[bytes]:
    """The body of an empty file."""
    for piece in ():
        yield piece


class Storage(Protocol):
    """A tree of files as one user sees it. Objects of it are cheap and own nothing; they end with their FileSystem."""

    async def stat(self, path: str) -> FileStatus:
        """The entry at `path`, a link itself. Raises SymlinkNotFollowed: a part of the path before it is a link."""
        ...

    def list_directory(self, path: str, *, cursor: str | None = None, batch_size: int = 1000) -> AsyncGenerator[Batch]:
        """The entries of a directory behind `cursor`, without reserved names; one batch for each call of the store.

        Holds one batch in memory at a time. An empty directory gives one empty batch. `batch_size` is a wish.
        Raises NotADirectory, bucket_listing_denied.
        """
        ...

    def read(
        self, path: str, *, offset: int = 0, length: int | None = None, version: FileStatus | None = None
    ) -> AsyncGenerator[bytes]:
        """Bytes [offset, offset + length) in pieces of at most 1 MiB; past the end: nothing.

        With `version` (an earlier `stat`) the bytes are of that version. Raises NotAFile, ChangedMeanwhile,
        StorageError when fewer bytes come than the store announced.
        """
        ...

    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        """Store a file: under its name it is complete and durable, or it is not there (the old one stays).

        `size_bytes` is announced, not checked. Missing parents are made. A replaced file's permissions, owner, group
        and replication factor stay where the store allows it, and are set before the new file gets the name. The size
        that the store reports is compared with the bytes of the body before the name is given. A body that raises
        leaves nothing, and so does a cancel.
        Raises PathExists (a directory of that name; any entry without `overwrite`), VerificationFailed,
        StoreQuotaExceeded, StorageError, and whatever `body` raises.
        """
        ...

    async def mkdir(self, path: str, *, permissions: int | None = None) -> None:
        """Make a directory and its missing parents. Raises PathExists when there is anything of that name.

        Stores with a trash give `permissions` to the missing parents, too.
        """
        ...

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> FileStatus:
        """Copy one file within the store; the copy appears complete. Mode, block size, replication are kept on HDFS.

        Missing parents are made. Raises PathExists, NotAFile, VerificationFailed.
        """
        ...

    async def delete(self, path: str, *, recursive: bool) -> None:
        """Delete an entry for good, a link itself. Raises DirectoryNotEmpty (always for buckets with content)."""
        ...

    async def begin_parts(self, plan: PartPlan) -> str:
        """Prepare for the parts of a file. The answer names the staging place in the following calls, on any instance.

        Raises PathNotFound when the directory of the file is missing.
        """
        ...

    async def write_part(self, plan: PartPlan, staging: str, index: int, body: AsyncIterator[bytes]) -> StoredPart:
        """Store one part. Another call with the same index replaces it; one that fails leaves the former part."""
        ...

    async def join_parts(
        self, plan: PartPlan, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus:
        """The file, of all its parts in order of their indexes; it appears complete, as in `write`.

        Raises as `write`; after VerificationFailed and PathExists the parts are still there.
        """
        ...

    async def discard_parts(self, plan: PartPlan, staging: str) -> None:
        """Remove the staging place and all parts. Nothing happens when it is gone."""
        ...

    async def sweep_orphans(self, path: str, older_than_s: float) -> int:
        """Delete orphaned files directly in a directory, last written before that time; how many.

        Only files with a reserved name; see `UnseenUploads` for what has no name.
        """
        ...


@runtime_checkable
class CheckedWrites(Protocol):
    """A store that checks the target of `write` by requests of its own."""

    async def write_checked(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        """As `write`, without these requests: the caller has just seen that `path` is free, or a file to overwrite,
        and that its parent is a directory. A file that appeared since is still not overwritten unasked.
        """
        ...


@runtime_checkable
class UnseenUploads(Protocol):
    """A store that keeps what is not complete apart, under its future name and not under a reserved one."""

    async def discard_unseen(self, path: str, older_than_s: float) -> int:
        """Remove what was begun for a file of that path and got nothing since that time; how many.

        It may be that of another program: to be called only for paths to which this service wrote itself.
        """
        ...


@runtime_checkable
class ReadableParts(Protocol):
    """A store whose parts can be read before they are joined: what is wrong with them replaces no file."""

    def read_parts(self, plan: PartPlan, staging: str, parts: Sequence[StoredPart]) -> AsyncGenerator[bytes]:
        """The bytes of the file that `join_parts` would make. Raises VerificationFailed, PathNotFound."""
        ...


@runtime_checkable
class QuotaStorage(Protocol):
    """A store in which this service limits what a user stores."""

    async def room_bytes(self) -> int | None:
        """How many bytes the user may still store; None: there is no bound."""
        ...


@runtime_checkable
class RenamingStorage(Protocol):
    """A store that renames files and trees in one step."""

    def can_rename(self, source: str, target: str) -> bool:
        """Whether these two are near enough to each other, without a call. (Ozone: only within a bucket.)"""
        ...

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """Give an entry another name. `overwrite` replaces a file by a file: at no time are both contents gone.

        The target's parent must be there: PathNotFound. Raises PathExists, NotADirectory, TargetInsideSource.
        """
        ...


@runtime_checkable
class TrashStorage(Protocol):
    """A store whose users have a trash."""

    async def trash_root(self, path: str) -> str:
        """The user's trash for entries at `path`; it need not exist."""
        ...


@runtime_checkable
class FlatStorage(Protocol):
    """A store that lists whole trees as its keys lie, without going from folder to folder."""

    def list_tree(self, path: str) -> AsyncGenerator[Sequence[FileStatus]]:
        """All files below a directory that is no root, in order of keys, without reserved names; one batch for each
        call of the store. Folders come only where the store keeps a marker for them. A directory without any is empty.
        """
        ...


@runtime_checkable
class KeyedStorage(Protocol):
    """A store in which a file and a directory may have one name; its path names the file."""

    async def is_ambiguous(self, path: str) -> bool:
        """Whether there are both."""
        ...


@runtime_checkable
class ReplicatedStorage(Protocol):
    """A store that keeps a settable number of copies of a file."""

    async def set_replication(self, path: str, factor: int) -> None:
        """Set the replication factor of a file. Raises NotAFile, InvalidParameter (outside the store's bounds)."""
        ...


@runtime_checkable
class SummarizedStorage(Protocol):
    """A store that sums up trees."""

    async def content_summary(self, path: str) -> ContentSummary:
        """Counts and bytes of a tree or a file. Raises too_many_entries."""
        ...


@runtime_checkable
class ModeStorage(Protocol):
    """A store with permissions."""

    async def set_permissions(self, path: str, permissions: int) -> None:
        """Set the nine permission bits and the sticky bit; links are not followed."""
        ...


@runtime_checkable
class OwnedStorage(Protocol):
    """A store with owners."""

    async def set_owner(self, path: str, *, owner: str | None, group: str | None) -> None:
        """Set owner, group, or both."""
        ...


class FileSystem(Protocol):
    """One configured store. To be closed by its owner."""

    @property
    def scheme(self) -> Scheme: ...

    @property
    def traits(self) -> StorageTraits:
        """Fixed for its life."""
        ...

    def as_user(self, user: StorageUser) -> Storage:
        """The store as `user` sees it; without a call."""
        ...

    async def close(self) -> None:
        """End connections and threads. Idempotent."""
        ...


@runtime_checkable
class ClusterFileSystem(Protocol):
    """A FileSystem with a superuser: HDFS."""

    async def facts(self, user: StorageUser) -> ClusterFacts:
        """What the cluster reports, within 2 s. Raises StorageUnavailable, StorageError."""
        ...
