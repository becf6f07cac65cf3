"""Setups for tests of the statement services: a single run, or several runners, with fakes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
from tests.fakes.engine import FakeEngine, FakeSession
from tests.fakes.results import MemoryResults
from tests.fakes.statements import OWNER, Entry, MemorySessions, MemoryStatements, MemoryUsers, PlainSealer

from queryserver.connectors.model import Connector, ConnectorLimits
from queryserver.connectors.registry import Connectors
from queryserver.engines.protocol import NO_CONTEXT, EngineSession, OperationHandle, SessionOptions
from queryserver.identity.model import User
from queryserver.platform.settings.editor import EditorSettings
from queryserver.statements.execution import AttachedOperation, Execution
from queryserver.statements.model import Assignment
from queryserver.statements.runner import Runner, RunnerHooks
from queryserver.statements.running_statements import Broker, Intake, RunnerInstance, RunnerLimits, StateSignals
from queryserver.statements.session_options import SessionCredentials
from queryserver.statements.states import StatementState

ANA = User(1, "ana")
# Built without validation, because the values are below the permitted minimum.
FAST = EditorSettings.model_construct(cancel_wait_s=0.5, lease_timeout_s=1.5)

QUICK = RunnerLimits(sweep_every=timedelta(seconds=0.2), shutdown_grace=timedelta(seconds=0.2))


@dataclass
class Run:
    """A setup that runs single statements with fakes."""

    owned: MemoryStatements = field(default_factory=MemoryStatements)
    engine: FakeEngine = field(default_factory=FakeEngine)
    results: MemoryResults = field(default_factory=MemoryResults)
    settings: EditorSettings = FAST
    before_end: Callable[[], Awaitable[None]] | None = None

    def execution(self, assignment: Assignment) -> Execution:
        """Return an execution that opens its own session."""

        @asynccontextmanager
        async def session(_: Assignment) -> AsyncIterator[EngineSession]:
            async with self.engine.session(ANA, SessionOptions()) as opened:
                yield opened

        @asynccontextmanager
        async def reattach(claimed: Assignment) -> AsyncIterator[AttachedOperation]:
            assert claimed.resumption is not None
            mark = claimed.resumption.checkpoint
            async with self.engine.reattach(
                ANA, SessionOptions(), mark.token, rows_read=claimed.resumption.rows
            ) as attached:
                yield attached

        return Execution(
            assignment,
            owned=self.owned,
            results=self.results,
            settings=self.settings,
            open_session=session,
            reattach=reattach,
            context=NO_CONTEXT,
            notify=lambda: None,
            before_end=self.before_end,
        )

    async def to_end(self, statement: str, **more: object) -> Entry:
        """Run the statement to its end and return its final record."""
        assignment = self.owned.add(statement, **more)
        await asyncio.wait_for(self.execution(assignment).run(), 60)
        return self.owned.of(assignment)


@dataclass
class Fleet:
    """Runners that share the same records; each one acts as a separate process."""

    owned: MemoryStatements = field(default_factory=MemoryStatements)
    sessions: MemorySessions = field(default_factory=MemorySessions)
    users: MemoryUsers = field(default_factory=MemoryUsers)
    results: MemoryResults = field(default_factory=MemoryResults)
    engine: FakeEngine = field(default_factory=FakeEngine)
    editor: EditorSettings = FAST
    limits: RunnerLimits = QUICK
    read_only: bool = False
    retries_reads: bool = False
    changes: list[tuple[int, str]] = field(default_factory=list)
    """A (user id, connector) pair for each report that a statement changed objects."""

    def runner(
        self, owner: str = OWNER, *, intake: Intake = Intake.OWN, broker: Broker | None = None, **limits: Any
    ) -> Runner:
        """Create a runner; the caller starts it with `running()`."""
        connector = replace(CONNECTOR, read_only=self.read_only, retries_reads=self.retries_reads)
        connectors = Connectors([connector], build=lambda _: self.engine)
        return Runner(
            RunnerInstance(owner, intake),
            owned=self.owned,
            session_records=self.sessions,
            results=self.results,
            users=self.users,
            connectors=connectors,
            credentials=SessionCredentials(self.sessions, connectors, PlainSealer()),
            signals=StateSignals(),
            editor=self.editor,
            limits=replace(self.limits, **limits),
            hooks=RunnerHooks(objects_changed=self._objects_changed),
            broker=broker,
        )

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[tuple[Runner, Assignment]]:
        """Provide a runner and the assignment of a long statement that is running on its engine."""
        runner, assignment = self.runner(), self.owned.add("sleep 30")
        async with runner.running():
            runner.statements.start(assignment, ANA)
            await until(lambda: self.engine.running == 1)
            yield runner, assignment

    async def _objects_changed(self, user_id: int, connector: str) -> None:
        self.changes.append((user_id, connector))


CONNECTOR = Connector(
    key="fake",
    dialect="fake",
    interface="fake",
    nice_name="Fake",
    limits=ConnectorLimits(
        statement_timeout=timedelta(seconds=60),
        session_idle=timedelta(seconds=60),
        metadata_timeout=timedelta(seconds=5),
        sample_timeout=timedelta(seconds=5),
    ),
)


class PausingEngine(FakeEngine):
    """An engine that returns batches only once `go_on` is set. The first batch is available immediately unless
    `first_waits` is set.
    """

    def __init__(self, *, first_waits: bool = False) -> None:
        super().__init__()
        self.first_waits = first_waits
        self.go_on = asyncio.Event()

    @asynccontextmanager
    async def session(self, user: User, options: SessionOptions) -> AsyncIterator[EngineSession]:
        self.sessions_opened += 1
        session = _PausingSession(self)
        try:
            yield session
        finally:
            await session.end()


class _PausingSession(FakeSession):
    def __init__(self, engine: PausingEngine) -> None:
        super().__init__(engine)
        self._first_waits, self._go_on = engine.first_waits, engine.go_on

    async def batches(self, handle: OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        if self._first_waits:
            await self._go_on.wait()
        async for batch in super().batches(handle):
            yield batch
            await self._go_on.wait()


async def until(holds: Callable[[], bool], within_s: float = 60) -> None:
    """Wait until the condition holds; fail after `within_s`."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 no event reports this state
            await asyncio.sleep(0.01)


async def stopped(task: "asyncio.Task[None]") -> None:
    """Cancel a task of the test and wait until it has ended."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def terminal(entry: Entry) -> bool:
    """Return whether the statement is in a terminal state."""
    return entry.state.is_terminal


def state_of(entry: Entry) -> tuple[StatementState, str | None]:
    """Return the statement's state and error code."""
    return entry.state, entry.outcome.error_code if entry.outcome else None
