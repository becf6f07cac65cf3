"""Which statements are sent before their record is on disk (ADR 89)."""

import asyncio
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from tests.api.driving import Caller

from queryserver.statements.insertion import insert
from queryserver.statements.model import NewStatement, RecordedStatement, opaque_token
from queryserver.statements.repository import StatementRecords


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[NewStatement]:
    """The statements in the order in which they were recorded."""
    seen: list[NewStatement] = []
    record = StatementRecords.record

    async def seen_record(
        self: StatementRecords, new: NewStatement, first_statement: NewStatement | None = None
    ) -> RecordedStatement:
        seen.append(new)
        return await record(self, new, first_statement)

    monkeypatch.setattr(StatementRecords, "record", seen_record)
    return seen


@pytest.fixture
def made_durable(monkeypatch: pytest.MonkeyPatch) -> list[UUID]:
    """The statements whose record the callers waited for before they got its id."""
    seen: list[UUID] = []
    make_durable = StatementRecords.make_durable

    async def seen_make_durable(self: StatementRecords, statement_id: UUID) -> bool:
        seen.append(statement_id)
        return await make_durable(self, statement_id)

    monkeypatch.setattr(StatementRecords, "make_durable", seen_make_durable)
    return seen


@pytest.mark.parametrize(
    ("statement", "fields", "is_early"),
    [
        ("select 1", {"wait": 30}, True),
        ("select 1", {}, False),
        ("select 1; select 2", {"wait": 30, "run_all": "true"}, False),
        ("create temp table t (n int)", {"wait": 30}, False),
        ("select 1; select 2", {"wait": 30}, False),
    ],
)
async def test_only_queries_whose_end_is_awaited_are_sent_early(
    ana: Caller,
    recorded: list[NewStatement],
    made_durable: list[UUID],
    statement: str,
    fields: dict[str, object],
    is_early: bool,
) -> None:
    body = await ana.execute("postgresql", statement, **fields)
    assert [new.commits_early for new in recorded] == [is_early]
    if fields:
        assert body["query_status"]["state"] in {"available", "success"}
        assert made_durable == []


async def test_statement_with_idempotency_key_is_on_disk_first(ana: Caller, recorded: list[NewStatement]) -> None:
    fields = {"statement": "select 1", "wait": 30}
    headers = {"Idempotency-Key": "a"}
    response = await ana.send("POST", "editor/execute/postgresql", data=fields, headers=headers)
    assert response.json()["query_status"]["state"] == "available"
    assert [new.commits_early for new in recorded] == [False]


async def test_record_is_on_disk_before_a_caller_learns_of_a_running_statement(
    ana: Caller, recorded: list[NewStatement], made_durable: list[UUID]
) -> None:
    series = "select count(*) from generate_series(1, 1000000000)"
    body = await ana.execute("postgresql", series, wait=0.2)
    assert body["query_status"]["state"] in {"waiting", "running"}
    assert [new.commits_early for new in recorded] == [True]
    assert [str(one) for one in made_durable] == [body["history_uuid"]]
    await ana.on(body["history_uuid"], "cancel_statement")


async def test_lost_record_of_a_running_statement_is_reported_as_a_fault_that_passes(
    ana: Caller, recorded: list[NewStatement], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose(self: StatementRecords, statement_id: UUID) -> bool:
        await ana.api.database.execute("delete from statements where id = $1", statement_id)
        await asyncio.sleep(0)
        return await make_durable(self, statement_id)

    make_durable = StatementRecords.make_durable
    monkeypatch.setattr(StatementRecords, "make_durable", lose)
    series = "select count(*) from generate_series(1, 1000000000)"
    refusal = await ana.refused("editor/execute/postgresql", statement=series, wait=0.2)
    assert refusal == (503, -1, "service_unavailable")
    assert [new.commits_early for new in recorded] == [True]


@pytest.mark.parametrize("early", [True, False])
async def test_commit_of_an_early_record_does_not_wait_for_the_disk(
    ana: Caller, recorded: list[NewStatement], early: bool
) -> None:
    await ana.execute("postgresql", "select 1", wait=30)
    handle = replace(recorded[0].handle, guid=opaque_token())
    new = replace(recorded[0], id=uuid4(), handle=handle, owner=None, sent_ahead=False, commits_early=early)
    async with ana.api.database.transaction() as connection:
        await connection.execute("set local synchronous_commit = on")
        await insert(connection, new)
        assert (await connection.fetchval("show synchronous_commit") == "off") is early
        await connection.execute("delete from statements where id = $1", new.id)
