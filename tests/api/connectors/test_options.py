"""The options of connector types, from which clients make forms (Contract platform 5.1)."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.api.connectors.driving import ConnectorAdmin, by_name
from tests.api.connectors.test_types import template
from tests.api.driving import Caller

from queryserver.connectors.model import MASK
from queryserver.connectors.secrets import masked
from queryserver.connectors.types import TYPES, ConnectorType
from queryserver.platform.settings.editor import GeneralSettings

_JSON_TYPES = {"integer": int, "boolean": bool}


async def options_of(caller: Caller, connector_id: str) -> list[dict[str, Any]]:
    response = await caller.get(f"connector/instance/get/{connector_id}")
    assert response.status_code == 200, response.text
    return response.json()["options"]


@pytest.mark.platform(155, 157)
@pytest.mark.parametrize("row", TYPES, ids=lambda row: f"{row.dialect}-{row.interface}")
async def test_every_setting_of_a_type_is_an_option_that_fits_its_value(ana: Caller, row: ConnectorType) -> None:
    made = await template(ana, row.dialect, row.interface)
    own, values = made["options"][: len(row.settings)], by_name(made)
    assert [one["name"] for one in own] == list(row.settings)
    general = [name for name in GeneralSettings.model_fields if name not in row.settings and row.takes_statements]
    assert [one["name"] for one in made["options"][len(own) :]] == general
    shown = masked(dict.fromkeys(values, "https://u:p@h?x=1"))
    for one in own:
        assert one["default"] == values[one["name"]]
        assert type(one["default"]) is _JSON_TYPES.get(one["kind"], str)
        assert (one["kind"] == "choice") == bool(one["choices"])
        assert (one["kind"] == "secret") == (shown[one["name"]] == MASK)
    if row.runs != "no":
        assert all(one["description"] for one in made["options"])


def _limits(option: dict[str, Any]) -> Iterator[tuple[Any, bool]]:
    """Yield values of the option, and whether they are permitted."""
    yield from ((word, True) for word in option["choices"])
    if option["choices"]:
        yield "no such word", False
    for limit, beyond in (("minimum", -1), ("maximum", 1)):
        if (value := option[limit]) is not None:
            yield from ((value, True), (value + beyond, False))


@pytest.mark.platform(156)
@pytest.mark.parametrize(
    ("dialect", "interface"), [("duckdb", "duckdb"), ("hive", "hiveserver2"), ("impala", "hiveserver2")]
)
async def test_update_accepts_exactly_the_values_that_an_option_permits(
    admin: ConnectorAdmin, dialect: str, interface: str
) -> None:
    made = await admin.create(f"Options of {dialect}", dialect, interface)
    # GSSAPI needs a package, JWT and the transport http need each other.
    needs_more = {"auth_mechanism", "transport_mode"}
    refused = list[str]()
    for option in await options_of(admin.caller, made["id"]):
        name = option["name"]
        for value, is_permitted in _limits(option):
            if name in needs_more and is_permitted:
                continue
            answer = await admin.update({"id": made["id"], "settings": [{"name": name, "value": value}]})
            assert (answer.status_code == 200) == is_permitted, (name, value, answer.text)
            if not is_permitted:
                assert list(answer.json()["errors"]) == [name]
                refused.append(name)
    assert {"share_results", "statement_timeout_s"} <= set(refused)


@pytest.mark.platform(157)
async def test_options_contain_no_stored_value(admin: ConnectorAdmin) -> None:
    secret = {"url": "mysql://svc:planted@planted-host/planted", "read_only": True}
    made = await admin.create("Options without values", "mysql", "sqlalchemy", **secret)
    options = await options_of(admin.caller, made["id"])
    assert options == (await template(admin.caller, "mysql", "sqlalchemy"))["options"]
    assert "planted" not in json.dumps(options)
    assert [one["kind"] for one in options if one["name"] == "url"] == ["url"]
