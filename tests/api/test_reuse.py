"""Statements that are answered with the stored result of an earlier one (Contract editor 4.8)."""

import json
from typing import Any
from uuid import UUID

import pytest
from tests.api.conftest import ApiOpener
from tests.api.dialects import DUCKDB, POSTGRESQL, Dialect, every_dialect
from tests.api.driving import Api, Caller, verdict

from queryserver.results.segments import directory_of
from queryserver.statements.model import NewStatement
from queryserver.statements.reuse import ResultReuse

HOUR = 3600
_SLOTS = 8
"""How many statements of one user run on a connector at the same time."""
HELLO = "SELECT 'Hello World!'"
RANDOM = "SELECT random() AS n"
"""Gives another value whenever the engine is asked."""


async def asked(caller: Caller, statement: str = RANDOM, dialect: object = POSTGRESQL, **fields: Any) -> dict[str, Any]:
    """Execute with `max_age_s` of an hour; return the body, which must report success."""
    body = await caller.run(dialect, statement, **{"max_age_s": HOUR, "rows": 100, **fields})
    assert body["status"] == 0, body
    return body


def origin(body: dict[str, Any]) -> str | None:
    """Return the operation whose rows were reused, or None."""
    return body["query_status"].get("reused_from")


async def make_older(api: Api, operation: str, seconds: int) -> None:
    """Move all times of a statement into the past."""
    await api.database.execute(
        "update statements set recorded_at = recorded_at - make_interval(secs => $2),"
        " sent_at = sent_at - make_interval(secs => $2), ended_at = ended_at - make_interval(secs => $2) where id = $1",
        UUID(operation),
        seconds,
    )


