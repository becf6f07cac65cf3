"""Submits, lists, shows and cancels tasks, and reports the state of the fleet (Contract platform 10.6)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID, uuid4

from queryserver.errors.base import ServiceUnavailable, task_not_found, task_server_disabled
from queryserver.identity.model import User
from queryserver.platform.database import Notices
from queryserver.platform.logs import AUDIT
from queryserver.platform.metrics import Metrics
from queryserver.platform.roles import Role
from queryserver.platform.settings.sections import TaskServerSettings
from queryserver.statements.overview import StatementAdministration
from queryserver.tasks.execution import CANCEL
from queryserver.tasks.instances import Instance, Instances
from queryserver.tasks.model import STATEMENT, NewTask, Task, TaskFilter, TaskState, job_id, validate_task
from queryserver.tasks.repository import TaskRecords

_MAX_OFFSET = 2**62  # offsets are signed 64-bit integers in the database


class TaskBroker(Protocol):
    """Wakes workers. A lost message delays a task only by seconds, because workers also sweep for waiting tasks."""

    def task_waits(self, job_id: str) -> None:
        """Wake one worker. Returns immediately and never raises."""


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """The state of the task server. The counts include all processes."""

    enabled: bool
    beat_enabled: bool
    beat_running: bool
    broker_ok: bool
    queued: int
    running: int
    workers: Sequence[Instance]


@dataclass(frozen=True, slots=True, eq=False)
class TaskService:
    """Administers tasks. Callers must check that the user is an administrator."""

    records: TaskRecords
    instances: Instances
    notices: Notices
    statements: StatementAdministration
    settings: TaskServerSettings
    cancel_wait_s: float
    """Maximum wait for a canceled statement to end."""
    broker: TaskBroker | None
    """None if the task server is disabled."""
    ping: Callable[[], Awaitable[None]]
    """Raises ServiceUnavailable if the broker does not respond."""
    metrics: Metrics

    def require_enabled(self) -> None:
        """Raise task_server_disabled unless the task server is enabled."""
        if not self.settings.enabled:
            raise task_server_disabled("The task server is disabled.")

    async def submit(self, user: User, name: str, params: Mapping[str, Any], *, task_id: UUID | None = None) -> Task:
        """Record a task owned by the user. A repeated call with the same `task_id` returns the recorded task.

        Raises InvalidParameter, MissingParameter.
        """
        task_id = task_id or uuid4()
        with AUDIT.event(user.username, "task.submit", name, facts={"task_id": str(task_id)}):
            task, parameters = validate_task(name, params)
            await self.records.submit(NewTask(task_id, task, parameters.model_dump(), user.id))
        if self.broker is not None:
            self.broker.task_waits(job_id(task_id, 0))
        return await self._find(task_id)

    async def page(self, filters: TaskFilter, *, page: int, limit: int) -> tuple[Sequence[Task], int]:
        """Return one page of tasks and recent statement jobs, newest first, and their total number."""
        return await self.records.page(filters, offset=min((page - 1) * limit, _MAX_OFFSET), limit=limit)

    async def show(self, task_id: str) -> Task:
        """Return a task. Raises task_not_found."""
        return await self._find(_uuid(task_id))

    async def cancel(self, user: User, task_id: str) -> Task:
        """Cancel a waiting task immediately, or a running task within a heartbeat.

        Has no effect on a task that has ended. Raises task_not_found.
        """
        task = await self._find(key := _uuid(task_id))
        if task.ended is not None:
            return task
        if task.name == STATEMENT:
            await self.statements.stop(key, by=user.username, wait_s=self.cancel_wait_s)
            return await self._find(key)
        with AUDIT.event(user.username, "task.cancel", task.name, facts={"task_id": str(key), "owner": task.owner}):
            state = await self.records.request_cancel(key)
        if state is TaskState.CANCELED:
            self.metrics.tasks_ended.labels(task.name, state.value).inc()
        elif state is TaskState.RUNNING:
            await self.notices.publish(CANCEL, str(key))
        return await self._find(key)

    async def status(self) -> FleetStatus:
        """Return the status of the fleet. Also works if the task server is disabled."""
        active = await self.records.active()
        living = await self.instances.living()
        return FleetStatus(
            enabled=self.settings.enabled,
            beat_enabled=self.settings.beat_enabled,
            beat_running=any(one.kind is Role.BEAT for one in living),
            broker_ok=await self._reaches_broker(),
            queued=active.queued,
            running=active.running,
            workers=[one for one in living if one.kind is Role.WORKER],
        )

    async def gauges(self) -> tuple[int, int]:
        """Return the number of waiting tasks and of live workers, for the metrics. Raises DatabaseUnavailable."""
        return (await self.records.active()).queued_tasks, len(await self.instances.living(Role.WORKER))

    async def _reaches_broker(self) -> bool:
        if self.broker is None:
            return False
        try:
            await self.ping()
        except ServiceUnavailable:
            return False
        return True

    async def _find(self, task_id: UUID) -> Task:
        task = await self.records.find(task_id)
        if task is None:
            raise task_not_found(str(task_id))
        return task


def _uuid(text: str) -> UUID:
    """Parse an id. Raises task_not_found unless it is a UUID in canonical form."""
    try:
        parsed = UUID(text)
    except ValueError:
        raise task_not_found(text) from None
    if str(parsed) != text.lower():
        raise task_not_found(text)
    return parsed
