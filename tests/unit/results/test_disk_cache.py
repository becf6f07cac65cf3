"""The disk cache of remote segments: limited in size, private, cleaned up, and never outdated."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Self
from uuid import UUID, uuid4

import pytest
from tests.contract.results_contract import numbered
from tests.fakes.storage import MemoryStorage
from tests.fakes.storage_faults import FaultyStorage
from tests.unit.statements.driving import until

from queryserver.platform.machine_limits import DiskFloor
from queryserver.results.disk_cache import DiskCache
from queryserver.results.segments import ResultStore

NAME = "1-0.arrow"


def kept(parent: Path) -> list[Path]:
    # `rglob` would fail if a directory disappeared during the walk.
    return sorted(Path(at, name) for at, _, names in os.walk(parent) for name in names if name != "lock")


@pytest.fixture
async def cache(tmp_path):
    async with DiskCache(tmp_path / "cache", 1000) as opened:
        yield opened


async def test_cached_file_is_read_completely_and_in_part(cache, tmp_path):
    one = uuid4()
    assert await cache.read(one, NAME) is None
    await cache.put(one, NAME, b"0123456789")
    assert await cache.read(one, NAME) == b"0123456789"
    assert await cache.read(one, NAME, 3, 6) == b"345"
    [file] = kept(tmp_path)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


async def test_least_recently_used_file_is_evicted(cache, tmp_path):
    ids = [uuid4() for _ in range(4)]
    for one in ids[:3]:
        await cache.put(one, NAME, bytes(300))
    await cache.read(ids[0], NAME)
    await cache.put(ids[3], NAME, bytes(300))
    found = [await cache.read(one, NAME) is not None for one in ids]
    assert found == [True, False, True, True]
    assert sum(path.stat().st_size for path in kept(tmp_path)) == 900
    await cache.put(uuid4(), NAME, bytes(1001))
    assert len(kept(tmp_path)) == 3


@pytest.mark.parametrize("damage", ["cut", "longer", "changed", "gone", "emptied"])
async def test_damaged_file_is_not_served(cache, tmp_path, damage):
    one = uuid4()
    await cache.put(one, NAME, b"0123456789")
    [file] = kept(tmp_path)
    match damage:
        case "gone":
            file.unlink()
        case "longer":
            file.write_bytes(b"0123456789x")
        case _:
            file.write_bytes({"cut": b"01234", "changed": b"0123456780", "emptied": b""}[damage])
    assert await cache.read(one, NAME) is None
    assert await cache.read(one, NAME) is None
    await cache.put(one, NAME, b"0123456789")
    assert await cache.read(one, NAME) == b"0123456789"
    if damage == "cut":
        file.write_bytes(b"01234")
        assert await cache.read(one, NAME, 0, 3) is None
    await cache.forget(one)


async def test_deleted_statement_leaves_no_files(cache, tmp_path):
    one, other = uuid4(), uuid4()
    for statement_id in (one, other):
        for number in range(2):
            await cache.put(statement_id, f"1-{number}.arrow", b"x")
    await cache.forget(one)
    assert {path.name[:36] for path in kept(tmp_path)} == {str(other)}


async def test_nothing_is_written_below_the_free_space_limit(tmp_path):
    floor = DiskFloor(min_bytes=2**62)
    async with DiskCache(tmp_path, 1000, floor=floor) as cache:
        await cache.put(uuid4(), NAME, b"x")
    assert kept(tmp_path) == []


async def test_unusable_directory_is_not_an_error(tmp_path):
    (tmp_path / "cache").write_text("no directory")
    async with DiskCache(tmp_path / "cache", 1000) as cache:
        await cache.put(uuid4(), NAME, b"x")
        assert await cache.read(uuid4(), NAME) is None


_ENDS_WITH_A_COPY = """
import asyncio, os, sys
from pathlib import Path
from typing import Self
from uuid import uuid4
from queryserver.results.disk_cache import DiskCache

async def main():
    cache = DiskCache(Path(sys.argv[1]), 1000)
    await cache.__aenter__()
    await cache.put(uuid4(), "1-0.arrow", b"of a dead process")
    os._exit(0)