class TestAnswers:
    @pytest.mark.item(102)
    @every_dialect
    async def test_the_same_query_is_answered_with_its_stored_rows(self, ana: Caller, dialect: Dialect):
        first = await ana.run(dialect, f"{RANDOM}, 'seen by {dialect}' AS place", rows=10)
        again = await asked(ana, f"{RANDOM}, 'seen by {dialect}' AS place", dialect)
        assert again["result"]["data"] == first["result"]["data"]
        assert again["result"]["meta"] == first["result"]["meta"]
        assert again["history_uuid"] != first["history_uuid"]
        status = again["query_status"]
        assert (status["state"], status["rows"], status["truncated"]) == ("available", 1, False)
        assert (status["reused_from"], origin(first)) == (first["history_uuid"], None)
        assert 0 < status["reused_age_s"] <= 60
        checked = (await ana.on(again["history_uuid"], "check_status"))["query_status"]
        assert [checked[name] for name in ("reused_from", "reused_age_s")] == [
            status[name] for name in ("reused_from", "reused_age_s")
        ]
        logs = (await ana.on(again["history_uuid"], "get_logs"))["logs"]
        assert f"stored result of operation {first['history_uuid']}" in logs
        entries = {one["uuid"]: one["data"] for one in (await ana.history())["history"]}
        assert entries[again["history_uuid"]]["reused_from"] == first["history_uuid"]
        assert "reused_from" not in entries[first["history_uuid"]]

    @pytest.mark.item(102)
    async def test_calls_without_max_age_are_sent(self, ana: Caller):
        first = await asked(ana)
        for fields in ({"max_age_s": 0}, {}):
            body = await ana.run(POSTGRESQL, RANDOM, rows=1, **fields)
            assert (origin(body), body["result"]["data"] == first["result"]["data"]) == (None, False)

    @pytest.mark.item(105)
    async def test_a_large_result_is_copied(self, ana: Caller):
        statement = "SELECT n, random() AS r, repeat('x', 100) AS t FROM generate_series(1, 20000) AS n"
        first = await asked(ana, statement)
        again = await asked(ana, statement)
        assert origin(again) == first["history_uuid"]
        await ana.on(first["history_uuid"], "close_statement")
        page = await ana.page(again["history_uuid"], start_row=0, rows=100_000)
        assert (len(page["data"]), page["data"][:100]) == (20_000, first["result"]["data"])

    @pytest.mark.item(105)
    async def test_a_chain_names_the_first_operation_and_its_age(self, api: Api, ana: Caller):
        first = await asked(ana, f"{RANDOM} -- chain")
        await make_older(api, first["history_uuid"], 600)
        second = await asked(ana, f"{RANDOM} -- chain")
        await ana.on(first["history_uuid"], "close_statement")
        third = await asked(ana, f"{RANDOM} -- chain")
        assert [origin(one) for one in (second, third)] == [first["history_uuid"]] * 2
        assert third["query_status"]["reused_age_s"] >= second["query_status"]["reused_age_s"] >= 600
        assert third["result"]["data"] == second["result"]["data"] == first["result"]["data"]
        # The age is that of the rows, not of the copies.
        assert origin(await asked(ana, f"{RANDOM} -- chain", max_age_s=599)) is None

    async def test_rows_beyond_the_limit_of_the_call_stay_cut(self, ana: Caller):
        statement = POSTGRESQL.rows(30)
        first = await asked(ana, statement, limit=10)
        again = await asked(ana, statement, limit=10)
        assert origin(again) == first["history_uuid"]
        for name in ("rows", "truncated", "truncated_reason", "truncated_by", "message"):
            assert again["query_status"][name] == first["query_status"][name]
        assert again["query_status"]["truncated_by"] == "limit"
        assert origin(await asked(ana, statement, limit=11)) is None
        assert origin(await asked(ana, statement)) is None

    @pytest.mark.item(107)
    async def test_parameter_values_must_be_the_same(self, api: Api, ana: Caller):
        statement = "SELECT CAST(:a AS integer) AS a, random() AS r"
        first = await asked(ana, statement, parameters='{"a": 4711}')
        assert origin(await asked(ana, statement, parameters='{ "a": 4711 }')) == first["history_uuid"]
        assert origin(await asked(ana, statement, parameters='{"a": 4712}')) is None
        kept = await api.database.value("select reuse_key from statements where id = $1", UUID(first["history_uuid"]))
        assert (len(kept), b"4711" in kept) == (16, False)
        other = await (await api.user()).run(POSTGRESQL, statement, parameters='{"a": 4711}')
        theirs = await api.database.value("select reuse_key from statements where id = $1", UUID(other["history_uuid"]))
        assert theirs not in (None, kept)

    async def test_a_whole_script_of_one_query_is_reused(self, ana: Caller):
        first = await asked(ana, f"{RANDOM} -- whole;", run_all="true")
        again = await asked(ana, f"{RANDOM} -- whole;", run_all="true")
        assert origin(again) == first["history_uuid"]
        assert again["result"]["data"] == first["result"]["data"]

    async def test_answers_do_not_wait_for_the_connector(self, ana: Caller):
        first = await asked(ana, HELLO, "mysql")
        running = [(await ana.execute("mysql", "sleep 300"))["history_uuid"] for _ in range(_SLOTS)]
        for operation in running:
            await ana.running(operation)
        waiting = (await ana.execute("mysql", "rows 1"))["history_uuid"]
        again = await asked(ana, HELLO, "mysql")
        assert (origin(again), await ana.state(waiting)) == (first["history_uuid"], "waiting")
        for operation in (*running, waiting):
            await ana.on(operation, "cancel_statement")


