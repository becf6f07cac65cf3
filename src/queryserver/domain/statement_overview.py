"""Statements of all users, as administrators see them."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from queryserver.domain.statement import ACTIVE, StatementState, StatementTimes

LONGEST_AGE_S = 10 * 365 * 86400
"""Of `OverviewFilter.older_than`."""


class StatementStates(StrEnum):
    """Words for the states that are listed."""

    ACTIVE = "active"
    ALL = "all"
    WAITING = "waiting"
    RUNNING = "running"
    AVAILABLE = "available"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELED = "canceled"
    TIMED_OUT = "timed_out"
    EXPIRED = "expired"
    CLOSED = "closed"

    @property
    def states(self) -> tuple[StatementState, ...] | None:
        """The states; None: all."""
        if self is StatementStates.ALL:
            return None
        return tuple(ACTIVE) if self is StatementStates.ACTIVE else (StatementState(self.value),)


@dataclass(frozen=True, slots=True)
class OverviewFilter:
    """Which statements are listed; what is None does not matter."""

    states: tuple[StatementState, ...] | None = None
    user: str | None = None
    connector: str | None = None
    older_than: timedelta | None = None
    """Recorded that long ago or longer."""
    after: int | None = None
    """Only those recorded before the one with this `history_id`: the next page."""


@dataclass(frozen=True, slots=True)
class OverviewEntry:
    """One statement without its text."""

    id: UUID
    history_id: int
    user: str
    connector: str
    dialect: str
    state: StatementState
    times: StatementTimes
    rows: int
    size_bytes: int
    progress: int
    server: str | None
    """The process that runs it, or ran it last; None while no process has it."""
    session_id: int
    error_code: str | None
    cancel_requested: bool
    canceled_by: str | None
    is_import: bool


@dataclass(frozen=True, slots=True)
class OverviewDetails:
    """One statement with everything that is recorded about it, but for its result."""

    entry: OverviewEntry
    statement: str
    text_is_cut: bool
    database: str | None
    message: str
    row_limit: int
    timeout_s: int
    deadline: datetime
