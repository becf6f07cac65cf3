"""Determines which new statements a process runs, how many concurrently, and which data it alone may open."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.errors.base import stopping
from queryserver.statements.session_repository import SessionRecords

_ONE_RESERVED_OF = 8


class Intake(StrEnum):
    """The new statements that a process runs (Contract platform 10.1)."""

    OWN = "own"
    """Statements that the process records itself, without a task server."""
    QUEUED = "queued"
    """Statements in the queue shared by all workers."""
    BOUND = "bound"
    """Only statements whose session or data the process holds; workers run all others."""


@dataclass(frozen=True, slots=True)
class SlotLimits:
    """Limits on concurrent statements of all workers together: per connector, and per user of a connector."""

    per_connector: int
    per_user: int


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """Limits on concurrent statements of one process, and the periods of its tasks."""

    per_connector: int = 16
    per_user: int = 8
    sweep_every: timedelta = timedelta(seconds=5)
    shutdown_grace: timedelta = timedelta(seconds=30)
    recheck_every: timedelta = timedelta(seconds=5)
    """Interval at which statements and sessions of disabled users are ended."""
    capacity: int = 0
    """Maximum number of concurrent statements of a worker, not counting statements taken over from a lost worker."""
    reserved_check_every: timedelta = timedelta(seconds=1)
    """Interval at which a worker with only reserved slots checks the queue, since the broker then wakes other workers.
    """

    @property
    def slots(self) -> SlotLimits:
        """The limits per connector and user, which with the task server apply to all workers together."""
        return SlotLimits(self.per_connector, self.per_user)

    @property
    def reserved(self) -> int:
        """Slots reserved for users without running statements: one in eight, and at least one of two or more."""
        return max(self.capacity // _ONE_RESERVED_OF, 1) if self.capacity > 1 else 0


@dataclass(eq=False)
class RunnerInstance:
    """This process as an owner of statements: its name, its intake, and the phase of its shutdown."""

    owner: str
    intake: Intake
    is_draining: bool = False
    """Whether the process starts no new work; running statements may finish."""
    is_drained: bool = False
    """Whether the grace period is over, so that the process starts no statements at all."""

    def require_open(self) -> None:
        """Raise Stopping once this process starts no new work."""
        if self.is_draining:
            raise stopping("This server is stopping and starts no new work. Send the call again.")


class Broker(Protocol):
    """Wakes other processes of the fleet. Never blocks or raises; sweeps make up for lost messages."""

    @property
    def is_reachable(self) -> bool | None:
        """Whether the last call succeeded; None before the first call."""
        ...

    def statement_waits(self, statement_id: UUID, *, fence: int) -> None: ...

    def statement_changed(self, statement_id: UUID) -> None: ...


@dataclass(eq=False)
class DataLeases:
    """The data that this process holds, by the names that `Connectors.data_of` returns."""

    instance: RunnerInstance
    records: SessionRecords
    connectors: Connectors
    lease: timedelta
    _names: set[str] = field(default_factory=set[str], init=False)

    @property
    def names(self) -> frozenset[str]:
        """Names of the data that this process holds."""
        return frozenset(self._names)

    def holds(self, name: str | None) -> bool:
        """Return whether this process holds the data and starts new work; does not acquire them."""
        return not self.instance.is_draining and name in self._names

    async def may_run(self, connector: Connector) -> bool:
        """Return whether this process can run statements of the connector; acquires its data if they are free."""
        name = self.connectors.data_of(connector)
        return not self.instance.is_draining and (name is None or await self.may_hold(name))

    async def may_hold(self, name: str) -> bool:
        """Return whether this process holds the data; acquires them if they are free."""
        if self.instance.is_draining:
            return False
        # A server with workers does not acquire data: it would then run the statements that workers should run.
        if name not in self._names and self.instance.intake is not Intake.BOUND:
            await self.acquire([name])
        return name in self._names

    async def acquire_configured(self, *, take_over_all: bool = False) -> None:
        """Try to acquire the data of all connectors; with `take_over_all`, from all other processes."""
        await self.acquire(self.connectors.data_to_hold() - self._names, take_over_all=take_over_all)

    async def acquire(self, names: Iterable[str], *, take_over_all: bool = False) -> None:
        """Acquire or renew leases, and close engines whose lease another process has acquired."""
        for name in names:
            if await self.records.hold_engine(
                name, owner=self.instance.owner, lease=self.lease, ignore_leases=take_over_all
            ):
                self._names.add(name)
            elif name in self._names:
                self._names.discard(name)
                await self.connectors.discard_engines(name)

    async def renew(self) -> None:
        """Renew all leases; release data that connectors no longer name, once no engine has them open."""
        self._names &= self.connectors.data_to_hold() | self.connectors.data_in_use()
        await self.acquire(list(self._names))

    async def release(self) -> None:
        """Release all leases."""
        # Cleared first, so that the next heartbeat does not renew the leases.
        self._names.clear()
        await self.records.release_engines(owner=self.instance.owner)
