"""The contract of folders that appear with all their files at once, for each store (Contract exports 5)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar, TypeAlias
from uuid import uuid4

import pytest
from tests.contract.statement_files_contract import shown
from tests.contract.storage_basis import USER, StorageBasis, content, names, put
from tests.fakes.statement_files import EVERY_STORE, GivenFiles, NoUploads, WritesInMemory
from tests.refusals import raises_code

from queryserver.errors.files import InvalidPath, StorageError
from queryserver.files.access import Caller, StorageAudit, Stores
from queryserver.files.folder_writes import SUCCESS_NAME, ExportFiles, part_name
from queryserver.files.model import (
    RESERVED_PREFIX,
    ExtensionRules,
    FileStatus,
    KeyState,
    PathReader,
    Scheme,
    StoragePath,
    Transfer,
    TransferKey,
    TransferKind,
    staged_folder_name,
)
from queryserver.files.moves import Moves, Transfers, final_body
from queryserver.files.protocol import FileSystem, Storage
from queryserver.files.repository import OperationRecords, TransferRecords
from queryserver.files.upload_repository import OrphanSweep, PartUpload, UnfinishedWrite, UnfinishedWrites
from queryserver.identity.model import User
from queryserver.platform.database import Database, open_database
from queryserver.platform.ownership import Load, Ownership
from queryserver.platform.roles import Role
from queryserver.platform.settings.sections import DatabaseSettings

MIB = 1024 * 1024
ExportsOpener: TypeAlias = Callable[[], ExportFiles]


class AbandonedWrites(WritesInMemory):
    """Records of a process that has died."""

    async def abandoned(
        self, *, older_than: timedelta, others_within: timedelta, schemes: Sequence[Scheme]
    ) -> Sequence[UnfinishedWrite]:
        del older_than, others_within
        return [write for write in self.open.values() if write.directory.scheme in schemes]


class NoExpiredUploads(NoUploads):
    async def expired(self, *, limit: int) -> Sequence[PartUpload]:
        del limit
        return ()


class FolderWritesContract(StorageBasis):
    marker: ClassVar[Sequence[str]] = ()
    """The name of the file that marks a complete folder, in stores where its files appear one by one."""

    @pytest.fixture
    async def database(self, module_database_dsn: str) -> AsyncIterator[Database]:
        async with open_database(module_database_dsn, DatabaseSettings(pool_max=2, connect_timeout_s=60)) as opened:
            yield opened

    @pytest.fixture
    async def exports(self, file_system: FileSystem, database: Database) -> ExportsOpener:
        """A function that opens the file access of a new statement of alice."""
        given = GivenFiles(file_system)
        ownership = Ownership(database, lease=timedelta(hours=1))
        await ownership.beat(Role.SERVER, Load())
        await database.execute(
            "insert into users (username, username_key) values ('alice', 'alice') on conflict do nothing"
        )
        user_id = await database.value("select id from users where username = 'alice'")
        stores, audit = given.access.stores, StorageAudit(given.audit)
        transfers = Transfers(
            TransferRecords(database),
            OperationRecords(database),
            UnfinishedWrites(database, ownership),
            stores,
            audit,
            final_body,
            ownership,
        )
        moves = Moves(stores, ExtensionRules(), transfers, given.access.orphans, audit)
        return lambda: ExportFiles(given.access, moves, User(user_id, "alice", rights=EVERY_STORE), "")

    async def fill(self, files: ExportFiles, path: str, parts: Sequence[bytes]) -> None:
        async with files.write_folder(path, "csv") as folder:
            for number, part in enumerate(parts):
                async with folder.file(part_name(number, "csv")) as sink:
                    for start in range(0, len(part), MIB):
                        await sink.send(part[start : start + MIB])

    @pytest.mark.exports(14)
    async def test_folder_appears_with_all_its_files_at_once(
        self, file_system: FileSystem, storage: Storage, base: str, exports: ExportsOpener
    ):
        parts = [b"one", b"", bytes(range(256)) * 4096 * 7]
        async with exports().write_folder(f"{shown(file_system.scheme, base)}/out", "csv") as folder:
            for number, part in enumerate(parts):
                async with folder.file(part_name(number, "csv")) as sink:
                    for start in range(0, len(part), MIB):
                        await sink.send(part[start : start + MIB])
                assert await names(storage, base) == []
        assert await names(storage, base) == ["out"]
        assert await names(storage, f"{base}/out") == [*self.marker, *(part_name(number, "csv") for number in range(3))]
        for number, part in enumerate(parts):
            assert await content(storage, f"{base}/out/{part_name(number, 'csv')}") == part
        assert folder.size_bytes == sum(map(len, parts))

    @pytest.mark.exports(14)
    async def test_failed_block_leaves_nothing(
        self, file_system: FileSystem, storage: Storage, base: str, exports: ExportsOpener
    ):
        async def fail() -> None:
            async with exports().write_folder(path, "csv") as folder:
                async with folder.file(part_name(0, "csv")) as sink:
                    await sink.send(b"x" * MIB)
                async with folder.file(part_name(1, "csv")) as sink:
                    await sink.send(b"x" * MIB)
                    message = "stop"
                    raise LookupError(message)

        path = f"{shown(file_system.scheme, base)}/out"
        with pytest.raises(LookupError):
            await fail()
        assert await names(storage, base) == []
        await storage.delete(base, recursive=False)  # succeeds only without hidden entries
        await storage.mkdir(base)

    @pytest.mark.exports(14)
    async def test_cancellation_while_the_store_completes_a_file_ends_the_folder(
        self, file_system: FileSystem, storage: Storage, base: str, exports: ExportsOpener
    ):
        async def write() -> None:
            async with exports().write_folder(f"{shown(file_system.scheme, base)}/out", "csv") as folder:
                for number in range(3):
                    async with folder.file(part_name(number, "csv")) as sink:
                        await sink.send(b"x")
                        if number == 1:
                            asyncio.get_running_loop().call_soon(writing.cancel)

        writing = asyncio.create_task(write())
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert await names(storage, base) == []

    @pytest.mark.exports(14)
    async def test_existing_folder_is_refused_and_kept(
        self, file_system: FileSystem, storage: Storage, base: str, exports: ExportsOpener
    ):
        path = f"{shown(file_system.scheme, base)}/out"
        await self.fill(exports(), path, [b"a", b"b"])
        with raises_code("already_exists"):
            await self.fill(exports(), path, [b"c"])
        assert await names(storage, f"{base}/out") == [*self.marker, part_name(0, "csv"), part_name(1, "csv")]
        assert await content(storage, f"{base}/out/{part_name(0, 'csv')}") == b"a"
        assert await names(storage, base) == ["out"]

    @pytest.mark.exports(14)
    async def test_folder_of_which_a_part_was_removed_does_not_appear(
        self, file_system: FileSystem, storage: Storage, base: str, exports: ExportsOpener
    ):
        """The sweep of another process removes the parts of a process that was held for long."""

        async def lose_a_part() -> None:
            async with exports().write_folder(f"{shown(file_system.scheme, base)}/out", "csv") as folder:
                for number in range(2):
                    async with folder.file(part_name(number, "csv")) as sink:
                        await sink.send(b"x")
                await storage.delete(f"{folder.staging.path.path}/{part_name(0, 'csv')}", recursive=False)

        with raises_code("storage_error"):
            await lose_a_part()
        assert await names(storage, base) == []

    @pytest.mark.exports(10)
    async def test_sweep_removes_the_staged_folder_of_a_dead_process(
        self, file_system: FileSystem, storage: Storage, base: str
    ):
        name, scheme = staged_folder_name(), file_system.scheme
        await put(storage, f"{base}/{name}/{part_name(0, 'csv')}")
        assert await names(storage, base) == []
        writes = AbandonedWrites()
        stores = Stores([file_system], PathReader([scheme], ozone_services=("om",)))
        sweep = OrphanSweep(stores, writes, NoExpiredUploads())
        caller = Caller(User(1, USER.name), USER)
        await sweep.begin(uuid4(), caller, StoragePath(scheme, f"{base}/{name}"))
        swept = await sweep.clean_up(older_than=timedelta(0))
        assert swept == {"expired uploads": 0, "interrupted uploads": 1}
        assert writes.open == {}
        await storage.delete(base, recursive=False)  # succeeds only without hidden entries
        await storage.mkdir(base)

    def test_clients_cannot_name_a_staged_folder(self, file_system: FileSystem):
        reader = PathReader([file_system.scheme], ozone_services=("om",))
        with pytest.raises(InvalidPath):
            reader.read(f"{shown(file_system.scheme, 'om/tests/one')}/{staged_folder_name()}/part-00000.csv")


class MovedFoldersContract(FolderWritesContract):
    """For stores that cannot rename folders, in which the parts are moved."""

    marker = (SUCCESS_NAME,)

    @pytest.mark.exports(14)
    async def test_marker_is_written_after_all_files_are_visible(
        self,
        file_system: FileSystem,
        storage: Storage,
        base: str,
        exports: ExportsOpener,
        monkeypatch: pytest.MonkeyPatch,
    ):
        seen: list[str] = []
        write = type(storage).write

        async def watched(self: Storage, path: str, body: AsyncIterator[bytes], **options: Any) -> FileStatus:
            if path.endswith(f"/{SUCCESS_NAME}"):
                seen.extend(await names(storage, f"{base}/out"))
            return await write(self, path, body, **options)

        monkeypatch.setattr(type(storage), "write", watched)
        await self.fill(exports(), f"{shown(file_system.scheme, base)}/out", [b"a", b"b"])
        assert seen == [part_name(0, "csv"), part_name(1, "csv")]
        assert await content(storage, f"{base}/out/{SUCCESS_NAME}") == b""

    @pytest.mark.exports(14)
    async def test_folder_without_marker_is_removed_again(
        self,
        file_system: FileSystem,
        storage: Storage,
        base: str,
        exports: ExportsOpener,
        monkeypatch: pytest.MonkeyPatch,
    ):
        write = type(storage).write

        async def failing(self: Storage, path: str, body: AsyncIterator[bytes], **options: Any) -> FileStatus:
            if path.endswith(f"/{SUCCESS_NAME}"):
                message = "The store is full."
                raise StorageError(message)
            return await write(self, path, body, **options)

        monkeypatch.setattr(type(storage), "write", failing)
        with raises_code("storage_error"):
            await self.fill(exports(), f"{shown(file_system.scheme, base)}/out", [b"a", b"b"])
        assert await names(storage, base) == []

    @pytest.mark.exports(14)
    async def test_staged_files_that_cannot_be_deleted_do_not_fail_the_export(
        self,
        file_system: FileSystem,
        storage: Storage,
        base: str,
        exports: ExportsOpener,
        monkeypatch: pytest.MonkeyPatch,
    ):
        delete = type(storage).delete

        async def failing(self: Storage, path: str, *, recursive: bool) -> None:
            if RESERVED_PREFIX in path:
                message = "The store is read-only."
                raise StorageError(message)
            await delete(self, path, recursive=recursive)

        with monkeypatch.context() as patch:
            patch.setattr(type(storage), "delete", failing)
            await self.fill(exports(), f"{shown(file_system.scheme, base)}/out", [b"a", b"b"])
        assert await names(storage, f"{base}/out") == [SUCCESS_NAME, part_name(0, "csv"), part_name(1, "csv")]

    @pytest.mark.exports(14)
    async def test_unfinished_move_to_the_folder_is_undone_first(
        self, file_system: FileSystem, storage: Storage, base: str, exports: ExportsOpener, database: Database
    ):
        """Otherwise its later rollback would delete the new parts, which have the same names and sizes."""
        scheme, part = file_system.scheme, part_name(0, "csv")
        await put(storage, f"{base}/former/{part}")
        await put(storage, f"{base}/out/{part}")
        entry = await storage.stat(f"{base}/former/{part}")
        dead = Ownership(database, lease=timedelta(hours=1))
        await dead.beat(Role.SERVER, Load())
        user_id = await database.value("select id from users where username = 'alice'")
        source, target = StoragePath(scheme, f"{base}/former"), StoragePath(scheme, f"{base}/out")
        records = TransferRecords(database)
        claimed = await records.begin(Transfer(user_id, USER, TransferKind.MOVE, source, target), owner=dead.id)
        assert claimed is not None
        folder = await storage.stat(f"{base}/former")
        keys = [
            TransferKey(0, replace(folder, path=""), KeyState.COPIED),
            TransferKey(1, replace(entry, path=part), KeyState.COPIED),
        ]
        await records.add_keys(claimed.claim, keys)
        with raises_code("operation_in_progress"):
            await self.fill(exports(), f"{shown(scheme, base)}/out", [b"y"])
        await database.execute("update instances set alive_until = now() - interval '1 s' where id = $1", dead.id)
        await self.fill(exports(), f"{shown(scheme, base)}/out", [b"y"])
        assert await content(storage, f"{base}/out/{part}") == b"y"
        unfinished = "select count(*) from storage_transfers where ended_at is null and target = $1"
        assert await database.value(unfinished, target.path) == 0
