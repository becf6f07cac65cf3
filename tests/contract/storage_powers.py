"""The contracts of the optional powers, with one suite for each power. Adapters inherit these suites in addition to
`StorageContract`.
"""

import pytest
from tests.contract.storage_basis import StorageBasis, content, is_there, names, put

from queryserver.errors.base import InvalidParameter
from queryserver.errors.files import NotADirectory, NotAFile, PathExists, PathNotFound, TargetInsideSource
from queryserver.files.model import EntryKind
from queryserver.files.protocol import (
    ModeStorage,
    OwnedStorage,
    RenamingStorage,
    ReplicatedStorage,
    Storage,
    SummarizedStorage,
    TrashStorage,
)


class RenamingContract(StorageBasis):
    """The contract of RenamingStorage."""

    @pytest.fixture
    def renaming(self, storage: Storage) -> RenamingStorage:
        assert isinstance(storage, RenamingStorage)
        return storage

    @pytest.mark.power("Rename in one step")
    async def test_rename_moves_files_and_trees(self, storage: Storage, renaming: RenamingStorage, base: str) -> None:
        await put(storage, f"{base}/a/inner/file")
        await storage.mkdir(f"{base}/b")
        assert renaming.can_rename(f"{base}/a", f"{base}/b/c")
        await renaming.rename(f"{base}/a", f"{base}/b/c")
        await renaming.rename(f"{base}/b/c/inner/file", f"{base}/b/file")
        assert await content(storage, f"{base}/b/file") == b"x"
        assert await names(storage, base) == ["b"]
        assert await names(storage, f"{base}/b") == ["c", "file"]

    @pytest.mark.storage(17)
    @pytest.mark.power("Rename in one step")
    async def test_rename_keeps_awkward_names(self, storage: Storage, renaming: RenamingStorage, base: str) -> None:
        await put(storage, f"{base}/file")
        before = "file"
        for name in self.facts.awkward_names:
            await renaming.rename(f"{base}/{before}", f"{base}/{name}")
            before = name
        assert await names(storage, base) == [before]

    @pytest.mark.storage(60)
    @pytest.mark.power("Rename in one step")
    async def test_rename_never_replaces(self, storage: Storage, renaming: RenamingStorage, base: str) -> None:
        paths = ("file", "other", "d/file")
        for path in paths:
            await put(storage, f"{base}/{path}", path.encode())
        await storage.mkdir(f"{base}/empty")
        for source, target in (
            ("file", "other"),
            ("file", "d"),
            ("file", "empty"),
            ("d", "file"),
            ("d", "empty"),
            ("file", "file"),
            ("d", "d"),
        ):
            with pytest.raises(PathExists):
                await renaming.rename(f"{base}/{source}", f"{base}/{target}")
        assert [await content(storage, f"{base}/{path}") for path in paths] == [path.encode() for path in paths]
        assert await names(storage, f"{base}/empty") == []

    @pytest.mark.storage(64)
    @pytest.mark.power("Rename in one step")
    async def test_overwrite_replaces_a_file_by_a_file_only(
        self, storage: Storage, renaming: RenamingStorage, base: str
    ) -> None:
        for path in ("file", "other", "d/file"):
            await put(storage, f"{base}/{path}", path.encode())
        await storage.mkdir(f"{base}/empty")
        for source, target in (("file", "d"), ("file", "empty"), ("d", "file"), ("d", "empty")):
            with pytest.raises(PathExists):
                await renaming.rename(f"{base}/{source}", f"{base}/{target}", overwrite=True)
        await renaming.rename(f"{base}/file", f"{base}/other", overwrite=True)
        assert await content(storage, f"{base}/other") == b"file"
        assert await names(storage, base) == ["d", "empty", "other"]

    @pytest.mark.power("Rename in one step")
    async def test_rename_requires_source_and_target_parent(
        self, storage: Storage, renaming: RenamingStorage, base: str
    ) -> None:
        await put(storage, f"{base}/file")
        with pytest.raises(PathNotFound):
            await renaming.rename(f"{base}/missing", f"{base}/x")
        with pytest.raises(PathNotFound):
            await renaming.rename(f"{base}/file", f"{base}/missing/file")
        await put(storage, f"{base}/other")
        with pytest.raises(NotADirectory):
            await renaming.rename(f"{base}/file", f"{base}/other/file")
        assert await names(storage, base) == ["file", "other"]

    @pytest.mark.storage(62)
    @pytest.mark.power("Rename in one step")
    async def test_directory_is_not_moved_into_itself(
        self, storage: Storage, renaming: RenamingStorage, base: str
    ) -> None:
        await storage.mkdir(f"{base}/a/b")
        with pytest.raises(TargetInsideSource):
            await renaming.rename(f"{base}/a", f"{base}/a/b/c")
        await renaming.rename(f"{base}/a", f"{base}/ab")
        assert await names(storage, base) == ["ab"]


