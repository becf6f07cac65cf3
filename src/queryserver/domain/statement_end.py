"""How a statement ended, for those who operate the service."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from queryserver.domain.statement import StatementState


@dataclass(frozen=True, slots=True)
class StatementEnd:
    """The end of one statement; never its text."""

    id: UUID
    user: str
    connector: str
    dialect: str
    state: StatementState
    error_code: str | None
    rows: int
    size_bytes: int
    queued_ms: int
    """From the record to the engine; of a statement that was never sent, to its end."""
    elapsed_ms: int
    """From the moment it was sent to its end; 0 when it was never sent."""
    canceled_by: str | None
    is_import: bool

    @property
    def outcome(self) -> str:
        """`ok`, or the code of the failure as clients see it."""
        match self.state:
            case StatementState.CANCELED:
                return "canceled"
            case StatementState.TIMED_OUT:
                return "statement_timeout"
            case StatementState.FAILED:
                return self.error_code or "engine_error"
            case _:
                return "ok"


OnEnd: TypeAlias = Callable[[StatementEnd], None]
"""Called once for each statement, when its end is committed, by the process that committed it."""


def unobserved(end: StatementEnd) -> None:
    """For processes in which nobody takes part in ends."""
    del end
