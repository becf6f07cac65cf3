"""A local root in an empty directory, and its storages for several users."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.files.stores.local.descriptors import file_system_of

from queryserver.files.model import StorageUser
from queryserver.files.stores.local.storage import LocalFileSystem, PrivateStorage, UserStorage


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture
async def file_system(root: Path) -> AsyncIterator[LocalFileSystem]:
    """Provide the file system, and check at the end that no descriptor below the root is open."""
    async with file_system_of(root) as file_system:
        yield file_system


@pytest.fixture
async def alice(file_system: LocalFileSystem) -> UserStorage:
    return file_system.as_user(StorageUser("alice"))


@pytest.fixture
async def bob(file_system: LocalFileSystem) -> UserStorage:
    return file_system.as_user(StorageUser("bob"))


@pytest.fixture
async def admin(file_system: LocalFileSystem) -> UserStorage:
    return file_system.as_user(StorageUser("root", is_admin=True))


@pytest.fixture
async def private(tmp_path: Path) -> AsyncIterator[PrivateStorage]:
    """Provide the storage of the service's own files, below `own`."""
    async with PrivateStorage(tmp_path / "own") as storage:
        yield storage
