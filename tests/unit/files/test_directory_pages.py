"""Pages of directory listings, and the stored cursors from which they continue."""

import asyncio
import gc

import pytest
from structlog.testing import CapturingLogger
from tests.fakes.long_directory import LongDirectory, resident_bytes
from tests.refusals import raises_code

from queryserver.errors.base import TooManyRequests
from queryserver.errors.files import PathNotFound, StorageError, StorageUnavailable
from queryserver.files import directory_pages
from queryserver.files.access import Caller, Location
from queryserver.files.directory_pages import (
    BEGINNING,
    DirectoryPage,
    ListingLimits,
    ListingPosition,
    Listings,
    PageRequest,
    PageStart,
    PositionCache,
    SortKey,
)
from queryserver.files.model import Scheme, StoragePath
from queryserver.identity.model import User

ANA = Caller.of(User(1, "ana"))
BOB = Caller.of(User(2, "bob"))
MIB = 1024 * 1024


def unhurried(**limits: int) -> Listings:
    """Return listings whose time limit is long enough to count all entries on a slow machine."""
    return Listings(ListingLimits(**limits), count_s=600.0)


async def page_of(
    directory: LongDirectory, wanted: PageRequest, listings: Listings | None = None, caller: Caller = ANA
) -> DirectoryPage:
    place = Location(StoragePath(directory.scheme, ""), directory, directory.as_user(caller.acting))
    return await (listings or unhurried()).page(caller, place, wanted)


def numbers(page: DirectoryPage) -> list[int]:
    return [int(entry.name.removesuffix(".csv")) for entry in page.entries]


