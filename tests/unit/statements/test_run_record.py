"""The record of a run, which writes rows to the result store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from tests.fakes.results import MemoryResults
from tests.fakes.statements import MemoryStatements
from tests.refusals import raises_code
from tests.timing import until

from queryserver.errors.files import PathNotFound, StorageError
from queryserver.errors.statements import RowTooLarge
from queryserver.platform.settings.editor import EditorSettings
from queryserver.results.segments import Segment
from queryserver.statements import run_record as spooling
from queryserver.statements.model import Assignment, Claim
from queryserver.statements.run_record import (
    ResultLimits,
    RunRecord,
    Spool,
    StatementLog,
    clean_log_line,
    storable_text,
    with_pauses,
)
from queryserver.statements.states import TruncationReason

LEASE = Claim(uuid4(), "me", 1)


class Shown:
    """A collector of the segments that have become visible."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []

    async def __call__(self, segment: Segment, token: str | None) -> None:
        self.segments.append(segment)

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.segments)


def batch(rows: int, width: int = 8) -> pa.RecordBatch:
    return pa.record_batch({"text": ["x" * width] * rows})


async def fill(filling: Spool) -> None:
    for _ in range(40):
        await filling.add(batch(1000, 1000))


def spool(
    store: MemoryResults, shown: Shown, *, rows: int = 10**9, size_bytes: int = 10**12, cell_bytes: int = 1 << 24
) -> Spool:
    return Spool(store, LEASE, ResultLimits(rows, size_bytes, cell_bytes), shown)


async def test_no_rows_give_an_empty_result_without_bytes() -> None:
    shown = Shown()
    kept = await spool(MemoryResults(), shown).finish()
    assert (kept.rows, kept.size_bytes, kept.inline, shown.segments) == (0, 0, None, [])


async def test_segments_are_contiguous() -> None:
    store, shown = MemoryResults(), Shown()
    filling = spool(store, shown)
    for _ in range(40):
        await filling.add(batch(1000, 1000))
    kept = await filling.finish()
    assert [one.number for one in shown.segments] == list(range(len(shown.segments)))
    assert [one.start_row for one in shown.segments] == [
        sum(one.rows for one in shown.segments[:place]) for place in range(len(shown.segments))
    ]
    assert shown.rows == kept.rows == 40_000
    assert len(shown.segments) >= 8


@pytest.mark.item(34)
async def test_byte_limit_keeps_the_rows_that_fit_and_is_reported() -> None:
    store, shown = MemoryResults(), Shown()
    filling = spool(store, shown, size_bytes=2_000_000)
    while filling.truncated_reason is None:
        await filling.add(batch(700, 1000))
    kept = await filling.finish()
    assert kept.truncated_reason is TruncationReason.BYTE_LIMIT
    assert 1_900 <= kept.rows <= 2_000
    assert shown.rows == kept.rows


async def test_rows_after_a_limit_are_dropped() -> None:
    filling = spool(MemoryResults(), Shown(), rows=5)
    await filling.add(batch(4))
    await filling.add(batch(4))
    await filling.add(batch(4))
    kept = await filling.finish()
    assert (kept.rows, kept.truncated_reason) == (5, TruncationReason.ROW_LIMIT)


async def test_batch_of_another_schema_starts_a_segment() -> None:
    shown = Shown()
    filling = spool(MemoryResults(), shown)
    await filling.add(pa.record_batch({"n": pa.array([1, 2])}))
    await filling.add(pa.record_batch({"n": pa.array(["x" * 40_000])}))
    await filling.finish()
    assert [one.rows for one in shown.segments] == [2, 1]


async def test_rows_are_stored_within_a_second() -> None:
    shown = Shown()
    filling = spool(MemoryResults(), shown)
    await filling.add(batch(10))
    await filling.flush_if_old()
    assert shown.rows == 0
    await asyncio.sleep(spooling.SEGMENT_AGE_S)
    await filling.flush_if_old()
    await until(lambda: shown.rows == 10)
    await filling.aclose()


async def test_store_failure_is_raised_at_the_next_step() -> None:
    store = MemoryResults()
    store.failure = StorageError("no room")
    filling = spool(store, Shown())
    with raises_code("result_store_failed"):
        await fill(filling)
    await filling.aclose()


async def test_missing_directory_fails_the_result() -> None:
    store = MemoryResults()
    store.failure = PathNotFound("gone")
    filling = spool(store, Shown())
    with raises_code("result_store_failed"):
        await fill(filling)
    await filling.aclose()


