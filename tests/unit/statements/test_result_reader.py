"""Result pages: which segments are read, how much memory is reserved, and in which thread the work runs (Contract
editor 6).
"""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import orjson
import pyarrow as pa
import pytest
from tests.fakes.results import MemoryResults

from queryserver.errors.base import ServiceUnavailable
from queryserver.errors.files import PathNotFound
from queryserver.errors.statements import PageRowTooLarge
from queryserver.formats.arrow import Column, ResultType, encode
from queryserver.identity.model import User
from queryserver.platform.fair_queue import ByteBudget
from queryserver.results.segments import Segment
from queryserver.statements.model import StatementStatus, StatementTimes, StoredResult
from queryserver.statements.result_reader import PageRequest, ResultPage, ResultReader
from queryserver.statements.running_statements import StateSignals
from queryserver.statements.states import StatementState

OPERATION = uuid4()
ANA = User(1, "ana", groups=frozenset(), is_admin=False)
TEXT = Column("c", ResultType.STRING, "VARCHAR")


def status(state: StatementState, rows: int) -> StatementStatus:
    return StatementStatus(
        id=OPERATION,
        history_id=1,
        user_id=1,
        connector="duckdb",
        dialect="duckdb",
        state=state,
        has_result_set=True,
        rows=rows,
        truncated_reason=None,
        modified_row_count=None,
        error_code=None,
        message="",
        progress=0,
        expires_at=None,
        owner=None,
        times=StatementTimes(datetime.now(UTC), None, None, timedelta(0), timedelta(0)),
        outcome=(-3, "closed") if state is StatementState.CLOSED else None,
    )


@dataclass
class Recorded:
    """The successive records of one statement; the last one is returned repeatedly."""

    looks: list[StoredResult]

    async def stored_result(
        self,
        statement_id: UUID,
        *,
        start_row: int | None,
        rows: int,
        used_by: int | None = None,
        taken_by: int | None = None,
    ) -> StoredResult:
        assert taken_by == (ANA.id if start_row is None else None)
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]


class Unmoved:
    """Cursors that must not move, because every page request specifies its first row."""

    async def move(self, statement_id: UUID, *, expected: int | None, to: int) -> bool:
        raise AssertionError


class Cursor:
    """A cursor that accepts every move and records it as (expected row, target row)."""

    def __init__(self) -> None:
        self.moves: list[tuple[int | None, int]] = []

    async def move(self, statement_id: UUID, *, expected: int | None, to: int) -> bool:
        self.moves.append((expected, to))
        return True


class Everybody:
    """Access rules that allow every user to read every result."""

    async def require_result_reader(self, user: User, status: StatementStatus) -> None:
        pass


@dataclass
class CountedResults(MemoryResults):
    """A result store that records which segments are read."""

    reads: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    async def read(self, statement_id: UUID, *, fence: int, number: int) -> pa.Table:
        self.reads.append(number)
        return await super().read(statement_id, fence=fence, number=number)


class CountedThreads(ThreadPoolExecutor):
    """A thread pool that counts the submitted calls."""

    calls = 0

    def submit(self, *call, **more):  # type: ignore[override]
        self.calls += 1
        return super().submit(*call, **more)


@pytest.fixture
def threads() -> Iterator[CountedThreads]:
    with CountedThreads(1) as executor:
        yield executor


async def stored(results: MemoryResults, texts: Sequence[Sequence[str]]) -> StoredResult:
    segments: list[Segment] = []
    row = 0
    for number, values in enumerate(texts):
        table = pa.table({"c": list(values)})
        segments.append(await results.append(OPERATION, fence=0, number=number, start_row=row, table=table))
        row += len(values)
    return StoredResult(status(StatementState.AVAILABLE, row), (TEXT,), 1, 0, None, segments)


def gone(rows: int) -> StoredResult:
    return StoredResult(status(StatementState.CLOSED, rows), (TEXT,), 0, 0, None, ())


async def page(
    looks: list[StoredResult],
    results: MemoryResults,
    threads: ThreadPoolExecutor,
    *,
    start_row: int = 0,
    max_bytes: int = 1 << 20,
    budget: ByteBudget | None = None,
) -> ResultPage:
    reading = ResultReader(
        records=Recorded(looks),
        cursors=Unmoved(),
        results=results,
        access=Everybody(),
        signals=StateSignals(),
        threads=threads,
        batch_max_bytes=max_bytes,
        budget=budget or ByteBudget(1 << 27),
    )
    return await reading.page(ANA, OPERATION, PageRequest(10_000, start_row=start_row))


