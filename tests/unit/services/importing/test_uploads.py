"""Uploads when something fails at the end of them (Contract importer 3.2, 3.4)."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.fakes.import_uploads import MemoryImportUploads
from tests.refusals import raises_code

from queryserver.errors.base import DatabaseUnavailable
from queryserver.files.stores.local.storage import LocalUploadArea
from queryserver.identity.model import User
from queryserver.imports.uploads import ImportUploads, ReceivedUpload, UploadAreaSweep, UploadLimits, UploadUsage

ANA = User(1, "ana")
LIMITS = UploadLimits(max_file_bytes=1000, most=UploadUsage(3, 2000))


@pytest.fixture
def records() -> MemoryImportUploads:
    return MemoryImportUploads()


@pytest.fixture
async def area(tmp_path: Path) -> AsyncIterator[LocalUploadArea]:
    async with LocalUploadArea(tmp_path) as opened:
        yield opened


@pytest.fixture
def uploads(records: MemoryImportUploads, area: LocalUploadArea) -> ImportUploads:
    return ImportUploads(records, area, LIMITS)


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def content(size: int) -> AsyncGenerator[bytes]:
    yield bytes(size)


async def receive(uploads: ImportUploads, size: int = 10) -> ReceivedUpload:
    return await uploads.receive(ANA, "a.csv", content(size), room_bytes=await uploads.admit(ANA, None))


@pytest.mark.importer(8)
async def test_without_a_record_no_file_stays(uploads: ImportUploads, records: MemoryImportUploads, tmp_path: Path):
    records.is_down = True
    with pytest.raises(DatabaseUnavailable):
        await receive(uploads)
    assert names_in(tmp_path) == []


@pytest.mark.importer(8)
async def test_a_call_that_is_ended_before_the_record_leaves_no_file(
    uploads: ImportUploads, records: MemoryImportUploads, tmp_path: Path
):
    records.hangs = True
    receiving = asyncio.create_task(receive(uploads))
    await records.asked.wait()
    assert len(names_in(tmp_path)) == 1
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert names_in(tmp_path) == []


@pytest.mark.security("T30")
async def test_the_last_room_is_given_once(uploads: ImportUploads, tmp_path: Path):
    room = [await uploads.admit(ANA, None) for _ in range(2)]
    assert room == [2000, 2000]
    for _ in range(2):
        await uploads.receive(ANA, "a", content(900), room_bytes=2000)
    with raises_code("quota_exceeded"):
        await uploads.receive(ANA, "a", content(900), room_bytes=2000)
    assert len(names_in(tmp_path)) == 2


async def test_a_file_that_cannot_be_removed_keeps_no_other(
    uploads: ImportUploads, records: MemoryImportUploads, area: LocalUploadArea, tmp_path: Path
):
    received = [await receive(uploads) for _ in range(3)]
    first = area.place(received[0].reference.digest.hex())
    first.unlink()
    (first / "inside").mkdir(parents=True)
    for digest, (new, end) in records.uploads.items():
        records.uploads[digest] = new, end - timedelta(days=2)
    assert await UploadAreaSweep(records, area).clean_up() == {
        "expired import files": 3,
        "abandoned import files": 0,
    }
    assert names_in(tmp_path) == [first.name]


async def test_use_prolongs_a_short_life_too(records: MemoryImportUploads, area: LocalUploadArea):
    uploads = ImportUploads(records, area, replace(LIMITS, keep=timedelta(seconds=30)))
    reference = (await receive(uploads)).reference
    new, end = records.uploads[reference.digest]
    records.uploads[reference.digest] = new, end - timedelta(seconds=20)
    found = await uploads.find(ANA, str(reference))
    assert records.uploads[reference.digest][1] > end - timedelta(seconds=1)
    assert (found.shown, found.size_bytes, found.fixed_identity) == ("a.csv", 10, reference.digest.hex())
    async with found.on_disk() as place:
        assert place.stat().st_size == 10
    assert b"".join([piece async for piece in found.read(offset=3, length=5)]) == bytes(5)
    with raises_code("file_not_found"):
        await uploads.find(User(2, "bob"), str(reference))
