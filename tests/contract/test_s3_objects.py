"""S3-specific behavior on a real server: key order, markers, multipart uploads, logins, and outages."""

import asyncio
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, aclosing, nullcontext
from datetime import timedelta
from uuid import uuid4

import botocore.auth
import pytest
from tests.contract.storage_basis import MIB, USER, batches, body, content, is_there, names, put
from tests.contract.store_accounts import s3_options
from tests.engines.fault_proxy import Fault, fault_proxy
from tests.refusals import raises_code

from queryserver.errors.base import PermissionDenied, QueryServerError
from queryserver.errors.files import (
    DirectoryNotEmpty,
    PathExists,
    PathNotFound,
    StorageError,
    StorageUnavailable,
    upload_aborted,
)
from queryserver.files.access import StorageAudit, Stores
from queryserver.files.model import ExtensionRules, PathReader, Scheme
from queryserver.files.protocol import PartPlan
from queryserver.files.stores.s3.connection import S3Keys
from queryserver.files.stores.s3.storage import S3FileSystem, S3Storage
from queryserver.files.upload_repository import OrphanSweep
from queryserver.files.uploads import FileUpload, UploadRules, Uploads
from queryserver.identity.model import User

pytestmark = pytest.mark.engine("s3")
BUCKET = "objects"
PART = 5 * MIB


class CountedStore:
    """A store that counts the calls of its driver's client."""

    def __init__(self, file_system: S3FileSystem, client) -> None:
        self.file_system = file_system
        self.storage: S3Storage = file_system.as_user(USER)
        self.client = client
        self.calls = Counter[str]()
        self.before = dict[str, object]()
        client.meta.events.register("before-call.s3", self._count)

    def _count(self, model, **_) -> None:
        self.calls[model.name] += 1
        if action := self.before.get(model.name):
            action()

    async def uploads(self) -> list[str]:
        """Return the keys of all multipart uploads that were neither completed nor aborted."""
        return [
            upload["Key"] for upload in (await self.client.list_multipart_uploads(Bucket=BUCKET)).get("Uploads", ())
        ]


async def counted(address, **changes) -> tuple[S3FileSystem, CountedStore]:
    file_system = S3FileSystem(s3_options(address, **changes))
    return file_system, CountedStore(file_system, await file_system._connection._open_client())


@pytest.fixture(scope="module")
async def open_store(s3_server):
    file_system, store = await counted(s3_server)
    await store.storage.mkdir(BUCKET)
    yield store
    await file_system.close()


@pytest.fixture
def store(open_store):
    open_store.calls.clear()
    open_store.before.clear()
    return open_store


@pytest.fixture
async def base(store):
    path = f"{BUCKET}/{uuid4().hex}"
    await store.storage.mkdir(path)
    store.calls.clear()
    yield path
    store.before.clear()
    await store.storage.delete(path, recursive=True)
    assert await store.uploads() == []


@pytest.fixture
async def proxy(s3_server):
    async with fault_proxy(s3_server.http.host, s3_server.http.port) as proxy:
        yield proxy


@pytest.fixture
async def proxied(s3_server, proxy):
    """Yield a store that connects through a fault proxy."""
    file_system, store = await counted(s3_server, endpoint=f"http://127.0.0.1:{proxy.port}", timeout_s=2.0)
    yield store
    await file_system.close()


async def put_key(store: CountedStore, path: str, content: bytes = b"x") -> None:
    """Store an object directly, as another program would."""
    await store.client.put_object(Bucket=BUCKET, Key=key_of(path), Body=content)


def key_of(path: str) -> str:
    return path.removeprefix(f"{BUCKET}/")


async def pieces(count: int, size: int = MIB) -> AsyncIterator[bytes]:
    for number in range(count):
        yield bytes([number % 251]) * size


@pytest.mark.storage(33, 34)
async def test_2300_keys_are_listed_in_order_a_thousand_per_call(store, base, s3_server):
    directory = s3_server.directory / base / "many"
    directory.mkdir()
    for number in range(2300):
        (directory / f"f{number * 7 % 2300:04d}").touch()
    store.calls.clear()
    found = await batches(store.storage, f"{base}/many")
    assert [len(batch.entries) for batch in found] == [1000, 1000, 300]
    assert [entry.name for batch in found for entry in batch.entries] == [f"f{number:04d}" for number in range(2300)]
    assert store.calls == {"ListObjectsV2": 3}
    # A cursor remains valid in another process.
    file_system, other = await counted(s3_server)
    again = await batches(other.storage, f"{base}/many", cursor=found[0].cursor)
    await file_system.close()
    assert [batch.entries for batch in again] == [batch.entries for batch in found[1:]]
    store.calls.clear()
    await store.storage.delete(f"{base}/many", recursive=True)
    assert store.calls["DeleteObjects"] == 3
    assert store.calls["DeleteObject"] == 0


