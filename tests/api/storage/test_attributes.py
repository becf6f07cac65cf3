"""Calls about attributes such as chmod, chown and stat, and doas (Contract storage 2.1.7, 5.4, 5.6, 6; S14)."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.api.driving import Api, Caller, open_api, without_ends
from tests.api.storage.conftest import Files, storage_settings
from tests.api.storage.worlds import World, builders
from tests.fakes.storage import LIKE_HDFS, MemoryFileSystem, MemoryStorage
from tests.fakes.storage_faults import FaultyFileSystem

from queryserver.errors.base import PermissionDenied
from queryserver.files import trash as attributes
from queryserver.files.model import ContentSummary, Scheme, StorageUser
from queryserver.files.protocol import StorageTraits
from queryserver.identity.repository import AccountRepository


@pytest.mark.storage(81)
@pytest.mark.parametrize(
    "fields",
    [
        {"mode": "1640"},
        {"mode": "01640"},
        {"permission": json.dumps({"user_read": True, "user_write": "yes", "group_read": "true", "sticky": True})},
        {"user_read": "1", "user_write": "on", "group_read": "y", "other_read": "false", "sticky": "TRUE"},
    ],
)
async def test_all_permission_notations_give_the_same_mode(ana, files, folder, fields):
    (files.root / folder / "x").write_bytes(b"x")
    changed = await ana.post("storage/chmod", path=f"file:///{folder}/x", **fields)
    assert changed.json() == {"status": 0, "path": f"file:///{folder}/x", "mode": "101640"}
    assert (files.root / folder / "x").stat().st_mode & 0o7777 == 0o1640


async def test_permissions_may_be_native_json(ana, files, folder):
    (files.root / folder / "x").write_bytes(b"x")
    changed = await ana.post_json("storage/chmod", path=f"file:///{folder}/x", permission={"other_execute": True})
    assert changed.json()["mode"] == "100001"


@pytest.mark.storage(81)
async def test_chmod_without_permissions_is_refused(ana, folder):
    for fields in ({}, {"permission": "{}"}):
        refused = await ana.post("storage/chmod", path=f"file:///{folder}", **fields)
        assert (refused.status_code, refused.json()["code"]) == (400, "missing_parameter")


@pytest.mark.parametrize("mode", ["4755", "2755", "999", "75", "u+x", "100644"])
async def test_invalid_modes_are_refused(ana, folder, mode):
    refused = await ana.post("storage/chmod", path=f"file:///{folder}", mode=mode)
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_parameter")


async def test_contradicting_permission_notations_are_refused(ana, folder):
    refused = await ana.post("storage/chmod", path=f"file:///{folder}", mode="755", user_read="true")
    assert (refused.status_code, refused.json()["code"]) == (400, "conflicting_parameters")


async def test_recursive_change_skips_links(ana, files, folder):
    top = files.root / folder / "d"
    (top / "inner").mkdir(parents=True)
    (top / "inner" / "x").write_bytes(b"x")
    outside = files.root / folder / "outside"
    outside.write_bytes(b"x")
    outside.chmod(0o600)
    (top / "link").symlink_to(outside)
    changed = await ana.post("storage/chmod", path=f"file:///{folder}/d", mode="750", recursive="true")
    assert changed.status_code == 200, changed.text
    assert [entry.stat().st_mode & 0o777 for entry in (top, top / "inner", top / "inner" / "x")] == [0o750] * 3
    assert outside.stat().st_mode & 0o777 == 0o600


@pytest.mark.storage(82)
async def test_trees_above_the_limit_stay_unchanged(ana, files, folder, monkeypatch):
    monkeypatch.setattr(attributes, "MAX_TREE_ENTRIES", 3)
    top = files.root / folder / "d"
    top.mkdir()
    for name in "abc":
        (top / name).write_bytes(b"x")
        (top / name).chmod(0o644)
    refused = await ana.post("storage/chmod", path=f"file:///{folder}/d", mode="700", recursive="true")
    assert (refused.status_code, refused.json()["code"]) == (413, "too_many_entries")
    assert {entry.stat().st_mode & 0o777 for entry in top.iterdir()} == {0o644}


@pytest.mark.storage(81)
async def test_chown_requires_a_user_or_group(ana, folder):
    for fields in ({}, {"user": "", "group": " ".strip()}, {"user": "__other__", "user_other": ""}):
        refused = await ana.post("storage/chown", path=f"file:///{folder}", **fields)
        assert (refused.status_code, refused.json()["code"]) == (400, "missing_parameter")


async def test_local_root_refuses_chown_and_replication(ana, folder):
    chown = await ana.post("storage/chown", path=f"file:///{folder}", user="bob")
    assert (chown.status_code, chown.json()["code"]) == (501, "not_supported")
    for call in ("set_replication", "replication"):
        refused = await ana.post(f"storage/{call}", src_path=f"file:///{folder}", replication_factor="2")
        assert (refused.status_code, refused.json()["code"]) == (501, "not_supported")


@pytest.mark.storage(79)
@pytest.mark.parametrize("factor", ["0", "513", "x", "1.5", ""])
async def test_replication_factor_must_be_a_number_within_bounds(ana, folder, factor):
    refused = await ana.post("storage/set_replication", path=f"file:///{folder}", replication_factor=factor)
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_parameter")


async def test_bulk_chmod_changes_valid_paths_and_reports_failures(ana, files, folder):
    (files.root / folder / "x").write_bytes(b"x")
    paths = [f"file:///{folder}/x", f"file:///{folder}/no"]
    answer = await ana.send("POST", "storage/chmod/bulk", data={"path": paths, "mode": "600"})
    body = answer.json()
    assert (answer.status_code, body["code"]) == (404, "partial_failure")
    assert body["results"][paths[0]] == {"status": 0, "path": paths[0], "mode": "100600"}
    assert body["results"][paths[1]]["code"] == "path_not_found"


async def test_recursive_change_reports_refusals_and_continues(tmp_path: Path, database_dsn: str):
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


@pytest.mark.storage(1)
async def test_stat_returns_attributes_in_both_path_forms(files: Files) -> None:
    ana, folder = await files.api.user("ana"), files.folder()
    (files.root / folder / "a.csv").write_bytes(b"id,name\n")
    path_form = await ana.get(f"storage/stat=file:///{folder}/a.csv")
    query_form = await ana.get("storage/stat", path=f"file:///{folder}/a.csv")
    body = path_form.json()
    assert query_form.json() == body
    assert (body["status"], body["name"], body["size"], body["type"]) == (0, "a.csv", 8, "file")
    assert (body["path"], body["rwx"]) == (f"file:///{folder}/a.csv", "-rw-r--r--")


async def test_root_is_a_directory_of_size_0(files: Files) -> None:
    body = (await (await files.api.user("ana")).get("storage/stat=file:///")).json()
    assert (body["type"], body["size"], body["path"]) == ("dir", 0, "file:///")


async def test_missing_entries_return_404(files: Files) -> None:
    ana = await files.api.user("ana")
    for answer in (await ana.get("storage/stat=/shared/none"), await ana.get("storage/stat", path="/shared/none")):
        assert (answer.status_code, answer.json()["code"]) == (404, "path_not_found")


async def test_stat_requires_a_path(files: Files) -> None:
    ana = await files.api.user("ana")
    for answer in (
        await ana.get("storage/stat="),
        await ana.get("storage/stat"),
        await ana.get("storage/stat", path=""),
    ):
        assert (answer.status_code, answer.json()["code"]) == (400, "missing_parameter")


class _Summed(MemoryStorage):
    """A store that returns the content summary of a directory with quotas and erasure coding, as HDFS reports it."""

    async def content_summary(self, path: str) -> ContentSummary:
        del path
        extra_fields = {"ecPolicy": "RS-6-3-1024k", "snapshotFileCount": 0, "typeQuota": {"SSD": {"quota": -1}}}
        return ContentSummary(1, 2, 4096, 12288, quota=10, space_quota_bytes=99, extra_fields=extra_fields)


class _SummedFileSystem(MemoryFileSystem):
    def as_user(self, user: StorageUser) -> MemoryStorage:
        del user
        return _Summed()


@pytest.mark.storage(80)
async def test_content_summary_totals_a_local_tree(files: Files) -> None:
    caller, folder = await files.api.user("ana"), files.folder()
    (files.root / folder / "d").mkdir()
    (files.root / folder / "d" / "a").write_bytes(b"x" * 10)
    (files.root / folder / "b").write_bytes(b"x" * 5)
    body = (await caller.get(f"storage/content_summary=file:///{folder}")).json()
    counts = {
        "directoryCount": 2, "fileCount": 2, "length": 15, "quota": -1, "spaceQuota": -1, "typeQuota": {},
        "replication": 0, "spaceConsumed": body["spaceConsumed"],
    }  # fmt: skip
    assert body == {**counts, "status": 0, "message": "", "path": f"file:///{folder}", "summary": counts}
    assert (await caller.get("storage/content_summary", path=f"file:///{folder}")).json() == body


@pytest.mark.storage(80)
async def test_content_summary_passes_on_additional_store_fields(tmp_path: Path, shared_database_dsn: str) -> None:
    store = _SummedFileSystem(Scheme.HDFS, StorageTraits())
    async with open_api(storage_settings(tmp_path, shared_database_dsn), builders({Scheme.HDFS: store})) as api:
        body = (await (await api.user("ana")).get("storage/content_summary=/x")).json()
    summary = body.pop("summary")
    assert summary == {
        "directoryCount": 1, "fileCount": 2, "length": 4096, "quota": 10, "spaceConsumed": 12288, "spaceQuota": 99,
        "typeQuota": {"SSD": {"quota": -1}}, "replication": 0, "ecPolicy": "RS-6-3-1024k", "snapshotFileCount": 0,
    }  # fmt: skip
    assert body == {**summary, "status": 0, "message": "", "path": "/x"}


@pytest.mark.storage(80)
@pytest.mark.parametrize("path", ["s3a://lake", "abfs://box", "s3a://lake/none"])
async def test_content_summary_skips_stores_without_support(world: World, eva: Caller, path: str) -> None:
    world.heal()
    for answer in (
        await eva.get(f"storage/content_summary={path}"),
        await eva.get("storage/content_summary", path=path),
    ):
        assert (answer.status_code, answer.json()["code"]) == (501, "not_supported")
    assert not any(world.calls(scheme) for scheme in world.faulty)


@pytest.mark.storage(80)
async def test_content_summary_returns_404_for_a_missing_and_400_for_an_absent_path(eva: Caller) -> None:
    for path in ("/none", "ofs://service/volume/bucket/none", "file:///none"):
        answer = await eva.get(f"storage/content_summary={path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "path_not_found"), path
    for answer in (await eva.get("storage/content_summary="), await eva.get("storage/content_summary")):
        assert (answer.status_code, answer.json()["code"]) == (400, "missing_parameter")


READING = ("view=/user/carol", "stat=/user/carol", "content_summary=/user/carol", "list?path=/user/carol",
           "stat?path=/user/carol")  # fmt: skip


@pytest.fixture(scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory, shared_database_dsn: str) -> AsyncIterator[Api]:
    """An application with a local root and an HDFS store. In HDFS, only carol may read her home directory."""
    directory: Path = tmp_path_factory.mktemp("doas")
    traits = StorageTraits(lists_in_order=True, acts_as_user=True)
    hdfs = MemoryFileSystem(Scheme.HDFS, traits, LIKE_HDFS, private={"user/carol": "carol"})
    hdfs.tree.put("user/carol/a", b"x")
    async with open_api(storage_settings(directory, shared_database_dsn), builders({Scheme.HDFS: hdfs})) as opened:
        yield opened


@pytest.mark.storage(95)
@pytest.mark.parametrize("call", READING)
async def test_administrators_read_as_another_user(api: Api, call: str) -> None:
    admin = await api.user("admin", admin=True)
    sign = "&" if "?" in call else "?"
    assert (await admin.send("GET", f"storage/{call}")).status_code == 403
    answer = await admin.send("GET", f"storage/{call}{sign}doas=carol")
    assert answer.status_code == 200, answer.text
    assert answer.json()["path"] == "/user/carol"


async def test_impersonation_right_allows_reading_as_another_user(api: Api) -> None:
    await AccountRepository(api.database).ensure_group("proxies", ["security.impersonate"])
    proxy = await api.user("proxy", groups=("proxies",))
    answer = await proxy.get("storage/list", path="/user/carol", doas="carol")
    assert [entry["name"] for entry in answer.json()["files"]] == ["a"]


@pytest.mark.storage(95)
@pytest.mark.security("S14")
@pytest.mark.parametrize(("call", "operation"), [
    ("view=/user/carol", "storage.view"), ("list?path=/user/carol", "storage.list"),
    ("stat=/user/carol", "storage.stat"), ("content_summary?path=/user/carol", "storage.content_summary"),
    ("download=/user/carol", "storage.download"),
])  # fmt: skip
async def test_unauthorized_impersonation_is_refused_and_audited(api, call, operation, audited):
    ana = await api.user("ana")
    sign = "&" if "?" in call else "?"
    answer = await ana.send("GET", f"storage/{call}{sign}doas=carol")
    assert (answer.status_code, answer.json()["code"]) == (403, "impersonation_not_allowed")
    (event,) = without_ends(audited)
    audited.clear()
    assert event == {
        "operation": operation,
        "user": ana.username,
        "effective_user": "carol",
        "path": "/user/carol",
        "outcome": "impersonation_not_allowed",
    }


async def test_users_may_impersonate_themselves(api: Api) -> None:
    ana = await api.user("ana")
    assert (await ana.get("storage/list", path="/", doas=ana.username)).status_code == 200
    assert (await ana.get("storage/list", path="/", doas="")).status_code == 200


@pytest.mark.parametrize("name", ["a b", "../x", "x/y", "x\\y", "x:y", " carol", "\uff43arol"])
async def test_invalid_doas_names_are_refused(api: Api, name: str) -> None:
    admin = await api.user("admin", admin=True)
    answer = await admin.get("storage/list", path="/", doas=name)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_parameter")


async def test_impersonating_administrators_lose_admin_rights_on_the_local_root(api: Api) -> None:
    admin, ana = await api.user("admin", admin=True), await api.user("ana")
    assert (await ana.get(f"storage/view=file:///user/{ana.username}")).status_code == 200
    own = f"file:///user/{ana.username}"
    assert (await admin.get("storage/list", path=own)).status_code == 200
    assert (await admin.get("storage/list", path=own, doas=ana.username)).status_code == 200
    answer = await admin.get("storage/list", path=own, doas="carol")
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")


@pytest.mark.storage(95)
@pytest.mark.parametrize("folder", ["query", "form", "json"])
async def test_changing_calls_refuse_doas(api: Api, folder: str) -> None:
    admin = await api.user("admin", admin=True)
    fields = {"path": "/user/carol/new"}
    match folder:
        case "query":
            answer = await admin.send("POST", "storage/mkdir?doas=carol", data=fields)
        case "form":
            answer = await admin.post("storage/mkdir", **fields, doas="carol")
        case _:
            answer = await admin.post_json("storage/mkdir", **fields, doas="carol")
            absent = await admin.post_json("storage/mkdir", path="/no/../path", doas=None)
            assert absent.json()["code"] == "invalid_path"
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_parameter")
