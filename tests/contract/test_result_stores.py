"""The ResultStore contract for memory and for segment files, and failures specific to segment files."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from tests.contract.results_contract import ResultStoreContract, mixed_table, numbered
from tests.fakes.results import MemoryResults
from tests.fakes.storage import MemoryStorage
from tests.fakes.storage_faults import FaultyStorage

from queryserver.errors.files import PathNotFound, StorageError, StorageUnavailable
from queryserver.files.model import FileStatus
from queryserver.files.stores.local.storage import PrivateStorage
from queryserver.results.segments import ResultStore


class TestMemoryResults(ResultStoreContract):
    @pytest.fixture
    async def results(self):
        return MemoryResults()


class TestSegmentsInMemory(ResultStoreContract):
    @pytest.fixture
    async def results(self):
        async with ResultStore(MemoryStorage()) as store:
            yield store


class TestSegmentsInFiles(ResultStoreContract):
    @pytest.fixture
    async def results(self, tmp_path: Path):
        async with PrivateStorage(tmp_path) as storage, ResultStore(storage) as store:
            yield store


class TestSegmentsWithoutCache(ResultStoreContract):
    @pytest.fixture
    async def results(self, tmp_path: Path):
        async with PrivateStorage(tmp_path) as storage, ResultStore(storage, cache_bytes=0) as store:
            yield store


@pytest.fixture
def storage() -> FaultyStorage:
    return FaultyStorage(MemoryStorage())


@pytest.fixture
async def results(storage: FaultyStorage) -> AsyncIterator[ResultStore]:
    async with ResultStore(storage) as store:
        yield store


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


@pytest.mark.item(24)
async def test_new_process_reads_the_same_rows(tmp_path):
    statement_id, table = uuid4(), mixed_table(500)
    async with PrivateStorage(tmp_path) as storage, ResultStore(storage) as store:
        await store.append(statement_id, fence=1, number=0, start_row=0, table=table)
    async with PrivateStorage(tmp_path) as storage, ResultStore(storage) as store:
        assert (await store.read(statement_id, fence=1, number=0)).to_pylist() == table.to_pylist()


async def test_reported_size_is_the_stored_size(tmp_path):
    async with PrivateStorage(tmp_path) as storage, ResultStore(storage) as store:
        segment = await store.append(uuid4(), fence=1, number=0, start_row=0, table=mixed_table(300))
    assert [path.stat().st_size for path in files(tmp_path)] == [segment.size_bytes]


async def test_deleted_statements_and_pings_leave_nothing(tmp_path):
    statement_id = uuid4()
    async with PrivateStorage(tmp_path) as storage, ResultStore(storage) as store:
        for number in range(3):
            await store.append(statement_id, fence=1, number=number, start_row=0, table=numbered(0, 1))
        await store.ping()
        await store.delete(statement_id)
        assert files(tmp_path) == []


async def test_pages_of_one_segment_share_one_read(storage, results):
    statement_id = uuid4()
    await results.append(statement_id, fence=1, number=0, start_row=0, table=numbered(0, 100))
    together = await asyncio.gather(*(results.read(statement_id, fence=1, number=0) for _ in range(20)))
    afterward = await results.read(statement_id, fence=1, number=0)
    assert storage.calls["read"] == 1
    assert all(table is afterward for table in together)


async def test_cache_holds_latest_segments_up_to_its_size(storage):
    table = numbered(0, 1000)
    async with ResultStore(storage, cache_bytes=2 * table.nbytes) as store:
        statement_id = uuid4()
        for number in range(3):
            await store.append(statement_id, fence=1, number=number, start_row=0, table=table)
            await store.read(statement_id, fence=1, number=number)
        assert storage.calls["read"] == 3
        for number in (2, 1):
            await store.read(statement_id, fence=1, number=number)
        assert storage.calls["read"] == 3
        await store.read(statement_id, fence=1, number=0)
        assert storage.calls["read"] == 4
        await store.read(statement_id, fence=1, number=1)
        assert storage.calls["read"] == 4


async def test_failed_read_is_raised_to_all_waiters_and_retried(storage, results):
    statement_id = uuid4()
    await results.append(statement_id, fence=1, number=0, start_row=0, table=numbered(0, 1))
    storage.failures["read"] = StorageUnavailable("gone")
    reads = [results.read(statement_id, fence=1, number=0) for _ in range(3)]
    outcomes = await asyncio.gather(*reads, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StorageUnavailable] * 3
    del storage.failures["read"]
    assert (await results.read(statement_id, fence=1, number=0)).num_rows == 1


async def test_leaving_reader_does_not_cancel_shared_read(storage, results):
    statement_id = uuid4()
    await results.append(statement_id, fence=1, number=0, start_row=0, table=numbered(0, 1))
    first = asyncio.create_task(results.read(statement_id, fence=1, number=0))
    second = asyncio.create_task(results.read(statement_id, fence=1, number=0))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).num_rows == 1
    assert first.cancelled()
    assert storage.calls["read"] == 1


@dataclass
class SlowReads(FaultyStorage):
    """A store whose reads set `begun` and then wait for `go`."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, version: FileStatus | None = None
    ) -> AsyncGenerator[bytes]:
        pieces = [piece async for piece in super().read(path, offset=offset, length=length, version=version)]
        self.begun.set()
        await self.go.wait()
        for piece in pieces:
            yield piece


