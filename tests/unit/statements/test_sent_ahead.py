"""Statements that their record describes as sent from the start (ADR 81)."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import cast
from uuid import UUID

import pytest
from tests.fakes.engine import FakeEngine, FakeSession
from tests.fakes.statements import OWNER, Entry
from tests.unit.statements.driving import ANA, CONNECTOR, Fleet, Run, until

from queryserver.engines.protocol import EngineSession, OperationHandle, SessionOptions
from queryserver.errors.statements import EngineUnavailable
from queryserver.identity.model import User
from queryserver.platform.database import Notices
from queryserver.platform.settings.editor import EditorSettings
from queryserver.statements import execution, run_record
from queryserver.statements.model import NewStatement, StatementHandle
from queryserver.statements.open_sessions import OpenSession
from queryserver.statements.runner import StatementDispatcher
from queryserver.statements.states import StatementState

AVAILABLE, FAILED, SUCCESS = StatementState.AVAILABLE, StatementState.FAILED, StatementState.SUCCESS


class _LateEngine(FakeEngine):
    """An engine that opens its sessions once `may_open` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.may_open = asyncio.Event()

    @asynccontextmanager
    async def session(self, user: User, options: SessionOptions) -> AsyncGenerator[EngineSession]:
        await self.may_open.wait()
        async with super().session(user, options) as opened:
            yield opened


@pytest.fixture(autouse=True)
def _long_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents a slow machine from delaying a session until its statement is taken back."""
    monkeypatch.setattr(execution, "_SENT_AHEAD_S", 60)
    monkeypatch.setattr(run_record, "_MAX_SENT_AHEAD_S", 60)


@pytest.fixture
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "_SENT_AHEAD_S", 0.01)


def sends(entry: Entry) -> list[str]:
    """Return the writes that say whether the statement was sent."""
    return [write for write in entry.writes if write in {"mark_sent", "take_back"}]


async def test_statement_recorded_as_sent_is_sent_without_another_write() -> None:
    entry = await Run().to_end("rows 3", sent_ahead=True)
    assert (entry.state, sends(entry)) == (AVAILABLE, [])
    assert entry.queued is not None


@pytest.mark.usefixtures("short_wait")
async def test_statement_recorded_as_sent_is_taken_back_if_its_session_is_late() -> None:
    engine = _LateEngine()
    run = Run(engine=engine)
    assignment = run.owned.add("ddl", sent_ahead=True)
    entry, task = run.owned.of(assignment), asyncio.create_task(run.execution(assignment).run())
    await until(lambda: entry.writes == ["take_back"])
    assert not entry.sent
    engine.may_open.set()
    await asyncio.wait_for(task, 60)
    assert (entry.state, sends(entry)) == (SUCCESS, ["take_back", "mark_sent"])


async def test_old_record_of_the_send_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_record, "_MAX_SENT_AHEAD_S", 0)  # as if the process had been paused
    entry = await Run().to_end("ddl", sent_ahead=True)
    assert (entry.state, sends(entry)) == (SUCCESS, ["mark_sent"])


@pytest.mark.parametrize("has_beaten", [True, False])
async def test_process_that_may_have_counted_as_dead_checks_that_the_statement_is_its_own(has_beaten: bool) -> None:
    run = Run()
    if has_beaten:  # the heartbeat was the first to continue after a pause
        run.owned.past_lapses += 1
    else:
        run.owned.heartbeat_is_late = True
    assert sends(await run.to_end("ddl", sent_ahead=True)) == ["mark_sent"]

    def claim() -> None:
        entry.owner, entry.fence = "another process", entry.fence + 1

    assignment = run.owned.add("ddl", sent_ahead=True)
    entry = run.owned.of(assignment)
    run.owned.before["mark_sent"] = claim
    await asyncio.wait_for(run.execution(assignment).run(), 60)
    assert run.engine.executions == ["ddl"], "only the first statement was sent"


@pytest.mark.usefixtures("short_wait")
async def test_send_waits_until_the_statement_is_taken_back() -> None:
    engine = _LateEngine()
    run = Run(engine=engine)
    # The session opens while the record is being written.
    run.owned.before["take_back"] = engine.may_open.set
    entry = await run.to_end("ddl", sent_ahead=True)
    assert (entry.state, sends(entry)) == (SUCCESS, ["take_back", "mark_sent"])


@pytest.mark.item(37)
async def test_statement_recorded_as_sent_ends_without_the_engine_if_it_was_never_sent() -> None:
    engine = _LateEngine()
    run = Run(engine=engine)
    assignment = run.owned.add("ddl", sent_ahead=True)
    execution = run.execution(assignment)
    task = asyncio.create_task(execution.run())
    await execution.give_up()
    engine.may_open.set()
    await asyncio.wait_for(task, 60)
    entry = run.owned.of(assignment)
    assert (entry.state, entry.writes, entry.queued) == (FAILED, ["finish"], None)
    assert run.engine.executions == []


async def test_statement_recorded_as_sent_is_marked_as_sent_before_it_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(_session: FakeSession, _statement: str, _context: object) -> OperationHandle:
        monkeypatch.undo()
        raise EngineUnavailable("refused before it began")

    monkeypatch.setattr(FakeSession, "submit", refuse)
    entry = await Run().to_end("ddl", sent_ahead=True)
    assert (entry.state, sends(entry)) == (SUCCESS, ["mark_sent"])


async def test_only_statements_that_start_at_once_are_recorded_as_sent() -> None:
    fleet = Fleet()
    runner = fleet.runner(per_user=1)
    dispatcher = StatementDispatcher(runner, cast("Notices", None))
    new = _new(owner=OWNER)
    async with runner.running():
        assert dispatcher.sends_at_once(new)
        assert not dispatcher.sends_at_once(replace(new, owner=None)), "runs in another process"
        assert not dispatcher.sends_at_once(replace(new, import_plan={})), "an import first reads its file"
        assert not dispatcher.sends_at_once(replace(new, operation_id=UUID(int=1))), "a script's record is locked first"
        assert not dispatcher.sends_at_once(replace(new, keeps_session=True)), "a session must be opened"
        session = OpenSession(new.handle.session_id, "fake", ANA, is_named=True, idle=timedelta(seconds=60))
        await runner.sessions.open(session, runner.connectors.using(CONNECTOR), SessionOptions())
        named = replace(new, in_named_session=True)
        assert dispatcher.sends_at_once(named)
        async with session.turn:
            assert not dispatcher.sends_at_once(named), "another statement runs in the session"
        running = fleet.owned.add("sleep 30")
        runner.statements.start(running, ANA)
        await until(lambda: fleet.engine.running == 1)
        assert not dispatcher.sends_at_once(new), "the user has no free slot"
        assert dispatcher.sends_at_once(replace(new, user_id=2))
        runner.statements.cancel(running.claim.statement_id)


def _new(*, owner: str | None) -> NewStatement:
    return NewStatement(
        id=UUID(int=7),
        user_id=ANA.id,
        connector="fake",
        dialect="fake",
        handle=StatementHandle("ddl", 0, 1, (0, 0, 0, 2), "hash", "guid", "secret", 4711, "a:b"),
        row_limit=10,
        timeout=timedelta(seconds=60),
        has_result_set=True,
        owner=owner,
        limits=EditorSettings(),
        idempotency=None,
    )
