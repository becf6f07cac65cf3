"""The calls of files over Azure storage: a hierarchical account on our stand-in of it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from tests.api.driving import Api, open_api
from tests.api.storage.conftest import storage_settings
from tests.engines.standin_dfs import DfsServer, dfs_server
from tests.engines.standin_dfs.tree import Tree

from queryserver.platform.settings.stores import AzureSettings

ODD_NAME = "a ?#%é日本.txt"


@dataclass(frozen=True, slots=True)
class Lake:
    """The application, and the account that its store `abfs` is."""

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
async def test_all_names_of_the_store_mean_the_same_path(lake: Lake) -> None:
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
async def test_an_odd_name_lives_through_all_calls(lake: Lake) -> None:
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
    assert (uploaded.status_code, uploaded.json()["path"]) == (201, f"{directory}/{ODD_NAME}")
    downloaded = await ana.get("storage/download", path=f"{directory}/{ODD_NAME}")
    assert (downloaded.status_code, downloaded.content) == (200, b"uploaded")
    for name in (ODD_NAME, "b ?#%é.txt"):
        assert (await ana.post("storage/delete", path=f"{directory}/{name}")).json()["trashed"] is False
    assert (await ana.get("storage/list", path=directory)).json()["files"] == []


async def test_containers_are_the_root_and_are_not_made_here(lake: Lake) -> None:
    ana = await lake.api.user("ana")
    listed = (await ana.get("storage/list", path="abfs://")).json()["files"]
    assert [entry["path"] for entry in listed] == ["abfs://lake"]
    refused = await ana.post("storage/mkdir", path="abfs://another")
    assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")


@pytest.mark.storage(79, 80, 93)
async def test_what_the_account_has_not_is_501(lake: Lake) -> None:
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
async def test_a_wrong_key_of_ours_is_502_and_tells_nothing_of_the_account(lake: Lake) -> None:
    ana, key = await lake.api.user("ana"), lake.account.access.key
    lake.account.access.key = "b3RoZXI="
    try:
        answer = await ana.get("storage/stat", path="abfs://lake/x")
    finally:
        lake.account.access.key = key
    assert (answer.status_code, answer.json()["code"]) == (502, "storage_error")
    for word in ("standinaccount", "127.0.0.1", key, "RequestId"):
        assert word not in answer.text
