"""Runners: owned, takeover, heartbeats and shutdown (Contract platform 10.2)."""

import asyncio
import time
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest
from structlog.testing import capture_logs
from tests.fakes.engine import FakeEngine, FakeSession
from tests.fakes.statements import OWNER, Entry
from tests.refusals import raises_code
from tests.timing import settle
from tests.unit.statements.driving import ANA, CONNECTOR, Fleet, state_of, terminal, until

from queryserver.engines.protocol import EngineCapabilities, OperationHandle
from queryserver.errors.base import DatabaseUnavailable
from queryserver.platform.settings.editor import EditorSettings
from queryserver.platform.shutdown import REST_S
from queryserver.statements.model import Assignment
from queryserver.statements.runner import StatementDispatcher
from queryserver.statements.running_statements import Intake, RunnerLimits
from queryserver.statements.states import StatementState

OTHER = "another-process"
FAILED, CANCELED, SUCCESS = StatementState.FAILED, StatementState.CANCELED, StatementState.SUCCESS
WAITING = StatementState.WAITING


async def test_unsent_statement_of_a_dead_process_runs_once() -> None:
    fleet = Fleet()
    assignment = fleet.owned.add("ddl", owner=OTHER, owner_dies_in_s=0.3)
    async with fleet.runner().running():
        await until(lambda: terminal(fleet.owned.of(assignment)))
    assert fleet.owned.of(assignment).state is SUCCESS
    assert fleet.engine.executions == ["ddl"]


@pytest.mark.item(25)
async def test_sent_statement_of_a_dead_process_is_never_sent_again() -> None:
    fleet = Fleet()
    assignment = fleet.owned.add("change 1", owner=OTHER, owner_dies_in_s=0.3, sent=True)
    async with fleet.runner().running():
        await until(lambda: terminal(fleet.owned.of(assignment)))
    assert state_of(fleet.owned.of(assignment)) == (FAILED, "outcome_unknown")
    assert fleet.engine.executions == []


@pytest.mark.item(82)
async def test_script_statements_run_in_order_in_one_session_with_one_log() -> None:
    fleet = Fleet()
    script = fleet.owned.add("set x 5; get x; change 2", owner="script", owner_dies_in_s=3600)
    first = fleet.owned.add("set x 5", owner=None, statements_count=3, keeps_session=True)
    entry = fleet.owned.of(first)
    entry.assignment = replace(first, claim=replace(first.claim, operation_id=script.claim.statement_id))

    def parts() -> list[Entry]:
        found = (one for one in fleet.owned.entries.values() if one.assignment.claim.operation_id is not None)
        return sorted(found, key=lambda one: one.assignment.statement_index)

    async with fleet.runner().running():
        await until(lambda: len(parts()) == 3 and all(map(terminal, parts())))
    assert [one.state for one in parts()] == [SUCCESS, StatementState.AVAILABLE, SUCCESS]
    assert [one.assignment.needs_session for one in parts()] == [False, True, True]
    assert [one.assignment.keeps_session for one in parts()] == [True, True, False]
    assert (fleet.engine.executions, fleet.engine.sessions_opened) == (["set x 5", "get x", "change 2"], 1)
    # The line numbers of each statement continue those of the previous one.
    numbers = [
        number for one in parts() for start, lines in one.log.items() for number in range(start, start + len(lines))
    ]
    assert numbers == list(range(len(numbers)))


