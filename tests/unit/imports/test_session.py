"""Imports: rows that are stored or read a second time, file conversion, and the session that the runner uses."""

import asyncio
import io
import threading
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from tests.fakes.import_files import MemoryFile, MemoryWorkbooks
from tests.fakes.loading import FakeLoadingEngine
from tests.refusals import raises_code

from queryserver.engines.protocol import OperationState, SessionOptions, TableName
from queryserver.errors.files import FileCorrupt
from queryserver.errors.statements import EngineUnavailable
from queryserver.formats.arrow import STRING, BaseType, ColumnType
from queryserver.formats.conversion import TargetColumn
from queryserver.formats.table_files import MAX_FIELD_CHARACTERS
from queryserver.identity.model import User
from queryserver.imports.model import Origin
from queryserver.imports.plans import BadRowLimit, FileReading, ImportPlan, stored_plan
from queryserver.imports.repository import UnfinishedTable
from queryserver.imports.session import COLUMNS as SUMMARY_COLUMNS
from queryserver.imports.session import (
    MAX_BYTES,
    Conversion,
    ImportCounts,
    ImportResult,
    Imports,
    ScratchRows,
    default_bad_row_limit,
    read_ahead,
)
from queryserver.statements.job_session import JobReport, JobSession
from queryserver.statements.model import Assignment, Claim

COLUMNS = (TargetColumn(0, "n", ColumnType(BaseType.INT32)), TargetColumn(1, "text", STRING))
ROWS = 5000
CONTENT = b"n,text\n" + b"".join(b"%d,row %d\n" % (n, n) for n in range(ROWS))


class NoDisk(io.BytesIO):
    """A file on a full disk."""

    def write(self, *_: object) -> int:
        raise OSError(28, "No space left on device")


@dataclass
class OneFile:
    """A source with a single file. From the second read on, the file has the content `later`."""

    file: MemoryFile
    later: bytes | None = None

    async def find(self, *_: object) -> "OneFile":
        return self

    @property
    def display_name(self) -> str:
        return self.file.display_name

    @property
    def size_bytes(self) -> int:
        return self.file.size_bytes

    async def read(self) -> AsyncGenerator[bytes]:
        if self.file.readings and self.later is not None:
            self.file.content = self.later
        async for piece in self.file.read():
            yield piece


class NoRecords:
    """A ledger that records nothing."""

    async def add(self, table: UnfinishedTable) -> None:
        del table

    async def remove(self, statement_id: UUID, table: TableName) -> None:
        del statement_id, table


def assignment(max_bad_rows: BadRowLimit = 0) -> Assignment:
    reading = FileReading(Origin.REMOTE, "file:///a.csv", True, 2)
    plan = ImportPlan("a.csv", reading, COLUMNS, ("INT", "TEXT"), None, "t", max_bad_rows=max_bad_rows)
    claim = Claim(uuid4(), "me", 1)
    now = time.monotonic()
    return Assignment(
        claim, 1, "fake", "fake", "", None, {}, 1, False, False, 10, now, False, False, import_plan=stored_plan(plan)
    )


async def imported(
    file: OneFile, imports: Imports, engine: FakeLoadingEngine, *, max_bad_rows: BadRowLimit = 0
) -> OperationState:
    async with imports.session(assignment(max_bad_rows), User(1, "ana"), engine, SessionOptions()) as session:
        handle = await session.submit("")
        status = await session.poll(handle, wait_s=20)
        if status.error is not None:
            raise status.error
        return status.state


@pytest.mark.importer(54)
@pytest.mark.parametrize(
    ("rows", "bad"), [(1, 0), (9, 0), (10, 1), (83, 8), (100, 10), (999, 10), (1_100, 11), (10_000, 100), (10**7, 100)]
)
def test_default_bad_row_limit_depends_on_the_row_count(rows: int, bad: int) -> None:
    assert default_bad_row_limit(rows) == bad


@pytest.mark.importer(54)
@pytest.mark.parametrize(("bad", "state"), [(10, OperationState.FINISHED), (11, None)])
async def test_default_omits_a_few_bad_rows_and_fails_above_the_limit(bad: int, state: OperationState | None) -> None:
    content = b"n,x\n" + b"1,a\n" * (100 - bad) + b"oops,b\n" * bad
    file, engine = OneFile(MemoryFile(content)), FakeLoadingEngine()
    if state is None:
        with raises_code("rejected", match="11 of 100 rows are bad; at most 10 are allowed"):
            await imported(file, imports_of(file), engine, max_bad_rows="few")
    else:
        assert await imported(file, imports_of(file), engine, max_bad_rows="few") is state


