"""Calls that may go on after the answer, and storage/operation (Contract storage 7.6)."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import APIRouter, Response

from queryserver.api.answers import answer, failures
from queryserver.api.v1.storage.calls import StorageCall, StorageRoute
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import query_parameters
from queryserver.schemas.requests.storage_moving import OperationStatusParameters
from queryserver.services.storage.operations import Progress, Started, Work

router = APIRouter(prefix="/api/v1/storage", tags=["storage"], route_class=StorageRoute)


@dataclass(frozen=True, slots=True)
class Final:
    """The answer at the end of the work."""

    body: Mapping[str, Any] | str
    http_status: int = 200


@dataclass(frozen=True, slots=True)
class LongCall:
    """A call that need not be waited for."""

    call: StorageCall
    kind: str
    """Such as `storage.move`."""
    path: str
    """What the answer 202 names."""
    wait_s: int | None
    """Seconds until the answer 202; None: wait for the end."""

    async def answer(self, run: Callable[[Progress], Awaitable[Final]]) -> Response:
        """The answer at the end of the work, or 202; the work goes on when the client leaves. Raises as `run`."""
        work = Work(self.kind, self.path, run, lambda final: final.body)
        outcome = await self.call.services.storage.operations.run(self.call.caller, work, wait_s=self.wait_s)
        if isinstance(outcome, Started):
            running = wire.RunningOperation(
                status=0, path=outcome.path, operation_id=str(outcome.operation_id), state="running"
            )
            return answer(running, status=202)
        return json_answer(outcome)


def json_answer(final: Final) -> Response:
    """The final answer."""
    return Response(orjson.dumps(final.body), final.http_status, media_type="application/json")


@router.get(
    "/operation",
    response_model=wire.OperationProgress,
    responses=failures(400, 404),
    openapi_extra={"parameters": query_parameters(OperationStatusParameters)},
    summary="Ask how far a long operation is",
)
async def operation(call: StorageCall) -> Response:
    """State, progress and outcome of a call that answered 202. Contract storage 7.6."""
    asked = call.read(OperationStatusParameters)
    status = await call.services.storage.operations.status(call.caller, asked.id)
    return answer(
        wire.OperationProgress(
            status=0,
            operation_id=str(status.operation_id),
            state=status.state.value,
            done=status.done,
            total=status.total,
            result=status.result if isinstance(status.result, str) or status.result is None else dict(status.result),
        )
    )
