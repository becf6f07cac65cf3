"""Imports from file to table, with the rows kept on disk in between or read twice (imports/running.py)."""

import asyncio
import io
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from tests.fakes.import_files import MemoryFile, MemoryWorkbooks
from tests.fakes.loading import FakeLoadingEngine
from tests.refusals import raises_code

from queryserver.engines.protocol import OperationState, SessionOptions, TableName
from queryserver.formats.conversion import TargetColumn
from queryserver.identity.model import User
from queryserver.imports.model import STRING, BaseType, ColumnType, Origin
from queryserver.imports.plans import FileReading, ImportPlan, stored
from queryserver.imports.repository import UnfinishedTable
from queryserver.imports.running import MAX_BYTES, Imports, KeptRows
from queryserver.statements.model import Assignment, Lease

COLUMNS = (TargetColumn(0, "n", ColumnType(BaseType.INT32)), TargetColumn(1, "text", STRING))
ROWS = 5000
CONTENT = b"n,text\n" + b"".join(b"%d,row %d\n" % (n, n) for n in range(ROWS))


class NoDisk(io.BytesIO):
    """A file on a disk that is full."""

    def write(self, *_: object) -> int:
        raise OSError(28, "No space left on device")


@dataclass
class OneFile:
    """What opens files, where there is but one. From the second reading on it has `later`."""

    file: MemoryFile
    later: bytes | None = None

    async def find(self, *_: object) -> "OneFile":
        return self

    @property
    def shown(self) -> str:
        return self.file.shown

    @property
    def size_bytes(self) -> int:
        return self.file.size_bytes

    async def read(self) -> AsyncGenerator[bytes]:
        if self.file.readings and self.later is not None:
            self.file.content = self.later
        async for piece in self.file.read():
            yield piece


class NoRecords:
    """A ledger that nobody looks at."""

    async def made(self, table: UnfinishedTable) -> None:
        del table

    async def settled(self, statement_id: UUID, table: TableName) -> None:
        del statement_id, table


def assignment() -> Assignment:
    reading = FileReading(Origin.REMOTE, "file:///a.csv", True, 2)
    plan = ImportPlan("a.csv", reading, COLUMNS, ("INT", "TEXT"), None, "t")
    lease = Lease(uuid4(), "me", 1)
    now = datetime.now(UTC)
    return Assignment(
        lease, 1, "fake", "fake", "", None, {}, 1, False, False, 10, now, False, False, import_plan=stored(plan)
    )


async def imported(file: OneFile, imports: Imports, engine: FakeLoadingEngine) -> OperationState:
    async with imports.session(assignment(), User(1, "ana"), engine, SessionOptions()) as session:
        handle = await session.submit("")
        status = await session.poll(handle, wait_s=20)
        if status.error is not None:
            raise status.error
        return status.state


def imports_of(file: OneFile, scratch: type[io.BytesIO] = io.BytesIO, *, most: int = MAX_BYTES) -> Imports:
    threads = ThreadPoolExecutor(2)
    return Imports(file, MemoryWorkbooks(), threads, NoRecords(), scratch, scratch_bytes=most)  # type: ignore[arg-type]


@pytest.mark.importer(52)
@pytest.mark.parametrize(
    ("scratch", "most", "readings"), [(io.BytesIO, MAX_BYTES, 1), (NoDisk, MAX_BYTES, 2), (io.BytesIO, 1000, 2)]
)
async def test_a_file_is_read_again_only_where_its_rows_could_not_be_kept(
    scratch: type[io.BytesIO], most: int, readings: int
) -> None:
    engine, file = FakeLoadingEngine(), OneFile(MemoryFile(CONTENT, piece_bytes=5000))
    assert await imported(file, imports_of(file, scratch, most=most), engine) is OperationState.FINISHED
    (table,) = engine.tables.values()
    numbers = [number for batch in table.batches for number in batch.column(0).to_pylist()]
    assert numbers == list(range(ROWS))
    assert file.file.readings == readings


@pytest.mark.importer(54)
async def test_a_file_that_changes_before_it_is_read_again_makes_no_table() -> None:
    engine, file = FakeLoadingEngine(), OneFile(MemoryFile(CONTENT), CONTENT + b"1,more\n")
    with raises_code("rejected", match="has changed"):
        await imported(file, imports_of(file, NoDisk), engine)
    assert engine.tables == {}


async def test_kept_rows_come_back_as_they_were_and_more_than_once() -> None:
    batches = [pa.RecordBatch.from_pydict({"a": [n, None], "b": [str(n), ""]}) for n in range(20)]
    async with KeptRows.opened(io.BytesIO, ThreadPoolExecutor(1)) as kept:
        assert [batch async for batch in kept.batches()] == []
        for batch in batches:
            await kept.add(batch.slice(0, 2))
        for _ in range(2):
            assert [batch.to_pydict() async for batch in kept.batches()] == [batch.to_pydict() for batch in batches]
        assert kept.is_whole


async def test_a_file_that_is_opened_too_late_is_closed() -> None:
    may_open, files = threading.Event(), list[io.BytesIO]()

    def open_file() -> io.BytesIO:
        may_open.wait(10)
        files.append(io.BytesIO())
        return files[0]

    async def keep() -> None:
        async with KeptRows.opened(open_file, threads):
            pytest.fail("nobody is there any more")

    with ThreadPoolExecutor(1) as threads:
        keeping = asyncio.create_task(keep())
        await asyncio.sleep(0.05)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        may_open.set()
    assert [file.closed for file in files] == [True]
