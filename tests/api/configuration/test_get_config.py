"""Tests for get_config, contexts and the optimizer (Contract platform 7.1 to 7.3, 7.8)."""

from typing import Any
from uuid import UUID

import pytest
from tests.api.configuration.conftest import Opener
from tests.api.driving import Api, Caller

from queryserver import __version__

KEYS = (
    "app_config", "main_button_action", "button_actions", "default_sql_interpreter", "cluster_type", "has_computes",
    "vw_name", "img_version", "hue_version", "svc_config", "hue_config", "storage_browser", "importer", "clusters",
    "documents", "username", "status",
)  # fmt: skip

FLAGS = {
    "is_admin", "is_yarn_enabled", "enable_task_server", "enable_workflow_creation_action",
    "allow_sample_data_from_views", "enable_sharing", "collect_usage",
}  # fmt: skip

THREE = """
[notebook.interpreters.duck]
interface = "duckdb"
dialect = "duckdb"
name = "Duck"
[notebook.interpreters.lite]
interface = "sqlite"
dialect = "sqlite"
[notebook.interpreters.vault]
interface = "sqlite"
dialect = "sqlite"
groups = "analysts"
"""


async def get_config(caller: Caller) -> dict[str, Any]:
    """Return the get_config response. `Caller` checks its shape against the API tables."""
    return await caller.post_ok("get_config")


@pytest.mark.platform(82)
async def test_editor_is_the_main_action_without_interpreters(open_with: Opener) -> None:
    async with open_with() as api:
        found = await get_config(await api.user())
    assert tuple(found) == KEYS
    editor = found["app_config"]["editor"]
    assert (editor["interpreters"], editor["interpreter_names"], editor["page"]) == ([], [], "/editor/")
    assert found["main_button_action"] == editor
    assert found["button_actions"] == [editor]
    assert found["default_sql_interpreter"] == editor["default_sql_interpreter"] == ""
    assert found["app_config"]["catalogs"] == []
    assert "scheduler" not in found["app_config"]
    assert found["app_config"]["home"] == {
        "name": "home", "displayName": "Home", "buttonName": "Documents", "interpreters": [], "page": "/home",
    }  # fmt: skip
    assert found["documents"] == {"types": ["directory"]}
    assert (found["vw_name"], found["img_version"], found["hue_version"]) == ("", __version__, "4.11.0")
    assert (found["cluster_type"], found["has_computes"], found["status"]) == ("direct", False, 0)


@pytest.mark.platform(82)
async def test_configured_interpreters_are_listed_in_order_with_their_flags(open_with: Opener) -> None:
    async with open_with(THREE) as api:
        found = await get_config(await api.user())
    editor = found["app_config"]["editor"]
    assert editor["interpreter_names"] == ["duck", "lite"]
    first = editor["interpreters"][0]
    flags = first.pop("dialect_properties")
    assert first == {
        "name": "Duck", "type": "duck", "id": "duck", "displayName": "Duck", "buttonName": "Query",
        "tooltip": "Duckdb Query", "optimizer": "off", "page": "/editor/?type=duck", "is_sql": True,
        "is_batchable": True, "dialect": "duckdb",
    }  # fmt: skip
    assert len(flags) == 13
    assert flags["has_catalog"] is True
    assert flags["sql_identifier_quote"] == '"'
    assert editor["default_limit"] == 5000
    assert found["main_button_action"]["type"] == found["default_sql_interpreter"] == "duck"
    assert [entry["type"] for entry in found["app_config"]["catalogs"]] == ["duck", "lite"]
    assert found["app_config"]["catalogs"][1] == {
        "name": "lite", "type": "lite", "id": "lite", "displayName": "lite", "buttonName": "Query",
        "tooltip": "Sqlite Query", "page": "/editor/?type=lite", "is_sql": True, "is_catalog": True,
    }  # fmt: skip


@pytest.mark.platform(82)
async def test_callers_see_only_interpreters_granted_to_their_groups(open_with: Opener) -> None:
    async with open_with(THREE) as api:
        analyst, admin = await api.user(groups=("analysts",)), await api.user(admin=True)
        assert "vault" in (await get_config(analyst))["app_config"]["editor"]["interpreter_names"]
        assert "vault" in (await get_config(admin))["app_config"]["editor"]["interpreter_names"]


@pytest.mark.platform(82, 85)
async def test_wheel_interpreters_come_first_and_unknown_names_are_skipped(open_with: Opener) -> None:
    wheel = '[notebook]\ninterpreters_shown_on_wheel = "nope, LITE, 77"\n'
    async with open_with(wheel + THREE) as api:
        editor = (await get_config(await api.user()))["app_config"]["editor"]
    assert editor["interpreter_names"] == ["lite", "duck"]


@pytest.mark.platform(82)
@pytest.mark.parametrize("named", ["lite", "Light", "LITE"])
async def test_default_interpreter_is_the_main_action(open_with: Opener, named: str) -> None:
    toml = f'[notebook]\ndefault_interpreter = "{named}"\n' + THREE.replace("sqlite", 'sqlite"\nname = "Light', 1)
    async with open_with(toml) as api:
        found = await get_config(await api.user())
    assert found["main_button_action"]["type"] == found["default_sql_interpreter"] == "lite"
    assert found["app_config"]["editor"]["default_sql_interpreter"] == "duck"