def imports_of(file: OneFile, scratch: type[io.BytesIO] = io.BytesIO, *, most: int = MAX_BYTES) -> Imports:
    threads = ThreadPoolExecutor(2)
    return Imports(file, MemoryWorkbooks(), threads, NoRecords(), scratch, scratch_bytes=most)  # type: ignore[arg-type]


@pytest.mark.importer(52)
@pytest.mark.parametrize(
    ("scratch", "most", "readings"), [(io.BytesIO, MAX_BYTES, 1), (NoDisk, MAX_BYTES, 2), (io.BytesIO, 1000, 2)]
)
async def test_file_is_read_again_only_if_its_rows_could_not_be_kept(scratch, most, readings) -> None:
    engine, file = FakeLoadingEngine(), OneFile(MemoryFile(CONTENT, piece_bytes=5000))
    assert await imported(file, imports_of(file, scratch, most=most), engine) is OperationState.FINISHED
    (table,) = engine.tables.values()
    numbers = [number for batch in table.batches for number in batch.column(0).to_pylist()]
    assert numbers == list(range(ROWS))
    assert file.file.readings == readings


@pytest.mark.importer(54)
async def test_file_changed_before_the_second_reading_creates_no_table() -> None:
    engine, file = FakeLoadingEngine(), OneFile(MemoryFile(CONTENT), CONTENT + b"1,more\n")
    with raises_code("rejected", match="file changed"):
        await imported(file, imports_of(file, NoDisk), engine)
    assert engine.tables == {}


async def test_kept_rows_can_be_read_repeatedly() -> None:
    batches = [pa.RecordBatch.from_pydict({"a": [n, None], "b": [str(n), ""]}) for n in range(20)]
    async with ScratchRows.opened(io.BytesIO, ThreadPoolExecutor(1)) as kept:
        assert [batch async for batch in kept.batches()] == []
        for batch in batches:
            await kept.add(batch.slice(0, 2))
        for _ in range(2):
            assert [batch.to_pydict() async for batch in kept.batches()] == [batch.to_pydict() for batch in batches]
        assert kept.is_whole


async def test_file_opened_after_cancellation_is_closed() -> None:
    is_asked, may_open, files = threading.Event(), threading.Event(), list[io.BytesIO]()

    def open_file() -> io.BytesIO:
        is_asked.set()
        may_open.wait(60)
        files.append(io.BytesIO())
        return files[0]

    async def keep() -> None:
        async with ScratchRows.opened(open_file, threads):
            pytest.fail("nobody is there any more")

    with ThreadPoolExecutor(1) as threads:
        keeping = asyncio.create_task(keep())
        assert await asyncio.to_thread(is_asked.wait, 60)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        may_open.set()
    assert [file.closed for file in files] == [True]


def conversion(content: bytes, seen: list[int], *, piece_bytes: int = 1024 * 1024) -> Conversion:
    reading = FileReading(Origin.LOCAL, "upload/x/a.csv", True, 2)
    plan = ImportPlan("a.csv", reading, COLUMNS, ("INT", "TEXT"), None, "t")
    file = MemoryFile(content, piece_bytes=piece_bytes)
    return Conversion(plan, file, MemoryWorkbooks(), ThreadPoolExecutor(2), seen.append)


async def test_both_passes_yield_the_same_rows() -> None:
    content = b"n,text\n" + b"".join(b"%d,%s\n" % (n, b"x" if n % 100 else b"a,b") for n in range(5000))
    seen: list[int] = []
    made = conversion(content, seen, piece_bytes=1000)
    counted = await made.count(max_explanations=3)
    assert (counted.rows, counted.bad, len(counted.explanations)) == (5000, 50, 3)
    assert sum(seen) == len(content)
    again = ImportCounts()
    numbers = [number async for batch in made.batches(again) for number in batch.column(0).to_pylist()]
    assert numbers == [n for n in range(5000) if n % 100]
    assert again.agrees_with(counted)


async def test_batches_are_limited_to_about_four_mib() -> None:
    content = b"n,text\n" + b"1,\n" * 3_000_000
    made = conversion(content, [], piece_bytes=len(content))
    sizes = [batch.nbytes async for batch in made.batches(ImportCounts())]
    assert len(sizes) > 1
    assert max(sizes) < 6 * 1024 * 1024