class TestOthers:
    @pytest.mark.item(103)
    @pytest.mark.parametrize(
        ("statement", "fields"),
        [
            ("SELECT  random() AS n -- text", {}),
            ("SELECT random() AS n -- text", {"database": "information_schema"}),
            ("SELECT random() AS n -- text", {"limit": 7}),
            ("SELECT random() AS n -- text", {"max_age_s": 1}),
        ],
        ids=["text", "database", "limit", "age"],
    )
    async def test_a_query_that_differs_is_sent(self, api: Api, ana: Caller, statement: str, fields: dict[str, Any]):
        first = await asked(ana, "SELECT random() AS n -- text", max_age_s=0)
        await make_older(api, first["history_uuid"], 60)
        assert origin(await asked(ana, "SELECT random() AS n -- text")) == first["history_uuid"]
        assert origin(await asked(ana, statement, **fields)) is None

    @pytest.mark.item(103)
    async def test_settings_must_be_the_same(self, ana: Caller):
        def snippet(value: str) -> str:
            settings = [{"key": "work_mem", "value": value}]
            return json.dumps({"statement": RANDOM, "type": "postgresql", "properties": {"settings": settings}})

        first = await ana.post_ok("editor/execute", snippet=snippet("8MB"), max_age_s=HOUR, wait=60)
        for value, expected in (("8MB", first["history_uuid"]), ("9MB", None)):
            body = await ana.post_ok("editor/execute", snippet=snippet(value), max_age_s=HOUR, wait=60)
            assert origin(body) == expected

    @pytest.mark.item(103)
    async def test_results_of_other_users_and_connectors_are_not_used(self, api: Api, ana: Caller):
        bob = await api.user()
        await asked(ana, f"{RANDOM} -- others")
        assert origin(await asked(bob, f"{RANDOM} -- others")) is None
        assert origin(await asked(ana, f"{RANDOM} -- others", "warehouse")) is None

    @pytest.mark.item(104)
    @pytest.mark.parametrize(
        "statement",
        [
            "EXPLAIN SELECT 1",
            "CREATE TABLE IF NOT EXISTS reuse_made (n integer)",
            "WITH x AS (INSERT INTO reuse_written VALUES (1) RETURNING n) SELECT * FROM x",
            "SELECT nextval('reuse_numbers')",
            "SELECT n FROM reuse_written FOR UPDATE",
        ],
        ids=["explain", "create", "insert", "sequence", "lock"],
    )
    async def test_only_queries_are_reused(self, ana: Caller, statement: str):
        await ana.run(POSTGRESQL, "CREATE TABLE IF NOT EXISTS reuse_written (n integer)")
        await ana.run(POSTGRESQL, "CREATE SEQUENCE IF NOT EXISTS reuse_numbers")
        for _ in range(2):
            assert origin(await asked(ana, statement)) is None

    @pytest.mark.item(104)
    async def test_statements_of_scripts_and_sessions_are_not_reused(self, ana: Caller):
        for _ in range(2):
            first = await asked(ana, f"{RANDOM}; {RANDOM}")
            second = await ana.post_ok("editor/execute", operationId=first["history_uuid"], max_age_s=HOUR, wait=60)
            assert [origin(one) for one in (first, second)] == [None, None]
        # The session of this script is still open, so a query that continues in it may depend on its state.
        await asked(ana)
        unfinished = await asked(ana, f"{RANDOM}; {RANDOM}")
        result = {"handle": {"guid": unfinished["handle"]["guid"]}}
        snippet = json.dumps({"statement": RANDOM, "type": "postgresql", "result": result})
        body = await ana.post_ok("editor/execute", snippet=snippet, max_age_s=HOUR, wait=60)
        assert (body["handle"]["session_id"], origin(body)) == (unfinished["handle"]["session_id"], None)
        session = (await ana.post_ok("editor/create_session", session='{"type": "postgresql"}'))["session"]
        for _ in range(2):
            assert origin(await asked(ana, RANDOM, session_id=session["id"])) is None
        for _ in range(2):
            assert origin(await asked(ana, HELLO, "together")) is None

    @pytest.mark.item(103)
    @pytest.mark.parametrize("change", ["closed", "expiring", "failed"])
    async def test_results_that_are_gone_are_not_used(self, api: Api, ana: Caller, change: str):
        statement = "SELECT 1 / 0" if change == "failed" else f"{RANDOM} -- {change}"
        body = await ana.run(POSTGRESQL, statement)
        operation = body["history_uuid"]
        if change == "closed":
            await ana.on(operation, "close_statement")
        elif change == "expiring":
            soon = "update statements set expires_at = now() + interval '50 s' where id = $1"
            await api.database.execute(soon, UUID(operation))
        again = await ana.run(POSTGRESQL, statement, max_age_s=HOUR)
        assert (again["status"], origin(again)) == (body["status"], None)
        if change != "expiring":
            read = "select reuse_key from statements where id = $1"
            assert await api.database.value(read, UUID(operation)) is None

    @pytest.mark.item(103)
    async def test_results_cut_by_the_server_are_not_used(self, small_api: ApiOpener):
        async with small_api(result_max_rows=20, default_limit=0) as api:
            ana = await api.user()
            for _ in range(2):
                body = await asked(ana, DUCKDB.rows(30), DUCKDB)
                assert (body["query_status"]["truncated_by"], origin(body)) == ("result_max_rows", None)

    @pytest.mark.item(106)
    async def test_a_source_that_vanishes_is_replaced_by_the_data_source(
        self, ana: Caller, monkeypatch: pytest.MonkeyPatch
    ):
        first = await asked(ana, f"{RANDOM} -- vanishes")
        decide = ResultReuse.answered

        async def close_after_decision(self: ResultReuse, new: NewStatement, *more: Any) -> NewStatement:
            decided = await decide(self, new, *more)
            assert decided.source_operation == UUID(first["history_uuid"])
            await ana.on(first["history_uuid"], "close_statement")
            return decided

        monkeypatch.setattr(ResultReuse, "answered", close_after_decision)
        again = await asked(ana, f"{RANDOM} -- vanishes")
        assert (again["query_status"]["state"], origin(again)) == ("available", None)
        assert again["result"]["data"] != first["result"]["data"]
        logs = (await ana.on(again["history_uuid"], "get_logs"))["logs"]
        assert "The stored result cannot be reused, so the data source is asked" in logs

    @pytest.mark.item(106)
    @pytest.mark.parametrize("loss", ["removed", "shortened"])
    async def test_a_source_that_has_lost_later_rows_is_replaced_by_the_data_source(
        self, api: Api, ana: Caller, loss: str
    ):
        statement = f"SELECT random() AS r, repeat('x', 1000) AS t FROM generate_series(1, 15000) -- {loss}"
        first = await asked(ana, statement)
        stored = api.services.settings.desktop.data_dir / "results" / directory_of(UUID(first["history_uuid"]))
        *_, last = sorted(stored.iterdir())
        assert len(list(stored.iterdir())) > 1
        if loss == "removed":
            last.unlink()
        else:
            last.write_bytes(last.read_bytes()[:-1])
        again = await asked(ana, statement)
        assert (again["query_status"]["state"], again["query_status"]["rows"], origin(again)) == (
            "available", 15_000, None
        )  # fmt: skip
        assert again["result"]["data"] != first["result"]["data"]
        logs = (await ana.on(again["history_uuid"], "get_logs"))["logs"]
        assert "The stored result cannot be reused, so the data source is asked" in logs


