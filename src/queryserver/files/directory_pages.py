"""Paged directory listings (Contract storage 5.2).

A listing in the store's own order keeps one page and one batch in memory. A listing in any other order keeps all
entries up to the end of the page in memory, in packed form.
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
from queryserver.platform.caches import LruCache

_COUNT_TIMEOUT_S = 5.0
# Limits the time for the whole call: to reach a distant page, the store must list all entries before it, even if the
# client has disconnected.
_TIMEOUT_S = 300.0
# Sorting more than 10,000 entries takes up to 25 MiB and several seconds, so each user may run only four such listings
# at a time.
_LARGE_LISTING_ENTRIES = 10_000
_MAX_LARGE_LISTINGS = 4

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
_UNSORTED = 8192  # merging this many entries takes less than 10 ms
_LAST_CODE_POINT = 0x10FFFF
_KINDS = tuple(EntryKind)
_UNKNOWN_TIME = -(2**63)
_LAYOUT = struct.Struct("<QqqQIIIHBB")

_Record = tuple[int | str, str, bytes]


class SortedEntries:
    """Keeps the first `limit` of all added entries in sort order. Ties are broken by name, ascending.

    Each entry takes about 250 bytes: its sort key, its name and its packed attributes. New entries are merged into the
    sorted ones in batches of `unsorted`.
    """

    def __init__(
        self, parent: str, sort_by: SortKey, *, descending: bool, limit: int, unsorted: int = _UNSORTED
    ) -> None:
        self.seen = 0
        self._prefix = f"{parent}/" if parent else ""
        self._sort_key = _sort_key(sort_by, descending=descending)
        # Names are unique, so the order can simply be reversed; other keys are inverted so that ties stay in ascending
        # order.
        self._reverse = descending and sort_by is SortKey.NAME
        self._limit = limit
        self._unsorted = unsorted
        self._sorted_records: list[_Record] = []
        self._unmerged: list[_Record] = []
        self._texts: dict[str, int] = {}

    def add(self, entries: Iterable[FileStatus]) -> None:
        for entry in entries:
            self.seen += 1
            key = self._sort_key(entry), entry.name
            if len(self._sorted_records) >= self._limit:
                last = self._sorted_records[-1][:2]
                if key < last if self._reverse else key > last:
                    continue
            self._unmerged.append((*key, self._pack(entry)))
            if len(self._unmerged) >= self._unsorted:
                self._merge()

    def window(self, start: int, end: int) -> Sequence[FileStatus]:
        """Return entries [start, end) in sort order; `end` is at most `limit`."""
        self._merge()
        texts = list(self._texts)
        return [self._unpack(name, packed, texts) for _, name, packed in self._sorted_records[start:end]]

    def _merge(self) -> None:
        # Timsort detects the two sorted runs and merges them in linear time.
        self._unmerged.sort(reverse=self._reverse)
        self._sorted_records += self._unmerged
        self._sorted_records.sort(reverse=self._reverse)
        del self._sorted_records[self._limit :]
        self._unmerged.clear()

    def _pack(self, entry: FileStatus) -> bytes:
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

    def _unpack(self, name: str, packed: bytes, texts: Sequence[str]) -> FileStatus:
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


def _sort_key(sort_by: SortKey, *, descending: bool) -> Callable[[FileStatus], int | str]:
    """Return a function that computes an entry's sort key, inverted for descending order. Names break ties."""
    sign = -1 if descending else 1
    text = _inverted if descending else str
    match sort_by:
        case SortKey.NAME:
            return lambda _: 0
        case SortKey.SIZE:
            return lambda entry: 0 if entry.is_directory else sign * entry.size_bytes
        # Times are compared in whole seconds, as displayed, so entries within the same second are sorted by name.
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
    """Return a string such that inverted strings sort in the reverse order of the originals."""
    last = chr(_LAST_CODE_POINT)
    return "".join(chr(_LAST_CODE_POINT - ord(character)) for character in text) + last


def _seconds(time: datetime | None, unknown: int) -> int:
    return unknown if time is None else (time - _EPOCH) // _SECOND


def _time(seconds: int) -> datetime | None:
    return None if seconds == _UNKNOWN_TIME else _EPOCH + timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class PageStart:
    """The start of a page in one user's filtered listing: the number of matching entries before the page."""

    user: str
    path: StoragePath
    filter: str
    entries_before: int


@dataclass(frozen=True, slots=True)
class ListingPosition:
    """Where to resume a listing: the store's `cursor` after the first `entries_before` matching entries."""

    entries_before: int
    cursor: str | None