async def test_reading_errors_propagate() -> None:
    made = conversion(b"n,text\n1,a\n2," + b"x" * (MAX_FIELD_CHARACTERS + 1) + b"\n", [])
    with raises_code("record_too_long"):
        await made.count(max_explanations=1)


async def test_one_item_is_read_ahead_and_the_source_closes_with_its_reader() -> None:
    made: list[int] = []
    ended = asyncio.Event()

    async def items() -> AsyncGenerator[int]:
        try:
            for number in range(1, 100):
                made.append(number)
                yield number
        finally:
            ended.set()

    source = items()
    async with aclosing(source), aclosing(read_ahead(source)) as coming:
        async for number in coming:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert made[-1] == number + 1
            if number == 3:
                break
    assert ended.is_set()
    assert made == [1, 2, 3, 4]


DONE = ImportResult(3, 2, 1, "t").summary


async def test_import_result_is_one_row() -> None:
    async def work(_statement: object, _context: object, report: JobReport) -> None:
        report.lines.append("Read 3 rows.")
        report.summary = DONE

    async with JobSession.opened(SUMMARY_COLUMNS, work) as session:
        handle = await session.submit("CREATE TABLE t (a INT)")
        status = await session.poll(handle, wait_s=5)
        assert (status.state, status.has_result_set) == (OperationState.FINISHED, True)
        assert [column.name for column in await session.columns(handle)] == [
            "rows_read", "rows_loaded", "rows_bad", "table",
        ]  # fmt: skip
        rows = [row for batch in [batch async for batch in session.batches(handle)] for row in batch.to_pylist()]
        assert rows == [{"rows_read": 3, "rows_loaded": 2, "rows_bad": 1, "table": "t"}]
        assert await session.logs(handle, start=0) == ["Read 3 rows."]
        assert await session.logs(handle, start=1) == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineUnavailable("away"), "engine_unavailable"),
        (FileCorrupt("broken"), "rejected"),
        (ZeroDivisionError("ours"), "engine_error"),
    ],
)
async def test_import_error_is_an_outcome(error: Exception, code: str) -> None:
    async def work(_statement: object, _context: object, report: JobReport) -> None:
        raise error

    async with JobSession.opened(SUMMARY_COLUMNS, work) as session:
        status = await session.poll(await session.submit(""), wait_s=5)
    assert status.state is OperationState.FAILED
    assert status.error is not None
    assert status.error.code == code
    assert "ours" not in status.error.message


async def test_cancel_waits_for_cleanup_and_a_second_cancel_does_not_disturb_it() -> None:
    begun, cleaned = asyncio.Event(), asyncio.Event()

    async def work(_statement: object, _context: object, report: JobReport) -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            cleaned.set()
        report.summary = DONE

    async with JobSession.opened(SUMMARY_COLUMNS, work) as session:
        handle = await session.submit("")
        await begun.wait()
        await asyncio.gather(session.cancel(handle), session.cancel(handle))
        assert cleaned.is_set()
        assert (await session.poll(handle)).state is OperationState.CANCELED


@pytest.mark.importer(56)
async def test_leaving_the_session_waits_for_cleanup_even_when_canceled() -> None:
    begun, cleaned = asyncio.Event(), asyncio.Event()

    async def work(_statement: object, _context: object, report: JobReport) -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)
            cleaned.set()
        report.summary = DONE

    async def follow() -> None:
        async with JobSession.opened(SUMMARY_COLUMNS, work) as session:
            await session.submit("")
            await asyncio.Event().wait()

    follower = asyncio.create_task(follow())
    await begun.wait()
    for _ in range(3):
        follower.cancel()
        await asyncio.sleep(0.02)
    with pytest.raises(asyncio.CancelledError):
        await follower
    assert cleaned.is_set()


@pytest.mark.importer(56)
async def test_cancel_after_the_table_is_published_keeps_the_result() -> None:
    published = asyncio.Event()

    async def work(_statement: object, _context: object, report: JobReport) -> None:
        report.summary = DONE
        published.set()
        await asyncio.Event().wait()

    async with JobSession.opened(SUMMARY_COLUMNS, work) as session:
        handle = await session.submit("")
        await published.wait()
        await session.cancel(handle)
        assert (await session.poll(handle)).state is OperationState.FINISHED
        assert len([batch async for batch in session.batches(handle)]) == 1