async def test_statement_does_not_run_in_a_session_that_closes_before_it_is_recorded(monkeypatch) -> None:
    """The first statement is canceled while its session is being recorded, and the client continues the script."""
    fleet, is_opening, may_end = Fleet(), asyncio.Event(), asyncio.Event()

    async def never_open(_: object, *, max_open: int) -> bool:
        is_opening.set()
        try:
            await asyncio.Event().wait()
        finally:  # the database confirms a cancellation late
            await may_end.wait()
        return False

    monkeypatch.setattr(fleet.sessions, "open", never_open)
    first = fleet.owned.add("sleep 30", statements_count=2, keeps_session=True)
    second = fleet.owned.add("work then rows 1", session_id=first.session_id, statement_index=1, statements_count=2)
    runner = fleet.runner()
    async with runner.running():
        runner.statements.start(first, ANA)
        await is_opening.wait()
        runner.statements.cancel(first.claim.statement_id)
        runner.statements.start(second, ANA)
        await settle()
        may_end.set()
        await until(lambda: terminal(fleet.owned.of(first)))
        fleet.engine.finish.set()
        await until(lambda: terminal(fleet.owned.of(second)))
    assert fleet.owned.of(first).state is CANCELED
    assert state_of(fleet.owned.of(second)) == (StatementState.AVAILABLE, None)
    assert (fleet.engine.executions, fleet.engine.sessions_opened) == (["work then rows 1"], 2)


@pytest.mark.item(88)
@pytest.mark.parametrize("sent", [False, True])
async def test_later_script_statement_does_not_run_without_its_session(sent: bool) -> None:
    fleet = Fleet()
    operation = fleet.owned.add("ddl; ddl; ddl", owner="script", owner_dies_in_s=3600)
    assignment = fleet.owned.add(
        "ddl", owner=OTHER, owner_dies_in_s=0.3, sent=sent, needs_session=True, statement_index=1, statements_count=3
    )
    entry = fleet.owned.of(assignment)
    entry.assignment = replace(assignment, claim=replace(assignment.claim, operation_id=operation.claim.statement_id))
    async with fleet.runner().running():
        await until(lambda: terminal(entry))
    assert state_of(entry) == (FAILED, "outcome_unknown" if sent else "session_lost")
    assert fleet.engine.executions == []


async def test_statement_owned_by_another_process_is_not_claimed() -> None:
    fleet = Fleet()
    assignment = fleet.owned.add("ddl", owner=OTHER, owner_dies_in_s=30)
    async with fleet.runner().running():
        await asyncio.sleep(0.6)
    assert fleet.owned.of(assignment).owner == OTHER


async def test_statement_of_a_disabled_user_does_not_run() -> None:
    fleet = Fleet()
    fleet.users.disabled.add(1)
    assignment = fleet.owned.add("ddl", owner=None)
    async with fleet.runner().running():
        await until(lambda: terminal(fleet.owned.of(assignment)))
    assert state_of(fleet.owned.of(assignment)) == (FAILED, "rejected")
    assert fleet.engine.executions == []


@pytest.mark.parametrize(
    ("statement", "code"), [("INSERT INTO t VALUES (1)", "rejected"), ("SELECT 1", "engine_error")]
)
async def test_change_on_a_read_only_connector_is_rejected(statement, code) -> None:
    fleet = Fleet(read_only=True)
    assignment = fleet.owned.add(statement, owner=None)
    async with fleet.runner().running():
        await until(lambda: terminal(fleet.owned.of(assignment)))
    assert state_of(fleet.owned.of(assignment)) == (FAILED, code), "the fake engine knows no SQL"


@pytest.mark.parametrize(
    ("statement", "code"), [("ddl", None), ("fail half way", "engine_error"), ("SELECT 1", "engine_error")]
)
async def test_object_changes_are_reported_for_any_outcome(statement: str, code: str | None) -> None:
    fleet = Fleet()
    assignment = fleet.owned.add(statement, owner=None)
    told_before_the_end: list[bool] = []
    fleet.owned.before["finish"] = lambda: told_before_the_end.append(fleet.changes == [(1, "fake")])
    async with fleet.runner().running():
        await until(lambda: terminal(fleet.owned.of(assignment)))
    assert state_of(fleet.owned.of(assignment))[1] == code
    assert told_before_the_end == [statement != "SELECT 1"]


async def test_changes_of_a_canceled_statement_are_reported() -> None:
    fleet = Fleet()
    async with fleet.at_work() as (runner, assignment):
        assert fleet.changes == []
        runner.statements.cancel(assignment.claim.statement_id)
        await until(lambda: terminal(fleet.owned.of(assignment)))
    assert (fleet.owned.of(assignment).state, fleet.changes) == (CANCELED, [(1, "fake")])


