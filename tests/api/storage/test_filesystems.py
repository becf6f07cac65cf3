"""The call `filesystems` (Contract storage 5.1), and file calls for an Azure account with a hierarchical namespace."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.api.driving import Api, Caller, open_api
from tests.api.storage.conftest import storage_settings
from tests.api.storage.worlds import World, builders, memory_stores, with_ozone
from tests.engines.standin_dfs import DfsServer, dfs_server
from tests.engines.standin_dfs.tree import Tree
from tests.fakes.storage import MemoryCluster

from queryserver.errors.base import PermissionDenied, QueryServerError
from queryserver.errors.files import StorageError, StorageUnavailable
from queryserver.files.model import ClusterFacts, Scheme, StorageUser
from queryserver.files.protocol import StorageTraits
from queryserver.identity.repository import AccountRepository
from queryserver.platform.settings.stores import AzureSettings

ALL_STORES = ["hdfs", "s3a", "abfs", "ofs", "file"]

RIGHTS = {
    "s3a": "filebrowser.s3_access",
    "abfs": "filebrowser.abfs_access",
    "ofs": "filebrowser.ofs_access",
    "file": "filebrowser.file_access",
}

ROOTS = {"hdfs": "/", "s3a": "s3a://", "abfs": "abfs://", "ofs": "ofs://", "file": "file:///"}


class ScriptedCluster(MemoryCluster):
    """An HDFS cluster whose superusers, delay and failure a test sets."""

    def __init__(self) -> None:
        facts = ClusterFacts(True, False, "hdfs", "supergroup")
        super().__init__(facts, StorageTraits(lists_in_order=True, acts_as_user=True, deletes_to_trash=True))
        self.superusers: set[str] = set()
        self.failure: QueryServerError | None = None
        self.late_s = 0.0
        self.asked = 0

    async def facts(self, user: StorageUser) -> ClusterFacts:
        self.asked += 1
        await asyncio.sleep(self.late_s)
        if self.failure:
            raise self.failure
        return ClusterFacts(True, user.name in self.superusers, "hdfs", "supergroup")


@pytest.fixture
async def cluster() -> ScriptedCluster:
    return ScriptedCluster()


@pytest.fixture
async def api(tmp_path: Path, shared_database_dsn: str, cluster: ScriptedCluster) -> AsyncIterator[Api]:
    settings = storage_settings(tmp_path, shared_database_dsn, remote_storage_home="s3a://lake/user/${USER}")
    stores = {**memory_stores(), Scheme.HDFS: cluster}
    async with open_api(with_ozone(settings), builders(stores)) as opened:
        yield opened


async def file_systems_of(caller: Caller) -> list[dict[str, Any]]:
    answer = await caller.get("storage/filesystems")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def alone(api: Api, *rights: str) -> Caller:
    """Create a user whose only group has exactly these rights."""
    caller = await api.user("alone")
    await api.database.execute(
        "delete from group_members where user_id = (select id from users where username = $1)", caller.username
    )
    if rights:
        group = f"group of {caller.username}"
        await AccountRepository(api.database).ensure_group(group, rights)
        await api.database.execute(
            "insert into group_members (user_id, group_id)"
            " select u.id, g.id from users u, groups g where u.username = $1 and g.name = $2",
            caller.username,
            group,
        )
    return caller


@pytest.mark.storage(19, 102)
async def test_filesystems_list_every_store_with_home_and_config(api: Api) -> None:
    ana = await api.user("ana")
    entries = await file_systems_of(ana)
    assert [entry["file_system"] for entry in entries] == ALL_STORES
    assert [entry["name"] for entry in entries] == ALL_STORES
    assert {entry["name"]: entry["user_home_directory"] for entry in entries} == {
        "hdfs": f"/user/{ana.username}",
        "s3a": f"s3a://lake/user/{ana.username}",
        "abfs": "abfs://",
        "ofs": "ofs://",
        "file": f"file:///user/{ana.username}",
    }
    assert entries[0]["config"] == {
        "is_trash_enabled": True, "is_hdfs_superuser": False, "groups": [], "users": [], "superuser": "hdfs",
        "supergroup": "supergroup",
    }  # fmt: skip
    of_others = {"is_hdfs_superuser": False, "groups": [], "users": [], "superuser": None, "supergroup": None}
    for entry in entries[1:]:
        assert entry["config"] == {"is_trash_enabled": entry["has_trash"], **of_others}
    assert [entry["has_trash"] for entry in entries] == [True, False, False, False, True]


@pytest.mark.storage(105)
async def test_filesystems_list_the_optional_calls_of_each_store(api: Api) -> None:
    ana = await api.user("ana")
    supports = {entry["name"]: entry["supports"] for entry in await file_systems_of(ana)}
    assert {"summary", "permissions", "owners", "replication"} <= {*supports["hdfs"]}
    assert {"summary", "permissions"} <= {*supports["file"]}
    assert supports["s3a"] == []
    for store, path in (("s3a", "s3a://lake/x"), ("file", f"file:///user/{ana.username}")):
        for feature, call, fields in (
            ("owners", "chown", {"user": "ana"}),
            ("replication", "replication", {"replication_factor": 2}),
        ):
            response = await ana.post_json(f"storage/{call}", path=path, **fields)
            assert feature not in supports[store]
            assert response.status_code == 501


@pytest.mark.storage(19)
async def test_only_hdfs_superusers_see_all_user_names(api: Api, cluster: ScriptedCluster) -> None:
    ana, admin = await api.user("ana", groups=("analysts",)), await api.user("admin", admin=True)
    cluster.superusers.add(ana.username)
    config = (await file_systems_of(ana))[0]["config"]
    assert config["is_hdfs_superuser"]
    assert {ana.username, admin.username} <= {*config["users"]}
    assert {"analysts", "default"} <= {*config["groups"]}
    config = (await file_systems_of(admin))[0]["config"]
    assert (config["is_hdfs_superuser"], config["users"], config["groups"]) == (False, [], [])
    seen = (await ana.get("storage/view=/")).json()
    assert (seen["is_fs_superuser"], seen["superuser"], seen["supergroup"]) == (True, "hdfs", "supergroup")
    assert {ana.username, admin.username} <= {*seen["users"]}
    assert "analysts" in seen["groups"]


@pytest.mark.storage(20)
@pytest.mark.parametrize("scheme", RIGHTS)
async def test_stores_without_the_right_are_neither_listed_nor_opened(api: Api, scheme: str) -> None:
    others = [right for name, right in RIGHTS.items() if name != scheme]
    caller = await alone(api, *others, "download")
    assert [entry["name"] for entry in await file_systems_of(caller)] == [name for name in ALL_STORES if name != scheme]
    answers = [
        await caller.get(f"storage/{call}={ROOTS[scheme]}service")
        for call in ("view", "stat", "download", "content_summary")
    ]
    answers += [await caller.get(f"storage/{call}", path=ROOTS[scheme]) for call in ("list", "display", "stat")]
    answers.append(await caller.post("storage/mkdir", path=f"{ROOTS[scheme]}service/y"))
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (403, "storage_access_denied"), answer.url


async def test_hdfs_requires_no_right_and_administrators_see_all_stores(api: Api) -> None:
    assert [entry["name"] for entry in await file_systems_of(await alone(api))] == ["hdfs"]
    assert len(await file_systems_of(await api.user("admin", admin=True))) == 5


@pytest.mark.storage(21)
@pytest.mark.parametrize(
    ("late_s", "failure"),
    [(60, None), (0, StorageUnavailable("No answer.")), (0, StorageError("Odd.")), (0, PermissionDenied("Not you."))],
)
async def test_unresponsive_cluster_does_not_fail_the_listing(api, cluster, late_s, failure):
    cluster.late_s, cluster.failure = late_s, failure
    ana = await api.user("ana")
    clock = asyncio.get_running_loop().time
    started = clock()
    entries = await file_systems_of(ana)
    assert clock() - started < 30
    assert [entry["name"] for entry in entries] == ALL_STORES
    assert entries[0]["config"] == {
        "is_trash_enabled": False, "is_hdfs_superuser": False, "groups": [], "users": [], "superuser": None,
        "supergroup": None,
    }  # fmt: skip
    cluster.late_s, cluster.failure = 0, None
    assert (await file_systems_of(ana))[0]["config"]["superuser"] == "hdfs"


async def test_cluster_facts_are_requested_once_per_user(api: Api, cluster: ScriptedCluster) -> None:
    ana, bob = await api.user("ana"), await api.user("bob")
    for caller in (ana, ana, bob, ana):
        await file_systems_of(caller)
        await caller.get("storage/view=/")
    assert cluster.asked == 2


@pytest.mark.storage(95)
async def test_administrators_list_file_systems_as_another_user(api: Api) -> None:
    admin = await api.user("admin", admin=True)
    entries = (await admin.get("storage/filesystems", doas="carol")).json()
    assert entries[0]["user_home_directory"] == "/user/carol"


async def test_server_without_stores_lists_none(tmp_path: Path, shared_database_dsn: str) -> None:
    settings = storage_settings(tmp_path, shared_database_dsn)
    async with open_api(settings, {}) as api:
        ana = await api.user("ana")
        assert await file_systems_of(ana) == []
        answer = await ana.get("storage/list", path="/")
        assert (answer.status_code, answer.json()["code"]) == (400, "storage_not_configured")
        assert (
            answer.json()["message"] == "No file store is configured on this server. Configured: none that you may use."
        )


async def test_unknown_scheme_error_names_the_callers_schemes(api: Api) -> None:
    ana = await api.user("ana")
    usable = {one["name"] for one in await file_systems_of(ana)}
    for answer in (await ana.get("storage/list", path="gs://b/x"), await ana.get("storage/stat=gs://b/x")):
        body = answer.json()
        assert body["code"] == "unknown_scheme", body
        shown = body["message"].partition("Configured: ")[2].removesuffix(".")
        assert set(shown.split(", ")) == usable


async def test_home_directory_is_null_until_it_exists(world: World) -> None:
    ana = await world.api.user("ana")
    assert (await ana.get("storage/view=/")).json()["home_directory"] is None
    world.memory[Scheme.HDFS].tree.make_container(f"user/{ana.username}")
    assert (await ana.get("storage/view=/")).json()["home_directory"] == f"/user/{ana.username}"
    assert (await ana.get("storage/view=s3a://")).json()["home_directory"] == "s3a://"


async def test_views_report_trash_apps_and_managed_directories(tmp_path, shared_database_dsn, cluster):
    settings = storage_settings(
        tmp_path, shared_database_dsn, managed_prefixes=["/warehouse", "hdfs://nn1/managed/"], show_upload_button=False
    )
    cluster.tree.make_container("warehouse/db/t")
    cluster.tree.make_container("managed/x")
    cluster.tree.make_container("warehouses")
    async with open_api(with_ozone(settings), builders({**memory_stores(), Scheme.HDFS: cluster})) as api:
        caller = await alone(api, "filebrowser.s3_access")
        root = (await caller.get("storage/view=/")).json()
        assert (root["is_trash_enabled"], root["apps"], root["show_upload_button"]) == (
            True, ["editor", "filebrowser"], False,
        )  # fmt: skip
        assert [entry["is_sentry_managed"] for entry in root["files"]] == [False] * 4
        inner = (await caller.get("storage/view=/warehouse/db")).json()
        assert (inner["is_sentry_managed"], inner["files"][2]["is_sentry_managed"]) == (True, True)
        inner = (await caller.get("storage/view=/managed")).json()
        assert [entry["is_sentry_managed"] for entry in inner["files"]] == [False, False, True]
        assert not (await caller.get("storage/view=s3a://")).json()["is_trash_enabled"]


ODD_NAME = "a ?#%é日本.txt"


@dataclass(frozen=True, slots=True)
class Lake:
    """An application, and the storage account of its store `abfs`."""

    api: Api
    account: DfsServer


@pytest.fixture(scope="module")
async def lake(tmp_path_factory: pytest.TempPathFactory, shared_database_dsn: str) -> AsyncIterator[Lake]:
    async with dfs_server() as account:
        account.trees["lake"] = Tree()
        without = storage_settings(tmp_path_factory.mktemp("lake"), shared_database_dsn)
        cluster = {
            "fs_defaultfs": "abfs://lake@standinaccount.dfs.core.windows.net",
            "webhdfs_url": account.address.url,
        }
        azure = {
            "abfs_clusters": {"default": cluster},
            "azure_accounts": {"default": {"account_key": account.access.key}},
        }
        settings = without.model_copy(update={"azure": AzureSettings.model_validate(azure)})
        async with open_api(settings) as api:
            yield Lake(api, account)


@pytest.mark.storage(13)
async def test_all_store_aliases_address_the_same_path(lake: Lake) -> None:
    ana = await lake.api.user("ana")
    assert (await ana.post("storage/mkdir", path="abfs://lake/thirteen")).status_code == 201
    told = [
        (await ana.get("storage/stat", path=path)).json()
        for path in (
            *("abfs://lake/thirteen", "adls://lake/thirteen", "ABFSS://lake/thirteen", "adl:/lake/thirteen"),
            "abfs://lake@standinaccount.dfs.core.windows.net/thirteen",
        )
    ]
    assert [body["path"] for body in told] == ["abfs://lake/thirteen"] * 5
    assert all(body == told[0] for body in told)
    other = await ana.get("storage/stat", path="abfs://lake@elsewhere.dfs.core.windows.net/thirteen")
    assert (other.status_code, other.json()["code"]) == (400, "unknown_authority")


@pytest.mark.storage(17)
async def test_unusual_name_is_accepted_by_every_call(lake: Lake) -> None:
    ana, directory = await lake.api.user("ana"), "abfs://lake/odd"
    assert (await ana.post("storage/mkdir", path=directory)).status_code == 201
    assert (await ana.post("storage/touch", path=directory, name=ODD_NAME)).status_code == 201
    saved = await ana.post("storage/save", path=f"{directory}/{ODD_NAME}", contents="é日本\n")
    assert (saved.status_code, saved.json()["size"]) == (200, len("é日本\n".encode()))
    listed = (await ana.get("storage/list", path=directory)).json()["files"]
    assert [(entry["name"], entry["rwx"]) for entry in listed] == [(ODD_NAME, "-rw-r--r--")]
    assert (await ana.post("storage/chmod", path=f"{directory}/{ODD_NAME}", mode="640")).json()["mode"] == "100640"
    renamed = await ana.post("storage/rename", source_path=f"{directory}/{ODD_NAME}", destination_path="b ?#%é.txt")
    assert (renamed.status_code, renamed.json()["path"]) == (200, f"{directory}/b ?#%é.txt")
    files = {"file": (ODD_NAME, b"uploaded")}
    uploaded = await ana.send("POST", "storage/upload/file", params={"destination_path": directory}, files=files)
    assert (uploaded.status_code, uploaded.json()["path"]) == (200, f"{directory}/{ODD_NAME}")
    downloaded = await ana.get("storage/download", path=f"{directory}/{ODD_NAME}")
    assert (downloaded.status_code, downloaded.content) == (200, b"uploaded")
    for name in (ODD_NAME, "b ?#%é.txt"):
        assert (await ana.post("storage/delete", path=f"{directory}/{name}")).json()["trashed"] is False
    assert (await ana.get("storage/list", path=directory)).json()["files"] == []


async def test_containers_form_the_root_and_cannot_be_created(lake: Lake) -> None:
    ana = await lake.api.user("ana")
    listed = (await ana.get("storage/list", path="abfs://")).json()["files"]
    assert [entry["path"] for entry in listed] == ["abfs://lake"]
    refused = await ana.post("storage/mkdir", path="abfs://another")
    assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")


@pytest.mark.storage(79, 80, 93)
async def test_unsupported_account_operations_return_501(lake: Lake) -> None:
    ana = await lake.api.user("ana")
    assert (await ana.post("storage/mkdir", path="abfs://lake/d501")).status_code == 201
    before = len(lake.account.calls)
    for path, fields in (
        ("storage/chmod", {"mode": "700", "recursive": "true"}),
        ("storage/set_replication", {"replication_factor": "2"}),
        ("storage/trash/restore", {}),
        ("storage/delete", {"skip_trash": "false"}),
    ):
        refused = await ana.post(path, path="abfs://lake/d501", **fields)
        assert refused.status_code == 501, path
        assert refused.json()["code"] in {"not_supported", "trash_not_supported"}
    summary = await ana.get("storage/content_summary", path="abfs://lake/d501")
    assert summary.status_code == 501
    assert all(call.startswith("HEAD ") for call in lake.account.calls[before:])


@pytest.mark.storage(9, 10)
@pytest.mark.security("S13")
async def test_invalid_account_key_returns_502_and_leaks_no_account_details(lake: Lake) -> None:
    ana, key = await lake.api.user("ana"), lake.account.access.key
    lake.account.access.key = "b3RoZXI="
    try:
        answer = await ana.get("storage/stat", path="abfs://lake/x")
    finally:
        lake.account.access.key = key
    assert (answer.status_code, answer.json()["code"]) == (502, "storage_error")
    for word in ("standinaccount", "127.0.0.1", key, "RequestId"):
        assert word not in answer.text