class TestStoreOrder:
    @pytest.mark.storage(31)
    @pytest.mark.slow
    async def test_total_is_capped_while_every_page_is_reachable(self) -> None:
        directory, listings = LongDirectory(100_001), unhurried()
        first = await page_of(directory, PageRequest(), listings)
        assert (first.total, first.total_is_exact, first.next_number) == (100_000, False, 2)
        before_last = await page_of(directory, PageRequest(3333), listings)
        assert (numbers(before_last)[-1], before_last.next_number) == (99_989, 3334)
        last = await page_of(directory, PageRequest(3334), listings)
        assert numbers(last) == list(range(99_990, 100_001))
        assert (last.total, last.total_is_exact, last.next_number, last.previous_number) == (100_001, True, 0, 3333)

    @pytest.mark.storage(33)
    async def test_first_page_lists_only_the_entries_needed_for_page_and_count(self) -> None:
        directory = LongDirectory(10_000_000)
        page = await page_of(directory, PageRequest(size=10))
        assert (numbers(page), directory.calls) == (list(range(10)), 100)

    @pytest.mark.storage(30)
    async def test_store_reporting_remaining_entries_is_called_once(self) -> None:
        directory = LongDirectory(100_001, Scheme.HDFS, tells_remaining=True)
        first = await page_of(directory, PageRequest())
        assert (first.total, first.total_is_exact, first.pages, directory.calls) == (100_001, True, 3334, 1)
        last = await page_of(directory, PageRequest(3334))
        assert (numbers(last)[-1], len(last.entries), last.total, last.next_number) == (100_000, 11, 100_001, 0)

    async def test_page_beyond_a_known_end_is_not_searched(self) -> None:
        directory = LongDirectory(100_001, Scheme.HDFS, tells_remaining=True)
        page = await page_of(directory, PageRequest(10**9))
        assert (page.entries, page.is_past_the_end, page.total, directory.calls) == ([], True, 100_001, 1)

    async def test_filtered_listing_counts_the_remaining_entries(self) -> None:
        directory = LongDirectory(3000, Scheme.HDFS, tells_remaining=True)
        page = await page_of(directory, PageRequest(2, 3, filter="99.c"))
        assert (numbers(page), page.total, page.total_is_exact) == ([399, 499, 599], 30, True)

    @pytest.mark.storage(33)
    @pytest.mark.parametrize("part", ["", "7"])
    async def test_page_is_the_same_from_its_stored_position_and_from_the_start(self, part: str) -> None:
        directory, warm = LongDirectory(4345), unhurried()
        for number in range(1, 7):
            wanted = PageRequest(number, 797, filter=part)
            page = await page_of(directory, wanted, warm)
            assert page == await page_of(directory, wanted)
        assert any(directory.cursors)

    async def test_next_page_starts_at_its_stored_position(self) -> None:
        directory, listings = LongDirectory(5000), unhurried(count=1)
        for number in (1, 2, 3):
            await page_of(directory, PageRequest(number, 1500), listings)
        assert (directory.cursors, directory.calls) == ([None, "1000", "3000"], 2 + 3 + 2)

    async def test_positions_belong_to_one_user_and_filter(self) -> None:
        directory, listings = LongDirectory(5000), unhurried()
        await page_of(directory, PageRequest(1, 1500), listings)
        await page_of(directory, PageRequest(2, 1500), listings, BOB)
        await page_of(directory, PageRequest(2, 1500, filter="0"), listings)
        assert directory.cursors == [None, None, None]

    async def test_listing_restarts_if_the_store_rejects_the_cursor(self) -> None:
        directory, listings = LongDirectory(5000), unhurried()
        await page_of(directory, PageRequest(1, 1500), listings)
        directory.unknown, directory.failure = {"1000"}, StorageError("The token is not valid.")
        page = await page_of(directory, PageRequest(2, 1500), listings)
        assert numbers(page) == list(range(1500, 3000))
        assert directory.cursors == [None, "1000", None]

    async def test_unavailable_store_is_not_called_again(self) -> None:
        directory, listings = LongDirectory(5000), unhurried()
        await page_of(directory, PageRequest(1, 1500), listings)
        directory.unknown, directory.failure = {"1000"}, StorageUnavailable("No answer.")
        with pytest.raises(StorageUnavailable):
            await page_of(directory, PageRequest(2, 1500), listings)
        assert directory.cursors == [None, "1000"]

    async def test_counting_stops_after_its_time_limit(self) -> None:
        directory = LongDirectory(100_000)
        directory.late_after = 3
        async with asyncio.timeout(30):
            page = await page_of(directory, PageRequest(), Listings(ListingLimits(), count_s=0.05))
        assert (len(page.entries), page.total, page.total_is_exact, page.next_number) == (30, 3000, False, 2)

    async def test_store_failure_during_the_count_keeps_the_page(self) -> None:
        directory = LongDirectory(100_000)
        directory.fails_after, directory.failure = 2, StorageUnavailable("No answer.")
        page = await page_of(directory, PageRequest())
        assert (len(page.entries), page.total, page.total_is_exact) == (30, 2000, False)

    async def test_directory_deleted_during_the_count_keeps_the_page(self) -> None:
        directory = LongDirectory(100_000)
        directory.fails_after, directory.failure = 2, PathNotFound("It is gone.")
        page = await page_of(directory, PageRequest())
        assert (len(page.entries), page.total, page.total_is_exact) == (30, 2000, False)

    @pytest.mark.security("S13")
    async def test_failed_count_is_logged_without_addresses(self, monkeypatch) -> None:
        directory = LongDirectory(100_000)
        directory.fails_after, directory.failure = 2, StorageUnavailable("No answer.")
        directory.failure.__cause__ = ConnectionError("https://internal.example:9870")
        captured = CapturingLogger()
        monkeypatch.setattr(directory_pages, "log", captured)
        await page_of(directory, PageRequest())
        assert [(call.method_name, call.kwargs) for call in captured.calls] == [("debug", {"reason": "No answer."})]

    async def test_store_failure_before_the_page_is_complete_fails_the_call(self) -> None:
        directory = LongDirectory(100_000)
        directory.fails_after, directory.failure = 2, StorageError("Out of order.")
        with pytest.raises(StorageError):
            await page_of(directory, PageRequest(1, 2500))

    @pytest.mark.storage(9)
    @pytest.mark.parametrize("wanted", [PageRequest(10**9), PageRequest(sort_by=SortKey.SIZE)])
    async def test_slow_listing_is_abandoned(self, wanted: PageRequest) -> None:
        directory = LongDirectory(10**9)
        directory.late_after = 3
        async with asyncio.timeout(30):
            with pytest.raises(StorageUnavailable, match="in time"):
                await page_of(directory, wanted, Listings(ListingLimits(), within_s=0.05))

    @pytest.mark.parametrize(
        ("entries", "limit", "size", "total", "is_exact", "next_number"),
        [
            (3000, 2000, 1000, 2000, False, 2),  # the count ends at its limit
            (3000, 2000, 2000, 2001, False, 2),  # the page ends at the limit and is not the last
            (3000, 100, 1500, 1501, False, 2),  # the page is larger than the count limit
            (2000, 2000, 2000, 2000, True, 0),  # the limit, the page and the directory end at the same entry
            (2000, 100, 2000, 2000, True, 0),
            (2001, 2000, 30, 2000, False, 2),
        ],
    )
    async def test_total_covers_at_least_the_shown_page(self, entries, limit, size, total, is_exact, next_number):
        page = await page_of(LongDirectory(entries), PageRequest(size=size), unhurried(count=limit))
        assert (page.total, page.total_is_exact, page.next_number) == (total, is_exact, next_number)


