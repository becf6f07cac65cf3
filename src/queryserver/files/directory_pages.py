"""Directory pages (Contract storage 5.2).

A listing in the store's own order keeps one page and one batch in memory. A listing in any other order keeps all
entries up to the end of the page.
"""

import asyncio
import struct
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache

import structlog

from queryserver.errors.base import PayloadTooLarge, QueryServerError, TooManyRequests
from queryserver.errors.files import StorageError, StorageUnavailable, too_many_entries
from queryserver.files.access import Caller, Location
from queryserver.files.model import EntryKind, FileStatus, StoragePath
from queryserver.files.protocol import Batch
from queryserver.platform.lru_cache import LruCache

_COUNT_S = 5.0
# A page far from the start requires all calls up to it, even if the client has disconnected.
_WITHIN_S = 300.0
# Sorting more entries than this takes up to 25 MiB and several seconds, so each user may run four such listings at a
# time.
_MANY_ENTRIES = 10_000
_LARGE_AT_ONCE = 4

log = structlog.get_logger(__name__)


class SortKey(StrEnum):
    TYPE = "type"
    NAME = "name"
    ATIME = "atime"
    MTIME = "mtime"
    USER = "user"
    GROUP = "group"
    SIZE = "size"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_UNSORTED = 8192  # one merge takes less than 10 ms
_LAST_CODE_POINT = 0x10FFFF
_KINDS = tuple(EntryKind)
_UNKNOWN_TIME = -(2**63)
_LAYOUT = struct.Struct("<QqqQIIIHBB")

_Record = tuple[int | str, str, bytes]


class FirstEntries:
    """Collects the first `limit` entries in sort order. Ties are broken by name, ascending.

    Each entry takes about 250 bytes: its sort key, its name and a few packed numbers. At most `unsorted` entries wait
    to be merged into the sorted ones.
    """

    def __init__(
        self, parent: str, sort_by: SortKey, *, descending: bool, limit: int, unsorted: int = _UNSORTED
    ) -> None:
        self.seen = 0
        self._prefix = f"{parent}/" if parent else ""
        self._primary = _primary(sort_by, descending=descending)
        # Names are unique, so they need no inverted sort key.
        self._reverse = descending and sort_by is SortKey.NAME
        self._limit = limit
        self._unsorted = unsorted
        self._sorted_records: list[_Record] = []
        self._fresh: list[_Record] = []
        self._texts: dict[str, int] = {}

    def add(self, entries: Iterable[FileStatus]) -> None:
        for entry in entries:
            self.seen += 1
            key = self._primary(entry), entry.name
            if len(self._sorted_records) >= self._limit:
                last = self._sorted_records[-1][:2]
                if key < last if self._reverse else key > last:
                    continue
            self._fresh.append((*key, self._packed(entry)))
            if len(self._fresh) >= self._unsorted:
                self._merge()

    def window(self, start: int, end: int) -> Sequence[FileStatus]:
        """Return entries [start, end) in sort order; `end` is at most `limit`."""
        self._merge()
        texts = list(self._texts)
        return [self._unpacked(name, packed, texts) for _, name, packed in self._sorted_records[start:end]]

    def _merge(self) -> None:
        # The sort algorithm detects that the first part is already sorted and merges the rest into it.
        self._fresh.sort(reverse=self._reverse)
        self._sorted_records += self._fresh
        self._sorted_records.sort(reverse=self._reverse)
        del self._sorted_records[self._limit :]
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
    """Return the sort key that is compared before the name, inverted for descending order."""
    sign = -1 if descending else 1
    text = _inverted if descending else str
    match sort_by:
        case SortKey.NAME:
            return lambda _: 0
        case SortKey.SIZE:
            return lambda entry: 0 if entry.is_directory else sign * entry.size_bytes
        # Times are compared in whole seconds, as displayed, so entries from the same second are sorted by name.
        case SortKey.ATIME:
            return lambda entry: sign * _seconds(entry.accessed_at, 0)
        case SortKey.MTIME:
            return lambda entry: sign * _seconds(entry.modified_at, 0)
        case SortKey.TYPE:
            return lambda entry: text(entry.kind.value)
        case SortKey.USER:
            return lambda entry: text(entry.owner)
        case SortKey.GROUP:
            return lambda entry: text(entry.group)


@lru_cache(maxsize=1024)
def _inverted(text: str) -> str:
    """Return a text that sorts in reverse order of `text`."""
    last = chr(_LAST_CODE_POINT)
    return "".join(chr(_LAST_CODE_POINT - ord(character)) for character in text) + last


def _seconds(time: datetime | None, unknown: int) -> int:
    return unknown if time is None else (time - _EPOCH) // _SECOND


