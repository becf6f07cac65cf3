"""Calls with many items: each runs, and a failure does not stop the rest (Contract storage 7.8)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from queryserver.domain.errors.base import MissingParameter, QueryServerError
from queryserver.domain.errors.files import too_many_entries
from queryserver.services.storage.operations import Progress

MAX_ITEMS = 1000

T = TypeVar("T")

Outcomes = Mapping[str, T | QueryServerError]
"""What became of each item, by its text as sent, in its order."""


def items_of(sent: Sequence[str], *, parameter: str = "path") -> Sequence[str]:
    """The items, each once. Raises MissingParameter (none), too_many_entries."""
    items = list(dict.fromkeys(sent))
    if not items:
        raise MissingParameter(f"{parameter} is required.")
    if len(items) > MAX_ITEMS:
        raise too_many_entries(f"At most {MAX_ITEMS} items at once.")
    return items


async def each_of(items: Sequence[str], work: Callable[[str], Awaitable[T]], progress: Progress) -> Outcomes[T]:
    """Run the items one after the other, so that what the first makes is there for the second."""
    outcomes: dict[str, T | QueryServerError] = {}
    progress.expect(len(items))
    for item in items:
        try:
            outcomes[item] = await work(item)
        except QueryServerError as error:
            outcomes[item] = error
        progress.advance()
    return outcomes
