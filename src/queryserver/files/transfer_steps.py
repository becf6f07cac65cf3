"""The steps of a move or copy that the store cannot perform atomically (Contract storage 7.3, 7.4, 7.5).

Each step is recorded before and after it is performed, so that after a crash another process can continue or roll back.
"""

from asyncio import TaskGroup
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar
from uuid import uuid4

from queryserver import errors
from queryserver.files.access import Location
from queryserver.files.downloads import entity_tag
from queryserver.files.model import (
    ClaimedTransfer,
    EntryKind,
    FileStatus,
    KeyState,
    StoragePath,
    TransferKey,
    TransferKind,
    TransferState,
    ambiguous_name_error,
    has_escapes,
)
from queryserver.files.operations import Progress
from queryserver.files.protocol import KeyedStorage, ModeStorage, Storage, UnlistedUploads
from queryserver.files.repository import TransferRecords
from queryserver.files.upload_repository import UnfinishedWrite, UnfinishedWrites
from queryserver.files.uploads import CheckedContent, sha256_of

T = TypeVar("T")


async def walk(storage: Storage, entry: FileStatus) -> AsyncGenerator[tuple[str, FileStatus]]:
    """Yield the entry and all entries below it, each with its path relative to the entry. A directory precedes its
    contents.

    The relative path of the entry itself is empty. Links are not followed. Memory holds one batch and the paths of the
    directories still to be listed.
    """
    yield "", entry
    pending = [""] if entry.is_directory else []
    while pending:
        directory = pending.pop()
        async with aclosing(storage.list_directory(joined(entry.path, directory))) as batches:
            async for batch in batches:
                for child in batch.entries:
                    path = joined(directory, child.name)
                    if child.is_directory:
                        pending.append(path)
                    yield path, child


def joined(directory: str, path: str) -> str:
    return f"{directory}/{path}" if directory and path else directory or path


@dataclass(slots=True)
class Attempts(Generic[T]):
    """The outcomes of processing several items. Items in neither list were not started."""

    done: list[T] = field(default_factory=list[T])
    failed: list[tuple[T, errors.QueryServerError]] = field(default_factory=list[tuple[T, errors.QueryServerError]])

    def raise_failure(self) -> None:
        """Raise the first error, if any."""
        for _, error in self.failed:
            raise error


async def attempt_each(items: Iterable[T], work: Callable[[T], Awaitable[object]], *, at_once: int) -> Attempts[T]:
    """Process up to `at_once` items concurrently. After a failure, items in progress finish, but no more are
    started.
    """
    attempts: Attempts[T] = Attempts()
    pending = iter(items)

    async def worker() -> None:
        for item in pending:
            try:
                await work(item)
            except errors.QueryServerError as error:
                attempts.failed.append((item, error))
            else:
                attempts.done.append(item)
            if attempts.failed:
                return

    async with TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())
    return attempts


_WINDOW = 256
_LISTED_BATCH = 1000
_MAX_COPIES = 8
_MAX_STREAMS = 4
_MAX_DELETIONS = 8
_MAX_LINKS_SHOWN = 1000
_OWNER_BITS = 0o700
# Uploads without progress for this long are aborted, so older temporary files belong to crashed processes.
_ABANDONED_S = 60
_CREATED = (KeyState.STARTED, KeyState.COPIED)


@dataclass(frozen=True, slots=True)
class TransferResult:
    """The outcome of a move or copy."""

    kind: TransferKind
    source: StoragePath
    target: StoragePath
    skipped_links: Sequence[str] = ()
    """Paths of at most 1000 skipped links, sorted, in normal form."""
    skipped_files: Sequence[str] = ()
    """Paths of the files above the store's copy limit, sorted, in normal form."""