async def test_changes_of_a_statement_whose_server_died_are_reported() -> None:
    fleet = Fleet()
    assignment = fleet.owned.add("ddl", owner=OTHER, owner_dies_in_s=0.3, sent=True)
    async with fleet.runner().running():
        await until(lambda: terminal(fleet.owned.of(assignment)))
    assert state_of(fleet.owned.of(assignment)) == (FAILED, "outcome_unknown")
    assert fleet.changes == [(1, "fake")]


async def test_heartbeat_cancels_a_statement_whose_cancel_another_process_recorded() -> None:
    fleet = Fleet()
    async with fleet.at_work() as (_, assignment):
        fleet.owned.of(assignment).cancel_requested = True
        await until(lambda: fleet.owned.of(assignment).state is CANCELED)
    assert fleet.engine.cancels == 1


async def test_work_with_a_lost_claim_stops_and_writes_nothing() -> None:
    fleet = Fleet()
    async with fleet.at_work() as (runner, assignment):
        entry = fleet.owned.of(assignment)
        entry.owner, entry.fence = OTHER, entry.fence + 1
        await until(lambda: runner.statements.active == 0)
    assert fleet.engine.running == 0
    assert entry.outcome is None
    assert entry.owner == OTHER


async def test_running_statement_is_not_orphaned_by_a_late_heartbeat() -> None:
    fleet = Fleet()
    runner = fleet.runner()
    assignment = fleet.owned.add("sleep 3 then rows 1")
    async with runner.running():
        runner.statements.start(assignment, ANA)
        await until(lambda: fleet.owned.of(assignment).state is StatementState.RUNNING)
        fleet.owned.dead.add(OWNER)  # as after a long outage of the database
        await until(lambda: terminal(fleet.owned.of(assignment)))
    assert state_of(fleet.owned.of(assignment)) == (StatementState.AVAILABLE, None)


async def test_owners_renew_before_takeover_after_an_outage() -> None:
    # After an outage, owners have a third of the lease (3 s) for a heartbeat before another process may take over.
    fleet = Fleet(editor=EditorSettings.model_construct(cancel_wait_s=0.5, lease_timeout_s=9))
    runner = fleet.runner()
    async with runner.running():
        assignment = fleet.owned.add("sleep 30", owner=OTHER, sent=True, owner_dies_in_s=0)
        fleet.owned.down = fleet.sessions.down = True
        await until(lambda: runner._no_sweep_until > time.monotonic())
        fleet.owned.down = fleet.sessions.down = False
        await asyncio.sleep(1.5)  # during these sweeps, the owner has not yet had time for its heartbeat
        assert fleet.owned.of(assignment).owner == OTHER
        await until(lambda: terminal(fleet.owned.of(assignment)))
    assert state_of(fleet.owned.of(assignment)) == (FAILED, "outcome_unknown")


async def test_heartbeat_survives_unexpected_errors() -> None:
    fleet = Fleet()
    runner = fleet.runner()
    assignment = fleet.owned.add("sleep 60")
    entry = fleet.owned.of(assignment)
    failures, succeeded = iter(range(3)), asyncio.Event()

    def fail() -> None:
        if next(failures, None) is None:
            succeeded.set()
        else:
            fleet.owned.before["still_owned"] = fail
            raise ZeroDivisionError

    # The logs are captured, because printing a traceback with the values of all frames takes longer than a heartbeat.
    with capture_logs() as logs:
        async with runner.running():
            runner.statements.start(assignment, ANA)
            fleet.owned.before["still_owned"] = fail
            await until(succeeded.is_set)
            assert not terminal(entry)
    assert [line["event"] for line in logs].count("round failed") == 3


