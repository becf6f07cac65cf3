"""Delete and trash on the local root (Contract storage 7.7, 7.8, 8)."""

import pytest
from tests.api.storage.conftest import Files
from tests.cases import each


@pytest.fixture
async def ana(files: Files):
    return await files.api.user("ana")


@pytest.fixture
def place(files: Files) -> str:
    return files.place()


async def test_what_is_deleted_lies_in_the_trash_under_its_full_path(ana, files, place):
    (files.root / place / "d").mkdir()
    (files.root / place / "d" / "x").write_bytes(b"x")
    deleted = await ana.post("storage/rmtree", path=f"file:///{place}/d")
    trash = f"user/{ana.username}/.Trash/Current/{place}/d"
    assert deleted.json() == {
        "status": 0,
        "path": f"file:///{place}/d",
        "trashed": True,
        "trash_path": f"file:///{trash}",
    }
    assert not (files.root / place / "d").exists()
    assert (files.root / trash / "x").read_bytes() == b"x"
    assert (files.root / "user" / ana.username / ".Trash").stat().st_mode & 0o777 == 0o700


@each("form", [{"skip_trash": "true"}, {"skip_trash": "Yes"}])
async def test_skip_trash_deletes_for_good(ana, files, place, form):
    (files.root / place / "x").write_bytes(b"x")
    deleted = await ana.post("storage/delete", path=f"file:///{place}/x", **form)
    assert (deleted.json()["trashed"], deleted.json()["trash_path"]) == (False, None)
    assert not (files.root / place / "x").exists()
    assert not (files.root / "user" / ana.username / ".Trash" / "Current" / place).exists()


@pytest.mark.storage(72)
async def test_skip_trash_may_stand_in_the_query(ana, files, place):
    for value, trashed in (("true", False), ("false", True)):
        (files.root / place / "x").write_bytes(b"x")
        deleted = await ana.post(f"storage/rmtree?skip_trash={value}", path=f"file:///{place}/x")
        assert deleted.json()["trashed"] is trashed


@pytest.mark.storage(7)
async def test_a_query_that_contradicts_the_body_is_refused(ana, files, place):
    (files.root / place / "x").write_bytes(b"x")
    refused = await ana.post("storage/rmtree?skip_trash=true", path=f"file:///{place}/x", skip_trash="false")
    assert (refused.status_code, refused.json()["code"]) == (400, "conflicting_parameters")
    assert (files.root / place / "x").exists()


@pytest.mark.storage(74)
async def test_deleting_the_same_path_twice_keeps_both(ana, files, place):
    paths = []
    for content in (b"one", b"two", b"three"):
        (files.root / place / "x").write_bytes(content)
        paths.append((await ana.post("storage/rmtree", path=f"file:///{place}/x")).json()["trash_path"])
    kept = [(files.root / path.removeprefix("file:///")).read_bytes() for path in paths]
    assert kept == [b"one", b"two", b"three"]


async def test_a_file_in_the_trash_is_no_obstacle_for_a_directory_of_its_name(ana, files, place):
    (files.root / place / "a").write_bytes(b"file")
    await ana.post("storage/rmtree", path=f"file:///{place}/a")
    (files.root / place / "a").mkdir()
    (files.root / place / "a" / "b").write_bytes(b"inner")
    deleted = await ana.post("storage/rmtree", path=f"file:///{place}/a/b")
    assert deleted.status_code == 200, deleted.text
    assert (files.root / deleted.json()["trash_path"].removeprefix("file:///")).read_bytes() == b"inner"


@pytest.mark.storage(75)
async def test_restore_brings_an_entry_back_with_its_parents(ana, files, place):
    (files.root / place / "a").mkdir()
    (files.root / place / "a" / "x").write_bytes(b"x")
    trashed = (await ana.post("storage/rmtree", path=f"file:///{place}/a/x")).json()["trash_path"]
    await ana.post("storage/rmtree", path=f"file:///{place}/a", skip_trash="true")
    restored = await ana.post("storage/trash/restore", path=trashed)
    assert restored.json() == {"status": 0, "path": f"file:///{place}/a/x", "source": trashed}
    assert (files.root / place / "a" / "x").read_bytes() == b"x"
    missing = await ana.post("storage/trash/restore", path=trashed)
    assert (missing.status_code, missing.json()["code"]) == (404, "path_not_found")


