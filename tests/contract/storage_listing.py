"""The part of the storage contract that tests directory listings."""

from contextlib import aclosing

import pytest
from tests.contract.storage_basis import StorageBasis, batches, entries, names, put

from queryserver.errors.files import NotADirectory, PathNotFound
from queryserver.files.model import EntryKind
from queryserver.files.protocol import Batch, Storage, StorageTraits

UNORDERED = ("b", "a", "B", "é", "a.b", "10", "9")


class ListingContract(StorageBasis):
    """The `StorageContract` tests for directory listings."""

    @pytest.mark.power("List")
    async def test_listing_shows_one_level(self, storage: Storage, base: str) -> None:
        await put(storage, f"{base}/inner/deep/file")
        await put(storage, f"{base}/top", b"four")
        found = [(entry.path, entry.kind, entry.size_bytes) for entry in await entries(storage, base)]
        assert found == [(f"{base}/inner", EntryKind.DIRECTORY, 0), (f"{base}/top", EntryKind.FILE, 4)]

    @pytest.mark.storage(29)
    @pytest.mark.power("List")
    async def test_empty_directory_yields_one_empty_batch(self, storage: Storage, base: str) -> None:
        await storage.mkdir(f"{base}/empty")
        (batch,) = await batches(storage, f"{base}/empty")
        assert (tuple(batch.entries), batch.cursor) == ((), None)
        assert batch.remaining in {None, 0}

    @pytest.mark.power("List")
    async def test_listing_has_declared_order(self, storage: Storage, base: str, traits: StorageTraits) -> None:
        for name in UNORDERED:
            await put(storage, f"{base}/{name}")
        found = [entry.name for batch in await batches(storage, base) for entry in batch.entries]
        assert sorted(found) == sorted(UNORDERED)
        if traits.lists_in_order:
            assert found == sorted(UNORDERED)

    @pytest.mark.storage(33)
    @pytest.mark.power("List")
    async def test_listing_resumes_at_cursor(self, storage: Storage, same_storage: Storage, base: str) -> None:
        for name in UNORDERED:
            await put(storage, f"{base}/{name}")
        whole = [entry.name for batch in await batches(storage, base, batch_size=3) for entry in batch.entries]
        found: list[str] = []
        cursor = None
        for _ in UNORDERED:
            batch = await self._first(same_storage, base, cursor)
            found += [entry.name for entry in batch.entries]
            cursor = batch.cursor
            if cursor is None:
                break
        assert found == whole
        assert sorted(whole) == sorted(UNORDERED)

    async def _first(self, storage: Storage, path: str, cursor: str | None) -> Batch:
        """Return the first batch and close the listing, as a page request does."""
        async with aclosing(storage.list_directory(path, cursor=cursor, batch_size=3)) as listing:
            return await anext(listing)

    @pytest.mark.power("List")
    async def test_remaining_count_is_exact_if_known(self, storage: Storage, base: str) -> None:
        for name in UNORDERED:
            await put(storage, f"{base}/{name}")
        listed = 0
        for batch in await batches(storage, base, batch_size=3):
            listed += len(batch.entries)
            assert batch.remaining in {None, len(UNORDERED) - listed}
        assert listed == len(UNORDERED)

    @pytest.mark.power("List")
    async def test_listing_can_be_stopped_early(self, storage: Storage, base: str) -> None:
        for name in UNORDERED:
            await put(storage, f"{base}/{name}")
        for _ in range(3):
            assert (await self._first(storage, base, None)).entries
        await storage.delete(base, recursive=True)

    @pytest.mark.storage(36)
    @pytest.mark.power("List")
    async def test_only_directories_can_be_listed(self, storage: Storage, base: str) -> None:
        await put(storage, f"{base}/file")
        with pytest.raises(NotADirectory):
            await names(storage, f"{base}/file")
        with pytest.raises(PathNotFound):
            await names(storage, f"{base}/missing")
        with pytest.raises((NotADirectory, PathNotFound)):
            await names(storage, f"{base}/file/inner")
