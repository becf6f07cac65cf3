"""Which new statements a process runs, how many at once, and how the other processes are notified."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from queryserver.errors.base import stopping

_ONE_RESERVED_OF = 8


class Intake(StrEnum):
    """Which new statements a process runs (Contract platform 10.1)."""

    OWN = "own"
    """Those that it records: the task server is off."""
    QUEUED = "queued"
    """Those that wait in the queue of all workers."""
    BOUND = "bound"
    """Only those whose session or data it holds: workers run all others."""


@dataclass(frozen=True, slots=True)
class SlotLimits:
    """How many statements all workers together run at once, on one connector and of one user there."""

    per_connector: int
    per_user: int


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """How many statements one process runs at once, and the periods of its tasks."""

    per_connector: int = 16
    per_user: int = 8
    sweep_every: timedelta = timedelta(seconds=5)
    shutdown_grace: timedelta = timedelta(seconds=30)
    recheck_every: timedelta = timedelta(seconds=5)
    """How often the process cancels statements and closes sessions of users who were disabled."""
    capacity: int = 0
    """Statements that a worker runs at once. Those that it takes over from a lost worker come in addition."""
    reserved_check_every: timedelta = timedelta(seconds=1)
    """How often a worker whose free slots are all reserved checks the queue: the broker wakes other workers then."""

    @property
    def slots(self) -> SlotLimits:
        """The same limits for a connector and a user; with the task server they hold for all workers together."""
        return SlotLimits(self.per_connector, self.per_user)

    @property
    def reserved(self) -> int:
        """Slots of a worker reserved for users who run nothing: one in eight, and at least one if it has two."""
        return max(self.capacity // _ONE_RESERVED_OF, 1) if self.capacity > 1 else 0


@dataclass(eq=False)
class RunnerInstance:
    """This process as an owner of statements: its name, its intake, and how far its shutdown is."""

    owner: str
    intake: Intake
    is_draining: bool = False
    """It starts no new work; statements that run may finish."""
    is_drained: bool = False
    """The grace time is over: it starts no statement at all."""

    def require_open(self) -> None:
        """Raises Stopping once this process starts no new work."""
        if self.is_draining:
            raise stopping("This server is stopping and starts no new work. Send the call again.")


class Broker(Protocol):
    """Wakes other processes of the fleet. Returns at once and never raises; sweeps find what a lost message named."""

    @property
    def is_reachable(self) -> bool | None:
        """Whether the last call succeeded; None before the first call."""
        ...

    def statement_waits(self, statement_id: UUID, *, fence: int) -> None: ...

    def statement_changed(self, statement_id: UUID) -> None: ...
