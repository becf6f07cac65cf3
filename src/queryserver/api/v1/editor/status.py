"""Calls for the status of a statement, its log, or both, and its server-sent events (Contract editor 8.1).

Builds the response bodies that editor calls share: statements, results and failures.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from types import MappingProxyType
from typing import Annotated, Any
from uuid import UUID

import orjson
from fastapi import Request, Response
from pydantic import BaseModel

from queryserver import errors
from queryserver.api import responses
from queryserver.api.dependencies import (
    NoEditorFields,
    ReadUser,
    SettingsDep,
    StatementReaderDep,
    StreamsDep,
    editor_fields,
)
from queryserver.api.routes import contents, editor_group, failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests import editor as requests
from queryserver.api.schemas.requests.editor import OperationRequest
from queryserver.formats.arrow import NUMBERS_AS_TEXT, CellForm, Column
from queryserver.identity.limits import Streams
from queryserver.identity.model import BigNumbers, User
from queryserver.platform.settings.tree import Settings
from queryserver.sql.positions import Position
from queryserver.statements.model import FailureDetails, HistoryEntry, StatementHandle, StatementPart, StatementStatus
from queryserver.statements.result_reader import ResultPage
from queryserver.statements.states import ACTIVE, StatementState
from queryserver.statements.status import StatementAccess, StatementProgress, StatementReader, parse_operation_id

_MILLISECOND = timedelta(milliseconds=1)

router = editor_group()

_SUCCEEDED = {StatementState.AVAILABLE, StatementState.SUCCESS, StatementState.EXPIRED, StatementState.CLOSED}
_FAILED = {StatementState.FAILED, StatementState.CANCELED, StatementState.TIMED_OUT}
RETRY_HINT = {"Retry-After": "1"}

_COMMENT_EVERY_S = 15.0
# Event ids encode the log position, so any instance can continue an interrupted stream.
_IDS_PER_LINE = 1_000_000
_EVENT_ID = re.compile(r"[0-9]{1,18}")


def query_status(status: StatementStatus) -> wire.QueryStatus:
    """Build `query_status` (Contract editor 2.2)."""
    state = status.state
    expected = status.has_result_set if state in ACTIVE else state is StatementState.AVAILABLE
    return wire.QueryStatus(
        status=state.wire_status,
        has_result_set=expected,
        state=state.value,
        message=status.message,
        rows=status.rows,
        **truncation(status),
        modified_row_count=status.modified_row_count,
        **time_fields(status),
        expires_at=responses.utc_text(status.expires_at) if state is StatementState.AVAILABLE else None,
        statements=[_script_statement(part) for part in status.parts] if status.runs_all else None,
        **reuse_fields(status),
        estimated_bytes=status.estimated_bytes,
        scanned_bytes=status.scanned_bytes,
    )


def _script_statement(part: StatementPart) -> wire.ScriptStatement:
    start_row, start_column, end_row, end_column = part.position
    times = part.times
    return wire.ScriptStatement(
        statement_id=part.statement_index,
        operationId=str(part.id),
        status=part.state.wire_status,
        state=part.state.value,
        has_result_set=part.has_result_set if part.state in ACTIVE else part.state is StatementState.AVAILABLE,
        message=part.message,
        rows=part.rows,
        **truncation(part),
        modified_row_count=part.modified_row_count,
        code=part.outcome[1] if part.outcome else None,
        sqlstate=part.error_sqlstate,
        **error_position(part.error_position),
        start=wire.Position(row=start_row, column=start_column),
        end=wire.Position(row=end_row, column=end_column),
        started=responses.utc_text(times.started),
        ended=responses.utc_text(times.ended),
        elapsed_ms=times.elapsed // _MILLISECOND,
        estimated_bytes=part.estimated_bytes,
        scanned_bytes=part.scanned_bytes,
    )


def truncation(status: StatementStatus | StatementPart) -> dict[str, Any]:
    """Return the keys that report whether the stored result was truncated, and by which limit (Contract editor 6.4)."""
    reason = status.truncated_reason
    return {
        "truncated": reason is not None,
        "truncated_reason": reason.value if reason else None,
        "truncated_by": status.truncation.limit_name if status.truncation else None,
    }


def reuse_fields(shown: StatementStatus | HistoryEntry) -> dict[str, Any]:
    """Return the keys for the origin of the rows of an answer without the engine, or none (Contract editor 4.8)."""
    if shown.reused is None:
        return {}
    age = shown.times.submitted - shown.reused.sent_at
    return {"reused_from": str(shown.reused.statement_id), "reused_age_s": ceil(age.total_seconds())}


def time_fields(shown: StatementStatus | HistoryEntry) -> dict[str, Any]:
    """Return the keys for the times of a statement and its queue position (Contract editor 2.5)."""
    known = shown.times
    return {
        "submitted": responses.utc_text(known.submitted),
        "started": responses.utc_text(known.started),
        "ended": responses.utc_text(known.ended),
        "elapsed_ms": known.elapsed // _MILLISECOND,
        "queued_ms": known.queued // _MILLISECOND,
        "queue_position": shown.queue_position,
    }


def handle_body(handle: StatementHandle, status: StatementStatus) -> wire.Handle:
    start_row, start_column, end_row, end_column = handle.position
    return responses.model_from(
        wire.Handle,
        handle,
        statement_id=handle.statement_index,
        has_more_statements=handle.statement_index < handle.statements_count - 1,
        previous_statement_hash=handle.statement_hash,
        start=wire.Position(row=start_row, column=start_column),
        end=wire.Position(row=end_row, column=end_column),
        operation_type=0,
        has_result_set=status.has_result_set,
        modified_row_count=status.modified_row_count,
        log_context=None,
        session_type=status.dialect,
    )


def failure_details(status: StatementStatus) -> FailureDetails:
    """Return the failure details of a status, which must come from `StatementReader.with_failure`."""
    if status.failure is None:
        raise AssertionError
    return status.failure


def failure_body(status: StatementStatus, details: FailureDetails) -> wire.StatementFailure:
    """Return the body for an operation that has no result (Contract editor 3.4)."""
    number, code = status.outcome or (0, "")
    return wire.StatementFailure(
        status=number,
        code=code,
        message=status.message,
        query_status=query_status(status),
        handle=handle_body(details.handle, status),
        history_id=status.history_id,
        history_uuid=str(status.id),
        sqlstate=details.error_sqlstate,
        statement_id=failed_statement_id(status),
        **error_position(details.error_position),
    )


def failed_statement_id(status: StatementStatus) -> int | None:
    """Return the index of the statement that failed in a script, or None for other operations."""
    part = status.part if status.is_script else None
    return part.statement_index if part is not None else None


def error_position(position: Position | None) -> dict[str, Any]:
    """Return the keys `line` and `column` of a failure (Contract editor 3.4)."""
    return {"line": position and position.line, "column": position and position.column}


def column_meta(columns: Sequence[Column], *, big_numbers_as_text: bool = False) -> list[wire.ColumnMeta]:
    return [wire.ColumnMeta(**one) for one in plain_meta(columns, big_numbers_as_text=big_numbers_as_text)]


def plain_meta(columns: Sequence[Column], *, big_numbers_as_text: bool = False) -> list[dict[str, Any]]:
    """Return the content of `column_meta` as plain dicts, because creating 10,000 models takes 30 ms.

    `as_text` is present only if `big_numbers_as_text` is set.
    """
    plain: list[dict[str, Any]] = [
        {"name": one.name, "type": one.type.value, "comment": one.comment, "native_type": one.native_type}
        for one in columns
    ]
    if big_numbers_as_text:
        for shown, column in zip(plain, columns, strict=True):
            shown["as_text"] = column.type in NUMBERS_AS_TEXT
    return plain


def job_bodies(reported: Sequence[Any]) -> list[wire.Job]:
    return [wire.Job.model_validate(job) for job in reported]


def progress_percent(status: StatementStatus) -> int:
    """Return the progress that clients see: 0 while waiting, at most 99 while running, 100 after success.

    Contract editor 7.1.
    """
    match status.state:
        case StatementState.WAITING:
            return 0
        case StatementState.RUNNING:
            return min(status.progress, 99)
        case StatementState.AVAILABLE | StatementState.SUCCESS | StatementState.EXPIRED | StatementState.CLOSED:
            return 100
        case _:
            return status.progress


async def requested_operation_id(access: StatementAccess, user: User, request: OperationRequest) -> UUID:
    """Return the operation id from `operationId`, the handle's `guid` or (for cancel and close) the notebook's uuid.

    An `operationId` is only parsed. The service that receives the id checks that the operation exists and who owns it.
    Raises MissingParameter, OperationNotFound.
    """
    operation_id, guid = (request.operation_id, None) if request.operation_id else request.id_and_guid
    return await access.id_of(user, operation_id, guid)


async def failure_response(reader: StatementReader, status: StatementStatus) -> Response:
    """Return the response for a failed statement. It has HTTP status 200, because the call itself succeeded."""
    status = await reader.with_failure(status)
    return responses.json_response(failure_body(status, failure_details(status)))


_CHUNK_BYTES = 256 * 1024
_NO_ROWS = b'"data":[]'
_SUCCESS: Mapping[str, Any] = MappingProxyType({"status": 0})
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def cell_form(user: User, settings: Settings, escape: bool | None, big_numbers: BigNumbers | None) -> CellForm:
    """Return the cell format that the call requests, by default from the server settings and the user's preferences."""
    if escape is None:
        escape = settings.editor.escape_default
    return CellForm(escape, numbers_as_text(user, big_numbers))