@pytest.mark.platform(96)
async def test_whole_tree_is_listed_in_key_order(store, base, s3_server):
    for number in range(1500):
        file = s3_server.directory / base / f"d{number % 7}" / "in" / f"f{number:04d}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    await store.storage.mkdir(f"{base}/empty")
    store.calls.clear()
    async with aclosing(store.storage.list_tree(base)) as pages:
        found = [entry async for page in pages for entry in page]
    files = [entry.path for entry in found if not entry.is_directory]
    assert len(files) == 1500
    assert files == sorted(files)
    assert f"{base}/empty" in {entry.path for entry in found if entry.is_directory}
    # The number of calls depends only on the number of keys: one per thousand.
    assert store.calls == {"ListObjectsV2": 2}
    assert not await is_there(store.storage, f"{base}/many")


async def test_folder_sorts_as_its_name_with_a_slash(store, base):
    for path in ("a/x", "a-b/x", "a.txt", "a0", "a!"):
        await put_key(store, f"{base}/{path}")
    whole = [entry.name for batch in await batches(store.storage, base) for entry in batch.entries]
    assert whole == ["a!", "a-b", "a.txt", "a", "a0"]
    by_one = [entry.name for batch in await batches(store.storage, base, batch_size=1) for entry in batch.entries]
    assert by_one == whole


async def test_prefix_without_marker_is_a_directory(store, base):
    await put_key(store, f"{base}/p/q/file")
    assert (await store.storage.stat(f"{base}/p/q")).is_directory
    assert await names(store.storage, f"{base}/p") == ["q"]
    await store.storage.delete(f"{base}/p", recursive=True)
    assert not await is_there(store.storage, f"{base}/p")


@pytest.mark.storage(35)
async def test_unnameable_keys_are_not_listed_but_deleted(store, base):
    for key in ("._qs_upload_0", "d/._qs_x/file", "d/file", "d/tab\tbed", "d/new\nline"):
        await put_key(store, f"{base}/{key}")
    assert await names(store.storage, base) == ["d"]
    assert await names(store.storage, f"{base}/d") == ["file", "new\nline", "tab\tbed"]
    await store.storage.delete(f"{base}/d", recursive=True)
    assert not await is_there(store.storage, f"{base}/d")


async def test_attributes_take_one_call_for_files_and_two_for_directories(store, base):
    await put_key(store, f"{base}/d/file")
    store.calls.clear()
    assert (await store.storage.stat(f"{base}/d/file")).tag
    assert store.calls == {"HeadObject": 1}
    store.calls.clear()
    assert (await store.storage.stat(f"{base}/d")).is_directory
    assert store.calls == {"HeadObject": 1, "ListObjectsV2": 1}


async def test_marker_is_kept_once_for_last_entry(store, base):
    await put_key(store, f"{base}/d/one")
    await put_key(store, f"{base}/d/two")
    store.calls.clear()
    await store.storage.delete(f"{base}/d/one", recursive=False)
    assert store.calls["PutObject"] == 0
    await store.storage.delete(f"{base}/d/two", recursive=False)
    assert store.calls["PutObject"] == 1
    assert await names(store.storage, f"{base}/d") == []


@pytest.mark.storage(77)
async def test_buckets_are_listed_and_deleted_only_when_empty(store, base):
    await store.storage.mkdir("second-bucket")
    assert {BUCKET, "second-bucket"} <= set(await names(store.storage, ""))
    with pytest.raises(PathExists):
        await store.storage.mkdir("second-bucket")
    await put(store.storage, "second-bucket/file")
    with pytest.raises(DirectoryNotEmpty):
        await store.storage.delete("second-bucket", recursive=True)
    await store.storage.delete("second-bucket/file", recursive=False)
    await store.storage.delete("second-bucket", recursive=False)
    assert not await is_there(store.storage, "second-bucket")


