"""The record that a run writes, and its log lines on their way into it."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from tests.cases import each
from tests.fakes.statements import MemoryLeases

from queryserver.formats.columns import Segment
from queryserver.statements.model import Assignment, Lease
from queryserver.statements.run_record import Logbook, RunRecord, clean, storable

SETTINGS = {"log_max_bytes": 1 << 20, "retention": timedelta(hours=1), "lease": timedelta(seconds=5)}


class SlowReports(MemoryLeases):
    """Reports are on their way until `arrive` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = asyncio.Event()
        self.arrive = asyncio.Event()
        self.arrive.set()

    async def report(self, lease: Lease, **fields: Any) -> bool:
        self.under_way.set()
        await self.arrive.wait()
        return await super().report(lease, **fields)


async def running(leases: MemoryLeases) -> tuple[RunRecord, Assignment]:
    """The record of a statement whose engine gives its first page."""
    assignment = leases.add("SELECT 1")
    record = RunRecord(assignment, leases, **SETTINGS, notify=lambda: None)
    await record.mark_running(0, "page 1")
    return record, assignment


@pytest.mark.item(25)
async def test_a_report_that_is_late_does_not_set_the_mark_back_behind_stored_rows() -> None:
    leases = SlowReports()
    record, assignment = await running(leases)
    leases.under_way.clear()
    leases.arrive.clear()
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(record.report(10, None))
        await leases.under_way.wait()
        group.create_task(record.add_segment(Segment(0, 0, 100, 1000), (), "page 2"))
        for _ in range(10):
            await asyncio.sleep(0)
        leases.arrive.set()
    found = leases.of(assignment).resumption
    assert found is not None
    assert (found.rows, found.mark.token) == (100, "page 2")


@pytest.mark.item(25)
async def test_a_report_after_stored_rows_keeps_their_mark() -> None:
    leases = MemoryLeases()
    record, assignment = await running(leases)
    await record.add_segment(Segment(0, 0, 100, 1000), (), "page 2")
    await record.report(10, None)
    found = leases.of(assignment).resumption
    assert found is not None
    assert found.mark.token == "page 2"


def test_numbers_go_on_from_report_to_report() -> None:
    book = Logbook(1000)
    book.add("one")
    with book.taken() as first:
        book.add("two")
    with book.taken() as second:
        pass
    assert (first, second) == ((0, ["one"]), (1, ["two"]))


def test_numbers_begin_after_the_lines_that_are_stored() -> None:
    book = Logbook(1000, stored_lines=1)
    book.add("one")
    with book.taken() as first:
        assert first == (1, ["one"])


def test_lines_of_a_failed_report_come_again_under_the_same_number() -> None:
    book = Logbook(1000)
    book.add("one")
    with suppress(OSError), book.taken():
        book.add("two")
        raise OSError
    with book.taken() as again:
        assert again == (0, ["one", "two"])
    assert not book.has_news


def test_above_the_limit_old_lines_are_given_up_and_a_line_says_so() -> None:
    book = Logbook(100)
    for number in range(5):
        book.add(f"{number}" * 40)
        with book.taken():
            pass
    assert book.overflow() == 3
    with book.taken() as (start, lines):
        assert start == 5
        assert lines == ["Log lines before number 3 were dropped: the log reached its size limit."]


@each(
    "line, shown",
    ("password=hunter2 rest", "password=******** rest"),
    ("TOKEN: 'a b' x", "TOKEN: ******** x"),
    ("a\x1b[31mb", "a [31mb"),
    ("tab\tstays", "tab\tstays"),
    ("half \ud83d pair", "half   pair"),
)
def test_lines_are_clean(line: str, shown: str) -> None:
    assert clean(line) == shown


def test_storable_text_keeps_everything_else() -> None:
    assert storable("é\n\t😀") == "é\n\t😀"
    assert storable("a\x00\udc00b") == "a\ufffd\ufffdb"


def test_engine_lines_are_counted_as_the_engine_counts_them() -> None:
    book = Logbook(1000)
    book.add_engine(["first\nsecond", ""])
    assert book.engine_lines == 2
    with book.taken() as (_, lines):
        assert lines == ["first", "second", ""]


def test_an_endless_line_of_an_engine_is_cut() -> None:
    assert len(clean("x" * 10_000_000)) < 70_000
    assert len(storable("x" * 10_000_000)) < 70_000
    assert storable("short\x00") == "short\ufffd"


def test_lines_that_come_at_once_stay_within_the_limit_of_the_log() -> None:
    book = Logbook(1000)
    book.add_engine(["x" * 300] * 1000)
    book.add("ours")
    with book.taken() as (_, lines):
        assert lines == [*["x" * 300] * 3, "ours", "997 log lines were dropped: too many came at once."]
    assert not book.has_news
    book.add_engine(["after"])
    with book.taken() as (start, lines):
        assert (start, lines) == (5, ["after"])


def test_a_text_of_many_lines_is_cut_before_it_is_divided() -> None:
    book = Logbook(1000)
    book.add_engine(["x\n" * 10_000_000])
    with book.taken() as (_, lines):
        assert lines == ["x"] * 500
