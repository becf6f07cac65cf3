"""The spans of one statement, from the steps of its run."""

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import uuid4

import pytest
from tests.fakes.collector import Collector, running_collector
from tests.unit.statements.driving import CONNECTOR, Run

from queryserver.connectors.model import Connector
from queryserver.engines.protocol import NO_CONTEXT
from queryserver.platform import spans
from queryserver.platform.settings.traces import TracingSettings
from queryserver.platform.spans import open_span_recorder
from queryserver.results.segments import Segment
from queryserver.statements.model import Assignment, EngineCheckpoint, Outcome, Resumption, StatementEnd
from queryserver.statements.recorded_traces import RecordedTraces
from queryserver.statements.states import StatementState

AVAILABLE = Outcome(StatementState.AVAILABLE, has_result_set=True, rows=3)


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    monkeypatch.setattr(spans, "_EXPORT_EVERY_S", 0.05)
    async with running_collector() as opened:
        yield opened


@pytest.fixture
async def traces(collector: Collector) -> AsyncIterator[RecordedTraces]:
    async with open_span_recorder(TracingSettings(otlp_endpoint=collector.url)) as recorder:
        yield RecordedTraces(recorder)


def assignment_of(statement: str = "SELECT 1 FROM sales", **changes: object) -> Assignment:
    return replace(Run().owned.add(statement), recorded_at=time.time() - 1, **changes)


def end_of(assignment: Assignment, state: StatementState = StatementState.AVAILABLE) -> StatementEnd:
    return StatementEnd(
        id=assignment.claim.statement_id,
        user="ana",
        connector="fake",
        dialect="fake",
        state=state,
        outcome="ok",
        rows=3,
        size_bytes=10,
        queued_ms=1000,
        elapsed_ms=0,
        canceled_by=None,
        is_import=False,
        is_script=False,
        operation_id=None,
        traceparent=None,
        lasted_s=1.0,
    )


async def test_resumed_statement_has_no_second_queue(traces: RecordedTraces, collector: Collector) -> None:
    assignment = assignment_of(sent=True, resumption=Resumption(EngineCheckpoint("token")))
    trace = traces.begin(assignment, CONNECTOR)
    with trace.reading(), trace.storing():
        trace.stored(Segment(0, 0, 3, 10))
    trace.finished(AVAILABLE)
    traces.ended(end_of(assignment))
    root = await collector.named("statement")
    found = collector.below(root)
    assert list(found) == ["SELECT sales", "spool", "store"]
    assert found["SELECT sales"].attributes["queryserver.resumed"]
    assert found["store"].attributes["queryserver.segments"] == 1


async def test_processes_that_share_a_statement_share_its_trace(traces: RecordedTraces, collector: Collector) -> None:
    assignment = assignment_of()
    first = traces.begin(assignment, CONNECTOR)
    first.sent()
    first.close()  # left running for another process
    second = traces.begin(replace(assignment, sent=True), CONNECTOR)
    with second.reading():
        pass
    second.finished(AVAILABLE)
    traces.ended(end_of(assignment))
    root = await collector.named("statement")
    children = [one.name for one in collector.spans if one.parent == root.span_id]
    assert sorted(children) == ["SELECT sales", "SELECT sales", "queue", "spool", "store"]
    assert len({one.trace_id for one in collector.spans}) == 1


async def test_statement_that_is_sent_twice_has_one_span_of_the_engine(
    traces: RecordedTraces, collector: Collector
) -> None:
    assignment = assignment_of()
    trace = traces.begin(assignment, CONNECTOR)
    trace.sent()
    trace.sent()
    trace.finished(Outcome(StatementState.FAILED, error_code="engine_unavailable"))
    traces.ended(end_of(assignment, StatementState.FAILED))
    root = await collector.named("statement")
    engine = collector.below(root)["SELECT sales"]
    assert engine.attributes["error.type"] == "engine_unavailable"
    assert sum(one.kind == "client" for one in collector.spans) == 1


async def test_rows_of_a_stored_result_are_not_attributed_to_the_engine(
    traces: RecordedTraces, collector: Collector
) -> None:
    assignment = assignment_of(source_operation=uuid4())
    trace = traces.begin(assignment, CONNECTOR)
    trace.sent()
    assert trace.engine_context(NO_CONTEXT).traceparent
    trace.finished(AVAILABLE)
    traces.ended(end_of(assignment))
    found = collector.below(await collector.named("statement"))
    assert list(found) == ["queue", "stored result", "store"]
    assert found["stored result"].kind == "internal"


async def test_steps_after_the_end_record_nothing(traces: RecordedTraces, collector: Collector) -> None:
    assignment = assignment_of()
    trace = traces.begin(assignment, CONNECTOR)
    trace.sent()
    trace.finished(Outcome(StatementState.TIMED_OUT))
    traces.ended(end_of(assignment, StatementState.TIMED_OUT))
    trace.sent()
    trace.finished(Outcome(StatementState.CANCELED))
    with trace.storing():
        pass
    trace.close()
    found = collector.below(await collector.named("statement"))
    assert list(found) == ["queue", "SELECT sales", "store"]
    assert found["SELECT sales"].attributes["error.type"] == "timed_out"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"url": "postgresql://u:planted@db:5433/shop"}, ("db", 5433, "shop")),
        ({"url": "postgresql://u:planted@db/shop"}, ("db", 5432, "shop")),
        ({"url": "postgresql://u:pl/an@ted@db/shop"}, (None, None, None)),
        ({"url": "http://coordinator:8080"}, ("coordinator", 8080, None)),
        ({"server_host": "hs2", "server_port": 10000}, ("hs2", 10000, None)),
        ({"server_host": "hs2:10001"}, ("hs2", 10001, None)),
        ({"server_host": "[::1]:10001"}, ("::1", 10001, None)),
        ({"server_host": "a,b", "password": "planted"}, (None, None, None)),
        ({"path": "planted.duckdb"}, (None, None, None)),
    ],
)
async def test_engine_is_located_by_host_and_port_only(
    traces: RecordedTraces, collector: Collector, options: dict[str, str | int], expected: tuple[object, ...]
) -> None:
    connector: Connector = replace(CONNECTOR, options=options)
    assignment = assignment_of(database=None)
    trace = traces.begin(assignment, connector)
    trace.sent()
    trace.close()
    found = (await collector.named("SELECT sales")).attributes
    assert tuple(found.get(name) for name in ("server.address", "server.port", "db.namespace")) == expected
    assert b"planted" not in b"".join(collector.bodies)
