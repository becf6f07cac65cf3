"""The first entries of a directory in any order, without holding the directory (Contract storage 5.2)."""

import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from queryserver.files.model import EntryKind, FileStatus


class SortKey(StrEnum):
    """What entries are sorted by."""

    TYPE = "type"
    NAME = "name"
    ATIME = "atime"
    MTIME = "mtime"
    USER = "user"
    GROUP = "group"
    SIZE = "size"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_UNSORTED = 8192  # one merge stays below 10 ms
_LAST_CODE_POINT = 0x10FFFF
_KINDS = tuple(EntryKind)
_UNKNOWN_TIME = -(2**63)
_LAYOUT = struct.Struct("<QqqQIIIHBB")

_Record = tuple[int | str, str, bytes]


class FirstEntries:
    """Keeps the first `limit` of the entries that it is given; ties are broken by name, ascending.

    An entry takes some 250 bytes: it is held as its sort key, its name and a few packed numbers. At most `unsorted` of
    them wait to be merged with those in order.
    """

    def __init__(
        self, parent: str, sort_by: SortKey, *, descending: bool, limit: int, unsorted: int = _UNSORTED
    ) -> None:
        self.seen = 0
        self._prefix = f"{parent}/" if parent else ""
        self._primary = _primary(sort_by, descending=descending)
        # Nothing ties with a name, so names are sorted backwards as they are.
        self._reverse = descending and sort_by is SortKey.NAME
        self._limit = limit
        self._unsorted = unsorted
        self._kept: list[_Record] = []
        self._fresh: list[_Record] = []
        self._texts: dict[str, int] = {}

    def add(self, entries: Iterable[FileStatus]) -> None:
        """Take more entries of the directory."""
        for entry in entries:
            self.seen += 1
            key = self._primary(entry), entry.name
            if not self._is_beyond(key):
                self._fresh.append((*key, self._packed(entry)))
                if len(self._fresh) >= self._unsorted:
                    self._merge()

    def window(self, start: int, end: int) -> Sequence[FileStatus]:
        """Entries [start, end) of the order; `end` is at most `limit`."""
        self._merge()
        texts = list(self._texts)
        return [self._unpacked(name, packed, texts) for _, name, packed in self._kept[start:end]]

    def _is_beyond(self, key: tuple[int | str, str]) -> bool:
        """Whether the entry comes behind all that are wanted."""
        if len(self._kept) < self._limit:
            return False
        last = self._kept[-1][:2]
        return key < last if self._reverse else key > last

    def _merge(self) -> None:
        # Sorted and then unsorted entries: the sort finds the first part in order and merges the rest into it.
        self._fresh.sort(reverse=self._reverse)
        self._kept += self._fresh
        self._kept.sort(reverse=self._reverse)
        del self._kept[self._limit :]
        self._fresh.clear()

    def _packed(self, entry: FileStatus) -> bytes:
        return _LAYOUT.pack(
            entry.size_bytes,
            _seconds(entry.modified_at, _UNKNOWN_TIME),
            _seconds(entry.accessed_at, _UNKNOWN_TIME),
            entry.block_size,
            self._texts.setdefault(entry.owner, len(self._texts)),
            self._texts.setdefault(entry.group, len(self._texts)),
            entry.replication,
            entry.permissions,
            _KINDS.index(entry.kind),
            entry.has_acl,
        )

    def _unpacked(self, name: str, packed: bytes, texts: Sequence[str]) -> FileStatus:
        size, modified, accessed, block_size, owner, group, replication, permissions, kind, acl = _LAYOUT.unpack(packed)
        return FileStatus(
            path=self._prefix + name,
            kind=_KINDS[kind],
            size_bytes=size,
            modified_at=_time(modified),
            permissions=permissions,
            accessed_at=_time(accessed),
            owner=texts[int(owner)],
            group=texts[int(group)],
            has_acl=bool(acl),
            block_size=block_size,
            replication=replication,
        )


def _primary(sort_by: SortKey, *, descending: bool) -> Callable[[FileStatus], int | str]:
    """What is compared before the name. Numbers and texts of a descending order are turned round."""
    match sort_by:
        case SortKey.NAME:
            return _nothing
        case SortKey.SIZE:
            return _negated(_size) if descending else _size
        case SortKey.ATIME:
            return _negated(_accessed) if descending else _accessed
        case SortKey.MTIME:
            return _negated(_modified) if descending else _modified
        case SortKey.TYPE:
            return _backwards(_kind) if descending else _kind
        case SortKey.USER:
            return _backwards(_owner) if descending else _owner
        case SortKey.GROUP:
            return _backwards(_group) if descending else _group


def _nothing(entry: FileStatus) -> int:
    del entry
    return 0


def _size(entry: FileStatus) -> int:
    return 0 if entry.is_directory else entry.size_bytes


# Times are compared as they are shown, so that entries of one second stand by name.
def _modified(entry: FileStatus) -> int:
    return _seconds(entry.modified_at, 0)


def _accessed(entry: FileStatus) -> int:
    return _seconds(entry.accessed_at, 0)


def _kind(entry: FileStatus) -> str:
    return entry.kind.value


def _owner(entry: FileStatus) -> str:
    return entry.owner


def _group(entry: FileStatus) -> str:
    return entry.group


def _negated(number: Callable[[FileStatus], int]) -> Callable[[FileStatus], int]:
    return lambda entry: -number(entry)


def _backwards(text: Callable[[FileStatus], str]) -> Callable[[FileStatus], str]:
    turned: dict[str, str] = {}

    def turn(entry: FileStatus) -> str:
        value = text(entry)
        if value not in turned:
            turned[value] = _turned(value)
        return turned[value]

    return turn


def _turned(text: str) -> str:
    """A text that stands in the order of texts where `text` stands from the end."""
    last = chr(_LAST_CODE_POINT)
    return "".join(chr(_LAST_CODE_POINT - ord(character)) for character in text) + last


def _seconds(time: datetime | None, unknown: int) -> int:
    return unknown if time is None else (time - _EPOCH) // _SECOND


def _time(seconds: int) -> datetime | None:
    return None if seconds == _UNKNOWN_TIME else _EPOCH + timedelta(seconds=seconds)
