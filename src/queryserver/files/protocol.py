"""The Protocols for file stores. Sizes and offsets are bytes.

A `FileSystem` is one configured store; `as_user` returns a `Storage`, which accesses the store with one user's rights.
Optional features have their own Protocols. Services check them with `isinstance` first, so that a missing feature is
reported without a call to the store (Contract storage 11).

Paths are relative to the store's root, with `/` between names, and empty for the root. In an object store the first
name is the bucket or container, in Ozone the service. Every adapter checks each path with `names_of` from
`files/model.py`.

Every call may raise InvalidPath, PermissionDenied (the store refuses this user), PathNotFound, NotADirectory (a parent
is a file), StorageUnavailable, StorageError. Each wait has a timeout, after which StorageUnavailable is raised.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from queryserver.files.model import ClusterFacts, ContentSummary, Escapes, FileStatus, Scheme, StorageUser

PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StorageTraits:
    """Properties of a store that callers must know before they call it."""

    lists_in_order: bool = False
    """Whether listings are in code-point order of names (in object stores by key, where a folder is `name/`)."""
    container_levels: int = 0
    """Number of leading path levels that are buckets, containers or, in Ozone, services, volumes and buckets."""
    acts_as_user: bool = False
    """Whether the store checks the user's permissions. Otherwise a permission in this service is required."""
    deletes_to_trash: bool = False
    """Whether deletion moves entries to the trash by default."""
    changes_modes_of_trees: bool = False
    """Whether chmod and chown can be recursive."""
    home_parent: str = ""
    """Path of the directory that contains the home directories and cannot be deleted; empty if there is none."""
    min_part_bytes: int = 1
    """Minimum part size in multipart uploads, except for the last part."""
    escapes: Escapes = Escapes.NONE
    """Which of the store's names are escaped in paths."""
    max_copy_bytes: int | None = None
    """Larger files are skipped when copying within the store (Ozone, Contract storage 7.3)."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive entries from a directory."""

    entries: Sequence[FileStatus]
    cursor: str | None
    """Where to continue the listing after these entries; None if there are no more."""
    remaining: int | None = None
    """Exact number of the following entries; None if the store does not report it."""


@dataclass(frozen=True, slots=True)
class PartPlan:
    """A file uploaded in parts, which may arrive in any order (Contract storage 9.2)."""

    path: str
    size_bytes: int
    part_bytes: int
    parts: int

    def size_of(self, index: int) -> int:
        """Return a part's size. The last part has the remaining bytes."""
        return max(0, min(self.part_bytes, self.size_bytes - index * self.part_bytes))


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A stored part. `receipt` is passed back to the store when the parts are joined."""

    index: int
    size_bytes: int
    receipt: str


async def empty_body() -> AsyncGenerator[bytes]:
    """Yield the body of an empty file, which has no chunks."""
    for piece in ():
        yield piece


class Storage(Protocol):
    """Accesses a store with one user's rights. Objects are cheap and own no resources; they are valid while their
    FileSystem is.
    """

    async def stat(self, path: str) -> FileStatus:
        """Return the entry at `path` without following links. Raises SymlinkNotFollowed if a parent is a link."""
        ...

    def list_directory(self, path: str, *, cursor: str | None = None, batch_size: int = 1000) -> AsyncGenerator[Batch]:
        """Yield the entries of a directory after `cursor`, except reserved names, with one batch per store call.

        Keeps one batch in memory at a time. An empty directory yields one empty batch. `batch_size` is only a hint.
        Raises NotADirectory, bucket_listing_denied.
        """
        ...

    def read(
        self, path: str, *, offset: int = 0, length: int | None = None, version: FileStatus | None = None
    ) -> AsyncGenerator[bytes]:
        """Yield bytes [offset, offset + length) in chunks of at most 1 MiB; nothing past the end.

        With `version`, an earlier `stat`, only reads that version. Raises NotAFile, EntryChanged, and StorageError if
        the store returns fewer bytes than announced.
        """
        ...

    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        """Store a file atomically: it appears complete and durable, or not at all (an existing file stays).

        `size_bytes` is announced, but not checked. Missing parents are created. The permissions, owner, group and
        replication factor of a replaced file are preserved if the store allows it, and set before the new file gets its
        name. Before that, the size reported by the store is also compared with the body's size. If the body raises an
        error or the call is cancelled, nothing is left behind. Raises PathExists (a directory of that name; any entry
        without `overwrite`), VerificationFailed, StoreQuotaExceeded, StorageError, and the errors of `body`.
        """
        ...

    async def mkdir(self, path: str, *, permissions: int | None = None) -> None:
        """Create a directory and its missing parents. Raises PathExists if any entry has that name.

        Stores with a trash also set `permissions` on created parents.
        """
        ...

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> FileStatus:
        """Copy one file atomically within the store. On HDFS, mode, block size and replication factor are preserved.

        Missing parents are created. Raises PathExists, NotAFile, VerificationFailed.
        """
        ...

    async def delete(self, path: str, *, recursive: bool) -> None:
        """Delete an entry permanently, without following links. Raises DirectoryNotEmpty (always for non-empty
        buckets).
        """
        ...

    async def begin_parts(self, plan: PartPlan) -> str:
        """Create a staging area for a file's parts and return its name, which is passed to later calls on any instance.

        Raises PathNotFound if the file's directory does not exist.
        """
        ...

    async def write_part(self, plan: PartPlan, staging: str, index: int, body: AsyncIterator[bytes]) -> StoredPart:
        """Store one part, replacing an earlier part with the same index. A failed call keeps the earlier part."""
        ...

    async def join_parts(
        self, plan: PartPlan, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus:
        """Join all parts in index order to the file, which appears atomically, as in `write`.

        Raises the errors of `write`. The parts still exist after VerificationFailed and PathExists.
        """
        ...

    async def discard_parts(self, plan: PartPlan, staging: str) -> None:
        """Remove the staging area and all parts, if it still exists."""
        ...

    async def sweep_orphans(self, path: str, older_than_s: float) -> int:
        """Delete orphaned files directly in a directory that were last written before that time; return how many.

        Only deletes files with a reserved name. See `UnlistedUploads` for uploads that have no name yet.
        """
        ...


@runtime_checkable
class CheckedWrites(Protocol):
    """A store whose `write` checks the target with separate requests."""

    async def write_checked(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        """Like `write`, without the separate requests.

        The caller has just checked that `path` is free or a file to overwrite, and that its parent is a directory.
        Without `overwrite`, a file that has appeared since is still not overwritten.
        """
        ...


@runtime_checkable
class UnlistedUploads(Protocol):
    """A store that tracks incomplete uploads under their final name, but not in listings."""

    async def abort_unlisted_uploads(self, path: str, older_than_s: float) -> int:
        """Abort uploads to a path that have received nothing for the given time; return how many.

        They may belong to other programs, so only call this for paths that this service itself has written to.
        """
        ...


@runtime_checkable
class ReadableParts(Protocol):
    """A store whose parts can be verified before they are joined and replace a file."""

    def read_parts(self, plan: PartPlan, staging: str, parts: Sequence[StoredPart]) -> AsyncGenerator[bytes]:
        """Yield the bytes of the file that `join_parts` would create. Raises VerificationFailed, PathNotFound."""
        ...


@runtime_checkable
class QuotaStorage(Protocol):
    """A store where this service limits how much a user stores."""

    async def room_bytes(self) -> int | None:
        """Return how many more bytes the user may store, or None if unlimited."""
        ...


@runtime_checkable
class RenamingStorage(Protocol):
    """A store that renames files and trees atomically."""

    def can_rename(self, source: str, target: str) -> bool:
        """Return whether a rename between these paths is possible, without calling the store. (Ozone: only within a
        bucket.)
        """
        ...

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """Rename an entry. With `overwrite`, a file replaces a file, and one of the two contents always exists.

        Raises PathNotFound (also for a missing target parent), PathExists, NotADirectory, TargetInsideSource.
        """
        ...


@runtime_checkable
class TrashStorage(Protocol):
    """A store whose users have a trash."""

    async def trash_root(self, path: str) -> str:
        """Return the user's trash directory for entries at `path`. It need not exist."""
        ...


