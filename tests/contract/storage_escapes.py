"""The contract for file names that no path can represent (Contract storage 2.2.8), for stores that can have them."""

from collections.abc import Awaitable, Callable

import pytest
from tests.contract.storage_basis import StorageBasis, body, content, is_there, names, put

from queryserver.errors.files import InvalidPath
from queryserver.files.model import FileStatus, escaped_file_name, escaped_name, has_escapes
from queryserver.files.protocol import Storage
from queryserver.files.transfer_steps import walk

Plant = Callable[[str, bytes], Awaitable[None]]
Raw = Callable[[str], Awaitable[set[bytes]]]


class EscapesContract(StorageBasis):
    """The tests for the names in `facts.unnameable`, which other programs can give to files in the store. The names are
    relative to a directory.
    """

    @pytest.fixture
    def plant(self) -> Plant:
        """Return a function that creates a file below a directory, as another program would. The file contains its own
        name.
        """
        raise NotImplementedError

    @pytest.fixture
    def raw(self) -> Raw:
        """Return a function that lists the raw names of all files below a directory."""
        raise NotImplementedError

    @pytest.fixture
    async def tree(self, storage: Storage, base: str, plant: Plant) -> str:
        """Create a directory with a file for each name in `facts.unnameable` and a file with an ordinary name."""
        await put(storage, f"{base}/tree/plain", b"plain")
        for name in self.facts.unnameable:
            await plant(f"{base}/tree", name)
        return f"{base}/tree"

    @pytest.mark.storage(99)
    @pytest.mark.power("Names")
    async def test_every_file_is_listed_and_reachable_by_its_path(self, storage: Storage, tree: str) -> None:
        shown = await files(storage, tree)
        assert {await content(storage, file.path) for file in shown} == {b"plain", *self.facts.unnameable}
        assert len(shown) == 1 + len(self.facts.unnameable)
        for file in shown:
            found = await storage.stat(file.path)
            assert (found.path, found.kind, found.size_bytes) == (file.path, file.kind, file.size_bytes)
            assert has_escapes(file.path) is not file.path.endswith("/plain")

    @pytest.mark.storage(99)
    @pytest.mark.power("Names")
    async def test_copied_tree_keeps_unnameable_names(self, storage: Storage, base: str, tree: str, raw: Raw) -> None:
        top = await storage.stat(tree)
        found = [(path, entry) async for path, entry in walk(storage, top)]
        for path, entry in found:
            if entry.is_directory:
                await storage.mkdir(f"{base}/to/{path}".rstrip("/"))
        for path, entry in found:
            if entry.is_file:
                copied = await storage.copy(entry.path, f"{base}/to/{path}")
                assert (copied.path, copied.size_bytes) == (f"{base}/to/{path}", entry.size_bytes)
        assert await raw(f"{base}/to") == await raw(tree) == {b"plain", *self.facts.unnameable}

    @pytest.mark.storage(99)
    @pytest.mark.power("Names")
    async def test_unnameable_file_is_copied_to_ordinary_name_and_deleted_alone(
        self, storage: Storage, base: str, tree: str, raw: Raw
    ) -> None:
        left = {b"plain", *self.facts.unnameable}
        for number, file in enumerate(await files(storage, tree)):
            name = await content(storage, file.path)
            await storage.copy(file.path, f"{base}/copy{number}")
            assert await content(storage, f"{base}/copy{number}") == name
            await storage.delete(file.path, recursive=True)
            left.remove(name)
            assert await raw(tree) == left

    @pytest.mark.storage(99)
    @pytest.mark.power("Names")
    async def test_tree_with_unnameable_files_is_deleted_whole(
        self, storage: Storage, base: str, tree: str, raw: Raw
    ) -> None:
        await put(storage, f"{base}/beside", b"kept")
        await storage.delete(tree, recursive=True)
        assert await raw(tree) == set()
        assert await names(storage, base) == ["beside"]

    @pytest.mark.storage(99)
    @pytest.mark.power("Names")
    async def test_escapes_of_ordinary_or_impossible_names_are_invalid_paths(self, storage: Storage, base: str) -> None:
        await put(storage, f"{base}/file")
        for name in (
            escaped_name(b"file"),
            escaped_name(b"a/b"),
            escaped_file_name(b"a/b"),
            escaped_name(b"._qs_upload_0"),
            "._qs_name_F",
        ):
            for path in (f"{base}/{name}", f"{base}/{name}/x"):
                for call in (
                    storage.stat(path),
                    names(storage, path),
                    content(storage, path),
                    storage.write(path, body(b"x"), overwrite=True),
                    storage.mkdir(path),
                    storage.copy(f"{base}/file", path),
                    storage.delete(path, recursive=True),
                ):
                    with pytest.raises(InvalidPath):
                        await call
        assert not await is_there(storage, f"{base}/x")
        assert await names(storage, base) == ["file"]


async def files(storage: Storage, directory: str) -> list[FileStatus]:
    """Return all files that a walk of the directory lists."""
    return [entry async for _, entry in walk(storage, await storage.stat(directory)) if entry.is_file]
