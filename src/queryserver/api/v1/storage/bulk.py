"""Answers of calls with many items (Contract storage 7.8)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from fastapi import Response

from queryserver.api.errors import http_status
from queryserver.api.v1.storage.operations import Final, LongCall, json_answer
from queryserver.domain.errors.base import QueryServerError
from queryserver.services.storage.bulk import Outcomes, each_of, items_of
from queryserver.services.storage.operations import Progress, failure_body

Each = Callable[[str], Awaitable[Mapping[str, Any]]]
"""Does one item and gives its success body. Raises QueryServerError."""


async def answer_each(
    sent: Sequence[str], each: Each, *, always_bulk: bool = False, long: LongCall | None = None
) -> Response:
    """Do each item; one alone is answered as itself, unless `always_bulk`. With `long` the work may go on after 202.

    Raises MissingParameter, too_many_entries; for one alone, what `each` raises.
    """
    items = items_of(sent)

    async def run(progress: Progress) -> Final:
        if len(sent) == 1 and not always_bulk:
            progress.expect(1)
            body = await each(items[0])
            progress.advance()
            return Final(body)
        return final_of(await each_of(items, each, progress))

    return await long.answer(run) if long else json_answer(await run(Progress()))


def final_of(outcomes: Outcomes[Mapping[str, Any]]) -> Final:
    """The bodies of all items; the HTTP status is the highest of those that failed."""
    failed = [outcome for outcome in outcomes.values() if isinstance(outcome, QueryServerError)]
    results = {
        item: failure_body(outcome) if isinstance(outcome, QueryServerError) else outcome
        for item, outcome in outcomes.items()
    }
    if not failed:
        return Final({"status": 0, "results": results})
    message = f"{len(failed)} of {len(outcomes)} items failed."
    body = {"status": -1, "code": "partial_failure", "message": message, "results": results}
    return Final(body, max(map(http_status, failed)))
