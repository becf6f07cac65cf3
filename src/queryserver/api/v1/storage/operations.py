"""Storage calls that process many items or may take long, and the status of calls that responded with 202.

Contract storage 7.6, 7.8.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from fastapi import Response

from queryserver.api.errors import http_status
from queryserver.api.responses import json_response
from queryserver.api.routes import failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests import storage as requests
from queryserver.api.service_dependencies import LongOperationsDep
from queryserver.api.v1.storage.dependencies import FilesWriter, storage_fields, storage_group
from queryserver.errors.base import QueryServerError
from queryserver.files.access import Caller
from queryserver.files.operations import (
    ContinuedOperation,
    LongOperations,
    Outcomes,
    Progress,
    Work,
    distinct_items,
    failure_body,
    process_each,
)

router = storage_group()

CONTINUES: dict[int | str, dict[str, Any]] = {202: {"model": wire.RunningOperation}}
"""The value of `responses=` for calls that may respond with 202 before their work has ended."""


@router.get("/operation", response_model=wire.OperationProgress, responses=failures(404))
async def get_storage_operation(
    caller: FilesWriter,
    request: Annotated[requests.OperationStatusParameters, storage_fields(requests.OperationStatusParameters)],
    operations: LongOperationsDep,
) -> Response:
    """Return the state, progress and outcome of a call that responded with 202. Contract storage 7.6."""
    status = await operations.status(caller, request.id)
    return json_response(
        wire.OperationProgress(
            status=0,
            operation_id=str(status.operation_id),
            state=status.state.value,
            done=status.done,
            total=status.total,
            result=status.result if isinstance(status.result, str) or status.result is None else dict(status.result),
        )
    )


@dataclass(frozen=True, slots=True)
class FinalResponse:
    """The content of the response after the work has ended."""

    body: Mapping[str, Any] | str
    http_status: int = 200


@dataclass(frozen=True, slots=True)
class LongCall:
    """A call that responds with 202 if its work has not ended after `wait_s`; if None, it waits for the end.

    The 202 response contains `path`. `kind` is a name such as `storage.move`.
    """

    operations: LongOperations
    caller: Caller
    kind: str
    path: str
    wait_s: int | None

    async def json_response(self, run: Callable[[Progress], Awaitable[FinalResponse]]) -> Response:
        """Run the work and return its final response, or 202 if the work continues in the background.

        Raises the errors of `run`.
        """
        work = Work(self.kind, self.path, run, lambda final: final.body)
        outcome = await self.operations.run(self.caller, work, wait_s=self.wait_s)
        if isinstance(outcome, ContinuedOperation):
            running = wire.RunningOperation(
                status=0, path=outcome.path, operation_id=str(outcome.operation_id), state="running"
            )
            return json_response(running, status=202)
        return _json_response(outcome)


def _json_response(final: FinalResponse) -> Response:
    return Response(orjson.dumps(final.body), final.http_status, media_type="application/json")


ItemWork = Callable[[str], Awaitable[Mapping[str, Any]]]
"""Processes one item and returns the body of its successful response. Raises QueryServerError."""


async def respond_for_each(
    sent: Sequence[str], each: ItemWork, *, always_bulk: bool, long: LongCall | None = None
) -> Response:
    """Process each item. The response is a bulk response if there are several items or `always_bulk` is set.

    If `long` is set, the work may continue after a 202 response. Raises MissingParameter, too_many_entries and, for a
    single item without `always_bulk`, the errors of `each`.
    """
    items = distinct_items(sent)

    async def run(progress: Progress) -> FinalResponse:
        if len(sent) == 1 and not always_bulk:
            progress.expect(1)
            body = await each(items[0])
            progress.advance()
            return FinalResponse(body)
        return _combined_response(await process_each(items, each, progress))

    return await long.json_response(run) if long else _json_response(await run(Progress()))


def _combined_response(outcomes: Outcomes[Mapping[str, Any]]) -> FinalResponse:
    """Combine the bodies of all items. If items failed, the HTTP status is the highest of their statuses."""
    failed = [outcome for outcome in outcomes.values() if isinstance(outcome, QueryServerError)]
    results = {
        item: failure_body(outcome) if isinstance(outcome, QueryServerError) else outcome
        for item, outcome in outcomes.items()
    }
    if not failed:
        return FinalResponse({"status": 0, "results": results})
    message = f"{len(failed)} of {len(outcomes)} items failed."
    body = {"status": -1, "code": "partial_failure", "message": message, "results": results}
    return FinalResponse(body, max(map(http_status, failed)))
