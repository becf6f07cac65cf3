"""Files of stores as files to be imported; uploads are in tests/api/importer."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from tests.fakes.storage import MemoryFileSystem
from tests.fakes.storage_faults import FaultyFileSystem
from tests.refusals import raises_code

from queryserver.errors.base import PermissionDenied, QueryServerError
from queryserver.errors.files import (
    ChangedMeanwhile,
    NotADirectory,
    PathNotFound,
    StorageUnavailable,
    SymlinkNotFollowed,
)
from queryserver.files.model import PathReader, Scheme
from queryserver.files.places import Stores
from queryserver.identity.model import User
from queryserver.imports.model import Origin
from queryserver.imports.uploads import ImportFile, ImportSources, ImportUploads

EVA = User(1, "eva")
CONTENT = bytes(range(256))


class CopyingUploads:
    """What of the upload area remote files need: room for copies."""

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


async def test_ranges_are_those_of_the_file(sources: ImportSources, store: FaultyFileSystem):
    file = await sources.find(EVA, Origin.REMOTE, "/area/x")
    assert (file.shown, file.size_bytes, file.fixed_identity) == ("/area/x", 256, None)
    assert await read(file) == CONTENT
    assert await read(file, 10, 5) == CONTENT[10:15]
    assert await read(file, 250) == CONTENT[250:]
    assert await read(file, 250, 100) == CONTENT[250:]
    asked = store.calls["read"]
    assert await read(file, 256) == await read(file, 1000, 5) == b""
    assert store.calls["read"] == asked


async def test_the_version_that_was_found_is_read(sources: ImportSources, store: FaultyFileSystem):
    file = await sources.find(EVA, Origin.REMOTE, "/area/x")
    memory = store.inner
    assert isinstance(memory, MemoryFileSystem)
    memory.tree.put("area/x", b"other")
    with pytest.raises(ChangedMeanwhile):
        await read(file)


async def test_a_copy_lives_as_long_as_it_is_used(sources: ImportSources, tmp_path: Path):
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
async def test_what_stores_say_is_told_as_the_importer_does(
    sources: ImportSources, store: FaultyFileSystem, call: str, failure: QueryServerError, told: str
):
    store.failures[call] = failure
    with raises_code(told) as raised:
        file = await sources.find(EVA, Origin.REMOTE, "/area/x")
        await read(file)
    assert "inode" not in raised.value.message


@pytest.mark.importer(16)
@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/area/nothing", "file_not_found"),
        ("/area/d", "invalid_parameter"),
        ("/", "invalid_parameter"),
        ("/area/../x", "invalid_parameter"),
        ("gopher://x", "invalid_parameter"),
        ("s3a://b/x", "invalid_parameter"),
        ("  ", "missing_parameter"),
    ],
)
async def test_other_paths_are_refused(sources: ImportSources, path: str, told: str):
    with raises_code(told):
        await sources.find(EVA, Origin.REMOTE, path)