BEGINNING = ListingPosition(0, None)


class PositionCache:
    """Caches a resume position for each page start. Without a cached position, the listing starts at the beginning."""

    def __init__(
        self, *, max_positions: int = 1000, life_s: float = 300, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._positions = LruCache[PageStart, ListingPosition](max_positions, life_s=life_s, clock=clock)

    def get(self, start: PageStart) -> ListingPosition:
        return self._positions.get(start) or BEGINNING

    def put(self, start: PageStart, position: ListingPosition) -> None:
        """Store the position from which to list a page. The least recently used position may be evicted."""
        if position == BEGINNING:
            self._positions.pop(start)
        else:
            self._positions.put(start, position)


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The requested page of a directory listing. Page numbers start at 1."""

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
    """One page of a directory listing, with the total number of matching entries."""

    request: PageRequest
    entries: Sequence[FileStatus]
    total: int
    """Number of matching entries; only a lower bound unless `total_is_exact` is set."""
    total_is_exact: bool

    @property
    def pages(self) -> int:
        return max(-(-self.total // self.request.size), 1)

    @property
    def previous_number(self) -> int:
        """Number of the previous page, or of the last page if this page is past the end; 0 on the first page."""
        return min(self.request.number - 1, self.pages)

    @property
    def next_number(self) -> int:
        """Number of the next page, or 0 if there is none."""
        has_next = bool(self.entries) and (self.total > self.request.end or not self.total_is_exact)
        return self.request.number + 1 if has_next else 0

    @property
    def is_past_the_end(self) -> bool:
        """Whether the page does not exist. The first page always exists."""
        return self.request.number > 1 and not self.entries


@dataclass(frozen=True, slots=True)
class ListingLimits:
    """Maximum numbers of entries."""

    count: int = 100_000
    """Maximum number of entries that are counted to determine the total."""
    sort: int = 100_000
    """Maximum number of entries that are kept in sort order."""
    scan: int = 1_000_000
    """Maximum number of entries that are read for a sorted listing."""


class Listings:
    """Lists directories page by page. `count_s` limits the time for counting the entries after the page, and `within_s`
    the time for the whole call.
    """

    def __init__(
        self,
        limits: ListingLimits,
        positions: PositionCache | None = None,
        *,
        count_s: float = _COUNT_TIMEOUT_S,
        within_s: float = _TIMEOUT_S,
    ) -> None:
        self._limits = limits
        self._positions = positions or PositionCache()
        self._count_s = count_s
        self._within_s = within_s
        self._large: Counter[int] = Counter()

    async def page(self, caller: Caller, location: Location, request: PageRequest) -> DirectoryPage:
        """Return one page of a directory.

        Raises too_many_entries, TooManyRequests, NotADirectory, PathNotFound, PermissionDenied, bucket_listing_denied,
        StorageError.
        """
        try:
            async with asyncio.timeout(self._within_s):
                if request.is_by_name and location.file_system.traits.lists_in_order:
                    return await self._in_store_order(caller, location, request)
                return await self._sorted(caller, location, request)
        except TimeoutError:
            raise StorageUnavailable("The store did not list the directory up to this page in time.") from None

    async def _in_store_order(self, caller: Caller, location: Location, request: PageRequest) -> DirectoryPage:
        start = PageStart(caller.acting.name, location.path, request.filter, request.start)
        window = _Window(request, self._positions.get(start))
        try:
            await self._fill(location, window)
        except StorageUnavailable:
            raise
        except StorageError:
            if window.position == BEGINNING:
                raise
            # The store rejected the cursor.
            window = _Window(request, BEGINNING)
            await self._fill(location, window)
        self._positions.put(replace(start, entries_before=request.end), window.next_position)
        return window.page()

    async def _fill(self, location: Location, window: "_Window") -> None:
        batches = location.storage.list_directory(location.path.path, cursor=window.position.cursor)
        async with aclosing(batches):
            async for batch in batches:
                window.add(batch)
                if window.is_filled:
                    break
            if not window.total_is_exact:
                await self._count(batches, window)

    async def _count(self, batches: AsyncGenerator[Batch], window: "_Window") -> None:
        """Count the entries after the page. The page is complete, so timeouts and errors only make the total
        inexact.
        """
        try:
            async with asyncio.timeout(self._count_s):
                while window.needs_count(self._limits.count) and (batch := await anext(batches, None)):
                    window.add(batch)
        except (TimeoutError, QueryServerError) as error:
            # The exception chain is not logged, because it may contain store addresses (Contract storage S13).
            log.debug("directory entry count incomplete", reason=str(error))
        window.cap(self._limits.count)

    async def _sorted(self, caller: Caller, location: Location, request: PageRequest) -> DirectoryPage:
        limits = self._limits
        first = SortedEntries(
            location.path.path, request.sort_by, descending=request.descending, limit=min(request.end, limits.sort)
        )
        read = 0
        async with AsyncExitStack() as opened:
            batches = await opened.enter_async_context(aclosing(location.storage.list_directory(location.path.path)))
            async for batch in batches:
                was_small, read = read <= _LARGE_LISTING_ENTRIES, read + len(batch.entries)
                if was_small and read > _LARGE_LISTING_ENTRIES:
                    opened.enter_context(self._large_listing(caller))
                if read > limits.scan:
                    raise _too_many(location, f"{limits.scan} entries (listing_scan_limit)", filter_helps=False)
                first.add(_matching(batch, request.filter))
                # If batches arrive without waiting, this is the only point at which other tasks can run.
                await asyncio.sleep(0)
        if first.seen > request.start and min(request.end, first.seen) > limits.sort:
            raise _too_many(location, f"{limits.sort} sorted entries (listing_sort_limit)", filter_helps=True)
        return DirectoryPage(request, first.window(request.start, request.end), first.seen, total_is_exact=True)

    @contextmanager
    def _large_listing(self, caller: Caller) -> Generator[None]:
        number = caller.user.id
        if self._large[number] >= _MAX_LARGE_LISTINGS:
            raise TooManyRequests(
                f"You already have {_MAX_LARGE_LISTINGS} listings of large directories in progress. Try again later."
            )
        self._large[number] += 1
        try:
            yield
        finally:
            self._large[number] -= 1
            if not self._large[number]:
                del self._large[number]


class _Window:
    """Collects the entries of one page from the batches of a listing, and counts all matching entries."""

    def __init__(self, request: PageRequest, position: ListingPosition) -> None:
        self.position = position
        self.next_position = position
        """The last batch boundary at or before the start of the next page."""
        self.total_is_exact = False
        self._request = request
        self._entries: list[FileStatus] = []
        self._seen = position.entries_before
        self._total = 0
        self._is_last = False

    @property
    def is_filled(self) -> bool:
        """Whether the page is complete."""
        is_past = self.total_is_exact and self._total <= self._request.start
        return self._is_last or is_past or self._seen >= self._request.end

    def add(self, batch: Batch) -> None:
        request = self._request
        matching = _matching(batch, request.filter)
        if self._seen < request.end:
            self._entries += matching[max(request.start - self._seen, 0) : request.end - self._seen]
        self._seen += len(matching)
        self._is_last = batch.cursor is None
        if batch.cursor is not None and self._seen <= request.end:
            self.next_position = ListingPosition(self._seen, batch.cursor)
        self.total_is_exact = self._is_last or (batch.remaining is not None and not request.filter)
        self._total = self._seen + (0 if self._is_last or request.filter else batch.remaining or 0)

    def needs_count(self, limit: int) -> bool:
        """Return whether to read another batch to improve the total."""
        return not self.total_is_exact and self._seen < max(limit, self._request.end + 1)

    def cap(self, limit: int) -> None:
        """Stop counting. Unless the total is already exact and within `limit`, replace it with a lower bound: the
        number of entries seen, capped at `limit` but large enough to show whether a next page exists.
        """
        if self.total_is_exact and self._seen <= limit:
            return
        self.total_is_exact = False
        self._total = max(min(self._seen, limit), min(self._seen, self._request.end + 1))

    def page(self) -> DirectoryPage:
        return DirectoryPage(self._request, self._entries, self._total, self.total_is_exact)


def _matching(batch: Batch, substring: str) -> Sequence[FileStatus]:
    return [entry for entry in batch.entries if substring in entry.name] if substring else batch.entries


def _too_many(location: Location, limit: str, *, filter_helps: bool) -> PayloadTooLarge:
    """Return the error, with advice on how to stay below the limit. Listings by name avoid sorting only in stores that
    list in name order.
    """
    suggestions = ["a filter"] if filter_helps else []
    if location.file_system.traits.lists_in_order:
        suggestions.append("sortby=name in ascending order")
    advice = (
        f"Use {', or '.join(suggestions)}."
        if suggestions
        else "This store reads all entries for every sort order and filter."
    )
    return too_many_entries(f"The directory has more than {limit}. {advice}")