@pytest.mark.parametrize(
    ("is_taken", "max_bytes", "moves"), [(True, 1000, []), (True, 12, [(4, 3)]), (False, 1000, [(2, 4)])]
)
async def test_cursor_that_was_moved_by_the_query_is_only_corrected(
    threads: CountedThreads, is_taken: bool, max_bytes: int, moves: list[tuple[int, int]]
):
    cursor = Cursor()
    got = await inline_page(threads, cursor, is_taken=is_taken, max_bytes=max_bytes)
    assert (got.start_row, got.start_row + got.rows, cursor.moves) == (2, moves[0][1] if moves else 4, moves)


@pytest.mark.parametrize("is_taken", [True, False])
async def test_failed_page_does_not_skip_its_rows(threads: CountedThreads, is_taken: bool):
    cursor = Cursor()
    with pytest.raises(PageRowTooLarge):
        await inline_page(threads, cursor, is_taken=is_taken, max_bytes=5)
    assert cursor.moves == ([(4, 2)] if is_taken else [])


async def test_canceled_page_does_not_skip_its_rows(threads: CountedThreads, monkeypatch: pytest.MonkeyPatch):
    async def cancel(*_: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(ResultReader, "_render", cancel)
    cursor = Cursor()
    with pytest.raises(asyncio.CancelledError):
        await inline_page(threads, cursor, is_taken=True, max_bytes=1000)
    assert cursor.moves == [(4, 2)]


async def inline_page(threads: CountedThreads, cursor: Cursor, *, is_taken: bool, max_bytes: int) -> ResultPage:
    """Read from row 2 to the end of a result of four rows."""
    table = pa.table({"c": ["aaaa", "bbbb", "cccc", "dddd"]})
    look = StoredResult(status(StatementState.AVAILABLE, 4), (TEXT,), 1, 2, encode(table), (), is_taken=is_taken)
    reading = ResultReader(
        records=Recorded([look]),
        cursors=cursor,
        results=MemoryResults(),
        access=Everybody(),
        signals=StateSignals(),
        threads=threads,
        batch_max_bytes=max_bytes,
        budget=ByteBudget(1 << 27),
    )
    return await reading.page(ANA, OPERATION, PageRequest(100))


async def test_page_is_joined_from_all_segments(threads: CountedThreads):
    results = CountedResults()
    look = await stored(results, [["a", "b"], ["c"], ["d", "e"]])
    got = await page([look], results, threads, start_row=1)
    assert (orjson.loads(got.rendered.json), got.rows, got.has_more) == ([["b"], ["c"], ["d"], ["e"]], 4, False)


@pytest.mark.parametrize("max_bytes", range(10, 60))
async def test_page_holds_as_many_rows_as_fit_its_size(threads: CountedThreads, max_bytes: int):
    results = CountedResults()
    look = await stored(results, [["aaaa", "b"], ["cc", "dddddd"], ["e"]])
    got = await page([look], results, threads, max_bytes=max_bytes)
    rows = [["aaaa"], ["b"], ["cc"], ["dddddd"], ["e"]]
    fitting = max(n for n in range(1, 6) if len(orjson.dumps(rows[:n])) <= max_bytes)
    assert orjson.loads(got.rendered.json) == rows[:fitting]
    assert (got.rows, got.has_more) == (fitting, fitting < 5)
    assert got.message == (
        f"The batch ends before row {fitting}, because that row would make it exceed {max_bytes} bytes"
        " (`max_bytes`, or else `editor.batch_max_bytes`)."
        if fitting < 5
        else ""
    )


@pytest.mark.parametrize("start_row", [0, 2, 3])
async def test_single_row_above_the_limit_is_an_error_naming_it(threads: CountedThreads, start_row: int):
    results = CountedResults()
    look = await stored(results, [["x" * 200, "a"], ["x" * 200, "x" * 200], ["b"]])
    with pytest.raises(PageRowTooLarge, match=f"Row {start_row} .* limit of 100 bytes .* start_row={start_row + 1}"):
        await page([look], results, threads, start_row=start_row, max_bytes=100)
    got = await page([look], results, threads, start_row=1, max_bytes=100)
    assert (orjson.loads(got.rendered.json), got.has_more) == ([["a"]], True)


async def test_page_memory_is_reserved_until_released(threads: CountedThreads):
    results, budget = CountedResults(), ByteBudget(1 << 27)
    look = await stored(results, [["x" * 1000] * 100])
    got = await page([look], results, threads, budget=budget)
    assert got.reservation is not None
    assert budget.used_bytes == got.rendered.size_bytes
    got.reservation.release()
    assert budget.used_bytes == 0


async def test_page_waits_for_memory_without_holding_any(threads: CountedThreads):
    results, budget = CountedResults(), ByteBudget(1 << 25)
    other, third = await budget.reserve(2, 1 << 24), await budget.reserve(3, 1 << 20)
    look = await stored(results, [["x" * 1000] * 4000])
    waiting = asyncio.ensure_future(page([look], results, threads, max_bytes=1 << 24, budget=budget))
    async with asyncio.timeout(30):
        # The page first reserves less memory than rendering its rows needs. It releases this reservation while it waits
        # for more memory.
        while not results.reads or not budget.waiting:  # noqa: ASYNC110 no event reports this state
            await asyncio.sleep(0)
    assert budget.used_bytes == other.size_bytes + third.size_bytes
    third.release()
    got = await waiting
    assert got.rows == 4000


async def test_failed_page_releases_its_memory(threads: CountedThreads):
    results, budget = CountedResults(), ByteBudget(1 << 27)
    look = await stored(results, [["x" * 200]])
    with pytest.raises(PageRowTooLarge):
        await page([look], results, threads, max_bytes=100, budget=budget)
    assert budget.used_bytes == 0


async def test_segments_beyond_the_page_size_are_never_read(threads: CountedThreads):
    results = CountedResults()
    look = await stored(results, [["x" * 1000] * 10] * 20)
    got = await page([look], results, threads, max_bytes=25_000)
    assert got.rows == 24
    assert results.reads == [0, 1, 2]


async def test_huge_cell_is_rendered_in_a_thread_and_a_small_page_is_not(threads: CountedThreads):
    results = MemoryResults()
    await page([await stored(results, [["small"]])], results, threads)
    assert threads.calls == 0
    await page([await stored(results, [["x" * 300_000]])], results, threads)
    assert threads.calls == 1


async def test_rows_deleted_by_closing_are_reported_as_closed(threads: CountedThreads):
    results = MemoryResults()
    look = await stored(results, [["a"]])
    await results.delete(OPERATION)
    got = await page([look, gone(1)], results, threads)
    assert (got.status.state, got.rows, got.has_more) == (StatementState.CLOSED, 0, False)


async def test_record_without_segments_is_reported_as_closed(threads: CountedThreads):
    unlisted = StoredResult(status(StatementState.AVAILABLE, 5), (TEXT,), 1, 0, None, ())
    got = await page([unlisted, gone(5)], MemoryResults(), threads)
    assert (got.status.state, got.rows, got.has_more) == (StatementState.CLOSED, 0, False)


async def test_missing_segments_of_an_open_result_are_a_store_failure(threads: CountedThreads):
    results = MemoryResults()
    look = await stored(results, [["a"]])
    await results.delete(OPERATION)
    with pytest.raises(ServiceUnavailable) as failure:
        await page([look], results, threads)
    assert isinstance(failure.value.__cause__, PathNotFound)


async def test_downloads_of_huge_rows_wait_for_memory(threads: CountedThreads):
    results, huge = CountedResults(), "x" * (20 << 20)
    look = await stored(results, [["a"], [huge], ["b"]])
    reading = ResultReader(
        records=Recorded([look]),
        cursors=Unmoved(),
        results=results,
        access=Everybody(),
        signals=StateSignals(),
        threads=threads,
        batch_max_bytes=1 << 20,
        budget=ByteBudget(1 << 25),
    )
    first, second, other = (reading.tables(OPERATION, 3, user_id=user_id) for user_id in (1, 1, 2))
    for download in (first, second, other):
        assert (await anext(download)).num_rows == 1
    assert (await anext(first)).nbytes > len(huge)
    waiting = asyncio.ensure_future(anext(second))
    assert (await anext(other)).nbytes > len(huge), "another user does not wait for the first one's"
    await asyncio.sleep(0)
    assert not waiting.done()
    assert (await anext(first)).to_pylist() == [{"c": "b"}]
    assert (await waiting).nbytes > len(huge)
    for download in (first, second, other):
        await download.aclose()
