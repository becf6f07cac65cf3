"""The contract of every storage adapter (files/protocol.py), as one test suite.

Each adapter has a test class that inherits `StorageContract` and the suites of its optional powers (storage_powers.py),
declares its `facts`, and provides the fixture `file_system`. Its `known_failures` map a test name to a mark (`notimpl`,
`notyet` or `never`) with a reason. If a marked test passes, the run fails (conftest.py).
"""

from datetime import UTC, datetime, timedelta

import pytest
from tests.contract.storage_basis import body, content, entries, is_there, names, put
from tests.contract.storage_listing import ListingContract
from tests.contract.storage_parts import PartsContract
from tests.contract.storage_powers import SUITES
from tests.contract.storage_writing import WritingContract

from queryserver.errors.base import QueryServerError
from queryserver.errors.files import DirectoryNotEmpty, InvalidPath, NotADirectory, NotAFile, PathExists, PathNotFound
from queryserver.files.model import EntryKind
from queryserver.files.protocol import PartPlan, RenamingStorage, Storage

INVALID_PATHS = (
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
    "a\0b",
    "file:///etc/passwd",
    "lone\ud800surrogate",
    "x" * 256,
    "é" * 128,
    "a/" * 3000 + "a",
    "._qs_upload_0",
    "a/._qs_upload_0",
    "a/._qs_name_61",
    "a/._qs_name_2f2f",
    "a/._qs_name_0",
    "a/._qs_file_61/x",
)


