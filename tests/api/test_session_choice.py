"""Which sessions a statement may name (Contract editor 9.3)."""

import json

from tests.api.driving import Caller

MISSING = (404, -1, "session_not_found")


async def test_a_statement_in_a_closed_session_is_recorded_and_fails(ana: Caller, bob: Caller):
    session = (await ana.told("editor/create_session", session='{"type": "mysql"}'))["session"]["id"]
    await ana.told("editor/close_session", session=json.dumps({"type": "mysql", "id": session}))
    lost = await ana.run("mysql", "rows 1", session_id=session)
    assert lost["code"] == "session_lost"
    assert lost["message"].startswith("Invalid session Id")
    assert await bob.refused("editor/execute/mysql", statement="rows 1", session_id=session) == MISSING


async def test_the_session_of_a_script_cannot_be_named(ana: Caller):
    first = await ana.run("mysql", "rows 1; rows 2")
    kept = first["handle"]["session_id"]
    assert await ana.refused("editor/execute/mysql", statement="rows 1", session_id=kept) == MISSING
    second = await ana.run("mysql", "", operationId=first["history_uuid"])
    assert second["handle"]["session_id"] == kept
