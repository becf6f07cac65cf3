"""Read-only statements whose process died run a second time if the connector permits it (Contract editor 3.3)."""

from uuid import uuid4

import pytest
from tests.unit.statements.driving import Fleet, state_of, terminal, until

from queryserver.results.segments import Segment
from queryserver.statements.model import EngineCheckpoint
from queryserver.statements.states import StatementState

DEAD = "a-dead-process"
READS = "values 1 2"
UNKNOWN = (StatementState.FAILED, "outcome_unknown")


@pytest.mark.item(92)
async def test_read_only_statement_runs_once_more() -> None:
    fleet = Fleet(retries_reads=True)
    assignment = fleet.owned.add(READS, owner=DEAD, owner_dies_in_s=0.3, sent=True)
    async with fleet.runner().running():
        await until(lambda: terminal(fleet.owned.of(assignment)))
    entry = fleet.owned.of(assignment)
    assert (entry.state, fleet.engine.executions) == (StatementState.AVAILABLE, [READS])
    assert entry.writes.count("retry") == 1


@pytest.mark.item(92)
@pytest.mark.parametrize(
    "more",
    [
        {"in_named_session": True},
        {"keeps_session": True},
        {"statements_count": 2, "statement_index": 1},
        {"rows": 3},
        {"cancel_requested": True},
        {"was_retried": True},
        {"import_plan": {"kind": "file"}},
        {"destination": {"kind": "table", "connector": "fake"}},
        {"source_operation": uuid4(), "destination": {"kind": "table", "is_published": True}},
    ],
)
async def test_statement_with_session_reader_or_former_retry_is_not_retried(more: dict[str, object]) -> None:
    fleet = Fleet(retries_reads=True)
    assignment = fleet.owned.add(READS, owner=DEAD, owner_dies_in_s=0.3, sent=True, **more)
    async with fleet.runner().running():
        await until(lambda: terminal(fleet.owned.of(assignment)))
    assert state_of(fleet.owned.of(assignment)) == UNKNOWN
    assert fleet.engine.executions == []


@pytest.mark.exports(21)
async def test_export_of_a_stored_result_runs_once_more_whatever_the_connector_permits() -> None:
    fleet = Fleet(retries_reads=False)
    destination = {"kind": "table", "connector": "fake"}
    source = {"source_operation": uuid4(), "destination": destination}
    assignment = fleet.owned.add("-- Export", owner=DEAD, owner_dies_in_s=0.3, sent=True, **source)
    async with fleet.runner().running():
        await until(lambda: terminal(fleet.owned.of(assignment)))
    entry = fleet.owned.of(assignment)
    assert entry.writes.count("retry") == 1
    assert state_of(entry) == (StatementState.FAILED, "rejected"), "this runner has no stored results to read"


@pytest.mark.item(92)
async def test_rows_stored_since_the_check_prevent_the_retry() -> None:
    fleet = Fleet(retries_reads=True)
    assignment = fleet.owned.add(READS, owner=DEAD, owner_dies_in_s=0.3, sent=True)
    fleet.owned.of(assignment).segments.append(Segment(0, 0, 1, 100, 1))
    async with fleet.runner().running():
        await until(lambda: terminal(fleet.owned.of(assignment)))
    assert state_of(fleet.owned.of(assignment)) == UNKNOWN


@pytest.mark.item(92)
@pytest.mark.parametrize(("statement", "retries"), [("change 1", True), (READS, False)])
async def test_changes_and_connectors_without_retry_end_as_unknown(statement: str, retries: bool) -> None:
    fleet = Fleet(retries_reads=retries)
    assignment = fleet.owned.add(statement, owner=DEAD, owner_dies_in_s=0.3, sent=True)
    async with fleet.runner().running():
        await until(lambda: terminal(fleet.owned.of(assignment)))
    assert state_of(fleet.owned.of(assignment)) == UNKNOWN
    assert fleet.engine.executions == []


@pytest.mark.item(92)
async def test_resumable_statement_is_resumed_and_not_retried() -> None:
    fleet = Fleet(retries_reads=True)
    assignment = fleet.owned.add(READS, owner=DEAD, owner_dies_in_s=0.3, sent=True)
    entry = fleet.owned.of(assignment)
    entry.state, entry.checkpoint = StatementState.RUNNING, EngineCheckpoint("of an engine that forgot it")
    async with fleet.runner().running():
        await until(lambda: terminal(entry))
    assert fleet.engine.executions == []
