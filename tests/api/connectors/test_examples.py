"""examples/install (Contract platform 5.9)."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.api.conftest import ApiOpener
from tests.api.connectors.driving import Keeper, by_name, listed
from tests.api.driving import Caller

pytestmark = pytest.mark.platform(76)


async def install(caller: Caller) -> dict[str, Any]:
    response = await caller.post("connector/examples/install")
    assert response.status_code == 200, response.text
    return response.json()


def tables(url: str = "https://lake", **more: Mapping[str, Any]) -> dict[str, Any]:
    lake = {"nice_name": "Lake", "dialect": "trino", "interface": "trino", "settings": {"url": url, "password": "x"}}
    local = {"dialect": "duckdb", "interface": "duckdb", "groups": ("analysts",)}
    return {"connectors": {"lake": lake, "local": local, **more}}


async def test_without_tables_two_databases_in_memory_are_installed(small_api: ApiOpener) -> None:
    async with small_api() as api:
        keeper = await Keeper.of(api)
        first = await install(keeper.caller)
        assert first == {
            "status": 0,
            "message": "Added connectors: DuckDB (in memory) (duckdb), SQLite (in memory) (sqlite)",
            "added": ["1", "2"],
            "updated": [],
            "unchanged": [],
        }
        before = await keeper.instances()
        second = await install(keeper.caller)
        text = "Already installed connectors: DuckDB (in memory) (duckdb), SQLite (in memory) (sqlite)"
        assert second == {"status": 0, "message": text, "added": [], "updated": [], "unchanged": ["1", "2"]}
        assert await keeper.instances() == before
        assert (await (await api.user("ana")).result("2", "SELECT 1 AS one"))["data"] == [[1]]


async def test_what_changed_in_the_settings_is_updated_and_what_was_edited_is_left(small_api: ApiOpener) -> None:
    async with small_api(desktop=tables()) as api:
        await api.user("ana", groups=("analysts",))
        keeper = await Keeper.of(api)
        first = await install(keeper.caller)
        assert first["message"] == "Added connectors: Lake (trino), local (duckdb)"
        local = await keeper.shown("2")
        assert (local["nice_name"], local["groups"]) == ("local", ["analysts"])
        assert (await keeper.shown("1"))["groups"] == ["default"]
    shop = {"nice_name": "Shop", "dialect": "mysql", "interface": "sqlalchemy", "settings": {"url": "mysql://u:p@h/d"}}
    async with small_api(desktop=tables("https://other", shop=shop)) as api:
        keeper = await Keeper.of(api)
        second = await install(keeper.caller)
        assert second == {
            "status": 0,
            "message": "Added connectors: Shop (mysql). Updated connectors: Lake (trino). "
            "Already installed connectors: local (duckdb)",
            "added": ["3"],
            "updated": ["1"],
            "unchanged": ["2"],
        }
        lake = await keeper.shown("1")
        assert (by_name(lake)["url"], lake["version"]) == ("https://other", 2)
        await keeper.send({"id": "1", "settings": listed({"url": "https://mine"})})
    async with small_api(desktop=tables("https://third")) as api:
        keeper = await Keeper.of(api)
        third = await install(keeper.caller)
        assert (third["updated"], third["unchanged"]) == ([], ["1", "2"])
        assert by_name(await keeper.shown("1"))["url"] == "https://mine"


async def test_a_password_of_the_settings_that_changed_is_updated_too(small_api: ApiOpener) -> None:
    def shop(password: str) -> dict[str, Any]:
        table = {"dialect": "mysql", "interface": "sqlalchemy", "settings": {"url": f"mysql://u:{password}@h/d"}}
        return {"connectors": {"shop": table}}

    async with small_api(desktop=shop("one")) as api:
        assert (await install((await Keeper.of(api)).caller))["added"] == ["1"]
    async with small_api(desktop=shop("two")) as api:
        caller = (await Keeper.of(api)).caller
        assert (await install(caller))["updated"] == ["1"]
        assert (await install(caller))["unchanged"] == ["1"]


async def test_an_instance_of_the_same_name_that_came_otherwise_is_left_alone(small_api: ApiOpener) -> None:
    async with small_api(desktop=tables()) as api:
        await api.user("ana", groups=("analysts",))
        keeper = await Keeper.of(api)
        mine = await keeper.create("LAKE", "sqlite", "sqlite")
        done = await install(keeper.caller)
        assert (done["unchanged"], done["updated"]) == ([mine["id"]], [])
        assert await keeper.shown(mine["id"]) == mine


async def test_one_table_that_is_not_valid_keeps_all_from_being_installed(small_api: ApiOpener) -> None:
    bad = {
        "one": {"dialect": "mysql", "interface": "sqlalchemy", "settings": {"url": "sqlite:///planted-secret"}},
        "two": {"dialect": "hive", "interface": "livy"},
        "three": {"nice_name": "LAKE", "dialect": "sqlite", "interface": "sqlite"},
        "four": {"dialect": "sqlite", "interface": "sqlite", "settings": {"colour": "red", "read_only": False}},
    }
    async with small_api(desktop=tables(**bad)) as api:
        await api.user("ana", groups=("analysts",))
        keeper = await Keeper.of(api)
        response = await keeper.caller.post("connector/examples/install")
        assert (response.status_code, response.json()["code"]) == (400, "validation_failed")
        assert set(response.json()["errors"]) == set(bad)
        assert await keeper.instances() == []


async def test_a_group_that_is_not_there_keeps_all_from_being_installed(small_api: ApiOpener) -> None:
    bad = {"last": {"dialect": "sqlite", "interface": "sqlite", "groups": ("nosuch",)}}
    async with small_api(desktop=tables(**bad)) as api:
        await api.user("ana", groups=("analysts",))
        keeper = await Keeper.of(api)
        response = await keeper.caller.post("connector/examples/install")
        assert (response.status_code, response.json()["code"]) == (400, "validation_failed")
        assert set(response.json()["errors"]) == {"last"}
        assert "nosuch" in response.json()["errors"]["last"][0]
        assert await keeper.instances() == []
