"""The storage contract for local directories: the local root, and the application's own files."""

import asyncio
import errno
import os
from pathlib import Path

import pytest
from tests.contract.storage_basis import USER
from tests.contract.storage_contract import StorageContract
from tests.contract.storage_escapes import EscapesContract, Plant, Raw
from tests.contract.storage_facts import StorageFacts
from tests.contract.storage_powers import ModesContract, RenamingContract, SummaryContract, TrashContract
from tests.unit.files.stores.local.descriptors import open_below

from queryserver.files.model import StorageUser
from queryserver.files.protocol import StorageTraits
from queryserver.files.stores.local.storage import LocalFileSystem, PrivateStorage


class LocalContract(StorageContract, RenamingContract, TrashContract, SummaryContract, ModesContract):
    """The contract of the local root, for every kind of user."""

    tested_with = "a directory"

    @pytest.fixture
    async def file_system(self, tmp_path: Path):
        root = tmp_path / "root"
        root.mkdir()
        file_system = LocalFileSystem(root)
        await file_system.as_user(USER).stat("user/alice")
        yield file_system
        await file_system.close()
        # Even aborted operations leave no file open.
        assert not await asyncio.to_thread(open_below, tmp_path)


class TestLocalHome(LocalContract, EscapesContract):
    facts = StorageFacts(
        "local root", place="user/alice", unnameable=(b"\xff", b"caf\xe9.csv", b"d\xe9/inner", b"d\xe9/\xfe\xff")
    )

    @pytest.fixture
    def plant(self, tmp_path: Path) -> Plant:
        async def plant(directory: str, name: bytes) -> None:
            file = tmp_path / "root" / directory / os.fsdecode(name)
            file.parent.mkdir(exist_ok=True)
            try:
                file.write_bytes(name)
            except OSError as error:
                if error.errno == errno.EILSEQ:
                    pytest.skip("this file system accepts UTF-8 names only")
                raise

        return plant

    @pytest.fixture
    def raw(self, tmp_path: Path) -> Raw:
        async def raw(directory: str) -> set[bytes]:
            top = tmp_path / "root" / directory
            return {os.fsencode(file.relative_to(top)) for file in top.rglob("*") if file.is_file()}

        return raw


class TestLocalAdministrator(LocalContract):
    facts = StorageFacts("local root", place="")

    @pytest.fixture
    async def storage(self, file_system):
        return file_system.as_user(StorageUser("root", is_admin=True))

    @pytest.fixture
    async def same_storage(self, file_system):
        return file_system.as_user(StorageUser("root", is_admin=True))


class TestPrivateStorage(StorageContract, RenamingContract, SummaryContract, ModesContract):
    facts = StorageFacts("results", default_permissions=(0o700, 0o600))

    @pytest.fixture
    async def storage(self, tmp_path: Path):
        async with PrivateStorage(tmp_path / "new" / "root") as storage:
            yield storage
        assert not await asyncio.to_thread(open_below, tmp_path)

    @pytest.fixture
    async def same_storage(self, storage):
        return storage

    @pytest.fixture
    def traits(self):
        return StorageTraits()
