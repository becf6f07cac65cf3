"""Connector commands that run while a server is running, and examples/install (Contract platform 5.9, 12)."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.api.conftest import ApiOpener
from tests.api.connectors.driving import ConnectorAdmin, by_name, listed
from tests.api.driving import Api, Caller
from tests.unit.cli.test_commands import CommandOutput, command_in

Command = Callable[..., Awaitable[CommandOutput]]
_OLD_KEY = "k7Qm2vX9pLw4Rt8Zb3Nc6Yf1Hs5Jd0Ge"
_NEW_KEY = "a9Zk4bV7nQw2Xt6Mc1Lp8Rf3Gs0Hd5Ye"


@pytest.fixture
async def served(small_api: ApiOpener) -> AsyncIterator[Api]:
    async with small_api() as api:
        yield api


@pytest.fixture
def environ(tmp_path: Path, database_dsn: str) -> dict[str, str]:
    """Environment variables of a command that uses the running server's database."""
    return {
        "QUERYSERVER__DESKTOP__DATABASE__URL": database_dsn,
        "QUERYSERVER__DESKTOP__SECRET_KEY": _OLD_KEY,
        "QUERYSERVER__DESKTOP__CONNECTOR_POLICY__ALLOW_SERVICE_DATABASE_SERVER": "true",
        "QUERYSERVER_DATA_DIR": str(tmp_path / "data"),
    }


@pytest.fixture
def command(tmp_path: Path, environ: dict[str, str]) -> Command:
    """The command-line program with the server's secret key."""
    return command_in(tmp_path, **environ)


@pytest.mark.security("T9")
async def test_connectors_are_listed_exported_without_secrets_and_reimported(
    served: Api, command: Command, tmp_path: Path, users_url: str
) -> None:
    admin = await ConnectorAdmin.of(served)
    made = await admin.create("Shop", "postgresql", "sqlalchemy", url=users_url)
    shown = await command("connector", "list")
    header = "ID\tNAME\tDIALECT\tINTERFACE\tSTATE\tGROUPS\n"
    assert shown == CommandOutput(0, f"{header}1\tShop\tpostgresql\tsqlalchemy\truns\tdefault\n", "")
    exported = await command("connector", "export")
    assert exported.code == 0
    assert "planted-secret" not in exported.out
    connectors: list[dict[str, Any]] = json.loads(exported.out)
    assert by_name(connectors[0]) == by_name(made)
    connectors[0]["description"] = "Imported"
    new = {"nice_name": "Memory", "dialect": "sqlite", "interface": "sqlite", "settings": []}
    file = tmp_path / "connectors.json"
    file.write_text(json.dumps([*connectors, new]))
    imported = await command("connector", "import", str(file))
    assert (imported.code, imported.out) == (0, "Changed 1 Shop\nCreated 2 Memory\n")
    assert (await admin.shown("1"))["description"] == "Imported"
    ana = await served.user("ana")
    assert (await ana.result("1", "SELECT 1"))["data"] == [[1]]
    assert (await ana.result("2", "SELECT 2"))["data"] == [[2]]


async def test_import_follows_the_update_rules_and_reports_failures(served, command, tmp_path):
    admin = await ConnectorAdmin.of(served)
    file = tmp_path / "connectors.json"
    moved = {"nice_name": "Moved", "dialect": "mysql", "interface": "sqlalchemy"}
    bad = [
        {**moved, "settings": listed({"url": "mysql://u:********@h/d"})},
        {**moved, "settings": listed({"url": "sqlite:///x"})},
        {"id": "7", "nice_name": "Gone"},
        {"nice_name": "Good", "dialect": "sqlite", "interface": "sqlite"},
        {"nice_name": ["x"]},
    ]
    file.write_text(json.dumps({"connectors": bad}))
    ended = await command("connector", "import", str(file))
    assert (ended.code, ended.out) == (1, "Created 1 Good\n")
    assert len([line for line in ended.err.splitlines() if "queryserver.audit" not in line]) == 4
    assert [one["nice_name"] for one in await admin.instances()] == ["Good"]
    again = json.loads((await command("connector", "import", str(file), "--json")).out)
    seen = [one.get("error") for one in again]
    assert seen == ["secret_required", "driver_not_allowed", "connector_not_found", "name_taken", "invalid_parameter"]
    file.write_text("no json")
    assert (await command("connector", "import", str(file))).code == 2


