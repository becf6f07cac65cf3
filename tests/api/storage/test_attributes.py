"""chmod, chown and replication on the local root (Contract storage 6)."""

import json
from pathlib import Path

import pytest
from tests.api.driving import open_api
from tests.api.storage.conftest import Files, storage_settings
from tests.cases import each
from tests.fakes.storage import LIKE_HDFS, MemoryFileSystem
from tests.fakes.storage_faults import FaultyFileSystem

from queryserver.errors.base import PermissionDenied
from queryserver.files import changing as attributes
from queryserver.files.model import Scheme
from queryserver.files.protocol import StorageTraits


@pytest.fixture
async def ana(files: Files):
    return await files.api.user("ana")


@pytest.fixture
def place(files: Files) -> str:
    return files.place()


@pytest.mark.storage(81)
@each(
    "fields",
    [
        {"mode": "1640"},
        {"mode": "01640"},
        {"permission": json.dumps({"user_read": True, "user_write": "yes", "group_read": "true", "sticky": True})},
        {"user_read": "1", "user_write": "on", "group_read": "y", "other_read": "false", "sticky": "TRUE"},
    ],
)
async def test_all_ways_to_say_permissions_give_the_same(ana, files, place, fields):
    (files.root / place / "x").write_bytes(b"x")
    changed = await ana.post("storage/chmod", path=f"file:///{place}/x", **fields)
    assert changed.json() == {"status": 0, "path": f"file:///{place}/x", "mode": "101640"}
    assert (files.root / place / "x").stat().st_mode & 0o7777 == 0o1640


async def test_permissions_may_be_native_json(ana, files, place):
    (files.root / place / "x").write_bytes(b"x")
    changed = await ana.post_json("storage/chmod", path=f"file:///{place}/x", permission={"other_execute": True})
    assert changed.json()["mode"] == "100001"


@pytest.mark.storage(81)
async def test_a_chmod_without_permissions_is_refused(ana, place):
    for fields in ({}, {"permission": "{}"}):
        refused = await ana.post("storage/chmod", path=f"file:///{place}", **fields)
        assert (refused.status_code, refused.json()["code"]) == (400, "missing_parameter")


@each("mode", ["4755", "2755", "999", "75", "u+x", "100644"])
async def test_modes_that_cannot_be_set_are_refused(ana, place, mode):
    refused = await ana.post("storage/chmod", path=f"file:///{place}", mode=mode)
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_parameter")


async def test_two_ways_that_contradict_each_other_are_refused(ana, place):
    refused = await ana.post("storage/chmod", path=f"file:///{place}", mode="755", user_read="true")
    assert (refused.status_code, refused.json()["code"]) == (400, "conflicting_parameters")


async def test_a_tree_is_changed_without_its_links(ana, files, place):
    top = files.root / place / "d"
    (top / "inner").mkdir(parents=True)
    (top / "inner" / "x").write_bytes(b"x")
    outside = files.root / place / "outside"
    outside.write_bytes(b"x")
    outside.chmod(0o600)
    (top / "link").symlink_to(outside)
    changed = await ana.post("storage/chmod", path=f"file:///{place}/d", mode="750", recursive="true")
    assert changed.status_code == 200, changed.text
    assert [entry.stat().st_mode & 0o777 for entry in (top, top / "inner", top / "inner" / "x")] == [0o750] * 3
    assert outside.stat().st_mode & 0o777 == 0o600


@pytest.mark.storage(82)
async def test_a_tree_above_the_limit_is_not_changed(ana, files, place, monkeypatch):
    monkeypatch.setattr(attributes, "MAX_TREE_ENTRIES", 3)
    top = files.root / place / "d"
    top.mkdir()
    for name in "abc":
        (top / name).write_bytes(b"x")
        (top / name).chmod(0o644)
    refused = await ana.post("storage/chmod", path=f"file:///{place}/d", mode="700", recursive="true")
    assert (refused.status_code, refused.json()["code"]) == (413, "too_many_entries")
    assert {entry.stat().st_mode & 0o777 for entry in top.iterdir()} == {0o644}


@pytest.mark.storage(81)
async def test_a_chown_names_somebody(ana, place):
    for fields in ({}, {"user": "", "group": " ".strip()}, {"user": "__other__", "user_other": ""}):
        refused = await ana.post("storage/chown", path=f"file:///{place}", **fields)
        assert (refused.status_code, refused.json()["code"]) == (400, "missing_parameter")


async def test_the_local_root_has_no_owners_and_no_replication(ana, place):
    chown = await ana.post("storage/chown", path=f"file:///{place}", user="bob")
    assert (chown.status_code, chown.json()["code"]) == (501, "not_supported")
    for call in ("set_replication", "replication"):
        refused = await ana.post(f"storage/{call}", src_path=f"file:///{place}", replication_factor="2")
        assert (refused.status_code, refused.json()["code"]) == (501, "not_supported")


@pytest.mark.storage(79)
@each("factor", ["0", "513", "x", "1.5", ""])
async def test_a_replication_factor_is_a_number_in_its_bounds(ana, place, factor):
    refused = await ana.post("storage/set_replication", path=f"file:///{place}", replication_factor=factor)
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_parameter")


async def test_many_are_changed_at_once(ana, files, place):
    (files.root / place / "x").write_bytes(b"x")
    paths = [f"file:///{place}/x", f"file:///{place}/no"]
    answer = await ana.send("POST", "storage/chmod/bulk", data={"path": paths, "mode": "600"})
    body = answer.json()
    assert (answer.status_code, body["code"]) == (404, "partial_failure")
    assert body["results"][paths[0]] == {"status": 0, "path": paths[0], "mode": "100600"}
    assert body["results"][paths[1]]["code"] == "path_not_found"


async def test_a_refusal_in_a_tree_does_not_stop_the_rest_and_is_told(tmp_path: Path, database_dsn: str):
    traits = StorageTraits(lists_in_order=True, acts_as_user=True, changes_modes_of_trees=True)
    inner = MemoryFileSystem(Scheme.HDFS, traits, LIKE_HDFS)
    for name in "abcd":
        inner.tree.put(f"tree/{name}", b"x")
    store = FaultyFileSystem(inner)
    store.failures["set_permissions"] = lambda _, path: PermissionDenied("Not yours.") if path == "tree/b" else None
    async with open_api(storage_settings(tmp_path, database_dsn), stores={Scheme.HDFS: lambda _: store}) as api:
        ana = await api.user("ana")
        answer = await ana.post("storage/chmod", path="/tree", mode="700", recursive="true")
        body = answer.json()
        assert (answer.status_code, body["code"]) == (403, "permission_denied")
        assert body["details"] == {"changed": 4, "failed": 1}
    modes = {path: entry.permissions for path, entry in inner.tree.entries.items() if path.startswith("tree")}
    assert {path for path, mode in modes.items() if mode == 0o700} == {"tree", "tree/a", "tree/c", "tree/d"}
