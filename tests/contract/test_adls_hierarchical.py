"""A hierarchical Azure account on a stand-in server: network faults, application logins, and protocol guarantees."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.contract.adls_faults import USER, AzureFaults, changed, tidy
from tests.contract.storage_basis import batches, body, content, names, put
from tests.contract.store_accounts import PATIENT
from tests.engines.standin_dfs import DfsServer, dfs_server
from tests.engines.standin_dfs.tree import Refusal
from tests.refusals import raises_code

from queryserver.errors.base import PermissionDenied
from queryserver.errors.files import (
    NotADirectory,
    PathExists,
    StorageError,
    StorageUnavailable,
    StoreQuotaExceeded,
    VerificationFailed,
)
from queryserver.files.protocol import PartPlan
from queryserver.files.stores.adls.file_system import AdlsFileSystem
from queryserver.files.stores.adls.http import AzureAccount, ClientCredentials, SharedKey


@pytest.fixture
async def service() -> AsyncIterator[DfsServer]:
    async with dfs_server() as server:
        yield server


@pytest.fixture
def account(service) -> AzureAccount:
    return AzureAccount(
        dfs_url=service.address.url,
        blob_url="http://127.0.0.1:9",
        credential=SharedKey(service.access.account, service.access.key),
        allow_container_creation=True,
        timeouts=PATIENT,
    )


@pytest.fixture
async def storage(account):
    file_system = AdlsFileSystem(account)
    await file_system.as_user(USER).mkdir("con")
    yield file_system.as_user(USER)
    await file_system.close()


class TestHierarchicalFaults(AzureFaults):
    @pytest.fixture
    def server(self, service):
        return service.address.host, service.address.port

    def at(self, account, port):
        return changed(account, dfs_url=f"http://127.0.0.1:{port}")


def by_application(account: AzureAccount, service: DfsServer, **changes) -> AdlsFileSystem:
    login = service.login
    values = {"tenant_id": login.tenant_id, "client_id": login.client_id, "client_secret": login.client_secret}
    credential = ClientCredentials(login_url=f"{service.address.url}/", **{**values, **changes})
    return AdlsFileSystem(changed(account, credential=credential))


async def test_application_logs_in_once_for_many_calls(service, account, storage):
    file_system = by_application(account, service)
    async with asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(put(file_system.as_user(USER), f"con/{number}"))
    assert len(await names(storage, "con")) == 10
    assert service.login.asked == 1
    await file_system.close()


async def test_refused_token_is_renewed(service, account, storage):
    file_system = by_application(account, service)
    assert (await file_system.as_user(USER).stat("con")).is_directory
    service.access.tokens.clear()
    with pytest.raises(StorageError):
        await file_system.as_user(USER).stat("con")
    assert (await file_system.as_user(USER).stat("con")).is_directory
    assert service.login.asked == 2
    await file_system.close()


@pytest.mark.parametrize("wrong", [{"client_secret": "guessed"}, {"client_id": "other"}, {"tenant_id": "other/tenant"}])
async def test_refused_application_login_is_a_service_failure(service, account, wrong):
    file_system = by_application(account, service, **wrong)
    with pytest.raises(StorageError) as told:
        await file_system.as_user(USER).stat("con")
    tidy(told.value)
    assert not any(word in told.value.message for word in ("AADSTS", service.login.client_id, *wrong.values()))
    await file_system.close()


async def test_unavailable_login_service_is_an_outage(service, account):
    service.login.is_down = True
    file_system = by_application(account, service)
    with pytest.raises(StorageUnavailable):
        await file_system.as_user(USER).stat("con")
    await file_system.close()


async def test_reads_are_tried_three_times_while_account_is_busy(service, storage):
    service.failures = [("HEAD", Refusal(503, "ServerBusy")), ("HEAD", Refusal(500, "OperationTimedOut"))]
    assert (await storage.stat("con")).is_directory
    service.failures = [("HEAD", Refusal(503, "ServerBusy"))] * 3
    with pytest.raises(StorageUnavailable):
        await storage.stat("con")
    assert service.failures == []


async def test_changes_are_sent_once(service, storage):
    service.calls.clear()
    service.failures = [("PUT", Refusal(503, "ServerBusy"))]
    with pytest.raises(StorageUnavailable):
        await storage.mkdir("con/d")
    assert [call for call in service.calls if call.startswith("PUT")] == ["PUT /con/d?resource=directory"]


async def test_positioned_bytes_may_be_resent(service, storage):
    service.failures = [("PATCH", Refusal(503, "ServerBusy"))]
    await put(storage, "con/file", b"content")
    assert await content(storage, "con/file") == b"content"


@pytest.mark.security("S12")
@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirects_are_not_followed(service, storage, status):
    service.calls.clear()
    service.failures = [("HEAD", Refusal(status, "Moved"))]
    with pytest.raises(StorageError):
        await storage.stat("con")
    assert service.calls == ["HEAD /con?resource=filesystem"]


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (403, "AuthorizationPermissionMismatch", PermissionDenied),
        (403, "AuthorizationFailure", PermissionDenied),
        (409, "QuotaExceeded", StoreQuotaExceeded),
        (409, "SomethingOdd", StorageError),
        (400, "InvalidFlushPosition", VerificationFailed),
    ],
)
async def test_refusals_map_to_error_kinds_and_leave_nothing(service, storage, status, code, error):
    service.failures = [("PATCH", Refusal(status, code))]
    with pytest.raises(error) as told:
        await put(storage, "con/file")
    assert type(told.value) is error
    tidy(told.value)
    assert service.trees["con"].entries == {}


async def test_unlistable_containers_are_reported(service, storage):
    service.failures = [("GET", Refusal(403, "AuthorizationPermissionMismatch"))]
    with raises_code("bucket_listing_denied", match=r"^Bucket listing is not allowed: "):
        await names(storage, "")


async def test_replaced_file_keeps_permissions_and_owners(service, storage):
    await put(storage, "con/file", b"old")
    await storage.set_permissions("con/file", 0o640)
    await storage.set_owner("con/file", owner="owner-id", group="group-id")
    await put(storage, "con/file", b"newer", overwrite=True)
    status = await storage.stat("con/file")
    assert (status.permissions, status.owner, status.group, status.size_bytes) == (0o640, "owner-id", "group-id", 5)
    assert set(service.trees["con"].entries) == {"file"}


async def test_replaced_file_keeps_access_control_list(service, storage):
    await put(storage, "con/file", b"old")
    acl = "user::rw-,user:00000000-0000-0000-0000-00000000000a:r--,group::r--,mask::r--,other::---"
    service.trees["con"].entries["file"].acl = acl
    assert (await storage.stat("con/file")).has_acl
    await put(storage, "con/file", b"newer", overwrite=True)
    assert service.trees["con"].entries["file"].acl == acl


async def test_file_is_replaced_even_if_service_may_not_set_owners(service, storage):
    await put(storage, "con/file", b"old")
    plan = PartPlan("con/file", 5, 5, 1)
    staging = await storage.begin_parts(plan)
    part = await storage.write_part(plan, staging, 0, body(b"newer"))
    # The flush succeeds, but the next call, which sets permissions and owner, is refused.
    entry = service.trees["con"].entries[f"._qs_upload_{staging}"]
    service.trees["con"].flush(f"._qs_upload_{staging}", 5)
    assert entry.content == b"newer"
    service.failures = [("PATCH", Refusal(403, "AuthorizationPermissionMismatch"))] * 2
    await storage.join_parts(plan, staging, [part], overwrite=True)
    assert service.failures == []
    assert await content(storage, "con/file") == b"newer"


async def test_tree_deleted_in_several_steps_is_gone(service, storage):
    for number in range(10):
        await put(storage, f"con/tree/{number % 3}/{number}")
    service.calls.clear()
    await storage.delete("con/tree", recursive=True)
    assert len([call for call in service.calls if call.startswith("DELETE")]) > 2
    assert service.trees["con"].entries == {}


async def test_listing_resumes_after_continuation(storage):
    for number in range(7):
        await put(storage, f"con/d/{number}")
    found = await batches(storage, "con/d", batch_size=3)
    assert [len(batch.entries) for batch in found] == [3, 3, 1]
    assert [batch.cursor is None for batch in found] == [False, False, True]


async def test_stale_upload_is_swept_and_active_one_is_spared(service, storage):
    plan = PartPlan("con/file", 6, 3, 2)
    stale, living = await storage.begin_parts(plan), await storage.begin_parts(plan)
    for entry in service.trees["con"].entries.values():
        entry.modified_at = datetime.now(UTC) - timedelta(days=2)
    await storage.write_part(plan, living, 0, body(b"abc"))
    assert await storage.sweep_orphans("con", older_than_s=86_400) == 1
    assert set(service.trees["con"].entries) == {f"._qs_upload_{living}"}
    assert stale != living


async def test_canceled_write_removes_its_bytes(service, storage):
    begun = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1024 * 1024
            begun.set()
            await asyncio.sleep(0)

    writing = asyncio.create_task(storage.write("con/file", endless(), overwrite=False))
    await begun.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert service.trees["con"].entries == {}


async def test_path_through_file_raises_not_a_directory(storage):
    await put(storage, "con/file")
    for call in (storage.mkdir("con/file/a/b"), put(storage, "con/file/a/b")):
        with pytest.raises(NotADirectory):
            await call


async def test_name_taken_during_write_is_not_replaced(storage):
    async def overtaken() -> AsyncIterator[bytes]:
        yield b"late"
        await put(storage, "con/file", b"first")

    with pytest.raises(PathExists):
        await storage.write("con/file", overtaken(), overwrite=False)
    assert await content(storage, "con/file") == b"first"
    assert await names(storage, "con") == ["file"]


async def test_umask_applies_to_new_entries(account, storage):
    strict = AdlsFileSystem(changed(account, umask=0o077))
    await put(strict.as_user(USER), "con/d/file")
    await strict.as_user(USER).mkdir("con/e")
    await strict.close()
    assert [(await storage.stat(f"con/{path}")).permissions for path in ("d/file", "e")] == [0o600, 0o700]
