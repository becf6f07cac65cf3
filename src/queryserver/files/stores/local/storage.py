"""The local root: the files below a local directory, accessed as one user or by queryserver itself."""

import asyncio
import os
import stat
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, nullcontext, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Self, TypeVar, TypeVarTuple

from queryserver.errors.base import ConfigurationError, QueryServerError
from queryserver.errors.files import PathNotFound, StorageUnavailable, trash_not_supported
from queryserver.files.model import ContentSummary, EntryKind, Escapes, FileStatus, Scheme, StorageUser
from queryserver.files.protocol import Batch, FileSystem, PartPlan, StorageTraits, StoredPart
from queryserver.files.stores.local import transfers
from queryserver.files.stores.local.access import HOMES, SHARED, AccessRules, UserAccount, UserQuotas, is_private
from queryserver.files.stores.local.deletion import Deletion, directories_in, summation, sweep
from queryserver.files.stores.local.transfers import Download, IncomingFile, LocalPartUpload, LocalUpload
from queryserver.files.stores.local.tree import LocalTree, file_error, listing, must_be_file
from queryserver.files.stores.transfer_blocks import MIN_READ_BYTES, ReadSizes
from queryserver.platform.machine_limits import NO_FLOOR, DiskFloor, disk_floor
from queryserver.platform.settings.tree import Settings