async def runs_in(caller: Caller, path: str, **fields: Any) -> str:
    """Run a statement; return the key of the interpreter that ran it."""
    done = await caller.post_ok(path, statement="select 1", wait=60, **fields)
    assert done["query_status"]["state"] == "available", done
    operation = UUID(done["history_uuid"])
    return await caller.api.database.value("select connector from statements where id = $1", operation)


@pytest.mark.platform(82)
@pytest.mark.parametrize(
    ("notebook", "main", "first"),
    [
        ('default_interpreter = "LIGHT"', "lite", "duck"),
        ('default_interpreter = "Lite"\ninterpreters_shown_on_wheel = "duck"', "lite", "duck"),
        ('interpreters_shown_on_wheel = "nope, LITE, 77"', "lite", "lite"),
        ('default_interpreter = "Spare"', "duck", "duck"),
        ("", "duck", "duck"),
    ],
)
async def test_call_without_an_interpreter_uses_the_main_interpreter(open_with, notebook, main, first):
    named = THREE.replace("sqlite", 'sqlite"\nname = "Light', 1) + 'name = "Spare"\n'
    async with open_with(f"[notebook]\n{notebook}\n{named}") as api:
        ana = await api.user()
        found = await get_config(ana)
        assert found["main_button_action"]["type"] == found["default_sql_interpreter"] == main
        assert found["app_config"]["editor"]["interpreter_names"][0] == first
        assert await runs_in(ana, "editor/execute") == main
        assert await runs_in(ana, "editor/execute", snippet="{}") == main
        assert await runs_in(await api.user("analyst", groups=("analysts",)), "editor/execute") == (
            "vault" if "Spare" in notebook else main
        )


@pytest.mark.platform(82)
async def test_dialect_resolves_to_its_first_listed_interpreter(open_with: Opener) -> None:
    toml = '[notebook]\ninterpreters_shown_on_wheel = "vault, second"\n' + THREE
    toml += '[notebook.interpreters.second]\ninterface = "sqlite"\ndialect = "sqlite"\n'
    async with open_with(toml) as api:
        ana, analyst = await api.user("ana"), await api.user("analyst", groups=("analysts",))
        for caller, names in ((ana, ["second", "duck", "lite"]), (analyst, ["vault", "second", "duck", "lite"])):
            assert (await get_config(caller))["app_config"]["editor"]["interpreter_names"] == names
            assert await runs_in(caller, "editor/execute/sqlite") == names[0]
            assert await runs_in(caller, "editor/execute", snippet='{"type": "SQLite"}') == names[0]
            assert await runs_in(caller, "editor/execute/lite") == "lite"


@pytest.mark.platform(83)
async def test_service_and_caller_flags_are_equal_in_svc_config_and_hue_config(open_with: Opener) -> None:
    toml = "[desktop]\nenable_sharing = false\n[editor]\nsample_views = false\n"
    async with open_with(toml) as api:
        callers = [await api.user(), await api.user(admin=True), await api.user(groups=("bosses",))]
        await api.database.execute("insert into group_rights select id, 'admin' from groups where name = 'bosses'")
        answers = [await get_config(caller) for caller in callers]
    for found in answers:
        assert found["svc_config"] == found["hue_config"]
        assert set(found["svc_config"]) == FLAGS
        assert found["clusters"] == [{"id": "default", "name": "default", "type": "direct", "credentials": {}}]
    assert [found["svc_config"]["is_admin"] for found in answers] == [False, True, True]
    assert answers[0]["svc_config"]["enable_sharing"] is False
    assert answers[0]["svc_config"]["allow_sample_data_from_views"] is False


@pytest.mark.platform(82)
async def test_store_and_importer_limits_come_from_the_settings(open_with: Opener) -> None:
    toml = """
[filebrowser]
restrict_file_extensions = ".exe, .bat"
file_upload_chunk_size = 1024
concurrent_max_connections = 3
max_file_editor_size = 7
[importer]
restrict_local_file_extensions = ".zip"
max_local_file_size_upload_limit = 99
"""
    async with open_with(toml) as api:
        found = await get_config(await api.user())
    assert found["storage_browser"] == {
        "enable_chunked_file_upload": True, "enable_new_storage_browser": False,
        "restrict_file_extensions": [".exe", ".bat"], "concurrent_max_connection": 3, "file_upload_chunk_size": 1024,
        "enable_file_download_button": True, "max_file_editor_size": 7, "enable_extract_uploaded_archive": False,
    }  # fmt: skip
    assert found["importer"] == {
        "is_enabled": True, "restrict_local_file_extensions": [".zip"], "max_local_file_size_upload_limit": 99,
    }  # fmt: skip