async def test_shutdown_lets_a_short_statement_finish() -> None:
    fleet = Fleet()
    runner = fleet.runner(shutdown_grace=timedelta(seconds=60))
    assignment = fleet.owned.add("sleep 0.4 then rows 2")
    async with runner.running():
        runner.statements.start(assignment, ANA)
    assert fleet.owned.of(assignment).state is StatementState.AVAILABLE


async def test_shutdown_cancels_a_long_statement_with_a_clear_reason() -> None:
    fleet = Fleet()
    async with fleet.at_work() as (_, assignment):
        pass
    entry = fleet.owned.of(assignment)
    assert entry.state is CANCELED
    assert entry.lines[-1] == "Canceled because the server was shut down."
    assert fleet.engine.running == 0


async def test_shutdown_releases_unsent_statements() -> None:
    fleet = Fleet()
    runner = fleet.runner(per_user=1)
    running, queued = fleet.owned.add("sleep 30"), fleet.owned.add("ddl")
    async with runner.running():
        runner.statements.start(running, ANA)
        await until(lambda: fleet.engine.running == 1)
        runner.statements.start(queued, ANA)
    entry = fleet.owned.of(queued)
    assert (entry.state, entry.owner) == (WAITING, None)
    async with fleet.runner(OTHER).running():
        await until(lambda: fleet.owned.of(queued).state is SUCCESS)
    assert fleet.engine.executions == ["sleep 30", "ddl"]


async def test_process_shutting_down_takes_over_nothing() -> None:
    fleet = Fleet()
    runner = fleet.runner(shutdown_grace=timedelta(seconds=1.5))
    lasting = fleet.owned.add("sleep 30")
    async with runner.running():
        runner.statements.start(lasting, ANA)
        orphan = fleet.owned.add("ddl", owner=None)
        runner.instance.is_draining = True
        await asyncio.sleep(0.6)
        await runner.claims.claim(orphan.claim.statement_id)
    assert (fleet.owned.of(orphan).owner, fleet.owned.of(orphan).fence) == (None, 1)
    assert fleet.engine.executions == ["sleep 30"]


async def test_statement_sent_during_shutdown_ends_with_a_reason() -> None:
    fleet = Fleet()
    runner = fleet.runner(shutdown_grace=timedelta(seconds=0))
    assignment = fleet.owned.add("sleep 30")
    async with runner.running():
        runner.statements.start(assignment, ANA)
        # The statement is marked as sent after the shutdown has checked it and before it is released.
        fleet.owned.before["release"] = lambda: setattr(fleet.owned.of(assignment), "sent", True)
    assert fleet.owned.of(assignment).state is CANCELED


async def test_drained_process_releases_its_engines_immediately() -> None:
    fleet = Fleet(engine=FakeEngine(capabilities=EngineCapabilities(one_process=True)))
    runner = fleet.runner()
    async with runner.running():
        assert fleet.sessions.engines == {"fake": OWNER}
        await runner.shutdown.drain()
        await asyncio.sleep(0.8)  # longer than the heartbeat interval; calls are still answered
        assert fleet.sessions.engines == {}
        assert not await runner.data.can_run(CONNECTOR)


async def test_shutdown_is_bounded_even_if_an_engine_never_responds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queryserver.statements.runner.STATEMENTS_STOPPED_WITHIN_S", 0.3)
    engine_answers = asyncio.Event()

    async def wait_for_the_engine(_session: FakeSession, _handle: OperationHandle) -> None:
        await engine_answers.wait()

    fleet = Fleet()
    runner, assignment = fleet.runner(shutdown_grace=timedelta(seconds=0)), fleet.owned.add("sleep 30")
    async with runner.running():
        runner.statements.start(assignment, ANA)
        await until(lambda: fleet.engine.running == 1)
        for call in ("cancel", "close"):
            monkeypatch.setattr(FakeSession, call, wait_for_the_engine)
        async with asyncio.timeout(REST_S):
            await runner.shutdown.drain()
        assert state_of(fleet.owned.of(assignment)) == (FAILED, "outcome_unknown")
        assert "may or may not have taken effect" in fleet.owned.of(assignment).lines[-1]
        engine_answers.set()
        await until(lambda: not runner.statements.active)


