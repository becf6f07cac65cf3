"""A file on its way in, and one on its way out. Everything here blocks: it is called in threads.

A thread cannot be cancelled. When its caller is, the call goes on; so each transfer has a lock, and what ends it
waits for the call that still uses the descriptor.
"""

import os
import re
import secrets
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock
from typing import Protocol

from queryserver.errors.files import (
    ChangedMeanwhile,
    InsufficientStorage,
    PathExists,
    PathNotFound,
    StorageError,
    VerificationFailed,
)
from queryserver.files.model import RESERVED_PREFIX, FileStatus
from queryserver.files.protocol import PartPlan, StoredPart
from queryserver.files.stores.local.tree import (
    FileThreads,
    Tree,
    file_errors,
    is_there,
    refuse_all_but_file,
    rename_exclusively,
    status_of,
)

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
PRIVATE_FILE = 0o600
_MODE_BITS = 0o1777


class Account(Protocol):
    """Counts what one user stores."""

    def take(self, size_bytes: int) -> None:
        """So many bytes more. Raises StoreQuotaExceeded."""
        ...

    def mark(self, file: int) -> None:
        """Let a new file be recognised as the user's."""
        ...


class Upload:
    """A file that has a reserved name beside its place until `commit`."""

    def __init__(
        self, tree: Tree, path: str, *, overwrite: bool, announced_bytes: int = 0, account: Account | None = None
    ) -> None:
        """`account`: whose bytes these are."""
        self._tree = tree
        self._path = path
        self._overwrite = overwrite
        self._announced_bytes = announced_bytes
        self._account = account
        self._lock = Lock()
        self._ended = False
        self._directory = -1
        self._file = -1
        self._name = ""
        self._leftover = f"{RESERVED_PREFIX}upload_{secrets.token_hex(16)}"
        self._size_bytes = 0

    def open(self) -> None:
        """Refuse what cannot end well before the first byte is taken; `commit` has the last word."""
        with self._lock, file_errors(self._path):
            self._open()

    def write(self, piece: bytes) -> None:
        """Add bytes at the end."""
        with self._lock, file_errors(self._path):
            self._open()
            self._tree.require_room(len(piece))
            if self._account is not None:
                self._account.take(len(piece))
            write_all(self._file, piece)
            self._size_bytes += len(piece)

    def flush(self) -> None:
        """Make durable what was written so far. Other calls may go on meanwhile."""
        with self._lock, file_errors(self._path):
            if self._file < 0:
                return
            file = os.dup(self._file)
        try:
            with file_errors(self._path):
                os.fsync(file)
        finally:
            os.close(file)

    def commit(self) -> FileStatus:
        """Give the file its name once its bytes are durable."""
        with self._lock, file_errors(self._path):
            self._open()
            former = plain_file(self._directory, self._name) if self._overwrite else None
            status = finished(self._tree, self._path, self._file, self._size_bytes, former=former)
            take_name(self._path, self._directory, self._leftover, self._name, overwrite=self._overwrite)
            self._close()
            return status

    def abandon(self) -> None:
        """Leave nothing behind. After `commit` nothing happens."""
        with self._lock:
            if self._file >= 0:
                with suppress(OSError):
                    os.unlink(self._leftover, dir_fd=self._directory)
            self._close()

    def _open(self) -> None:
        if self._ended:
            raise StorageError(f"The upload of {self._path} was abandoned.")
        if self._file >= 0:
            return
        # Before missing parents are made: what is refused leaves nothing.
        self._tree.require_room(self._announced_bytes)
        self._directory, self._name = self._tree.open_parent(self._path)
        refuse_taken(self._path, self._directory, self._name, overwrite=self._overwrite)
        self._file = os.open(self._leftover, NEW_FILE, PRIVATE_FILE, dir_fd=self._directory)
        if self._account is not None:
            self._account.mark(self._file)

    def _close(self) -> None:
        self._ended = True
        for descriptor in (self._file, self._directory):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._directory = -1


