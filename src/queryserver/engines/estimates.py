"""Estimates of engines: what a statement would read, before it runs."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from queryserver.sql.markers import BoundStatement


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """What an engine expects a statement to read. Unknown values are None."""

    scanned_bytes: int | None = None
    cost: float | None = None
    """The cost in the planner's own units."""
    rows: int | None = None


@runtime_checkable
class EstimatingSession(Protocol):
    """An EngineSession that can estimate what a statement would read, without running it."""

    async def estimate(self, statement: str | BoundStatement) -> CostEstimate | None:
        """Return the estimate, or None if the engine cannot estimate this statement.

        Leaves the session unchanged. Called only while no statement runs in the session. The caller limits the time.
        Raises EngineError.
        """
        ...
