"""Statements whose rows go to a destination instead of into their result."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import pyarrow as pa
import pytest
from tests.fakes.engine import FakeEngine

from queryserver.engines.protocol import EngineSession, OperationState, OperationStatus, SessionOptions
from queryserver.errors.base import PermissionDenied
from queryserver.errors.statements import EngineUnavailable
from queryserver.exports.model import ExportSummary
from queryserver.exports.session import Exports
from queryserver.formats.arrow import Column
from queryserver.identity.model import User
from queryserver.statements.job_session import JobReport
from queryserver.statements.model import Assignment, Claim
from queryserver.statements.states import LimitSource

ANA = User(1, "ana")


@dataclass
class MemorySink:
    """Keeps the rows of one export."""

    rows: list[int] = field(default_factory=list[int])
    refusal: Exception | None = None
    failure: Exception | None = None
    is_closed: bool = False

    @asynccontextmanager
    async def open(self, assignment: Assignment, user: User) -> AsyncGenerator["MemorySink"]:
        assert (assignment.destination, user) == ({"kind": "memory"}, ANA)
        if self.refusal is not None:
            raise self.refusal
        try:
            yield self
        finally:
            self.is_closed = True

    async def write(
        self, columns: Sequence[Column], batches: AsyncIterator[pa.RecordBatch], report: JobReport
    ) -> ExportSummary:
        assert [column.name for column in columns] == ["n"]
        if self.failure is not None:
            raise self.failure
        async for batch in batches:
            self.rows += batch.column(0).to_pylist()
        return ExportSummary(len(self.rows), "[]", path="memory")


def assignment(*, row_limit: int = 1_000_000, kind: str = "memory") -> Assignment:
    source = LimitSource.MAXIMUM if row_limit == 1_000_000 else LimitSource.CALLER
    return Assignment(
        Claim(uuid4(), "me", 1), 1, "fake", "fake", "", None, {}, 1, False, False, row_limit, time.monotonic() + 60,
        limit_source=source, destination={"kind": kind},
    )  # fmt: skip


@asynccontextmanager
async def export_session(
    engine: FakeEngine, sink: MemorySink, work: Assignment | None = None
) -> AsyncGenerator[EngineSession]:
    async with (
        engine.session(ANA, SessionOptions()) as source,
        Exports({"memory": sink.open}).session(work or assignment(), ANA, source) as session,
    ):
        yield session


async def outcome(
    engine: FakeEngine, sink: MemorySink, statement: str, work: Assignment | None = None
) -> tuple[OperationStatus, list[dict[str, object]]]:
    async with export_session(engine, sink, work) as session:
        handle = await session.submit(statement)
        status = await session.poll(handle, wait_s=30)
        rows = [row for batch in [one async for one in session.batches(handle)] for row in batch.to_pylist()]
    return status, rows


async def test_rows_go_to_the_destination_and_the_result_is_a_summary() -> None:
    sink = MemorySink()
    status, rows = await outcome(FakeEngine(), sink, "rows 2500")
    assert (status.state, sink.rows, sink.is_closed) == (OperationState.FINISHED, list(range(2500)), True)
    assert rows == [{"rows": 2500, "bytes": None, "files": None, "path": "memory", "table": None, "schema": "[]"}]


@pytest.mark.parametrize("limit", [1, 1000, 1001])
async def test_only_a_limit_of_the_caller_applies(limit: int) -> None:
    sink = MemorySink()
    await outcome(FakeEngine(), sink, "rows 2500", assignment(row_limit=limit))
    assert sink.rows == list(range(limit))


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("fail oops", "oops"),
        ("rows 10 then fail oops", "oops"),
        ("ddl", "The statement has no result set, so nothing was exported."),
    ],
)
async def test_failure_of_the_source_is_the_outcome(statement: str, message: str) -> None:
    sink = MemorySink()
    status, rows = await outcome(FakeEngine(), sink, statement)
    assert (status.state, rows, sink.is_closed) == (OperationState.FAILED, [], True)
    assert status.error is not None
    assert message in status.error.message


async def test_destination_that_fails_after_the_send_does_not_have_the_statement_sent_again() -> None:
    engine, sink = FakeEngine(), MemorySink(failure=EngineUnavailable("The target is away."))
    status, _ = await outcome(engine, sink, "rows 1")
    assert (status.state, len(engine.executions)) == (OperationState.FAILED, 1)
    assert status.error is not None
    assert (status.error.code, isinstance(status.error, EngineUnavailable)) == ("engine_unavailable", False)


async def test_progress_of_the_engine_is_reported_until_it_has_rows() -> None:
    async with export_session(FakeEngine(), MemorySink()) as session:
        handle = await session.submit("sleep 30")
        assert (await session.poll(handle, wait_s=0.5)).state is OperationState.RUNNING
        async with asyncio.timeout(30):
            while not (await session.poll(handle, wait_s=0.5)).progress:
                pass


async def test_refused_destination_keeps_the_statement_from_the_engine() -> None:
    engine = FakeEngine()
    status, _ = await outcome(engine, MemorySink(refusal=PermissionDenied("No.")), "rows 1")
    assert (status.state, engine.executions) == (OperationState.FAILED, [])
    status, _ = await outcome(engine, MemorySink(), "rows 1", assignment(kind="unknown"))
    assert (status.state, engine.executions) == (OperationState.FAILED, [])


async def test_cancel_stops_the_engine_and_closes_the_destination() -> None:
    engine, sink = FakeEngine(), MemorySink()
    async with export_session(engine, sink) as session:
        handle = await session.submit("work then rows 5")
        assert (await session.poll(handle, wait_s=0.2)).state is OperationState.RUNNING
        await session.cancel(handle)
        assert (await session.poll(handle, wait_s=30)).state is OperationState.CANCELED
        assert (engine.running, sink.rows, sink.is_closed) == (0, [], True)
