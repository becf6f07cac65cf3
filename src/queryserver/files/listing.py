"""Pages of directories (Contract storage 5.2).

In the store's own order a listing holds one page and one batch of the store; in any other order, the entries up to the
end of the page.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass, replace

import structlog

from queryserver.errors.base import PayloadTooLarge, QueryServerError, TooManyRequests
from queryserver.errors.files import StorageError, StorageUnavailable, too_many_entries
from queryserver.files.model import FileStatus, StoragePath
from queryserver.files.places import Caller, Place
from queryserver.files.protocol import Batch
from queryserver.files.sorting import FirstEntries, SortKey
from queryserver.platform.lru import LruCache


@dataclass(frozen=True, slots=True)
class PageStart:
    """The start of a page of one user's listing, as the number of matching entries before it."""

    user: str
    path: StoragePath
    filter: str
    entries_before: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A place at or before the start of a page: `cursor` of the store behind the first `entries_before` entries."""

    entries_before: int
    cursor: str | None


BEGINNING = Mark(0, None)


class Cursors:
    """Marks by the pages that they lead to. One that is gone costs a listing from the beginning, nothing else."""

    def __init__(
        self, *, max_marks: int = 1000, life_s: float = 300, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._marks = LruCache[PageStart, Mark](max_marks, life_s=life_s, clock=clock)

    def mark(self, start: PageStart) -> Mark:
        """The mark from which a page is read."""
        return self._marks.get(start) or BEGINNING

    def keep(self, start: PageStart, mark: Mark) -> None:
        """Keep the mark of a page; the one that was asked for longest ago makes room."""
        if mark == BEGINNING:
            self._marks.pop(start)
        else:
            self._marks.put(start, mark)


_COUNT_S = 5.0
# A page far behind the beginning costs all calls up to it, also for a caller who has left long ago.
_WITHIN_S = 300.0
# A listing that sorts more entries than these holds up to 25 MiB, and takes seconds: a user has so many at a time.
_MANY_ENTRIES = 10_000
_LARGE_AT_ONCE = 4

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PageWanted:
    """Which entries of a directory are asked for. Pages begin at 1."""

    number: int = 1
    size: int = 30
    filter: str = ""
    """A part of the name, case counts."""
    sort_by: SortKey = SortKey.NAME
    descending: bool = False

    @property
    def start(self) -> int:
        """How many entries come before the page."""
        return (self.number - 1) * self.size

    @property
    def end(self) -> int:
        """How many entries come before the next page."""
        return self.number * self.size

    @property
    def is_by_name(self) -> bool:
        """Whether it is the order in which stores list."""
        return self.sort_by is SortKey.NAME and not self.descending


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a directory, and how much of it there is."""

    wanted: PageWanted
    entries: Sequence[FileStatus]
    total: int
    """Matching entries; at least so many when they were not counted to the end."""
    total_is_exact: bool

    @property
    def pages(self) -> int:
        """How many pages there are, at least one."""
        return max(-(-self.total // self.wanted.size), 1)

    @property
    def previous_number(self) -> int:
        """The page before; behind the end, the last one there is; 0: none."""
        return min(self.wanted.number - 1, self.pages)

    @property
    def next_number(self) -> int:
        """The next page; 0: none."""
        has_next = bool(self.entries) and (self.total > self.wanted.end or not self.total_is_exact)
        return self.wanted.number + 1 if has_next else 0

    @property
    def is_past_the_end(self) -> bool:
        """Whether there is no such page; the first one always is."""
        return self.wanted.number > 1 and not self.entries


@dataclass(frozen=True, slots=True)
class ListingLimits:
    """Numbers of entries: how many are counted for a total, sorted, and looked at in order to sort them."""

    count: int = 100_000
    sort: int = 100_000
    scan: int = 1_000_000


class Listings:
    """Gives pages of directories. `count_s`: how long entries behind a page are counted; `within_s`: the whole call."""

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

    async def page(self, caller: Caller, place: Place, wanted: PageWanted) -> Page:
        """One page of a directory.

        Raises too_many_entries, TooManyRequests, NotADirectory, PathNotFound, PermissionDenied, bucket_listing_denied,
        StorageError.
        """
        is_served_in_order = wanted.is_by_name and place.file_system.traits.lists_in_order
        try:
            async with asyncio.timeout(self._within_s):
                if is_served_in_order:
                    return await self._in_store_order(caller, place, wanted)
                return await self._sorted(caller, place, wanted)
        except TimeoutError:
            raise StorageUnavailable("The store lists the directory too slowly to reach that page.") from None

    async def _in_store_order(self, caller: Caller, place: Place, wanted: PageWanted) -> Page:
        start = PageStart(caller.acting.name, place.path, wanted.filter, wanted.start)
        window = _Window(wanted, self._cursors.mark(start))
        try:
            await self._fill(place, window)
        except StorageUnavailable:
            raise
        except StorageError:
            if window.mark == BEGINNING:
                raise
            # The store no longer knows the cursor.
            window = _Window(wanted, BEGINNING)
            await self._fill(place, window)
        self._cursors.keep(replace(start, entries_before=wanted.end), window.next_mark)
        return window.page()

    async def _fill(self, place: Place, window: "_Window") -> None:
        batches = place.storage.list_directory(place.path.path, cursor=window.mark.cursor)
        async with aclosing(batches):
            async for batch in batches:
                window.add(batch)
                if window.is_filled:
                    break
            if not window.total_is_exact:
                await self._count(batches, window)

    async def _count(self, batches: AsyncGenerator[Batch], window: "_Window") -> None:
        """Count on behind the page. The page is there already, so neither time nor a failure ends the call."""
        try:
            async with asyncio.timeout(self._count_s):
                while window.counts_on(self._limits.count) and (batch := await anext(batches, None)):
                    window.add(batch)
        except (TimeoutError, QueryServerError) as error:
            # Without the causes of the error: they may hold addresses of the store (Contract storage S13).
            log.debug("entries not counted to the end", reason=str(error))
        window.cap(self._limits.count)

    async def _sorted(self, caller: Caller, place: Place, wanted: PageWanted) -> Page:
        limits = self._limits
        first = FirstEntries(
            place.path.path, wanted.sort_by, descending=wanted.descending, limit=min(wanted.end, limits.sort)
        )
        looked_at = 0
        async with AsyncExitStack() as opened:
            batches = await opened.enter_async_context(aclosing(place.storage.list_directory(place.path.path)))
            async for batch in batches:
                was_small, looked_at = looked_at <= _MANY_ENTRIES, looked_at + len(batch.entries)
                if was_small and looked_at > _MANY_ENTRIES:
                    opened.enter_context(self._large_one(caller))
                if looked_at > limits.scan:
                    raise _too_many(place, f"{limits.scan} entries (listing_scan_limit)", filter_helps=False)
                first.add(_matching(batch, wanted.filter))
                # A batch may be at hand at once; others get their turn all the same.
                await asyncio.sleep(0)
        if first.seen > wanted.start and min(wanted.end, first.seen) > limits.sort:
            raise _too_many(place, f"{limits.sort} sorted entries (listing_sort_limit)", filter_helps=True)
        return Page(wanted, first.window(wanted.start, wanted.end), first.seen, total_is_exact=True)

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
    """Takes the batches of a listing in their order, keeps the entries of one page and counts."""

    def __init__(self, wanted: PageWanted, mark: Mark) -> None:
        self.mark = mark
        self.next_mark = mark
        """The last border between batches that lies before the next page."""
        self.total_is_exact = False
        self._wanted = wanted
        self._entries: list[FileStatus] = []
        self._seen = mark.entries_before
        self._total = 0
        self._is_last = False

    @property
    def is_filled(self) -> bool:
        """Whether the page needs no further batch."""
        is_past = self.total_is_exact and self._total <= self._wanted.start
        return self._is_last or is_past or self._seen >= self._wanted.end

    def add(self, batch: Batch) -> None:
        """Take the next batch."""
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
        """Whether another batch would tell more about the total."""
        return not self.total_is_exact and self._seen < max(limit, self._wanted.end + 1)

    def cap(self, limit: int) -> None:
        """No more is counted: the total is what was, up to `limit`, and at least what the page shows."""
        if self.total_is_exact and self._seen <= limit:
            return
        self.total_is_exact = False
        self._total = max(min(self._seen, limit), min(self._seen, self._wanted.end + 1))

    def page(self) -> Page:
        """What was gathered."""
        return Page(self._wanted, self._entries, self._total, self.total_is_exact)


def _matching(batch: Batch, part: str) -> Sequence[FileStatus]:
    return [entry for entry in batch.entries if part in entry.name] if part else batch.entries


def _too_many(place: Place, limit: str, *, filter_helps: bool) -> PayloadTooLarge:
    """With what the caller can do: only stores that list in order give pages by name without reading every entry."""
    ways = ["a filter"] if filter_helps else []
    if place.file_system.traits.lists_in_order:
        ways.append("sortby=name in ascending order")
    advice = f"Use {', or '.join(ways)}." if ways else "This store has to read them all, whatever the order or filter."
    return too_many_entries(f"The directory has more than {limit}. {advice}")