def _time(seconds: int) -> datetime | None:
    return None if seconds == _UNKNOWN_TIME else _EPOCH + timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class PageStart:
    """Where a page starts in one user's listing, given as the number of matching entries before it."""

    user: str
    path: StoragePath
    filter: str
    entries_before: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A position at or before a page's start: the store's `cursor` after the first `entries_before` entries."""

    entries_before: int
    cursor: str | None


BEGINNING = Mark(0, None)


class Cursors:
    """Caches marks by page start. If a mark is lost, the directory is listed from the beginning."""

    def __init__(
        self, *, max_marks: int = 1000, life_s: float = 300, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._marks = LruCache[PageStart, Mark](max_marks, life_s=life_s, clock=clock)

    def mark(self, start: PageStart) -> Mark:
        return self._marks.get(start) or BEGINNING

    def keep(self, start: PageStart, mark: Mark) -> None:
        """Store a page's mark, evicting the least recently used one if necessary."""
        if mark == BEGINNING:
            self._marks.pop(start)
        else:
            self._marks.put(start, mark)


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The directory entries to return. Page numbers start at 1."""

    number: int = 1
    size: int = 30
    filter: str = ""
    """A case-sensitive substring of the name."""
    sort_by: SortKey = SortKey.NAME
    descending: bool = False

    @property
    def start(self) -> int:
        return (self.number - 1) * self.size

    @property
    def end(self) -> int:
        return self.number * self.size

    @property
    def is_by_name(self) -> bool:
        return self.sort_by is SortKey.NAME and not self.descending


@dataclass(frozen=True, slots=True)
class DirectoryPage:
    """One directory page and the total number of entries."""

    wanted: PageRequest
    entries: Sequence[FileStatus]
    total: int
    """Number of matching entries, or a lower bound unless `total_is_exact`."""
    total_is_exact: bool

    @property
    def pages(self) -> int:
        return max(-(-self.total // self.wanted.size), 1)

    @property
    def previous_number(self) -> int:
        """The previous page, or the last page if this one is past the end; 0 if there is none."""
        return min(self.wanted.number - 1, self.pages)

    @property
    def next_number(self) -> int:
        """The next page, or 0 if there is none."""
        has_next = bool(self.entries) and (self.total > self.wanted.end or not self.total_is_exact)
        return self.wanted.number + 1 if has_next else 0

    @property
    def is_past_the_end(self) -> bool:
        """Whether the page does not exist. The first page always exists."""
        return self.wanted.number > 1 and not self.entries


@dataclass(frozen=True, slots=True)
class ListingLimits:
    """The maximum numbers of entries counted for a total, sorted, and read for sorting."""

    count: int = 100_000
    sort: int = 100_000
    scan: int = 1_000_000


class Listings:
    """Lists directories page by page. `count_s` limits the time spent counting entries after a page; `within_s` limits
    the whole call.
    """

    def __init__(
        self,
        limits: ListingLimits,
        cursors: Cursors | None = None,
        *,
        count_s: float = _COUNT_S,
        within_s: float = _WITHIN_S,
    ) -> None:
        self._limits = limits
        self._cursors = cursors or Cursors()
        self._count_s = count_s
        self._within_s = within_s
        self._large: Counter[int] = Counter()

    async def page(self, caller: Caller, location: Location, wanted: PageRequest) -> DirectoryPage:
        """Return one page of a directory.

        Raises too_many_entries, TooManyRequests, NotADirectory, PathNotFound, PermissionDenied, bucket_listing_denied,
        StorageError.
        """
        try:
            async with asyncio.timeout(self._within_s):
                if wanted.is_by_name and location.file_system.traits.lists_in_order:
                    return await self._in_store_order(caller, location, wanted)
                return await self._sorted(caller, location, wanted)
        except TimeoutError:
            raise StorageUnavailable("The store lists the directory too slowly to reach that page.") from None

    async def _in_store_order(self, caller: Caller, location: Location, wanted: PageRequest) -> DirectoryPage:
        start = PageStart(caller.acting.name, location.path, wanted.filter, wanted.start)
        window = _Window(wanted, self._cursors.mark(start))
        try:
            await self._fill(location, window)
        except StorageUnavailable:
            raise
        except StorageError:
            if window.mark == BEGINNING:
                raise
            # The store rejected the cursor.
            window = _Window(wanted, BEGINNING)
            await self._fill(location, window)
        self._cursors.keep(replace(start, entries_before=wanted.end), window.next_mark)
        return window.page()

    async def _fill(self, location: Location, window: "_Window") -> None:
        batches = location.storage.list_directory(location.path.path, cursor=window.mark.cursor)
        async with aclosing(batches):
            async for batch in batches:
                window.add(batch)
                if window.is_filled:
                    break
            if not window.total_is_exact:
                await self._count(batches, window)

    async def _count(self, batches: AsyncGenerator[Batch], window: "_Window") -> None:
        """Count the entries after the page. Timeouts and errors are ignored because the page is already complete."""
        try:
            async with asyncio.timeout(self._count_s):
                while window.counts_on(self._limits.count) and (batch := await anext(batches, None)):
                    window.add(batch)
        except (TimeoutError, QueryServerError) as error:
            # The error's causes are not logged, because they may contain store addresses (Contract storage S13).
            log.debug("entries not counted to the end", reason=str(error))
        window.cap(self._limits.count)

    async def _sorted(self, caller: Caller, location: Location, wanted: PageRequest) -> DirectoryPage:
        limits = self._limits
        first = FirstEntries(
            location.path.path, wanted.sort_by, descending=wanted.descending, limit=min(wanted.end, limits.sort)
        )
        read = 0
        async with AsyncExitStack() as opened:
            batches = await opened.enter_async_context(aclosing(location.storage.list_directory(location.path.path)))
            async for batch in batches:
                was_small, read = read <= _MANY_ENTRIES, read + len(batch.entries)
                if was_small and read > _MANY_ENTRIES:
                    opened.enter_context(self._large_one(caller))
                if read > limits.scan:
                    raise _too_many(location, f"{limits.scan} entries (listing_scan_limit)", filter_helps=False)
                first.add(_matching(batch, wanted.filter))
                # Batches may be available without waiting, so yield to other tasks.
                await asyncio.sleep(0)
        if first.seen > wanted.start and min(wanted.end, first.seen) > limits.sort:
            raise _too_many(location, f"{limits.sort} sorted entries (listing_sort_limit)", filter_helps=True)
        return DirectoryPage(wanted, first.window(wanted.start, wanted.end), first.seen, total_is_exact=True)

    @contextmanager
    def _large_one(self, caller: Caller) -> Generator[None]:
        number = caller.user.id
        if self._large[number] >= _LARGE_AT_ONCE:
            raise TooManyRequests(f"{_LARGE_AT_ONCE} large directories are being sorted now. Try again later.")
        self._large[number] += 1
        try:
            yield
        finally:
            self._large[number] -= 1
            if not self._large[number]:
                del self._large[number]


class _Window:
    """Collects one page's entries from a listing's batches, and counts all entries."""

    def __init__(self, wanted: PageRequest, mark: Mark) -> None:
        self.mark = mark
        self.next_mark = mark
        """The last batch boundary before the next page."""
        self.total_is_exact = False
        self._wanted = wanted
        self._entries: list[FileStatus] = []
        self._seen = mark.entries_before
        self._total = 0
        self._is_last = False

    @property
    def is_filled(self) -> bool:
        """Whether the page is complete."""
        is_past = self.total_is_exact and self._total <= self._wanted.start
        return self._is_last or is_past or self._seen >= self._wanted.end

    def add(self, batch: Batch) -> None:
        wanted = self._wanted
        matching = _matching(batch, wanted.filter)
        if self._seen < wanted.end:
            self._entries += matching[max(wanted.start - self._seen, 0) : wanted.end - self._seen]
        self._seen += len(matching)
        self._is_last = batch.cursor is None
        if batch.cursor is not None and self._seen <= wanted.end:
            self.next_mark = Mark(self._seen, batch.cursor)
        self.total_is_exact = self._is_last or (batch.remaining is not None and not wanted.filter)
        self._total = self._seen + (0 if self._is_last or wanted.filter else batch.remaining or 0)

    def counts_on(self, limit: int) -> bool:
        """Return whether to read another batch to improve the total."""
        return not self.total_is_exact and self._seen < max(limit, self._wanted.end + 1)

    def cap(self, limit: int) -> None:
        """Stop counting. The total is the number of entries seen, at most `limit`, but never less than the entries up
        to this page.
        """
        if self.total_is_exact and self._seen <= limit:
            return
        self.total_is_exact = False
        self._total = max(min(self._seen, limit), min(self._seen, self._wanted.end + 1))

    def page(self) -> DirectoryPage:
        return DirectoryPage(self._wanted, self._entries, self._total, self.total_is_exact)


def _matching(batch: Batch, part: str) -> Sequence[FileStatus]:
    return [entry for entry in batch.entries if part in entry.name] if part else batch.entries


def _too_many(location: Location, limit: str, *, filter_helps: bool) -> PayloadTooLarge:
    """Return the error with advice. Only stores with ordered listings can return pages by name without reading every
    entry.
    """
    ways = ["a filter"] if filter_helps else []
    if location.file_system.traits.lists_in_order:
        ways.append("sortby=name in ascending order")
    advice = f"Use {', or '.join(ways)}." if ways else "This store has to read them all, whatever the order or filter."
    return too_many_entries(f"The directory has more than {limit}. {advice}")
