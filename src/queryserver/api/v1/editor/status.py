"""Calls for the status of a statement, its log, or both, and its server-sent events (Contract editor 8.1)."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Request, Response
from pydantic import BaseModel

from queryserver import errors
from queryserver.api import responses
from queryserver.api.dependencies import (
    NoEditorFields,
    QueryUser,
    SettingsDep,
    StatementReaderDep,
    StreamsDep,
    editor_fields,
)
from queryserver.api.routes import contents, editor_group, failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests import editor as requests
from queryserver.api.v1.editor.shapes import (
    error_position,
    failed_statement_id,
    failure_body,
    failure_details,
    failure_response,
    handle_body,
    job_bodies,
    progress_percent,
    query_status,
    requested_operation_id,
    time_fields,
)
from queryserver.identity.limits import Streams
from queryserver.identity.model import User
from queryserver.statements.model import StatementStatus
from queryserver.statements.states import ACTIVE, StatementState
from queryserver.statements.status import StatementProgress, StatementReader, parse_operation_id

router = editor_group()

_SUCCEEDED = {StatementState.AVAILABLE, StatementState.SUCCESS, StatementState.EXPIRED, StatementState.CLOSED}
_FAILED = {StatementState.FAILED, StatementState.CANCELED, StatementState.TIMED_OUT}
RETRY_HINT = {"Retry-After": "1"}

_COMMENT_EVERY_S = 15.0
# Event ids encode the log position, so any instance can continue an interrupted stream.
_IDS_PER_LINE = 1_000_000
_EVENT_ID = re.compile(r"[0-9]{1,18}")


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


@router.get(
    "/api/v1/editor/events/{operation_id:name}",
    response_class=Response,
    responses=contents("text/event-stream", words={200: "Events."}) | failures(403),
)
async def follow_events(
    http: Request,
    operation_id: str,
    user: QueryUser,
    request: Annotated[requests.EventsParameters, editor_fields(requests.EventsParameters)],
    reader: StatementReaderDep,
    streams: StreamsDep,
    settings: SettingsDep,
) -> Response:
    """Stream the status changes, progress, log and end of a statement as server-sent events. Contract editor 8.1."""
    status = await reader.status(user, parse_operation_id(operation_id))
    resumed = http.headers.get("last-event-id", "")
    sender = _Sender(int(resumed) if _EVENT_ID.fullmatch(resumed) else request.log_from * _IDS_PER_LINE)
    stream = _Stream(user, reader, streams, settings.editor.stream_max_s)
    return await responses.stream(
        stream.events(status, sender), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
    )


@dataclass(frozen=True, slots=True)
class _Stream:
    """The event stream of a call, which ends after at most `max_duration_s`."""

    user: User
    reader: StatementReader
    streams: Streams
    max_duration_s: float

    async def events(self, status: StatementStatus, sender: "_Sender") -> AsyncGenerator[bytes]:
        with self.streams.slot(self.user) as slot:
            yield b"retry: 2000\n\n"
            progress = self.reader.progress(status, slot, log_from=sender.log_line, until_s=self.max_duration_s)
            async with aclosing(progress) as steps:
                try:
                    async for step in steps:
                        for piece in await self._changes(step, sender):
                            yield piece
                except (errors.NotAuthenticated, errors.PermissionDenied, errors.OperationNotFound) as error:
                    # The user was disabled or may no longer read the statement, so a reconnect would be rejected.
                    yield sender.event("denied", wire.ErrorBody(status=-1, code=error.code, message=error.message))

    async def _changes(self, step: StatementProgress, sender: "_Sender") -> list[bytes]:
        """Return the events for all changes since the previous step, or a comment if one is due."""
        status = step.status
        if status.outcome is not None:
            status = await self.reader.with_failure(status)
        if sender.has_changed(status):
            status = await self.reader.with_queue_position(status)
        pieces = sender.status(_event_body(status), status)
        if not step.status.state.is_terminal:
            pieces += sender.progress(step)
        pieces += sender.log(step)
        if step.status.state.is_terminal:
            pieces.append(sender.event("end", _event_body(status)))
        return pieces or sender.comment()


def _event_body(status: StatementStatus) -> BaseModel:
    if status.outcome is None:
        return wire.StatusResponse(status=0, query_status=query_status(status))
    return failure_body(status, failure_details(status))


class _Sender:
    def __init__(self, last_id: int) -> None:
        self._last_id = last_id
        self.log_line = last_id // _IDS_PER_LINE
        self._state: tuple[str, ...] = ()
        self._progress: bytes | None = None
        self._commented = asyncio.get_running_loop().time()

    def event(self, name: str, body: BaseModel) -> bytes:
        """Encode an event with the next id."""
        self._last_id = max(self._last_id + 1, self.log_line * _IDS_PER_LINE)
        self._commented = asyncio.get_running_loop().time()
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (self._last_id, name.encode(), body.model_dump_json().encode())

    def has_changed(self, status: StatementStatus) -> bool:
        return self._state != _states(status)

    def status(self, body: BaseModel, status: StatementStatus) -> list[bytes]:
        """Encode the status at the start and after every state change, including those of a script's statements."""
        if not self.has_changed(status):
            return []
        self._state = _states(status)
        return [self.event("status", body)]

    def progress(self, step: StatementProgress) -> list[bytes]:
        body = wire.ProgressEvent(
            progress=progress_percent(step.status), rows=step.status.rows, jobs=job_bodies(step.log.jobs)
        )
        written = body.model_dump_json().encode()
        if written == self._progress:
            return []
        self._progress = written
        return [self.event("progress", body)]

    def log(self, step: StatementProgress) -> list[bytes]:
        if not step.log.lines:
            return []
        body = wire.LogEvent(
            from_=step.log.start, next_from=step.log.start + len(step.log.lines), logs="\n".join(step.log.lines)
        )
        self.log_line = body.next_from
        return [self.event("log", body)]

    def comment(self) -> list[bytes]:
        """Encode the comment that keeps the connection alive after 15 s without an event."""
        if asyncio.get_running_loop().time() - self._commented < _COMMENT_EVERY_S:
            return []
        self._commented = asyncio.get_running_loop().time()
        return [b": still there\n\n"]


def _states(status: StatementStatus) -> tuple[str, ...]:
    return (status.state.value, *(part.state.value for part in status.parts))
