"""A file on its way in, and one on its way out. Everything here blocks: it is called in threads.

A thread cannot be cancelled. When its caller is, the call goes on; so each transfer has a lock, and what ends it
waits for the call that still uses the descriptor.
"""

import os
import secrets
from contextlib import suppress
from threading import Lock

from queryserver.domain.errors import PathExists, StorageError
from queryserver.storages.local.errors import file_errors
from queryserver.storages.local.paths import RESERVED_PREFIX
from queryserver.storages.local.tree import Tree

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_FILE_MODE = 0o600


class Upload:
    """A file that has a reserved name beside its place until `commit`."""

    def __init__(self, tree: Tree, path: str, *, overwrite: bool) -> None:
        self._tree = tree
        self._path = path
        self._overwrite = overwrite
        self._lock = Lock()
        self._ended = False
        self._directory = -1
        self._file = -1
        self._name = ""
        self._leftover = f"{RESERVED_PREFIX}upload_{secrets.token_hex(16)}"
        self._size_bytes = 0

    def write(self, piece: bytes) -> None:
        """Add bytes at the end."""
        with self._lock, file_errors(self._path):
            self._open()
            left = memoryview(piece)
            while left:
                left = left[os.write(self._file, left) :]
            self._size_bytes += len(piece)

    def commit(self) -> int:
        """Give the file its name once its bytes are durable; its size."""
        with self._lock, file_errors(self._path):
            self._open()
            os.fsync(self._file)
            if self._overwrite:
                os.rename(self._leftover, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            else:
                # Unlike rename(2), link(2) never replaces a file that appeared meanwhile.
                os.link(self._leftover, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
                os.unlink(self._leftover, dir_fd=self._directory)
            os.fsync(self._directory)
            self._close()
            return self._size_bytes

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
        self._directory, self._name = self._tree.open_parent(self._path)
        if not self._overwrite:
            self._refuse_existing()
        self._file = os.open(self._leftover, _NEW_FILE, _FILE_MODE, dir_fd=self._directory)

    def _refuse_existing(self) -> None:
        """Before the bytes are taken; `commit` has the last word."""
        with suppress(FileNotFoundError):
            os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)
            raise PathExists(f"{self._path} exists.")

    def _close(self) -> None:
        self._ended = True
        for descriptor in (self._file, self._directory):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._directory = -1


class Download:
    """A plain file that is opened by the first read."""

    def __init__(self, tree: Tree, path: str) -> None:
        self._tree = tree
        self._path = path
        self._lock = Lock()
        self._ended = False
        self._file = -1

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset` on; none at the end."""
        with self._lock, file_errors(self._path):
            if self._ended:
                raise StorageError(f"The reading of {self._path} was ended.")
            if self._file < 0:
                self._file = self._tree.open_file(self._path)
            return os.pread(self._file, length, offset)

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            self._ended = True
            if self._file >= 0:
                os.close(self._file)
            self._file = -1
