"""Uploads, downloads and part uploads in the local store. All calls block, so they run in threads.

If the caller of a thread is canceled, the thread continues. Each transfer therefore has a lock, so that its descriptor
is not closed while a thread still uses it.
"""

import os
import re
import secrets
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from typing import Generic, TypeVar

from queryserver.errors.files import EntryChanged, InsufficientStorage, StorageError, VerificationFailed
from queryserver.files.model import RESERVED_PREFIX, FileStatus
from queryserver.files.protocol import PartPlan, StoredPart
from queryserver.files.stores.local.access import UserAccount
from queryserver.files.stores.local.tree import LocalTree, file_error, publish_file, require_replaceable, status_of

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
PRIVATE_FILE = 0o600
_OLD_FILE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_MODE_BITS = 0o1777
_STAGING = re.compile(re.escape(RESERVED_PREFIX) + r"parts_[0-9a-f]{32}")
_PIECE_BYTES = 1024 * 1024

OutcomeT = TypeVar("OutcomeT")


class IncomingFile(ABC, Generic[OutcomeT]):
    """Writes bytes to a temporary file with a reserved name. `commit` completes the file, `abandon` deletes it."""

    def __init__(self, tree: LocalTree, path: str, name: str) -> None:
        self._tree = tree
        self._path = path
        self._temporary_name = name
        self._lock = Lock()
        self._ended = False
        self._directory = -1
        self._file = -1
        self._size_bytes = 0

    def open(self) -> None:
        """Create the temporary file. Raises the errors that can be detected before the body is read."""
        with self._lock:
            self._ensure_open()

    def write(self, piece: bytes) -> None:
        with self._lock:
            self._write(piece)

    def commit(self, last: bytes) -> OutcomeT:
        """Write the last bytes, complete the file, and return the outcome."""
        with self._lock:
            self._write(last)
            outcome = self._keep()
            self._close()
            return outcome

    def abandon(self) -> None:
        """Delete the temporary file, unless `commit` has completed it."""
        with self._lock:
            if self._file >= 0:
                with suppress(OSError):
                    os.unlink(self._temporary_name, dir_fd=self._directory)
            self._close()

    def _ensure_open(self) -> None:
        if self._ended:
            raise StorageError(f"The upload of {self._path} was abandoned.")
        if self._file < 0:
            self._begin()

    def _write(self, piece: bytes) -> None:
        self._ensure_open()
        if not piece:
            return
        self._admit(len(piece))
        left = memoryview(piece)
        while left:
            left = left[os.write(self._file, left) :]
        self._size_bytes += len(piece)

    def _close(self) -> None:
        self._ended = True
        for descriptor in (self._file, self._directory):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._directory = -1

    @abstractmethod
    def _begin(self) -> None:
        """Open `_directory` and `_file`."""

    @abstractmethod
    def _admit(self, size_bytes: int) -> None:
        """Check the limits for `size_bytes` more bytes. Raises an error if a limit would be exceeded."""

    @abstractmethod
    def _keep(self) -> OutcomeT: ...


class LocalUpload(IncomingFile[FileStatus]):
    """An upload of a whole file. Its bytes count toward the quota of `account`, if given."""

    def __init__(
        self,
        tree: LocalTree,
        path: str,
        *,
        overwrite: bool,
        announced_bytes: int = 0,
        account: UserAccount | None = None,
    ) -> None:
        super().__init__(tree, path, f"{RESERVED_PREFIX}upload_{secrets.token_hex(16)}")
        self._overwrite = overwrite
        self._announced_bytes = announced_bytes
        self._account = account
        self._name = ""

    def flush(self) -> None:
        """Flush the written bytes to disk. May run concurrently with other calls."""
        try:
            with self._lock:
                if self._file < 0:
                    return
                file = os.dup(self._file)
            try:
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise file_error(self._path, error) from error

    def _begin(self) -> None:
        # Check before missing parents are created, so that a failure leaves no directories behind.
        self._tree.require_room(self._announced_bytes)
        self._directory, self._name = self._tree.open_parent(self._path)
        self._file = os.open(self._temporary_name, NEW_FILE, PRIVATE_FILE, dir_fd=self._directory)
        if self._account is not None:
            self._account.mark(self._file)

    def _admit(self, size_bytes: int) -> None:
        self._tree.require_room(size_bytes)
        if self._account is not None:
            self._account.take(size_bytes)

    def _keep(self) -> FileStatus:
        status = make_durable(
            self._tree, self._path, self._directory, self._name, self._file, self._size_bytes, overwrite=self._overwrite
        )
        publish_file(self._path, self._directory, self._temporary_name, self._name, overwrite=self._overwrite)
        return status


