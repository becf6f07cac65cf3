"""Calls for the status of a statement, its log, or both."""

from typing import Annotated, Any

from fastapi import Response

from queryserver.api import responses
from queryserver.api.dependencies import NoEditorFields, QueryUser, editor_fields
from queryserver.api.routes import editor_group, failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests import editor as requests
from queryserver.api.service_dependencies import StatementReaderDep
from queryserver.api.v1.editor.shapes import (
    error_position,
    failed_statement_id,
    failure_details,
    failure_response,
    handle_body,
    job_bodies,
    progress_percent,
    query_status,
    requested_operation_id,
    time_fields,
)
from queryserver.statements.states import ACTIVE, StatementState
from queryserver.statements.status import parse_operation_id

router = editor_group()

_SUCCEEDED = {StatementState.AVAILABLE, StatementState.SUCCESS, StatementState.EXPIRED, StatementState.CLOSED}
_FAILED = {StatementState.FAILED, StatementState.CANCELED, StatementState.TIMED_OUT}
RETRY_HINT = {"Retry-After": "1"}


@router.post("/notebook/api/check_status", include_in_schema=False)
@router.post(
    "/api/v1/editor/check_status",
    response_model=wire.StatusResponse | wire.StatementFailure,
    responses=failures(403, 404),
)
async def check_status(
    user: QueryUser,
    request: Annotated[requests.CheckStatusRequest, editor_fields(requests.CheckStatusRequest)],
    reader: StatementReaderDep,
) -> Response:
    """Return the status of a statement.

    If `wait` is set, the response is sent when the statement ends, or after that many seconds. Spec §4, Contract editor
    4.2.
    """
    operation_id = await requested_operation_id(reader.access, user, request)
    status = await reader.status(user, operation_id, wait_s=request.wait)
    if status.outcome is not None:
        return await failure_response(reader, status)
    headers = RETRY_HINT if status.state in ACTIVE else None
    return responses.json_response(wire.StatusResponse(status=0, query_status=query_status(status)), headers=headers)


@router.post("/notebook/api/get_logs", include_in_schema=False)
@router.post("/api/v1/editor/get_logs", response_model=wire.LogsResponse, responses=failures(403, 404))
async def get_logs(
    user: QueryUser,
    request: Annotated[requests.LogsRequest, editor_fields(requests.LogsRequest)],
    reader: StatementReaderDep,
) -> Response:
    """Return the log lines and the progress of a statement in any state. Spec §4, Contract editor 7.1."""
    operation_id = await requested_operation_id(reader.access, user, request)
    status, log = await reader.logs(user, operation_id, start=request.start or 0, size=request.size)
    return responses.json_response(
        wire.LogsResponse(
            status=0,
            progress=progress_percent(status),
            jobs=job_bodies(log.jobs),
            logs="\n".join(log.lines),
            isFullLogs=request.start is None,
            next_from=log.start + len(log.lines),
            **time_fields(status),
        )
    )


@router.post(
    "/api/v1/editor/watch/{operation_id:name}",
    response_model=wire.WatchResponse | wire.WatchFailure,
    responses=failures(403),
)
async def watch(operation_id: str, user: QueryUser, _: NoEditorFields, reader: StatementReaderDep) -> Response:
    """Return the status and log of a statement. Poll until `isSuccess` or `isFailure` is true. Contract editor 10.5."""
    record = await reader.access.record(user, parse_operation_id(operation_id))
    status, log = await reader.logs(user, record.status.id)
    shown: dict[str, Any] = {
        "query_status": query_status(status),
        "id": status.history_id,
        "operationId": str(status.id),
        "watch_url": f"/api/v1/editor/watch/{status.id}",
        "statement": record.handle.statement,
        "log": "\n".join(log.lines),
        "jobs": job_bodies(log.jobs),
        "isSuccess": status.state in _SUCCEEDED,
        "isFailure": status.state in _FAILED,
    }
    if status.outcome is None:
        return responses.json_response(wire.WatchResponse(status=0, **shown))
    number, code = status.outcome
    details = failure_details(await reader.with_failure(status))
    failure = wire.WatchFailure(
        status=number,
        code=code,
        message=status.message,
        handle=handle_body(details.handle, status),
        history_id=status.history_id,
        history_uuid=str(status.id),
        sqlstate=details.error_sqlstate,
        statement_id=failed_statement_id(status),
        **error_position(details.error_position),
        **shown,
    )
    return responses.json_response(failure)