_FILE_MODE, _DIRECTORY_MODE, _PRIVATE_MODE = 0o666, 0o777, 0o700
_FLUSHED_BYTES = 128 * 1024 * 1024
_WRITTEN_BYTES = 64 * 1024
_USER_DIRECTORY_PARENTS = frozenset({"", HOMES, SHARED})
"""Calls whose path starts with one of these names create the user's home directory and `/shared` if they are
missing.
"""
_SERVICE = AccessRules(StorageUser("", is_admin=True))

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class FileThreads:
    """Runs blocking file system calls, at most `max_threads` at a time. Calls that exceed `timeout_s` raise
    StorageUnavailable.

    The code that creates it must close it.
    """

    def __init__(self, *, max_threads: int, timeout_s: float) -> None:
        self._threads = ThreadPoolExecutor(max_threads, thread_name_prefix="local-storage")
        self._flushes = ThreadPoolExecutor(1, thread_name_prefix="local-storage-flush")
        self._ended_flushes = 0
        self.read_sizes = ReadSizes()
        self._timeout_s = timeout_s

    async def run(self, path: str, call: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """Run a call in a thread, and convert OSErrors to errors about `path`. If the caller is canceled, the call
        continues.
        """

        def translated() -> T:
            try:
                return call(*arguments)
            except OSError as error:
                raise file_error(path, error) from error

        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, translated)
        except TimeoutError as error:
            raise StorageUnavailable("The file system is not responding.") from error

    async def flush(self, call: Callable[[], None]) -> None:
        """Run a call that waits for the disk, in a thread reserved for such calls.

        These calls run one at a time. The timeout of a call starts anew whenever an earlier call ends.
        """

        def counted() -> None:
            try:
                call()
            finally:
                self._ended_flushes += 1

        before = self._ended_flushes
        waiting = asyncio.get_running_loop().run_in_executor(self._flushes, counted)
        try:
            while not (await asyncio.wait({waiting}, timeout=self._timeout_s))[0]:
                if self._ended_flushes == before:
                    raise StorageUnavailable("The file system is not responding.")
                before = self._ended_flushes
            waiting.result()
        finally:
            waiting.cancel()

    def start(self, call: Callable[[], None]) -> Future[None]:
        """Start a call without waiting for it. Only `close` waits for it to end."""
        return self._threads.submit(call)

    async def close(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.to_thread(self._threads.shutdown)
                await asyncio.to_thread(self._flushes.shutdown)
        except TimeoutError as error:
            raise StorageUnavailable("The file system is not responding.") from error


async def flushed(
    threads: FileThreads, flush: Callable[[], None], body: AsyncIterator[bytes], *, size_bytes: int = _FLUSHED_BYTES
) -> AsyncGenerator[bytes]:
    """Pass on the chunks of `body`. After every `size_bytes`, run `flush` while the following chunks are passed on.

    The consumer must write the chunks, except the last few KiB, before it requests the next one. Raises the errors of
    `flush`.
    """
    unflushed, running = 0, None
    try:
        async for piece in body:
            unflushed += len(piece)
            yield piece
            if unflushed >= size_bytes:
                unflushed = 0
                if running is not None:
                    await running
                running = asyncio.create_task(threads.flush(flush), name="flush of an upload")
        if running is not None:
            await running
    finally:
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


class LocalStorage:
    """Accesses the files of `tree` as far as `access` permits. Owns no resources."""

    def __init__(self, tree: LocalTree, threads: FileThreads, access: AccessRules) -> None:
        self._tree = tree
        self._threads = threads
        self._access = access
        self._account: UserAccount | None = None

    async def stat(self, path: str) -> FileStatus:
        self._check_read(path)
        return await self._run(path, self._tree.stat, path)

    async def list_directory(
        self, path: str, *, cursor: str | None = None, batch_size: int = 1000
    ) -> AsyncGenerator[Batch]:
        """Yield the entries in the order of the file system."""
        self._check_read(path)
        batches, lock = listing(self._tree, path, self._access.shows, cursor, batch_size), Lock()

        def alone(call: Callable[[], T]) -> T:
            with lock:
                return call()

        try:
            while True:
                batch = await self._run(path, alone, batches.__next__)
                yield batch
                if batch.cursor is None:
                    return
        finally:
            # The call is not awaited, because this generator may be closed while the event loop shuts down.
            # `FileThreads.close` waits for it.
            self._threads.start(partial(alone, batches.close))

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, version: FileStatus | None = None
    ) -> AsyncGenerator[bytes]:
        self._check_read(path)
        download, sizes = Download(path, partial(self._tree.open_file, path), version), self._threads.read_sizes
        end = sys.maxsize if length is None else offset + length
        is_short = end - offset <= MIN_READ_BYTES
        try:
            with nullcontext() if is_short else sizes.reader():
                # An empty range is also read, so that a missing file raises an error.
                while piece := await self._run(
                    path, download.read, offset, min(end - offset, MIN_READ_BYTES if is_short else sizes.piece_bytes)
                ):
                    offset += len(piece)
                    yield piece
                    if offset == end:
                        return
        finally:
            self._threads.start(download.close)

    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        """Store a file. Also raises InsufficientStorage if the free disk space is, or would be, below the configured
        minimum.
        """
        self._check_change(path)
        upload = LocalUpload(
            self._tree, path, overwrite=overwrite, announced_bytes=size_bytes or 0, account=self._account
        )
        async with aclosing(flushed(self._threads, upload.flush, body)) as pieces:
            return await self._receive(path, upload, pieces)

    async def mkdir(self, path: str, *, permissions: int | None = None) -> None:
        """Create a directory. Only one of several concurrent calls for the same directory succeeds."""
        self._check_change(path)
        if not self._access.is_in_trash(path):
            # Trash directories are exempt, because deletion creates them and must work even if the disk is almost full.
            await self._run(path, self._tree.require_room)
        await self._run(path, self._tree.make_directory, path, permissions)

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> FileStatus:
        # Check the source before the target's parents are created, so that a failed copy leaves nothing behind.
        found = await self.stat(source)
        must_be_file(source, found.kind)
        async with aclosing(self.read(source)) as body:
            return await self.write(target, body, overwrite=overwrite, size_bytes=found.size_bytes)

    async def delete(self, path: str, *, recursive: bool) -> None:
        """Delete an entry. If the call is interrupted, part of the tree remains."""
        self._check_change(path)
        deletion = Deletion(self._tree, path, recursive=recursive)
        while not await self._run(path, deletion.step):  # each step has the full timeout
            pass

    def can_rename(self, source: str, target: str) -> bool:  # noqa: ARG002 the Protocol's
        return True

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """Rename an entry, without following links."""
        self._check_change(source)
        self._check_change(target)
        await self._run(source, partial(self._tree.rename, source, target, overwrite=overwrite))

    async def content_summary(self, path: str) -> ContentSummary:
        self._check_read(path)
        steps = summation(self._tree, path, self._access.shows)
        while (summary := await self._run(path, next, steps)) is None:  # each step has the full timeout
            pass
        return summary

    async def set_permissions(self, path: str, permissions: int) -> None:
        """Set permissions. Raises NotAFile for devices, pipes and sockets."""
        self._check_change(path)
        await self._run(path, self._tree.set_permissions, path, permissions)

    async def begin_parts(self, plan: PartPlan) -> str:
        """Create a staging area and reserve disk space for the whole file. Raises InsufficientStorage."""
        self._check_change(plan.path)
        return await self._run(plan.path, transfers.begin, self._tree, plan, self._account)

    async def write_part(self, plan: PartPlan, staging: str, index: int, body: AsyncIterator[bytes]) -> StoredPart:
        self._check_change(plan.path)
        return await self._receive(plan.path, LocalPartUpload(self._tree, plan, staging, index), body)

    async def join_parts(
        self, plan: PartPlan, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus:
        self._check_change(plan.path)
        join = partial(transfers.join, self._tree, plan, staging, parts, overwrite=overwrite)
        return await self._run(plan.path, join)

    async def read_parts(self, plan: PartPlan, staging: str, parts: Sequence[StoredPart]) -> AsyncGenerator[bytes]:
        del parts
        self._check_change(plan.path)
        download = Download(plan.path, partial(transfers.open_staged, self._tree, plan, staging))
        offset, sizes = 0, self._threads.read_sizes
        try:
            while piece := await self._run(plan.path, download.read, offset, sizes.piece_bytes):
                offset += len(piece)
                yield piece
        finally:
            self._threads.start(download.close)

    async def discard_parts(self, plan: PartPlan, staging: str) -> None:
        self._check_change(plan.path)
        await self._run(plan.path, transfers.discard, self._tree, plan, staging)

    async def sweep_orphans(self, path: str, older_than_s: float) -> int:
        """Delete orphaned files. `older_than_s` must exceed the longest pause that an active write of any process may
        make.
        """
        self._check_read(path)
        return await self._run(path, sweep, self._tree, path, older_than_s)

    def _check_read(self, path: str) -> None:
        """Check that the path may be read. Raises PermissionDenied, InvalidPath."""
        self._access.check_read(path)

    def _check_change(self, path: str) -> None:
        """Check that the entry may be created, deleted or changed. Raises PermissionDenied, InvalidPath."""
        self._access.check_change(path)

    async def _run(self, path: str, call: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """Run a call in a thread. `_check_read` or `_check_change` must have checked the path."""
        return await self._threads.run(path, call, *arguments)

    async def _receive(self, path: str, incoming: IncomingFile[T], body: AsyncIterator[bytes]) -> T:
        """Write the body to `incoming`, combining small chunks. After a failure or cancellation, no file is left
        behind.
        """
        try:
            await self._run(path, incoming.open)
            unwritten = b""
            async for piece in body:
                unwritten += piece
                if len(unwritten) >= _WRITTEN_BYTES:
                    await self._run(path, incoming.write, unwritten)
                    unwritten = b""
            return await self._run(path, incoming.commit, unwritten)
        except BaseException:  # includes CancelledError: no partial file may remain
            with suppress(QueryServerError):
                await asyncio.shield(self._threads.run(path, incoming.abandon))
            raise


class LocalFileSystem:
    """Files below `root`, for users who all share the operating system account of queryserver. Must be closed.

    `umask` limits the modes of new files and directories; home directories and trashes have mode 0700.
    `max_bytes_per_user` 0 disables quotas. If `root` does not exist, every call raises StorageUnavailable.
    """

    scheme = Scheme.FILE
    traits = StorageTraits(deletes_to_trash=True, changes_modes_of_trees=True, home_parent=HOMES, escapes=Escapes.BYTES)

    def __init__(
        self,
        root: Path,
        *,
        umask: int = 0o022,
        max_threads: int = 8,
        timeout_s: float = 60,
        floor: DiskFloor = NO_FLOOR,
        max_bytes_per_user: int = 0,
    ) -> None:
        def directory_mode(names: tuple[str, ...]) -> int:
            return _PRIVATE_MODE if is_private(names) else _DIRECTORY_MODE & ~umask

        self._tree = LocalTree(root, file_mode=_FILE_MODE & ~umask, directory_mode=directory_mode, floor=floor)
        self._quotas = UserQuotas(self._tree, max_bytes_per_user)
        self._threads = FileThreads(max_threads=max_threads, timeout_s=timeout_s)

    def as_user(self, user: StorageUser) -> "UserStorage":
        return UserStorage(self._tree, self._threads, AccessRules(user), self._quotas)

    async def close(self) -> None:
        await self._threads.close()


class UserStorage(LocalStorage):
    """The local root, accessed with one user's permissions. Supports trash and quotas."""

    def __init__(self, tree: LocalTree, threads: FileThreads, access: AccessRules, quotas: UserQuotas) -> None:
        super().__init__(tree, threads, access)
        self._quotas = quotas
        self._has_user_directories, self._needs_user_directories = False, False
        if not quotas.is_off:
            self._account = UserAccount(quotas, access)

    async def room_bytes(self) -> int | None:
        return await self._threads.run("", self._quotas.remaining, self._access)

    async def mkdir(self, path: str, *, permissions: int | None = None) -> None:
        """Create a directory. If quotas are enabled, queryserver can always read it, regardless of `permissions`."""
        if permissions is not None:
            permissions = self._quotas.readable(permissions, is_directory=True)
        await super().mkdir(path, permissions=permissions)

    async def set_permissions(self, path: str, permissions: int) -> None:
        """Set permissions. If quotas are enabled, queryserver can still read the entry, regardless of `permissions`."""
        if not self._quotas.is_off:
            is_directory = (await self.stat(path)).kind is EntryKind.DIRECTORY
            permissions = self._quotas.readable(permissions, is_directory=is_directory)
        await super().set_permissions(path, permissions)

    async def trash_root(self, path: str) -> str:  # noqa: ARG002 one trash for all paths
        """Return the user's trash directory. Raises trash_not_supported if the user name is not a valid directory
        name.
        """
        if not self._access.trash:
            raise trash_not_supported("Users with this name have no home directory in this store.")
        return self._access.trash

    def _check_read(self, path: str) -> None:
        self._access.check_read(path)
        self._needs_user_directories |= path.partition("/")[0] in _USER_DIRECTORY_PARENTS

    def _check_change(self, path: str) -> None:
        self._access.check_change(path)
        self._needs_user_directories |= path.partition("/")[0] in _USER_DIRECTORY_PARENTS

    async def _run(self, path: str, call: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """Run a call in a thread. The first call for the root, or for a path at or below `/user` or `/shared`, also
        creates the user's home directory and `/shared` if they are missing.
        """

        def with_user_directories() -> T:
            for directory in (SHARED, self._access.home or HOMES):
                # Creation fails on a read-only file system. A call that needs the directory then raises its own error.
                with suppress(QueryServerError, OSError):
                    self._tree.ensure_directory(directory)
            self._has_user_directories = True
            return call(*arguments)

        if self._needs_user_directories and not self._has_user_directories:
            return await self._threads.run(path, with_user_directories)
        return await self._threads.run(path, call, *arguments)


class PrivateStorage(LocalStorage):
    """Accesses the files that queryserver itself stores below `root`, which is created if missing. Files have mode
    0600, directories 0700.

    File operations run in a pool of `max_threads` threads. Operations that exceed `timeout_s` raise StorageUnavailable.
    Must be closed.
    """

    def __init__(self, root: Path, *, max_threads: int = 4, timeout_s: float = 60, floor: DiskFloor = NO_FLOOR) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        super().__init__(
            LocalTree(root, floor=floor), FileThreads(max_threads=max_threads, timeout_s=timeout_s), _SERVICE
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._threads.close()

    async def open_file(self, path: str) -> int:
        """Open a file for reading and return its descriptor, which the caller must close. Raises PathNotFound,
        NotAFile, StorageError.
        """
        opening = _FileOpening(self._tree, path)
        try:
            return await self._run(path, opening.open)
        except BaseException:  # includes CancelledError: the thread may still open the file
            opening.abandon()
            raise

    async def sweep_all_directories(self, older_than: timedelta, *, dry_run: bool = False) -> int:
        """Like `sweep_orphans`, but for all directories. If `dry_run` is set, only count the orphaned files."""
        waiting, removed = [""], 0
        while waiting:
            # One short call per directory, so that a tree of 100,000 directories does not delay other callers.
            with suppress(PathNotFound):
                path = waiting.pop()
                waiting += await self._run(path, directories_in, self._tree, path)
                removed += await self._run(path, sweep, self._tree, path, older_than.total_seconds(), dry_run)
        return removed


class _FileOpening:
    """Opens a file in a thread. If the caller is canceled before it receives the descriptor, the file is closed."""

    def __init__(self, tree: LocalTree, path: str) -> None:
        self._tree = tree
        self._path = path
        self._lock = Lock()
        self._is_abandoned = False
        self._file = -1

    def open(self) -> int:
        file = self._tree.open_file(self._path)
        with self._lock:
            if self._is_abandoned:
                os.close(file)
            self._file = file
        return file

    def abandon(self) -> None:
        with self._lock:
            self._is_abandoned = True
            if self._file >= 0:
                os.close(self._file)


class LocalUploadArea(PrivateStorage):
    """The files in the importer's upload directory, which is created if missing. Must be closed."""

    def __init__(self, root: Path, *, max_threads: int = 4, timeout_s: float = 60, floor: DiskFloor = NO_FLOOR) -> None:
        """Open the directory. Raises ConfigurationError if files cannot be stored there safely."""
        try:
            super().__init__(root, max_threads=max_threads, timeout_s=timeout_s, floor=floor)
            problem = _directory_problem(root)
        except OSError as error:
            problem = error.strerror or "the directory cannot be used"
        if problem:
            raise ConfigurationError([f"importer.upload_dir: {root}: {problem}."])
        self._root = root

    def path_of(self, name: str) -> Path:
        return self._root / name

    async def touch(self, name: str) -> bool:
        def touched() -> bool:
            with self._tree.parent(name) as (directory, last):
                try:
                    os.utime(last, dir_fd=directory, follow_symlinks=False)
                except FileNotFoundError:
                    return False
                return True

        return await self._threads.run(name, touched)


def _directory_problem(root: Path) -> str:
    """Return what is wrong with the directory, or an empty string. The mode of an existing directory is not changed,
    because other programs may use it.
    """
    mode = root.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return "the directory is writable by all users and has no sticky bit"
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        return "the service has no permission to read and write in the directory"
    return ""


def build(settings: Settings) -> FileSystem | None:
    """Return the local root, or None if `local_root` is not set. Raises ConfigurationError if the directory does not
    exist.
    """
    filebrowser = settings.filebrowser
    root = filebrowser.local_root
    if root is None:
        return None
    if not root.is_dir():
        raise ConfigurationError([f"filebrowser.local_root: {root} is not a directory."])
    return LocalFileSystem(
        root,
        umask=int(filebrowser.umask, 8),
        floor=disk_floor(settings),
        max_bytes_per_user=filebrowser.max_bytes_per_user,
    )
