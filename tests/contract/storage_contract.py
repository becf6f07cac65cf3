"""What every Storage does, whatever it stands on. A test class per adapter inherits `StorageContract`."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.fakes.storage import FaultyStorage

from queryserver.domain.errors import (
    DirectoryNotEmpty,
    InvalidPath,
    PathExists,
    PathNotFound,
    QueryServerError,
    StorageFull,
)
from queryserver.interfaces.storage import Storage

MIB = 1024 * 1024

INVALID_PATHS = [
    "..",
    "../x",
    "a/../x",
    "a/..",
    ".",
    "./a",
    "a/./b",
    "/etc/passwd",
    "//a",
    "a//b",
    "a/",
    "a\\b",
    "..\\x",
    "a\0b",
    "s3a://bucket/x",
    "file:///etc/passwd",
    "\u2024\u2024/x",
    "\uff0e\uff0e",
    "\u2025",
    "lone\ud800surrogate",
    "x" * 256,
    "é" * 128,
    "a/" * 3000 + "a",
    "._qs_upload_0",
]


async def body(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def content(storage: Storage, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
    return b"".join([piece async for piece in storage.read(path, offset=offset, length=length)])


async def listing(storage: Storage, path: str = "", *, start_after: str | None = None) -> list[str]:
    return [entry.path async for entry in storage.list_directory(path, start_after=start_after)]


class StorageContract:
    @pytest.fixture
    async def storage(self) -> Storage:
        """An empty store; the adapter's class gives it."""
        raise NotImplementedError

    async def test_what_was_written_is_read(self, storage):
        assert await storage.write("a/b/file", body(b"one", b"", b"two"), overwrite=False) == 6
        assert await content(storage, "a/b/file") == b"onetwo"

    async def test_a_file_may_be_empty(self, storage):
        assert await storage.write("empty", body(), overwrite=False) == 0
        assert await content(storage, "empty") == b""
        assert (await storage.stat("empty")).size_bytes == 0

    async def test_names_are_kept_as_they_are(self, storage):
        names = sorted(["blue pen", "%2e%2e", "é😀", "e\u0301", "a#b?c&d", "-rf", ".hidden", "quote'\"", "trailing."])
        for name in names:
            await storage.write(f"names/{name}", body(name.encode()), overwrite=False)
        assert await listing(storage, "names") == [f"names/{name}" for name in names]
        assert [await content(storage, f"names/{name}") for name in names] == [name.encode() for name in names]

    async def test_reading_gives_the_bytes_from_offset_for_length(self, storage):
        await storage.write("file", body(b"0123456789"), overwrite=False)
        assert await content(storage, "file", offset=3, length=4) == b"3456"
        assert await content(storage, "file", offset=8, length=9) == b"89"
        assert await content(storage, "file", offset=7) == b"789"
        assert await content(storage, "file", length=0) == b""
        assert await content(storage, "file", offset=10) == b""
        assert await content(storage, "file", offset=99, length=1) == b""

    async def test_pieces_are_at_most_one_mib(self, storage):
        written = bytes(range(256)) * (10 * 1024) + b"end"
        await storage.write("big", body(written), overwrite=False)
        pieces = [piece async for piece in storage.read("big")]
        assert max(map(len, pieces)) <= MIB
        assert b"".join(pieces) == written

    async def test_reading_may_be_stopped(self, storage):
        await storage.write("big", body(b"x" * (3 * MIB)), overwrite=False)
        pieces = storage.read("big")
        assert await anext(pieces)
        await pieces.aclose()
        await storage.delete("big", recursive=False)

    async def test_a_file_that_is_replaced_is_read_whole_as_one_of_both(self, storage):
        await storage.write("file", body(b"old"), overwrite=False)
        await storage.write("file", body(b"newer"), overwrite=True)
        assert await content(storage, "file") == b"newer"

    async def test_nothing_is_replaced_without_overwrite(self, storage):
        await storage.write("file", body(b"old"), overwrite=False)
        with pytest.raises(PathExists):
            await storage.write("file", body(b"new"), overwrite=False)
        assert await content(storage, "file") == b"old"
        assert await listing(storage) == ["file"]

    async def test_of_many_writers_without_overwrite_one_wins(self, storage):
        writes = [storage.write("file", body(b"%d" % n), overwrite=False) for n in range(10)]
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        assert outcomes.count(1) == 1
        assert sum(isinstance(outcome, PathExists) for outcome in outcomes) == 9
        assert await content(storage, "file") == b"%d" % outcomes.index(1)

    @pytest.mark.parametrize("overwrite", [True, False])
    async def test_a_directory_is_never_replaced_by_a_file(self, storage, overwrite):
        await storage.write("directory/file", body(b"x"), overwrite=False)
        with pytest.raises(PathExists):
            await storage.write("directory", body(b"y"), overwrite=overwrite)
        assert await content(storage, "directory/file") == b"x"

    async def test_a_file_is_no_directory(self, storage):
        await storage.write("file", body(b"x"), overwrite=False)
        with pytest.raises(PathNotFound):
            await content(storage, "file/inner")
        with pytest.raises(PathNotFound):
            await listing(storage, "file")
        with pytest.raises(PathExists):
            await storage.write("file/inner", body(b"y"), overwrite=False)
        with pytest.raises(PathExists):
            await storage.mkdir("file")

    async def test_a_directory_is_no_file(self, storage):
        await storage.mkdir("directory")
        with pytest.raises(InvalidPath):
            await content(storage, "directory")

    async def test_a_file_appears_only_when_it_is_complete(self, storage):
        seen = []

        async def watching() -> AsyncIterator[bytes]:
            yield b"one"
            seen.extend(await listing(storage))
            with pytest.raises(PathNotFound):
                await storage.stat("file")
            yield b"two"

        await storage.write("file", watching(), overwrite=False)
        assert seen == []
        assert await listing(storage) == ["file"]

    async def test_a_body_that_fails_leaves_nothing(self, storage):
        full = FaultyStorage(storage, failures={"write": StorageFull("no room")}, after_pieces=2)
        with pytest.raises(StorageFull):
            await full.write("file", body(b"one", b"two", b"three"), overwrite=True)
        assert await listing(storage) == []

    async def test_a_body_that_fails_leaves_the_old_file(self, storage):
        await storage.write("file", body(b"old"), overwrite=False)
        full = FaultyStorage(storage, failures={"write": StorageFull("no room")})
        with pytest.raises(StorageFull):
            await full.write("file", body(b"new"), overwrite=True)
        assert await content(storage, "file") == b"old"

    async def test_a_cancelled_write_leaves_nothing(self, storage):
        begun = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 65536
                begun.set()
                await asyncio.sleep(0.001)

        writing = asyncio.create_task(storage.write("file", endless(), overwrite=False))
        await begun.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert await listing(storage) == []

    async def test_listing_is_in_order_of_names_and_goes_on_after_one(self, storage):
        for name in ["b", "a", "B", "é", "a.b", "10", "9"]:
            await storage.write(f"d/{name}", body(b"x"), overwrite=False)
        assert await listing(storage, "d") == [f"d/{name}" for name in ["10", "9", "B", "a", "a.b", "b", "é"]]
        assert await listing(storage, "d", start_after="a") == ["d/a.b", "d/b", "d/é"]
        assert await listing(storage, "d", start_after="é") == []

    async def test_listing_shows_one_level_with_sizes(self, storage):
        await storage.write("d/inner/file", body(b"x"), overwrite=False)
        await storage.write("d/top", body(b"four"), overwrite=False)
        entries = [entry async for entry in storage.list_directory("d")]
        assert [(e.path, e.is_directory, e.size_bytes) for e in entries] == [("d/inner", True, 0), ("d/top", False, 4)]
        assert all(entry.modified_at.utcoffset() is not None for entry in entries)

    async def test_the_root_is_an_empty_path(self, storage):
        assert await listing(storage) == []
        assert (await storage.stat("")).is_directory
        await storage.mkdir("")
        with pytest.raises(InvalidPath):
            await storage.delete("", recursive=True)
        with pytest.raises(InvalidPath):
            await storage.write("", body(b"x"), overwrite=True)
        with pytest.raises(InvalidPath):
            await storage.rename("", "x")

    async def test_mkdir_twice_is_harmless(self, storage):
        await storage.mkdir("a/b/c")
        await storage.mkdir("a/b/c")
        assert (await storage.stat("a/b/c")).is_directory

    async def test_what_is_missing_is_not_found(self, storage):
        for call in (
            storage.stat("x/y"),
            content(storage, "x"),
            listing(storage, "x"),
            storage.delete("x", recursive=True),
            storage.rename("x", "y"),
            storage.copy("x", "y"),
        ):
            with pytest.raises(PathNotFound):
                await call

    async def test_rename_moves_files_and_trees(self, storage):
        await storage.write("a/inner/file", body(b"x"), overwrite=False)
        await storage.mkdir("b")
        await storage.rename("a", "b/c")
        await storage.rename("b/c/inner/file", "b/file")
        assert await content(storage, "b/file") == b"x"
        assert await listing(storage) == ["b"]
        assert await listing(storage, "b") == ["b/c", "b/file"]

    async def test_rename_never_replaces(self, storage):
        for path in ("file", "other", "directory/file"):
            await storage.write(path, body(path.encode()), overwrite=False)
        for source, target in (
            ("file", "other"),
            ("file", "directory"),
            ("directory", "file"),
            ("file", "file"),
            ("directory", "directory"),
        ):
            with pytest.raises(PathExists):
                await storage.rename(source, target)
        assert [await content(storage, path) for path in ("file", "other", "directory/file")] == [
            b"file",
            b"other",
            b"directory/file",
        ]

    async def test_rename_needs_the_targets_parent(self, storage):
        await storage.write("file", body(b"x"), overwrite=False)
        with pytest.raises(PathNotFound):
            await storage.rename("file", "missing/file")
        assert await content(storage, "file") == b"x"

    async def test_a_directory_is_not_moved_into_itself(self, storage):
        await storage.mkdir("a/b")
        with pytest.raises(InvalidPath):
            await storage.rename("a", "a/b/c")

    async def test_copy_copies_one_file_and_never_replaces(self, storage):
        await storage.write("file", body(b"x" * (2 * MIB + 1)), overwrite=False)
        await storage.copy("file", "d/copy")
        assert await content(storage, "d/copy") == await content(storage, "file")
        with pytest.raises(PathExists):
            await storage.copy("file", "d/copy")
        with pytest.raises(InvalidPath):
            await storage.copy("d", "e")

    async def test_delete_of_a_full_directory_must_be_meant(self, storage):
        await storage.write("a/b/file", body(b"x"), overwrite=False)
        with pytest.raises(DirectoryNotEmpty):
            await storage.delete("a", recursive=False)
        assert await content(storage, "a/b/file") == b"x"
        await storage.delete("a", recursive=True)
        assert await listing(storage) == []

    async def test_delete_of_files_and_empty_directories(self, storage):
        await storage.write("a/file", body(b"x"), overwrite=False)
        await storage.delete("a/file", recursive=False)
        await storage.delete("a", recursive=False)
        assert await listing(storage) == []

    @pytest.mark.security("T1")
    @pytest.mark.parametrize("path", INVALID_PATHS)
    async def test_no_call_takes_a_path_that_leaves_the_root_or_is_none(self, storage, path):
        await storage.write("file", body(b"x"), overwrite=False)
        for call in (
            storage.stat(path),
            content(storage, path),
            listing(storage, path),
            storage.write(path, body(b"x"), overwrite=True),
            storage.mkdir(path),
            storage.rename("file", path),
            storage.rename(path, "y"),
            storage.copy("file", path),
            storage.copy(path, "y"),
            storage.delete(path, recursive=True),
        ):
            with pytest.raises(InvalidPath):
                await call
        assert await listing(storage) == ["file"]

    async def test_messages_name_no_place_on_the_machine(self, storage):
        for call in (storage.stat("x"), storage.mkdir("a\0"), storage.delete("x", recursive=False)):
            with pytest.raises(QueryServerError) as failure:
                await call
            assert "/" not in failure.value.message
            assert "Errno" not in failure.value.message
