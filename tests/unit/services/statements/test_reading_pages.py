"""Pages of stored rows: what is read, what is held, and where the work is done (Contract editor 6)."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import orjson
import pyarrow as pa
import pytest
from tests.fakes.results import MemoryResults

from queryserver.domain.errors import PathNotFound, ServiceUnavailable
from queryserver.domain.result import Column, ResultType, Segment
from queryserver.domain.statement import StatementState, StatementStatus, StoredResult
from queryserver.domain.user import User
from queryserver.services.signals import StateSignals
from queryserver.services.statements.reading import PageRequest, Reading, ReadingParts, ResultPage

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
    )


@dataclass
class Recorded:
    """Records of one statement, one look after the other; the last one stays."""

    looks: list[StoredResult]

    async def stored_result(self, statement_id: UUID, *, start_row: int | None, rows: int) -> StoredResult:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]


class Everybody:
    """Lets everybody read everything."""

    def require_owner(self, user: User, status: StatementStatus) -> None:
        pass


@dataclass
class CountedResults(MemoryResults):
    """Counts the segments that were read."""

    reads: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    async def read(self, statement_id: UUID, *, fence: int, number: int) -> pa.Table:
        self.reads.append(number)
        return await super().read(statement_id, fence=fence, number=number)


class CountedThreads(ThreadPoolExecutor):
    """Counts what is handed to it."""

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
) -> ResultPage:
    parts = ReadingParts(Recorded(looks), results, Everybody(), StateSignals(), threads, max_bytes)
    return await Reading(parts).page(ANA, OPERATION, PageRequest(10_000, start_row=start_row))


async def test_a_page_is_joined_from_all_segments(threads: CountedThreads):
    results = CountedResults()
    look = await stored(results, [["a", "b"], ["c"], ["d", "e"]])
    got = await page([look], results, threads, start_row=1)
    assert (orjson.loads(got.rows_json), got.rows, got.has_more) == ([["b"], ["c"], ["d"], ["e"]], 4, False)


@pytest.mark.parametrize("max_bytes", range(2, 60))
async def test_a_page_keeps_to_its_bytes_and_holds_as_much_as_fits(threads: CountedThreads, max_bytes: int):
    results = CountedResults()
    look = await stored(results, [["aaaa", "b"], ["cc", "dddddd"], ["e"]])
    got = await page([look], results, threads, max_bytes=max_bytes)
    rows = [["aaaa"], ["b"], ["cc"], ["dddddd"], ["e"]]
    fitting = max([1, *(n for n in range(1, 6) if len(orjson.dumps(rows[:n])) <= max_bytes)])
    assert orjson.loads(got.rows_json) == rows[:fitting]
    assert (got.rows, got.has_more) == (fitting, fitting < 5)


async def test_segments_past_the_bytes_of_a_page_are_never_read(threads: CountedThreads):
    results = CountedResults()
    look = await stored(results, [["x" * 1000] * 10] * 20)
    got = await page([look], results, threads, max_bytes=25_000)
    assert got.rows == 24
    assert results.reads == [0, 1, 2]


async def test_a_huge_cell_is_rendered_in_a_thread_and_a_small_page_is_not(threads: CountedThreads):
    results = MemoryResults()
    await page([await stored(results, [["small"]])], results, threads)
    assert threads.calls == 0
    await page([await stored(results, [["x" * 300_000]])], results, threads)
    assert threads.calls == 1


async def test_rows_that_went_with_a_closed_result_are_answered_as_closed(threads: CountedThreads):
    results = MemoryResults()
    look = await stored(results, [["a"]])
    await results.delete(OPERATION)
    got = await page([look, gone(1)], results, threads)
    assert (got.status.state, got.rows, got.has_more) == (StatementState.CLOSED, 0, False)


async def test_a_record_without_its_segments_is_answered_as_closed(threads: CountedThreads):
    unlisted = StoredResult(status(StatementState.AVAILABLE, 5), (TEXT,), 1, 0, None, ())
    got = await page([unlisted, gone(5)], MemoryResults(), threads)
    assert (got.status.state, got.rows, got.has_more) == (StatementState.CLOSED, 0, False)


async def test_lost_segments_of_a_living_result_are_a_failure_of_the_store(threads: CountedThreads):
    results = MemoryResults()
    look = await stored(results, [["a"]])
    await results.delete(OPERATION)
    with pytest.raises(ServiceUnavailable) as failure:
        await page([look], results, threads)
    assert isinstance(failure.value.__cause__, PathNotFound)