async def test_rows_invisible_when_stopped_stay_invisible() -> None:
    shown = Shown()
    filling = spool(MemoryResults(), shown)
    await filling.add(batch(4_300, 1000))
    await filling.aclose()
    await asyncio.sleep(0.05)
    assert shown.segments == []


async def test_cell_above_the_limit_is_rejected_with_row_and_column() -> None:
    filling = spool(MemoryResults(), Shown(), cell_bytes=1000)
    await filling.add(pa.record_batch({"id": [1, 2], "text": ["x", "y" * 1000]}))
    with raises_code("cell_too_large", match="in row 3 of column text is larger than the limit of 1000 bytes"):
        await filling.add(pa.record_batch({"id": [3, 4], "text": ["x", "y" * 1001]}))
    assert filling.rows == 2


async def test_cell_beyond_the_row_limit_is_dropped_without_measuring() -> None:
    filling = spool(MemoryResults(), Shown(), rows=1, cell_bytes=1000)
    await filling.add(pa.record_batch({"text": ["x", "y" * 5000]}))
    assert (filling.rows, filling.truncated_reason) == (1, TruncationReason.ROW_LIMIT)


async def test_row_of_many_cells_is_limited_as_a_whole() -> None:
    filling = spool(MemoryResults(), Shown(), cell_bytes=1000)
    await filling.add(pa.record_batch({"a": ["x" * 900], "b": ["x" * 900]}))
    with pytest.raises(RowTooLarge, match="Row 2 is larger than the limit of 2000 bytes"):
        await filling.add(pa.record_batch({name: ["", "x" * 900] for name in "abc"}))


async def test_huge_row_is_stored_before_more_rows_are_accepted() -> None:
    store, shown = MemoryResults(), Shown()
    filling = spool(store, shown)
    await filling.add(pa.record_batch({"text": ["a", "b" * (5 << 20), "c"]}))
    assert shown.rows >= 2
    kept = await filling.finish()
    assert kept.rows == shown.rows == 3


async def test_rows_before_a_checkpoint_are_stored_together() -> None:
    store, shown = MemoryResults(), Shown()
    filling = spool(store, shown)
    await filling.add(batch(10_000, 1000), "after these")
    await filling.finish()
    assert [one.rows for one in shown.segments] == [10_000]


class Source:
    """A source of numbers that counts how many were requested. Each number except the first arrives after `delay_s`."""

    def __init__(self, numbers: int, delay_s: float = 0, *, fail: bool = False) -> None:
        self.numbers, self.delay_s, self.fail = numbers, delay_s, fail
        self.asked, self.closed = 0, False

    async def items(self) -> AsyncIterator[int]:
        try:
            for number in range(self.numbers):
                self.asked += 1
                if number:
                    await asyncio.sleep(self.delay_s)
                yield number
            if self.fail:
                raise OSError("lost")
        finally:
            self.closed = True


async def test_items_keep_their_order() -> None:
    assert [item async for item in with_pauses(Source(5).items(), pause_s=1)] == [0, 1, 2, 3, 4]


async def test_pause_yields_none_without_losing_items() -> None:
    seen = [item async for item in with_pauses(Source(2, 1.0).items(), pause_s=0.1)]
    assert [item for item in seen if item is not None] == [0, 1]
    assert seen.count(None) >= 1


async def test_next_item_is_requested_only_after_the_last_was_used() -> None:
    source = Source(5)
    async with aclosing(with_pauses(source.items(), pause_s=1)) as items:
        async for _ in items:
            await asyncio.sleep(0.01)
            break
    assert source.asked == 1
    assert source.closed


async def test_source_failure_propagates() -> None:
    with pytest.raises(OSError, match="lost"):
        _ = [item async for item in with_pauses(Source(1, fail=True).items(), pause_s=1)]


async def test_leaving_during_a_pause_closes_the_source() -> None:
    source = Source(2, 30)
    async with aclosing(with_pauses(source.items(), pause_s=0.05)) as items:
        async for item in items:
            if item is None:
                break
    assert source.closed


EDITOR = EditorSettings(lease_timeout_s=5)