@runtime_checkable
class FlatStorage(Protocol):
    """A store that can list whole trees in key order, without listing each folder."""

    def list_tree(self, path: str) -> AsyncGenerator[Sequence[FileStatus]]:
        """Yield all files below a directory other than the root, in key order and without reserved names; one batch per
        call.

        Folders are only listed if the store has a marker for them. A missing directory counts as empty.
        """
        ...


@runtime_checkable
class KeyedStorage(Protocol):
    """A store in which a file and a directory may have the same path, which then denotes the file."""

    async def is_ambiguous(self, path: str) -> bool:
        """Return whether both a file and a directory exist at the path."""
        ...


@runtime_checkable
class ReplicatedStorage(Protocol):
    """A store with a configurable replication factor."""

    async def set_replication(self, path: str, factor: int) -> None:
        """Set a file's replication factor. Raises NotAFile, InvalidParameter (outside the store's range)."""
        ...


@runtime_checkable
class SummarizedStorage(Protocol):
    """A store that computes content summaries."""

    async def content_summary(self, path: str) -> ContentSummary:
        """Return the counts and sizes of a tree or a file. Raises too_many_entries."""
        ...


@runtime_checkable
class ModeStorage(Protocol):
    """A store with file permissions."""

    async def set_permissions(self, path: str, permissions: int) -> None:
        """Set the nine permission bits and the sticky bit, without following links."""
        ...


@runtime_checkable
class OwnedStorage(Protocol):
    """A store with file owners."""

    async def set_owner(self, path: str, *, owner: str | None, group: str | None) -> None:
        """Set the owner, the group, or both."""
        ...


class FileSystem(Protocol):
    """One configured store. The owner closes it."""

    @property
    def scheme(self) -> Scheme: ...

    @property
    def traits(self) -> StorageTraits:
        """The store's properties, which never change."""
        ...

    def as_user(self, user: StorageUser) -> Storage:
        """Return the store, accessed with the user's rights. Makes no call."""
        ...

    async def close(self) -> None:
        """Close connections and threads. Idempotent."""
        ...


@runtime_checkable
class ClusterFileSystem(Protocol):
    """A FileSystem with a superuser: HDFS."""

    async def facts(self, user: StorageUser) -> ClusterFacts:
        """Return information about the cluster within 2 s. Raises StorageUnavailable, StorageError."""
        ...
