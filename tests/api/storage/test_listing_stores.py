"""view= and list over stores that refuse, fail, or hold very much (Contract storage 5.2)."""

import asyncio
import gc
import json
import time
from pathlib import Path

import pytest
from tests.api.driving import Caller, open_api
from tests.api.storage.conftest import storage_settings
from tests.api.storage.worlds import World, builders
from tests.cases import each
from tests.fakes.long_directory import LongDirectory

from queryserver.errors.base import PermissionDenied, QueryServerError
from queryserver.errors.files import StorageError, StorageUnavailable, bucket_listing_denied
from queryserver.files.model import Scheme


@pytest.fixture
async def ana(world: World) -> Caller:
    return await world.api.user("ana")


@pytest.mark.storage(37)
async def test_a_refused_list_of_buckets_is_told_as_such(world: World, ana: Caller) -> None:
    world.fail(Scheme.S3A, "list_directory", bucket_listing_denied("Access Denied"))
    for answer in (await ana.get("storage/view=s3a://"), await ana.get("storage/list", path="s3a://")):
        assert answer.status_code == 403
        assert answer.json() == {
            "status": -1,
            "code": "bucket_listing_denied",
            "message": "Bucket listing is not allowed: Access Denied",
        }


@pytest.mark.storage(9)
@each(
    ("failure", "status", "code"),
    [
        (StorageUnavailable("The store does not answer."), 503, "storage_unavailable"),
        (StorageError("The store failed."), 502, "storage_error"),
        (PermissionDenied("Permission denied: user=ana, access=READ"), 403, "permission_denied"),
    ],
)
async def test_a_store_that_fails_is_told_by_its_kind(
    world: World, ana: Caller, failure: QueryServerError, status: int, code: str
) -> None:
    for call, asked in (("stat", "stat=/x"), ("stat", "view=/"), ("list_directory", "list?path=/"),
                        ("content_summary", "content_summary=/")):  # fmt: skip
        world.heal()
        world.fail(Scheme.HDFS, call, failure)
        answer = await ana.send("GET", f"storage/{asked}")
        assert (answer.status_code, answer.json()["code"]) == (status, code), asked
        assert ("retry-after" in answer.headers) is (status == 503)


@pytest.mark.storage(34)
async def test_a_listing_asks_nothing_about_single_entries(world: World, ana: Caller) -> None:
    place = world.place(Scheme.S3A)
    for number in range(50):
        place.put_at(str(number), b"x")
    world.heal()
    await ana.get(f"storage/view={place.path}", pagesize=100)
    # The directory, the one above, and the home, which is a bucket or the root.
    assert world.calls(Scheme.S3A)["list_directory"] == 1
    assert world.calls(Scheme.S3A)["stat"] <= 3
    world.heal()
    await ana.get("storage/list", path=place.path)
    assert world.calls(Scheme.S3A) == {"list_directory": 1}


async def test_the_directory_above_is_shown_though_it_is_closed(world: World, ana: Caller) -> None:
    place = world.place(Scheme.HDFS)
    parent = place.inner("").rstrip("/").rpartition("/")[0]
    world.fail(Scheme.HDFS, "stat", lambda _, path: PermissionDenied("closed") if path in {"", parent} else None)
    above = (await ana.get(f"storage/view={place.path}")).json()["files"][0]
    assert (above["name"], above["type"], above["path"]) == ("..", "dir", "/")


@pytest.mark.storage(35)
async def test_object_stores_show_no_reserved_names_and_cannot_be_asked_for_them(world: World, ana: Caller) -> None:
    for call in ("touch", "mkdir"):
        answer = await ana.post(f"storage/{call}", path="s3a://lake", name="._qs_x")
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_name")
        answer = await ana.post(f"storage/{call}", path="s3a://lake/._qs_x")
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_path")


@pytest.mark.storage(30, 31, 32)
@pytest.mark.slow
async def test_long_directories_have_all_their_pages(tmp_path: Path, shared_database_dsn: str) -> None:
    stores = {
        Scheme.HDFS: LongDirectory(100_001, Scheme.HDFS, tells_remaining=True),
        Scheme.S3A: LongDirectory(100_001),
    }
    async with open_api(storage_settings(tmp_path, shared_database_dsn), builders(stores)) as api:
        ana = await api.user("ana")
        page = (await ana.get("storage/list", path="/", pagenum=3334)).json()["page"]
        assert (page["total_count"], page["total_is_exact"], page["end_index"]) == (100_001, True, 100_001)
        page = (await ana.get("storage/list", path="s3a://")).json()["page"]
        assert (page["total_count"], page["total_is_exact"], page["next_page_number"]) == (100_000, False, 2)
        last = (await ana.get("storage/view=s3a://", pagenum=3334)).json()
        assert (len(last["files"]), last["page"]["next_page_number"]) == (12, 0)
        answer = await ana.get("storage/list", path="s3a://", sortby="size", pagesize=10_000, pagenum=11)
        assert (answer.status_code, answer.json()["code"]) == (413, "too_many_entries")
        assert "listing_sort_limit" in answer.json()["message"]


async def test_a_page_of_ten_thousand_entries_does_not_hold_up_other_calls(
    tmp_path: Path, shared_database_dsn: str
) -> None:
    stores = {Scheme.S3A: LongDirectory(20_000)}
    async with open_api(storage_settings(tmp_path, shared_database_dsn), builders(stores)) as api:
        ana = await api.user("ana")
        # Processor time of this thread, so that other work on the machine does not count.
        clock, pauses, ended = time.thread_time, [0.0], asyncio.Event()

        async def watch() -> None:
            while not ended.is_set():
                before = clock()
                await asyncio.sleep(0.001)
                pauses.append(clock() - before)

        # As the server does: what lives as long as the process is not searched for garbage.
        gc.freeze()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(watch())
                answer = await api.http.get(
                    "/api/v1/storage/view=s3a://", params={"pagesize": 10_000}, headers=dict(ana.headers)
                )
                ended.set()
        finally:
            gc.unfreeze()
    assert len(json.loads(answer.content)["files"]) == 10_001
    # Measured: 25 ms at most. Written on the event loop the page would be half a second.
    assert max(pauses) < 0.15
