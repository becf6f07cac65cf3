"""The calls types and new, which return the connector catalog (Contract platform 5.2, 5.4)."""

import json
from typing import Any

import pytest
from tests.api.conftest import ApiOpener, make_settings
from tests.api.connectors.driving import ConnectorAdmin, by_name, listed
from tests.api.driving import Caller, open_api

from queryserver.connectors.types import TYPES, ConnectorType
from queryserver.platform.settings.editor import BeeswaxSettings, ImpalaSettings

_CATEGORIES = ["editor", "browsers", "catalogs", "optimizers", "schedulers", "plugins"]
_PROGRAMS = {("pyspark", "livy"), ("spark", "livy"), ("pig", "oozie"), ("java", "oozie")}
"""The dialects and interfaces of editors for languages other than SQL."""
_FLAGS = {
    "is_sql",
    "sql_identifier_quote",
    "sql_identifier_comment_single",
    "has_catalog",
    "has_database",
    "has_table",
    "has_live_queries",
    "has_optimizer_risks",
    "has_optimizer_values",
    "has_auto_limit",
    "has_reference_language",
    "has_reference_functions",
    "has_use_statement",
}


async def types_of(caller: Caller) -> dict[str, Any]:
    response = await caller.get("connector/types")
    assert response.status_code == 200
    return response.json()


async def template(caller: Caller, dialect: str, interface: str, **connector: Any) -> dict[str, Any]:
    fields = {"connector": json.dumps(connector)} if connector else {}
    response = await caller.post(f"connector/instance/new/{dialect}/{interface}", **fields)
    assert response.status_code == 200, response.text
    return response.json()["connector"]


@pytest.mark.platform(60)
async def test_all_types_are_listed_in_six_groups(ana: Caller) -> None:
    body = await types_of(ana)
    assert [group["category"] for group in body["connectors"]] == _CATEGORIES
    assert body["categories"] == [{"name": one.capitalize(), "type": one, "description": ""} for one in _CATEGORIES]
    values = [one for group in body["connectors"] for one in group["values"]]
    pairs = [(one["dialect"], one["interface"]) for one in values]
    assert len(pairs) == 47
    order = {(row.dialect, row.interface): place for place, row in enumerate(TYPES)}
    for group in body["connectors"]:
        places = [order[one["dialect"], one["interface"]] for one in group["values"]]
        assert places == sorted(places)
    flags = {(row.dialect, row.interface): row.flags for row in TYPES}
    for one in values:
        assert one["name"] == one["dialect"]
        is_sql = one["category"] == "editor" and (one["dialect"], one["interface"]) not in _PROGRAMS
        assert set(one["properties"]) == (_FLAGS if is_sql else set())
        assert one["properties"] == flags[one["dialect"], one["interface"]]
    await template(ana, "mysql", "sqlalchemy", settings=listed({"url": "mysql://other/db"}))
    assert await types_of(ana) == body


@pytest.mark.platform(61)
async def test_legacy_names_of_the_call_return_the_same_response(ana: Caller) -> None:
    usual = await types_of(ana)
    assert (await ana.get("connectors/types")).json() == usual
    assert (await ana.post("connectors/types")).json() == usual
    assert (await ana.post_json("connectors/types/")).json() == usual


async def test_types_without_extra_packages_are_runnable(ana: Caller) -> None:
    body = await types_of(ana)
    runs = {
        (one["dialect"], one["interface"])
        for group in body["connectors"]
        for one in group["values"]
        if one["is_runnable"]
    }
    always = {(row.dialect, row.interface) for row in TYPES if row.runs == "yes"}
    assert always <= runs
    assert not runs & {(row.dialect, row.interface) for row in TYPES if row.runs in {"no", "test"}}


async def test_hidden_dialects_are_not_listed(small_api: ApiOpener) -> None:
    desktop = {"connectors_blacklist": ("hive",), "connectors_whitelist": ("hive", "trino", "mysql")}
    async with small_api(desktop=desktop) as api:
        ana = await api.user("ana")
        body = await types_of(ana)
        dialects = [one["dialect"] for group in body["connectors"] for one in group["values"]]
        assert dialects == ["mysql", "trino", "trino"]
        assert len(body["connectors"]) == len(body["categories"]) == 6
        refused = await ana.refused("connector/instance/new/hive/hiveserver2")
        assert refused == (404, -1, "connector_type_not_found")


@pytest.mark.platform(64)
@pytest.mark.parametrize("row", TYPES, ids=lambda row: f"{row.dialect}-{row.interface}")
async def test_template_of_every_type_can_be_stored_once_named(admin: ConnectorAdmin, row: ConnectorType) -> None:
    sent = await template(admin.caller, row.dialect, row.interface)
    assert sent["id"] is None
    assert sent["name"] == ""
    assert sent["dialect_properties"] == sent["properties"]
    sent["nice_name"] = f"All {row.dialect} {row.interface}"
    if row.dialect == "sql" and row.interface == "sqlalchemy":
        assert (await admin.refused(sent))[:2] == (400, "driver_not_allowed")
        sent["settings"][0]["value"] = "clickhouse://localhost:8123"
    stored = await admin.send(sent)
    assert stored["id"].isdecimal()
    assert (stored["dialect"], stored["interface"], stored["category"]) == (row.dialect, row.interface, row.category)
    assert [one["name"] for one in stored["settings"]] == [one["name"] for one in sent["settings"]]
    assert stored["dialect_properties"] == sent["properties"]
    assert stored["description"] == row.description
    assert await admin.shown(stored["id"]) == stored
    again = await admin.send(stored)
    assert again == {**stored, "version": 2, "last_modified": again["last_modified"]}
    assert (await admin.delete(stored["id"])).status_code == 200


