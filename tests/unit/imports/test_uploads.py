"""Uploaded files, their cleanup, and files on the stores."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
from tests.fakes.import_uploads import MemoryImportUploads
from tests.fakes.storage import MemoryFileSystem
from tests.fakes.storage_faults import FaultyFileSystem
from tests.refusals import raises_code

from queryserver.errors.base import DatabaseUnavailable, PermissionDenied
from queryserver.errors.files import EntryChanged, NotADirectory, PathNotFound, StorageUnavailable, SymlinkNotFollowed
from queryserver.files.access import Stores
from queryserver.files.model import PathReader, Scheme
from queryserver.files.stores.local.storage import LocalUploadArea
from queryserver.identity.model import User
from queryserver.imports.model import Origin
from queryserver.imports.uploads import (
    ImportFile,
    ImportSources,
    ImportUploads,
    ReceivedUpload,
    UploadAreaSweep,
    UploadLimits,
    UploadUsage,
)

ANA = User(1, "ana")
LIMITS = UploadLimits(max_file_bytes=1000, max_usage=UploadUsage(3, 2000))


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
async def test_upload_without_a_record_leaves_no_file(
    uploads: ImportUploads, records: MemoryImportUploads, tmp_path: Path
):
    records.is_down = True
    with pytest.raises(DatabaseUnavailable):
        await receive(uploads)
    assert names_in(tmp_path) == []


@pytest.mark.importer(8)
async def test_call_canceled_before_the_record_leaves_no_file(uploads, records, tmp_path) -> None:
    records.hangs = True
    receiving = asyncio.create_task(receive(uploads))
    await records.asked.wait()
    assert len(names_in(tmp_path)) == 1
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert names_in(tmp_path) == []


@pytest.mark.security("T30")
async def test_remaining_quota_is_granted_once(uploads: ImportUploads, tmp_path: Path):
    room = [await uploads.admit(ANA, None) for _ in range(2)]
    assert room == [2000, 2000]
    for _ in range(2):
        await uploads.receive(ANA, "a", content(900), room_bytes=2000)
    with raises_code("quota_exceeded"):
        await uploads.receive(ANA, "a", content(900), room_bytes=2000)
    assert len(names_in(tmp_path)) == 2


async def test_unremovable_file_does_not_prevent_the_removal_of_others(uploads, records, area, tmp_path) -> None:
    received = [await receive(uploads) for _ in range(3)]
    first = area.path_of(received[0].reference.digest.hex())
    first.unlink()
    (first / "inside").mkdir(parents=True)
    for digest, (new, end) in records.uploads.items():
        records.uploads[digest] = new, end - timedelta(days=2)
    assert await UploadAreaSweep(records, area).clean_up() == {"expired import files": 3, "abandoned import files": 0}
    assert names_in(tmp_path) == [first.name]


async def test_use_extends_even_a_short_lifetime(records: MemoryImportUploads, area: LocalUploadArea):
    uploads = ImportUploads(records, area, replace(LIMITS, keep=timedelta(seconds=30)))
    reference = (await receive(uploads)).reference
    new, end = records.uploads[reference.digest]
    records.uploads[reference.digest] = new, end - timedelta(seconds=20)
    found = await uploads.find(ANA, str(reference))
    assert records.uploads[reference.digest][1] > end - timedelta(seconds=1)
    assert (found.display_name, found.size_bytes, found.fixed_identity) == ("a.csv", 10, reference.digest.hex())
    async with found.on_disk() as place:
        assert place.stat().st_size == 10
    assert b"".join([piece async for piece in found.read(offset=3, length=5)]) == bytes(5)
    with raises_code("file_not_found"):
        await uploads.find(User(2, "bob"), str(reference))


EVA = User(1, "eva")
CONTENT = bytes(range(256))


class CopyingUploads:
    """An upload area with only the temporary copies that files on remote stores need."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @asynccontextmanager
    async def temporary_copy(self, content: AsyncGenerator[bytes]) -> AsyncGenerator[Path]:
        path = self.directory / "copy"
        path.write_bytes(b"".join([piece async for piece in content]))
        try:
            yield path
        finally:
            path.unlink()


