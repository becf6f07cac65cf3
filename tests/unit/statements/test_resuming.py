"""Statements that continue on the engine after their runner has ended (Contract editor 3.3 rule 4)."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.fakes.resumable import ResumableFakeEngine, ResumableFakeSession
from tests.fakes.statements import Entry
from tests.unit.statements.driving import ANA, Fleet, Run, state_of, terminal, until

from queryserver.engines.protocol import OperationHandle, SessionOptions
from queryserver.sql.literals import HIVE
from queryserver.sql.markers import BoundStatement, StatementParameters
from queryserver.sql.parameters import read_parameters
from queryserver.statements.model import EngineCheckpoint, Resumption
from queryserver.statements.states import StatementState

pytestmark = pytest.mark.item(25)

AVAILABLE, CANCELED, FAILED = StatementState.AVAILABLE, StatementState.CANCELED, StatementState.FAILED
BOTH_KINDS = pytest.mark.parametrize("pages_once", [False, True])


def rows_of(entry: Entry) -> list[tuple[int, int]]:
    """Return the first row and the number of rows of each segment."""
    return [(one.start_row, one.rows) for one in entry.segments]


def assert_whole(entry: Entry, rows: int) -> None:
    """Assert that the segments contain every row exactly once."""
    assert entry.state is AVAILABLE
    assert entry.outcome is not None
    assert entry.outcome.rows == rows
    position = 0
    for start, count in rows_of(entry):
        assert start == position
        position += count
    assert position == rows


def assert_whole_result(entry: Entry, rows: int) -> None:
    """Assert that all rows are stored, either in the record or in segments."""
    assert entry.outcome is not None
    assert (entry.state, entry.outcome.rows) == (AVAILABLE, rows)
    if entry.outcome.inline_result is None:
        assert_whole(entry, rows)


@BOTH_KINDS
async def test_shutdown_leaves_a_statement_to_the_next_server(pages_once: bool) -> None:
    engine = ResumableFakeEngine(pages_once=pages_once)
    fleet = Fleet(engine=engine)
    assignment = fleet.owned.add("work then rows 5000", owner=None)
    entry = fleet.owned.of(assignment)
    async with fleet.runner("first").running():
        await until(lambda: entry.state is StatementState.RUNNING)
    assert not terminal(entry)
    assert entry.owner is None
    engine.finish.set()
    async with fleet.runner("second").running():
        await until(lambda: terminal(entry))
    assert_whole_result(entry, 5000)
    assert engine.executions == ["work then rows 5000"]
    assert engine.cancels == 0


@pytest.mark.item(88)
async def test_script_statement_is_resumed_by_the_next_server_and_the_rest_does_not_run() -> None:
    engine = ResumableFakeEngine()
    fleet = Fleet(engine=engine)
    script = fleet.owned.add("work then rows 3; change 1", owner="script", owner_dies_in_s=3600)
    part = fleet.owned.add("work then rows 3", owner=None, statements_count=2, keeps_session=True)
    entry = fleet.owned.of(part)
    entry.assignment = replace(part, claim=replace(part.claim, operation_id=script.claim.statement_id))
    async with fleet.runner("first").running():
        await until(lambda: entry.state is StatementState.RUNNING)
    assert not terminal(entry)
    engine.finish.set()
    others: list[Entry] = []

    def all_ended() -> bool:
        others[:] = [one for one in fleet.owned.entries.values() if one.assignment.statement == "change 1"]
        return bool(others) and all(map(terminal, others))

    async with fleet.runner("second").running():
        await until(all_ended)
    assert_whole_result(entry, 3)
    assert [state_of(one) for one in others] == [(FAILED, "session_lost")]
    assert engine.executions == ["work then rows 3"]


@BOTH_KINDS
async def test_rows_resume_after_the_last_stored_row(pages_once: bool) -> None:
    engine = ResumableFakeEngine(pages_once=pages_once)
    engine.go_on.clear()
    fleet = Fleet(engine=engine)
    assignment = fleet.owned.add("rows 5000 wide 100", owner=None)
    entry = fleet.owned.of(assignment)
    async with fleet.runner("first").running():
        await until(lambda: rows_of(entry) == [(0, 1000)])
    assert not terminal(entry)
    engine.go_on.set()
    async with fleet.runner("second").running():
        await until(lambda: terminal(entry))
    assert_whole(entry, 5000)
    assert len(engine.executions) == 1


async def test_pages_of_a_long_statement_are_stored_one_by_one() -> None:
    """Once a statement has run for a while, each page is stored immediately, so that another server can continue after
    the last stored page.
    """
    engine = ResumableFakeEngine(pages_once=True)
    fleet = Fleet(engine=engine)
    assignment = fleet.owned.add("sleep 2.5 then rows 40000", owner=None, row_limit=40_000)
    entry = fleet.owned.of(assignment)
    async with fleet.runner("first").running():
        await until(lambda: terminal(entry))
    assert rows_of(entry) == [(start, 1000) for start in range(0, 40_000, 1000)]


async def test_log_lines_appear_once() -> None:
    engine = ResumableFakeEngine()
    engine.go_on.clear()
    fleet = Fleet(engine=engine)
    entry = fleet.owned.of(fleet.owned.add("rows 5000 wide 100", owner=None))
    async with fleet.runner("first").running():
        await until(lambda: entry.checkpoint is not None and entry.checkpoint.log_lines == 1)
    engine.go_on.set()
    async with fleet.runner("second").running():
        await until(lambda: terminal(entry))
    assert entry.lines.count("statement fake-1") == 1
    assert entry.lines.count("Running on fake.") == 1
    assert [line for line in entry.lines if "Another server" in line]


async def test_statement_unknown_to_the_engine_has_an_unknown_outcome() -> None:
    run = Run(engine=ResumableFakeEngine())
    left = Resumption(EngineCheckpoint("fake-9"), rows=1000, segments=1)
    entry = await run.to_end("rows 5000", sent=True, resumption=left)
    assert state_of(entry) == (FAILED, "outcome_unknown")
    assert entry.outcome is not None
    assert entry.outcome.message.startswith("Results have expired")
    assert run.engine.executions == []


async def test_unavailable_engine_is_waited_for() -> None:
    engine = ResumableFakeEngine()
    fleet = Fleet(engine=engine)
    entry = fleet.owned.of(fleet.owned.add("work then rows 10", owner=None))
    async with fleet.runner("first").running():
        await until(lambda: entry.state is StatementState.RUNNING)
    engine.reachable = False
    async with fleet.runner("second").running():
        await asyncio.sleep(1)
        assert not terminal(entry)
        engine.reachable = True
        engine.finish.set()
        await until(lambda: terminal(entry))
    assert_whole_result(entry, 10)


async def test_cancel_without_a_running_server_reaches_the_engine_later() -> None:
    engine = ResumableFakeEngine()
    fleet = Fleet(engine=engine)
    entry = fleet.owned.of(fleet.owned.add("sleep 60", owner=None))
    async with fleet.runner("first").running():
        await until(lambda: entry.state is StatementState.RUNNING)
    entry.cancel_requested = True
    async with fleet.runner("second").running():
        await until(lambda: terminal(entry))
    assert entry.state is CANCELED
    assert engine.cancels == 1
    assert engine.left == {}


async def test_end_of_a_resumed_statement_closes_its_session() -> None:
    engine = ResumableFakeEngine()
    async with engine.session(ANA, SessionOptions()) as session:
        handle = await session.submit("sleep 1 then rows 3")
        session.detach()  # type: ignore[attr-defined]
    run = Run(engine=engine)
    entry = await run.to_end("sleep 1 then rows 3", sent=True, resumption=Resumption(EngineCheckpoint(handle.token)))
    assert_whole_result(entry, 3)
    assert engine.left == {}


class ShowingSession(ResumableFakeSession):
    """A session whose log contains the statement with its values, as in Hive."""

    sent = "SELECT * FROM people WHERE name = 'xyzzy-17' AND n = (-55555)"

    def written(self, statement: BoundStatement) -> str:
        return statement.render(HIVE.write)

    async def logs(self, handle: OperationHandle, *, start: int) -> Sequence[str]:
        return [f"Compiling command(queryId=1): {self.sent}"][start:]


async def test_log_of_a_resumed_statement_shows_no_values() -> None:
    engine = ResumableFakeEngine()
    session = ShowingSession(engine)
    handle = await session.submit("sleep 1 then rows 3")
    engine.left[handle.token] = session
    entry = await Run(engine=engine).to_end(
        "SELECT * FROM people WHERE name = ? AND n = ?",
        dialect="hive",
        sent=True,
        resumption=Resumption(EngineCheckpoint(handle.token)),
        parameters=StatementParameters(read_parameters(["xyzzy-17", -55555])),
    )
    assert_whole_result(entry, 3)
    [shown] = [line for line in entry.lines if "Compiling" in line]
    assert shown == "Compiling command(queryId=1): SELECT * FROM people WHERE name = ? AND n = ?"


async def test_statement_with_an_unreadable_checkpoint_has_an_unknown_outcome() -> None:
    """A checkpoint is unreadable if, for example, the key that encrypted it has been lost."""
    fleet = Fleet(engine=ResumableFakeEngine())
    entry = fleet.owned.of(fleet.owned.add("sleep 60", owner=None))
    async with fleet.runner("first").running():
        await until(lambda: entry.state is StatementState.RUNNING)
    entry.checkpoint = None
    async with fleet.runner("second").running():
        await until(lambda: terminal(entry))
    assert state_of(entry) == (FAILED, "outcome_unknown")
    assert len(fleet.engine.executions) == 1
