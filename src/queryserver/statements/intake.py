"""Which new statements a process runs, how many concurrently, and how other processes are notified."""

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
    """Those that it records itself, without a task server."""
    QUEUED = "queued"
    """Those in the queue shared by all workers."""
    BOUND = "bound"
    """Only those whose session or data it holds; workers run all others."""


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
    """How often statements and sessions of disabled users are ended."""
    capacity: int = 0
    """Concurrent statements of a worker, not counting those taken over from a lost worker."""
    reserved_check_every: timedelta = timedelta(seconds=1)
    """How often a worker with only reserved slots free checks the queue, since the broker wakes other workers then."""

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
    """Whether it starts no new work; running statements may finish."""
    is_drained: bool = False
    """Whether the grace time is over, so that it starts no statement at all."""

    def require_open(self) -> None:
        """Raises Stopping once this process starts no new work."""
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