class TrashContract(StorageBasis):
    """The contract of TrashStorage."""

    @pytest.mark.power("Trash")
    async def test_trash_belongs_to_user_and_accepts_renames(self, storage: Storage, base: str) -> None:
        assert isinstance(storage, TrashStorage)
        assert isinstance(storage, RenamingStorage)
        await put(storage, f"{base}/file")
        root = await storage.trash_root(f"{base}/file")
        assert root == await storage.trash_root(base)
        assert not f"{base}/".startswith(f"{root}/")
        parent = f"{root}/Current/{base}"
        await storage.mkdir(parent, permissions=0o700)
        assert (await storage.stat(parent)).permissions == 0o700
        await storage.rename(f"{base}/file", f"{parent}/file")
        assert not await is_there(storage, f"{base}/file")
        assert await content(storage, f"{parent}/file") == b"x"
        await storage.rename(f"{parent}/file", f"{base}/file")
        await storage.delete(parent, recursive=True)

    @pytest.mark.power("Trash")
    async def test_new_trash_parents_are_private_to_their_user(self, storage: Storage, base: str) -> None:
        assert isinstance(storage, TrashStorage)
        root = await storage.trash_root(base)
        await storage.mkdir(f"{root}/Current/{base}/d", permissions=0o700)
        assert (await storage.stat(f"{root}/Current")).permissions == 0o700
        await storage.delete(f"{root}/Current/{base}", recursive=True)


class ReplicationContract(StorageBasis):
    """The contract of ReplicatedStorage."""

    @pytest.mark.storage(79)
    @pytest.mark.power("Replication")
    async def test_file_has_the_requested_replication_factor(self, storage: Storage, base: str) -> None:
        assert isinstance(storage, ReplicatedStorage)
        await put(storage, f"{base}/d/file")
        await storage.set_replication(f"{base}/d/file", 2)
        assert (await storage.stat(f"{base}/d/file")).replication == 2
        assert (await storage.stat(f"{base}/d")).replication == 0
        with pytest.raises(NotAFile):
            await storage.set_replication(f"{base}/d", 2)
        with pytest.raises(PathNotFound):
            await storage.set_replication(f"{base}/missing", 2)
        with pytest.raises(InvalidParameter):
            await storage.set_replication(f"{base}/d/file", 32_768)


class SummaryContract(StorageBasis):
    """The contract of SummarizedStorage."""

    @pytest.mark.storage(80)
    @pytest.mark.power("Content summary")
    async def test_summary_counts_whole_tree(self, storage: Storage, base: str) -> None:
        assert isinstance(storage, SummarizedStorage)
        await put(storage, f"{base}/a/b/file", b"1234")
        await put(storage, f"{base}/a/file", b"12345")
        await storage.mkdir(f"{base}/a/empty")
        summary = await storage.content_summary(f"{base}/a")
        # The number of directories includes the directory itself.
        assert (summary.directory_count, summary.file_count, summary.length_bytes) == (3, 2, 9)
        assert summary.space_consumed_bytes >= 9
        assert (summary.quota, summary.space_quota_bytes) == (-1, -1)

    @pytest.mark.storage(80)
    @pytest.mark.power("Content summary")
    async def test_summary_of_file_counts_only_the_file(self, storage: Storage, base: str) -> None:
        assert isinstance(storage, SummarizedStorage)
        await put(storage, f"{base}/file", b"1234")
        summary = await storage.content_summary(f"{base}/file")
        assert (summary.directory_count, summary.file_count, summary.length_bytes) == (0, 1, 4)
        with pytest.raises(PathNotFound):
            await storage.content_summary(f"{base}/missing")


class ModesContract(StorageBasis):
    """The contract of ModeStorage."""

    @pytest.mark.storage(81)
    @pytest.mark.power("Permissions")
    async def test_stat_returns_the_permissions_set(self, storage: Storage, base: str) -> None:
        assert isinstance(storage, ModeStorage)
        await put(storage, f"{base}/d/file")
        for path, permissions, kind in (("d/file", 0o640, EntryKind.FILE), ("d", 0o1750, EntryKind.DIRECTORY)):
            await storage.set_permissions(f"{base}/{path}", permissions)
            status = await storage.stat(f"{base}/{path}")
            assert (status.permissions, status.kind) == (permissions, kind)
        with pytest.raises(PathNotFound):
            await storage.set_permissions(f"{base}/missing", 0o600)

    @pytest.mark.power("Permissions")
    async def test_new_directory_has_the_requested_permissions(self, storage: Storage, base: str) -> None:
        await storage.mkdir(f"{base}/d", permissions=0o700)
        assert (await storage.stat(f"{base}/d")).permissions == 0o700


class OwnersContract(StorageBasis):
    """The contract of OwnedStorage."""

    @pytest.mark.power("Owners")
    async def test_owner_and_group_are_those_that_were_set(self, storage: Storage, base: str) -> None:
        assert isinstance(storage, OwnedStorage)
        with pytest.raises(PathNotFound):
            await storage.set_owner(f"{base}/missing", owner="alice", group=None)
        if self.facts.owner_change is None:
            pytest.skip("only a superuser of this store can change owners")
        owner, group = self.facts.owner_change
        await put(storage, f"{base}/file")
        await storage.set_owner(f"{base}/file", owner=owner, group=None)
        await storage.set_owner(f"{base}/file", owner=None, group=group)
        status = await storage.stat(f"{base}/file")
        assert (status.owner, status.group) == (owner, group)


SUITES: tuple[tuple[type, type[StorageBasis]], ...] = (
    (RenamingStorage, RenamingContract),
    (TrashStorage, TrashContract),
    (ReplicatedStorage, ReplicationContract),
    (SummarizedStorage, SummaryContract),
    (ModeStorage, ModesContract),
    (OwnedStorage, OwnersContract),
)
"""The suite of each optional Protocol."""
