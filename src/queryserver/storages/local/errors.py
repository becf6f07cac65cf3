"""Errors of the operating system as domain errors."""

import errno
from collections.abc import Generator
from contextlib import contextmanager

from queryserver.domain.errors import (
    DirectoryNotEmpty,
    InvalidPath,
    PathExists,
    PathNotFound,
    QueryServerError,
    StorageError,
    StorageFull,
    StorageUnavailable,
)

_KINDS: dict[int, tuple[type[QueryServerError], str]] = {
    errno.ENOENT: (PathNotFound, "{path} does not exist."),
    errno.ENOTDIR: (PathNotFound, "{path} does not exist."),
    errno.EEXIST: (PathExists, "{path} exists."),
    errno.EISDIR: (PathExists, "{path} is a directory."),
    errno.ENOTEMPTY: (DirectoryNotEmpty, "{path} is not empty."),
    errno.ELOOP: (InvalidPath, "{path} is a link; links are not followed."),
    errno.EINVAL: (InvalidPath, "{path} cannot be used for this."),
    errno.ENAMETOOLONG: (InvalidPath, "{path} is too long."),
    errno.ENOSPC: (StorageFull, "The store has no room left."),
    errno.EDQUOT: (StorageFull, "The quota of the store is used up."),
    errno.EFBIG: (StorageFull, "The file is larger than the store allows."),
    errno.EIO: (StorageUnavailable, "The device of the store fails."),
    errno.ENODEV: (StorageUnavailable, "The device of the store is gone."),
    errno.ENXIO: (StorageUnavailable, "The device of the store is gone."),
    errno.ESTALE: (StorageUnavailable, "The file server has lost the file."),
    errno.ETIMEDOUT: (StorageUnavailable, "The file server does not answer."),
    errno.EMFILE: (StorageUnavailable, "Too many files are open."),
    errno.ENFILE: (StorageUnavailable, "Too many files are open."),
    errno.EROFS: (StorageError, "The store is read-only."),
    errno.EACCES: (StorageError, "The store refuses access to {path}."),
    errno.EPERM: (StorageError, "The store refuses access to {path}."),
}


@contextmanager
def file_errors(path: str) -> Generator[None]:
    """Every OSError inside becomes a domain error about `path`, which is relative to the root."""
    try:
        yield
    except OSError as error:
        kind, text = _KINDS.get(error.errno or 0, (StorageError, "The store failed with {path}."))
        raise kind(text.format(path=path or "The root of the store")) from error