async def test_configured_buckets_are_shown_without_asking_store(s3_server):
    file_system, store = await counted(s3_server, buckets=("lake", BUCKET), allow_bucket_creation=False)
    found = [entry.name for batch in await batches(store.storage, "") for entry in batch.entries]
    assert found == sorted([BUCKET, "lake"])
    assert store.calls == {}
    with pytest.raises(PermissionDenied):
        await store.storage.mkdir("lake")
    with pytest.raises(PathNotFound):
        await store.storage.stat("lake")
    await file_system.close()


async def test_invalid_bucket_names_are_not_found(store):
    for name in ("arn:aws:s3:us-east-1:123456789012:accesspoint", "ex--use1-az4--x-s3", "a b", "x"):
        with pytest.raises(PathNotFound):
            await store.storage.stat(name)
        with pytest.raises(PathNotFound):
            await put(store.storage, f"{name}/file")
    assert store.calls == {}


class NoRecords:
    """A stub that accepts unfinished writes and audit events without recording them."""

    async def begin(self, write: object, *, is_running: bool) -> None: ...
    async def end(self, write_id: object) -> None: ...
    async def release(self, write_id: object) -> None: ...

    def running(self, write_id: object) -> AbstractContextManager[None]:
        del write_id
        return nullcontext()

    def record_path(self, *event: object, **facts: object) -> None: ...


async def test_upload_of_five_bytes_takes_six_calls(store, base):
    """The directory, the name and the parent are checked only once, although both the upload rules and the store need
    them.
    """
    stores = Stores([store.file_system], PathReader((Scheme.S3A,)))
    rules, records, threads = UploadRules(stores, ExtensionRules()), NoRecords(), ThreadPoolExecutor(1)
    orphans = OrphanSweep(stores, records, records)  # type: ignore[arg-type]
    uploads = Uploads(rules, orphans, StorageAudit(records), threads)
    caller = stores.caller(User(1, "ana", is_admin=True))
    directory = stores.path(f"s3a://{base}")
    for file in ("a.csv", "b.csv"):
        store.calls.clear()
        entry, _ = await uploads.receive(caller, FileUpload(directory, file), body(b"12345"))
        assert (entry.size_bytes, dict(store.calls)) == (5, {"HeadObject": 3, "ListObjectsV2": 2, "PutObject": 1})
    with pytest.raises(PathExists):
        await uploads.receive(caller, FileUpload(directory, "a.csv"), body(b"12345"))


@pytest.mark.storage(86)
async def test_failing_large_body_leaves_no_parts(store, base):
    async def broken() -> AsyncIterator[bytes]:
        for _ in range(12):
            yield b"x" * MIB
            await asyncio.sleep(0.01)
        raise upload_aborted("gone")

    with raises_code("upload_aborted"):
        await store.storage.write(f"{base}/big", broken(), overwrite=False)
    assert store.calls["UploadPart"] >= 1
    assert await store.uploads() == []
    assert await names(store.storage, base) == []


@pytest.mark.storage(86)
async def test_canceled_upload_leaves_no_parts(store, base):
    begun = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * MIB
            if store.calls["UploadPart"] > 1:
                begun.set()
            await asyncio.sleep(0)

    writing = asyncio.create_task(store.storage.write(f"{base}/big", endless(), overwrite=False))
    await asyncio.wait_for(begun.wait(), 30)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert await store.uploads() == []


async def test_one_of_two_large_uploads_without_overwrite_wins(store, base):
    writes = [store.storage.write(f"{base}/big", pieces(6), overwrite=False) for _ in range(2)]
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["FileStatus", "PathExists"]
    assert await store.uploads() == []


@pytest.mark.parametrize("mebibytes", [1, 6])
async def test_driver_hashes_no_content_on_the_event_loop(store, base, monkeypatch, mebibytes):
    hashed, sha256 = list[int](), botocore.auth.sha256

    def recording(part: bytes = b"") -> object:
        hashed.append(len(part))
        return sha256(part)

    monkeypatch.setattr(botocore.auth, "sha256", recording)
    await store.storage.write(f"{base}/big", pieces(mebibytes), overwrite=False)
    assert max(hashed) < MIB


