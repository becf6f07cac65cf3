"""The storage contract for HttpFS, the HTTP gateway of a real HDFS."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from uuid import uuid4

import httpx
import pytest
from tests.contract.storage_basis import MIB, batches, content, entries, names, put
from tests.contract.storage_contract import StorageContract
from tests.contract.storage_facts import StorageFacts
from tests.contract.storage_powers import (
    ModesContract,
    OwnersContract,
    RenamingContract,
    ReplicationContract,
    SummaryContract,
    TrashContract,
)
from tests.engines.fault_proxy import Fault, FaultProxy, fault_proxy
from tests.engines.hdfs import SERVICE_USER
from tests.engines.servers import HttpAddress

from queryserver.errors.base import PermissionDenied
from queryserver.errors.files import PathNotFound, StorageError, StorageUnavailable
from queryserver.files.model import StorageUser
from queryserver.files.stores.webhdfs.gateway import Timeouts, WebHdfsAddress
from queryserver.files.stores.webhdfs.storage import WebHdfsCluster, WebHdfsFileSystem

pytestmark = [pytest.mark.engine("hdfs"), pytest.mark.engine("httpfs")]


@pytest.fixture
async def file_system(httpfs_gateway: HttpAddress) -> AsyncGenerator[WebHdfsFileSystem]:
    file_system = WebHdfsFileSystem(WebHdfsAddress([f"{httpfs_gateway.url}/webhdfs/v1"], SERVICE_USER))
    yield file_system
    await file_system.close()


class TestHttpFsStorage(
    StorageContract,
    RenamingContract,
    TrashContract,
    ReplicationContract,
    SummaryContract,
    ModesContract,
    OwnersContract,
):
    """The storage contract for HttpFS. The service impersonates `alice`."""

    facts = StorageFacts(
        name="HDFS (HttpFS)",
        place="user/alice",
        server_words=("127.0.0.1", "localhost", "java", "org.apache", "webhdfs"),
        owner_change=("alice", "analysts"),
    )
    tested_with = "Hadoop 3.4"


ALICE, BOB = StorageUser("alice"), StorageUser("bob")


@pytest.fixture
async def base(file_system) -> AsyncGenerator[str]:
    path, storage = f"user/alice/{uuid4().hex}", file_system.as_user(ALICE)
    await storage.mkdir(path)
    yield path
    await storage.delete(path, recursive=True)


@pytest.mark.storage(94)
async def test_alternating_users_keep_identities_in_one_pool(file_system):
    alice, bob = file_system.as_user(ALICE), file_system.as_user(BOB)
    for turn in range(4):
        for storage, user, other in ((alice, "alice", "bob"), (bob, "bob", "alice")):
            status = await put(storage, f"user/{user}/turn{turn}")
            assert status.owner == user
            with pytest.raises(PermissionDenied):
                await put(storage, f"user/{other}/turn{turn}", overwrite=True)
    for turn in range(4):
        await alice.delete(f"user/alice/turn{turn}", recursive=False)
        await bob.delete(f"user/bob/turn{turn}", recursive=False)


async def test_listing_resumes_after_cursor_and_is_complete_without(file_system, base):
    storage = file_system.as_user(ALICE)
    await asyncio.gather(*(storage.mkdir(f"{base}/{number:02}") for number in range(60)))
    (rest,) = await batches(storage, base, cursor="49")
    assert [entry.name for entry in rest.entries] == [f"{number}" for number in range(50, 60)]
    assert len(await entries(storage, base)) == 60


@pytest.mark.storage(86)
async def test_unreplaceable_file_is_restored(file_system, base):
    storage = file_system.as_user(ALICE)
    await put(storage, f"{base}/file", b"old")
    tree = storage.tree
    with pytest.raises(PathNotFound):
        await tree.features.renaming._replace(tree, f"{base}/missing", f"{base}/file")
    assert await content(storage, f"{base}/file") == b"old"
    assert [entry.name async for entry in tree.all_entries(base)] == ["file"]


async def test_delegation_tokens_name_the_caller(httpfs_gateway):
    """Uses simple authentication on the gateway instead of a Kerberos ticket."""
    address = WebHdfsAddress([f"{httpfs_gateway.url}/webhdfs/v1"], SERVICE_USER, uses_tokens=True)
    cluster = WebHdfsCluster(address, login=NoLogin())
    tokens = cluster.gateway._tokens
    assert tokens is not None
    for user in (ALICE, BOB, ALICE):
        assert await cluster.tree(user).request_value("GETHOMEDIRECTORY", "", "Path") == f"/user/{user.name}"
        token = await tokens.get(user.name)
        assert token
    await cluster._renew(token)
    # Simulates a gateway instance that no longer accepts the token.
    tokens._tokens.get("alice").text = token[:-8] + "AAAAAAAA"
    assert await cluster.tree(ALICE).request_value("GETHOMEDIRECTORY", "", "Path") == "/user/alice"
    await cluster.close()


class NoLogin(httpx.Auth):
    """An authenticator that adds no credentials, because the username in the request suffices."""


@pytest.fixture
async def proxy(httpfs_gateway) -> AsyncGenerator[FaultProxy]:
    async with fault_proxy(httpfs_gateway.host, httpfs_gateway.port) as proxy:
        yield proxy


@pytest.fixture
async def behind_faults(proxy) -> AsyncGenerator[WebHdfsFileSystem]:
    """Put a fault proxy before the gateway.

    Data also passes through the proxy, because redirects contain the address that the client called.
    """
    file_system = WebHdfsFileSystem(WebHdfsAddress([f"http://127.0.0.1:{proxy.port}/webhdfs/v1"], SERVICE_USER))
    yield file_system
    await file_system.close()


@pytest.fixture
async def impatient(proxy) -> AsyncGenerator[WebHdfsFileSystem]:
    """A file system behind the proxy that does not wait for long if the gateway is silent."""
    url, timeouts = f"http://127.0.0.1:{proxy.port}/webhdfs/v1", Timeouts(connect_s=10, silence_s=5, call_s=20)
    file_system = WebHdfsFileSystem(WebHdfsAddress([url], SERVICE_USER, timeouts=timeouts))
    yield file_system
    await file_system.close()


@pytest.mark.storage(51)
@pytest.mark.parametrize("fault", [Fault.RESET, Fault.CUT, Fault.SILENCE])
async def test_store_failure_during_download_raises_error(file_system, behind_faults, impatient, proxy, base, fault):
    caller = impatient if fault is Fault.SILENCE else behind_faults
    await put(file_system.as_user(ALICE), f"{base}/big", bytes(range(256)) * 4096 * 8)
    proxy.set_fault(fault, after_bytes=3 * MIB)
    got: list[int] = []
    async with asyncio.timeout(100), aclosing(caller.as_user(ALICE).read(f"{base}/big")) as pieces:
        with pytest.raises(StorageError):
            await sizes(pieces, got)
    assert 0 < sum(got) < 8 * MIB


async def sizes(pieces: AsyncIterator[bytes], got: list[int]) -> None:
    async for piece in pieces:
        got.append(len(piece))  # noqa: PERF401 keeps the chunks received before a failure


@pytest.mark.storage(9, 86)
@pytest.mark.parametrize("fault", [Fault.RESET, Fault.SILENCE])
async def test_store_failure_during_upload_leaves_no_file(file_system, behind_faults, impatient, proxy, base, fault):
    caller = impatient if fault is Fault.SILENCE else behind_faults

    async def breaking() -> AsyncIterator[bytes]:
        yield b"x" * MIB
        proxy.set_fault(fault)
        if fault is Fault.RESET:
            await proxy.die()
        yield b"x" * MIB

    async with asyncio.timeout(100):
        with pytest.raises(StorageUnavailable):
            await caller.as_user(ALICE).write(f"{base}/file", breaking(), overwrite=False)
        await proxy.die()
        with pytest.raises(StorageUnavailable):
            await caller.as_user(ALICE).stat(base)
    assert await names(file_system.as_user(ALICE), base) == []
    await proxy.listen()
    assert (await put(behind_faults.as_user(ALICE), f"{base}/file")).size_bytes == 1


@pytest.mark.parametrize("fault", [Fault.GARBAGE, Fault.CUT, Fault.FRAGMENTS])
async def test_invalid_responses_are_store_failures(behind_faults, proxy, base, fault):
    proxy.set_fault(fault)
    storage = behind_faults.as_user(ALICE)
    if fault is Fault.FRAGMENTS:
        assert await names(storage, base) == []
        return
    for call in (storage.stat(base), names(storage, base)):
        with pytest.raises(StorageError):
            await call


async def test_html_error_pages_are_reported_with_our_own_message(file_system, base):
    """The gateway returns such pages for names that it cannot parse."""
    storage = file_system.as_user(ALICE)
    await put(storage, f"{base}/file", b"12345")
    with pytest.raises(StorageError) as told:
        # The range starts after the end of the file; `read` never requests such a range.
        [piece async for piece in storage.tree.content(f"{base}/file", 99, 1)]
    assert told.value.message == "The store failed with status 500."
