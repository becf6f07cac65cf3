"""Errors of the operating system as domain errors."""

import errno
from collections.abc import Generator
from contextlib import contextmanager

from queryserver.domain.errors.base import PermissionDenied, QueryServerError
from queryserver.domain.errors.files import (
    DirectoryNotEmpty,
    InvalidPath,
    NotADirectory,
    PathExists,
    PathNotFound,
    StorageError,
    StorageUnavailable,
    StoreQuotaExceeded,
    SymlinkNotFollowed,
)

_KINDS: dict[int, tuple[type[QueryServerError], str]] = {
    errno.ENOENT: (PathNotFound, "{path} does not exist."),
    errno.ENOTDIR: (NotADirectory, "{path} is not a directory, or leads through a file."),
    errno.EEXIST: (PathExists, "{path} exists."),
    errno.EISDIR: (PathExists, "{path} is a directory."),
    errno.ENOTEMPTY: (DirectoryNotEmpty, "{path} is not empty."),
    errno.ELOOP: (SymlinkNotFollowed, "{path} leads through a symbolic link, which is not followed."),
    errno.EINVAL: (InvalidPath, "{path} cannot be used for this."),
    errno.ENAMETOOLONG: (InvalidPath, "{path} is too long."),
    errno.EILSEQ: (InvalidPath, "The store cannot hold a name like {path}."),
    errno.ENOSPC: (StorageError, "The store has no room left."),
    errno.EDQUOT: (StoreQuotaExceeded, "The quota of the store is used up."),
    errno.EFBIG: (StorageError, "The file is larger than the store allows."),
    errno.EIO: (StorageUnavailable, "The device of the store fails."),
    errno.ENODEV: (StorageUnavailable, "The device of the store is gone."),
    errno.ENXIO: (StorageUnavailable, "The device of the store is gone."),
    errno.ESTALE: (StorageUnavailable, "The file server has lost the file."),
    errno.ETIMEDOUT: (StorageUnavailable, "The file server does not answer."),
    errno.EMFILE: (StorageUnavailable, "Too many files are open."),
    errno.ENFILE: (StorageUnavailable, "Too many files are open."),
    errno.EROFS: (StorageUnavailable, "The store is read-only."),
    errno.EACCES: (PermissionDenied, "The store refuses access to {path}."),
    errno.EPERM: (PermissionDenied, "The store refuses access to {path}."),
    errno.EXDEV: (StorageError, "{path} lies on another device, so that it cannot be renamed to there."),
}


@contextmanager
def file_errors(path: str) -> Generator[None]:
    """Every OSError inside becomes a domain error about `path`, which is relative to the root."""
    try:
        yield
    except OSError as error:
        kind, text = _KINDS.get(error.errno or 0, (StorageError, "The store failed with {path}."))
        raise kind(text.format(path=path or "The root of the store")) from error