asyncio.run(main())
"""


async def test_start_removes_only_orphaned_files_of_ended_processes(tmp_path):
    await asyncio.to_thread(_run, [sys.executable, "-c", _ENDS_WITH_A_COPY, str(tmp_path)])
    assert len(kept(tmp_path)) == 1
    one = uuid4()
    async with DiskCache(tmp_path, 1000) as first:
        assert kept(tmp_path) == []
        await first.put(one, NAME, b"mine")
        async with DiskCache(tmp_path, 1000):
            assert await first.read(one, NAME) == b"mine"
        assert await first.read(one, NAME) == b"mine"
    assert kept(tmp_path) == []


async def test_running_process_removes_orphaned_files_of_others_and_keeps_its_own_files(tmp_path):
    one = uuid4()
    async with DiskCache(tmp_path, 1000, sweep_every_s=0.01) as cache:
        await cache.put(one, NAME, b"mine")
        await asyncio.to_thread(_run, [sys.executable, "-c", _ENDS_WITH_A_COPY, str(tmp_path)])
        await until(lambda: len(kept(tmp_path)) == 1)
        assert await cache.read(one, NAME) == b"mine"


async def test_expired_copy_is_removed_when_read(tmp_path):
    now = 1000.0
    old = uuid4()
    async with DiskCache(tmp_path, 1000, life_s=600, sweep_every_s=3600, clock=lambda: now) as cache:
        await cache.put(old, NAME, b"old")
        now += 600
        assert await cache.read(old, NAME) is None
        assert kept(tmp_path) == []


async def test_copy_expires_at_its_age_even_if_read_often(tmp_path):
    """Another process may have deleted the result long ago, so a copy must not outlive its maximum age."""
    now = 1000.0
    old, new = uuid4(), uuid4()
    async with DiskCache(tmp_path, 1000, life_s=600, sweep_every_s=0.01, clock=lambda: now) as cache:
        await cache.put(old, NAME, b"old")
        now += 400
        await cache.put(new, NAME, b"new")
        assert await cache.read(old, NAME) == b"old"
        now += 201
        await until(lambda: len(kept(tmp_path)) == 1)
        assert await cache.read(old, NAME) is None
        assert await cache.read(new, NAME) == b"new"


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, env=os.environ, timeout=60)


class Setting:
    """A result store in memory with a disk cache, but without a cache of decoded rows."""

    def __init__(self, directory: Path) -> None:
        self.storage = FaultyStorage(MemoryStorage())
        self.cache = DiskCache(directory, 10_000_000)
        self.store = ResultStore(self.storage, cache_bytes=0, disk_cache=self.cache)

    async def __aenter__(self) -> Self:
        await self.cache.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.store.close()
        await self.cache.__aexit__(*error)

    async def stored(self, rows: int) -> UUID:
        statement_id = uuid4()
        await self.store.append(statement_id, fence=1, number=0, start_row=0, table=numbered(0, rows))
        return statement_id


async def test_segment_is_read_once_from_the_store(tmp_path):
    async with Setting(tmp_path) as setting:
        one = await setting.stored(5000)
        for start in range(0, 5000, 100):
            page = await setting.store.rows(one, fence=1, number=0, start_row=start, rows=100)
            assert page.to_pylist() == numbered(start, 100).to_pylist()
        assert (await setting.store.read(one, fence=1, number=0)).num_rows == 5000
        assert setting.storage.calls["read"] == 1


@pytest.mark.parametrize("damage", ["cut", "changed"])
async def test_damaged_copy_is_read_again_from_the_store(tmp_path, damage):
    async with Setting(tmp_path / damage) as setting:
        one = await setting.stored(5000)
        await setting.store.read(one, fence=1, number=0)
        [file] = kept(tmp_path / damage)
        content = file.read_bytes()
        file.write_bytes(content[:-8] if damage == "cut" else content[:900] + b"\xff" * 50 + content[950:])
        assert (await setting.store.read(one, fence=1, number=0)).to_pylist() == numbered(0, 5000).to_pylist()
        assert setting.storage.calls["read"] == 2
