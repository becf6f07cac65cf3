"""A document runs with the rights of its caller (Contract documents 8)."""

import json
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.api.documents.calls import save, share
from tests.api.driving import Api, Caller, sign_in, verdict
from tests.api.test_logs import Event, about, audited

__all__ = ["audited"]  # a fixture

DAY = {"name": "day", "type": "date", "default": "2026-01-05"}


async def run(user: Caller, uuid: str, path: str = "editor/execute", **fields: Any) -> dict[str, Any]:
    """Run a document and wait for the end of the statement. Returns the response body."""
    body = await user.post_ok(path, document=uuid, wait=60, **fields)
    assert body["status"] == 0, body
    return body


async def rows(user: Caller, body: dict[str, Any]) -> list[list[Any]]:
    return (await user.page(body["history_uuid"]))["data"]


@pytest.mark.documents(19)
async def test_defaults_of_the_document_complete_the_call(ana: Caller):
    statement = "SELECT :day AS day, :n + 1 AS n, current_schema() AS s"
    parameters = [DAY, {"name": "n"}]
    uuid = (await save(ana, statement=statement, parameters=parameters, connector="postgresql", database="public"))[
        "uuid"
    ]
    body = await run(ana, uuid, parameters=json.dumps({"n": 41}))
    assert await rows(ana, body) == [["2026-01-05", 42, "public"]]
    assert body["history_parent_uuid"] == uuid
    entry = (await ana.history())["history"][0]
    assert (entry["uuid"], entry["data"]["parentSavedQueryUuid"]) == (body["history_uuid"], uuid)
    assert entry["data"]["statement"] == statement
    given = {"n": 1, "day": "2026-02-03"}
    assert (await rows(ana, await run(ana, uuid, parameters=json.dumps(given))))[0][:2] == ["2026-02-03", 2]
    typed = {"n": {"type": "bigint", "value": "7"}, "day": {"type": "varchar", "value": "monday"}}
    assert (await rows(ana, await run(ana, uuid, parameters=json.dumps(typed))))[0][:2] == ["monday", 8]


@pytest.mark.documents(19)
async def test_connector_of_the_call_wins(ana: Caller):
    uuid = (await save(ana, statement="SELECT 7 AS n", connector="postgresql", database="public"))["uuid"]
    for path in ("editor/execute/duckdb", "query/duckdb"):
        body = await ana.post_ok(path, document=uuid, wait=60, database="main")
        assert (body["status"], body["handle"]["session_type"]) == (0, "duckdb"), body
    body = await ana.post_ok("editor/execute", document=uuid, wait=60, snippet='{"type": "sqlite", "database": "main"}')
    assert (body["status"], body["handle"]["session_type"]) == (0, "sqlite")
    assert (await run(ana, uuid))["handle"]["session_type"] == "postgresql"


@pytest.mark.documents(19)
async def test_document_without_connector_runs_on_the_default_one(ana: Caller):
    uuid = (await save(ana, statement="SELECT 7 AS n"))["uuid"]
    body = await run(ana, uuid)
    assert (body["handle"]["session_type"], await rows(ana, body)) == ("duckdb", [[7]])


@pytest.mark.documents(19)
async def test_script_of_a_document_runs_as_a_whole(ana: Caller):
    uuid = (await save(ana, statement="SELECT 1 AS a; SELECT 2 AS a", connector="duckdb"))["uuid"]
    body = await run(ana, uuid, run_all="true")
    assert [one["state"] for one in body["query_status"]["statements"]] == ["available", "available"]


@pytest.mark.documents(19)
async def test_positional_values_need_a_document_without_parameters(ana: Caller):
    plain = (await save(ana, statement="SELECT ? AS n", connector="postgresql"))["uuid"]
    assert await rows(ana, await run(ana, plain, parameters="[7]")) == [[7]]
    named = (await save(ana, statement="SELECT :day AS n", parameters=[DAY], connector="postgresql"))["uuid"]
    assert await ana.refused("editor/execute", document=named, parameters="[7]") == (400, -1, "invalid_parameter")