def numbers_as_text(user: User, big_numbers: BigNumbers | None) -> bool:
    """Return whether the call, or else the user's preference, requests big numbers as strings."""
    return (big_numbers or user.preferences.big_numbers) == "text"


def page_response(
    page: ResultPage,
    form: CellForm,
    *,
    other_fields: Mapping[str, Any] = _SUCCESS,
    headers: Mapping[str, str] = _NO_HEADERS,
) -> Response:
    """Return a response with `other_fields` and, in `result`, the rows. A large body is sent in chunks.

    The rows are already encoded as JSON, and are neither parsed nor, in large bodies, copied.
    """
    head, tail = _body_around_rows(page, other_fields, form)
    if page.rendered.size_bytes <= _CHUNK_BYTES:
        if page.reservation is not None:
            page.reservation.release()
        return Response(head + page.rendered.json + tail, headers=dict(headers), media_type="application/json")
    length = len(head) + page.rendered.size_bytes + len(tail)
    sent = {**headers, "Content-Length": str(length)}
    return responses.OwnedStream(_pieces(head, page, tail), b"", "application/json", sent)


async def _pieces(head: bytes, page: ResultPage, tail: bytes) -> AsyncGenerator[bytes]:
    """Yield the body in chunks. The page's memory stays reserved until the client has read the body."""
    try:
        before = head + b"["
        for piece in page.rendered.pieces:
            yield before
            for start in range(0, len(piece), _CHUNK_BYTES):
                yield piece[start : start + _CHUNK_BYTES]
            before = b","
        yield b"]" + tail
    finally:
        if page.reservation is not None:
            page.reservation.release()


