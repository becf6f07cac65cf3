"""doas on GET calls (Contract storage 2.1.7, S14)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.api.driving import Api, open_api
from tests.api.storage.conftest import storage_settings
from tests.api.storage.worlds import builders
from tests.cases import each
from tests.fakes.storage import LIKE_HDFS, MemoryFileSystem

from queryserver.files.model import Scheme
from queryserver.files.protocol import StorageTraits
from queryserver.identity.repository import AccountRepository

READING = ("view=/user/carol", "stat=/user/carol", "content_summary=/user/carol", "list?path=/user/carol",
           "stat?path=/user/carol")  # fmt: skip


@pytest.fixture(scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory, shared_database_dsn: str) -> AsyncIterator[Api]:
    """An HDFS in which carol has a home that nobody else may read, and a local root."""
    directory: Path = tmp_path_factory.mktemp("doas")
    traits = StorageTraits(lists_in_order=True, acts_as_user=True)
    hdfs = MemoryFileSystem(Scheme.HDFS, traits, LIKE_HDFS, private={"user/carol": "carol"})
    hdfs.tree.put("user/carol/a", b"x")
    async with open_api(storage_settings(directory, shared_database_dsn), builders({Scheme.HDFS: hdfs})) as opened:
        yield opened


@pytest.mark.storage(95)
@each("call", READING)
async def test_an_administrator_reads_as_another(api: Api, call: str) -> None:
    admin = await api.user("admin", admin=True)
    sign = "&" if "?" in call else "?"
    assert (await admin.send("GET", f"storage/{call}")).status_code == 403
    answer = await admin.send("GET", f"storage/{call}{sign}doas=carol")
    assert answer.status_code == 200, answer.text
    assert answer.json()["path"] == "/user/carol"


async def test_who_holds_the_right_reads_as_another(api: Api) -> None:
    await AccountRepository(api.database).ensure_group("proxies", ["security.impersonate"])
    proxy = await api.user("proxy", groups=("proxies",))
    answer = await proxy.get("storage/list", path="/user/carol", doas="carol")
    assert [entry["name"] for entry in answer.json()["files"]] == ["a"]


@pytest.mark.storage(95)
@pytest.mark.security("S14")
@each(("call", "operation"), [
    ("view=/user/carol", "storage.view"), ("list?path=/user/carol", "storage.list"),
    ("stat=/user/carol", "storage.stat"), ("content_summary?path=/user/carol", "storage.content_summary"),
    ("download=/user/carol", "storage.download"),
])  # fmt: skip
async def test_others_are_refused_and_leave_an_event(
    api: Api, call: str, operation: str, audited: list[dict[str, object]]
) -> None:
    ana = await api.user("ana")
    sign = "&" if "?" in call else "?"
    answer = await ana.send("GET", f"storage/{call}{sign}doas=carol")
    assert (answer.status_code, answer.json()["code"]) == (403, "impersonation_not_allowed")
    (event,) = audited
    audited.clear()
    assert event == {
        "operation": operation,
        "user": ana.username,
        "effective_user": "carol",
        "path": "/user/carol",
        "outcome": "impersonation_not_allowed",
    }


async def test_everybody_may_act_as_oneself(api: Api) -> None:
    ana = await api.user("ana")
    assert (await ana.get("storage/list", path="/", doas=ana.username)).status_code == 200
    assert (await ana.get("storage/list", path="/", doas="")).status_code == 200


@each("name", ["a b", "../x", "x/y", "x\\y", "x:y", " carol", "\uff43arol"])
async def test_what_is_no_user_name_is_refused(api: Api, name: str) -> None:
    admin = await api.user("admin", admin=True)
    answer = await admin.get("storage/list", path="/", doas=name)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_parameter")


async def test_an_administrator_who_acts_as_another_is_none_on_the_local_root(api: Api) -> None:
    admin, ana = await api.user("admin", admin=True), await api.user("ana")
    assert (await ana.get(f"storage/view=file:///user/{ana.username}")).status_code == 200
    own = f"file:///user/{ana.username}"
    assert (await admin.get("storage/list", path=own)).status_code == 200
    assert (await admin.get("storage/list", path=own, doas=ana.username)).status_code == 200
    answer = await admin.get("storage/list", path=own, doas="carol")
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")


@pytest.mark.storage(95)
@each("place", ["query", "form", "json"])
async def test_changing_calls_know_no_doas(api: Api, place: str) -> None:
    admin = await api.user("admin", admin=True)
    fields = {"path": "/user/carol/new"}
    match place:
        case "query":
            answer = await admin.send("POST", "storage/mkdir?doas=carol", data=fields)
        case "form":
            answer = await admin.post("storage/mkdir", **fields, doas="carol")
        case _:
            answer = await admin.post_json("storage/mkdir", **fields, doas="carol")
            absent = await admin.post_json("storage/mkdir", path="/no/../path", doas=None)
            assert absent.json()["code"] == "invalid_path"
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_parameter")