class TransferSteps:
    """The steps of one claimed transfer. All methods raise OperationInProgress if another process has taken over the
    transfer.
    """

    def __init__(
        self,
        records: TransferRecords,
        unfinished: UnfinishedWrites,
        claimed: ClaimedTransfer,
        locations: tuple[Location, Location],
        progress: Progress,
    ) -> None:
        source, target = locations
        self._records = records
        self._unfinished = unfinished
        self._claim = claimed.claim
        self._transfer = claimed.transfer
        self._from = source
        self._to = target
        self._progress = progress
        self._one_store = source.path.scheme is target.path.scheme
        # Of the copies that are not marked yet, by number of the entry.
        self._copy_versions: dict[int, str] = {}

    async def copy(self, entry: FileStatus) -> None:
        """Copy and verify all entries. On failure, roll back, and set `rolled_back` in the error's details."""
        try:
            await self._list(entry)
            await self._copy_keys(EntryKind.DIRECTORY, self._make_directory, at_once=1)
            at_once = _MAX_COPIES if self._one_store else _MAX_STREAMS
            await self._copy_keys(EntryKind.FILE, self._copy_file, at_once=at_once)
            await self._close_directories()
            await self._advance(TransferState.VERIFIED)
        except errors.OperationInProgress:
            raise
        except errors.QueryServerError as error:
            try:
                await self.roll_back()
                is_rolled_back = True
            except errors.QueryServerError:  # retried later
                is_rolled_back = False
            error.details = {**(error.details or {}), "rolled_back": is_rolled_back}
            raise

    async def finish(self) -> TransferResult:
        """End the transfer after its target is complete. For a move, first delete the source.

        Raises EntryChanged if the source has changed since it was copied. If the source could not be deleted and the
        same call may be retried, raises StorageError with `state` and `remaining` in its details.
        """
        links = await self._skipped(EntryKind.LINK, at_most=_MAX_LINKS_SHOWN)
        files = await self._skipped(EntryKind.FILE)
        moved = TransferResult(self._transfer.kind, self._from.path, self._to.path, links, files)
        if not self._transfer.keeps_source:
            await self._advance(TransferState.DELETING)
            await self._delete_source(leaves_links=bool(moved.skipped_links))
        await self._advance(TransferState.DONE)
        return moved

    async def roll_back(self) -> None:
        """Delete the entries that this transfer created in the target, and leave all other entries unchanged."""
        if not self._transfer.overwrite:
            async for keys in self._windows(EntryKind.FILE, _CREATED):
                await self._delete_each(keys, self._remove_file)
            await self._remove_directories()
        await self._advance(TransferState.ROLLED_BACK)

    async def _list(self, entry: FileStatus) -> None:
        """Record all source entries before the target is written."""
        batch: list[TransferKey] = []
        number = files = 0
        async with aclosing(walk(self._from.storage, entry)) as found:
            async for path, status in found:
                self._require_name(path)
                state = self._first_state(status)
                files += status.is_file and state is KeyState.LISTED
                batch.append(TransferKey(number, replace(status, path=path), state))
                number += 1
                if len(batch) == _LISTED_BATCH:
                    self._require(held=await self._records.add_keys(self._claim, batch))
                    batch = []
        self._require(held=await self._records.add_keys(self._claim, batch))
        await self._require_one_kind(entry)
        self._progress.expect(files)

    def _require_name(self, path: str) -> None:
        """Raise InvalidName if the target store cannot represent an escaped name."""
        source, target = self._from.file_system.traits.escapes, self._to.file_system.traits.escapes
        if source is not target and has_escapes(path):
            raise errors.InvalidName(
                f"{self._from.path.child(path)} has a name that the store {self._to.path.scheme} does not support."
                " Rename it, or move or copy the other entries separately."
            )

    async def _require_one_kind(self, entry: FileStatus) -> None:
        """Raise AmbiguousName if any source path is both a file and a directory, because the copy would be
        ambiguous.
        """
        if not isinstance(self._from.storage, KeyedStorage):
            return
        both = await self._records.repeated_path(self._claim.transfer_id)
        if both is None and entry.is_file and await self._from.storage.is_ambiguous(entry.path):
            both = ""
        if both is not None:
            path = self._from.path.child(both) if both else self._from.path
            raise ambiguous_name_error(str(path))

    def _first_state(self, status: FileStatus) -> KeyState:
        if status.kind is EntryKind.UNKNOWN:
            raise errors.NotAFile(
                f"{StoragePath(self._from.path.scheme, status.path)} is neither a file nor a directory."
            )
        limit = self._from.file_system.traits.max_copy_bytes
        is_limited = self._one_store and self._transfer.keeps_source and limit is not None
        is_too_large = is_limited and status.is_file and status.size_bytes > (limit or 0)
        return KeyState.SKIPPED if status.kind is EntryKind.LINK or is_too_large else KeyState.LISTED

    async def _copy_keys(
        self, kind: EntryKind, make: Callable[[TransferKey], Awaitable[None]], *, at_once: int
    ) -> None:
        async for keys in self._windows(kind, (KeyState.LISTED,)):
            await self._mark(keys, KeyState.STARTED)
            attempts = await attempt_each(keys, make, at_once=at_once)
            # A failed call may still have created the entry, except if the name was already taken.
            made = attempts.done + [key for key, error in attempts.failed if not isinstance(error, errors.PathExists)]
            versions = {key.number: self._copy_versions.pop(key.number, "") for key in made}
            self._require(held=await self._records.mark_copied(self._claim, versions))
            if attempts.failed:
                await self._mark([key for key in keys if key.number not in versions], KeyState.SKIPPED)
            for key, error in attempts.failed:
                if key.entry.is_file and isinstance(error, errors.StorageError):
                    # The store may have kept an incomplete upload.
                    await self._record_unlisted_upload(key)
            attempts.raise_failure()

    async def _make_directory(self, key: TransferKey) -> None:
        permissions = key.entry.permissions | _OWNER_BITS if self._keeps_modes(key) else None
        await self._to.storage.mkdir(self._target_of(key), permissions=permissions)

    async def _close_directories(self) -> None:
        """Set the final permissions of directories whose source denies its owner access. Until now, they had to be
        writable so that their entries could be created.
        """
        async for keys in self._windows(EntryKind.DIRECTORY, (KeyState.COPIED,), descending=True):
            for key in keys:
                is_closed = self._keeps_modes(key) and key.entry.permissions & _OWNER_BITS != _OWNER_BITS
                if is_closed and isinstance(self._to.storage, ModeStorage):
                    await self._to.storage.set_permissions(self._target_of(key), key.entry.permissions)

    def _keeps_modes(self, key: TransferKey) -> bool:
        return self._one_store and key.entry.permissions != 0 and isinstance(self._to.storage, ModeStorage)

    async def _copy_file(self, key: TransferKey) -> None:
        if self._one_store:
            source, target = self._source_of(key), self._target_of(key)
            copied = await self._to.storage.copy(source, target, overwrite=self._transfer.overwrite)
            self._copy_versions[key.number] = _version(copied)
            if copied.size_bytes != key.entry.size_bytes:
                if not is_unchanged(key.entry, await self._from.storage.stat(source)):
                    raise errors.EntryChanged(f"{self._source_path(key)} was modified while it was being copied.")
                raise errors.VerificationFailed(f"The copy of {self._source_path(key)} has a different size.")
        else:
            await self._stream(key)
        self._progress.advance()

    async def _stream(self, key: TransferKey) -> None:
        """Copy one file to another store. For a move, also read the copy back and compare digests."""
        path, target = self._source_of(key), self._target_of(key)
        sent = CheckedContent(self._from.storage.read(path, version=key.entry))
        async with aclosing(sent.pieces()) as body:
            stored = await self._to.storage.write(
                target, body, overwrite=self._transfer.overwrite, size_bytes=key.entry.size_bytes
            )
        self._copy_versions[key.number] = _version(stored)
        if stored.size_bytes == sent.size_bytes == key.entry.size_bytes and (
            self._transfer.keeps_source or await sha256_of(self._to.storage.read(target)) == sent.sha256
        ):
            return
        if self._transfer.overwrite:
            # The replaced file is already lost, and no file is better than a corrupt one.
            await _delete(self._to.storage, target)
        raise errors.VerificationFailed(
            f"{self._source_path(key)} was not copied correctly; the copy has different contents."
        )

    async def _delete_source(self, *, leaves_links: bool) -> None:
        try:
            async for keys in self._windows(EntryKind.FILE, (KeyState.COPIED,)):
                await self._delete_each(keys, self._delete_file)
            await self._delete_directories(leaves_links=leaves_links)
        except (errors.EntryChanged, errors.DirectoryNotEmpty) as error:
            await self._advance(TransferState.FAILED)
            if isinstance(error, errors.DirectoryNotEmpty):
                raise errors.EntryChanged(
                    "Entries were added to the source while it was being moved; they remain in the source."
                ) from None
            raise
        except errors.OperationInProgress:
            raise
        except errors.QueryServerError as error:
            remaining = await self._records.count(self._claim.transfer_id, (KeyState.COPIED,))
            await self._records.release(self._claim, again_after=None)
            raise errors.StorageError(
                f"The target is complete, but the source could not be deleted: {error.message}",
                details={"state": TransferState.DELETING.value, "remaining": remaining},
            ) from error

    async def _delete_each(self, keys: Sequence[TransferKey], work: Callable[[TransferKey], Awaitable[None]]) -> None:
        attempts = await attempt_each(keys, work, at_once=_MAX_DELETIONS)
        await self._mark(attempts.done, KeyState.DELETED)
        attempts.raise_failure()

    async def _delete_file(self, key: TransferKey) -> None:
        path = self._source_of(key)
        try:
            now = await self._from.storage.stat(path)
        except errors.PathNotFound:
            return
        if not is_unchanged(key.entry, now):
            raise errors.EntryChanged(
                f"{self._source_path(key)} was modified after it was copied; the source and the copy both exist."
            )
        await _delete(self._from.storage, path)

    async def _delete_directories(self, *, leaves_links: bool) -> None:
        """Delete the source directories, deepest first. If `leaves_links` is set, keep those that contain skipped
        links.
        """
        async for keys in self._windows(EntryKind.DIRECTORY, (KeyState.COPIED,), descending=True):
            for key in keys:
                try:
                    await _delete_directory(self._from.storage, self._source_of(key))
                except errors.DirectoryNotEmpty:
                    if not leaves_links:
                        raise
                await self._mark([key], KeyState.DELETED)

    async def _remove_file(self, key: TransferKey) -> None:
        """Delete a copied file from the target. A file that another client has stored in its place is kept.

        If the copy was only started, the file may not exist, and only its size identifies it.
        """
        target, storage = self._target_of(key), self._to.storage
        if key.state is KeyState.STARTED:
            await self._record_unlisted_upload(key)
        if key.state is KeyState.STARTED or key.copy_version:
            try:
                found = await storage.stat(target)
            except errors.PathNotFound:
                return
            is_same_size = found.size_bytes == key.entry.size_bytes
            is_copy = _version(found) == key.copy_version if key.copy_version else is_same_size
            if not (found.is_file and is_copy):
                return
        await _delete(storage, target)

    async def _record_unlisted_upload(self, key: TransferKey) -> None:
        """Record the target for the orphan sweep, which aborts an incomplete upload later. A crashed process's upload
        cannot yet be distinguished from an active one.
        """
        if not isinstance(self._to.storage, UnlistedUploads):
            return
        path = StoragePath(self._to.path.scheme, self._target_of(key))
        await self._unfinished.begin(UnfinishedWrite(uuid4(), path.parent, path.name, self._transfer.acting))

    async def _remove_directories(self) -> None:
        async for keys in self._windows(EntryKind.DIRECTORY, _CREATED, descending=True):
            for key in keys:
                target = self._target_of(key)
                try:
                    await _delete_directory(self._to.storage, target)
                except errors.DirectoryNotEmpty:
                    # The directory stays if other clients have created entries in it. Raise the error if it contains
                    # only temporary files, which are still too recent to be attributed to a crashed process.
                    if not await _has_entries(self._to.storage, target):
                        raise
                await self._mark([key], KeyState.DELETED)

    async def _windows(
        self, kind: EntryKind, states: Sequence[KeyState], *, descending: bool = False
    ) -> AsyncGenerator[Sequence[TransferKey]]:
        after: int | None = None
        while keys := await self._records.keys(
            self._claim.transfer_id, kind=kind, states=states, limit=_WINDOW, after=after, descending=descending
        ):
            after = keys[-1].number
            yield keys

    async def _mark(self, keys: Sequence[TransferKey], state: KeyState) -> None:
        self._require(held=await self._records.mark(self._claim, [key.number for key in keys], state))

    async def _advance(self, state: TransferState) -> None:
        self._require(held=await self._records.advance(self._claim, state))

    @staticmethod
    def _require(*, held: bool) -> None:
        if not held:
            raise errors.OperationInProgress("Another server has taken over this operation.")

    async def _skipped(self, kind: EntryKind, *, at_most: int | None = None) -> Sequence[str]:
        paths: list[str] = []
        async for keys in self._windows(kind, (KeyState.SKIPPED,)):
            paths += [str(self._source_path(key)) for key in keys]
            if at_most is not None and len(paths) >= at_most:
                break
        return sorted(paths)[:at_most]

    def _source_of(self, key: TransferKey) -> str:
        return joined(self._from.path.path, key.entry.path)

    def _target_of(self, key: TransferKey) -> str:
        return joined(self._to.path.path, key.entry.path)

    def _source_path(self, key: TransferKey) -> StoragePath:
        return self._from.path.child(key.entry.path) if key.entry.path else self._from.path


