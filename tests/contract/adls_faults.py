"""The network faults that every Azure storage adapter must survive."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import ClassVar

import pytest
from tests.contract.storage_basis import MIB, body, content, names, put
from tests.contract.store_accounts import PATIENT
from tests.engines.fault_proxy import Fault, FaultProxy, fault_proxy
from tests.refusals import raises_code

from queryserver.errors.base import PermissionDenied, QueryServerError
from queryserver.errors.files import (
    DirectoryNotEmpty,
    InvalidName,
    PathExists,
    PathNotFound,
    StorageError,
    StorageUnavailable,
)
from queryserver.files.model import StorageUser
from queryserver.files.protocol import FileSystem, PartPlan, Storage
from queryserver.files.stores.adls.file_system import AdlsFileSystem
from queryserver.files.stores.adls.http import AzureAccount, AzureTimeouts, SharedKey

WRONG_KEY = "d3Jvbmc="
USER = StorageUser("alice")


class AzureFaults:
    """The network fault tests. A test class for each account kind inherits them and provides the fixtures `server`
    (host and port) and `account`.
    """

    of_a_wrong_key: ClassVar[type[QueryServerError]] = StorageError

    container = "faults"

    def at(self, account: AzureAccount, port: int) -> AzureAccount:
        """Return the same account on another port."""
        raise NotImplementedError

    @pytest.fixture
    async def storage(self, account: AzureAccount) -> AsyncIterator[Storage]:
        """Yield the storage of a separate container; this connection does not use the fault proxy."""
        file_system = AdlsFileSystem(account)
        storage = file_system.as_user(USER)
        if self.container not in await names(storage, ""):
            await storage.mkdir(self.container)
        await storage.mkdir(f"{self.container}/work")
        try:
            yield storage
        finally:
            await storage.delete(f"{self.container}/work", recursive=True)
            await file_system.close()

    @pytest.fixture
    async def proxy(self, server: tuple[str, int]) -> AsyncIterator[FaultProxy]:
        async with fault_proxy(*server) as proxy:
            yield proxy

    @pytest.fixture
    async def broken(self, account: AzureAccount, proxy: FaultProxy) -> AsyncIterator[FileSystem]:
        """Yield a file system that reaches the same account through the fault proxy."""
        file_system = AdlsFileSystem(self.at(account, proxy.port))
        yield file_system
        await file_system.close()

    def path(self, name: str) -> str:
        return f"{self.container}/work/{name}"

    async def test_wrong_key_is_reported_as_failed_login(self, account: AzureAccount, storage: Storage) -> None:
        wrong = AdlsFileSystem(changed(account, credential=SharedKey("someone", WRONG_KEY)))
        stranger = wrong.as_user(USER)
        for call in (stranger.stat(self.path("x")), put(stranger, self.path("x")), names(stranger, "")):
            with pytest.raises(self.of_a_wrong_key) as told:
                await call
            tidy(told.value)
        await wrong.close()
        assert await names(storage, f"{self.container}/work") == []

    @pytest.mark.storage(86)
    @pytest.mark.parametrize("sent", [5 * MIB, 13 * MIB])
    async def test_outage_during_upload_leaves_no_file(
        self, storage: Storage, broken: FileSystem, proxy: FaultProxy, sent: int
    ) -> None:
        async def cut() -> AsyncIterator[bytes]:
            yield b"x" * sent
            await proxy.die()
            yield b"x" * (5 * MIB)

        with pytest.raises(StorageUnavailable) as told:
            await broken.as_user(USER).write(self.path("file"), cut(), overwrite=False)
        tidy(told.value)
        assert await names(storage, f"{self.container}/work") == []
        await proxy.listen()
        await put(broken.as_user(USER), self.path("file"), b"again")
        assert await content(storage, self.path("file")) == b"again"

    @pytest.mark.storage(51)
    @pytest.mark.parametrize("fault", [Fault.RESET, Fault.CUT, Fault.GARBAGE, Fault.SILENCE])
    async def test_interrupted_download_raises_instead_of_looking_complete(
        self, account: AzureAccount, storage: Storage, proxy: FaultProxy, fault: Fault
    ) -> None:
        await put(storage, self.path("file"), b"x" * (3 * MIB))
        proxy.set_fault(fault, after_bytes=MIB)
        timeouts = replace(PATIENT, answer_s=3) if fault is Fault.SILENCE else PATIENT
        broken = AdlsFileSystem(changed(self.at(account, proxy.port), timeouts=timeouts))
        try:
            with pytest.raises(StorageUnavailable) as told:
                await content(broken.as_user(USER), self.path("file"))
            tidy(told.value)
        finally:
            await broken.close()

    @pytest.mark.storage(9)
    async def test_unreachable_account_is_unavailable_until_it_returns(
        self, storage: Storage, broken: FileSystem, proxy: FaultProxy
    ) -> None:
        far = broken.as_user(USER)
        await proxy.die()
        for call in (far.stat(self.container), names(far, ""), put(far, self.path("x"))):
            with pytest.raises(StorageUnavailable) as told:
                await call
            tidy(told.value)
        await proxy.listen()
        assert (await far.stat(self.container)).is_directory
        assert await names(storage, f"{self.container}/work") == []

    async def test_non_http_response_is_an_outage(self, broken: FileSystem, proxy: FaultProxy) -> None:
        proxy.set_fault(Fault.GARBAGE)
        with pytest.raises(StorageUnavailable):
            await broken.as_user(USER).stat(self.container)

    async def test_response_in_tiny_chunks_is_read_whole(
        self, storage: Storage, broken: FileSystem, proxy: FaultProxy
    ) -> None:
        await put(storage, self.path("file"), b"0123456789" * 100)
        proxy.set_fault(Fault.FRAGMENTS)
        assert await names(broken.as_user(USER), f"{self.container}/work") == ["file"]
        assert await content(broken.as_user(USER), self.path("file")) == b"0123456789" * 100

    async def test_closed_store_opens_no_connection(self, account: AzureAccount) -> None:
        file_system = AdlsFileSystem(account)
        await file_system.close()
        await file_system.close()
        with pytest.raises(StorageUnavailable):
            await file_system.as_user(USER).stat(self.container)

    async def test_containers_are_created_only_if_settings_allow(self, account: AzureAccount, storage: Storage) -> None:
        strict = AdlsFileSystem(changed(account, allow_container_creation=False))
        with pytest.raises(PermissionDenied):
            await strict.as_user(USER).mkdir("another")
        with pytest.raises(PathExists):
            await strict.as_user(USER).mkdir(self.container)
        await strict.close()
        for name in ("Upper", "a_b", "x", "two--hyphens"):
            with pytest.raises(InvalidName):
                await storage.mkdir(name)
        for path in ("another/x", "No Container/x", "No Container"):
            with pytest.raises(PathNotFound):
                await storage.stat(path)

    @pytest.mark.storage(77)
    async def test_only_empty_containers_can_be_deleted(self, storage: Storage) -> None:
        await storage.mkdir("deleted")
        await put(storage, "deleted/file")
        for recursive in (True, False):
            with pytest.raises(DirectoryNotEmpty):
                await storage.delete("deleted", recursive=recursive)
        await storage.delete("deleted/file", recursive=False)
        await storage.delete("deleted", recursive=False)
        assert "deleted" not in await names(storage, "")
        with raises_code("root_not_allowed"):
            await storage.delete("", recursive=True)

    @pytest.mark.storage(86)
    async def test_old_files_orphaned_by_a_crash_are_swept(self, storage: Storage) -> None:
        folder, plan = f"{self.container}/work", PartPlan(self.path("file"), 6, 3, 2)
        await put(storage, self.path("kept"))
        staging = await storage.begin_parts(plan)
        await storage.write_part(plan, staging, 1, body(b"def"))
        assert await storage.sweep_orphans(folder, older_than_s=3600) == 0
        assert await storage.sweep_orphans(folder, older_than_s=-60) == 1
        assert await storage.sweep_orphans(folder, older_than_s=-60) == 0
        with pytest.raises(PathNotFound):
            await storage.write_part(plan, staging, 0, body(b"abc"))
        await storage.delete(self.path("kept"), recursive=False)
        await storage.delete(folder, recursive=False)
        await storage.mkdir(folder)

    async def test_empty_multipart_file_is_created(self, storage: Storage) -> None:
        plan = PartPlan(self.path("empty"), 0, 1, 1)
        staging = await storage.begin_parts(plan)
        part = await storage.write_part(plan, staging, 0, body())
        status = await storage.join_parts(plan, staging, [part], overwrite=False)
        assert (status.size_bytes, await content(storage, self.path("empty"))) == (0, b"")

    async def test_concurrent_calls_share_few_connections(self, account: AzureAccount, storage: Storage) -> None:
        await put(storage, self.path("file"), b"four")
        patient = AdlsFileSystem(changed(account, timeouts=AzureTimeouts()))
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(patient.as_user(USER).stat(self.path("file"))) for _ in range(70)]
        await patient.close()
        assert {call.result().size_bytes for call in asked} == {4}


def changed(account: AzureAccount, **changes: object) -> AzureAccount:
    """Return a copy of the account with some values changed."""
    kept = {name: getattr(account, name) for name in AzureAccount.__dataclass_fields__}
    return AzureAccount(**{**kept, **changes})


def tidy(error: QueryServerError) -> None:
    """Assert that the message reveals no address, account, secret or internal name."""
    for word in ("127.0.0.1", "devstoreaccount1", "standinaccount", "someone", WRONG_KEY, "Request", "sig", "httpx"):
        assert word not in error.message