async def test_segment_deleted_during_read_is_not_cached():
    storage = SlowReads(MemoryStorage())
    async with ResultStore(storage) as store:
        statement_id = uuid4()
        await store.append(statement_id, fence=1, number=0, start_row=0, table=numbered(0, 1))
        reading = asyncio.create_task(store.read(statement_id, fence=1, number=0))
        await storage.begun.wait()
        await store.delete(statement_id)
        storage.go.set()
        assert (await reading).num_rows == 1
        with pytest.raises(PathNotFound):
            await store.read(statement_id, fence=1, number=0)


async def test_close_stops_active_reads():
    storage = SlowReads(MemoryStorage())
    store = ResultStore(storage)
    statement_id = uuid4()
    await store.append(statement_id, fence=1, number=0, start_row=0, table=numbered(0, 1))
    reading = asyncio.create_task(store.read(statement_id, fence=1, number=0))
    await storage.begun.wait()
    await store.close()
    with pytest.raises(StorageUnavailable):
        await reading
    await store.close()


async def test_full_store_is_reported_and_leaves_nothing(storage, results):
    storage.failures["write"] = StorageError("no room")
    statement_id = uuid4()
    with pytest.raises(StorageError):
        await results.append(statement_id, fence=1, number=0, start_row=0, table=numbered(0, 1))
    with pytest.raises(StorageError):
        await results.ping()
    del storage.failures["write"]
    with pytest.raises(PathNotFound):
        await results.read(statement_id, fence=1, number=0)


async def test_failed_delete_is_reported_and_can_be_repeated(storage, results):
    statement_id = uuid4()
    await results.append(statement_id, fence=1, number=0, start_row=0, table=numbered(0, 1))
    storage.failures["delete"] = StorageUnavailable("gone")
    with pytest.raises(StorageUnavailable):
        await results.delete(statement_id)
    del storage.failures["delete"]
    await results.delete(statement_id)
    with pytest.raises(PathNotFound):
        await results.read(statement_id, fence=1, number=0)


@pytest.mark.parametrize("damage", ["cut_in_a_batch", "cut_between_batches", "overwritten", "emptied"])
async def test_damaged_bytes_are_reported_and_never_read_as_fewer_rows(tmp_path, damage):
    statement_id, folder = uuid4(), tmp_path / damage
    folder.mkdir()
    async with PrivateStorage(folder) as storage, ResultStore(storage) as store:
        table = pa.Table.from_batches(numbered(0, 1000).to_batches(max_chunksize=100))
        await store.append(statement_id, fence=1, number=0, start_row=0, table=table)
        (path,) = files(folder)
        stored = path.read_bytes()
        path.write_bytes(
            {
                "cut_in_a_batch": stored[: len(stored) // 2],
                "cut_between_batches": stored[:-8],
                "overwritten": stored[:300] + b"\xff" * 200 + stored[500:],
                "emptied": b"",
            }[damage]
        )
        with pytest.raises(StorageError):
            await store.read(statement_id, fence=1, number=0)
