"""A statement that is submitted with an API token belongs to the user, whether a server or a worker runs it
(`--task-server`; ADR 62).
"""

import json
from typing import Any
from uuid import uuid4

import pytest
from tests.api.conftest import ApiOpener
from tests.api.dialects import Dialect, every_dialect
from tests.api.driving import Api, Caller, until, verdict
from tests.api.token.logins import accounts

WAITS = "sleep 600"


async def program_of(user: Caller, **fields: Any) -> tuple[Caller, str]:
    """Create a token for the user. Return a program that authenticates with it, and the id of the token."""
    made = await user.post_json("token/api_tokens/new", **{"name": f"program {uuid4()}", "scopes": ["query"], **fields})
    assert made.status_code == 200, made.text
    token = made.json()
    return Caller(user.api, user.username, {"Authorization": f"Bearer {token['value']}"}), token["token"]["id"]


async def session_of(user: Caller, dialect: str) -> int:
    return (await user.post_ok("editor/create_session", session=json.dumps({"type": dialect})))["session"]["id"]


async def leave_group(user: Caller, group: str) -> None:
    statement = "delete from group_members m using users u, groups g where u.id = m.user_id and g.id = m.group_id"
    await user.api.database.execute(f"{statement} and u.username = $1 and g.name = $2", user.username, group)


@every_dialect
async def test_program_runs_statements_with_parameters(ana: Caller, dialect: Dialect) -> None:
    program, _ = await program_of(ana)
    body = await program.run(dialect, "SELECT ? AS a, ? AS b", parameters=json.dumps([7, "O'Brien"]))
    assert body["status"] == 0, body
    operation = body["history_uuid"]
    assert (await program.page(operation))["data"] == [[7, "O'Brien"]]
    assert (await ana.page(operation, start_row=0))["data"] == [[7, "O'Brien"]]
    entry = (await program.history())["history"][0]
    assert (entry["uuid"], entry["data"]["parameters"]) == (operation, 2)


async def test_script_of_an_api_token_continues_in_one_session(ana: Caller) -> None:
    program, _ = await program_of(ana)
    body = await program.run("postgresql", "CREATE TEMP TABLE mine AS SELECT 5 AS n; SELECT n FROM mine")
    assert body["status"] == 0, body
    body = await program.run("postgresql", "", operationId=body["history_uuid"])
    assert (await program.page(body["history_uuid"]))["data"] == [[5]]


async def test_connector_restriction_applies_to_statements(ana: Caller) -> None:
    program, _ = await program_of(ana, connectors=["duckdb"])
    assert (await program.run("duckdb", "select 1"))["status"] == 0
    assert (await program.post("editor/execute/mysql", statement="rows 1")).status_code in {400, 403, 404}
    theirs = (await ana.execute("mysql", WAITS))["history_uuid"]
    assert (await program.post("editor/cancel_statement", operationId=theirs)).status_code == 404
    await ana.running(theirs)
    await ana.on(theirs, "cancel_statement")


CALLS = ("check_status", "fetch_result_data", "fetch_result_metadata", "fetch_result_size", "get_logs",
         "cancel_statement", "close_statement")  # fmt: skip


@pytest.mark.item(80)
async def test_operations_outside_the_tokens_connectors_are_unknown_to_every_call(ana: Caller) -> None:
    """The response of every call is the same as for an operation that does not exist (Contract editor 1.5, 1.6)."""
    program, _ = await program_of(ana, connectors=["duckdb"])
    theirs = (await ana.run("mysql", "rows 2"))["history_uuid"]
    unknown = str(uuid4())
    for call in CALLS:
        found, other = [await program.post(f"editor/{call}", operationId=one) for one in (theirs, unknown)]
        assert verdict(found)[::2] == (404, "operation_not_found"), call
        assert found.text.replace(theirs, unknown) == other.text, call
    for path in ("events", "download"):
        found, other = [await program.get(f"editor/{path}/{one}") for one in (theirs, unknown)]
        assert verdict(found)[::2] == (404, "operation_not_found"), path
        assert found.text.replace(theirs, unknown) == other.text, path
    assert verdict(await program.post(f"editor/watch/{theirs}"))[::2] == (404, "operation_not_found")
    found = await program.post("editor/execute/duckdb", statement="", operationId=theirs)
    assert verdict(found)[::2] == (404, "operation_not_found")
    assert len((await ana.page(theirs))["data"]) == 2


