"""The states of statements, and filters by state. Imports nothing, so that commands start without Arrow."""

from enum import StrEnum

LONGEST_AGE_S = 10 * 365 * 86400
"""Limit of `OverviewFilter.older_than`."""


class StatementState(StrEnum):
    """States of a statement, the same for all engines. Each change is one transaction."""

    WAITING = "waiting"
    RUNNING = "running"
    AVAILABLE = "available"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELED = "canceled"
    TIMED_OUT = "timed_out"
    EXPIRED = "expired"
    CLOSED = "closed"

    is_terminal: bool
    """No further work will be done."""
    wire_status: str
    """`query_status.status`. Shows `success` as `available` and `timed_out` as `failed`, so that client loops end."""

    def __init__(self, value: str) -> None:
        self.is_terminal = value not in {"waiting", "running"}
        self.wire_status = {"success": "available", "timed_out": "failed"}.get(value, value)


ACTIVE = frozenset({StatementState.WAITING, StatementState.RUNNING})


class StatementStates(StrEnum):
    """Values of the list parameter `state`: the states, and two that match several."""

    ACTIVE = "active"
    ALL = "all"
    vars().update({state.name: state.value for state in StatementState})

    @property
    def states(self) -> tuple[StatementState, ...] | None:
        """The matching states; None for all."""
        if self is StatementStates.ALL:
            return None
        return tuple(ACTIVE) if self is StatementStates.ACTIVE else (StatementState(self.value),)