class TestRequests:
    @pytest.mark.parametrize("value", ["-1", "x", "1.5", "31536001"])
    async def test_bad_ages_are_refused(self, ana: Caller, value: str):
        answer = await ana.post("editor/execute/mysql", statement="rows 1", max_age_s=value)
        assert verdict(answer) == (400, -1, "invalid_parameter")

    async def test_an_idempotency_key_covers_the_age(self, ana: Caller):
        fields = {"statement": HELLO, "client_request_id": "reuse"}
        first = await ana.post_ok("editor/execute/mysql", max_age_s=HOUR, **fields)
        again = await ana.post_ok("editor/execute/mysql", max_age_s=HOUR, **fields)
        assert again["history_uuid"] == first["history_uuid"]
        assert await ana.refused("editor/execute/mysql", **fields) == (409, -1, "idempotency_conflict")

    @pytest.mark.item(103)
    async def test_a_connector_gives_the_default(self, api: Api):
        boss = await api.user("boss", admin=True)
        settings = [{"name": "path", "value": ":memory:"}, {"name": "reuse_max_age_s", "value": "3600"}]
        made = {"nice_name": "Reusing", "dialect": "duckdb", "interface": "duckdb", "settings": settings}
        answer = await boss.post_json("connector/instance/update", connector=made)
        assert answer.status_code == 200, answer.text
        made = answer.json()["connector"]
        name = f"duckdb-{made['id']}"
        first = await boss.run(name, RANDOM, rows=1)
        assert origin(await boss.run(name, RANDOM)) == first["history_uuid"]
        assert origin(await boss.run(name, RANDOM, max_age_s=0)) is None
        # Another version of the connector may lead to other data.
        made["settings"] = [*settings, {"name": "threads", "value": "1"}]
        updated = await boss.post_json("connector/instance/update", connector=made)
        assert updated.status_code == 200, updated.text
        assert origin(await boss.run(name, RANDOM)) is None