@pytest.mark.security("T9")
async def test_former_keys_are_not_needed_after_rotation(served, command, tmp_path, environ, users_url):
    admin = await ConnectorAdmin.of(served)
    await admin.create("Shop", "postgresql", "sqlalchemy", url=users_url)
    ana = await served.user("ana")
    properties = [{"name": "user", "value": "api_tests"}, {"name": "password", "value": "planted-secret"}]
    session = {"type": "login", "properties": properties}
    assert (await ana.post("editor/create_session", session=json.dumps(session))).status_code == 200
    new_only = command_in(tmp_path, **{**environ, "QUERYSERVER__DESKTOP__SECRET_KEY": _NEW_KEY})
    both = command_in(
        tmp_path,
        **{
            **environ,
            "QUERYSERVER__DESKTOP__SECRET_KEY": _NEW_KEY,
            "QUERYSERVER__DESKTOP__SECRET_KEY_FALLBACKS": _OLD_KEY,
        },
    )
    assert (await new_only("connector", "list")).code == 3
    rotated = await both("rotate-keys", "--json")
    assert rotated.code == 0, rotated.err
    counts = json.loads(rotated.out)
    assert (counts["connectors"], counts["lost"]) == (1, 0)
    assert counts["others"] >= 1
    exported = json.loads((await new_only("connector", "export")).out)
    assert by_name(exported[0])["url"] == users_url.replace("planted-secret", "********")
    # The stored secrets can no longer be decrypted with the previous key.
    assert (await command("rotate-keys")).code == 3


async def install(caller: Caller) -> dict[str, Any]:
    response = await caller.post("connector/examples/install")
    assert response.status_code == 200, response.text
    return response.json()


def tables(url: str = "https://lake", **more: Mapping[str, Any]) -> dict[str, Any]:
    lake = {"nice_name": "Lake", "dialect": "trino", "interface": "trino", "settings": {"url": url, "password": "x"}}
    local = {"dialect": "duckdb", "interface": "duckdb", "groups": ("analysts",)}
    return {"connectors": {"lake": lake, "local": local, **more}}


@pytest.mark.platform(76)
async def test_install_without_tables_adds_two_in_memory_databases(small_api: ApiOpener) -> None:
    async with small_api() as api:
        admin = await ConnectorAdmin.of(api)
        first = await install(admin.caller)
        assert first == {
            "status": 0,
            "message": "Added connectors: DuckDB (in memory) (duckdb), SQLite (in memory) (sqlite)",
            "added": ["1", "2"],
            "updated": [],
            "unchanged": [],
        }
        before = await admin.instances()
        second = await install(admin.caller)
        text = "Already installed connectors: DuckDB (in memory) (duckdb), SQLite (in memory) (sqlite)"
        assert second == {"status": 0, "message": text, "added": [], "updated": [], "unchanged": ["1", "2"]}
        assert await admin.instances() == before
        assert (await (await api.user("ana")).result("2", "SELECT 1 AS one"))["data"] == [[1]]


