"""filesystems: which stores a caller has, and what of a cluster is told (Contract storage 5.1)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.api.driving import Api, Caller, open_api
from tests.api.storage.conftest import storage_settings
from tests.api.storage.worlds import World, builders, memory_stores, with_ozone
from tests.cases import each
from tests.fakes.storage import MemoryCluster

from queryserver.errors.base import PermissionDenied, QueryServerError
from queryserver.errors.files import StorageError, StorageUnavailable
from queryserver.files.model import ClusterFacts, Scheme, StorageUser
from queryserver.files.protocol import StorageTraits
from queryserver.identity.repository import AccountRepository

ALL_STORES = ["hdfs", "s3a", "abfs", "ofs", "file"]
RIGHTS = {
    "s3a": "filebrowser.s3_access",
    "abfs": "filebrowser.abfs_access",
    "ofs": "filebrowser.ofs_access",
    "file": "filebrowser.file_access",
}
ROOTS = {"hdfs": "/", "s3a": "s3a://", "abfs": "abfs://", "ofs": "ofs://", "file": "file:///"}


class ScriptedCluster(MemoryCluster):
    """A cluster whose superusers are known; it can be late or fail."""

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
    """An application with all five stores."""
    settings = storage_settings(tmp_path, shared_database_dsn, remote_storage_home="s3a://lake/user/${USER}")
    stores = {**memory_stores(), Scheme.HDFS: cluster}
    async with open_api(with_ozone(settings), builders(stores)) as opened:
        yield opened


async def told(caller: Caller) -> list[dict[str, Any]]:
    answer = await caller.get("storage/filesystems")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def alone(api: Api, *rights: str) -> Caller:
    """A user in no group but one with these rights."""
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


@pytest.mark.storage(19)
async def test_every_store_is_told_with_home_and_config(api: Api) -> None:
    ana = await api.user("ana")
    entries = await told(ana)
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
    assert [entry["config"] for entry in entries[1:]] == [{}] * 4


@pytest.mark.storage(19)
async def test_all_names_are_for_superusers_of_hdfs_only(api: Api, cluster: ScriptedCluster) -> None:
    ana, admin = await api.user("ana", groups=("analysts",)), await api.user("admin", admin=True)
    cluster.superusers.add(ana.username)
    config = (await told(ana))[0]["config"]
    assert config["is_hdfs_superuser"]
    assert {ana.username, admin.username} <= {*config["users"]}
    assert {"analysts", "default"} <= {*config["groups"]}
    config = (await told(admin))[0]["config"]
    assert (config["is_hdfs_superuser"], config["users"], config["groups"]) == (False, [], [])
    seen = (await ana.get("storage/view=/")).json()
    assert (seen["is_fs_superuser"], seen["superuser"], seen["supergroup"]) == (True, "hdfs", "supergroup")
    assert {ana.username, admin.username} <= {*seen["users"]}
    assert "analysts" in seen["groups"]


@pytest.mark.storage(20)
@each("scheme", RIGHTS)
async def test_without_its_right_a_store_is_neither_told_nor_opened(api: Api, scheme: str) -> None:
    others = [right for name, right in RIGHTS.items() if name != scheme]
    caller = await alone(api, *others, "download")
    assert [entry["name"] for entry in await told(caller)] == [name for name in ALL_STORES if name != scheme]
    answers = [
        await caller.get(f"storage/{call}={ROOTS[scheme]}service")
        for call in ("view", "stat", "download", "content_summary")
    ]
    answers += [await caller.get(f"storage/{call}", path=ROOTS[scheme]) for call in ("list", "display", "stat")]
    answers.append(await caller.post("storage/mkdir", path=f"{ROOTS[scheme]}service/y"))
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (403, "storage_access_denied"), answer.url


async def test_hdfs_decides_itself_and_administrators_have_all(api: Api) -> None:
    assert [entry["name"] for entry in await told(await alone(api))] == ["hdfs"]
    assert len(await told(await api.user("admin", admin=True))) == 5


@pytest.mark.storage(21)
@each(
    ("late_s", "failure"),
    [(60, None), (0, StorageUnavailable("No answer.")), (0, StorageError("Odd.")), (0, PermissionDenied("Not you."))],
)
async def test_a_cluster_that_does_not_answer_fails_nothing(
    api: Api, cluster: ScriptedCluster, late_s: float, failure: QueryServerError | None
) -> None:
    cluster.late_s, cluster.failure = late_s, failure
    ana = await api.user("ana")
    clock = asyncio.get_running_loop().time
    started = clock()
    entries = await told(ana)
    assert clock() - started < 3
    assert [entry["name"] for entry in entries] == ALL_STORES
    assert entries[0]["config"] == {
        "is_trash_enabled": False, "is_hdfs_superuser": False, "groups": [], "users": [], "superuser": None,
        "supergroup": None,
    }  # fmt: skip
    cluster.late_s, cluster.failure = 0, None
    assert (await told(ana))[0]["config"]["superuser"] == "hdfs"


async def test_facts_of_a_cluster_are_asked_once_for_each_user(api: Api, cluster: ScriptedCluster) -> None:
    ana, bob = await api.user("ana"), await api.user("bob")
    for caller in (ana, ana, bob, ana):
        await told(caller)
        await caller.get("storage/view=/")
    assert cluster.asked == 2


@pytest.mark.storage(95)
async def test_an_administrator_is_told_the_stores_as_another(api: Api) -> None:
    admin = await api.user("admin", admin=True)
    entries = (await admin.get("storage/filesystems", doas="carol")).json()
    assert entries[0]["user_home_directory"] == "/user/carol"


async def test_a_server_without_stores_tells_none(tmp_path: Path, shared_database_dsn: str) -> None:
    settings = storage_settings(tmp_path, shared_database_dsn)
    async with open_api(settings, {}) as api:
        ana = await api.user("ana")
        assert await told(ana) == []
        answer = await ana.get("storage/list", path="/")
        assert (answer.status_code, answer.json()["code"]) == (400, "storage_not_configured")
        assert answer.json()["message"] == "This server has no file store. Configured: nothing that you may use."


async def test_an_unknown_scheme_names_those_that_the_caller_may_use(api: Api) -> None:
    ana = await api.user("ana")
    usable = {one["name"] for one in await told(ana)}
    for answer in (await ana.get("storage/list", path="gs://b/x"), await ana.get("storage/stat=gs://b/x")):
        body = answer.json()
        assert body["code"] == "unknown_scheme", body
        shown = body["message"].partition("Configured: ")[2].removesuffix(".")
        assert set(shown.split(", ")) == usable


async def test_the_home_of_a_view_is_null_until_it_is_there(world: World) -> None:
    ana = await world.api.user("ana")
    assert (await ana.get("storage/view=/")).json()["home_directory"] is None
    world.memory[Scheme.HDFS].tree.make_container(f"user/{ana.username}")
    assert (await ana.get("storage/view=/")).json()["home_directory"] == f"/user/{ana.username}"
    assert (await ana.get("storage/view=s3a://")).json()["home_directory"] == "s3a://"


async def test_trash_apps_and_managed_directories_are_told(
    tmp_path: Path, shared_database_dsn: str, cluster: ScriptedCluster
) -> None:
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