@pytest.mark.storage(93)
class StorageContract(WritingContract, ListingContract, PartsContract):
    """The storage tests. Each adapter has a test class that inherits them."""

    @pytest.mark.power("Attributes")
    async def test_stat_distinguishes_files_from_directories(self, storage: Storage, base: str) -> None:
        await put(storage, f"{base}/d/file", b"four")
        directory, file = await storage.stat(f"{base}/d"), await storage.stat(f"{base}/d/file")
        assert (directory.kind, directory.size_bytes, directory.path) == (EntryKind.DIRECTORY, 0, f"{base}/d")
        assert (file.kind, file.size_bytes, file.path) == (EntryKind.FILE, 4, f"{base}/d/file")

    @pytest.mark.power("Attributes")
    async def test_new_file_has_modification_time(self, storage: Storage, base: str) -> None:
        await put(storage, f"{base}/file")
        modified_at = (await storage.stat(f"{base}/file")).modified_at
        assert modified_at is not None
        assert abs(datetime.now(UTC) - modified_at) < timedelta(minutes=10)

    @pytest.mark.power("Attributes")
    async def test_versions_distinguish_content(self, storage: Storage, base: str) -> None:
        await put(storage, f"{base}/file", b"old")
        first, again = await storage.stat(f"{base}/file"), await storage.stat(f"{base}/file")
        assert first.is_same_content(again)
        await put(storage, f"{base}/file", b"newer", overwrite=True)
        assert not first.is_same_content(await storage.stat(f"{base}/file"))

    @pytest.mark.power("Attributes")
    async def test_listing_and_stat_agree(self, storage: Storage, base: str) -> None:
        await put(storage, f"{base}/file", b"four")
        (listed,) = await entries(storage, base)
        found = await storage.stat(f"{base}/file")
        assert (listed.path, listed.kind, listed.size_bytes) == (found.path, found.kind, found.size_bytes)
        assert (listed.modified_at, listed.permissions) == (found.modified_at, found.permissions)
        assert (listed.owner, listed.group) == (found.owner, found.group)

    @pytest.mark.power("Attributes")
    async def test_new_entries_have_default_permissions(self, storage: Storage, base: str) -> None:
        await storage.mkdir(f"{base}/d")
        await put(storage, f"{base}/file")
        found = [(await storage.stat(f"{base}/{name}")).permissions for name in ("d", "file")]
        assert tuple(found) == self.facts.default_permissions

    @pytest.mark.power("Directories")
    async def test_root_and_test_directory_are_directories(self, storage: Storage, base: str) -> None:
        assert (await storage.stat("")).is_directory
        assert (await storage.stat(base)).is_directory
        assert base in [entry.path for entry in await entries(storage, self.facts.place)]

    @pytest.mark.power("Directories")
    async def test_mkdir_creates_missing_parents(self, storage: Storage, base: str) -> None:
        await storage.mkdir(f"{base}/a/b/c")
        assert (await storage.stat(f"{base}/a/b/c")).is_directory
        assert (await storage.stat(f"{base}/a")).is_directory
        assert await names(storage, f"{base}/a") == ["b"]

    @pytest.mark.power("Directories")
    async def test_mkdir_of_existing_path_is_refused(self, storage: Storage, base: str) -> None:
        await storage.mkdir(f"{base}/d")
        await put(storage, f"{base}/file")
        await put(storage, f"{base}/parent/file")
        for name in ("d", "file", "parent"):
            with pytest.raises(PathExists):
                await storage.mkdir(f"{base}/{name}")
        assert await content(storage, f"{base}/file") == b"x"

    @pytest.mark.power("Directories")
    async def test_file_is_not_a_directory(self, storage: Storage, base: str) -> None:
        await put(storage, f"{base}/file")
        with pytest.raises(NotADirectory):
            await names(storage, f"{base}/file")
        for read in (storage.stat(f"{base}/file/inner"), content(storage, f"{base}/file/inner")):
            with pytest.raises((NotADirectory, PathNotFound)):
                await read
        if not self.facts.has_directories:
            return
        for change in (storage.mkdir(f"{base}/file/inner"), put(storage, f"{base}/file/inner")):
            with pytest.raises((NotADirectory, PathExists)):
                await change
        assert await content(storage, f"{base}/file") == b"x"

    @pytest.mark.power("Copy")
    async def test_copy_copies_one_file_and_never_replaces(self, storage: Storage, base: str) -> None:
        written = bytes(range(256)) * 5000
        await put(storage, f"{base}/file", written)
        copied = await storage.copy(f"{base}/file", f"{base}/d/copy")
        assert (copied.path, copied.size_bytes) == (f"{base}/d/copy", len(written))
        assert (await storage.stat(f"{base}/d/copy")).is_same_content(copied)
        assert await content(storage, f"{base}/d/copy") == written
        await put(storage, f"{base}/other", b"other")
        with pytest.raises(PathExists):
            await storage.copy(f"{base}/file", f"{base}/other")
        assert await content(storage, f"{base}/other") == b"other"
        await storage.copy(f"{base}/file", f"{base}/other", overwrite=True)
        assert await content(storage, f"{base}/other") == written
        assert await content(storage, f"{base}/file") == written

    @pytest.mark.power("Copy")
    async def test_directory_cannot_be_copied_as_file(self, storage: Storage, base: str) -> None:
        await put(storage, f"{base}/d/file")
        await put(storage, f"{base}/file", b"kept")
        with pytest.raises(NotAFile):
            await storage.copy(f"{base}/d", f"{base}/e")
        with pytest.raises(PathExists):
            await storage.copy(f"{base}/file", f"{base}/d", overwrite=True)
        assert not await is_there(storage, f"{base}/e")

    @pytest.mark.power("Delete")
    async def test_delete_of_nonempty_directory_requires_recursive(self, storage: Storage, base: str) -> None:
        await put(storage, f"{base}/a/b/file")
        with pytest.raises(DirectoryNotEmpty):
            await storage.delete(f"{base}/a", recursive=False)
        assert await content(storage, f"{base}/a/b/file") == b"x"
        await storage.delete(f"{base}/a", recursive=True)
        assert await names(storage, base) == []
        assert not await is_there(storage, f"{base}/a/b/file")

    @pytest.mark.power("Delete")
    async def test_directory_stays_after_its_last_entry_is_deleted(self, storage: Storage, base: str) -> None:
        await put(storage, f"{base}/a/file")
        await storage.delete(f"{base}/a/file", recursive=False)
        assert (await storage.stat(f"{base}/a")).is_directory
        assert await names(storage, f"{base}/a") == []
        await storage.delete(f"{base}/a", recursive=False)
        assert await names(storage, base) == []
        assert (await storage.stat(base)).is_directory

    @pytest.mark.power("Delete")
    async def test_delete_spares_neighbors_with_similar_names(self, storage: Storage, base: str) -> None:
        for path in ("a/file", "ab/file", "a.txt", "a b"):
            await put(storage, f"{base}/{path}")
        await storage.delete(f"{base}/a", recursive=True)
        assert await names(storage, base) == ["a b", "a.txt", "ab"]
        assert await names(storage, f"{base}/ab") == ["file"]

    @pytest.mark.power("Failures")
    async def test_missing_path_is_not_found(self, storage: Storage, base: str) -> None:
        for call in (
            storage.stat(f"{base}/x"),
            storage.stat(f"{base}/x/y"),
            content(storage, f"{base}/x"),
            content(storage, f"{base}/x", offset=7, length=1),
            names(storage, f"{base}/x"),
            storage.delete(f"{base}/x", recursive=True),
            storage.copy(f"{base}/x", f"{base}/y"),
        ):
            with pytest.raises(PathNotFound) as told:
                await call
            self.assert_tidy(told.value)
        assert await names(storage, base) == []

    @pytest.mark.security("T1")
    @pytest.mark.storage(16, 18)
    @pytest.mark.power("Failures")
    async def test_every_call_refuses_invalid_and_escaping_paths(self, storage: Storage, base: str) -> None:
        await put(storage, f"{base}/file")
        for path in INVALID_PATHS:
            for call in (
                storage.stat(path),
                content(storage, path),
                names(storage, path),
                storage.write(path, body(b"x"), overwrite=True),
                storage.mkdir(path),
                storage.copy(f"{base}/file", path),
                storage.copy(path, f"{base}/y"),
                storage.delete(path, recursive=True),
                storage.begin_parts(PartPlan(path, 1, 1, 1)),
                storage.sweep_orphans(path, 0),
            ):
                with pytest.raises(InvalidPath) as told:
                    await call
                self.assert_tidy(told.value)
            if isinstance(storage, RenamingStorage):
                for source, target in ((f"{base}/file", path), (path, f"{base}/y")):
                    with pytest.raises(InvalidPath):
                        await storage.rename(source, target)
        assert await names(storage, base) == ["file"]

    @pytest.mark.power("Failures")
    async def test_messages_are_fit_for_end_users(self, storage: Storage, base: str) -> None:
        await put(storage, f"{base}/file")
        for call in (
            storage.stat(f"{base}/missing"),
            storage.mkdir(f"{base}/file"),
            put(storage, f"{base}/file"),
            names(storage, f"{base}/file"),
            content(storage, base),
        ):
            with pytest.raises(QueryServerError) as told:
                await call
            self.assert_tidy(told.value)

    async def test_declared_powers_match_inherited_suites(self, storage: Storage) -> None:
        """Before any call to the store, callers refuse an operation that the store does not implement (Contract storage
        11).
        """
        declared = {suite for protocol, suite in SUITES if isinstance(storage, protocol)}
        assert declared == {suite for _, suite in SUITES if isinstance(self, suite)}