class Download:
    """Reads a regular file, which `open_file` opens on the first read. If `version` is given and the file has changed
    since, `read` raises EntryChanged.
    """

    def __init__(self, path: str, open_file: Callable[[], int], version: FileStatus | None = None) -> None:
        self._path = path
        self._open_file = open_file
        self._version = version
        self._lock = Lock()
        self._ended = False
        self._file = -1

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset` on, or no bytes at the end of the file. Raises EntryChanged."""
        with self._lock:
            if self._ended:
                raise StorageError(f"Reading {self._path} was canceled.")
            if self._file < 0:
                self._file = self._open_file()
            piece = os.pread(self._file, length, offset)
            # Check after reading, so that changes during the read are also detected.
            version = self._version
            if version is not None and not status_of(self._path, os.fstat(self._file)).is_same_content(version):
                raise EntryChanged(f"{self._path} was modified concurrently.")
            return piece

    def close(self) -> None:
        with self._lock:
            self._ended = True
            if self._file >= 0:
                os.close(self._file)
            self._file = -1


def make_durable(
    tree: LocalTree, path: str, directory: int, name: str, file: int, size_bytes: int, *, overwrite: bool
) -> FileStatus:
    """Set an open file's mode and flush it to disk. If `overwrite` is set, the file gets the mode and owner of the file
    that it will replace.

    Raises VerificationFailed if its size is not `size_bytes`.
    """
    former: os.stat_result | None = None
    if overwrite:
        with suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
            former = found if stat.S_ISREG(found.st_mode) else None
    if (stored := os.fstat(file).st_size) != size_bytes:
        raise VerificationFailed(f"{path}: {size_bytes} bytes were sent, but {stored} bytes were stored.")
    if tree.file_mode != PRIVATE_FILE:
        if former is not None:
            with suppress(PermissionError):
                os.fchown(file, former.st_uid, former.st_gid)
        # Set the mode after the owner, because chown(2) clears mode bits.
        os.fchmod(file, tree.file_mode if former is None else stat.S_IMODE(former.st_mode) & _MODE_BITS)
    os.fsync(file)
    return status_of(path, os.fstat(file))


def begin(tree: LocalTree, plan: PartPlan, account: UserAccount | None = None) -> str:
    """Create the staging file, reserve disk space for the whole file, and return the staging file's name.

    The directory must exist. Raises InsufficientStorage.
    """
    staging = f"{RESERVED_PREFIX}parts_{secrets.token_hex(16)}"
    with tree.parent(plan.path) as (directory, _name):
        tree.require_room(plan.size_bytes)
        if account is not None:
            account.take(plan.size_bytes)
        file = os.open(staging, NEW_FILE, PRIVATE_FILE, dir_fd=directory)
        try:
            if account is not None:
                account.mark(file)
            if plan.size_bytes and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file, 0, plan.size_bytes)
            else:
                os.ftruncate(file, plan.size_bytes)
            # Check again, because concurrent uploads may have exceeded the available space together.
            tree.require_room(fresh=True)
        except (OSError, InsufficientStorage):
            os.unlink(staging, dir_fd=directory)
            raise
        finally:
            os.close(file)
    return staging


def join(tree: LocalTree, plan: PartPlan, staging: str, parts: Sequence[StoredPart], *, overwrite: bool) -> FileStatus:
    """Turn the staging file into the target by renaming it. Raises VerificationFailed and PathExists, after which the
    parts still exist.
    """
    _check_name(staging)
    sizes = {part.index: part.size_bytes for part in parts}
    if sizes != {index: plan.size_of(index) for index in range(plan.parts)}:
        raise VerificationFailed(f"{plan.path}: the parts do not match the declared parts.")
    with tree.parent(plan.path) as (directory, name):
        require_replaceable(plan.path, directory, name, overwrite=overwrite)
        file = os.open(staging, _OLD_FILE, dir_fd=directory)
        try:
            status = make_durable(tree, plan.path, directory, name, file, plan.size_bytes, overwrite=overwrite)
        finally:
            os.close(file)
        publish_file(plan.path, directory, staging, name, overwrite=overwrite)
        _remove_parts(directory, staging)
    return status


def open_staged(tree: LocalTree, plan: PartPlan, staging: str) -> int:
    """Open the staging file for reading. Raises PathNotFound if it no longer exists."""
    _check_name(staging)
    with tree.parent(plan.path) as (directory, _name):
        return os.open(staging, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)


def discard(tree: LocalTree, plan: PartPlan, staging: str) -> None:
    """Delete the staging file and unfinished parts, if their directory still exists."""
    _check_name(staging)
    with suppress(FileNotFoundError), tree.parent(plan.path) as (directory, _name):
        _remove_parts(directory, staging)


def _remove_parts(directory: int, staging: str) -> None:
    """Delete the staging file, and the unfinished parts of crashed processes."""
    with os.scandir(directory) as found:
        names = [entry.name for entry in found if entry.name.startswith(staging)]
    for name in names:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)


class LocalPartUpload(IncomingFile[StoredPart]):
    """An upload of one part. `commit` copies the part to its position in the staging file."""

    def __init__(self, tree: LocalTree, plan: PartPlan, staging: str, index: int) -> None:
        _check_name(staging)
        super().__init__(tree, plan.path, f"{staging}_{index}_{secrets.token_hex(8)}")
        self._staging = staging
        self._index = index
        self._start = index * plan.part_bytes
        self._expected = plan.size_of(index)

    def _begin(self) -> None:
        self._tree.require_room()
        self._directory, _ = self._tree.open_parent(self._path, make=False)
        os.stat(self._staging, dir_fd=self._directory, follow_symlinks=False)
        # The file is also readable, because `_keep` copies the part through the same descriptor.
        flags = NEW_FILE & ~os.O_WRONLY | os.O_RDWR
        self._file = os.open(self._temporary_name, flags, PRIVATE_FILE, dir_fd=self._directory)

    def _admit(self, size_bytes: int) -> None:
        if self._size_bytes + size_bytes > self._expected:
            raise VerificationFailed(f"{self._path}: part {self._index} is too long.")
        self._tree.require_room(size_bytes)

    def _keep(self) -> StoredPart:
        if self._size_bytes != self._expected:
            raise VerificationFailed(
                f"{self._path}: part {self._index} has {self._size_bytes} bytes instead of {self._expected}."
            )
        whole = os.open(self._staging, _OLD_FILE, dir_fd=self._directory)
        try:
            read = 0
            while piece := os.pread(self._file, _PIECE_BYTES, read):
                left = memoryview(piece)
                while left:
                    written = os.pwrite(whole, left, self._start + read)
                    left, read = left[written:], read + written
            os.fsync(whole)
        finally:
            os.close(whole)
        with suppress(OSError):
            os.unlink(self._temporary_name, dir_fd=self._directory)
        return StoredPart(self._index, self._size_bytes, "")


def _check_name(staging: str) -> None:
    """Check the name of a staging file, which comes from the database. Raises StorageError if it is invalid."""
    if not _STAGING.fullmatch(staging):
        raise StorageError("The staging area of the upload does not belong to this store.")
