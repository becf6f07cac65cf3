"""view= of directories and list, on the local root (Contract storage 5.2)."""

import os
from typing import Any

import pytest
from tests.api.driving import Caller
from tests.api.storage.conftest import Files
from tests.cases import each

SORTABLE = ("type", "name", "atime", "mtime", "user", "group", "size")
WRONG = [("pagesize", "0"), ("pagesize", "10001"), ("pagesize", "x"), ("pagenum", "0"), ("pagenum", ""),
         ("sortby", "zzz"), ("sortby", "Name"), ("descending", "zz")]  # fmt: skip


@pytest.fixture
async def ana(files: Files) -> Caller:
    """Whoever lists."""
    return await files.api.user("ana")


@pytest.fixture
def eleven(files: Files) -> str:
    """A directory with files 1 to 11, of as many bytes."""
    place = files.place()
    for number in range(1, 12):
        (files.root / place / str(number)).write_bytes(b"x" * number)
    return place


def names(body: dict[str, Any]) -> list[str]:
    return [entry["name"] for entry in body["files"]]


async def view(caller: Caller, place: str, **query: Any) -> dict[str, Any]:
    answer = await caller.get(f"storage/view=file:///{place}", **query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def listed(caller: Caller, place: str, **query: Any) -> dict[str, Any]:
    answer = await caller.get("storage/list", path=f"file:///{place}", **query)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.storage(22)
async def test_dots_come_on_top_of_every_page(ana: Caller, eleven: str) -> None:
    assert len((await view(ana, eleven, pagesize=20))["files"]) == 13
    assert len((await view(ana, eleven, pagesize=10))["files"]) == 12
    second = await view(ana, eleven, pagesize=10, pagenum=2)
    assert names(second) == ["..", ".", "9"]
    assert (second["page"]["start_index"], second["page"]["end_index"]) == (11, 11)


async def test_dots_are_the_real_directories(ana: Caller, eleven: str) -> None:
    above, here = (await view(ana, eleven))["files"][:2]
    assert (above["name"], above["path"], above["type"]) == ("..", "file:///shared", "dir")
    assert (here["name"], here["path"], here["rwx"]) == (".", f"file:///{eleven}", "drwxr-xr-x")
    assert here["stats"]["mtime"] > 0
    assert above["stats"]["path"] == "file:///shared"


@pytest.mark.storage(23)
async def test_the_filter_is_a_part_of_the_name_in_its_case(ana: Caller, eleven: str, files: Files) -> None:
    assert names(await view(ana, eleven, filter="1")) == ["..", ".", "1", "10", "11"]
    (files.root / eleven / "a").touch()
    assert names(await listed(ana, eleven, filter="A")) == []
    assert names(await listed(ana, eleven, filter="a")) == ["a"]


@pytest.mark.storage(24)
async def test_a_page_past_the_end_is_empty_in_view_and_missing_in_list(ana: Caller, eleven: str) -> None:
    for number in (3, 99_999, 10**18):
        past = await view(ana, eleven, pagesize=10, pagenum=number)
        assert names(past) == ["..", "."]
        assert (past["page"]["start_index"], past["page"]["end_index"], past["page"]["total_count"]) == (0, 0, 11)
        assert (past["page"]["previous_page_number"], past["page"]["next_page_number"]) == (2, 0)
        answer = await ana.get("storage/list", path=f"file:///{eleven}", pagesize=10, pagenum=number)
        assert (answer.status_code, answer.json()["code"]) == (404, "page_not_found")


@pytest.mark.storage(25)
async def test_a_root_has_no_directory_above(ana: Caller, files: Files) -> None:
    files.place()
    assert names(await view(ana, ""))[0] == "."
    assert ".." not in names(await view(ana, ""))
    assert not {".", ".."} & {*names(await listed(ana, ""))}


@pytest.mark.storage(26)
@each("call", [view, listed])
async def test_the_page_speaks_both_vocabularies(ana: Caller, eleven: str, call: Any) -> None:
    page = (await call(ana, eleven, pagesize=4, pagenum=2))["page"]
    assert page == {
        "number": 2, "page_number": 2, "page_size": 4, "num_pages": 3, "total_pages": 3, "total_count": 11,
        "total_size": 11, "previous_page_number": 1, "next_page_number": 3, "start_index": 5, "end_index": 8,
        "total_is_exact": True,
    }  # fmt: skip


@pytest.mark.storage(27)
@each(("name", "value"), WRONG)
async def test_wrong_parameters_are_400(ana: Caller, eleven: str, name: str, value: str) -> None:
    for answer in (
        await ana.get(f"storage/view=file:///{eleven}", **{name: value}),
        await ana.get("storage/list", path=f"file:///{eleven}", **{name: value}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_parameter")
        assert name in answer.json()["message"]


@pytest.mark.storage(28)
@each("descending", [False, True])
@each("key", SORTABLE)
async def test_each_order_works_in_both_directions(
    ana: Caller, eleven: str, files: Files, key: str, descending: bool
) -> None:
    (files.root / eleven / "d").mkdir(exist_ok=True)
    for number in range(1, 12):
        os.utime(files.root / eleven / str(number), (number // 3 * 100, number // 2 * 100))
    entries = (await listed(ana, eleven, sortby=key, descending=str(descending).lower()))["files"]
    by_name = sorted(entries, key=lambda entry: entry["name"])
    assert entries == sorted(by_name, key=lambda entry: entry[key] or 0 if key != "name" else entry[key],
                             reverse=descending)  # fmt: skip
    assert len(entries) == 12


@pytest.mark.storage(29)
async def test_an_empty_directory_has_one_empty_page(ana: Caller, files: Files) -> None:
    place = files.place()
    page = (await listed(ana, place))["page"]
    assert (page["total_count"], page["num_pages"], page["start_index"], page["next_page_number"]) == (0, 1, 0, 0)
    assert names(await view(ana, place)) == ["..", "."]


@pytest.mark.storage(35)
async def test_reserved_names_are_not_listed(ana: Caller, eleven: str, files: Files) -> None:
    (files.root / eleven / "._qs_upload_1").touch()
    body = await listed(ana, eleven)
    assert body["page"]["total_count"] == 11
    assert "._qs_upload_1" not in names(body)


@pytest.mark.storage(36)
async def test_list_tells_why_there_is_no_list(ana: Caller, eleven: str, files: Files) -> None:
    bob = await files.api.user("bob")
    assert (await ana.get(f"storage/view=file:///user/{ana.username}")).status_code == 200
    expected = {f"file:///{eleven}/1": (400, "not_a_directory"), f"file:///{eleven}/none": (404, "path_not_found")}
    for path, failure in expected.items():
        answer = await ana.get("storage/list", path=path)
        assert (answer.status_code, answer.json()["code"]) == failure
    denied = await bob.get("storage/list", path=f"file:///user/{ana.username}")
    assert (denied.status_code, denied.json()["code"]) == (403, "permission_denied")


@pytest.mark.security("S9")
async def test_the_home_of_another_is_closed_in_all_reading_calls(ana: Caller, files: Files) -> None:
    assert (await ana.get(f"storage/view=file:///user/{ana.username}")).status_code == 200
    bob = await files.api.user("bob")
    for call in ("view", "stat", "content_summary"):
        answer = await bob.get(f"storage/{call}=file:///user/{ana.username}")
        assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied"), call
    assert ana.username not in names(await listed(bob, "user"))


@pytest.mark.storage(38)
async def test_an_entry_has_all_its_attributes(ana: Caller, files: Files) -> None:
    place = files.place()
    path = files.root / place / "a b#.csv"
    path.write_bytes(b"x" * 6_200_000)
    os.utime(path, (0, 1477928040.9))
    entry = (await view(ana, place))["files"][2]
    stats = entry.pop("stats")
    assert entry == {
        "path": f"file:///{place}/a b#.csv",
        "name": "a b#.csv",
        "mtime": "October 31, 2016 03:34 PM",
        "humansize": "5.9\u00a0MB",
        "type": "file",
        "rwx": "-rw-r--r--",
        "mode": "100644",
        "url": f"/api/v1/storage/view=file%3A%2F%2F%2F{place.replace('/', '%2F')}%2Fa%20b%23.csv",
        "is_sentry_managed": False,
    }
    assert (stats["path"], stats["name"], stats["size"], stats["mtime"], stats["mode"], stats["aclBit"]) == (
        f"file:///{place}/a b#.csv", "a b#.csv", 6_200_000, 1477928040, 0o100644, False,
    )  # fmt: skip


async def test_the_link_of_an_entry_leads_to_it(ana: Caller, files: Files) -> None:
    place = files.place()
    (files.root / place / "é ?#%25").mkdir()
    entry = (await view(ana, place))["files"][2]
    assert entry["name"] == "é ?#%25"
    answer = await ana.get(entry["url"])
    assert answer.json()["path"] == entry["path"]


async def test_a_directory_view_has_every_key(ana: Caller, eleven: str) -> None:
    body = await view(ana, eleven, pagesize=5, descending="No", is_embeddable="true")
    del body["files"], body["page"]
    place = f"file:///{eleven}"
    assert body == {
        "status": 0,
        "path": place,
        "current_dir_path": place,
        "current_request_path": f"/api/v1/storage/view={place.replace(':', '%3A').replace('/', '%2F')}",
        "breadcrumbs": [
            {"url": "file:///", "label": "file:///"},
            {"url": "file:///shared", "label": "shared"},
            {"url": place, "label": eleven.rpartition("/")[2]},
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


async def test_a_list_has_flat_entries_of_the_same_attributes(ana: Caller, eleven: str) -> None:
    shown = (await view(ana, eleven))["files"][2:]
    flat = (await listed(ana, eleven))["files"]
    assert flat == [{**entry["stats"], "type": entry["type"], "rwx": entry["rwx"]} for entry in shown]


async def test_a_link_is_listed_as_one(ana: Caller, eleven: str, files: Files) -> None:
    (files.root / eleven / "link").symlink_to("1")
    entry = next(entry for entry in (await listed(ana, eleven))["files"] if entry["name"] == "link")
    assert (entry["type"], entry["rwx"][0]) == ("link", "l")


@pytest.mark.slow
async def test_a_page_of_ten_thousand_entries_is_whole(ana: Caller, files: Files) -> None:
    place = files.place()
    wanted = [f"{number:05}" for number in range(10_000)]
    for name in wanted:
        (files.root / place / name).touch()
    body = await view(ana, place, pagesize=10_000)
    assert names(body) == ["..", ".", *wanted]
    assert names(await listed(ana, place, pagesize=10_000, descending="true")) == wanted[::-1]
