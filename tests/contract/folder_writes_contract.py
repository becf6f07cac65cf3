"""The contract of folders that appear with all their files at once, for each store (Contract exports 5)."""

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import TypeAlias
from uuid import uuid4

import pytest
from tests.contract.statement_files_contract import shown
from tests.contract.storage_basis import USER, StorageBasis, content, names, put
from tests.fakes.statement_files import EVERY_STORE, GivenFiles, NoUploads, WritesInMemory
from tests.refusals import raises_code

from queryserver.errors.files import InvalidPath
from queryserver.files.access import Caller, StorageAudit, Stores
from queryserver.files.folder_writes import ExportFiles, part_name
from queryserver.files.model import ExtensionRules, PathReader, Scheme, StoragePath, staged_folder_name
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

    async def fill(self, files: ExportFiles, path: str, parts: Sequence[bytes], *, overwrite: bool = False) -> None:
        async with files.write_folder(path, "csv", overwrite=overwrite) as folder:
            for number, part in enumerate(parts):
                async with folder.file(part_name(number, "csv")) as sink:
                    for start in range(0, len(part), MIB):
                        await sink.send(part[start : start + MIB])

    @pytest.mark.exports(14)
    async def test_folder_appears_with_all_its_files_at_once(
        self, file_system: FileSystem, storage: Storage, base: str, exports: ExportsOpener
    ):
        parts = [b"one", b"", bytes(range(256)) * 4096 * 7]
        async with exports().write_folder(f"{shown(file_system.scheme, base)}/out", "csv", overwrite=False) as folder:
            for number, part in enumerate(parts):
                async with folder.file(part_name(number, "csv")) as sink:
                    for start in range(0, len(part), MIB):
                        await sink.send(part[start : start + MIB])
                assert await names(storage, base) == []
        assert await names(storage, base) == ["out"]
        assert await names(storage, f"{base}/out") == [part_name(number, "csv") for number in range(3)]
        for number, part in enumerate(parts):
            assert await content(storage, f"{base}/out/{part_name(number, 'csv')}") == part
        assert folder.size_bytes == sum(map(len, parts))

    @pytest.mark.exports(14)
    async def test_failed_block_leaves_nothing(
        self, file_system: FileSystem, storage: Storage, base: str, exports: ExportsOpener
    ):
        async def fail() -> None:
            async with exports().write_folder(path, "csv", overwrite=False) as folder:
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
    async def test_only_folders_of_parts_are_replaced(
        self, file_system: FileSystem, storage: Storage, base: str, exports: ExportsOpener
    ):
        path = f"{shown(file_system.scheme, base)}/out"
        await self.fill(exports(), path, [b"a", b"b", b"c"])
        with raises_code("already_exists"):
            await self.fill(exports(), path, [b"d"])
        await self.fill(exports(), path, [b"d"], overwrite=True)
        assert await names(storage, f"{base}/out") == [part_name(0, "csv")]
        assert await content(storage, f"{base}/out/{part_name(0, 'csv')}") == b"d"
        await put(storage, f"{base}/out/mine.csv")
        with raises_code("already_exists"):
            await self.fill(exports(), path, [b"e"], overwrite=True)
        assert await content(storage, f"{base}/out/{part_name(0, 'csv')}") == b"d"
        assert await names(storage, base) == ["out"]

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
