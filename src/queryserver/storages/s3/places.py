"""Paths as buckets and keys."""

import re
from dataclasses import dataclass

from queryserver.domain.errors.files import InvalidPath, PathNotFound
from queryserver.domain.files import EntryKind, FileStatus, Scheme, StoragePath
from queryserver.domain.storage_names import names_of

MAX_KEY_BYTES = 1024
# Anything else is no bucket: names of access points are addresses, and directory buckets list in no order.
_BUCKET = re.compile(r"(?!.*--x-s3$)[A-Za-z0-9][A-Za-z0-9._-]{1,254}")

DIRECTORY_PERMISSIONS = 0o777
FILE_PERMISSIONS = 0o666


@dataclass(frozen=True, slots=True)
class Place:
    """A path taken apart. The root has no bucket; a bucket has no key."""

    path: str
    bucket: str
    key: str

    @property
    def label(self) -> str:
        """For messages."""
        return label(self.path)

    @property
    def prefix(self) -> str:
        """What the keys of all entries below begin with; the key of the directory's own marker."""
        return f"{self.key}/" if self.key else ""

    @property
    def parent(self) -> "Place":
        """The directory that holds it."""
        return Place(self.path.rpartition("/")[0], self.bucket, self.key.rpartition("/")[0])

    def path_of(self, key: str) -> str:
        """The path of another key of this bucket, of a directory also with its slash."""
        return f"{self.bucket}/{key}".rstrip("/")


def label(path: str) -> str:
    """A path as users write it."""
    return str(StoragePath(Scheme.S3A, path))


def place_of(path: str) -> Place:
    """Raises InvalidPath; PathNotFound where no bucket can have that name."""
    names = names_of(path)
    if not names:
        return Place("", "", "")
    key = "/".join(names[1:])
    if len(key.encode()) > MAX_KEY_BYTES:
        raise InvalidPath(f"An object key has at most {MAX_KEY_BYTES} bytes.")
    if not is_bucket_name(names[0]):
        raise PathNotFound(f"{label(path)} does not exist.")
    return Place(path, names[0], key)


def object_place(path: str) -> Place:
    """The place of an object. Raises as `place_of`, and InvalidPath for the root and for buckets."""
    place = place_of(path)
    if not place.key:
        raise InvalidPath(f"{place.label} cannot be used for this: files lie in buckets.")
    return place


def is_bucket_name(name: str) -> bool:
    """Whether a bucket could be called so, in the widest of the rules that stores have."""
    return _BUCKET.fullmatch(name) is not None


def directory(path: str) -> FileStatus:
    """A bucket or a prefix: the store knows no times of them."""
    return FileStatus(path, EntryKind.DIRECTORY, 0, None, permissions=DIRECTORY_PERMISSIONS)
