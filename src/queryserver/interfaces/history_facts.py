"""What the history of statements says as a whole."""

from collections.abc import Sequence
from typing import Protocol


class HistoryFacts(Protocol):
    """Cheap whatever the length of the history. All raise DatabaseUnavailable."""

    async def dialects(self, user_id: int) -> Sequence[str]:
        """The dialects in the history of a user, sorted."""
        ...
