"""Stored connectors in get_config: there at once, gone at once, and only what runs (Contract platform 7.1)."""

import json
from typing import Any
from uuid import UUID

import pytest
from tests.api.configuration.conftest import Opener
from tests.api.driving import Caller


async def create(admin: Caller, name: str, dialect: str, interface: str, **settings: Any) -> str:
    """The id of a new instance."""
    given = [{"name": key, "value": value} for key, value in settings.items()]
    asked = {"nice_name": name, "dialect": dialect, "interface": interface, "settings": given}
    return (await admin.told("connector/instance/update", connector=json.dumps(asked)))["connector"]["id"]


async def shown(caller: Caller) -> list[str]:
    """Keys and ids of the interpreters."""
    return (await caller.told("get_config"))["app_config"]["editor"]["interpreter_names"]


@pytest.mark.platform(82, 84)
async def test_a_new_connector_shows_at_once_and_a_revoked_one_is_gone(open_with: Opener) -> None:
    async with open_with('[notebook.interpreters.lite]\ninterface = "sqlite"\ndialect = "sqlite"\n') as api:
        ana, admin = await api.user("ana"), await api.user("admin", admin=True)
        first = await create(admin, "Scratch", "duckdb", "duckdb")
        second = await create(admin, "More", "sqlite", "sqlite")
        assert await shown(ana) == ["lite", first, second]
        found = await ana.told("get_config")
        entry = found["app_config"]["editor"]["interpreters"][1]
        assert (entry["name"], entry["dialect"], entry["tooltip"]) == ("Scratch", "duckdb", "Duckdb Query")
        assert entry["page"] == f"/editor/?type={first}"
        assert [one["type"] for one in found["app_config"]["catalogs"]] == ["lite", first, second]
        await api.database.execute('delete from group_rights where "right" = $1', f"connector:{first}")
        assert await shown(ana) == ["lite", second]
        assert await shown(admin) == ["lite", first, second]
        await admin.told("connector/instance/delete", connector=json.dumps({"id": second}))
        assert await shown(ana) == ["lite"]


@pytest.mark.platform(82)
async def test_with_stored_connectors_only_the_first_is_the_main_action(open_with: Opener) -> None:
    async with open_with() as api:
        admin = await api.user("admin", admin=True)
        first = await create(admin, "Scratch", "duckdb", "duckdb")
        found = await (await api.user("ana")).told("get_config")
    assert found["main_button_action"]["type"] == found["default_sql_interpreter"] == first


@pytest.mark.platform(82, 84)
async def test_a_stored_connector_on_the_wheel_goes_before_those_of_the_settings(open_with: Opener) -> None:
    toml = '[notebook]\ninterpreters_shown_on_wheel = "1"\ndefault_interpreter = "{0}"\n'
    toml += '[notebook.interpreters.lite]\ninterface = "sqlite"\ndialect = "sqlite"\n'
    for default in ("", "more", "1"):
        async with open_with(toml.format(default)) as api:
            ana, admin = await api.user("ana"), await api.user("admin", admin=True)
            if not default:
                assert await create(admin, "More", "sqlite", "sqlite") == "1"
            assert await shown(ana) == ["1", "lite"]
            assert (await ana.told("get_config"))["default_sql_interpreter"] == "1"
            for path in ("editor/execute", "editor/execute/sqlite"):
                done = await ana.told(path, statement="select 1", wait=60)
                operation = UUID(done["history_uuid"])
                assert await api.database.value("select connector from statements where id = $1", operation) == "1"


@pytest.mark.platform(84)
async def test_types_that_take_no_statements_never_show(open_with: Opener) -> None:
    async with open_with() as api:
        admin = await api.user("admin", admin=True)
        await create(admin, "Livy", "sparksql", "livy")
        await create(admin, "Files", "hdfs", "rest")
        await create(admin, "Atlas", "atlas", "rest")
        await create(admin, "Redis", "ksql", "ksql")
        assert await shown(admin) == []


@pytest.mark.platform(89)
async def test_app_examples_install_the_connectors_of_the_settings(open_with: Opener) -> None:
    toml = '[desktop.connectors.Scratch]\ndialect = "duckdb"\ninterface = "duckdb"\n'
    async with open_with(toml) as api:
        ana, admin = await api.user("ana"), await api.user("admin", admin=True)
        assert (await admin.get("available_app_examples")).json() == {"apps": {"connectors": "Connectors"}, "status": 0}
        done = await admin.told("install_app_examples", app_name="connectors")
        assert done == {"message": "Successfully installed examples for connectors.", "status": 0}
        names = [one["name"] for one in (await ana.told("get_config"))["app_config"]["editor"]["interpreters"]]
        assert names == ["Scratch"]
        missing = await admin.post("install_app_examples")
        assert missing.status_code == 400
        assert missing.json() == {
            "status": -1, "code": "missing_parameter", "message": "Missing parameter: app_name is required.",
        }  # fmt: skip
        for app in ("hive", "impala", "hbase", "pig", "oozie", "notebook", "search", "spark", "jobsub"):
            assert await admin.refused("install_app_examples", app_name=app) == (501, -1, "not_supported")
        unknown = await admin.post("install_app_examples", app_name="x")
        assert (unknown.status_code, unknown.json()["message"]) == (400, "Unsupported app name: x")
        assert (await ana.post("install_app_examples", app_name="connectors")).json()["code"] == "admin_required"
