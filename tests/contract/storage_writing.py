"""The part of the storage contract that tests reading and writing of files."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from tests.contract.storage_basis import MIB, StorageBasis, body, content, failing_body, is_there, names, put
from tests.refusals import raises_code

from queryserver.errors.files import EntryChanged, NotAFile, PathExists, PathNotFound, upload_aborted
from queryserver.files.model import EntryKind
from queryserver.files.protocol import Storage


class WritingContract(StorageBasis):
    """The `StorageContract` tests for reading and writing files."""

    @pytest.mark.power("Read and write")
    async def test_written_content_is_read_back(self, storage: Storage, base: str) -> None:
        status = await storage.write(f"{base}/file", body(b"one", b"", b"two"), overwrite=False)
        assert (status.path, status.kind, status.size_bytes) == (f"{base}/file", EntryKind.FILE, 6)
        assert await content(storage, f"{base}/file") == b"onetwo"
        assert (await storage.stat(f"{base}/file")).is_same_content(status)

    @pytest.mark.power("Read and write")
    async def test_missing_parents_are_created(self, storage: Storage, base: str) -> None:
        await put(storage, f"{base}/a/b/file")
        assert (await storage.stat(f"{base}/a/b")).is_directory
        assert await names(storage, f"{base}/a") == ["b"]

    @pytest.mark.power("Read and write")
    async def test_file_may_be_empty(self, storage: Storage, base: str) -> None:
        assert (await storage.write(f"{base}/empty", body(), overwrite=False)).size_bytes == 0
        assert await content(storage, f"{base}/empty") == b""
        assert (await storage.stat(f"{base}/empty")).is_file

    @pytest.mark.power("Read and write")
    async def test_file_of_many_chunks_is_stored_completely(self, storage: Storage, base: str) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for number in range(48):
                yield bytes([number]) * (200_000 + number)

        expected = b"".join([piece async for piece in pieces()])
        status = await storage.write(f"{base}/big", pieces(), overwrite=False)
        assert status.size_bytes == len(expected)
        read = [piece async for piece in storage.read(f"{base}/big")]
        assert max(map(len, read)) <= MIB
        assert b"".join(read) == expected

    @pytest.mark.storage(17)
    @pytest.mark.power("Names")
    async def test_awkward_names_are_kept(self, storage: Storage, base: str) -> None:
        awkward = sorted(self.facts.awkward_names)
        for name in awkward:
            await put(storage, f"{base}/{name}", name.encode())
        assert await names(storage, base) == awkward
        for name in awkward:
            assert (await storage.stat(f"{base}/{name}")).name == name
            assert await content(storage, f"{base}/{name}") == name.encode()
            await storage.delete(f"{base}/{name}", recursive=False)
        assert await names(storage, base) == []

    @pytest.mark.storage(17)
    @pytest.mark.power("Names")
    async def test_directories_keep_awkward_names(self, storage: Storage, base: str) -> None:
        for name in sorted(self.facts.awkward_names)[:5]:
            await put(storage, f"{base}/{name}/{name}", name.encode())
            assert await names(storage, f"{base}/{name}") == [name]
            assert await content(storage, f"{base}/{name}/{name}") == name.encode()

    @pytest.mark.power("Read and write")
    async def test_read_returns_requested_range(self, storage: Storage, base: str) -> None:
        await put(storage, f"{base}/file", b"0123456789")
        for offset, length, expected in (
            (3, 4, b"3456"),
            (8, 9, b"89"),
            (7, None, b"789"),
            (0, 0, b""),
            (10, None, b""),
            (99, 1, b""),
        ):
            assert await content(storage, f"{base}/file", offset=offset, length=length) == expected

    @pytest.mark.power("Read and write")
    async def test_read_can_be_stopped_early(self, storage: Storage, base: str) -> None:
        await put(storage, f"{base}/big", b"x" * (3 * MIB))
        for _ in range(3):
            async with aclosing(storage.read(f"{base}/big")) as pieces:
                assert await anext(pieces)
        await storage.delete(f"{base}/big", recursive=False)

    @pytest.mark.power("Read and write")
    async def test_version_is_read_or_refused_but_never_mixed(self, storage: Storage, base: str) -> None:
        await put(storage, f"{base}/file", b"old")
        version = await storage.stat(f"{base}/file")
        assert await content(storage, f"{base}/file", version=version) == b"old"
        await put(storage, f"{base}/file", b"newer", overwrite=True)
        with pytest.raises(EntryChanged):
            await content(storage, f"{base}/file", version=version)

    @pytest.mark.power("Read and write")
    async def test_directory_is_not_a_file(self, storage: Storage, base: str) -> None:
        await storage.mkdir(f"{base}/d")
        await put(storage, f"{base}/full/file")
        for name in ("d", "full"):
            with pytest.raises(NotAFile):
                await content(storage, f"{base}/{name}")

    @pytest.mark.storage(64, 85)
    @pytest.mark.power("Nothing is replaced by accident")
    async def test_file_is_replaced_only_with_overwrite(self, storage: Storage, base: str) -> None:
        await put(storage, f"{base}/file", b"old")
        with pytest.raises(PathExists):
            await put(storage, f"{base}/file", b"new")
        assert await content(storage, f"{base}/file") == b"old"
        await put(storage, f"{base}/file", b"newer", overwrite=True)
        assert await content(storage, f"{base}/file") == b"newer"
        assert await names(storage, base) == ["file"]

    @pytest.mark.storage(57)
    @pytest.mark.power("Nothing is replaced by accident")
    async def test_one_of_many_writers_without_overwrite_wins(self, storage: Storage, base: str) -> None:
        writes = [put(storage, f"{base}/file", b"%d" % n) for n in range(5)]
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        winners = [n for n, outcome in enumerate(outcomes) if not isinstance(outcome, BaseException)]
        assert {type(outcome) for n, outcome in enumerate(outcomes) if n not in winners} <= {PathExists}
        assert await content(storage, f"{base}/file") in [b"%d" % n for n in winners]
        if self.facts.excludes_writers:
            assert len(winners) == 1
        assert await names(storage, base) == ["file"]

    @pytest.mark.power("Nothing is replaced by accident")
    async def test_one_of_many_mkdir_calls_wins(self, storage: Storage, base: str) -> None:
        makings = [storage.mkdir(f"{base}/d") for _ in range(5)]
        outcomes = await asyncio.gather(*makings, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} <= {type(None), PathExists}
        assert outcomes.count(None) == 1 if self.facts.excludes_makers else outcomes.count(None) >= 1
        assert (await storage.stat(f"{base}/d")).is_directory

    @pytest.mark.storage(64)
    @pytest.mark.power("Nothing is replaced by accident")
    async def test_file_never_replaces_directory(self, storage: Storage, base: str) -> None:
        await put(storage, f"{base}/full/file")
        await storage.mkdir(f"{base}/empty")
        for name in ("full", "empty"):
            for overwrite in (True, False):
                with pytest.raises(PathExists):
                    await put(storage, f"{base}/{name}", b"y", overwrite=overwrite)
        assert await content(storage, f"{base}/full/file") == b"x"
        assert (await storage.stat(f"{base}/empty")).is_directory

    @pytest.mark.storage(86)
    @pytest.mark.power("Files appear complete")
    async def test_file_appears_only_when_complete(self, storage: Storage, base: str) -> None:
        async def watching() -> AsyncIterator[bytes]:
            yield b"one"
            assert await names(storage, base) == []
            assert not await is_there(storage, f"{base}/file")
            yield b"two"

        await storage.write(f"{base}/file", watching(), overwrite=False)
        assert await names(storage, base) == ["file"]

    @pytest.mark.storage(86)
    @pytest.mark.power("Files appear complete")
    async def test_old_file_is_read_until_new_one_is_complete(self, storage: Storage, base: str) -> None:
        async def watching() -> AsyncIterator[bytes]:
            yield b"new"
            assert await content(storage, f"{base}/file") == b"old"
            yield b"er"

        await put(storage, f"{base}/file", b"old")
        await storage.write(f"{base}/file", watching(), overwrite=True)
        assert await content(storage, f"{base}/file") == b"newer"

    @pytest.mark.storage(59, 86)
    @pytest.mark.power("Files appear complete")
    async def test_failing_body_leaves_existing_file(self, storage: Storage, base: str) -> None:
        for piece in (b"x", b"x" * (2 * MIB)):
            with raises_code("upload_aborted"):
                await storage.write(
                    f"{base}/file", failing_body(piece, piece, error=upload_aborted("gone")), overwrite=True
                )
            assert await names(storage, base) == []
        await put(storage, f"{base}/file", b"old")
        with raises_code("upload_aborted"):
            await storage.write(f"{base}/file", failing_body(b"new", error=upload_aborted("gone")), overwrite=True)
        assert await content(storage, f"{base}/file") == b"old"
        assert await names(storage, base) == ["file"]

    @pytest.mark.storage(86)
    @pytest.mark.power("Files appear complete")
    async def test_canceled_write_leaves_nothing(self, storage: Storage, base: str) -> None:
        begun = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 65536
                begun.set()
                await asyncio.sleep(0.001)

        writing = asyncio.create_task(storage.write(f"{base}/file", endless(), overwrite=False))
        async with asyncio.timeout(self.facts.patience_s):
            await begun.wait()
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
        assert await names(storage, base) == []
        # The canceled write has released the name.
        await put(storage, f"{base}/file")

    @pytest.mark.power("Files appear complete")
    async def test_sweep_spares_files_and_active_writes(self, storage: Storage, base: str) -> None:
        await put(storage, f"{base}/old")

        async def swept_meanwhile() -> AsyncIterator[bytes]:
            yield b"one"
            assert await storage.sweep_orphans(base, older_than_s=3600) == 0
            yield b"two"

        await storage.write(f"{base}/file", swept_meanwhile(), overwrite=False)
        assert await content(storage, f"{base}/file") == b"onetwo"
        assert await names(storage, base) == ["file", "old"]

    @pytest.mark.power("Failures")
    async def test_sweep_of_missing_directory_is_reported(self, storage: Storage, base: str) -> None:
        try:
            assert await storage.sweep_orphans(f"{base}/missing", older_than_s=3600) == 0
        except PathNotFound:
            return
        assert not self.facts.has_directories, "only a store of prefixes cannot tell"
