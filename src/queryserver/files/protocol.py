"""The Protocols of file stores. Sizes and offsets are in bytes.

A `FileSystem` is one configured store; its `as_user` returns a `Storage`, which accesses the store with one user's
permissions. Optional features have their own Protocols, which services check with `isinstance`. An unsupported feature
is thus reported without a call to the store (Contract storage 11).

Paths are relative to the store's root, with `/` between names; the root is the empty path. The first name is the bucket
or container in an object store, and the service in Ozone. Every adapter checks each path with `names_of` from
`files/model.py`.

Every call may raise InvalidPath, PermissionDenied (the store denies the user access), PathNotFound, NotADirectory (a
parent is a file), StorageUnavailable (also on timeout; all waits are limited), StorageError.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from queryserver.files.model import ClusterFacts, ContentSummary, Escapes, FileStatus, Scheme, StorageUser

PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StorageTraits:
    """Properties of a store on which its callers depend."""

    lists_in_order: bool = False
    """Whether listings are sorted by name in code point order (in object stores by key, with folders as `name/`)."""
    container_levels: int = 0
    """Number of leading names that denote buckets or containers; in Ozone: service, volume and bucket."""
    acts_as_user: bool = False
    """Whether the store itself checks the user's permissions. If not, a queryserver permission grants access."""
    deletes_to_trash: bool = False
    """Whether deleting moves entries to the trash by default."""
    changes_modes_of_trees: bool = False
    """Whether chmod and chown can be recursive."""
    home_parent: str = ""
    """Path of the parent directory of all home directories, which cannot be deleted; empty if there is none."""
    min_part_bytes: int = 1
    """Minimum part size in multipart uploads. The last part may be smaller."""
    escapes: Escapes = Escapes.NONE
    """Which of the store's names are escaped in paths."""
    max_copy_bytes: int | None = None
    """Copies within the store skip files larger than this size (Ozone, Contract storage 7.3)."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive entries of a directory listing."""

    entries: Sequence[FileStatus]
    cursor: str | None
    """Resumes the listing after these entries; None in the last batch."""
    remaining: int | None = None
    """Exact number of entries after this batch; None if the store does not report it."""


