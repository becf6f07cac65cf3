"""The states of statements, and the choices of the list of them. Imports nothing: commands start without Arrow."""

from enum import StrEnum

LONGEST_AGE_S = 10 * 365 * 86400
"""Of `OverviewFilter.older_than`."""


class StatementState(StrEnum):
    """One machine for all engines; stored in the record, every change is one transaction."""

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
    """`query_status.status`: `success` shows as `available` and `timed_out` as `failed`, so client loops end."""

    def __init__(self, value: str) -> None:
        self.is_terminal = value not in {"waiting", "running"}
        self.wire_status = {"success": "available", "timed_out": "failed"}.get(value, value)


ACTIVE = frozenset({StatementState.WAITING, StatementState.RUNNING})


class StatementStates(StrEnum):
    """The values of the parameter `state` of the list: the states, and two for several of them."""

    ACTIVE = "active"
    ALL = "all"
    vars().update({state.name: state.value for state in StatementState})

    @property
    def states(self) -> tuple[StatementState, ...] | None:
        """The states; None: all."""
        if self is StatementStates.ALL:
            return None
        return tuple(ACTIVE) if self is StatementStates.ACTIVE else (StatementState(self.value),)
