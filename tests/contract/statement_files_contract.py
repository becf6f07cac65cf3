"""The contract of file access by statements, for each store (Contract editor 4.7). `StorageBasis` describes the
fixtures.
"""

import asyncio

import pytest
from tests.contract.storage_basis import StorageBasis, content, names, put
from tests.contract.storage_facts import AWKWARD_NAMES
from tests.fakes.statement_files import EVERY_STORE, GivenFiles
from tests.refusals import raises_code

from queryserver.errors.base import PermissionDenied
from queryserver.errors.files import EntryChanged, PathExists, PathNotFound, StorageError
from queryserver.files.model import ROOTS, Scheme, StoragePath
from queryserver.files.protocol import FileSystem, Storage
from queryserver.files.statement_files import SessionFiles
from queryserver.identity.model import User

ALICE, BOB = User(1, "alice", rights=EVERY_STORE), User(2, "bob", rights=EVERY_STORE)
MIB = 1024 * 1024


def shown(scheme: Scheme, path: str) -> str:
    """Return the path in the form in which statements write it."""
    text = str(StoragePath(scheme, path))
    return text if "://" in text else f"{scheme}://{ROOTS[scheme]}{path}"


class StatementFilesContract(StorageBasis):
    @pytest.fixture
    def files(self, file_system: FileSystem) -> SessionFiles:
        return GivenFiles(file_system).session()

    @pytest.fixture
    def top(self, file_system: FileSystem, base: str) -> str:
        """Return the test's empty directory, in the form in which statements write it."""
        return shown(file_system.scheme, base)

    async def test_concurrent_range_reads_return_written_file(self, files: SessionFiles, top: str):
        whole = bytes(number * 7 % 251 for number in range(MIB)) * 3 + b"end"
        async with files.acting(ALICE), files.write(f"{top}/f.bin", overwrite=False) as sink:
            for start in range(0, len(whole), 300_000):
                await sink.send(whole[start : start + 300_000])
        async with files.acting(ALICE):
            found = await files.require_readable(f"{top}/f.bin")
            assert (found.path, found.size, found.is_directory) == (f"{top}/f.bin", len(whole), False)
            ranges = [(0, 1), (1, 99_999), (MIB - 1, 2), (len(whole) - 3, 3), (len(whole) - 1, 100), (len(whole), 5)]
            pieces = await asyncio.gather(
                *(files.read(found.path, offset=at, length=size, version=found.version) for at, size in ranges)
            )
            assert list(pieces) == [whole[at : at + size] for at, size in ranges]
            assert await files.read(found.path, offset=0, length=len(whole)) == whole

    @pytest.mark.item(96)
    async def test_globbed_partition_paths_can_be_opened(self, files: SessionFiles, top: str):
        parts = [f"{top}/t/year={year}/month={month}/p 0.csv" for year in (2024, 2025) for month in (1, 2)]
        async with files.acting(ALICE):
            for part in parts:
                for end in range(len(top) + 2, part.rindex("/") + 1):
                    if part[end] == "/":
                        await files.make_directory(part[:end])
                async with files.write(part, overwrite=False) as sink:
                    await sink.send(part.encode())
        async with files.acting(ALICE):
            for pattern, expected in (
                (f"{top}/t/*/*/*.csv", parts),
                (f"{top}/**/*.csv", parts),
                (f"{top}/t/year=2024/**", parts[:2]),
                (f"{top}/t/*/month=2/p?0.csv", parts[1::2]),
                (f"{top}/t/year=202[!4]/month=1/*", parts[2:3]),
                (f"{top}/t/*", []),
                (f"{top}/none/*", []),
                (parts[0], parts[:1]),
                (f"{top}/t", []),
            ):
                found = await files.glob(pattern)
                assert [file.path for file in found] == expected, pattern
                for file in found:
                    assert await files.read(file.path, offset=0, length=file.size, version=file.version) == (
                        file.path.encode()
                    )
            listed = await files.list_directory(f"{top}/t")
            assert [(entry.path, entry.is_directory) for entry in listed] == [
                (f"{top}/t/year=2024", True),
                (f"{top}/t/year=2025", True),
            ]
            assert (await files.status(f"{top}/t/year=2024")).is_directory

    async def test_awkward_names_round_trip(self, files: SessionFiles, storage: Storage, base: str, top: str):
        awkward = [name for name in AWKWARD_NAMES if name in self.facts.awkward_names]
        for name in awkward:
            await put(storage, f"{base}/{name}", name.encode())
        async with files.acting(ALICE):
            # Names with escaped dots can be listed but never written; this also holds for the storage API.
            found = {file.path: file for file in await files.glob(f"{top}/*")}
            assert sorted(found) == sorted(f"{top}/{name}" for name in awkward)
            for name in awkward:
                if name == "%2e%2e":
                    with raises_code("invalid_path"):
                        await files.require_readable(f"{top}/{name}")
                    continue
                assert await files.read(f"{top}/{name}", offset=0, length=999) == name.encode()

    @pytest.mark.item(97)
    async def test_failing_block_leaves_old_file_unchanged(
        self, files: SessionFiles, storage: Storage, base: str, top: str
    ):
        await put(storage, f"{base}/old", b"old")

        async def failing(path: str) -> None:
            async with files.write(path, overwrite=True) as sink:
                await sink.send(b"x" * 2 * MIB)
                raise LookupError

        async with files.acting(ALICE):
            for name in ("old", "new"):
                with pytest.raises(LookupError):
                    await failing(f"{top}/{name}")
        assert await names(storage, base) == ["old"]
        assert await content(storage, f"{base}/old") == b"old"

    async def test_file_is_replaced_only_if_statement_allows(
        self, files: SessionFiles, storage: Storage, base: str, top: str
    ):
        await put(storage, f"{base}/old", b"old")
        async with files.acting(ALICE):
            with pytest.raises(PathExists):
                async with files.write(f"{top}/old", overwrite=False):
                    pass
            assert await content(storage, f"{base}/old") == b"old"
            async with files.write(f"{top}/old", overwrite=True) as sink:
                await sink.send(b"new")
            assert await content(storage, f"{base}/old") == b"new"
            await files.remove(f"{top}/old")
            assert await names(storage, base) == []

    @pytest.mark.item(100)
    async def test_missing_paths_and_directories_are_no_files(
        self, files: SessionFiles, storage: Storage, base: str, top: str
    ):
        await put(storage, f"{base}/d/file")
        async with files.acting(ALICE):
            for call in (files.status, files.require_readable, files.list_directory):
                with pytest.raises(PathNotFound) as missing:
                    await call(f"{top}/none")
                assert missing.value.message == f"{top}/none does not exist."
                self.assert_tidy(missing.value)
            with raises_code("not_a_file"):
                await files.require_readable(f"{top}/d")
            with pytest.raises((PathExists, StorageError)):
                async with files.write(f"{top}/d", overwrite=True) as sink:
                    await sink.send(b"x")

    @pytest.mark.item(101)
    async def test_changed_file_is_not_read_as_the_old_version(
        self, files: SessionFiles, storage: Storage, base: str, top: str
    ):
        await put(storage, f"{base}/f", b"first")
        async with files.acting(ALICE):
            found = await files.require_readable(f"{top}/f")
            await put(storage, f"{base}/f", b"second one", overwrite=True)
            with pytest.raises(EntryChanged):
                await files.read(f"{top}/f", offset=0, length=5, version=found.version)


