"""Statements that must only read: the field `read_only` of execute, and API tokens with the scope `query:read`."""

import pytest
from tests.api.dialects import Dialect, every_dialect
from tests.api.driving import Caller
from tests.api.test_api_token_statements import program_of

CHANGE = "CREATE TABLE never_made (n integer)"
RULE = "This call must only read, but the statement begins with CREATE."


@every_dialect
async def test_read_only_statement_reads_and_may_not_change(ana: Caller, dialect: Dialect):
    body = await ana.run(dialect, "SELECT 7 AS n", read_only="true")
    assert (await ana.page(body["history_uuid"]))["data"] == [[7]]
    refused = await ana.run(dialect, CHANGE, read_only="true")
    assert (refused["code"], refused["message"][: len(RULE)]) == ("rejected", RULE)
    missing = await ana.run(dialect, "SELECT n FROM never_made")
    assert missing["code"] == "engine_error"


@every_dialect
async def test_read_only_script_ends_at_the_first_statement_that_may_change(ana: Caller, dialect: Dialect):
    body = await ana.run(dialect, f"SELECT 1; {CHANGE}; SELECT 2", read_only="true", run_all="true")
    assert body["code"] == "rejected"
    assert [part["state"] for part in body["query_status"]["statements"]] == ["available", "failed"]


async def test_continued_script_stays_read_only_unless_the_call_says_otherwise(ana: Caller):
    first = await ana.run("duckdb", "SELECT 1; CREATE TEMPORARY TABLE made (n integer)", read_only="true")
    refused = await ana.run("duckdb", "", operationId=first["history_uuid"])
    assert refused["code"] == "rejected"
    changed = await ana.run("duckdb", "", operationId=first["history_uuid"], read_only="false")
    assert changed["status"] == 0, changed


async def test_token_that_may_only_read_makes_every_statement_read_only(ana: Caller):
    program, _ = await program_of(ana, scopes=["query:read"])
    assert (await program.run("duckdb", "SELECT 1"))["status"] == 0
    for fields in ({}, {"read_only": "false"}):
        assert (await program.run("duckdb", CHANGE, **fields))["code"] == "rejected"


async def test_token_that_may_only_read_writes_nowhere(ana: Caller):
    program, _ = await program_of(ana, scopes=["query:read", "files:write"])
    done = await ana.run("duckdb", "SELECT 1")
    into = '{"path": "/never/made.csv"}'
    for call, fields in (
        ("editor/execute/duckdb", {"statement": "SELECT 1", "into": into}),
        ("editor/export_result", {"operationId": done["history_uuid"], "path": "/never/made.csv"}),
        ("editor/share_result", {"operationId": done["history_uuid"], "users": '["bob"]'}),
        ("documents/save", {"name": "mine", "statement": "SELECT 1"}),
        ("duckdb/analyze/main/t", {}),
    ):
        refused = await program.post(call, **fields)
        assert (call, refused.status_code, refused.json()["code"]) == (call, 403, "insufficient_scope")


@pytest.mark.parametrize("scopes", [["query:read"], ["query"]])
async def test_reading_calls_accept_both_scopes(ana: Caller, scopes: list[str]):
    program, _ = await program_of(ana, scopes=scopes)
    assert (await program.post("editor/autocomplete", snippet='{"type": "duckdb"}')).status_code == 200
    assert (await program.get("editor/get_history")).status_code == 200