class Download:
    """A plain file that is opened by the first read. With `version`, of exactly that content."""

    def __init__(self, tree: Tree, path: str, version: FileStatus | None = None) -> None:
        self._tree = tree
        self._path = path
        self._version = version
        self._lock = Lock()
        self._ended = False
        self._file = -1

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset` on; none at the end."""
        with self._lock, file_errors(self._path):
            if self._ended:
                raise StorageError(f"The reading of {self._path} was ended.")
            if self._file < 0:
                self._file = self._opened(self._tree, self._path)
            piece = os.pread(self._file, length, offset)
            if self._version is not None:
                # After the bytes: what changed while they were read shows, too.
                self._compare(self._version)
            return piece

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            self._ended = True
            if self._file >= 0:
                os.close(self._file)
            self._file = -1

    def _opened(self, tree: Tree, path: str) -> int:
        return tree.open_file(path)

    def _compare(self, version: FileStatus) -> None:
        if not status_of(self._path, os.fstat(self._file)).is_same_content(version):
            raise ChangedMeanwhile(f"{self._path} was changed meanwhile.")


def write_all(file: int, piece: bytes) -> None:
    """Write at the end, whatever write(2) takes at a time."""
    left = memoryview(piece)
    while left:
        left = left[os.write(file, left) :]


def finished(tree: Tree, path: str, file: int, size_bytes: int, *, former: os.stat_result | None = None) -> FileStatus:
    """An open file with its mode, durable; it takes mode and owner from the `former` one that it replaces.

    Raises VerificationFailed when it has another size.
    """
    if (stored := os.fstat(file).st_size) != size_bytes:
        raise VerificationFailed(f"{path}: {size_bytes} bytes were sent, {stored} are stored.")
    if tree.file_mode != PRIVATE_FILE:
        if former is not None:
            with suppress(PermissionError):
                os.fchown(file, former.st_uid, former.st_gid)
        # After the owner: a change of owner takes bits away.
        os.fchmod(file, tree.file_mode if former is None else stat.S_IMODE(former.st_mode) & _MODE_BITS)
    os.fsync(file)
    return status_of(path, os.fstat(file))


def plain_file(directory: int, name: str) -> os.stat_result | None:
    """What is known of a plain file; None when there is none."""
    with suppress(FileNotFoundError):
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISREG(found.st_mode):
            return found
    return None


def take_name(path: str, directory: int, leftover: str, name: str, *, overwrite: bool) -> None:
    """Give a finished file its name, durably and in one step."""
    if overwrite:
        refuse_all_but_file(path, directory, name)
        os.rename(leftover, name, src_dir_fd=directory, dst_dir_fd=directory)
    else:
        rename_exclusively(directory, leftover, directory, name)
    os.fsync(directory)


def refuse_taken(path: str, directory: int, name: str, *, overwrite: bool) -> None:
    """Raises PathExists, SymlinkNotFollowed."""
    if overwrite:
        refuse_all_but_file(path, directory, name)
    elif is_there(directory, name):
        raise PathExists(f"{path} exists.")


_FLUSHED_BYTES = 128 * 1024 * 1024


class Flushing:
    """Calls `flush` for every `size_bytes` that were taken, while the next ones come; not twice at a time."""

    def __init__(self, threads: FileThreads, flush: Callable[[], None], *, size_bytes: int = _FLUSHED_BYTES) -> None:
        self._threads = threads
        self._flush = flush
        self._size_bytes = size_bytes
        self._running: Future[None] | None = None

    async def while_written(self, body: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
        """The same bytes. Who asks for a piece has written those before. Raises what `flush` raises."""
        unflushed = 0
        async for piece in body:
            unflushed += len(piece)
            yield piece
            if unflushed >= self._size_bytes:
                unflushed = 0
                await self._ended()
                self._running = self._threads.start_flush(self._flush)
        await self._ended()

    async def _ended(self) -> None:
        if self._running is not None:
            await self._threads.ended(self._running)


_OLD_FILE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_STAGING = re.compile(re.escape(RESERVED_PREFIX) + r"parts_[0-9a-f]{32}")
_PIECE_BYTES = 1024 * 1024


def begin(tree: Tree, plan: PartPlan, account: Account | None = None) -> str:
    """Take the room for the whole file; the name of the staging file. The directory must be there."""
    staging = f"{RESERVED_PREFIX}parts_{secrets.token_hex(16)}"
    with file_errors(plan.path), tree.parent(plan.path) as (directory, _name):
        tree.require_room(plan.size_bytes)
        if account is not None:
            account.take(plan.size_bytes)
        file = os.open(staging, NEW_FILE, PRIVATE_FILE, dir_fd=directory)
        try:
            if account is not None:
                account.mark(file)
            _take_room(file, plan.size_bytes)
            # Several may have taken what was room for one of them.
            tree.require_room(anew=True)
        except (OSError, InsufficientStorage):
            os.unlink(staging, dir_fd=directory)
            raise
        finally:
            os.close(file)
    return staging


def join(tree: Tree, plan: PartPlan, staging: str, parts: Sequence[StoredPart], *, overwrite: bool) -> FileStatus:
    """Give the file its name. Raises VerificationFailed, PathExists; the parts are still there then."""
    _check_name(staging)
    sizes = {part.index: part.size_bytes for part in parts}
    if sizes != {index: part_size(plan, index) for index in range(plan.parts)}:
        raise VerificationFailed(f"{plan.path}: the parts are not those of the plan.")
    with file_errors(plan.path), tree.parent(plan.path) as (directory, name):
        refuse_taken(plan.path, directory, name, overwrite=overwrite)
        file = os.open(staging, _OLD_FILE, dir_fd=directory)
        try:
            former = plain_file(directory, name) if overwrite else None
            status = finished(tree, plan.path, file, plan.size_bytes, former=former)
        finally:
            os.close(file)
        take_name(plan.path, directory, staging, name, overwrite=overwrite)
    return status


class StagedParts(Download):
    """The file with all parts, before it has its name. Raises PathNotFound when it is gone."""

    def __init__(self, tree: Tree, plan: PartPlan, staging: str) -> None:
        _check_name(staging)
        super().__init__(tree, plan.path)
        self._staging = staging

    def _opened(self, tree: Tree, path: str) -> int:
        with tree.parent(path) as (directory, _name):
            return os.open(self._staging, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)


def discard(tree: Tree, plan: PartPlan, staging: str) -> None:
    """Remove the file and what parts left; nothing happens when the directory is gone."""
    _check_name(staging)
    with suppress(PathNotFound), file_errors(plan.path), tree.parent(plan.path) as (directory, _name):
        with os.scandir(directory) as found:
            names = [entry.name for entry in found if entry.name.startswith(staging)]
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)


def part_size(plan: PartPlan, index: int) -> int:
    """How long a part of the plan is; the last one is what the others leave."""
    return min(plan.part_bytes, plan.size_bytes - index * plan.part_bytes)


class PartUpload:
    """A part on its way in."""

    def __init__(self, tree: Tree, plan: PartPlan, staging: str, index: int) -> None:
        _check_name(staging)
        self._tree = tree
        self._plan = plan
        self._staging = staging
        self._index = index
        self._arriving = f"{staging}_{index}_{secrets.token_hex(8)}"
        self._lock = Lock()
        self._ended = False
        self._directory = -1
        self._file = -1
        self._size_bytes = 0

    def open(self) -> None:
        """Raises PathNotFound without staging place."""
        with self._lock, file_errors(self._plan.path):
            self._open()

    def write(self, piece: bytes) -> None:
        """Add bytes at the end. Raises VerificationFailed when the part gets too long."""
        with self._lock, file_errors(self._plan.path):
            self._open()
            self._size_bytes += len(piece)
            if self._size_bytes > part_size(self._plan, self._index):
                raise VerificationFailed(f"{self._plan.path}: part {self._index} is too long.")
            self._tree.require_room(len(piece))
            write_all(self._file, piece)

    def commit(self) -> StoredPart:
        """Lay the part into its place, durably. Raises VerificationFailed when it is too short."""
        with self._lock, file_errors(self._plan.path):
            self._open()
            if (expected := part_size(self._plan, self._index)) != self._size_bytes:
                raise VerificationFailed(
                    f"{self._plan.path}: part {self._index} has {self._size_bytes} bytes instead of {expected}."
                )
            self._lay()
            self._remove()
            return StoredPart(self._index, self._size_bytes, "")

    def abandon(self) -> None:
        """Leave nothing behind. After `commit` nothing happens."""
        with self._lock:
            self._remove()

    def _open(self) -> None:
        if self._ended:
            raise StorageError(f"A part of {self._plan.path} was abandoned.")
        if self._file >= 0:
            return
        self._tree.require_room()
        self._directory, _ = self._tree.open_parent(self._plan.path, make=False)
        os.stat(self._staging, dir_fd=self._directory, follow_symlinks=False)
        # Read back through the same descriptor when it is complete.
        flags = NEW_FILE & ~os.O_WRONLY | os.O_RDWR
        self._file = os.open(self._arriving, flags, PRIVATE_FILE, dir_fd=self._directory)

    def _lay(self) -> None:
        whole = os.open(self._staging, _OLD_FILE, dir_fd=self._directory)
        try:
            start, read = self._index * self._plan.part_bytes, 0
            while piece := os.pread(self._file, _PIECE_BYTES, read):
                read += _write_at(whole, piece, start + read)
            os.fsync(whole)
        finally:
            os.close(whole)

    def _remove(self) -> None:
        self._ended = True
        if self._file >= 0:
            with suppress(OSError):
                os.unlink(self._arriving, dir_fd=self._directory)
        for descriptor in (self._file, self._directory):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._directory = -1


def _write_at(file: int, piece: bytes, start: int) -> int:
    left = memoryview(piece)
    while left:
        written = os.pwrite(file, left, start)
        left, start = left[written:], start + written
    return len(piece)


def _take_room(file: int, size_bytes: int) -> None:
    if size_bytes and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size_bytes)
    else:
        os.ftruncate(file, size_bytes)


def _check_name(staging: str) -> None:
    """It comes back from a database: what is not a name of ours opens nothing."""
    if not _STAGING.fullmatch(staging):
        raise StorageError("The staging place of the upload is none of this store.")
