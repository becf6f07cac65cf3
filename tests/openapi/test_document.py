"""openapi.json, which the server returns, is generated from the routes and contains the schemas of resources.yaml."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from openapi_spec_validator import validate
from scripts.api_texts import TABLES
from scripts.export_openapi import TARGET
from tests.operations import read_operations, shape

SCHEMAS = yaml.load(TABLES.joinpath("resources.yaml").read_bytes(), Loader=yaml.CSafeLoader)["components"]["schemas"]


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    return json.loads(Path(TARGET).read_text(encoding="utf-8"))


@pytest.mark.platform(101)
def test_document_is_valid_openapi(committed: dict[str, Any]):
    assert committed["openapi"].startswith("3.1")
    assert committed["info"]["title"] == "Query Server API"
    validate(committed)


@pytest.mark.platform(101)
def test_document_lists_every_served_call(committed: dict[str, Any]):
    described = {(method.upper(), shape(path)) for path, calls in committed["paths"].items() for method in calls}
    served = {one.key for one in read_operations() if one.group != "console"}
    assert served - {("GET", "/api/docs/{}")} <= described


def test_document_shapes_match_the_tables(committed: dict[str, Any]):
    for name in committed["components"]["schemas"].keys() & SCHEMAS.keys():
        described, table = committed["components"]["schemas"][name], SCHEMAS[name]
        assert list(described.get("properties", {})) == list(table.get("properties", {})), name
        assert described.get("required", []) == table.get("required", []), name


def test_every_call_that_needs_a_user_names_the_bearer_scheme(committed: dict[str, Any]):
    secured = {
        (method.upper(), shape(path))
        for path, calls in committed["paths"].items()
        for method, call in calls.items()
        if call.get("security")
    }
    needed = {row.key for row in read_operations() if row.rights in {"user", "admin"}}
    assert secured == needed


def test_trying_a_call_twice_on_the_page_is_not_a_replay(committed: dict[str, Any]):
    """If the key were prefilled, a second try with a changed statement would fail with 409 `idempotency_conflict`."""
    keys = [
        parameter
        for calls in committed["paths"].values()
        for call in calls.values()
        for parameter in call.get("parameters", ())
        if parameter["name"] == "Idempotency-Key"
    ]
    assert keys
    assert not [
        key for key in keys if "example" in key or "examples" in key or {"example", "default"} & {*key["schema"]}
    ]


@pytest.mark.parametrize("path", ["/api/v1/editor/execute", "/api/v1/editor/execute/{dialect}"])
def test_execute_example_shows_rows(committed: dict[str, Any], path: str):
    for media in committed["paths"][path]["post"]["requestBody"]["content"].values():
        assert int(media["example"]["rows"]) == 100
        assert "client_request_id" not in media["example"]