@pytest.mark.storage(75)
async def test_restore_replaces_nothing(ana, files, place):
    (files.root / place / "x").write_bytes(b"old")
    trashed = (await ana.post("storage/rmtree", path=f"file:///{place}/x")).json()["trash_path"]
    (files.root / place / "x").write_bytes(b"new")
    refused = await ana.post("storage/trash/restore", path=trashed)
    assert (refused.status_code, refused.json()["code"]) == (409, "already_exists")
    assert (files.root / place / "x").read_bytes() == b"new"
    assert (files.root / trashed.removeprefix("file:///")).read_bytes() == b"old"


@pytest.mark.storage(75)
@each("path", [".Trash", ".Trash/Current", ".TrashX/Current/a", ".Trash/other/a", "a", ""])
async def test_only_entries_of_the_trash_are_restored(ana, path):
    refused = await ana.post("storage/trash/restore", path=f"file:///user/{ana.username}/{path}")
    assert (refused.status_code, refused.json()["code"]) == (400, "not_in_trash")


@pytest.mark.storage(76)
async def test_purge_empties_the_trash_of_the_caller_only(ana, files, place):
    ben = await files.api.user("ben")
    for user, name in ((ana, "a"), (ana, "b"), (ben, "c")):
        (files.root / place / name).write_bytes(b"x")
        await user.post("storage/rmtree", path=f"file:///{place}/{name}")
    purged = await ana.post("storage/trash/purge")
    assert purged.json() == {"status": 0, "path": f"file:///user/{ana.username}/.Trash", "purged": 1}
    assert list((files.root / "user" / ana.username / ".Trash").iterdir()) == []
    assert (files.root / "user" / ben.username / ".Trash" / "Current" / place / "c").exists()


@pytest.mark.storage(76)
async def test_purge_without_a_trash_has_nothing_to_do(ana):
    purged = await ana.post("storage/trash/purge", path="file:///shared")
    assert (purged.status_code, purged.json()["purged"]) == (200, 0)


@pytest.mark.storage(77)
@each("path", ["file:///", "file:///user", "file:///user/"])
async def test_roots_stay(files, path):
    admin = await files.api.user("admin", admin=True)
    for skip in ("true", "false"):
        refused = await admin.post("storage/rmtree", path=path, skip_trash=skip)
        assert (refused.status_code, refused.json()["code"]) == (400, "root_not_allowed")


@pytest.mark.storage(78)
async def test_the_trash_folder_is_told_once_there_is_one(ana, files, place):
    home = f"file:///user/{ana.username}"
    assert (await ana.get("storage/trash/path", path=home)).json() == {"status": 0, "path": home, "trash_path": None}
    (files.root / place / "x").write_bytes(b"x")
    await ana.post("storage/rmtree", path=f"file:///{place}/x")
    assert (await ana.get("storage/trash/path", path=home)).json()["trash_path"] == f"{home}/.Trash"
    await ana.post("storage/mkdir", path=f"{home}/x")
    await ana.post("storage/rmtree", path=f"{home}/x")
    told = (await ana.get("storage/trash/path", path=home)).json()["trash_path"]
    assert told == f"{home}/.Trash/Current/user/{ana.username}"


async def test_the_trash_is_not_put_into_the_trash(ana, files, place):
    (files.root / place / "x").write_bytes(b"x")
    trashed = (await ana.post("storage/rmtree", path=f"file:///{place}/x")).json()["trash_path"]
    again = await ana.post("storage/rmtree", path=trashed)
    assert (again.status_code, again.json()["code"]) == (409, "already_in_trash")
    for path in (f"file:///user/{ana.username}", f"file:///user/{ana.username}/.Trash"):
        whole = await ana.post("storage/rmtree", path=path)
        assert (whole.status_code, whole.json()["code"]) == (409, "contains_trash")
    assert (await ana.post("storage/rmtree", path=trashed, skip_trash="true")).status_code == 200


