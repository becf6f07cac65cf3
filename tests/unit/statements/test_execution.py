"""The execution of a statement from its claim to its end, including every kind of failure."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import cast

import pyarrow as pa
import pytest
from tests.fakes.engine import FakeEngine, FakeSession
from tests.fakes.resumable import ResumableFakeEngine
from tests.unit.statements.driving import PausingEngine, Run, state_of, until

from queryserver.engines.protocol import (
    NO_CONTEXT,
    EngineSession,
    OperationHandle,
    OperationState,
    OperationStatus,
    SessionOptions,
    StatementContext,
)
from queryserver.errors.base import QueryServerError
from queryserver.errors.files import StorageError
from queryserver.errors.statements import EngineUnavailable, LineColumn, SessionLost, StatementRejected
from queryserver.identity.model import User
from queryserver.platform.settings.editor import EditorSettings
from queryserver.sql.markers import BoundStatement
from queryserver.sql.positions import Position
from queryserver.statements import execution
from queryserver.statements.model import Outcome
from queryserver.statements.states import StatementState, TruncationReason

FAILED, CANCELED = StatementState.FAILED, StatementState.CANCELED
AVAILABLE, SUCCESS, TIMED_OUT = StatementState.AVAILABLE, StatementState.SUCCESS, StatementState.TIMED_OUT


class OddEngine(FakeEngine):
    """An engine that rejects the first `times` submissions or fails when a session closes."""

    def __init__(
        self, *, refuse: Callable[[str], QueryServerError] | None = None, times: int = 0, leave_fails: bool = False
    ):
        super().__init__()
        self.refuse, self.times, self.leave_fails = refuse, times, leave_fails
        self.ignores_cancel = False

    @asynccontextmanager
    async def session(self, user: User, options: SessionOptions) -> AsyncIterator[EngineSession]:
        session = _OddSession(self)
        self._sessions.add(session)
        try:
            yield session
        finally:
            await session.end()
            self._sessions.discard(session)
        if self.leave_fails:
            raise EngineUnavailable("The engine is closed.")


class _OddSession(FakeSession):
    def __init__(self, engine: OddEngine) -> None:
        super().__init__(engine)
        self._odd = engine

    async def submit(self, statement: str, context: StatementContext = NO_CONTEXT) -> OperationHandle:
        if self._odd.refuse is not None and self._odd.times > 0:
            self._odd.times -= 1
            raise self._odd.refuse("refused before it began")
        return await super().submit(statement, context)

    async def cancel(self, handle: OperationHandle) -> None:
        if not self._odd.ignores_cancel:
            await super().cancel(handle)


class _UnopenedEngine(FakeEngine):
    """An engine that rejects its own setup statement while a session opens."""

    @asynccontextmanager
    async def session(self, user: User, options: SessionOptions) -> AsyncIterator[EngineSession]:
        raise StatementRejected("line 1:1: Schema 'x' does not exist").at(LineColumn(1, 1))
        yield  # never reached; makes this function a generator


async def test_only_statement_errors_have_a_position() -> None:
    entry = await Run(engine=_UnopenedEngine()).to_end("rows 10")
    assert entry.outcome is not None
    assert (entry.state, entry.outcome.error_position) == (FAILED, None)
    entry = await Run(engine=OddEngine(refuse=_misplaced, times=1)).to_end("rows 10")
    assert entry.outcome is not None
    assert (entry.state, entry.outcome.error_position) == (FAILED, Position(1, 6))


def _misplaced(message: str) -> StatementRejected:
    return StatementRejected(message).at(LineColumn(1, 6))


async def test_failure_without_a_message_says_so() -> None:
    run = Run(engine=OddEngine(refuse=lambda _: StatementRejected(""), times=1))
    entry = await run.to_end("rows 10")
    assert entry.outcome is not None
    assert (entry.state, entry.outcome.message) == (FAILED, "The data source gave no reason.")
    assert entry.lines[-1].endswith("The data source gave no reason.")


async def test_small_result_is_stored_in_the_record() -> None:
    run = Run()
    entry = await run.to_end("rows 10")
    assert entry.state is AVAILABLE
    assert entry.outcome is not None
    assert entry.outcome.rows == 10
    assert entry.outcome.inline_result
    assert entry.segments == []


async def test_large_result_is_visible_by_segments_before_it_is_available() -> None:
    entry = await Run().to_end("rows 30000 wide 1000", row_limit=30_000)
    assert entry.state is AVAILABLE
    assert [one.start_row for one in entry.segments] == sorted({one.start_row for one in entry.segments})
    assert sum(one.rows for one in entry.segments) == 30_000
    assert len(entry.segments) > 3
    assert entry.writes.index("mark_running") < entry.writes.index("add_segment")


@pytest.mark.parametrize(("engine", "is_recorded"), [(FakeEngine(), False), (ResumableFakeEngine(), True)])
async def test_running_is_recorded_sooner_if_the_engine_can_resume(
    monkeypatch: pytest.MonkeyPatch, engine: FakeEngine, is_recorded: bool
) -> None:
    monkeypatch.setattr(execution, "_QUICK_STATEMENT_S", 30)
    monkeypatch.setattr(execution, "_QUICK_RESUMABLE_S", 0.01)
    entry = await Run(engine=engine).to_end("sleep 0.1 then rows 3")
    assert ("mark_running" in entry.writes) is is_recorded


@pytest.mark.item(32)
@pytest.mark.parametrize(("rows", "kept", "reason"), [(10, 10, None), (11, 10, TruncationReason.ROW_LIMIT)])
async def test_result_of_exactly_the_row_limit_is_not_truncated(
    rows: int, kept: int, reason: TruncationReason | None
) -> None:
    entry = await Run().to_end(f"rows {rows}", row_limit=10)
    assert entry.outcome is not None
    assert (entry.outcome.rows, entry.outcome.truncated_reason) == (kept, reason)


async def test_rows_of_a_slow_statement_are_readable_while_it_runs() -> None:
    run = Run(engine=PausingEngine())
    assignment = run.owned.add("rows 2000")
    task = asyncio.create_task(run.execution(assignment).run())
    entry = run.owned.of(assignment)
    await until(lambda: sum(one.rows for one in entry.segments) == 1000)
    assert entry.state is StatementState.RUNNING
    run.engine.go_on.set()
    await asyncio.wait_for(task, 60)
    assert entry.state is AVAILABLE
    assert sum(one.rows for one in entry.segments) == 2000


async def test_slow_first_batch_shows_the_statement_as_running() -> None:
    run = Run(engine=PausingEngine(first_waits=True))
    assignment = run.owned.add("rows 2")
    task = asyncio.create_task(run.execution(assignment).run())
    await until(lambda: run.owned.of(assignment).state is StatementState.RUNNING)
    run.engine.go_on.set()
    await asyncio.wait_for(task, 60)


@pytest.mark.parametrize("refusal", [EngineUnavailable, SessionLost])
async def test_statement_rejected_before_its_start_is_retried_once(refusal: type[QueryServerError]) -> None:
    run = Run(engine=OddEngine(refuse=refusal, times=1))
    entry = await run.to_end("ddl")
    assert entry.state is SUCCESS
    assert run.engine.executions == ["ddl"]


class _FailingSession(FakeSession):
    """A session that reports its first statement as never started, and whose log is unavailable."""

    async def poll(self, handle: OperationHandle, *, wait_s: float = 0) -> OperationStatus:
        if len(self._engine.executions) == 1:
            return OperationStatus(OperationState.FAILED, error=EngineUnavailable("The coordinator restarts."))
        return await super().poll(handle, wait_s=wait_s)

    async def logs(self, handle: OperationHandle, *, start: int) -> Sequence[str]:
        raise EngineUnavailable("The log is out of reach.")


class _FailingEngine(FakeEngine):
    session_class: type[FakeSession] = _FailingSession

    @asynccontextmanager
    async def session(self, user: User, options: SessionOptions) -> AsyncIterator[EngineSession]:
        session = self.session_class(self)
        yield session
        await session.end()


async def test_statement_reported_as_never_started_is_retried_once() -> None:
    run = Run(engine=_FailingEngine())
    entry = await run.to_end("ddl")
    assert entry.state is SUCCESS
    assert run.engine.executions == ["ddl", "ddl"]


async def test_missing_engine_log_does_not_change_the_outcome() -> None:
    entry = await Run(engine=_FailingEngine()).to_end("rows 10")
    assert entry.outcome is not None
    assert (entry.state, entry.outcome.rows) == (AVAILABLE, 10)


class _CountingSession(FakeSession):
    """A session that returns 3,000 rows for any statement and counts the rows read."""

    async def submit(self, statement: str | BoundStatement, context: StatementContext = NO_CONTEXT) -> OperationHandle:
        return await super().submit("rows 3000", context)

    async def batches(self, handle: OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        async for batch in super().batches(handle):
            cast("_CountingEngine", self._engine).rows_read += batch.num_rows
            yield batch


class _CountingEngine(_FailingEngine):
    session_class = _CountingSession
    rows_read = 0


@pytest.mark.parametrize(("statement", "rows_read"), [("SELECT n FROM t", 1000), ("INSERT INTO t RETURNING n", 3000)])
async def test_rows_beyond_the_limit_are_read_only_for_changes(statement: str, rows_read: int) -> None:
    """Some engines apply a change only while its result rows are read, so these rows are read to the end."""
    run = Run(engine=_CountingEngine())
    entry = await run.to_end(statement, row_limit=10)
    assert entry.outcome is not None
    assert (entry.outcome.rows, run.engine.rows_read) == (10, rows_read)


async def test_stored_rows_use_the_shortened_column_names() -> None:
    entry = await Run().to_end(f"columns {'n' * 1001}")
    assert entry.outcome is not None
    [column] = entry.outcome.columns
    assert len(column.name) == 1000
    assert pa.ipc.open_stream(entry.outcome.inline_result).schema.names == [column.name]


async def test_second_rejection_is_final() -> None:
    entry = await Run(engine=OddEngine(refuse=EngineUnavailable, times=2)).to_end("ddl")
    assert state_of(entry) == (FAILED, "engine_unavailable")


async def test_named_session_is_never_replaced() -> None:
    entry = await Run(engine=OddEngine(refuse=SessionLost, times=1)).to_end("ddl", in_named_session=True)
    assert state_of(entry) == (FAILED, "session_lost")


@pytest.mark.item(25)
async def test_accepted_statement_is_never_sent_again() -> None:
    run = Run(engine=OddEngine(leave_fails=True))
    entry = await run.to_end("change 1")
    assert entry.state.is_terminal
    assert run.engine.executions == ["change 1"]


async def test_cancel_between_two_attempts_ends_as_canceled() -> None:
    run = Run(engine=OddEngine(refuse=EngineUnavailable, times=1))
    assignment = run.owned.add("ddl")
    run.engine.refuse = EngineUnavailable
    task = asyncio.create_task(run.execution(assignment).run())
    await until(lambda: run.engine.times == 0)
    run.owned.of(assignment).cancel_requested = True
    await asyncio.wait_for(task, 60)
    assert run.owned.of(assignment).state is CANCELED
    assert run.engine.executions == []


@pytest.mark.item(37)
async def test_cancel_before_sending_never_reaches_the_engine() -> None:
    run = Run()
    assignment = run.owned.add("sleep 30")
    execution = run.execution(assignment)
    run.owned.before["mark_sent"] = lambda: execution.stop("Canceled by ana.")
    await asyncio.wait_for(execution.run(), 60)
    entry = run.owned.of(assignment)
    assert entry.state is CANCELED
    assert run.engine.executions == []


@pytest.mark.item(36)
async def test_cancel_reaches_the_engine() -> None:
    run = Run()
    assignment = run.owned.add("sleep 30")
    execution = run.execution(assignment)
    task = asyncio.create_task(execution.run())
    await until(lambda: run.engine.running == 1)
    execution.stop("Canceled by ana.")
    await asyncio.wait_for(task, 60)
    entry = run.owned.of(assignment)
    assert (entry.state, entry.outcome and entry.outcome.message) == (CANCELED, "Canceled by ana.")
    assert (run.engine.cancels, run.engine.running) == (1, 0)
    assert "Canceled by ana." in entry.lines


async def test_late_cancel_does_not_change_the_outcome() -> None:
    run = Run()
    assignment = run.owned.add("ddl")
    execution = run.execution(assignment)
    run.owned.before["finish"] = lambda: execution.stop("Canceled.")
    await asyncio.wait_for(execution.run(), 60)
    assert run.owned.of(assignment).state is SUCCESS


@pytest.mark.item(35)
async def test_timeout_is_reported_even_if_the_engine_does_not_stop() -> None:
    run = Run(engine=OddEngine())
    run.engine.ignores_cancel = True
    assignment = run.owned.add("sleep 30", ends_at=time.monotonic() + 0.3)
    task = asyncio.create_task(run.execution(assignment).run())
    await until(lambda: run.owned.of(assignment).state is TIMED_OUT)
    await asyncio.wait_for(task, 60)
    assert run.engine.running == 0, "leaving the session ends what no cancel could end"


async def test_changes_are_reported_again_if_the_engine_continues_after_the_reported_end() -> None:
    """The first report is made when the statement is recorded as ended, but the engine may change further objects
    afterward.
    """
    run = Run(engine=OddEngine())
    run.engine.ignores_cancel = True
    assignment = run.owned.add("sleep 30", ends_at=time.monotonic() + 3)  # long enough for the engine to start
    told: list[tuple[bool, int]] = []

    async def tell() -> None:
        told.append((run.owned.of(assignment).state is TIMED_OUT, run.engine.running))

    run.before_end = tell
    await asyncio.wait_for(run.execution(assignment).run(), 60)
    assert told == [(False, 1), (True, 0)]


async def test_changes_are_reported_once_if_the_engine_ends_first() -> None:
    run = Run(settings=EditorSettings.model_construct(cancel_wait_s=30))
    told: list[int] = []

    async def tell() -> None:
        told.append(run.engine.running)

    run.before_end = tell
    assert (await run.to_end("ddl")).state is SUCCESS
    entry = await run.to_end("sleep 30", ends_at=time.monotonic() + 0.3)
    assert (entry.state, told) == (TIMED_OUT, [0, 0])


async def test_expired_deadline_ends_the_statement_without_the_engine() -> None:
    run = Run()
    entry = await run.to_end("ddl", ends_at=time.monotonic() - 1)
    assert entry.state is TIMED_OUT
    assert run.engine.sessions_opened == 0


@pytest.mark.parametrize("call", ["mark_sent", "mark_running", "finish"])
async def test_lost_database_response_is_requested_again(call: str) -> None:
    run = Run()
    run.owned.lose_answer_of.add(call)
    entry = await run.to_end("sleep 0.5 then rows 3")
    assert entry.state is AVAILABLE
    assert call in entry.writes
    assert run.engine.executions == ["sleep 0.5 then rows 3"]


async def test_short_database_outage_changes_nothing() -> None:
    run = Run()
    assignment = run.owned.add("sleep 0.3 then rows 3")
    task = asyncio.create_task(run.execution(assignment).run())
    await until(lambda: run.engine.running == 1)
    run.owned.down = True
    await asyncio.sleep(0.8)
    run.owned.down = False
    await asyncio.wait_for(task, 60)
    assert run.owned.of(assignment).state is AVAILABLE


async def test_statement_whose_record_cannot_be_written_for_a_lease_is_given_up() -> None:
    run = Run()
    assignment = run.owned.add("sleep 0.3 then rows 3")
    task = asyncio.create_task(run.execution(assignment).run())
    await until(lambda: run.engine.running == 1)
    run.owned.down = True
    await asyncio.wait_for(task, 60)
    assert run.owned.of(assignment).outcome is None
    assert run.owned.expired_soon == [assignment.claim.statement_id]


async def test_log_lines_of_an_interrupted_report_are_written_at_the_end() -> None:
    run = Run()
    run.owned.lose_answer_of.add("report")
    entry = await run.to_end("sleep 1.2 then rows 3")
    assert entry.lines == ["Running on fake.", "statement fake-1", "Finished: 3 rows stored."]
    starts = sorted(entry.log)
    assert all(start + len(entry.log[start]) == following for start, following in pairwise(starts))


@pytest.mark.parametrize(("statement", "last"), [("rows 3", "Finished: 3 rows stored."), ("change 3", "Finished.")])
async def test_last_engine_lines_precede_the_end_of_the_log(statement: str, last: str) -> None:
    entry = await Run().to_end(statement)
    assert entry.lines[-2:] == ["statement fake-1", last]


@pytest.mark.parametrize("text", ["a\x00b", "half \ud83d of a pair"])
async def test_unstorable_message_still_ends_the_statement(text: str) -> None:
    class Rejecting(OddEngine):
        @asynccontextmanager
        async def session(self, user: User, options: SessionOptions) -> AsyncIterator[EngineSession]:
            raise StatementRejected(text)
            yield

    entry = await Run(engine=Rejecting()).to_end("ddl")
    assert state_of(entry) == (FAILED, "engine_error")
    assert entry.outcome is not None
    stored = [entry.outcome.message, *entry.lines]
    assert "\x00" not in "".join(stored)
    "".join(stored).encode()


async def test_unrecordable_outcome_ends_as_failed() -> None:
    run = Run()

    def refuse(outcome: Outcome) -> None:
        if outcome.state is AVAILABLE:
            message = "unsupported Unicode escape sequence"
            raise ValueError(message)

    run.owned.refuse = refuse
    entry = await run.to_end("rows 3")
    assert state_of(entry) == (FAILED, "result_store_failed")
    assert entry.outcome is not None
    assert "Unicode" not in entry.outcome.message


async def test_full_store_fails_the_statement_and_frees_the_engine() -> None:
    run = Run()
    run.results.failure = StorageError("no room")
    entry = await run.to_end("rows 30000 wide 1000", row_limit=30_000)
    assert state_of(entry) == (FAILED, "result_store_failed")
    assert run.engine.running == 0


async def test_internal_error_ends_the_statement_without_its_text() -> None:
    class Broken(FakeEngine):
        @asynccontextmanager
        async def session(self, user: User, options: SessionOptions) -> AsyncIterator[EngineSession]:
            message = "secret detail"
            raise RuntimeError(message)
            yield

    entry = await Run(engine=Broken()).to_end("ddl")
    assert entry.state is FAILED
    assert entry.outcome is not None
    assert "secret detail" not in entry.outcome.message
