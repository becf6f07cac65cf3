"""Manages the statements that run, or wait for a slot, in this process (Contract platform 10.2)."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import structlog

from queryserver.connectors.registry import Connectors
from queryserver.errors.base import DatabaseUnavailable
from queryserver.identity.model import User
from queryserver.platform.metrics import Metrics
from queryserver.platform.settings.editor import EditorSettings
from queryserver.results.segments import ResultStore
from queryserver.sql.splitter import changes_objects
from queryserver.statements.assignments import Assignment, Lease
from queryserver.statements.engine_sessions import SessionOpener
from queryserver.statements.execution import Execution
from queryserver.statements.intake import Broker, RunnerInstance
from queryserver.statements.leases import StatementLeases
from queryserver.statements.scripts import ScriptRun
from queryserver.statements.signals import StateSignals

T = TypeVar("T")

log = structlog.get_logger(__name__)


@dataclass(eq=False, repr=False, kw_only=True)
class RunningStatements:
    """Starts executions, each in its own task, and cancels them.

    `objects_changed` is called with user id and connector before the end of a statement that may change tables,
    `after_end` once an execution is over.
    """

    instance: RunnerInstance
    leases: StatementLeases
    results: ResultStore
    opener: SessionOpener
    connectors: Connectors
    signals: StateSignals
    editor: EditorSettings
    metrics: Metrics
    broker: Broker | None
    objects_changed: Callable[[int, str], Awaitable[None]] | None
    after_end: Callable[[Execution], None]
    tasks: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]], init=False)
    """All tasks that a shutdown waits for."""
    _executions: dict[UUID, Execution] = field(default_factory=dict[UUID, Execution], init=False)

    def start(self, assignment: Assignment, user: User, script: ScriptRun | None = None) -> None:
        """Run a claimed statement; after the grace period of a shutdown, it is left to another process.

        `script` is set if the statement continues a script whose previous statement ran here.
        """
        if self.instance.is_drained:
            # The call was accepted just before the shutdown started.
            self.add_task(unless_database_unavailable(self.leases.release(assignment.lease)), "statement-left")
            return
        lease = assignment.lease
        if lease.operation_id is not None and script is None:
            script = ScriptRun(self.leases, self.editor, is_shared=self.is_shared(assignment))
        execution = Execution(
            assignment,
            leases=self.leases,
            results=self.results,
            settings=self.editor,
            open_session=partial(self.opener.session, user=user),
            reattach=partial(self.opener.reattach, user=user),
            notify=partial(self.notify, lease),
            before_end=self.before_end(assignment),
            metrics=self.metrics,
            script=script,
        )
        self._executions[lease.statement_id] = execution
        task = self.add_task(execution.run(), f"statement-{lease.statement_id}")
        task.add_done_callback(lambda _: self._remove(execution))

    def add_task(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task that a shutdown waits for."""
        task = asyncio.create_task(work, name=name)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def _remove(self, execution: Execution) -> None:
        lease = execution.assignment.lease
        if self._executions.get(lease.statement_id) is execution:
            del self._executions[lease.statement_id]
        if not execution.is_settled:  # otherwise, recording the end has already notified them
            self.notify(lease)
        self.after_end(execution)

    @property
    def active(self) -> int:
        """Number of statements that run or wait for a slot here."""
        return len(self._executions)

    def runs(self, statement_id: UUID) -> bool:
        """Return whether the statement runs, or waits for a slot, in this process."""
        return statement_id in self._executions

    def ids(self) -> list[UUID]:
        """Return the ids of the statements."""
        return list(self._executions)

    def users(self) -> set[int]:
        """Return the ids of the statements' users."""
        return {execution.assignment.user_id for execution in self._executions.values()}

    def executions(self) -> list[Execution]:
        return list(self._executions.values())

    def cancel(self, statement_id: UUID, *, message: str = "Canceled.") -> bool:
        """Cancel a statement, or the active one of a script; False if it does not run here."""
        execution = self._executions.get(statement_id) or next(
            (one for one in self._executions.values() if one.assignment.lease.operation_id == statement_id), None
        )
        if execution is None:
            return False
        execution.stop(message)
        return True

    def cancel_session(self, session_id: int) -> None:
        """Cancel the statements of a session that is being closed."""
        for execution in self.executions():
            if execution.assignment.session_id == session_id:
                execution.stop("Canceled: its session was closed.")

    def cancel_of_users(self, disabled: Collection[int]) -> None:
        """Cancel the statements of users who were disabled or deleted."""
        for execution in self.executions():
            if execution.assignment.user_id in disabled:
                execution.stop("Canceled: the user is no longer active.")

    def notify(self, lease: Lease) -> None:
        """Wake the calls that wait for a changed statement, here and through the broker."""
        execution = self._executions.get(lease.statement_id)
        may_have_ended = execution is None or execution.is_settled
        self._signal(lease.statement_id, may_have_ended=may_have_ended)
        if lease.operation_id is not None:
            goes_on = execution is not None and execution.next_statement is not None
            self._signal(lease.operation_id, may_have_ended=may_have_ended and not goes_on)

    def _signal(self, statement_id: UUID, *, may_have_ended: bool) -> None:
        self.signals.notify(statement_id, may_have_ended=may_have_ended)
        if self.broker is not None:
            self.broker.statement_changed(statement_id)

    def is_shared(self, assignment: Assignment) -> bool:
        """Return whether the statement's session is shared by all statements with the same session options."""
        connector = self.connectors.known(assignment.connector)
        return connector is not None and connector.limits.shared_session

    def before_end(self, assignment: Assignment) -> Callable[[], Awaitable[None]] | None:
        """Return the callback to run before any client can see the end; None for statements that change no objects."""
        # An import always creates or fills a table.
        changes = assignment.import_plan is not None or changes_objects(assignment.statement, assignment.dialect)
        if self.objects_changed is None or not changes:
            return None
        return partial(self.objects_changed, assignment.user_id, assignment.connector)


async def unless_database_unavailable(write: Awaitable[object]) -> None:
    """Perform a write at shutdown whose failure is harmless, because the lease then expires."""
    try:
        await write
    except DatabaseUnavailable:
        log.warning("not recorded at shutdown: the database is out of reach; leases run out by themselves")