async def test_what_is_missing_is_not_deleted(ana, place):
    for skip in ("true", "false"):
        refused = await ana.post("storage/rmtree", path=f"file:///{place}/no", skip_trash=skip)
        assert (refused.status_code, refused.json()["code"]) == (404, "path_not_found")


@pytest.mark.storage(71)
async def test_one_of_three_that_fails_does_not_stop_the_rest(ana, files, place):
    for name in ("a", "c"):
        (files.root / place / name).write_bytes(b"x")
    paths = [f"file:///{place}/{name}" for name in "abc"]
    for call in ("storage/delete/bulk", "storage/rmtree"):
        answer = await ana.send("POST", call, data={"path": paths, "skip_trash": "true"})
        body = answer.json()
        assert (answer.status_code, body["status"], body["code"]) == (404, -1, "partial_failure")
        assert list(body["results"]) == paths
        assert body["results"][paths[1]]["code"] == "path_not_found"
        assert [body["results"][path]["status"] for path in (paths[0], paths[2])] == [0, 0]
        assert list((files.root / place).iterdir()) == []
        for name in ("a", "c"):
            (files.root / place / name).write_bytes(b"x")
    good = await ana.post_json("storage/delete/bulk", path=[paths[0], paths[2]])
    assert (good.status_code, good.json()["status"]) == (200, 0)


@pytest.mark.storage(71)
async def test_a_path_that_is_none_does_not_stop_the_rest_wherever_it_stands(ana, files, place):
    good = f"file:///{place}/a"
    for paths in ([good, "gs://b"], ["gs://b", good]):
        (files.root / place / "a").write_bytes(b"x")
        answer = await ana.send("POST", "storage/delete/bulk", data={"path": paths, "skip_trash": "true"})
        body = answer.json()
        assert (answer.status_code, body["code"]) == (400, "partial_failure")
        assert body["results"]["gs://b"]["code"] == "unknown_scheme"
        assert body["results"][good]["status"] == 0
        assert list((files.root / place).iterdir()) == []


@pytest.mark.storage(70)
async def test_a_delete_need_not_be_waited_for(ana, files, place):
    (files.root / place / "x").write_bytes(b"x")
    answer = await ana.post("storage/rmtree", path=f"file:///{place}/x", wait="0")
    body = answer.json()
    if answer.status_code == 202:
        assert (body["path"], body["state"]) == (f"file:///{place}/x", "running")
        while (seen := (await ana.get("storage/operation", id=body["operation_id"])).json())["state"] == "running":
            pass
        body = seen["result"]
    assert body["trashed"] is True
    stranger = await files.api.user("ben")
    hidden = await stranger.get("storage/operation", id="00000000-0000-4000-8000-000000000000")
    assert (hidden.status_code, hidden.json()["code"]) == (404, "operation_not_found")


@pytest.mark.storage(1)
async def test_archives_are_not_served(ana):
    for call in ("extract_archive", "compress"):
        refused = await ana.post(f"storage/{call}")
        assert (refused.status_code, refused.json()["code"], refused.json()["status"]) == (501, "not_supported", -1)


@each("call", ["rmtree", "delete/bulk", "chmod/bulk", "trash/restore/bulk"])
async def test_a_bulk_call_has_a_thousand_items_at_most(ana, place, call):
    paths = [f"file:///{place}/{number}" for number in range(1001)]
    for send in (ana.post, ana.post_json):
        refused = await send(f"storage/{call}", path=paths, mode="644")
        assert (refused.status_code, refused.json()["code"]) == (413, "too_many_entries")


@pytest.mark.storage(74)
async def test_long_names_are_deleted_twice_as_well(ana, files, place):
    file = files.root / place / ("é" * 127)
    for content in ("first", "second"):
        file.write_text(content)
        deleted = await ana.post("storage/rmtree", path=f"file:///{place}/{file.name}")
        assert deleted.status_code == 200, deleted.text
    trash = files.root / "user" / ana.username / ".Trash" / "Current" / place
    assert sorted(entry.read_text() for entry in trash.iterdir()) == ["first", "second"]
