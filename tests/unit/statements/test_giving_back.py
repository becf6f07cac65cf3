"""At shutdown, statements that read a stored result return to the queue (Contract exports 2.6)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from tests.unit.statements.driving import ANA, Fleet, state_of, terminal, until

from queryserver.engines.protocol import EngineSession
from queryserver.formats.arrow import Column, ResultType
from queryserver.identity.model import User
from queryserver.statements.external_access import ExternalData
from queryserver.statements.job_session import JobReport, JobSession
from queryserver.statements.model import Assignment
from queryserver.statements.runner import Runner
from queryserver.statements.states import StatementState

pytestmark = pytest.mark.exports(30)

COLUMNS = (Column("rows", ResultType.BIGINT, "BIGINT"),)
SUMMARY = pa.record_batch([pa.array([1], pa.int64())], names=["rows"])
AVAILABLE, CANCELED, WAITING = StatementState.AVAILABLE, StatementState.CANCELED, StatementState.WAITING


@dataclass
class ExportFleet:
    """A fleet whose statements are exports that call `work`. `left` counts what they have written but not removed."""

    work: Callable[["ExportFleet", JobReport], Awaitable[None]]
    fleet: Fleet = field(default_factory=Fleet)
    left: int = 0
    started: asyncio.Event = field(default_factory=asyncio.Event)

    def runner(self, owner: str = "first", **more: Any) -> Runner:
        runner = self.fleet.runner(owner, **more)
        runner.opener.external_data = ExternalData(open_result=self._open, wait_for_result=self._wait)
        runner.opener.exports = self._session
        return runner

    def add(self, **more: Any) -> Assignment:
        more = {"source_operation": uuid4(), "destination": {"kind": "files"}, **more}
        return self.fleet.owned.add("-- Export", owner="first", **more)

    @asynccontextmanager
    async def _open(self, _user: User, _operation: str) -> AsyncIterator[Any]:
        yield SimpleNamespace(columns=COLUMNS, pieces=(), warning="", sources=None)

    async def _wait(self, _user: User, _operation: str) -> Any:
        return SimpleNamespace(truncated_reason=None)

    def _session(
        self, _assignment: Assignment, _user: User, _source: EngineSession
    ) -> AbstractAsyncContextManager[Any]:
        return JobSession.opened(COLUMNS, lambda _statement, _context, report: self._run(report))

    async def _run(self, report: JobReport) -> None:
        self.left += 1
        self.started.set()
        await self.work(self, report)
        self.left -= 1


async def work_forever(exporting: ExportFleet, _report: JobReport) -> None:
    """Write without end, and clean up when it is stopped."""
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.1)
        exporting.left -= 1


async def publish(_exporting: ExportFleet, report: JobReport) -> None:
    report.summary = SUMMARY


async def publish_if_stopped(_exporting: ExportFleet, report: JobReport) -> None:
    """Do not let the stop interrupt the publication."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        report.summary = SUMMARY


@dataclass
class Messages:
    """A broker that remembers for which statements it was to wake a worker."""

    waiting: list[UUID] = field(default_factory=list[UUID])
    is_reachable: bool | None = True

    def statement_waits(self, statement_id: UUID, *, fence: int) -> None:
        del fence
        self.waiting.append(statement_id)

    def statement_changed(self, statement_id: UUID) -> None: ...


async def stopped(exporting: ExportFleet, assignment: Assignment, **more: Any) -> None:
    """Run the export in a process that is stopped while it works."""
    runner = exporting.runner(**more)
    async with runner.running():
        runner.statements.start(assignment, ANA)
        await asyncio.wait_for(exporting.started.wait(), 60)


async def test_stopped_export_returns_to_the_queue_once_it_has_cleaned_up() -> None:
    exporting, messages = ExportFleet(work_forever), Messages()
    assignment = exporting.add()
    exporting.fleet.owned.before["give_back"] = lambda: setattr(exporting, "left", exporting.left + 100)
    await stopped(exporting, assignment, broker=messages)
    assert exporting.left == 100, "it cleaned up before it was given back"
    entry = exporting.fleet.owned.of(assignment)
    assert (entry.state, entry.owner, entry.outcome) == (WAITING, None, None)
    assert entry.lines[-1] == "The server is being shut down. The stored result will be read again."
    assert messages.waiting == [assignment.claim.statement_id]


async def test_export_is_given_back_by_each_process_that_is_stopped() -> None:
    exporting = ExportFleet(work_forever)
    assignment = exporting.add(was_retried=True)
    entry = exporting.fleet.owned.of(assignment)
    await stopped(exporting, assignment)
    for owner in ("second", "third"):
        exporting.started.clear()
        async with exporting.runner(owner).running():
            await asyncio.wait_for(exporting.started.wait(), 60)
        assert (entry.state, entry.owner) == (WAITING, None)
    exporting.work = publish
    async with exporting.runner("fourth").running():
        await until(lambda: terminal(entry))
    assert state_of(entry) == (AVAILABLE, None)


async def test_export_that_publishes_during_the_shutdown_ends_as_available() -> None:
    exporting = ExportFleet(publish_if_stopped)
    assignment = exporting.add()
    await stopped(exporting, assignment)
    entry = exporting.fleet.owned.of(assignment)
    assert (state_of(entry), entry.writes.count("give_back")) == ((AVAILABLE, None), 0)


@pytest.mark.parametrize("reason", ["cancel", "rows", "published", "engine"])
async def test_other_statements_are_canceled(reason: str) -> None:
    exporting = ExportFleet(work_forever)
    more: dict[str, Any] = {"source_operation": None} if reason == "engine" else {}
    assignment = exporting.add(**more)
    entry = exporting.fleet.owned.of(assignment)

    def change() -> None:
        match reason:
            case "cancel":
                entry.cancel_requested = True
            case "rows":
                entry.segments.append(SimpleNamespace(rows=1, size_bytes=1))  # type: ignore[arg-type]
            case "published":
                entry.assignment = exporting.add(destination={"is_published": True})
            case _:
                raise AssertionError(reason)

    exporting.fleet.owned.before["give_back"] = change
    await stopped(exporting, assignment)
    assert entry.state is CANCELED
    assert entry.lines[-1] == "Canceled because the server was shut down."


async def test_export_that_cannot_clean_up_in_time_is_left_as_after_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queryserver.statements.runner.STATEMENTS_STOPPED_WITHIN_S", 0.3)
    may_clean_up = asyncio.Event()

    async def clean_up_slowly(_exporting: ExportFleet, _report: JobReport) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await may_clean_up.wait()

    exporting = ExportFleet(clean_up_slowly)
    assignment = exporting.add()
    entry = exporting.fleet.owned.of(assignment)
    runner = exporting.runner()
    async with runner.running():
        runner.statements.start(assignment, ANA)
        await asyncio.wait_for(exporting.started.wait(), 60)
        await runner.shutdown.drain(at_once=True)
        assert (terminal(entry), entry.owner, entry.outcome) == (False, "first", None)
        may_clean_up.set()
        await until(lambda: not runner.statements.active)
    exporting.fleet.owned.dead.add("first")
    exporting.work = publish
    async with exporting.runner("second").running():
        await until(lambda: terminal(entry))
    assert (state_of(entry), entry.writes.count("retry")) == ((AVAILABLE, None), 1)