@pytest.fixture
def store() -> FaultyFileSystem:
    memory = MemoryFileSystem(Scheme.HDFS)
    memory.tree.put("area/x", CONTENT)
    memory.tree.make_container("area/d")
    return FaultyFileSystem(memory)


@pytest.fixture
def sources(store: FaultyFileSystem, tmp_path: Path) -> ImportSources:
    stores = Stores([store], PathReader([Scheme.HDFS]))
    return ImportSources(cast("ImportUploads", CopyingUploads(tmp_path)), stores, max_copy_bytes=256)


async def read(file: ImportFile, offset: int = 0, length: int | None = None) -> bytes:
    return b"".join([piece async for piece in file.read(offset=offset, length=length)])


async def test_ranges_match_the_file(sources: ImportSources, store: FaultyFileSystem):
    file = await sources.find(EVA, Origin.REMOTE, "/area/x")
    assert (file.display_name, file.size_bytes, file.fixed_identity) == ("/area/x", 256, None)
    assert await read(file) == CONTENT
    assert await read(file, 10, 5) == CONTENT[10:15]
    assert await read(file, 250) == CONTENT[250:]
    assert await read(file, 250, 100) == CONTENT[250:]
    asked = store.calls["read"]
    assert await read(file, 256) == await read(file, 1000, 5) == b""
    assert store.calls["read"] == asked


async def test_found_version_is_read(sources: ImportSources, store: FaultyFileSystem):
    file = await sources.find(EVA, Origin.REMOTE, "/area/x")
    memory = store.inner
    assert isinstance(memory, MemoryFileSystem)
    memory.tree.put("area/x", b"other")
    with pytest.raises(EntryChanged):
        await read(file)


async def test_copy_exists_only_while_in_use(sources: ImportSources, tmp_path: Path):
    async def fail(file: ImportFile) -> None:
        async with file.on_disk() as path:
            assert path.read_bytes() == CONTENT
            raise ValueError("broken")

    file = await sources.find(EVA, Origin.REMOTE, "/area/x")
    with pytest.raises(ValueError, match="broken"):
        await fail(file)
    assert files_in(tmp_path) == []


def files_in(directory: Path) -> list[Path]:
    return list(directory.iterdir())


async def test_files_above_the_limit_are_not_copied(sources: ImportSources, store: FaultyFileSystem):
    memory = store.inner
    assert isinstance(memory, MemoryFileSystem)
    memory.tree.put("area/large", bytes(257))
    file = await sources.find(EVA, Origin.REMOTE, "/area/large")
    with raises_code("file_too_large"):
        async with file.on_disk():
            pass
    assert not store.calls["read"]


@pytest.mark.importer(46)
@pytest.mark.parametrize("call", ["stat", "read"])
@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (PathNotFound("gone"), "file_not_found"),
        (NotADirectory("x is a file"), "file_not_found"),
        (PermissionDenied("inode of eva"), "permission_denied"),
        (SymlinkNotFollowed("a link"), "invalid_parameter"),
        (StorageUnavailable("down"), "storage_unavailable"),
    ],
)
async def test_store_errors_map_to_importer_errors(sources, store, call, failure, told) -> None:
    store.failures = {call: failure}
    with raises_code(told) as raised:
        file = await sources.find(EVA, Origin.REMOTE, "/area/x")
        await read(file)
    assert "inode" not in raised.value.message


@pytest.mark.importer(16)
@pytest.mark.parametrize(("path", "told"),
    [("/area/nothing", "file_not_found"), ("/area/d", "invalid_parameter"), ("/", "invalid_parameter"),
    ("/area/../x", "invalid_parameter"), ("gopher://x", "invalid_parameter"), ("s3a://b/x", "invalid_parameter"),
    ("  ", "missing_parameter")])  # fmt: skip
async def test_invalid_paths_are_rejected(sources: ImportSources, path: str, told: str):
    with raises_code(told):
        await sources.find(EVA, Origin.REMOTE, path)