class SlowReports(MemoryStatements):
    """Statements on which each report waits until `arrive` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = asyncio.Event()
        self.arrive = asyncio.Event()
        self.arrive.set()

    async def report(self, claim: Claim, **fields: Any) -> bool:
        self.under_way.set()
        await self.arrive.wait()
        return await super().report(claim, **fields)


async def running(owned: MemoryStatements) -> tuple[RunRecord, Assignment]:
    """Return the record of a running statement whose engine is about to return its first page."""
    assignment = owned.add("SELECT 1")
    record = RunRecord(assignment, owned, editor=EDITOR, notify=lambda: None)
    await record.mark_running(0, "page 1")
    return record, assignment


@pytest.mark.item(25)
async def test_late_report_does_not_reset_the_checkpoint_before_stored_rows() -> None:
    owned = SlowReports()
    record, assignment = await running(owned)
    owned.under_way.clear()
    owned.arrive.clear()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(record.report(10, None))
        await owned.under_way.wait()
        group.create_task(record.add_segment(Segment(0, 0, 100, 1000), (), "page 2"))
        for _ in range(10):
            await asyncio.sleep(0)
        owned.arrive.set()
    found = owned.of(assignment).resumption
    assert found is not None
    assert (found.rows, found.checkpoint.token) == (100, "page 2")


async def test_start_of_a_statement_is_one_write_unless_there_is_progress_or_a_log_line() -> None:
    for progress, line, reports in ((0, None, False), (10, None, True), (0, "Stage 1.", True)):
        owned = SlowReports()
        record = RunRecord(owned.add("SELECT 1"), owned, editor=EDITOR, notify=lambda: None)
        if line:
            record.log.add(line)
        await record.mark_running(progress, "page 1")
        assert owned.under_way.is_set() is reports
        assert record.is_running


@pytest.mark.item(25)
async def test_report_after_stored_rows_keeps_their_checkpoint() -> None:
    owned = MemoryStatements()
    record, assignment = await running(owned)
    await record.add_segment(Segment(0, 0, 100, 1000), (), "page 2")
    await record.report(10, None)
    found = owned.of(assignment).resumption
    assert found is not None
    assert found.checkpoint.token == "page 2"


def test_line_numbers_continue_between_reports() -> None:
    log = StatementLog(1000)
    log.add("one")
    with log.new_lines() as first:
        log.add("two")
    with log.new_lines() as second:
        pass
    assert (first, second) == ((0, ["one"]), (1, ["two"]))


def test_line_numbers_start_after_the_stored_lines() -> None:
    log = StatementLog(1000, stored_lines=1)
    log.add("one")
    with log.new_lines() as first:
        assert first == (1, ["one"])


def test_lines_of_a_failed_report_are_repeated_with_the_same_number() -> None:
    log = StatementLog(1000)
    log.add("one")
    with suppress(OSError), log.new_lines():
        log.add("two")
        raise OSError
    with log.new_lines() as again:
        assert again == (0, ["one", "two"])
    assert not log.has_new_lines


def test_old_lines_beyond_the_limit_are_dropped_with_a_notice() -> None:
    log = StatementLog(100)
    for number in range(5):
        log.add(f"{number}" * 40)
        with log.new_lines():
            pass
    assert log.drop_overflow() == 3
    with log.new_lines() as (start, lines):
        assert start == 5
        assert lines == ["Log lines before number 3 were dropped because the log reached its size limit."]


@pytest.mark.parametrize(("line", "shown"),
    [("password=hunter2 rest", "password=******** rest"), ("TOKEN: 'a b' x", "TOKEN: ******** x"),
    ("a\x1b[31mb", "a [31mb"), ("tab\tstays", "tab\tstays"), ("half \ud83d pair", "half   pair")])  # fmt: skip
def test_log_lines_are_sanitized(line: str, shown: str) -> None:
    assert clean_log_line(line) == shown


def test_storable_text_replaces_only_invalid_characters() -> None:
    assert storable_text("é\n\t😀") == "é\n\t😀"
    assert storable_text("a\x00\udc00b") == "a\ufffd\ufffdb"


def test_line_numbers_match_the_engine() -> None:
    log = StatementLog(1000)
    log.add_engine(["first\nsecond", ""])
    assert log.engine_lines == 2
    with log.new_lines() as (_, lines):
        assert lines == ["first", "second", ""]


def test_overlong_engine_line_is_truncated() -> None:
    assert len(clean_log_line("x" * 10_000_000)) < 70_000
    assert len(storable_text("x" * 10_000_000)) < 70_000
    assert storable_text("short\x00") == "short\ufffd"


def test_burst_of_lines_stays_within_the_log_limit() -> None:
    log = StatementLog(1000)
    log.add_engine(["x" * 300] * 1000)
    log.add("ours")
    with log.new_lines() as (_, lines):
        assert lines == [*["x" * 300] * 3, "ours", "997 log lines were dropped because too many arrived at once."]
    assert not log.has_new_lines
    log.add_engine(["after"])
    with log.new_lines() as (start, lines):
        assert (start, lines) == (5, ["after"])


def test_text_of_many_lines_is_truncated_before_splitting() -> None:
    log = StatementLog(1000)
    log.add_engine(["x\n" * 10_000_000])
    with log.new_lines() as (_, lines):
        assert lines == ["x"] * 500