class _NoOtherServer:
    async def publish(self, kind: str, subject: str) -> None:
        raise AssertionError(kind, subject)


async def test_stopping_process_starts_no_new_work() -> None:
    fleet = Fleet()
    runner = fleet.runner(shutdown_grace=timedelta(seconds=0))
    dispatcher = StatementDispatcher(runner, _NoOtherServer())
    async with runner.running():
        assert await dispatcher.owner_for(None, session_owner=None) == OWNER
        await runner.shutdown.drain()
        for session_owner in (None, OTHER):
            with raises_code("stopping"):
                await dispatcher.owner_for(None, session_owner=session_owner)


async def test_statement_accepted_just_before_the_stop_runs_in_the_grace_period_or_stays_unsent() -> None:
    fleet = Fleet()
    runner = fleet.runner(shutdown_grace=timedelta(seconds=20))
    early, late = (fleet.owned.add(text) for text in ("sleep 0.2", "sleep 0.3"))
    left = fleet.owned.add("sleep 30", sent_ahead=True)
    async with runner.running():
        runner.statements.start(early, ANA)
        draining = asyncio.create_task(runner.shutdown.drain())
        await until(lambda: fleet.engine.running == 1)
        runner.statements.start(late, ANA)
        await draining
        runner.statements.start(left, ANA)
    assert [fleet.owned.of(one).state for one in (early, late, left)] == [SUCCESS, SUCCESS, WAITING]
    assert (fleet.owned.of(left).owner, fleet.owned.of(left).sent) == (None, False)
    assert fleet.engine.executions == ["sleep 0.2", "sleep 0.3"]


async def test_engine_is_held_during_the_grace_period() -> None:
    fleet = Fleet(engine=FakeEngine(capabilities=EngineCapabilities(one_process=True)))
    runner = fleet.runner(shutdown_grace=timedelta(seconds=5))
    async with runner.running():
        runner.statements.start(fleet.owned.add("sleep 1"), ANA)
        draining = asyncio.create_task(runner.shutdown.drain())
        await asyncio.sleep(0.7)
        assert fleet.sessions.engines == {"fake": OWNER}
        await draining
    assert fleet.engine.executions == ["sleep 1"]


async def test_outage_at_shutdown_does_not_delay_it() -> None:
    fleet = Fleet()
    async with asyncio.timeout(60):
        async with fleet.at_work():
            fleet.owned.down = fleet.sessions.down = True
    assert fleet.engine.running == 0


@pytest.mark.parametrize("per_user", [1, 3])
async def test_concurrent_statements_are_limited_per_user(per_user: int) -> None:
    fleet = Fleet()
    runner = fleet.runner(per_user=per_user, shutdown_grace=timedelta(seconds=60))
    seen = []
    async with runner.running():
        for _ in range(6):
            runner.statements.start(fleet.owned.add("sleep 0.1"), ANA)
        while runner.statements.active:
            seen.append(fleet.engine.running)
            await asyncio.sleep(0.01)
    assert max(seen) == per_user
    assert len(fleet.engine.executions) == 6


async def test_last_slot_of_a_worker_is_reserved_for_users_without_running_statements() -> None:
    fleet = Fleet()
    never = timedelta(hours=1)
    worker = fleet.runner(
        intake=Intake.QUEUED, capacity=3, sweep_every=never, reserved_check_every=timedelta(seconds=0.1)
    )
    many = [fleet.owned.add("sleep 30", owner=None, user_id=1) for _ in range(4)]
    async with worker.running():
        assert worker.queue.unreserved_slots == 2
        await worker.queue.take(10)
        await until(lambda: fleet.engine.running == 2)
        assert worker.queue.unreserved_slots == 0
        assert await worker.queue.take(10) == 0
        # No notification arrives, because the broker notifies only workers with other free slots.
        late = fleet.owned.add("sleep 30", owner=None, user_id=2)
        await until(lambda: fleet.engine.running == 3)
        assert fleet.owned.of(late).sent
        worker.statements.cancel(late.claim.statement_id)
        await until(lambda: fleet.engine.running == 2)
        assert [fleet.owned.of(one).sent for one in many] == [True, True, False, False]


