"""How a recorded statement reaches a runner."""

from typing import Protocol
from uuid import UUID

from queryserver.domain.connector import Connector
from queryserver.domain.statement import Assignment
from queryserver.domain.user import User


class StatementQueue(Protocol):
    """Hands recorded statements to runners, at least once: the claim in the record makes it at most once."""

    async def owner_for(self, connector: Connector, *, session_owner: str | None) -> str | None:
        """The owner to record with a new statement when its runner sits in this process, else None.

        Raises Stopping when this process begins no new work.
        """
        ...

    def dispatch(self, assignment: Assignment, user: User) -> None:
        """Run a statement that was recorded with the owner of this process."""
        ...

    async def announce(self, statement_id: UUID) -> None:
        """Tell the runners elsewhere that a statement waits. Never raises: a sweep finds what was not told."""
        ...

    async def cancel(self, statement_id: UUID, *, owner: str | None) -> None:
        """Tell the runner `owner` that the record now asks for a cancel. Never raises."""
        ...
