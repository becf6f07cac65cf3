"""The base class of the storage contract: the adapter's facts, and fixtures that depend on them."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from tests.contract.storage_facts import StorageFacts

from queryserver.errors.base import QueryServerError
from queryserver.errors.files import PathNotFound
from queryserver.files.model import FileStatus, StorageUser
from queryserver.files.protocol import Batch, FileSystem, Storage, StorageTraits

MIB = 1024 * 1024
USER = StorageUser("alice")


class StorageBasis:
    """The base class of the storage tests.

    A subclass declares `facts`, `known_failures` and the fixture `file_system`. If the adapter has a Storage but no
    FileSystem, the subclass provides the fixtures `storage`, `same_storage` and `traits` instead.
    """

    facts: ClassVar[StorageFacts]
    tested_with: ClassVar[str] = ""
    """The server that the tests connect to, as named in the support table, such as `Hadoop 3.4`."""
    known_failures: ClassVar[Mapping[str, pytest.MarkDecorator]] = {}

    @pytest.fixture
    async def storage(self, file_system: FileSystem) -> Storage:
        """Return the store for the tests' user."""
        return file_system.as_user(USER)

    @pytest.fixture
    async def same_storage(self, file_system: FileSystem) -> Storage:
        """Return the store again, as another request of the same user would obtain it."""
        return file_system.as_user(USER)

    @pytest.fixture
    def traits(self, file_system: FileSystem) -> StorageTraits:
        return file_system.traits

    @pytest.fixture
    async def base(self, storage: Storage) -> AsyncGenerator[str]:
        """Yield an empty directory that no other test uses."""
        name = f"t {uuid4().hex[:12]}"
        path = f"{self.facts.place}/{name}" if self.facts.place else name
        await storage.mkdir(path)
        yield path
        with suppress(PathNotFound):
            await storage.delete(path, recursive=True)

    def assert_tidy(self, error: QueryServerError) -> None:
        """Assert that the message is suitable for end users (Contract storage 3.2)."""
        assert error.message.strip() == error.message != ""
        for word in ("Traceback", "Errno", "Exception", "http://", "https://", "0x", *self.facts.server_words):
            assert word not in error.message


async def body(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def failing_body(*pieces: bytes, error: BaseException) -> AsyncIterator[bytes]:
    """Yield the chunks and then raise the error."""
    for piece in pieces:
        yield piece
    raise error


async def put(storage: Storage, path: str, content: bytes = b"x", *, overwrite: bool = False) -> FileStatus:
    return await storage.write(path, body(content), overwrite=overwrite, size_bytes=len(content))


async def content(storage: Storage, path: str, **window: Any) -> bytes:
    return b"".join([piece async for piece in storage.read(path, **window)])


async def batches(storage: Storage, path: str, **options: Any) -> list[Batch]:
    return [batch async for batch in storage.list_directory(path, **options)]


async def entries(storage: Storage, path: str) -> list[FileStatus]:
    """Return all entries of the directory, sorted by name."""
    found = [entry for batch in await batches(storage, path) for entry in batch.entries]
    return sorted(found, key=lambda entry: entry.name)


async def names(storage: Storage, path: str) -> list[str]:
    return [entry.name for entry in await entries(storage, path)]


async def is_there(storage: Storage, path: str) -> bool:
    try:
        await storage.stat(path)
    except PathNotFound:
        return False
    return True
