"""Directories and files in memory, with the semantics of a hierarchical namespace."""

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime

_TAGS = itertools.count(0x8D0000000000)
OWNER = "$superuser"


class Refusal(Exception):
    """A response with a status other than 2xx."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


@dataclass
class Entry:
    """A file or directory. `appended` maps positions to bytes that have not been flushed into the file yet."""

    is_directory: bool
    permissions: int
    content: bytes = b""
    appended: dict[int, bytes] = field(default_factory=dict[int, bytes])
    owner: str = OWNER
    group: str = OWNER
    etag: str = ""
    acl: str = ""
    """ACL entries in addition to the permissions; may be empty."""
    modified_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        self.changed()

    def changed(self) -> None:
        self.etag = f'"0x{next(_TAGS):X}"'
        self.modified_at = datetime.now(UTC)


class Tree:
    """One file system (container). Paths have no leading or trailing slash; the root's path is the empty string."""

    def __init__(self) -> None:
        self.root = Entry(is_directory=True, permissions=0o750)
        self.entries: dict[str, Entry] = {}

    def find(self, path: str) -> Entry:
        if not path:
            return self.root
        if path not in self.entries:
            raise Refusal(404, "PathNotFound")
        return self.entries[path]

    def file(self, path: str) -> Entry:
        entry = self.find(path)
        if entry.is_directory:
            raise Refusal(409, "ResourceTypeMismatch")
        return entry

    def below(self, path: str) -> list[str]:
        prefix = f"{path}/" if path else ""
        return [name for name in self.entries if name.startswith(prefix)]

    def children(self, path: str) -> list[str]:
        start = len(path) + 1 if path else 0
        return sorted(name for name in self.below(path) if "/" not in name[start:])

    def create(self, path: str, *, is_directory: bool, permissions: int, must_be_new: bool) -> Entry:
        """Create an entry and its missing parents. An existing file is truncated; an existing directory is left as it
        is.
        """
        old = self.entries.get(path)
        if old is not None and (must_be_new or old.is_directory != is_directory):
            raise Refusal(409, "PathAlreadyExists")
        names = path.split("/")[:-1]
        for end in range(1, len(names) + 1):
            parent = "/".join(names[:end])
            if parent not in self.entries:
                # The owner and others need execute (search) permission to reach entries below the directory.
                self.entries[parent] = Entry(is_directory=True, permissions=permissions | 0o111)
            elif not self.entries[parent].is_directory:
                raise Refusal(409, "PathConflict")
        if old is None or not is_directory:
            self.entries[path] = Entry(is_directory=is_directory, permissions=permissions)
        return self.entries[path]

    def append(self, path: str, position: int, content: bytes) -> None:
        entry = self.file(path)
        if not content:
            raise Refusal(400, "InvalidHeaderValue")
        if position < len(entry.content):
            raise Refusal(400, "InvalidQueryParameterValue")
        entry.appended[position] = content

    def flush(self, path: str, position: int) -> Entry:
        """Make the appended bytes part of the file, up to `position`, which they must reach without gaps. Bytes beyond
        it are dropped.
        """
        entry = self.file(path)
        whole = bytearray(entry.content)
        for start, piece in sorted(entry.appended.items()):
            if start > len(whole):
                break
            whole[start : start + len(piece)] = piece
        if position > len(whole) or position < len(entry.content):
            raise Refusal(400, "InvalidFlushPosition")
        entry.content = bytes(whole[:position])
        entry.appended.clear()
        entry.changed()
        return entry

    def rename(self, source: str, target: str, *, must_be_new: bool, replaced: str | None) -> Entry:
        """Rename an entry, replacing the target unless a condition forbids it. Raises Refusal."""
        if source not in self.entries:
            raise Refusal(404, "SourcePathNotFound")
        moved, there = self.entries[source], self.entries.get(target)
        parent = target.rpartition("/")[0]
        if parent and parent not in self.entries:
            raise Refusal(404, "RenameDestinationParentPathNotFound")
        if must_be_new and there is not None:
            raise Refusal(409, "PathAlreadyExists")
        if replaced is not None and (there is None or there.etag != replaced):
            raise Refusal(412, "ConditionNotMet")
        if target == source or target.startswith(f"{source}/") or (parent and not self.find(parent).is_directory):
            raise Refusal(409, "InvalidDestinationPath")
        if there is not None and there.is_directory != moved.is_directory:
            raise Refusal(409, "InvalidSourceOrDestinationResourceType")
        if there is not None and self.below(target):
            raise Refusal(409, "DirectoryNotEmpty")
        for path in [source, *self.below(source)]:
            self.entries[target + path.removeprefix(source)] = self.entries.pop(path)
        return moved

    def delete(self, path: str, *, recursive: bool, at_most: int) -> bool:
        """Delete up to `at_most` entries; return whether the deletion is complete. If not, the caller must repeat the
        call.
        """
        entry, below = self.find(path), self.below(path)
        if entry.is_directory and below and not recursive:
            raise Refusal(409, "DirectoryNotEmpty")
        for name in sorted(below, reverse=True)[:at_most]:
            del self.entries[name]
        if len(below) > at_most:
            return False
        del self.entries[path]
        return True