class Awake:
    """A broker that records the statements for which it wakes a worker."""

    is_reachable = True

    def __init__(self) -> None:
        self.woken: list[UUID] = []

    def statement_waits(self, statement_id: UUID, *, fence: int) -> None:
        self.woken.append(statement_id)

    def statement_changed(self, statement_id: UUID) -> None:
        pass


async def test_another_worker_is_woken_if_only_a_reserved_slot_became_free() -> None:
    fleet, broker = Fleet(), Awake()
    worker = fleet.runner(intake=Intake.QUEUED, capacity=2, sweep_every=timedelta(hours=1), broker=broker)
    running = [fleet.owned.add("sleep 30", owner=None, user_id=user) for user in (1, 2)]
    fleet.owned.add("sleep 30", owner=None, user_id=2)
    async with worker.running():
        await worker.queue.take(10)
        await until(lambda: fleet.engine.running == 2)
        assert broker.woken == []
        worker.statements.cancel(running[0].claim.statement_id)
        await until(lambda: len(broker.woken) == 1)
        # Once an unreserved slot is free, the worker itself takes the waiting statement.
        worker.statements.cancel(running[1].claim.statement_id)
        await until(lambda: fleet.engine.sessions_opened == 3)
        assert len(broker.woken) == 1


async def test_freed_slot_is_reused_while_the_reserved_slot_is_taken() -> None:
    fleet = Fleet()
    worker = fleet.runner(intake=Intake.QUEUED, capacity=2, sweep_every=timedelta(hours=1))
    first, second = [fleet.owned.add("sleep 30", owner=None, user_id=1) for _ in range(2)]
    other = fleet.owned.add("sleep 30", owner=None, user_id=2)
    async with worker.running():
        await worker.queue.take(10)
        await until(lambda: fleet.engine.running == 2)
        assert not fleet.owned.of(second).sent
        worker.statements.cancel(other.claim.statement_id)
        await until(lambda: terminal(fleet.owned.of(other)))
        worker.statements.cancel(first.claim.statement_id)
        await until(lambda: fleet.owned.of(second).sent)


@pytest.mark.parametrize(("capacity", "kept"), [(0, 0), (1, 0), (2, 1), (8, 1), (15, 1), (16, 2), (64, 8)])
def test_one_worker_slot_in_eight_is_reserved(capacity: int, kept: int) -> None:
    assert RunnerLimits(capacity=capacity).reserved == kept


async def test_statements_of_a_session_run_in_order() -> None:
    fleet = Fleet()
    runner = fleet.runner(shutdown_grace=timedelta(seconds=60))
    shared = fleet.owned.add("set x 0", keeps_session=True).session_id
    texts = [f"set x {number}" for number in range(1, 8)]
    async with runner.running():
        first: Assignment = next(iter(fleet.owned.entries.values())).assignment
        runner.statements.start(first, ANA)
        await until(lambda: terminal(fleet.owned.of(first)))
        for text in texts:
            runner.statements.start(fleet.owned.add(text, session_id=shared, keeps_session=True), ANA)
    assert fleet.engine.executions == ["set x 0", *texts]
    assert fleet.engine.sessions_opened == 1


async def test_concurrent_statements_of_a_script_share_one_engine_session() -> None:
    fleet = Fleet()
    runner = fleet.runner(shutdown_grace=timedelta(seconds=60))
    first = fleet.owned.add("ddl", keeps_session=True)
    others = [fleet.owned.add("ddl", session_id=first.session_id, keeps_session=True) for _ in range(5)]
    async with runner.running():
        for one in (first, *others):
            runner.statements.start(one, ANA)
        await until(lambda: all(terminal(fleet.owned.of(one)) for one in (first, *others)))
        assert fleet.engine.sessions_opened == 1
    assert len(fleet.engine._sessions) == 0