@pytest.mark.platform(76)
async def test_install_updates_changed_settings_and_keeps_edited_connectors(small_api: ApiOpener) -> None:
    async with small_api(desktop=tables()) as api:
        await api.user("ana", groups=("analysts",))
        admin = await ConnectorAdmin.of(api)
        first = await install(admin.caller)
        assert first["message"] == "Added connectors: Lake (trino), local (duckdb)"
        local = await admin.shown("2")
        assert (local["nice_name"], local["groups"]) == ("local", ["analysts"])
        assert (await admin.shown("1"))["groups"] == ["default"]
    shop = {"nice_name": "Shop", "dialect": "mysql", "interface": "sqlalchemy", "settings": {"url": "mysql://u:p@h/d"}}
    async with small_api(desktop=tables("https://other", shop=shop)) as api:
        admin = await ConnectorAdmin.of(api)
        second = await install(admin.caller)
        assert second == {
            "status": 0,
            "message": "Added connectors: Shop (mysql). Updated connectors: Lake (trino). "
            "Already installed connectors: local (duckdb)",
            "added": ["3"],
            "updated": ["1"],
            "unchanged": ["2"],
        }
        lake = await admin.shown("1")
        assert (by_name(lake)["url"], lake["version"]) == ("https://other", 2)
        await admin.send({"id": "1", "settings": listed({"url": "https://mine"})})
    async with small_api(desktop=tables("https://third")) as api:
        admin = await ConnectorAdmin.of(api)
        third = await install(admin.caller)
        assert (third["updated"], third["unchanged"]) == ([], ["1", "2"])
        assert by_name(await admin.shown("1"))["url"] == "https://mine"


@pytest.mark.platform(76)
async def test_install_updates_a_changed_password(small_api: ApiOpener) -> None:
    def shop(password: str) -> dict[str, Any]:
        table = {"dialect": "mysql", "interface": "sqlalchemy", "settings": {"url": f"mysql://u:{password}@h/d"}}
        return {"connectors": {"shop": table}}

    async with small_api(desktop=shop("one")) as api:
        assert (await install((await ConnectorAdmin.of(api)).caller))["added"] == ["1"]
    async with small_api(desktop=shop("two")) as api:
        caller = (await ConnectorAdmin.of(api)).caller
        assert (await install(caller))["updated"] == ["1"]
        assert (await install(caller))["unchanged"] == ["1"]


@pytest.mark.platform(76)
async def test_install_keeps_an_unrelated_connector_with_the_same_name(small_api: ApiOpener) -> None:
    async with small_api(desktop=tables()) as api:
        await api.user("ana", groups=("analysts",))
        admin = await ConnectorAdmin.of(api)
        mine = await admin.create("LAKE", "sqlite", "sqlite")
        done = await install(admin.caller)
        assert (done["unchanged"], done["updated"]) == ([mine["id"]], [])
        assert await admin.shown(mine["id"]) == mine


@pytest.mark.platform(76)
async def test_one_invalid_table_prevents_the_whole_install(small_api: ApiOpener) -> None:
    bad = {
        "one": {"dialect": "mysql", "interface": "sqlalchemy", "settings": {"url": "sqlite:///planted-secret"}},
        "two": {"dialect": "hive", "interface": "livy"},
        "three": {"nice_name": "LAKE", "dialect": "sqlite", "interface": "sqlite"},
        "four": {"dialect": "sqlite", "interface": "sqlite", "settings": {"color": "red", "read_only": False}},
    }
    async with small_api(desktop=tables(**bad)) as api:
        await api.user("ana", groups=("analysts",))
        admin = await ConnectorAdmin.of(api)
        response = await admin.caller.post("connector/examples/install")
        assert (response.status_code, response.json()["code"]) == (400, "validation_failed")
        assert set(response.json()["errors"]) == set(bad)
        assert await admin.instances() == []


@pytest.mark.platform(76)
async def test_unknown_group_prevents_the_whole_install(small_api: ApiOpener) -> None:
    bad = {"last": {"dialect": "sqlite", "interface": "sqlite", "groups": ("nosuch",)}}
    async with small_api(desktop=tables(**bad)) as api:
        await api.user("ana", groups=("analysts",))
        admin = await ConnectorAdmin.of(api)
        response = await admin.caller.post("connector/examples/install")
        assert (response.status_code, response.json()["code"]) == (400, "validation_failed")
        assert set(response.json()["errors"]) == {"last"}
        assert "nosuch" in response.json()["errors"]["last"][0]
        assert await admin.instances() == []
