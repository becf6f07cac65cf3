"""Directory listings with the calls `view=` and `list`, on the local root and on stores (Contract storage 5.2)."""

import asyncio
import gc
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.api.driving import Caller, open_api
from tests.api.storage.conftest import Files, storage_settings
from tests.api.storage.worlds import World, builders
from tests.fakes.long_directory import LongDirectory

from queryserver.errors.base import PermissionDenied
from queryserver.errors.files import StorageError, StorageUnavailable, bucket_listing_denied
from queryserver.files.model import Scheme

SORTABLE = ("type", "name", "atime", "mtime", "user", "group", "size")

WRONG = [("pagesize", "0"), ("pagesize", "-1"), ("pagesize", "x"), ("pagenum", "0"), ("pagenum", ""),
         ("sortby", "zzz"), ("sortby", "Name"), ("descending", "zz")]  # fmt: skip


@pytest.fixture
def eleven(files: Files) -> str:
    """A directory with files named from 1 to 11. The size of each file in bytes is its name."""
    folder = files.folder()
    for number in range(1, 12):
        (files.root / folder / str(number)).write_bytes(b"x" * number)
    return folder


def names(body: dict[str, Any]) -> list[str]:
    return [entry["name"] for entry in body["files"]]


@pytest.mark.parametrize("pagesize", ["10001", "9" * 30])
async def test_page_size_is_capped_at_ten_thousand(ana: Caller, eleven: str, pagesize: str) -> None:
    seen = await view(ana, eleven, pagesize=pagesize)
    assert seen["pagesize"] == 10_000
    for page in (seen["page"], (await listed(ana, eleven, pagesize=pagesize))["page"]):
        assert (page["total_count"], page["num_pages"], page["next_page_number"]) == (11, 1, 0)