async def test_last_script_statement_releases_its_session_during_a_database_outage() -> None:
    fleet = Fleet()
    runner = fleet.runner(shutdown_grace=timedelta(seconds=60))
    first = fleet.owned.add("set x 1", keeps_session=True)
    async with runner.running():
        runner.statements.start(first, ANA)
        await until(lambda: terminal(fleet.owned.of(first)))
        last = fleet.owned.add("get x", session_id=first.session_id)
        fleet.sessions.before["close"] = _database_away
        runner.statements.start(last, ANA)
        await until(lambda: terminal(fleet.owned.of(last)))
        assert fleet.owned.of(last).state is StatementState.AVAILABLE
        await until(lambda: not fleet.sessions.open_records)


async def test_abandoned_scripts_hold_few_engine_sessions() -> None:
    fleet = Fleet()
    runner = fleet.runner(per_user=4, shutdown_grace=timedelta(seconds=60))
    async with runner.running():
        for _ in range(20):
            one = fleet.owned.add("ddl", keeps_session=True)
            runner.statements.start(one, ANA)
            await until(lambda one=one: terminal(fleet.owned.of(one)))
        assert len(fleet.engine._sessions) <= 4
        assert len(fleet.sessions.open_records) <= 4
    assert len(fleet.engine._sessions) == 0


async def test_closing_a_session_stops_its_running_and_waiting_statements() -> None:
    fleet = Fleet()
    runner = fleet.runner()
    first = fleet.owned.add("ddl", keeps_session=True)
    async with runner.running():
        runner.statements.start(first, ANA)
        await until(lambda: terminal(fleet.owned.of(first)))
        inside = [fleet.owned.add("sleep 30", session_id=first.session_id, keeps_session=True) for _ in range(2)]
        for one in inside:
            runner.statements.start(one, ANA)
        await until(lambda: fleet.engine.running == 1)
        assert await runner.close_session(first.session_id)
        await until(lambda: all(terminal(fleet.owned.of(one)) for one in inside))
    outcomes = [fleet.owned.of(one).outcome for one in inside]
    assert [(one.state, one.message) for one in outcomes if one] == [
        (CANCELED, "Canceled because the session was closed.")
    ] * 2
    assert fleet.engine.executions == ["ddl", "sleep 30"]


async def test_record_of_a_dropped_session_is_closed_by_the_heartbeat() -> None:
    fleet = Fleet()
    runner = fleet.runner()
    assignment = fleet.owned.add("ddl", keeps_session=True)
    async with runner.running():
        runner.statements.start(assignment, ANA)
        await until(lambda: terminal(fleet.owned.of(assignment)))
        # The database stays down until the test resets it, because a single failure might affect the heartbeat instead.
        fleet.sessions.down = True
        await runner.sessions.drop(assignment.session_id)
        assert assignment.session_id in fleet.sessions.open_records
        fleet.sessions.down = False
        await until(lambda: assignment.session_id not in fleet.sessions.open_records)


async def test_session_reopened_by_another_process_stays_open_there() -> None:
    fleet = Fleet()
    runner = fleet.runner()
    assignment = fleet.owned.add("ddl", keeps_session=True)
    async with runner.running():
        runner.statements.start(assignment, ANA)
        await until(lambda: terminal(fleet.owned.of(assignment)))
        fleet.sessions.open_records[assignment.session_id] = _of_another(fleet, assignment)
        await until(lambda: runner.sessions.get(assignment.session_id) is None)
        assert assignment.session_id in fleet.sessions.open_records


def _of_another(fleet: Fleet, assignment: Assignment) -> object:
    mine = fleet.sessions.open_records[assignment.session_id]
    assert mine.owner == OWNER
    return replace(mine, owner=OTHER)


def _database_away() -> None:
    raise DatabaseUnavailable