@pytest.mark.security("S10")
async def test_large_upload_uses_little_memory(store, base):
    await store.storage.write(f"{base}/warm", pieces(11), overwrite=True)
    tracemalloc.start()
    try:
        status = await store.storage.write(f"{base}/big", pieces(120), overwrite=False, size_bytes=120 * MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert status.size_bytes == 120 * MIB
    assert peak < 20 * MIB


async def test_parts_larger_than_memory_are_sent_in_several(store, base):
    whole = b"".join([piece async for piece in pieces(37)])
    plan = PartPlan(f"{base}/file", len(whole), 20 * MIB, 2)
    staging = await store.storage.begin_parts(plan)
    parts = [
        await store.storage.write_part(plan, staging, index, body(whole[index * 20 * MIB :][: 20 * MIB]))
        for index in (1, 0)
    ]
    assert store.calls["UploadPart"] == 4
    first = await store.storage.join_parts(plan, staging, parts, overwrite=False)
    assert await content(store.storage, plan.path) == whole
    # A repeated call, as after a lost response, succeeds and creates no second file.
    assert await store.storage.join_parts(plan, staging, parts, overwrite=False) == first


async def test_empty_multipart_file_is_created(store, base):
    plan = PartPlan(f"{base}/empty", 0, PART, 1)
    staging = await store.storage.begin_parts(plan)
    part = await store.storage.write_part(plan, staging, 0, body())
    assert (await store.storage.join_parts(plan, staging, [part], overwrite=False)).size_bytes == 0
    without = PartPlan(f"{base}/none", 0, PART, 0)
    staging = await store.storage.begin_parts(without)
    assert (await store.storage.join_parts(without, staging, [], overwrite=False)).size_bytes == 0


@pytest.mark.storage(67)
async def test_store_copies_above_128_mib_in_parts(store, base):
    written = await store.storage.write(f"{base}/big", pieces(130), overwrite=False)
    await store.client.copy_object(
        Bucket=BUCKET,
        Key=key_of(f"{base}/big"),
        CopySource={"Bucket": BUCKET, "Key": key_of(f"{base}/big")},
        MetadataDirective="REPLACE",
        ContentType="text/csv",
        Metadata={"origin": "tests"},
    )
    store.calls.clear()
    copied = await store.storage.copy(f"{base}/big", f"{base}/copy")
    assert (store.calls["UploadPartCopy"], store.calls["CopyObject"], store.calls["GetObject"]) == (3, 0, 0)
    assert copied.size_bytes == written.size_bytes
    told = await store.client.head_object(Bucket=BUCKET, Key=key_of(f"{base}/copy"))
    assert (told["ContentType"], told["Metadata"]) == ("text/csv", {"origin": "tests"})
    window = {"offset": 64 * MIB - 5, "length": 10}
    assert await content(store.storage, f"{base}/copy", **window) == await content(
        store.storage, f"{base}/big", **window
    )
    with pytest.raises(PathExists):
        await store.storage.copy(f"{base}/big", f"{base}/copy")


async def test_only_stale_uploads_of_the_same_file_are_swept(store, base):
    """S3 does not report who started an upload, so uploads of other keys might belong to another program."""
    others = [key_of(f"{base}/{name}") for name in ("left/below", "lefts", "other")]
    for key in (key_of(f"{base}/left"), *others):
        begun = await store.client.create_multipart_upload(Bucket=BUCKET, Key=key)
        await store.client.upload_part(
            Bucket=BUCKET, Key=key, UploadId=begun["UploadId"], PartNumber=1, Body=b"x" * 1000
        )
    assert await store.storage.abort_unlisted_uploads(f"{base}/left", older_than_s=60) == 0
    await asyncio.sleep(1.1)
    assert await store.storage.sweep_orphans(base, older_than_s=0) == 0
    assert await store.storage.abort_unlisted_uploads(f"{base}/left", older_than_s=0) == 1
    assert sorted(await store.uploads()) == others
    for name in ("left/below", "lefts", "other"):
        assert await store.storage.abort_unlisted_uploads(f"{base}/{name}", older_than_s=0) == 1


def calls_of(storage: S3Storage, path: str):
    yield storage.stat(path)
    yield names(storage, BUCKET)
    yield content(storage, path)
    yield put(storage, path, overwrite=True)
    yield storage.mkdir(f"{path}-d")
    yield storage.delete(path, recursive=True)
    yield storage.copy(path, f"{path}-2")


async def failures_of(storage: S3Storage, path: str) -> list[QueryServerError]:
    failures = []
    for call in calls_of(storage, path):
        with pytest.raises(QueryServerError) as told:
            await call
        failures.append(told.value)
    return failures


async def test_wrong_service_keys_are_not_a_user_error(store, base, s3_server):
    await put(store.storage, f"{base}/file")
    file_system, stranger = await counted(s3_server, keys=S3Keys(s3_server.access_key_id, "wrong"))
    for failure in await failures_of(stranger.storage, f"{base}/file"):
        assert type(failure) is StorageError
        assert failure.message == "The store rejected the credentials of this service."
    await file_system.close()


async def test_store_refusal_is_permission_denied(store, base, s3_server):
    await put(store.storage, f"{base}/file")
    keys = S3Keys(s3_server.guest_key_id, s3_server.guest_secret)
    file_system, guest = await counted(s3_server, keys=keys)
    for failure in await failures_of(guest.storage, f"{base}/file"):
        assert type(failure) is PermissionDenied
        assert s3_server.guest_key_id not in failure.message
    await file_system.close()
    assert await content(store.storage, f"{base}/file") == b"x"


async def test_wrong_clock_is_named_in_message(store, base, monkeypatch):
    right = botocore.auth.get_current_datetime
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: right() - timedelta(hours=2))
    for call in (store.storage.stat(f"{base}/file"), names(store.storage, base)):
        with pytest.raises(StorageError, match="clocks") as told:
            await call
        assert type(told.value) is StorageError


