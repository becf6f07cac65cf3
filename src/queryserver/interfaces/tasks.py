"""How a recorded statement reaches a runner."""

from typing import Protocol
from uuid import UUID


class StatementQueue(Protocol):
    """Hands recorded statements to runners, at least once: the claim in the record makes it at most once."""

    @property
    def claims_as(self) -> str | None:
        """The owner name to record with a new statement when the runner sits in this process, else None."""
        ...

    async def enqueue(self, statement_id: UUID) -> None:
        """Tell a runner that the statement waits. Never raises: a sweep finds what was not told."""
        ...

    async def cancel(self, statement_id: UUID) -> None:
        """Tell the runner that the record now asks for a cancel."""
        ...