class OwnersOfFilesContract(StorageBasis):
    """The tests for stores with home directories, in which `alice` denies `bob` access to her files."""

    @pytest.fixture
    def files(self, file_system: FileSystem) -> SessionFiles:
        return GivenFiles(file_system).session()

    async def close_to_others(self, storage: Storage, base: str) -> None:
        """Deny other users access to the directory. The default does nothing, because home directories may already be
        private.
        """

    @pytest.mark.item(95)
    async def test_statements_cannot_access_files_of_another_user(
        self, file_system: FileSystem, files: SessionFiles, storage: Storage, base: str
    ):
        await put(storage, f"{base}/f", b"of alice")
        await self.close_to_others(storage, base)
        path = shown(file_system.scheme, f"{base}/f")
        for user in (ALICE, BOB, ALICE):
            async with files.acting(user):
                if user is ALICE:
                    assert await files.read(path, offset=0, length=99) == b"of alice"
                    continue
                for call in (files.require_readable, files.status, files.glob):
                    with pytest.raises(PermissionDenied) as refusal:
                        await call(path)
                    assert refusal.value.message.startswith(path)
                    assert refusal.value.code == "permission_denied"
                    self.assert_tidy(refusal.value)
                with pytest.raises(PermissionDenied):
                    await files.read(path, offset=0, length=1)
                with pytest.raises(PermissionDenied):
                    async with files.write(path, overwrite=True) as sink:
                        await sink.send(b"of bob")
        assert await content(storage, f"{base}/f") == b"of alice"