def is_unchanged(listed: FileStatus, now: FileStatus) -> bool:
    """Return whether the entry appears unchanged since it was listed.

    If both have tags, the modification times are not compared, because listings may report more precise times than
    `stat`.
    """
    if listed.tag and now.tag:
        return (listed.kind, listed.size_bytes, listed.tag) == (now.kind, now.size_bytes, now.tag)
    return listed.is_same_content(now)


def _version(status: FileStatus) -> str:
    """Return a text that differs if the file is replaced, even with the same content."""
    return f"{entity_tag(status)} {status.modified_at}"


async def _delete_directory(storage: Storage, path: str) -> None:
    """Delete a directory, including any orphaned temporary files in it. Raises DirectoryNotEmpty for other entries."""
    try:
        await _delete(storage, path)
    except errors.DirectoryNotEmpty:
        if not await storage.sweep_orphans(path, _ABANDONED_S):
            raise
        await _delete(storage, path)


async def _has_entries(storage: Storage, path: str) -> bool:
    async with aclosing(storage.list_directory(path, batch_size=1)) as batches:
        return bool([batch async for batch in batches if batch.entries])


async def _delete(storage: Storage, path: str) -> None:
    """Delete a file or an empty directory, or do nothing if it does not exist."""
    try:
        await storage.delete(path, recursive=False)
    except errors.PathNotFound:
        return