def _body_around_rows(page: ResultPage, other_fields: Mapping[str, Any], form: CellForm) -> tuple[bytes, bytes]:
    status, has_more, message = page.status, page.has_more, page.message
    fields = {
        "has_more": has_more,
        "type": "table",
        "isEscaped": form.is_escaped,
        "meta": plain_meta(page.columns, big_numbers_as_text=form.big_numbers_as_text),
        "data": [],
        "start_row": page.start_row,
        "rows_total": None if status.state in ACTIVE else status.rows,
        **truncation(status),
        "expires_at": responses.utc_text(status.expires_at) if status.state is StatementState.AVAILABLE else None,
    }
    if message:
        fields["message"] = message
    # The marker cannot occur earlier, because quotes inside a JSON string are escaped.
    head, mark, tail = orjson.dumps({**other_fields, "result": fields}).partition(_NO_ROWS)
    return head + mark[:-2], tail


@router.post("/notebook/api/check_status", include_in_schema=False)
@router.post(
    "/api/v1/editor/check_status",
    response_model=wire.StatusResponse | wire.StatementFailure,
    responses=failures(403, 404),
)
async def check_status(
    user: ReadUser,
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
    user: ReadUser,
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
async def watch(operation_id: str, user: ReadUser, _: NoEditorFields, reader: StatementReaderDep) -> Response:
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
    user: ReadUser,
    request: Annotated[requests.EventsParameters, editor_fields(requests.EventsParameters)],
    reader: StatementReaderDep,
    streams: StreamsDep,
    settings: SettingsDep,
) -> Response:
    """Stream the status changes, progress, log and end of a statement as server-sent events. Contract editor 8.1."""
    status = await reader.with_queue_position(await reader.access.status(user, parse_operation_id(operation_id)))
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
        """Encode a status event at the start and after every state change, including those of a script's statements."""
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
