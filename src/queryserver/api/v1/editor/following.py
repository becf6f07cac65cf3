"""check_status, get_logs, watch: from the record, never from the engine."""

from typing import Any

from fastapi import APIRouter, Response

from queryserver.api.answers import accepts, answer, failures
from queryserver.api.dependencies import AuthenticatedCall, CallRoute
from queryserver.api.v1.editor import shapes
from queryserver.api.v1.editor.naming import operation_of
from queryserver.domain.statement import ACTIVE, StatementState
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import CheckStatusRequest, LogsRequest
from queryserver.services.statements.status import parse_operation_id

router = APIRouter(prefix="/api/v1", tags=["editor"], route_class=CallRoute)

_SUCCEEDED = {StatementState.AVAILABLE, StatementState.SUCCESS, StatementState.EXPIRED, StatementState.CLOSED}
_FAILED = {StatementState.FAILED, StatementState.CANCELED, StatementState.TIMED_OUT}


@router.post(
    "/editor/check_status",
    response_model=wire.StatusResponse | wire.StatementFailure,
    responses=failures(400, 403, 404, 413, 415, 429),
    openapi_extra=accepts(CheckStatusRequest),
    summary="Where a statement stands",
)
async def check_status(call: AuthenticatedCall) -> Response:
    """The state of an operation, at once or at its end within `wait`. Spec §4, Contract editor 4.2."""
    asked = await call.read(CheckStatusRequest)
    operation_id = await operation_of(call, asked)
    status = await call.services.following.status(call.user, operation_id, wait_s=asked.wait)
    if status.outcome is not None:
        return shapes.failed(await call.services.following.record(call.user, operation_id))
    headers = shapes.RETRY_HINT if status.state in ACTIVE else None
    return answer(wire.StatusResponse(status=0, query_status=shapes.query_status(status)), headers=headers)


@router.post(
    "/editor/get_logs",
    response_model=wire.LogsResponse,
    responses=failures(400, 403, 404, 413, 415),
    openapi_extra=accepts(LogsRequest),
    summary="The log of a statement",
)
async def get_logs(call: AuthenticatedCall) -> Response:
    """Log lines and progress of a statement, in every state. Spec §4, Contract editor 7.1."""
    asked = await call.read(LogsRequest)
    operation_id = await operation_of(call, asked)
    status, log = await call.services.following.logs(call.user, operation_id, start=asked.start or 0, size=asked.size)
    return answer(
        wire.LogsResponse(
            status=0,
            progress=shapes.shown_progress(status),
            jobs=shapes.jobs(log.jobs),
            logs="\n".join(log.lines),
            isFullLogs=asked.start is None,
            next_from=log.start + len(log.lines),
            **shapes.times(status),
        )
    )


@router.post(
    "/editor/watch/{operation_id:name}",
    response_model=wire.WatchResponse | wire.WatchFailure,
    responses=failures(403, 404, 413, 415),
    summary="Status and log of a statement in one",
)
async def watch(call: AuthenticatedCall, operation_id: str) -> Response:
    """Everything about an operation, until `isSuccess` or `isFailure`. Contract editor 10.5."""
    following = call.services.following
    record = await following.record(call.user, parse_operation_id(operation_id))
    status, log = await following.logs(call.user, record.status.id)
    shown: dict[str, Any] = {
        "query_status": shapes.query_status(status),
        "id": status.history_id,
        "operationId": str(status.id),
        "watch_url": f"/api/v1/editor/watch/{status.id}",
        "statement": record.handle.statement,
        "log": "\n".join(log.lines),
        "jobs": shapes.jobs(log.jobs),
        "isSuccess": status.state in _SUCCEEDED,
        "isFailure": status.state in _FAILED,
    }
    if status.outcome is None:
        return answer(wire.WatchResponse(status=0, **shown))
    if record.status.outcome is None:  # it ended between the two reads
        record = await following.record(call.user, status.id)
    number, code = status.outcome
    failure = wire.WatchFailure(
        status=number,
        code=code,
        message=status.message,
        handle=shapes.handle(record),
        history_id=status.history_id,
        history_uuid=str(status.id),
        **shapes.error_place(record.error_position),
        **shown,
    )
    return answer(failure)
