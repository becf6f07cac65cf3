"""The storage contract for Azure storage: a flat account on a real Azurite, and a hierarchical account on a stand-in
server.
"""

from collections.abc import AsyncIterator

import pytest
from tests.contract.storage_contract import StorageContract
from tests.contract.storage_escapes import EscapesContract, Plant, Raw
from tests.contract.storage_facts import StorageFacts
from tests.contract.storage_powers import ModesContract, OwnersContract, RenamingContract
from tests.contract.test_adls_flat import flat_account
from tests.engines import azurite as emulator
from tests.engines.standin_dfs import dfs_server

from queryserver.files.model import StorageUser
from queryserver.files.stores.adls.file_system import AdlsFileSystem
from queryserver.files.stores.adls.flat import BlobCalls
from queryserver.files.stores.adls.http import AzureAccount, AzureClient, SharedKey
from queryserver.files.stores.adls.shared import AzureLocation

CONTAINER = "contract"
USER = StorageUser("alice")


@pytest.mark.engine("azurite")
class TestFlatAccount(StorageContract, EscapesContract):
    facts = StorageFacts(
        "Azure storage, flat",
        unnameable=(b"d//x", b"d//y//z", b"//two", b"d/sub/", b"l" * 300 + b"/x"),
        place=CONTAINER,
        default_permissions=(0o777, 0o666),
        server_words=("127.0.0.1", emulator.ACCOUNT, "RequestId"),
    )
    tested_with = "Azurite 3.37"

    @pytest.fixture
    async def file_system(self, azurite):
        account = AzureAccount(
            dfs_url="http://127.0.0.1:9",
            blob_url=f"{azurite.url}/{emulator.ACCOUNT}",
            credential=SharedKey(emulator.ACCOUNT, emulator.ACCOUNT_KEY),
            is_hierarchical=False,
            allow_container_creation=True,
        )
        file_system = AdlsFileSystem(account)
        names = [e.name async for batch in file_system.as_user(USER).list_directory("") for e in batch.entries]
        if CONTAINER not in names:
            await file_system.as_user(USER).mkdir(CONTAINER)
        yield file_system
        await file_system.close()

    @pytest.fixture
    async def calls(self, azurite) -> AsyncIterator[BlobCalls]:
        client = AzureClient(flat_account(azurite.port))
        yield BlobCalls(client)
        await client.close()

    @pytest.fixture
    def plant(self, calls: BlobCalls) -> Plant:
        async def plant(directory: str, name: bytes) -> None:
            await calls.put(AzureLocation(tuple(f"{directory}/{name.decode()}".split("/"))), name, {})

        return plant

    @pytest.fixture
    def raw(self, calls: BlobCalls) -> Raw:
        async def raw(directory: str) -> set[bytes]:
            container, _, prefix = f"{directory}/".partition("/")
            items = [item async for page, _ in calls.pages(container, prefix) for item in page]
            return {item.name.removeprefix(prefix).encode() for item in items if item.size_bytes}

        return raw


class TestHierarchicalAccount(StorageContract, RenamingContract, ModesContract, OwnersContract):
    """The storage contract on our stand-in server. The behavior of a real account is untested."""

    facts = StorageFacts(
        "Azure storage, hierarchical",
        place=CONTAINER,
        owner_change=("00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b"),
        server_words=("127.0.0.1", "standinaccount", "RequestId"),
    )
    tested_with = "a stand-in"

    @pytest.fixture
    async def file_system(self):
        async with dfs_server() as server:
            account = AzureAccount(
                dfs_url=server.address.url,
                blob_url="http://127.0.0.1:9",
                credential=SharedKey(server.access.account, server.access.key),
                allow_container_creation=True,
            )
            file_system = AdlsFileSystem(account)
            await file_system.as_user(USER).mkdir(CONTAINER)
            yield file_system
            await file_system.close()