@pytest.mark.platform(82)
async def test_only_configured_and_permitted_browsers_are_listed_with_the_callers_home(open_with, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    toml = f"""
[filebrowser]
local_root = "{root}"
[aws.aws_accounts.default]
access_key_id = "k"
secret_access_key = "s"
default_home_path = "s3a://lake/${{USER}}"
[hadoop.hdfs_clusters.default]
webhdfs_url = "http://localhost:1/webhdfs/v1"
[hadoop.yarn_clusters.default]
resourcemanager_api_url = "http://localhost:2"
"""
    async with open_with(toml + THREE) as api:
        ana = await api.user("ana")
        browser = (await get_config(ana))["app_config"]["browser"]
        assert browser["interpreter_names"] == ["hdfs", "s3", "file", "tables", "yarn", "importer"]
        assert [entry["page"] for entry in browser["interpreters"]][:3] == [
            f"/filebrowser/view=%2Fuser%2F{ana.username}",
            f"/filebrowser/view=s3a%3A%2F%2Flake%2F{ana.username}",
            f"/filebrowser/view=file%3A%2F%2F%2Fuser%2F{ana.username}",
        ]
        assert browser["interpreters"][0] == {
            "type": "hdfs", "displayName": "Files", "buttonName": "Browse", "tooltip": "Files",
            "page": f"/filebrowser/view=%2Fuser%2F{ana.username}",
        }  # fmt: skip
        assert browser["interpreters"][-1]["buttonName"] == "Import"
        await api.database.execute("delete from group_rights where \"right\" in ('filebrowser.s3_access', 'importer')")
        found = await get_config(ana)
    assert found["app_config"]["browser"]["interpreter_names"] == ["hdfs", "file", "tables", "yarn"]
    assert found["importer"]["is_enabled"] is False


@pytest.mark.platform(82)
async def test_scheduler_is_listed_only_with_beat(open_with: Opener) -> None:
    toml = "[desktop.task_server]\nenabled = true\nbeat_enabled = true\n"
    async with open_with(toml) as api:
        found = await get_config(await api.user())
    scheduler = found["app_config"]["scheduler"]
    assert (scheduler["name"], scheduler["interpreter_names"]) == ("celery-beat", ["celery-beat"])
    assert [entry["type"] for entry in scheduler["interpreters"]] == ["celery-beat"]
    assert found["button_actions"] == [found["app_config"]["editor"], scheduler]
    assert list(found["app_config"]) == ["editor", "catalogs", "browser", "scheduler", "home"]
    assert found["svc_config"]["enable_task_server"] is True


@pytest.mark.platform(82)
async def test_document_types_come_from_the_callers_own_history(open_with: Opener) -> None:
    async with open_with(THREE) as api:
        ana, bob = await api.user("ana"), await api.user("bob")
        for dialect in ("lite", "duck", "lite"):
            await ana.run(dialect, "select 1")
        assert (await get_config(ana))["documents"] == {"types": ["directory", "query-duckdb", "query-sqlite"]}
        assert (await get_config(bob))["documents"] == {"types": ["directory"]}


CLUSTER = {"id": "default", "name": "default", "type": "direct", "credentials": {}}
NAMESPACE = {"id": "default", "name": "default", "status": "CREATED", "computes": [CLUSTER]}


def compute(interface: str) -> dict[str, Any]:
    return {
        "id": "default", "name": "default", "namespace": "default", "interface": interface, "type": "direct",
        "options": {},
    }  # fmt: skip


@pytest.mark.platform(86)
@pytest.mark.parametrize("interface", ["hive", "7070", "never_heard-of", "Status", "statusx"])
@pytest.mark.parametrize("prefix", ["context", "/desktop/api2/context"])
async def test_contexts_are_returned_under_the_requested_key(ana: Caller, prefix: str, interface: str) -> None:
    for kind, expected in (("namespaces", NAMESPACE), ("computes", compute(interface)), ("clusters", CLUSTER)):
        found = (await ana.get(f"{prefix}/{kind}/{interface}")).json()
        assert found == {interface: [expected], "status": 0}
    assert (await ana.get(f"get_namespaces/{interface}")).json() == {interface: [NAMESPACE], "status": 0}


@pytest.mark.platform(86)
@pytest.mark.parametrize("path", ["context/namespaces", "/desktop/api2/context/namespaces", "get_namespaces"])
async def test_invalid_interface_names_are_not_found(ana: Caller, path: str) -> None:
    for word in ("status", "status/", "a.b", "a%20b", "%C3%A4", ""):
        assert (await ana.get(f"{path}/{word}")).status_code == 404, word


@pytest.mark.platform(86)
async def test_hue_client_alias_requires_a_token(api: Api) -> None:
    for kind in ("namespaces", "computes", "clusters"):
        assert (await api.stranger.get(f"/desktop/api2/context/{kind}/hive")).status_code == 401
        assert (await api.stranger.get(f"context/{kind}/hive")).status_code == 401


@pytest.mark.parametrize("name", ["top_databases", "query_risk", "similar_queries", "predict"])
async def test_optimizer_is_not_supported(ana: Caller, name: str) -> None:
    assert await ana.refused(f"optimizer/{name}") == (501, -1, "not_supported")
    assert (await ana.post("optimizer/unknown")).status_code == 404
    assert (await ana.get(f"optimizer/{name}")).status_code == 405
