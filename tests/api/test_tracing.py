"""Traces of statements, as a collector receives them (Contract platform 9.6)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.api.conftest import make_settings
from tests.api.driving import Api, Caller, open_api
from tests.fakes.collector import Collector, ReceivedSpan, running_collector
from tests.modes import TASK_SERVER
from tests.timing import until

from queryserver.platform import spans as module
from queryserver.platform.settings.traces import TracingSettings

TRACE_ID, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE_ID}-{CALLER}-01"}
UNSAMPLED = {"traceparent": f"00-{TRACE_ID}-{CALLER}-00"}
SLACK_NS = 250_000_000
"""The database and this process may disagree about a time by this much, because they read it one after the other."""


@pytest.fixture(autouse=True)
def prompt_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_EXPORT_EVERY_S", 0.05)


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with running_collector() as opened:
        yield opened


@pytest.fixture
def traced(tmp_path: Path, database_dsn: str, users_url: str, collector: Collector) -> Any:
    """A function that opens an application whose spans the collector receives."""

    @asynccontextmanager
    async def opener(*, editor: dict[str, Any] | None = None, **tracing: Any) -> AsyncIterator[Api]:
        settings = make_settings(tmp_path, database_dsn, users_url, **(editor or {}))
        tracing = {"otlp_endpoint": collector.url, **tracing}
        settings = settings.model_copy(update={"tracing": TracingSettings.model_validate(tracing)})
        async with open_api(settings) as api:
            yield api

    return opener


async def run(user: Caller, dialect: str, statement: str, **more: Any) -> dict[str, Any]:
    """Run a statement whose call is part of the trace TRACE_ID, and return the response."""
    headers = more.pop("headers", SAMPLED)
    fields = {"statement": statement, "wait": 60, **more}
    return (await user.send("POST", f"editor/execute/{dialect}", data=fields, headers=headers)).json()


def tree(collector: Collector, root: ReceivedSpan) -> set[str]:
    children = collector.below(root)
    for child in children.values():
        assert root.start_ns - SLACK_NS <= child.start_ns <= child.end_ns <= root.end_ns + SLACK_NS, child
    return set(children)


@pytest.mark.platform(127)
async def test_the_spans_of_a_statement_are_children_of_the_callers_span(traced: Any, collector: Collector) -> None:
    async with traced() as api:
        user = await api.user("ana")
        body = await run(user, "postgresql", "SELECT generate_series(1, 3) FROM pg_class LIMIT 3")
        root = await collector.named("statement")
    assert (root.trace_id, root.parent, root.kind, root.failed) == (TRACE_ID, CALLER, "server", False)
    assert root.attributes == {
        "enduser.id": user.username,
        "queryserver.operation_id": body["history_uuid"],
        "queryserver.connector": "postgresql",
        "queryserver.dialect": "postgresql",
        "queryserver.state": "available",
        "queryserver.rows": 3,
        "queryserver.stored_bytes": root.attributes["queryserver.stored_bytes"],
    }
    assert tree(collector, root) == {"queue", "SELECT pg_class", "spool", "store"}
    children = list(collector.below(root))
    assert children[:2] == ["queue", "SELECT pg_class"]


async def test_the_span_of_the_engine_follows_the_conventions_for_databases(traced: Any, collector: Collector) -> None:
    async with traced() as api:
        await run(await api.user("ana"), "postgresql", "SELECT 'planted' FROM pg_class LIMIT 2")
        await collector.named("statement")
        engine = await collector.named("SELECT pg_class")
    assert engine.kind == "client"
    assert not engine.failed
    attributes = dict(engine.attributes)
    assert isinstance(attributes.pop("server.address"), str)
    assert isinstance(attributes.pop("server.port"), int)
    assert isinstance(attributes.pop("db.namespace"), str)
    assert attributes == {
        "db.system.name": "postgresql",
        "db.operation.name": "SELECT",
        "db.query.summary": "SELECT pg_class",
        "db.response.returned_rows": 2,
    }


async def test_large_results_have_one_span_for_all_segments(traced: Any, collector: Collector) -> None:
    async with traced() as api:
        await run(await api.user("ana"), "duckdb", "SELECT range AS n, repeat('x', 100) AS t FROM range(200000)")
        root = await collector.named("statement")
    store = collector.below(root)["store"]
    assert store.attributes["queryserver.segments"] >= 2
    assert store.attributes["queryserver.stored_bytes"] == root.attributes["queryserver.stored_bytes"] > 0
    assert sum(one.name == "store" for one in collector.spans) == 1


async def test_a_failure_has_the_code_of_the_engine_and_no_message(traced: Any, collector: Collector) -> None:
    async with traced() as api:
        body = await run(await api.user("ana"), "postgresql", "SELECT 'planted' FROM missing_planted_table")
        root = await collector.named("statement")
    assert body["status"] == 1
    engine = collector.below(root)["SELECT missing_planted_table"]
    assert engine.failed
    assert engine.attributes["error.type"] == engine.attributes["db.response.status_code"] == "42P01"
    assert (root.failed, root.attributes["error.type"]) == (True, body["code"])
    assert (engine.message, root.message) == ("", "")


async def test_a_canceled_statement_has_not_failed(traced: Any, collector: Collector) -> None:
    async with traced() as api:
        user = await api.user("ana")
        operation = (await run(user, "mysql", "sleep 60", wait=0))["history_uuid"]
        await user.running(operation)
        await user.on(operation, "cancel_statement")
        root = await collector.named("statement")
    assert (root.attributes["queryserver.state"], root.failed) == ("canceled", False)
    assert root.attributes["queryserver.canceled_by"] == user.username
    assert {"queue", "SLEEP"} <= tree(collector, root)


async def test_the_time_in_the_queue_is_that_of_the_record(traced: Any, collector: Collector) -> None:
    async with traced() as api:
        user = await api.user("ana")
        busy = [(await run(user, "mysql", "work", wait=0))["history_uuid"] for _ in range(8)]
        for operation in busy:
            await user.running(operation)
        waiting = (await run(user, "mysql", "rows 2", wait=0))["history_uuid"]
        await asyncio.sleep(1.2)
        api.fakes["mysql"].finish.set()
        await user.ended(waiting)
        await until(lambda: len([one for one in collector.spans if one.name == "statement"]) == 9)
    root = next(one for one in collector.spans if one.attributes.get("queryserver.operation_id") == waiting)
    queue = collector.below(root)["queue"]
    assert 1.1e9 < queue.end_ns - queue.start_ns < root.end_ns - root.start_ns + SLACK_NS


async def test_a_statement_that_is_canceled_in_the_queue_has_a_span(traced: Any, collector: Collector) -> None:
    async with traced() as api:
        user = await api.user("ana")
        for _ in range(8):
            await user.running((await run(user, "mysql", "work", wait=0, headers=UNSAMPLED))["history_uuid"])
        waiting = (await run(user, "mysql", "rows 2", wait=0))["history_uuid"]
        await user.on(waiting, "cancel_statement")
        root = await collector.named("statement")
        api.fakes["mysql"].finish.set()
    assert root.attributes["queryserver.operation_id"] == waiting
    assert tree(collector, root) <= {"queue"}  # no process has claimed it if workers run statements


async def test_a_worker_continues_the_trace(traced: Any, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TASK_SERVER, "1")
    async with traced() as api:
        body = await run(await api.user("ana"), "mysql", "rows 2")
        root = await collector.named("statement")
        contexts = api.fakes["mysql"].contexts
    assert (root.trace_id, root.parent, root.role) == (TRACE_ID, CALLER, "worker")
    assert root.attributes["queryserver.operation_id"] == body["history_uuid"]
    assert tree(collector, root) == {"queue", "ROWS", "spool", "store"}
    children = collector.below(root)
    assert {one.role for one in children.values()} == {"worker"}
    assert abs(children["queue"].start_ns - root.start_ns) < SLACK_NS
    assert contexts[-1].traceparent == f"00-{TRACE_ID}-{children['ROWS'].span_id}-01"


async def test_statements_of_a_script_are_children_of_its_span(traced: Any, collector: Collector) -> None:
    async with traced() as api:
        user = await api.user("ana")
        body = await run(user, "duckdb", "SELECT 1; SELECT 2; SELECT 3", run_all="true")
        root = await collector.named("script")
    assert (root.trace_id, root.parent) == (TRACE_ID, CALLER)
    assert root.attributes["queryserver.operation_id"] == body["history_uuid"]
    parts = [one for one in collector.spans if one.parent == root.span_id]
    assert [one.name for one in parts] == ["statement"] * 3
    assert len({one.attributes["queryserver.statement_id"] for one in parts}) == 3
    assert all(collector.below(one).keys() >= {"queue", "SELECT", "spool"} for one in parts)


async def test_without_a_caller_all_spans_of_a_script_share_a_trace(traced: Any, collector: Collector) -> None:
    async with traced() as api:
        await run(await api.user("ana"), "duckdb", "SELECT 1; SELECT * FROM missing", run_all="true", headers={})
        root = await collector.named("script")
    assert (root.parent, root.failed) == ("", True)
    assert {one.trace_id for one in collector.spans} == {root.trace_id}
    assert root.trace_id != TRACE_ID


@pytest.mark.parametrize("headers", [UNSAMPLED, {}], ids=["caller", "share"])
async def test_statements_that_are_not_sampled_have_no_spans(
    traced: Any, collector: Collector, headers: dict[str, str]
) -> None:
    async with traced(sample_percent=0) as api:
        user = await api.user("ana")
        await run(user, "duckdb", "SELECT 1", headers=headers)
        await run(user, "duckdb", "SELECT 2")
        await collector.named("statement")
    assert sum(one.name == "statement" for one in collector.spans) == 1


@pytest.mark.parametrize(
    "traceparent", ["", "00-0-0-00", f"00-{'0' * 32}-{CALLER}-01", f"ff-{TRACE_ID}-{CALLER}-01", "x" * 55]
)
async def test_an_invalid_traceparent_is_ignored(traced: Any, collector: Collector, traceparent: str) -> None:
    async with traced() as api:
        body = await run(await api.user("ana"), "duckdb", "SELECT 1", headers={"traceparent": traceparent})
        root = await collector.named("statement")
    assert body["status"] == 0
    assert (root.parent, root.trace_id == TRACE_ID) == ("", False)


async def test_the_engine_receives_the_span_of_the_engine_as_parent(traced: Any, collector: Collector) -> None:
    async with traced() as api:
        await run(await api.user("ana"), "mysql", "rows 1")
        root = await collector.named("statement")
        contexts = api.fakes["mysql"].contexts
    engine = collector.below(root)["ROWS"]
    assert contexts[-1].traceparent == f"00-{TRACE_ID}-{engine.span_id}-01"


async def test_without_tracing_the_engine_receives_the_callers_span(traced: Any, collector: Collector) -> None:
    async with traced(otlp_endpoint="") as api:
        await run(await api.user("ana"), "mysql", "rows 1")
        assert api.fakes["mysql"].contexts[-1].traceparent == SAMPLED["traceparent"]
    assert not collector.spans


@pytest.mark.platform(128)
async def test_spans_contain_no_text_of_a_statement_unless_a_setting_permits_it(
    traced: Any, collector: Collector
) -> None:
    statements = (
        "SELECT 'planted' FROM missing WHERE secret = 'planted'",
        "SET x = 'planted'",
        "SELECT CAST('planted' AS integer)",
    )
    async with traced() as api:
        user = await api.user("ana")
        for statement in statements:
            await run(user, "postgresql", statement)
        await run(user, "postgresql", "SELECT :word", parameters=json.dumps({"word": "planted"}))
        await until(lambda: sum(one.name == "statement" for one in collector.spans) == 4)
    assert all(b"planted" not in body for body in collector.bodies)


async def test_a_setting_adds_the_text_of_statements(traced: Any, collector: Collector) -> None:
    async with traced(query_text=True) as api:
        await run(await api.user("ana"), "duckdb", "SELECT 'shown'")
        await collector.named("statement")
        engine = await collector.named("SELECT")
    assert engine.attributes["db.query.text"] == "SELECT 'shown'"


async def test_passwords_of_connectors_are_not_in_spans(traced: Any, collector: Collector) -> None:
    async with traced() as api:
        await run(await api.user("ana"), "postgresql", "SELECT 1")
        await collector.named("statement")
    assert all(b"planted-secret" not in body for body in collector.bodies)


@pytest.mark.platform(129)
async def test_statements_run_while_the_collector_hangs(traced: Any, collector: Collector) -> None:
    collector.hangs = True
    async with traced(timeout_s=1) as api:
        user = await api.user("ana")
        for number in range(20):
            body = await run(user, "duckdb", f"SELECT {number}")
            assert body["status"] == 0