async def test_running_statement_continues_for_the_user_after_token_revocation(ana: Caller) -> None:
    program, token = await program_of(ana)
    operation = await program.seen_running("mysql", "sleep {} then rows 3")
    await ana.post_ok("token/api_tokens/revoke", id=token)
    for call in ("check_status", "fetch_result_data", "cancel_statement"):
        refused = await program.post(f"editor/{call}", operationId=operation)
        assert (refused.status_code, refused.json()["code"]) == (401, "token_not_valid"), call
    assert (await ana.ended(operation))["query_status"]["state"] == "available"
    assert len((await ana.page(operation))["data"]) == 3


async def test_waiting_statement_runs_after_token_revocation(ana: Caller) -> None:
    program, token = await program_of(ana)
    session = await session_of(program, "mysql")
    first = (await program.execute("mysql", WAITS, session_id=session))["history_uuid"]
    await program.running(first)
    second = (await program.execute("mysql", "rows 2", session_id=session))["history_uuid"]
    assert await program.state(second) == "waiting"
    await ana.post_ok("token/api_tokens/revoke", id=token)
    await ana.on(first, "cancel_statement")
    assert (await ana.ended(second))["query_status"]["state"] == "available"
    assert len((await ana.page(second))["data"]) == 2


async def test_operations_are_denied_after_the_user_loses_the_connector(api: Api) -> None:
    """The user loses the connector while one statement is waiting and another is running. Both can still be
    canceled.
    """
    user = await api.user("leaver", groups=("analysts",))
    program, _ = await program_of(user)
    session = await session_of(program, "closed")
    first = (await program.execute("closed", WAITS, session_id=session))["history_uuid"]
    await program.running(first)
    waiting = (await program.execute("closed", "rows 2", session_id=session))["history_uuid"]
    await leave_group(user, "analysts")
    for caller in (program, user):
        refused = await caller.post("editor/execute/closed", statement="rows 1")
        assert refused.status_code in {403, 404}, refused.text
        for call in ("check_status", "fetch_result_data", "get_logs"):
            refused = await caller.post(f"editor/{call}", operationId=first)
            assert verdict(refused)[::2] == (403, "permission_denied"), call
    assert (await program.post_ok("editor/cancel_statement", operationId=first))["status"] == 0

    async def has_ended() -> bool:
        states = await api.database.fetch("select state from statements where id = any($1::uuid[])", [first, waiting])
        return not {row["state"] for row in states} & {"waiting", "running"}

    await until(has_ended)
    for caller in (program, user):
        refused = await caller.post("editor/fetch_result_data", operationId=waiting)
        assert verdict(refused)[::2] == (403, "permission_denied")


@pytest.mark.parametrize("state", ["running", "waiting"])
async def test_disabling_a_user_ends_their_statements_and_tokens(small_api: ApiOpener, state: str) -> None:
    async with small_api() as api:
        user = await api.user("gone")
        root = await api.user("root", admin=True)
        program, _ = await program_of(user)
        session = await session_of(program, "mysql")
        operations = [(await program.execute("mysql", WAITS, session_id=session))["history_uuid"] for _ in range(2)]
        await program.running(operations[0])
        operation = operations[state == "waiting"]
        await accounts(api).disable(user.username)
        assert (await program.post("editor/check_status", operationId=operation)).status_code == 401
        assert (await root.ended(operation))["query_status"]["state"] == "canceled"