@pytest.mark.documents(20)
async def test_missing_values_and_combinations_are_refused(ana: Caller):
    uuid = (await save(ana, statement="SELECT :n", parameters=[{"name": "n"}], connector="duckdb"))["uuid"]
    empty = (await save(ana, name="empty", connector="duckdb"))["uuid"]
    response = await ana.post("editor/execute", document=uuid)
    assert verdict(response) == (400, -1, "missing_parameter")
    assert ":n" in response.json()["message"]
    assert await ana.refused("editor/execute", document=empty) == (400, -1, "missing_parameter")
    for more in (
        {"statement": "SELECT 1"},
        {"operationId": str(uuid4())},
        {"parameter_rows": "[[1]]"},
        {"snippet": '{"statement": "SELECT 1"}'},
    ):
        refused = await ana.refused("editor/execute", document=uuid, **more)
        assert refused == (400, -1, "conflicting_parameters"), more
    for unknown in (str(uuid4()), "x"):
        assert await ana.refused("editor/execute", document=unknown) == (404, -1, "document_not_found")
    assert (await ana.history())["history"] == []


@pytest.mark.documents(10, 20)
async def test_run_needs_its_permission(api: Api, ana: Caller, bob: Caller):
    uuid = (await save(ana, statement="rows 3", connector="mysql"))["uuid"]
    other = await ana.api.user("other")
    for user in (bob, other):
        assert await user.refused("editor/execute", document=uuid) == (404, -1, "document_not_found")
    await share(ana, uuid, {"user": bob.username, "permission": "view"})
    assert await bob.refused("editor/execute", document=uuid) == (403, -1, "permission_denied")
    for permission in ("run", "edit"):
        await share(ana, uuid, {"user": bob.username, "permission": permission})
        body = await run(bob, uuid)
        assert (await bob.history())["history"][0]["uuid"] == body["history_uuid"]
    root = await api.user("root", admin=True)
    assert await rows(root, await run(root, uuid))
    assert (await ana.history())["history"] == []
    await ana.post_ok("documents/delete", uuid=uuid)
    assert await bob.refused("editor/execute", document=uuid) == (404, -1, "document_not_found")
    assert await ana.refused("editor/execute", document=uuid) == (409, -1, "document_in_trash")


@pytest.mark.documents(20)
async def test_run_has_the_connectors_of_its_caller(api: Api):
    ana = await sign_in(api, f"owner{uuid4().hex[:8]}", admin=False, groups=("analysts",))
    bob = await api.user("bob")
    uuid = (await save(ana, statement="rows 3", connector="closed"))["uuid"]
    await share(ana, uuid, {"user": bob.username, "permission": "run"})
    assert await bob.refused("editor/execute", document=uuid) == (404, -1, "dialect_not_found")
    assert (await bob.post_ok("editor/execute/mysql", document=uuid, wait=60))["status"] == 0
    assert await run(ana, uuid)


@pytest.mark.documents(20)
async def test_connector_that_is_gone_is_not_replaced_by_another_one_of_its_dialect(api: Api, ana: Caller):
    uuid = (await save(ana, statement="rows 3", connector="hive2"))["uuid"]
    operation = (await run(ana, uuid))["history_uuid"]
    # As if the connector had been renamed from `hive`, which now means the first connector of this dialect.
    await api.database.execute("update documents set connector = 'hive' where uuid = $1", UUID(uuid))
    await api.database.execute("update statements set connector = 'hive' where id = $1", UUID(operation))
    assert await ana.refused("editor/execute", document=uuid) == (404, -1, "dialect_not_found")
    assert await ana.refused("documents/save", operationId=operation) == (404, -1, "dialect_not_found")
    assert (await ana.post_ok("editor/execute/hive", document=uuid, wait=60))["status"] == 0
    document = json.dumps({"connector": "hive"})
    assert (await ana.post_ok("documents/save", operationId=operation, document=document))["status"] == 0


@pytest.mark.documents(20)
async def test_idempotent_run_is_replayed_until_the_document_changes(ana: Caller):
    uuid = (await save(ana, statement="rows 3", connector="mysql"))["uuid"]
    first = await run(ana, uuid, client_request_id="once")
    assert (await run(ana, uuid, client_request_id="once"))["history_uuid"] == first["history_uuid"]
    await save(ana, uuid=uuid, version=1, statement="rows 4")
    refused = await ana.refused("editor/execute", document=uuid, client_request_id="once")
    assert refused == (409, -1, "idempotency_conflict")


@pytest.mark.documents(23)
async def test_runs_are_audited(ana: Caller, audited: list[Event]):
    uuid = (await save(ana, statement="rows 3", description="secret", connector="mysql"))["uuid"]
    body = await run(ana, uuid, client_request_id="once")
    await run(ana, uuid, client_request_id="once")
    [event] = about(audited, "document.run")
    expected = {"subject": uuid, "user": ana.username, "operation_id": body["history_uuid"], "outcome": "ok"}
    assert expected.items() <= event.items()
    assert "secret" not in str(audited)
