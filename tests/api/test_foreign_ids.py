"""Ids of somebody else, over every call that takes one: as if there were no such thing (security rule T20).

Those of stores (uploads in parts, long operations) are in `storage/test_parts.py` and `storage/test_operations.py`.

Operations are found by their request models, so that a new call is covered by its row in openapi/operations.yaml.
"""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import httpx
import pytest
from scripts.check_operations import SERVED, Operation, read_operations
from tests.api.driving import Api, Caller
from tests.api.test_conventions import name_of
from tests.cases import each

from queryserver.api.schemas import requests

pytestmark = pytest.mark.security("T20")

CALLS = [one for one in read_operations() if one.status == SERVED]


def fields_of(one: Operation) -> frozenset[str]:
    """Names of the fields of its request model."""
    return frozenset(getattr(requests, one.request).model_fields) if isinstance(one.request, str) else frozenset()


OF_ADMINISTRATORS = [one for one in CALLS if one.group == "admin" and "{operation_id}" in one.path]
ON_OPERATIONS = [
    one
    for one in CALLS
    if one not in OF_ADMINISTRATORS and ("{operation_id}" in one.path or "operation_id" in fields_of(one))
]
BY_CONNECTOR = [
    one
    for one in CALLS
    if one.group in {"editor", "query", "dialect"}
    and one not in ON_OPERATIONS
    and ("{dialect}" in one.path or fields_of(one) & {"snippet", "source_type"})
]


async def call(caller: Caller, one: Operation, path: str, fields: Mapping[str, Any]) -> httpx.Response:
    if one.method == "GET":
        return await caller.get(path)
    return await caller.post_json(path, **fields)


def told(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json().get("code", "")


def test_the_calls_are_found():
    """A change of the models must not empty the matrix."""
    assert len(ON_OPERATIONS) >= 13
    assert len(BY_CONNECTOR) >= 20


@each("one", ON_OPERATIONS, ids=name_of)
async def test_an_operation_of_another_is_unknown(ana: Caller, bob: Caller, one: Operation):
    theirs = (await ana.run("mysql", "rows 1"))["history_uuid"]
    answers = []
    for operation in (theirs, str(uuid4())):
        path = one.path.replace("{operation_id}", operation).replace("{dialect}", "mysql")
        answers.append(told(await call(bob, one, path, {"operationId": operation, "snippet": {"type": "mysql"}})))
    assert answers == [(404, "operation_not_found")] * 2
    assert await ana.state(theirs) == "available"


async def test_calls_of_administrators_tell_others_nothing_about_operations(ana: Caller, bob: Caller):
    theirs = (await ana.run("mysql", "rows 1"))["history_uuid"]
    for one in OF_ADMINISTRATORS:
        for operation in (theirs, str(uuid4())):
            answer = await call(bob, one, one.path.replace("{operation_id}", operation), {})
            assert told(answer) == (403, "admin_required"), one
    assert await ana.state(theirs) == "available"
    assert len(OF_ADMINISTRATORS) == 2


@each("one", BY_CONNECTOR, ids=name_of)
async def test_a_connector_that_is_not_granted_is_unknown(ana: Caller, one: Operation):
    answers = []
    for connector in ("vault", "nowhere"):
        path = one.path.replace("{dialect}", connector).replace("{database}", "shop").replace("{table}", "t10")
        path = path.replace("{column}", "tags").replace("{nested}", "item")
        snippet = {"type": connector, "connector": {"type": connector}}
        fields = {"snippet": snippet, "source_type": connector, "statement": "rows 1"}
        answers.append(told(await call(ana, one, path, fields)))
    assert answers == [(404, "dialect_not_found")] * 2


async def test_statements_of_another_are_in_no_listing(ana: Caller, bob: Caller):
    theirs = (await ana.run("mysql", "rows 1"))["history_uuid"]
    assert theirs in {entry["uuid"] for entry in (await ana.history())["history"]}
    assert (await bob.history())["history"] == []


async def test_a_session_of_another_is_unknown(ana: Caller, bob: Caller):
    opened = (await ana.told("editor/create_session", session='{"type": "mysql"}'))["session"]
    for session in (opened["id"], 2**40):
        closed = await bob.post_json("editor/close_session", session={"type": "mysql", "id": session})
        assert told(closed) == (404, "session_not_found")
        run = await bob.post_json("editor/execute/mysql", statement="rows 1", session_id=session)
        explained = await bob.post_json("editor/explain/mysql", statement="rows 1", session_id=session)
        assert {told(run), told(explained)} == {(404, "session_not_found")}
    assert (await ana.told("editor/close_session", session=f'{{"id": {opened["id"]}}}'))["session"]["status"] == 0


IMPORTS = {
    "file/guess_metadata": {},
    "file/guess_header": {"file_type": "csv"},
    "file/preview": {"file_type": "csv", "sql_dialect": "hive", "has_header": "true"},
}
TABLE = {"file_type": "csv", "has_header": "true", "connector": "duckdb", "table": "t", "import_type": "local"}


class TestUploads:
    async def test_a_reference_of_another_is_no_file(self, ana: Caller, bob: Caller):
        sent = await ana.send("POST", "importer/upload/file", files={"file": ("a.csv", b"id\n1\n")})
        theirs = sent.json()["file_path"]
        forged = theirs.replace(theirs.split("/")[1], "A" * len(theirs.split("/")[1]))
        for path in (theirs, forged):
            answers = [
                await bob.get(f"importer/{call}", file_path=path, import_type="local", **more)
                for call, more in IMPORTS.items()
            ]
            answers += [
                await bob.post(f"importer/{name}", file_path=path, **TABLE) for name in ("create_table", "submit")
            ]
            assert {told(answer) for answer in answers} == {(400, "file_not_found")}
        shown = await ana.get("importer/file/guess_metadata", file_path=theirs, import_type="local")
        assert shown.status_code == 200

    async def test_a_connector_that_is_not_granted_is_unknown_to_the_importer(self, ana: Caller):
        sent = await ana.send("POST", "importer/upload/file", files={"file": ("a.csv", b"id\n1\n")})
        for connector in ("vault", "nowhere"):
            table = {**TABLE, "connector": connector, "file_path": sent.json()["file_path"]}
            for name in ("create_table", "submit"):
                assert told(await ana.post(f"importer/{name}", **table)) == (400, "connector_not_found")


async def test_a_stored_connector_that_is_not_granted_is_unknown(api: Api, ana: Caller):
    root = await api.user("root", admin=True)
    made = {"nice_name": f"Hidden {uuid4()}", "dialect": "sqlite", "interface": "sqlite", "groups": []}
    stored = (await root.post_json("connector/instance/update", connector=made)).json()["connector"]["id"]
    try:
        for connector in (stored, "999999"):
            assert told(await ana.get(f"connector/instance/get/{connector}")) == (404, "connector_not_found")
            run = await ana.post_json(f"editor/execute/{connector}", statement="SELECT 1")
            assert told(run) == (404, "dialect_not_found")
            namespaces = (await ana.get(f"get_namespaces/{connector}")).json()
            assert namespaces[connector] == (await ana.get("get_namespaces/nowhere")).json()["nowhere"]
    finally:
        await root.post_json("connector/instance/delete", connector={"id": stored})
