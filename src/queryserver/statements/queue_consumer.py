"""Fills the slots of a worker from the queue of all workers (Contract platform 10.2, ADR 66)."""

import asyncio
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from queryserver.connectors.registry import Connectors
from queryserver.errors.base import DatabaseUnavailable
from queryserver.platform.settings.editor import EditorSettings
from queryserver.statements.claims import StatementClaims
from queryserver.statements.intake import Broker, DataLeases, Intake, RunnerInstance, RunnerLimits
from queryserver.statements.leases import StatementLeases
from queryserver.statements.running_statements import RunningStatements

log = structlog.get_logger(__name__)

# A message wakes a worker regardless of the statement it names.
_ANY_STATEMENT = UUID(int=0)


@dataclass(eq=False, repr=False, kw_only=True)
class QueueConsumer:
    """Takes statements from the queue while this worker has free slots. Does nothing in other processes."""

    instance: RunnerInstance
    leases: StatementLeases
    connectors: Connectors
    data: DataLeases
    claims: StatementClaims
    running: RunningStatements
    editor: EditorSettings
    limits: RunnerLimits
    broker: Broker | None
    _taking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _wakened: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _announced: int = field(default=0, init=False)

    @property
    def room(self) -> int:
        """Number of further statements of any user that this worker can take now."""
        return max(self._free_slots - self.limits.reserved - self._announced, 0)

    @property
    def _free_slots(self) -> int:
        if self.instance.intake is not Intake.QUEUED or self.instance.is_draining:
            return 0
        return max(self.limits.capacity - self.running.active, 0)

    @property
    def _has_reserved_slots_only(self) -> bool:
        return 0 < self._free_slots <= self.limits.reserved

    def take_one(self) -> None:
        """Wake the consumer, because a statement waits or a slot became free."""
        if self.instance.intake is Intake.QUEUED:
            self._announced += 1
            self._wakened.set()

    async def take(self, most: int) -> int:
        """Start up to `most` queued statements as slots allow; returns their number. Raises DatabaseUnavailable."""
        async with self._taking:
            free = min(most, self._free_slots)
            if free <= 0:
                return 0
            free_for_all = min(free, max(self._free_slots - self.limits.reserved, 0))
            # Not canceled with the caller, because a claimed statement that does not run would block its slot.
            taking = self.running.add_task(self._take(free, free_for_all), "queue-claim")
            return await asyncio.shield(taking)

    async def _take(self, most: int, most_of_busy: int) -> int:
        assignments = await self.leases.claim_waiting(
            owner=self.instance.owner,
            lease=self.editor.lease_timeout,
            connectors=self.connectors.runnable_by(self.data.names),
            slots=self.limits.slots,
            most=most,
            most_of_busy=most_of_busy,
        )
        for assignment in assignments:
            try:
                await self.claims.start(assignment)
            except DatabaseUnavailable:
                log.warning(
                    "claimed and not started; its lease runs out", operation_id=str(assignment.lease.statement_id)
                )
        return len(assignments)

    async def consume(self) -> None:
        """Take statements whenever one is announced or a slot becomes free. Never returns."""
        while True:
            await self._wakened.wait()
            self._wakened.clear()
            announced, self._announced = max(self._announced, 1), 0
            try:
                started = await self.take(announced)
                if not started and self.broker and self._has_reserved_slots_only:
                    # A user or connector may be below its limit again, so a worker with other free slots must check.
                    self.broker.statement_waits(_ANY_STATEMENT, fence=0)
            except DatabaseUnavailable:
                log.warning("nothing taken from the queue; the sweep will")
            except Exception:  # last resort of a task: the next free slot must be used
                log.exception("nothing taken from the queue")

    async def take_for_reserved_slots(self) -> None:
        """Check the queue if only reserved slots are free, since messages wake workers with other free slots."""
        if self._has_reserved_slots_only:
            await self.take(self._free_slots)
