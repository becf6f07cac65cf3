"""An in-memory file tree that the fake stores share."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count

from queryserver.errors.base import PermissionDenied
from queryserver.errors.files import (
    DirectoryNotEmpty,
    InvalidPath,
    NotADirectory,
    NotAFile,
    PathExists,
    PathNotFound,
    SymlinkNotFollowed,
    TargetInsideSource,
)
from queryserver.files.model import RESERVED_PREFIX, EntryKind, FileStatus, names_of
from queryserver.files.protocol import StoredPart


@dataclass(slots=True)
class Entry:
    """A file, link or directory. Only files have content."""

    kind: EntryKind
    content: bytes = b""
    modified_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    permissions: int = 0o755
    owner: str = ""
    group: str = ""
    replication: int = 0
    file_id: int = 0


@dataclass
class MemoryTree:
    """The entries of a store by path.

    Directories on the first `container_levels` levels are containers, which only `make_container` creates. `private`
    maps a path to the only user who may access it and all paths below it.
    """

    container_levels: int = 0
    private: Mapping[str, str] = field(default_factory=dict[str, str])
    entries: dict[str, Entry] = field(default_factory=lambda: {"": Entry(EntryKind.DIRECTORY)})
    staging_table: dict[str, dict[int, bytes]] = field(default_factory=dict[str, dict[int, bytes]])
    unseen: list[tuple[str, datetime]] = field(default_factory=list[tuple[str, datetime]])
    """The path of each interrupted upload, and the time of its last received bytes."""
    _ids: Iterator[int] = field(default_factory=lambda: count(1))

    def make_container(self, path: str) -> None:
        """Create a directory and its missing parents, even if they are containers."""
        names = names_of(path)
        for end in range(1, len(names) + 1):
            self.entries.setdefault("/".join(names[:end]), Entry(EntryKind.DIRECTORY))

    def make_entry(self, path: str, kind: EntryKind) -> None:
        """Create an entry of any kind, including links, which no Storage call can create."""
        self.entries[path] = Entry(kind, permissions=0o777)

    def check(self, user: str, path: str) -> None:
        """Check that the user may access the path. Raises InvalidPath if it is malformed, and PermissionDenied if it is
        private.
        """
        names_of(path)
        for place, owner in self.private.items():
            if user != owner and (path == place or path.startswith(f"{place}/")):
                raise PermissionDenied(f"{user} may not use {path}.")

    def existing(self, path: str) -> Entry:
        """Return the entry at `path`. Raises PathNotFound, NotADirectory, SymlinkNotFollowed."""
        names = names_of(path)
        for end in range(1, len(names)):
            self._must_be_directory("/".join(names[:end]))
        if path not in self.entries:
            raise PathNotFound(f"{path} does not exist.")
        return self.entries[path]

    def directory(self, path: str) -> Entry:
        """Return the directory at `path`.

        Raises the same errors as `existing`, and NotADirectory or SymlinkNotFollowed for the entry itself.
        """
        entry = self.existing(path)
        self._must_be_directory(path)
        return entry

    def file(self, path: str) -> Entry:
        """Return the file at `path`.

        Raises the same errors as `existing`, and NotAFile or SymlinkNotFollowed for the entry itself.
        """
        entry = self.existing(path)
        if entry.kind is EntryKind.LINK:
            raise SymlinkNotFollowed(f"{path} is a symbolic link; symbolic links are not followed.")
        if entry.kind is not EntryKind.FILE:
            raise NotAFile(f"{path} is not a file.")
        return entry

    def free_for_file(self, path: str, *, overwrite: bool) -> None:
        """Check that a file may be written at `path`. Raises PathExists and SymlinkNotFollowed, and the errors of a
        missing or invalid parent.
        """
        self.below_root(path)
        self._check_parents(path)
        entry = self.entries.get(path)
        if entry is None or (overwrite and entry.kind is EntryKind.FILE):
            return
        if overwrite and entry.kind is EntryKind.LINK:
            raise SymlinkNotFollowed(f"{path} is a symbolic link; symbolic links are not followed.")
        raise PathExists(f"{path} already exists.")

    def put(self, path: str, content: bytes, model: Entry | None = None) -> FileStatus:
        """Store a file at `path`. It has the attributes of `model` if that is given."""
        self.make_parents(path)
        made = model or Entry(EntryKind.FILE, permissions=0o644)
        self.entries[path] = replace(made, content=content, modified_at=datetime.now(UTC), file_id=next(self._ids))
        return self.status(path)

    def make_parents(self, path: str, permissions: int = 0o755) -> None:
        """Create all missing parent directories. Raises PathNotFound if a container is missing."""
        self._check_parents(path)
        names = names_of(path)
        for end in range(1, len(names)):
            self.entries.setdefault("/".join(names[:end]), Entry(EntryKind.DIRECTORY, permissions=permissions))

    def children(self, path: str) -> list[str]:
        """Return the paths of the direct children, excluding those with reserved names."""
        prefix = f"{path}/" if path else ""
        rest = ((entry, entry.removeprefix(prefix)) for entry in self.entries if entry and entry.startswith(prefix))
        return [entry for entry, name in rest if "/" not in name and not name.startswith(RESERVED_PREFIX)]

    def inner(self, path: str) -> list[str]:
        """Return the paths of all descendants."""
        return [entry for entry in self.entries if entry and (not path or entry.startswith(f"{path}/"))]

    def remove(self, path: str, *, recursive: bool) -> None:
        """Remove an entry.

        Raises DirectoryNotEmpty if the entry has children, unless `recursive` is set. Containers must always be empty.
        """
        self.below_root(path)
        self.existing(path)
        inner = self.inner(path)
        if inner and (not recursive or len(names_of(path)) <= self.container_levels):
            raise DirectoryNotEmpty(f"{path} is not empty.")
        for entry in [path, *inner]:
            del self.entries[entry]

    def move(self, source: str, target: str, *, overwrite: bool) -> None:
        """Move an entry with all its descendants. Raises TargetInsideSource, PathExists, PathNotFound."""
        self.below_root(source)
        self.below_root(target)
        entry = self.existing(source)
        if target.startswith(f"{source}/"):
            raise TargetInsideSource(f"{target} is inside {source}.")
        self.directory("/".join(names_of(target)[:-1]))
        if (taken := self.entries.get(target)) is not None and not (
            overwrite and entry.kind is taken.kind is EntryKind.FILE
        ):
            raise PathExists(f"{target} already exists.")
        for path in [source, *self.inner(source)]:
            self.entries[target + path.removeprefix(source)] = self.entries.pop(path)

    def joined(self, staging: str, parts: list[StoredPart]) -> bytes:
        """Return the content of all staged parts, joined in index order."""
        kept = self.staging_table[staging]
        return b"".join(kept[part.index] for part in sorted(parts, key=lambda part: part.index))

    def status(self, path: str) -> FileStatus:
        """Return the status of an existing entry."""
        entry = self.entries[path]
        return FileStatus(
            path,
            entry.kind,
            len(entry.content),
            entry.modified_at,
            permissions=entry.permissions,
            owner=entry.owner,
            group=entry.group,
            replication=entry.replication if entry.kind is EntryKind.FILE else 0,
            file_id=str(entry.file_id) if entry.file_id else "",
        )

    def below_root(self, path: str) -> None:
        """Check that the path is not the root of the store. Raises InvalidPath."""
        if not names_of(path):
            raise InvalidPath("The root of the store is not valid for this operation.")

    def _check_parents(self, path: str) -> None:
        names = names_of(path)
        for end in range(1, len(names)):
            place = "/".join(names[:end])
            if place in self.entries:
                self._must_be_directory(place)
            elif end <= self.container_levels:
                raise PathNotFound(f"{place} does not exist.")

    def _must_be_directory(self, path: str) -> None:
        entry = self.entries.get(path)
        if entry is None:
            raise PathNotFound(f"{path} does not exist.")
        if entry.kind is EntryKind.LINK:
            raise SymlinkNotFollowed(f"{path} is a symbolic link; symbolic links are not followed.")
        if entry.kind is not EntryKind.DIRECTORY:
            raise NotADirectory(f"{path} is not a directory.")