@pytest.mark.storage(9)
async def test_outage_is_reported_and_ends_when_store_returns(proxied, proxy, base):
    await put(proxied.storage, f"{base}/file")
    await proxy.die()
    for call in (content(proxied.storage, f"{base}/file"), put(proxied.storage, f"{base}/other")):
        with pytest.raises(StorageUnavailable, match="not responding"):
            await call
    await proxy.listen()
    assert await content(proxied.storage, f"{base}/file") == b"x"


@pytest.mark.storage(9)
async def test_silent_store_is_abandoned(proxied, proxy, base):
    await put(proxied.storage, f"{base}/file")
    proxy.set_fault(Fault.SILENCE)
    for call in (proxied.storage.stat(f"{base}/file"), content(proxied.storage, f"{base}/file")):
        with pytest.raises(StorageUnavailable):
            await asyncio.wait_for(call, 20)
    proxy.set_fault(Fault.NONE)


@pytest.mark.storage(51)
@pytest.mark.parametrize("fault", [Fault.RESET, Fault.CUT, Fault.SILENCE])
async def test_interrupted_download_is_not_end_of_file(proxied, proxy, base, fault):
    await put(proxied.storage, f"{base}/big", b"x" * (12 * MIB))
    received = []

    async def download() -> None:
        async with aclosing(proxied.storage.read(f"{base}/big")) as stream:
            async for piece in stream:
                if not received:
                    proxy.set_fault(fault, after_bytes=MIB)
                received.append(piece)

    with pytest.raises(StorageError):
        await download()
    assert 0 < sum(map(len, received)) < 12 * MIB
    proxy.set_fault(Fault.NONE)


@pytest.mark.storage(86)
async def test_outage_during_upload_leaves_only_files_that_the_sweep_removes(proxied, proxy, store, base):
    async def dying() -> AsyncIterator[bytes]:
        for number in range(20):
            if number == 13:
                await proxy.die()
            yield b"x" * MIB

    with pytest.raises(StorageUnavailable):
        await proxied.storage.write(f"{base}/big", dying(), overwrite=False)
    assert await names(store.storage, base) == []
    assert await store.uploads() == [key_of(f"{base}/big")]
    await asyncio.sleep(1.1)
    assert await store.storage.abort_unlisted_uploads(f"{base}/big", older_than_s=0) == 1


async def test_lost_response_to_last_step_is_not_a_failure(proxied, proxy, base):
    proxied.before["CompleteMultipartUpload"] = lambda: proxy.set_fault(Fault.RESET)
    proxied.before["HeadObject"] = lambda: proxy.set_fault(Fault.NONE)
    status = await proxied.storage.write(f"{base}/big", pieces(7), overwrite=False)
    assert status.size_bytes == 7 * MIB
    assert proxied.calls["CompleteMultipartUpload"] == 1


async def test_brief_outage_is_invisible_to_readers(proxied, proxy, base):
    await put(proxied.storage, f"{base}/file")
    proxied.calls.clear()
    proxy.set_fault(Fault.RESET)
    proxied.before["HeadObject"] = lambda: proxied.calls["HeadObject"] > 1 and proxy.set_fault(Fault.NONE)
    assert (await proxied.storage.stat(f"{base}/file")).is_file
    assert proxied.calls["HeadObject"] == 2