@dataclass(frozen=True, slots=True)
class PartPlan:
    """How a file is divided into parts, which may arrive in any order (Contract storage 9.2)."""

    path: str
    size_bytes: int
    part_bytes: int
    parts: int

    def size_of(self, index: int) -> int:
        """Return the size of a part. The last part holds the remaining bytes."""
        return max(0, min(self.part_bytes, self.size_bytes - index * self.part_bytes))


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part that the store has accepted. Its `receipt` is passed to `join_parts`."""

    index: int
    size_bytes: int
    receipt: str


async def empty_body() -> AsyncGenerator[bytes]:
    """Yield nothing: the body of an empty file."""
    for piece in ():
        yield piece


class Storage(Protocol):
    """Accesses a store with one user's permissions. Instances are cheap, own no resources, and are valid until their
    FileSystem is closed.
    """

    async def stat(self, path: str) -> FileStatus:
        """Return the entry at `path` without following links. Raises SymlinkNotFollowed if a parent is a link."""
        ...

    def list_directory(self, path: str, *, cursor: str | None = None, batch_size: int = 1000) -> AsyncGenerator[Batch]:
        """Yield the entries of a directory after `cursor` in batches, one per store call. Reserved names are
        omitted.

        Keeps one batch in memory at a time. An empty directory yields one empty batch. `batch_size` is only a hint.
        Raises NotADirectory, bucket_listing_denied.
        """
        ...

    def read(
        self, path: str, *, offset: int = 0, length: int | None = None, version: FileStatus | None = None
    ) -> AsyncGenerator[bytes]:
        """Yield bytes [offset, offset + length) in chunks of at most 1 MiB. Bytes past the end are not an error.

        If `version` (from an earlier `stat`) is given and the file has changed since, raises EntryChanged. Also raises
        NotAFile, and StorageError if the store returns fewer bytes than it announced.
        """
        ...

    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        """Store a file atomically: it appears under its name only once it is complete and durable. If the call fails,
        an existing file remains unchanged.

        `size_bytes` is the announced size, which is not verified. Missing parents are created. Before the new file gets
        its final name, the size reported by the store is compared with the size of the body, and the permissions,
        owner, group and replication factor of a replaced file are applied as far as the store allows it. If the body
        raises an error or the call is canceled, no file is left behind.

        Raises PathExists (for a directory; for any entry unless `overwrite` is set), VerificationFailed,
        StoreQuotaExceeded, StorageError, and the errors of `body`.
        """
        ...

    async def mkdir(self, path: str, *, permissions: int | None = None) -> None:
        """Create a directory and its missing parents. Raises PathExists if an entry of that name exists.

        Stores with a trash also apply `permissions` to the parents that they create.
        """
        ...

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> FileStatus:
        """Copy one file atomically within the store. On HDFS, mode, block size and replication factor are preserved.

        Missing parents are created. Raises PathExists, NotAFile, VerificationFailed.
        """
        ...

    async def delete(self, path: str, *, recursive: bool) -> None:
        """Delete an entry permanently, without following links. Raises DirectoryNotEmpty for a non-empty directory
        unless `recursive` is set, and always for a non-empty bucket.
        """
        ...

    async def begin_parts(self, plan: PartPlan) -> str:
        """Create a staging area for the parts of a file. Return its name, which gives any server instance access to it.

        Raises PathNotFound if the file's directory does not exist.
        """
        ...

    async def write_part(self, plan: PartPlan, staging: str, index: int, body: AsyncIterator[bytes]) -> StoredPart:
        """Store one part, replacing an earlier part with the same index. If the call fails, the earlier part
        remains.
        """
        ...

    async def join_parts(
        self, plan: PartPlan, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus:
        """Join all parts, in index order, into the file, which appears atomically as in `write`.

        Raises the errors of `write`. After VerificationFailed and PathExists, the parts still exist.
        """
        ...

    async def discard_parts(self, plan: PartPlan, staging: str) -> None:
        """Delete the staging area and its parts, if it still exists."""
        ...

    async def sweep_orphans(self, path: str, older_than_s: float) -> int:
        """Delete orphaned files directly in a directory that were last written more than `older_than_s` ago. Return
        their number.

        Only files with a reserved name are deleted. For uploads that do not appear in listings, see `UnlistedUploads`.
        """
        ...


@runtime_checkable
class CheckedWrites(Protocol):
    """A store whose `write` sends separate requests to check the target."""

    async def write_checked(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        """Like `write`, but without the separate requests.

        The caller has just checked that the parent is a directory, and that `path` is free or a file to overwrite.
        Unless `overwrite` is set, a file that has been created in the meantime is not overwritten either.
        """
        ...


@runtime_checkable
class UnlistedUploads(Protocol):
    """A store that keeps incomplete uploads under their final names but omits them from listings."""

    async def abort_unlisted_uploads(self, path: str, older_than_s: float) -> int:
        """Abort uploads to `path` that have received no data for `older_than_s`. Return their number.

        Uploads of other programs are also aborted, so call this only for paths that queryserver itself has written to.
        """
        ...


@runtime_checkable
class ReadableParts(Protocol):
    """A store whose parts can be read, and thus verified, before they are joined."""

    def read_parts(self, plan: PartPlan, staging: str, parts: Sequence[StoredPart]) -> AsyncGenerator[bytes]:
        """Yield the bytes of the file that `join_parts` would create. Raises VerificationFailed, PathNotFound."""
        ...


@runtime_checkable
class QuotaStorage(Protocol):
    """A store in which queryserver limits how much each user may store."""

    async def room_bytes(self) -> int | None:
        """Return how many more bytes the user may store, or None if there is no limit."""
        ...


@runtime_checkable
class RenamingStorage(Protocol):
    """A store that renames files and trees atomically."""

    def can_rename(self, source: str, target: str) -> bool:
        """Return whether the store can rename between these paths. Ozone, for example, can rename only within a bucket.
        Makes no store call.
        """
        ...

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """Rename an entry. If `overwrite` is set, a file may replace a file. After a crash, one of the two contents
        exists.

        Raises PathNotFound (also for a missing target parent), PathExists, NotADirectory, TargetInsideSource.
        """
        ...


@runtime_checkable
class TrashStorage(Protocol):
    """A store whose users have a trash."""

    async def trash_root(self, path: str) -> str:
        """Return the path of the trash directory for entries that the user deletes at `path`.

        The directory may not exist yet.
        """
        ...


@runtime_checkable
class FlatStorage(Protocol):
    """An object store that can list a whole tree in key order, without a call per folder."""

    def list_tree(self, path: str) -> AsyncGenerator[Sequence[FileStatus]]:
        """Yield the entries below a directory (not the root) in key order, in batches, one per store call. Reserved
        names are omitted.

        Folders are included only if the store has a marker for them. A missing directory counts as empty.
        """
        ...


@runtime_checkable
class KeyedStorage(Protocol):
    """A store in which a file and a directory may have the same path. Such a path denotes the file."""

    async def is_ambiguous(self, path: str) -> bool:
        """Return whether both a file and a directory exist at the path."""
        ...


@runtime_checkable
class ReplicatedStorage(Protocol):
    """A store with a configurable replication factor."""

    async def set_replication(self, path: str, factor: int) -> None:
        """Set a file's replication factor. Raises NotAFile, and InvalidParameter if the store does not allow the
        factor.
        """
        ...


@runtime_checkable
class SummarizedStorage(Protocol):
    """A store that computes content summaries."""

    async def content_summary(self, path: str) -> ContentSummary:
        """Return the entry counts and sizes of a tree or a single file. Raises too_many_entries."""
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
        """Set the owner, the group, or both. None leaves the current value unchanged."""
        ...


class FileSystem(Protocol):
    """One configured store. The code that opens it must close it."""

    @property
    def scheme(self) -> Scheme: ...

    @property
    def traits(self) -> StorageTraits:
        """The store's properties, which are constant."""
        ...

    def as_user(self, user: StorageUser) -> Storage:
        """Return the store, accessed with the user's permissions. Makes no store call."""
        ...

    async def close(self) -> None:
        """Close connections and threads. Idempotent."""
        ...


@runtime_checkable
class ClusterFileSystem(Protocol):
    """A FileSystem with a superuser: HDFS."""

    async def facts(self, user: StorageUser) -> ClusterFacts:
        """Return facts about the cluster and the user. Takes at most 2 s. Raises StorageUnavailable, StorageError."""
        ...
