"""How many calls came from whom in a minute, on all servers together."""

from collections.abc import Mapping
from typing import Protocol


class RequestCounts(Protocol):
    """Each method is one transaction. All raise DatabaseUnavailable."""

    async def add(self, minute: int, calls: Mapping[str, int]) -> Mapping[str, int]:
        """Add calls by caller to those of that minute (since 1970); the sums of all servers for the same callers."""
        ...

    async def forget(self, *, before: int) -> None:
        """Drop what was counted before that minute."""
        ...