class TestOtherOrders:
    @pytest.mark.storage(32)
    @pytest.mark.slow
    async def test_first_page_by_size_of_200000_entries_is_correct(self) -> None:
        directory = LongDirectory(200_000)
        page = await page_of(directory, PageRequest(sort_by=SortKey.SIZE, descending=True))
        best = sorted(range(200_000), key=lambda n: (-(n * 7919 % 100_003), n))[:30]
        assert numbers(page) == best
        assert (page.total, page.total_is_exact) == (200_000, True)

    @pytest.mark.storage(32)
    async def test_page_beyond_the_sort_limit_is_rejected(self) -> None:
        directory, listings = LongDirectory(200), unhurried(sort=100)
        wanted = PageRequest(2, 50, sort_by=SortKey.SIZE)
        assert len((await page_of(directory, wanted, listings)).entries) == 50
        for number, size in ((3, 50), (1, 101), (2, 51)):
            with raises_code("too_many_entries", match=r"100 .*listing_sort_limit.*filter.*sortby=name"):
                await page_of(directory, PageRequest(number, size, sort_by=SortKey.SIZE), listings)

    async def test_sort_limit_does_not_apply_to_a_small_directory(self) -> None:
        directory, listings = LongDirectory(100), unhurried(sort=100)
        assert len((await page_of(directory, PageRequest(1, 9000, sort_by=SortKey.SIZE), listings)).entries) == 100
        past = await page_of(directory, PageRequest(999, 30, sort_by=SortKey.SIZE), listings)
        assert (past.is_past_the_end, past.total, past.previous_number) == (True, 100, 4)

    @pytest.mark.storage(32)
    async def test_directory_beyond_the_scan_limit_is_rejected(self) -> None:
        listings = unhurried(scan=2500)
        wanted = PageRequest(sort_by=SortKey.MTIME)
        assert (await page_of(LongDirectory(2500), wanted, listings)).total == 2500
        directory = LongDirectory(50_000)
        with raises_code("too_many_entries", match=r"2500 .*listing_scan_limit\). Use sortby=name in"):
            await page_of(directory, wanted, listings)
        assert directory.calls == 3

    async def test_unordered_store_gets_no_advice_to_sort(self) -> None:
        directory = LongDirectory(3000, Scheme.FILE, in_order=False)
        with raises_code("too_many_entries", match=r"listing_scan_limit\). This store reads all entries"):
            await page_of(directory, PageRequest(), unhurried(scan=2500))
        with raises_code("too_many_entries", match=r"listing_sort_limit\). Use a filter\.$"):
            await page_of(directory, PageRequest(1, 200), unhurried(sort=100))

    async def test_unordered_store_is_sorted_by_name(self) -> None:
        directory = LongDirectory(3500, Scheme.FILE, in_order=False)
        page = await page_of(directory, PageRequest(2, 10))
        assert (numbers(page), page.total, page.total_is_exact) == (list(range(10, 20)), 3500, True)

    async def test_filter_applies_before_order_and_page(self) -> None:
        directory = LongDirectory(3500)
        page = await page_of(directory, PageRequest(2, 2, filter="99.", sort_by=SortKey.NAME, descending=True))
        assert (numbers(page), page.total) == ([3299, 3199], 35)

    @pytest.mark.security("S10")
    @pytest.mark.slow
    async def test_user_sorts_four_large_directories_at_a_time(self) -> None:
        listings, wanted = unhurried(), PageRequest(sort_by=SortKey.SIZE)
        large = [page_of(LongDirectory(20_000), wanted, listings) for _ in range(6)]
        small = [page_of(LongDirectory(10_000), wanted, listings) for _ in range(2)]
        other = page_of(LongDirectory(20_000), wanted, listings, BOB)
        found = await asyncio.gather(*large, *small, other, return_exceptions=True)
        assert [type(one) for one in found] == [DirectoryPage] * 4 + [TooManyRequests] * 2 + [DirectoryPage] * 3
        assert (await page_of(LongDirectory(20_000), wanted, listings)).total == 20_000


