"""Calls that wait for statements of other processes, in a real database (Contract editor 7.1, platform 10.2)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.fakes.statements import PlainSealer
from tests.fixtures.database import PATIENT, execute
from tests.unit.statements.driving import until

from queryserver.errors.base import DatabaseUnavailable
from queryserver.errors.statements import OperationNotFound
from queryserver.platform.database import Database, Notices, listening, open_database
from queryserver.platform.embedded.postgres import EmbeddedPostgres
from queryserver.platform.ownership import Ownership
from queryserver.sql.positions import Position
from queryserver.statements.model import Claim, Outcome
from queryserver.statements.owned_statements import OwnedStatements
from queryserver.statements.repository import StatementRecords
from queryserver.statements.runner import StatementDispatcher
from queryserver.statements.running_statements import StateChangePoller, StateSignals
from queryserver.statements.states import StatementState, TruncationReason
from queryserver.statements.status import StatementReader

OWNER = "worker"
SUCCESS = Outcome(StatementState.SUCCESS)
FAR_S = 3600.0


@dataclass
class Waiting:
    """A server on which calls wait for statements that a worker is running."""

    dsn: str
    database: Database
    records: StatementRecords
    queries: list[float]
    """The duration of each database query."""
    signals: StateSignals = field(default_factory=StateSignals)
    looks: list[int] = field(default_factory=list)
    """For each poll, the number of statements whose states were compared."""
    begun: int = 0
    """The number of calls that have already read the status of their statement."""

    async def running(self, count: int = 1) -> list[UUID]:
        """Insert statements that the worker is running; return their ids."""
        user_id = await self.database.value(
            """insert into users (username, username_key) values ('ana', 'ana')
            on conflict (username_key) do update set username = 'ana' returning id"""
        )
        ids = [uuid4() for _ in range(count)]
        await self.database.execute(
            """insert into statements (
                id, user_id, connector, dialect, state, statement, statement_index, statements_count, position,
                statement_hash, guid, secret, session_id, session_guid, row_limit, timeout_s, deadline_at,
                has_result_set, owner, fence
            ) select id, $2, 'duckdb', 'duckdb', 'running', 'SELECT 1', 0, 1, '{0, 0, 0, 8}', '', id::text, '', 1, '',
                10, 10, now(), true, $3, 1
            from unnest($1::uuid[]) as id""",
            ids,
            user_id,
            OWNER,
        )
        return ids

    async def end_silently(self, *ids: UUID) -> None:
        await self.database.execute("update statements set state = 'success' where id = any($1::uuid[])", ids)

    async def state_after(self, statement_id: UUID) -> StatementState:
        """Wait for the statement; return the state in which the wait ended."""
        unused: Any = None
        reader = StatementReader(self.records, unused, self.signals, unused)
        with self.signals.watch(statement_id, ends_only=True) as watch:
            status = await self.records.status(statement_id)
            assert status is not None
            self.begun += 1
            return (await reader.wait_on_watch(status, FAR_S, watch)).state

    @asynccontextmanager
    async def calls(self, *ids: UUID) -> AsyncIterator[list[asyncio.Task[StatementState]]]:
        """Provide calls that have read the status of their statements and are now waiting."""
        calls = [asyncio.create_task(self.state_after(one)) for one in ids]
        try:
            await until(lambda: self.begun == len(ids))
            yield calls
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    def changed_states(self, runs_here: Callable[[UUID], bool] = lambda _: False) -> StateChangePoller:
        found = StateChangePoller(self.database, self.signals, runs_here, every_s=0.02, own_every_s=FAR_S)
        read = found._changed

        async def counted(watched: Any) -> Any:
            self.looks.append(len(watched))
            return await read(watched)

        found._changed = counted  # type: ignore[method-assign]
        return found


@pytest.fixture
async def waiting(database_dsn: str) -> AsyncIterator[Waiting]:
    queries: list[float] = []
    async with open_database(database_dsn, PATIENT, observe_query=queries.append) as database:
        records = StatementRecords(database)
        try:
            yield Waiting(database_dsn, database, records, queries)
        finally:
            await records.aclose()


async def finish(
    waiting: Waiting,
    statement_id: UUID,
    *,
    is_claimed: bool,
    notifies_ends: bool = True,
    outcome: Outcome = SUCCESS,
    ends_here: bool = False,
) -> None:
    """Finish the statement as its worker does, or as the server itself does if `ends_here` is set."""
    owned = OwnedStatements(
        waiting.database,
        Ownership(waiting.database, lease=timedelta(seconds=30)),
        PlainSealer(),
        notifies_ends=lambda: notifies_ends,
        on_final_status=waiting.signals.ended if ends_here else lambda _: None,
    )
    claim = Claim(statement_id, OWNER, 1, is_claimed=is_claimed)
    assert await owned.finish(claim, outcome, retention=timedelta(hours=1), lines=[], start_line=None)


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(StatementState.AVAILABLE, has_result_set=True, rows=3, truncated_reason=TruncationReason.ROW_LIMIT),
        Outcome(StatementState.FAILED, error_code="rejected", message="no", error_position=Position(1, 8)),
    ],
)
async def test_wait_for_a_statement_that_ends_here_reads_nothing(waiting: Waiting, outcome: Outcome) -> None:
    (statement_id,) = await waiting.running()
    with waiting.signals.watch(statement_id, ends_only=True) as watch:
        await finish(waiting, statement_id, is_claimed=False, outcome=outcome, ends_here=True)
        assert watch.final_status is not None
        read = await waiting.records.status(statement_id)
        assert read is not None
        assert replace(watch.final_status, times=read.times) == read
    async with asyncio.timeout(30), waiting.calls(*await waiting.running()) as (call,):
        (statement_id,) = (one for one, _ in waiting.signals.watched())
        await finish(waiting, statement_id, is_claimed=False, outcome=outcome, ends_here=True)
        waiting.queries.clear()
        waiting.signals.notify(statement_id)
        assert await call is outcome.state
        assert waiting.queries == []


async def test_end_without_a_notification_is_found(waiting: Waiting) -> None:
    ended, deleted = await waiting.running(2)
    async with asyncio.timeout(30), waiting.changed_states().running(), waiting.calls(ended, deleted) as calls:
        await waiting.end_silently(ended)
        assert await calls[0] is StatementState.SUCCESS
        assert not calls[1].done()
        await waiting.database.execute("delete from statements where id = $1", deleted)
        with pytest.raises(OperationNotFound):
            await calls[1]


async def test_fifty_waits_share_one_query(waiting: Waiting) -> None:
    ids = await waiting.running(50)
    async with asyncio.timeout(60), waiting.calls(*ids) as calls:
        waiting.queries.clear()
        async with waiting.changed_states().running():
            await until(lambda: len(waiting.looks) > 5)
        assert set(waiting.looks) == {50}
        assert len(waiting.queries) <= len(waiting.looks), "the calls read nothing"
        async with waiting.changed_states().running():
            await waiting.end_silently(*ids)
            assert set(await asyncio.gather(*calls)) == {StatementState.SUCCESS}


async def test_own_statements_are_compared_less_often(waiting: Waiting) -> None:
    own, other = await waiting.running(2)
    async with asyncio.timeout(30), waiting.calls(own, other):
        async with waiting.changed_states(lambda one: one == own).running():
            await until(lambda: len(waiting.looks) > 3)
        assert waiting.looks[:4] == [2, 1, 1, 1]


async def test_notification_ends_the_wait(waiting: Waiting) -> None:
    """Only the notification can end this wait; otherwise, the call would wait for an hour."""
    (statement_id,) = await waiting.running()
    runner: Any = SimpleNamespace(signals=waiting.signals, owner="server", start=None)
    dispatcher, listens = StatementDispatcher(runner, Notices(waiting.database)), asyncio.Event()
    async with asyncio.timeout(30), listening(waiting.dsn, dispatcher.notified, listens.set):
        await listens.wait()
        async with waiting.calls(statement_id) as (call,):
            await finish(waiting, statement_id, is_claimed=True)
            assert await call is StatementState.SUCCESS


async def test_only_ends_awaited_by_another_process_are_notified(waiting: Waiting) -> None:
    own, by_broker, claimed = await waiting.running(3)
    notices, listens = asyncio.Queue[tuple[str, str]](), asyncio.Event()
    async with asyncio.timeout(30), listening(waiting.dsn, lambda *notice: notices.put_nowait(notice), listens.set):
        await listens.wait()
        await finish(waiting, own, is_claimed=False)
        await finish(waiting, by_broker, is_claimed=True, notifies_ends=False)
        await finish(waiting, claimed, is_claimed=True)
        assert await notices.get() == ("ended", str(claimed)), "notices come in the order of their commits"


async def test_wait_fails_immediately_when_the_database_is_lost(waiting: Waiting, postgres: EmbeddedPostgres) -> None:
    name = waiting.dsn.rsplit("/", 1)[1].split("?")[0]
    (statement_id,) = await waiting.running()
    async with asyncio.timeout(30), waiting.changed_states().running(), waiting.calls(statement_id) as (call,):
        await execute(postgres.admin_dsn(), f'alter database "{name}" allow_connections false')
        await execute(
            postgres.admin_dsn(), f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"
        )
        with pytest.raises(DatabaseUnavailable):
            await call


async def test_rows_and_progress_do_not_wake_waits_for_the_end() -> None:
    signals, statement_id = StateSignals(), uuid4()
    with signals.watch(statement_id) as rows, signals.watch(statement_id, ends_only=True) as end:
        signals.notify(statement_id, may_have_ended=False)
        assert (await rows.changed_within(0), await end.changed_within(0)) == (True, False)
        signals.notify(statement_id)
        assert (await rows.changed_within(0), await end.changed_within(0)) == (True, True)
        assert (await rows.changed_within(0), await end.changed_within(0)) == (False, False)
