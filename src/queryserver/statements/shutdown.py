"""Ends the statements and sessions of a stopping process (Contract platform 9.5)."""

import asyncio
import time
from collections.abc import Awaitable, Collection
from dataclasses import dataclass
from typing import Any

import structlog

from queryserver.errors.base import DatabaseUnavailable
from queryserver.platform.shutdown import (
    SESSIONS_CLOSED_WITHIN_S,
    STATEMENTS_RECORDED_WITHIN_S,
    STATEMENTS_STOPPED_WITHIN_S,
    stop_step,
)
from queryserver.statements.execution import Execution
from queryserver.statements.leases import StatementLeases
from queryserver.statements.open_sessions import OpenSessions
from queryserver.statements.running_statements import (
    Broker,
    DataLeases,
    RunnerInstance,
    RunnerLimits,
    RunningStatements,
    unless_database_unavailable,
)
from queryserver.statements.signals import StateSignals

log = structlog.get_logger(__name__)

# The minimum time left for the last writes of a shutdown.
_MIN_STEP_S = 0.5


@dataclass(eq=False, repr=False, kw_only=True)
class RunnerShutdown:
    """Lets the statements of this process finish, then stops them or leaves them to other processes."""

    instance: RunnerInstance
    leases: StatementLeases
    data: DataLeases
    sessions: OpenSessions
    running: RunningStatements
    signals: StateSignals
    limits: RunnerLimits
    broker: Broker | None

    async def drain(self, *, at_once: bool = False) -> None:
        """Let statements finish within the grace period, then stop them. `at_once` skips the grace period.

        Statements that were not sent, or that another process can resume, are left to other processes. Calls are still
        served unless they would start new work. Idempotent.
        """
        tasks = self.running.tasks
        if self.instance.is_drained:
            await _all_ended(tasks, _MIN_STEP_S)
            return
        self.instance.is_draining = True
        grace_s = 0.0 if at_once else self.limits.shutdown_grace.total_seconds()
        with stop_step("statements may finish", within_s=grace_s, statements=self.running.active):
            end = time.monotonic() + grace_s
            # Calls accepted before the shutdown may still start statements.
            while tasks and (left_s := end - time.monotonic()) > 0:
                await _all_ended(tasks, left_s)
        self.instance.is_drained = True
        if tasks:
            within_s, active = STATEMENTS_STOPPED_WITHIN_S, self.running.active
            with stop_step("statements are stopped", within_s=within_s, statements=active):
                await self._stop_all(within_s)
            with stop_step("unconfirmed ends are recorded", within_s=STATEMENTS_RECORDED_WITHIN_S):
                await self._give_up_all(STATEMENTS_RECORDED_WITHIN_S)
        self.signals.end_waits()
        with stop_step("sessions are closed", within_s=SESSIONS_CLOSED_WITHIN_S):
            await _within(self.sessions.aclose(), SESSIONS_CLOSED_WITHIN_S)
            await _within(unless_database_unavailable(self.data.release()), SESSIONS_CLOSED_WITHIN_S)

    async def _stop_all(self, within_s: float) -> None:
        """Stop or hand over all statements. Returns when all have ended, or after `within_s`."""
        end = time.monotonic() + within_s
        detached = [execution for execution in self.running.executions() if execution.detach()]
        attached = [execution for execution in self.running.executions() if execution not in detached]
        await _within(asyncio.gather(*(self._stop_or_release(execution) for execution in attached)), within_s)
        await _all_ended(self.running.tasks, end - time.monotonic())
        hand_overs = (unless_database_unavailable(self.leases.hand_over(one.assignment.lease)) for one in detached)
        await _within(asyncio.gather(*hand_overs), max(end - time.monotonic(), _MIN_STEP_S))

    async def _stop_or_release(self, execution: Execution) -> None:
        """Release an unsent statement to another process. Stop one that was sent, or is just being sent."""
        if not execution.was_sent:
            try:
                released = await self.leases.release(execution.assignment.lease)
            except DatabaseUnavailable:
                released = not execution.was_sent
            if released:
                execution.abandon()
                if self.broker is not None:
                    lease = execution.assignment.lease
                    self.broker.statement_waits(lease.statement_id, fence=lease.fence)
                return
        execution.stop("Canceled by the shutdown of the server.")

    async def _give_up_all(self, within_s: float) -> None:
        """Record the end of statements that their engines have not confirmed, then cancel all tasks."""
        end = time.monotonic() + within_s
        await _within(asyncio.gather(*(execution.give_up() for execution in self.running.executions())), within_s / 2)
        for task in self.running.tasks:
            task.cancel()
        await _all_ended(self.running.tasks, end - time.monotonic())


async def _all_ended(tasks: Collection[asyncio.Task[Any]], within_s: float) -> None:
    if tasks:
        await asyncio.wait(list(tasks), timeout=max(within_s, 0))


async def _within(action: Awaitable[object], within_s: float) -> None:
    """Run the action. If it takes longer than `within_s`, cancel it."""
    try:
        async with asyncio.timeout(within_s):
            await action
    except TimeoutError:
        log.warning("given up at the stop", seconds=within_s)