@pytest.mark.security("S10")
@pytest.mark.parametrize(
    "wanted", [PageRequest(20, 10_000), PageRequest(10, 10_000, sort_by=SortKey.MTIME, descending=True)]
)
@pytest.mark.slow
async def test_directory_of_200000_entries_is_listed_in_bounded_memory(wanted: PageRequest) -> None:
    directory = LongDirectory(200_000)
    gc.collect()
    before = directory.peak_bytes = resident_bytes()
    page = await page_of(directory, wanted)
    assert len(page.entries) == 10_000
    assert max(directory.peak_bytes, resident_bytes()) - before < 60 * MIB


PATH = StoragePath(Scheme.S3A, "b")


def start(entries_before: int, *, user: str = "ana", part: str = "", path: StoragePath = PATH) -> PageStart:
    return PageStart(user, path, part, entries_before)


class Clock:
    """A clock that returns `now`, which only the test changes."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_position_is_found_by_user_path_filter_and_page() -> None:
    positions = PositionCache()
    positions.put(start(30), ListingPosition(20, "token"))
    assert positions.get(start(30)) == ListingPosition(20, "token")
    for other in (start(60), start(30, user="bob"), start(30, part="x"), start(30, path=PATH.child("c"))):
        assert positions.get(other) == BEGINNING


def test_position_expires_after_five_minutes() -> None:
    clock = Clock()
    positions = PositionCache(clock=clock)
    positions.put(start(30), ListingPosition(20, "token"))
    clock.now = 299.9
    assert positions.get(start(30)) == ListingPosition(20, "token")
    clock.now = 300
    assert positions.get(start(30)) == BEGINNING


def test_least_recently_used_position_is_evicted() -> None:
    positions = PositionCache(max_positions=3)
    for page in (1, 2, 3):
        positions.put(start(page), ListingPosition(page, f"token{page}"))
    positions.get(start(1))
    positions.put(start(4), ListingPosition(4, "token4"))
    assert [positions.get(start(page)).cursor for page in (1, 2, 3, 4)] == ["token1", None, "token3", "token4"]


def test_position_at_the_beginning_is_not_stored() -> None:
    positions = PositionCache(max_positions=1)
    positions.put(start(30), ListingPosition(20, "token"))
    positions.put(start(60), BEGINNING)
    assert positions.get(start(30)) == ListingPosition(20, "token")
    positions.put(start(30), BEGINNING)
    assert positions.get(start(30)) == BEGINNING