async def view(caller: Caller, folder: str, **query: Any) -> dict[str, Any]:
    answer = await caller.get(f"storage/view=file:///{folder}", **query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def listed(caller: Caller, folder: str, **query: Any) -> dict[str, Any]:
    answer = await caller.get("storage/list", path=f"file:///{folder}", **query)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.storage(22)
async def test_dot_entries_lead_every_page(ana: Caller, eleven: str) -> None:
    assert len((await view(ana, eleven, pagesize=20))["files"]) == 13
    assert len((await view(ana, eleven, pagesize=10))["files"]) == 12
    second = await view(ana, eleven, pagesize=10, pagenum=2)
    assert names(second) == ["..", ".", "9"]
    assert (second["page"]["start_index"], second["page"]["end_index"]) == (11, 11)


async def test_dot_entries_describe_the_actual_directories(ana: Caller, eleven: str) -> None:
    above, here = (await view(ana, eleven))["files"][:2]
    assert (above["name"], above["path"], above["type"]) == ("..", "file:///shared", "dir")
    assert (here["name"], here["path"], here["rwx"]) == (".", f"file:///{eleven}", "drwxr-xr-x")
    assert here["stats"]["mtime"] > 0
    assert above["stats"]["path"] == "file:///shared"


@pytest.mark.storage(23)
async def test_filter_matches_a_case_sensitive_substring(ana: Caller, eleven: str, files: Files) -> None:
    assert names(await view(ana, eleven, filter="1")) == ["..", ".", "1", "10", "11"]
    (files.root / eleven / "a").touch()
    assert names(await listed(ana, eleven, filter="A")) == []
    assert names(await listed(ana, eleven, filter="a")) == ["a"]


@pytest.mark.storage(24)
async def test_page_past_the_end_is_empty_in_view_and_an_error_in_list(ana: Caller, eleven: str) -> None:
    for number in (3, 99_999, 10**18):
        past = await view(ana, eleven, pagesize=10, pagenum=number)
        assert names(past) == ["..", "."]
        assert (past["page"]["start_index"], past["page"]["end_index"], past["page"]["total_count"]) == (0, 0, 11)
        assert (past["page"]["previous_page_number"], past["page"]["next_page_number"]) == (2, 0)
        answer = await ana.get("storage/list", path=f"file:///{eleven}", pagesize=10, pagenum=number)
        assert (answer.status_code, answer.json()["code"]) == (404, "page_not_found")


@pytest.mark.storage(25)
async def test_root_has_no_parent_entry(ana: Caller, files: Files) -> None:
    files.folder()
    assert names(await view(ana, ""))[0] == "."
    assert ".." not in names(await view(ana, ""))
    assert not {".", ".."} & {*names(await listed(ana, ""))}


@pytest.mark.storage(26)
@pytest.mark.parametrize("call", [view, listed])
async def test_page_info_uses_both_vocabularies(ana: Caller, eleven: str, call: Any) -> None:
    page = (await call(ana, eleven, pagesize=4, pagenum=2))["page"]
    assert page == {
        "number": 2, "page_number": 2, "page_size": 4, "num_pages": 3, "total_pages": 3, "total_count": 11,
        "total_size": 11, "previous_page_number": 1, "next_page_number": 3, "start_index": 5, "end_index": 8,
        "total_is_exact": True,
    }  # fmt: skip


@pytest.mark.storage(27)
@pytest.mark.parametrize(("name", "value"), WRONG)
async def test_invalid_parameters_return_400(ana: Caller, eleven: str, name: str, value: str) -> None:
    for answer in (
        await ana.get(f"storage/view=file:///{eleven}", **{name: value}),
        await ana.get("storage/list", path=f"file:///{eleven}", **{name: value}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_parameter")
        assert name in answer.json()["message"]


@pytest.mark.storage(28)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("key", SORTABLE)
async def test_every_sort_key_works_in_both_directions(ana, eleven, files, key, descending):
    (files.root / eleven / "d").mkdir(exist_ok=True)
    for number in range(1, 12):
        os.utime(files.root / eleven / str(number), (number // 3 * 100, number // 2 * 100))
    entries = (await listed(ana, eleven, sortby=key, descending=str(descending).lower()))["files"]
    by_name = sorted(entries, key=lambda entry: entry["name"])
    assert entries == sorted(by_name, key=lambda entry: entry[key] or 0 if key != "name" else entry[key],
                             reverse=descending)  # fmt: skip
    assert len(entries) == 12


@pytest.mark.storage(29)
async def test_empty_directory_has_one_empty_page(ana: Caller, files: Files) -> None:
    folder = files.folder()
    page = (await listed(ana, folder))["page"]
    assert (page["total_count"], page["num_pages"], page["start_index"], page["next_page_number"]) == (0, 1, 0, 0)
    assert names(await view(ana, folder)) == ["..", "."]


@pytest.mark.storage(35)
async def test_reserved_names_are_not_listed(ana: Caller, eleven: str, files: Files) -> None:
    (files.root / eleven / "._qs_upload_1").touch()
    body = await listed(ana, eleven)
    assert body["page"]["total_count"] == 11
    assert "._qs_upload_1" not in names(body)


@pytest.mark.storage(36)
async def test_list_errors_state_the_cause(ana: Caller, eleven: str, files: Files) -> None:
    bob = await files.api.user("bob")
    assert (await ana.get(f"storage/view=file:///user/{ana.username}")).status_code == 200
    expected = {f"file:///{eleven}/1": (400, "not_a_directory"), f"file:///{eleven}/none": (404, "path_not_found")}
    for path, failure in expected.items():
        answer = await ana.get("storage/list", path=path)
        assert (answer.status_code, answer.json()["code"]) == failure
    denied = await bob.get("storage/list", path=f"file:///user/{ana.username}")
    assert (denied.status_code, denied.json()["code"]) == (403, "permission_denied")


@pytest.mark.security("S9")
async def test_reading_calls_refuse_other_users_homes(ana: Caller, files: Files) -> None:
    assert (await ana.get(f"storage/view=file:///user/{ana.username}")).status_code == 200
    bob = await files.api.user("bob")
    for call in ("view", "stat", "content_summary"):
        answer = await bob.get(f"storage/{call}=file:///user/{ana.username}")
        assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied"), call
    assert ana.username not in names(await listed(bob, "user"))


@pytest.mark.storage(38)
async def test_entries_have_all_attributes(ana: Caller, files: Files) -> None:
    folder = files.folder()
    path = files.root / folder / "a b#.csv"
    path.write_bytes(b"x" * 6_200_000)
    os.utime(path, (0, 1477928040.9))
    entry = (await view(ana, folder))["files"][2]
    stats = entry.pop("stats")
    assert entry == {
        "path": f"file:///{folder}/a b#.csv",
        "name": "a b#.csv",
        "mtime": "October 31, 2016 03:34 PM",
        "humansize": "5.9\u00a0MB",
        "type": "file",
        "rwx": "-rw-r--r--",
        "mode": "100644",
        "url": f"/api/v1/storage/view=file%3A%2F%2F%2F{folder.replace('/', '%2F')}%2Fa%20b%23.csv",
        "is_sentry_managed": False,
    }
    assert (stats["path"], stats["name"], stats["size"], stats["mtime"], stats["mode"], stats["aclBit"]) == (
        f"file:///{folder}/a b#.csv", "a b#.csv", 6_200_000, 1477928040, 0o100644, False,
    )  # fmt: skip


async def test_entry_url_leads_to_the_entry(ana: Caller, files: Files) -> None:
    folder = files.folder()
    (files.root / folder / "é ?#%25").mkdir()
    entry = (await view(ana, folder))["files"][2]
    assert entry["name"] == "é ?#%25"
    answer = await ana.get(entry["url"])
    assert answer.json()["path"] == entry["path"]


async def test_directory_view_has_every_key(ana: Caller, eleven: str) -> None:
    body = await view(ana, eleven, pagesize=5, descending="No", is_embeddable="true")
    del body["files"], body["page"]
    folder = f"file:///{eleven}"
    assert body == {
        "status": 0,
        "path": folder,
        "current_dir_path": folder,
        "current_request_path": f"/api/v1/storage/view={folder.replace(':', '%3A').replace('/', '%2F')}",
        "breadcrumbs": [
            {"url": "file:///", "label": "file:///"},
            {"url": "file:///shared", "label": "shared"},
            {"url": folder, "label": eleven.rpartition("/")[2]},
        ],
        "pagesize": 5,
        "descending": "No",
        "home_directory": f"file:///user/{ana.username}",
        "is_trash_enabled": True,
        "is_fs_superuser": False,
        "groups": [],
        "users": [],
        "superuser": None,
        "supergroup": None,
        "is_sentry_managed": False,
        "apps": ["editor", "filebrowser", "importer"],
        "show_download_button": True,
        "show_upload_button": True,
        "is_embeddable": True,
        "cwd_set": True,
        "file_filter": "any",
        "s3_listing_not_allowed": "",
    }
    assert (await view(ana, eleven))["descending"] is None


async def test_list_entries_are_flat_with_the_view_attributes(ana: Caller, eleven: str) -> None:
    shown = (await view(ana, eleven))["files"][2:]
    flat = (await listed(ana, eleven))["files"]
    assert flat == [{**entry["stats"], "type": entry["type"], "rwx": entry["rwx"]} for entry in shown]


async def test_links_are_listed_as_links(ana: Caller, eleven: str, files: Files) -> None:
    (files.root / eleven / "link").symlink_to("1")
    entry = next(entry for entry in (await listed(ana, eleven))["files"] if entry["name"] == "link")
    assert (entry["type"], entry["rwx"][0]) == ("link", "l")


@pytest.mark.slow
async def test_page_of_ten_thousand_entries_is_complete(ana: Caller, files: Files) -> None:
    folder = files.folder()
    wanted = [f"{number:05}" for number in range(10_000)]
    for name in wanted:
        (files.root / folder / name).touch()
    body = await view(ana, folder, pagesize=10_000)
    assert names(body) == ["..", ".", *wanted]
    assert names(await listed(ana, folder, pagesize=10_000, descending="true")) == wanted[::-1]


@pytest.mark.storage(37)
async def test_denied_bucket_listing_returns_403(world: World, eva: Caller) -> None:
    world.fail(Scheme.S3A, "list_directory", bucket_listing_denied("Access Denied"))
    for answer in (await eva.get("storage/view=s3a://"), await eva.get("storage/list", path="s3a://")):
        assert answer.status_code == 403
        assert answer.json() == {
            "status": -1,
            "code": "bucket_listing_denied",
            "message": "Bucket listing is not allowed: Access Denied",
        }


@pytest.mark.storage(9)
@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (StorageUnavailable("The store is not responding."), 503, "storage_unavailable"),
        (StorageError("The store failed."), 502, "storage_error"),
        (PermissionDenied("Permission denied: user=ana, access=READ"), 403, "permission_denied"),
    ],
)
async def test_store_failures_map_to_their_error_codes(world, eva, failure, status, code):
    for call, asked in (("stat", "stat=/x"), ("stat", "view=/"), ("list_directory", "list?path=/"),
                        ("content_summary", "content_summary=/")):  # fmt: skip
        world.heal()
        world.fail(Scheme.HDFS, call, failure)
        answer = await eva.send("GET", f"storage/{asked}")
        assert (answer.status_code, answer.json()["code"]) == (status, code), asked
        assert ("retry-after" in answer.headers) is (status == 503)


@pytest.mark.storage(34)
async def test_listing_makes_no_request_per_entry(world: World, eva: Caller) -> None:
    folder = world.folder(Scheme.S3A)
    for number in range(50):
        folder.put_at(str(number), b"x")
    world.heal()
    await eva.get(f"storage/view={folder.path}", pagesize=100)
    # The calls are about the directory, its parent, and the home directory, which is a bucket or the root.
    assert world.calls(Scheme.S3A)["list_directory"] == 1
    assert world.calls(Scheme.S3A)["stat"] <= 3
    world.heal()
    await eva.get("storage/list", path=folder.path)
    assert world.calls(Scheme.S3A) == {"list_directory": 1}


async def test_inaccessible_parent_is_still_listed(world: World, eva: Caller) -> None:
    folder = world.folder(Scheme.HDFS)
    parent = folder.inner("").rstrip("/").rpartition("/")[0]
    world.fail(Scheme.HDFS, "stat", lambda _, path: PermissionDenied("closed") if path in {"", parent} else None)
    above = (await eva.get(f"storage/view={folder.path}")).json()["files"][0]
    assert (above["name"], above["type"], above["path"]) == ("..", "dir", "/")


@pytest.mark.storage(35)
async def test_object_stores_hide_and_refuse_reserved_names(world: World, eva: Caller) -> None:
    for call in ("touch", "mkdir"):
        answer = await eva.post(f"storage/{call}", path="s3a://lake", name="._qs_x")
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_name")
        answer = await eva.post(f"storage/{call}", path="s3a://lake/._qs_x")
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_path")


@pytest.mark.storage(30, 31, 32)
@pytest.mark.slow
async def test_long_directories_are_listed_on_all_pages(tmp_path: Path, shared_database_dsn: str) -> None:
    stores = {
        Scheme.HDFS: LongDirectory(100_001, Scheme.HDFS, tells_remaining=True),
        Scheme.S3A: LongDirectory(100_001),
    }
    async with open_api(storage_settings(tmp_path, shared_database_dsn), builders(stores)) as api:
        # On a busy machine, counting this many entries may take longer than the default of five seconds.
        api.services.storage.listings._count_s = 600.0
        eva = await api.user("ana")
        page = (await eva.get("storage/list", path="/", pagenum=3334)).json()["page"]
        assert (page["total_count"], page["total_is_exact"], page["end_index"]) == (100_001, True, 100_001)
        page = (await eva.get("storage/list", path="s3a://")).json()["page"]
        assert (page["total_count"], page["total_is_exact"], page["next_page_number"]) == (100_000, False, 2)
        last = (await eva.get("storage/view=s3a://", pagenum=3334)).json()
        assert (len(last["files"]), last["page"]["next_page_number"]) == (12, 0)
        answer = await eva.get("storage/list", path="s3a://", sortby="size", pagesize=10_000, pagenum=11)
        assert (answer.status_code, answer.json()["code"]) == (413, "too_many_entries")
        assert "listing_sort_limit" in answer.json()["message"]


async def test_page_of_ten_thousand_entries_does_not_block_other_calls(tmp_path, shared_database_dsn):
    stores = {Scheme.S3A: LongDirectory(20_000)}
    async with open_api(storage_settings(tmp_path, shared_database_dsn), builders(stores)) as api:
        eva = await api.user("ana")
        # The CPU time of this thread is measured, because it excludes other load on the machine.
        clock, pauses, ended = time.thread_time, [0.0], asyncio.Event()

        async def watch() -> None:
            while not ended.is_set():
                before = clock()
                await asyncio.sleep(0.001)
                pauses.append(clock() - before)

        # The server also freezes objects that live as long as the process, so that the garbage collector skips them.
        gc.freeze()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(watch())
                answer = await api.http.get(
                    "/api/v1/storage/view=s3a://", params={"pagesize": 10_000}, headers=dict(eva.headers)
                )
                ended.set()
        finally:
            # This test's garbage is collected. Then objects are frozen again, as they were after pytest had collected
            # the tests.
            gc.unfreeze()
            gc.collect()
            gc.freeze()
    assert len(json.loads(answer.content)["files"]) == 10_001
    # The longest pause measured was 25 ms. If the event loop serialized the page, it would take half a second.
    assert max(pauses) < 0.15