@pytest.mark.platform(65)
async def test_settings_sections_provide_hive_and_impala_defaults(tmp_path, database_dsn, users_url):
    impala = ImpalaSettings(query_timeout_s=77, session_timeout_s=88)
    sections = {"beeswax": BeeswaxSettings(close_queries=True), "impala": impala}
    of_hive = {"query_timeout_s": 0, "session_timeout_s": 0, "close_queries": True}
    of_impala = {"query_timeout_s": 77, "session_timeout_s": 88, "close_queries": False}
    async with open_api(make_settings(tmp_path, database_dsn, users_url).model_copy(update=sections)) as api:
        admin = await ConnectorAdmin.of(api)
        types = [one for group in (await types_of(admin.caller))["connectors"] for one in group["values"]]
        for dialect, usual in (("hive", of_hive), ("hplsql", of_hive), ("impala", of_impala)):
            (listed_type,) = (one for one in types if (one["dialect"], one["interface"]) == (dialect, "hiveserver2"))
            made = await admin.create(f"Usual {dialect}", dialect, "hiveserver2")
            new = await template(admin.caller, dialect, "hiveserver2")
            for one in (listed_type, new, made, await admin.shown(made["id"])):
                assert {name: by_name(one)[name] for name in usual} == usual
            connector = api.services.connectors.find(made["id"])
            assert connector is not None
            assert connector.close_queries is usual["close_queries"]
            back = await admin.send({"id": made["id"], "settings": listed({"query_timeout_s": 5})})
            assert {name: by_name(back)[name] for name in usual} == {**usual, "query_timeout_s": 5}
            said = await admin.create(
                f"Own {dialect}", dialect, "hiveserver2", close_queries=False, query_timeout_s=600
            )
            assert (by_name(said)["close_queries"], by_name(said)["query_timeout_s"]) == (False, 600)


@pytest.mark.platform(65)
async def test_new_merges_values_over_the_defaults_and_stores_nothing(ana: Caller, admin: ConnectorAdmin) -> None:
    before = await admin.instances()
    given = {"nice_name": "Lake", "description": "Ours", "settings": listed({"url": "https://t", "ssl_validate": "no"})}
    made = await template(ana, "trino", "trino", **given, id="7", version=3, groups=["x"])
    assert (made["nice_name"], made["description"], made["id"]) == ("Lake", "Ours", None)
    assert by_name(made) == {
        **dict(next(row for row in TYPES if row.interface == "trino").settings),
        "url": "https://t",
        "ssl_validate": False,
    }
    native = await ana.post_json("connector/instance/new/trino/trino/", connector=given)
    assert native.json()["connector"] == made
    assert await admin.instances() == before


@pytest.mark.platform(69, 70)
@pytest.mark.security("T9")
@pytest.mark.parametrize(
    ("row", "given", "secret"),
    [
        ("trino trino", {"url": "https://t", "username": "svc", "password": "planted"}, {"password": "********"}),
        ("mysql sqlalchemy", {"url": "mysql://svc:planted@h/d"}, {"url": "mysql://svc:********@h/d"}),
    ],
)
async def test_secret_merged_into_a_template_is_not_returned_and_must_be_sent_again(
    admin: ConnectorAdmin, row: str, given: dict[str, str], secret: dict[str, str]
) -> None:
    before = await admin.instances()
    made = await template(admin.caller, *row.split(), nice_name=f"Laid {row}", settings=listed(given))
    assert {name: by_name(made)[name] for name in given} == {**given, **secret}
    assert "planted" not in json.dumps(made)
    status, code, errors = await admin.refused(made)
    assert (status, code, list(errors)) == (400, "secret_required", list(secret))
    assert await admin.instances() == before
    clear = {**by_name(made), **given}
    assert {name: by_name(await admin.send({**made, "settings": listed(clear)}))[name] for name in secret} == secret


@pytest.mark.platform(65)
async def test_new_refuses_unknown_types_and_settings(ana: Caller) -> None:
    response = await ana.post("connector/instance/new/hive/livy")
    assert (response.status_code, response.json()["code"]) == (404, "connector_type_not_found")
    assert "hive" in response.json()["message"]
    assert "livy" in response.json()["message"]
    response = await ana.post("connector/instance/new/hve/livy")
    assert "Known dialects: hive, " in response.json()["message"]
    connector = json.dumps({"settings": listed({"color": "red"})})
    response = await ana.post("connector/instance/new/trino/trino", connector=connector)
    assert (response.status_code, response.json()["code"]) == (400, "unknown_setting")
    assert list(response.json()["errors"]) == ["color"]
    assert await ana.refused("connector/instance/new/trino/trino", connector="{") == (400, -1, "invalid_json")
