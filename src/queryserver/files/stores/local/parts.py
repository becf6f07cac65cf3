"""Files that arrive in parts, in any order (Contract storage 9.2). Everything here blocks: it is called in threads.

The file has its whole size from the beginning, under a reserved name beside its place. A part arrives in a file of its
own and is laid into its place when it is complete, so that one that breaks off leaves the former part as it was.
"""

import os
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock

from queryserver.errors.files import InsufficientStorage, PathNotFound, StorageError, VerificationFailed
from queryserver.files.model import FileStatus
from queryserver.files.paths import RESERVED_PREFIX
from queryserver.files.protocol import PartPlan, StoredPart
from queryserver.files.stores.local.system_calls import file_errors
from queryserver.files.stores.local.transfers import (
    NEW_FILE,
    PRIVATE_FILE,
    Account,
    Download,
    finished,
    plain_file,
    refuse_taken,
    take_name,
    write_all,
)
from queryserver.files.stores.local.tree import Tree

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
