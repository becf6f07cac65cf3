"""The contract of the statement queue, in one process and across workers notified through Valkey (Contract platform
10.2).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from tests.fakes.statements import Entry
from tests.unit.statements.driving import Fleet, until

from queryserver.identity.model import User
from queryserver.platform.embedded.companions import ValkeyServer
from queryserver.platform.settings.sections import TaskServerSettings
from queryserver.statements.runner import Runner, StatementDispatcher
from queryserver.statements.running_statements import Intake
from queryserver.statements.states import StatementState
from queryserver.tasks.broker import RedisBroker

pytestmark = pytest.mark.platform(102)


class NoNotices:
    """An implementation of `platform.database.Notices` that notifies no process; sweeps and the broker suffice."""

    async def publish(self, kind: str, subject: str) -> None:
        return None


class Desk:
    """A server that records statements, and the runners that execute them."""

    def __init__(self, fleet: Fleet, dispatcher: StatementDispatcher, runners: list[Runner]) -> None:
        self.fleet = fleet
        self.dispatcher = dispatcher
        self.runners = runners

    async def submit(self, statement: str, *, user: int = 1) -> Entry:
        """Submit a statement as the execute call does."""
        owner = await self.dispatcher.owner_for(None, session_owner=None)
        assignment = self.fleet.owned.add(statement, owner=owner, user_id=user)
        if owner is None:
            await self.dispatcher.announce(assignment.claim.statement_id, is_bound=False)
        else:
            self.runners[0].statements.start(assignment, User(user, f"user{user}"))
        return self.fleet.owned.of(assignment)


class QueueContract(ABC):
    """The queue tests. They run with two slots per user and four slots in total."""

    @pytest.fixture
    @abstractmethod
    def desk(self) -> Desk: ...

    async def test_each_statement_runs_once(self, desk: Desk) -> None:
        entries = [await desk.submit(f"rows {number}", user=number % 7) for number in range(60)]
        await until(lambda: all(one.state.is_terminal for one in entries))
        assert {one.state for one in entries} == {StatementState.AVAILABLE}
        assert desk.fleet.engine.sessions_opened == 60

    async def test_statement_canceled_while_waiting_is_never_sent(self, desk: Desk) -> None:
        running = [await desk.submit("sleep 30", user=1) for _ in range(2)]
        await until(lambda: desk.fleet.engine.running == 2)
        waiting = await desk.submit("rows 1", user=1)
        desk.fleet.owned.ask_to_cancel(waiting.assignment.claim.statement_id)
        await desk.dispatcher.cancel(waiting.assignment.claim.statement_id, owner=waiting.owner)
        for one in running:
            await self.cancel(desk, one)
        await until(lambda: all(one.state.is_terminal for one in running))
        assert await (await self.ended(desk, "rows 1", user=1)) is StatementState.AVAILABLE
        assert (waiting.state, waiting.sent) == (StatementState.CANCELED, False)

    async def test_user_with_many_statements_does_not_delay_others(self, desk: Desk) -> None:
        many = [await desk.submit("sleep 30", user=1) for _ in range(40)]
        await until(lambda: desk.fleet.engine.running == 2)
        assert await (await self.ended(desk, "rows 3", user=2)) is StatementState.AVAILABLE
        assert sum(one.sent for one in many) == 2

    async def cancel(self, desk: Desk, entry: Entry) -> None:
        """Request cancellation as an API call does, and deliver the notice to every process."""
        statement_id = entry.assignment.claim.statement_id
        desk.fleet.owned.ask_to_cancel(statement_id)
        for runner in desk.runners:
            runner.statements.cancel(statement_id)

    async def ended(self, desk: Desk, statement: str, *, user: int) -> "asyncio.Task[StatementState]":
        """Submit the statement and return a task that waits for its terminal state."""
        entry = await desk.submit(statement, user=user)

        async def end() -> StatementState:
            await until(lambda: entry.state.is_terminal)
            return entry.state

        return asyncio.create_task(end())


class TestInOneProcess(QueueContract):
    @pytest.fixture
    async def desk(self) -> AsyncIterator[Desk]:
        fleet = Fleet()
        runner = fleet.runner(per_user=2, per_connector=4)
        async with runner.running():
            yield Desk(fleet, StatementDispatcher(runner, NoNotices()), [runner])


class TestOverWorkers(QueueContract):
    @pytest.fixture
    async def desk(self, task_server: TaskServerSettings) -> AsyncIterator[Desk]:
        async with over_workers(task_server, workers=2) as desk:
            yield desk

    async def test_server_itself_runs_no_statements(self, desk: Desk) -> None:
        entry = await desk.submit("rows 1")
        await until(lambda: entry.state.is_terminal)
        assert entry.owner in {"worker 0", "worker 1"}

    @pytest.mark.platform(103)
    async def test_statement_submitted_during_broker_outage_runs_once(self, desk: Desk, valkey: ValkeyServer) -> None:
        await valkey.stop()
        entry = await desk.submit("rows 1")
        await until(lambda: entry.state.is_terminal)
        await valkey.start()
        assert await (await self.ended(desk, "rows 2", user=1)) is StatementState.AVAILABLE
        assert desk.fleet.engine.sessions_opened == 2

    @pytest.mark.platform(103)
    async def test_emptied_broker_loses_no_statement(self, desk: Desk, valkey: ValkeyServer) -> None:
        running = [await desk.submit("sleep 0.3", user=number) for number in range(4)]
        entries = [await desk.submit("rows 1", user=number % 9) for number in range(30)]
        await valkey.stop()
        await valkey.start()
        await until(lambda: all(one.state.is_terminal for one in entries + running))
        assert desk.fleet.engine.sessions_opened == 34

    async def test_stopping_worker_leaves_waiting_statements_to_others(self, desk: Desk) -> None:
        blocked = [await desk.submit("sleep 30", user=number) for number in range(4)]
        await until(lambda: desk.fleet.engine.running == 4)
        waiting = await desk.submit("rows 1", user=9)
        for one in blocked:
            if one.owner == "worker 0":
                await self.cancel(desk, one)
        await desk.runners[1].shutdown.drain()
        await until(lambda: waiting.state.is_terminal)
        assert (waiting.state, waiting.owner) == (StatementState.AVAILABLE, "worker 0")


@asynccontextmanager
async def over_workers(settings: TaskServerSettings, *, workers: int) -> AsyncIterator[Desk]:
    """Start a server and workers with two slots each, all connected to the same broker."""
    fleet = Fleet()
    async with AsyncExitStack() as stack:
        broker = await _broker(stack, settings)
        server = fleet.runner("server", intake=Intake.BOUND, broker=broker)
        await stack.enter_async_context(server.running())
        runners = [server]
        for number in range(workers):
            own = await _broker(stack, settings)
            runner = fleet.runner(
                f"worker {number}", intake=Intake.QUEUED, broker=own, capacity=2, per_user=2, per_connector=4
            )
            await stack.enter_async_context(runner.running())
            runners.append(runner)
            stack.push_async_callback(_stopped, asyncio.create_task(_serve(own, runner)))
        yield Desk(fleet, StatementDispatcher(server, NoNotices(), broker), runners[1:] + runners[:1])


async def _broker(stack: AsyncExitStack, settings: TaskServerSettings) -> RedisBroker:
    broker = RedisBroker(settings)
    await stack.enter_async_context(broker.running())
    return broker


async def _serve(broker: RedisBroker, runner: Runner) -> None:
    async def take(_job: str) -> None:
        runner.queue.wake()

    await broker.serve({"statement": take}, free_slots=lambda: runner.queue.unreserved_slots)


async def _stopped(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
