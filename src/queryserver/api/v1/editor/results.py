"""Status, log, rows, events and files of a statement: from the record and the spool, never from the engine."""

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from types import MappingProxyType
from typing import Any
from uuid import UUID

import orjson
from fastapi import Response
from pydantic import BaseModel

from queryserver import errors
from queryserver.api import answers
from queryserver.api.bodies import Call
from queryserver.api.calls import PathGroup
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas import requests
from queryserver.api.schemas.requests.editor import OperationRequest
from queryserver.api.v1.editor.result_file import ResultFile
from queryserver.files.downloading import is_unchanged, wants_part
from queryserver.formats.columns import NUMBERS_AS_TEXT, CellForm, Column
from queryserver.formats.download.encoder import ContentCoding, DownloadFormat, FileForm
from queryserver.identity.model import BigNumbers
from queryserver.sql.positions import Position
from queryserver.statements.model import (
    FailureDetails,
    HistoryEntry,
    StatementHandle,
    StatementPart,
    StatementRecord,
    StatementStatus,
)
from queryserver.statements.paging import PageRequest, ResultPage
from queryserver.statements.states import ACTIVE, StatementState
from queryserver.statements.status import StatementProgress, parse_operation_id

router = PathGroup()

_COMMENT_EVERY_S = 15.0
# An event id carries the log position it stands for, so that any instance can go on from it.
_IDS_PER_LINE = 1_000_000
_EVENT_ID = re.compile(r"[0-9]{1,18}")
_SUCCEEDED = {StatementState.AVAILABLE, StatementState.SUCCESS, StatementState.EXPIRED, StatementState.CLOSED}
_FAILED = {StatementState.FAILED, StatementState.CANCELED, StatementState.TIMED_OUT}
RETRY_HINT = {"Retry-After": "1"}

_MILLISECOND = timedelta(milliseconds=1)
_AT_ONCE_BYTES = 256 * 1024
_NO_ROWS = b'"data":[]'
_SUCCESS: Mapping[str, Any] = MappingProxyType({"status": 0})
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@router.operation("check_status")
async def check_status(call: Call) -> Response:
    """The state of an operation, at once or at its end within `wait`. Spec §4, Contract editor 4.2."""
    asked = await call.read(requests.CheckStatusRequest)
    operation_id = await operation_of(call, asked)
    status = await call.services.statements.reader.status(call.user, operation_id, wait_s=asked.wait)
    if status.outcome is not None:
        return await failure_answer(call, status)
    headers = RETRY_HINT if status.state in ACTIVE else None
    return answers.answer(wire.StatusResponse(status=0, query_status=query_status(status)), headers=headers)


@router.operation("get_logs")
async def get_logs(call: Call) -> Response:
    """Log lines and progress of a statement, in every state. Spec §4, Contract editor 7.1."""
    asked = await call.read(requests.LogsRequest)
    operation_id = await operation_of(call, asked)
    status, log = await call.services.statements.reader.logs(
        call.user, operation_id, start=asked.start or 0, size=asked.size
    )
    return answers.answer(
        wire.LogsResponse(
            status=0,
            progress=shown_progress(status),
            jobs=shown_jobs(log.jobs),
            logs="\n".join(log.lines),
            isFullLogs=asked.start is None,
            next_from=log.start + len(log.lines),
            **shown_times(status),
        )
    )


@router.operation("watch")
async def watch(call: Call, operation_id: str) -> Response:
    """Everything about an operation, until `isSuccess` or `isFailure`. Contract editor 10.5."""
    reader = call.services.statements.reader
    record = await call.services.statements.access.record(call.user, parse_operation_id(operation_id))
    status, log = await reader.logs(call.user, record.status.id)
    shown: dict[str, Any] = {
        "query_status": query_status(status),
        "id": status.history_id,
        "operationId": str(status.id),
        "watch_url": f"/api/v1/editor/watch/{status.id}",
        "statement": record.handle.statement,
        "log": "\n".join(log.lines),
        "jobs": shown_jobs(log.jobs),
        "isSuccess": status.state in _SUCCEEDED,
        "isFailure": status.state in _FAILED,
    }
    if status.outcome is None:
        return answers.answer(wire.WatchResponse(status=0, **shown))
    number, code = status.outcome
    details = details_of(await reader.with_failure(status))
    failure = wire.WatchFailure(
        status=number,
        code=code,
        message=status.message,
        handle=shown_handle(details.handle, status),
        history_id=status.history_id,
        history_uuid=str(status.id),
        sqlstate=details.error_sqlstate,
        statement_id=_failed_part(status),
        **error_place(details.error_position),
        **shown,
    )
    return answers.answer(failure)


@router.operation("fetch_result_data")
async def fetch_result_data(call: Call) -> Response:
    """Rows from the cursor on, or from `start_row`. Spec §4, Contract editor 6.1.

    JavaScript, and other readers that make doubles of numbers, lose digits of integers beyond 2^53:
    `big_numbers=text` gives those columns as text, and `meta` says so.
    """
    asked = await call.read(requests.FetchRequest)
    form = cell_form(call, asked.escape, asked.big_numbers)
    operation_id = await operation_of(call, asked)
    page = await call.services.statements.result_reader.page(
        call.user, operation_id, PageRequest(asked.rows, asked.start_row, asked.start_over, form, asked.statement_id)
    )
    if page.status.outcome is not None:
        return await failure_answer(call, page.status)
    if page.is_cut_off:
        return _cut_off(await call.services.statements.access.own_record(call.user, page.status.id))
    return page_answer(page, form)


def _cut_off(record: StatementRecord) -> Response:
    """The rows behind those that were kept: a failure, for clients that page to the end (Contract editor 6.1)."""
    body, rows = failure_body(record.status, FailureDetails(record.handle, None, None)), record.status.rows
    message = f"{body.message} To take these rows for the whole result, execute the statement with limit={rows}."
    return answers.answer(body.model_copy(update={"status": 1, "code": "truncated", "message": message}))


@router.operation("fetch_result_metadata")
async def fetch_result_metadata(call: Call) -> Response:
    """Names and types of the columns of a result. Contract editor 6.2."""
    asked = await call.read(requests.ResultMetadataRequest)
    operation_id = await operation_of(call, asked)
    status, columns, _ = await call.services.statements.result_reader.overview(
        call.user, operation_id, asked.statement_id
    )
    if status.outcome is not None:
        return await failure_answer(call, status)
    meta = column_meta(columns, big_numbers_as_text=numbers_as_text(call, asked.big_numbers))
    return answers.answer(wire.ResultMetadataResponse(status=0, result=wire.ResultMetadata(meta=meta)))


@router.operation("fetch_result_size")
async def fetch_result_size(call: Call) -> Response:
    """Stored rows and bytes, once the statement has ended. Contract editor 6.2."""
    asked = await call.read(requests.ResultRequest)
    operation_id = await operation_of(call, asked)
    result_reader = call.services.statements.result_reader
    status, _, size_bytes = await result_reader.overview(call.user, operation_id, asked.statement_id)
    if status.outcome is not None:
        return await failure_answer(call, status)
    is_active = status.state in ACTIVE
    size = wire.ResultSize(
        rows=None if is_active else status.rows,
        size=None if is_active else size_bytes,
        message="Result status is not available" if is_active else status.message,
        truncated=status.truncated_reason is not None,
    )
    return answers.answer(wire.ResultSizeResponse(status=0, result=size))


@router.operation("follow_events")
async def events(call: Call, operation_id: str) -> Response:
    """status, progress, log and end events of one operation. Contract editor 8.1."""
    asked = await call.read(requests.EventsParameters)
    status = await call.services.statements.reader.status(call.user, parse_operation_id(operation_id))
    resumed = call.request.headers.get("last-event-id", "")
    sender = _Sender(int(resumed) if _EVENT_ID.fullmatch(resumed) else asked.log_from * _IDS_PER_LINE)
    return await answers.stream(
        _events(call, status, sender), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
    )


async def _events(call: Call, status: StatementStatus, sender: "_Sender") -> AsyncGenerator[bytes]:
    reader = call.services.statements.reader
    longest_s = call.services.settings.editor.stream_max_s
    with call.services.streams.place(call.user) as place:
        yield b"retry: 2000\n\n"
        async with aclosing(reader.progress(status, place, log_from=sender.log_line, until_s=longest_s)) as steps:
            try:
                async for step in steps:
                    for piece in await _events_of(call, step, sender):
                        yield piece
            except (errors.NotAuthenticated, errors.PermissionDenied, errors.OperationNotFound) as error:
                # The user was disabled, or may not follow the statement any more. A client that comes back is refused.
                yield sender.event("denied", wire.ErrorBody(status=-1, code=error.code, message=error.message))


async def _events_of(call: Call, step: StatementProgress, sender: "_Sender") -> list[bytes]:
    """The changes that were not sent yet."""
    status = step.status
    if status.outcome is not None:
        status = await call.services.statements.reader.with_failure(status)
    if sender.is_news(status):
        status = await call.services.statements.reader.with_queue_position(status)
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
    return failure_body(status, details_of(status))


class _Sender:
    def __init__(self, last_id: int) -> None:
        self._last_id = last_id
        self.log_line = last_id // _IDS_PER_LINE
        self._state: tuple[str, ...] = ()
        self._progress: bytes | None = None
        self._commented = asyncio.get_running_loop().time()

    def event(self, name: str, body: BaseModel) -> bytes:
        """One event with the next id."""
        self._last_id = max(self._last_id + 1, self.log_line * _IDS_PER_LINE)
        self._commented = asyncio.get_running_loop().time()
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (self._last_id, name.encode(), body.model_dump_json().encode())

    def is_news(self, status: StatementStatus) -> bool:
        return self._state != _states(status)

    def status(self, body: BaseModel, status: StatementStatus) -> list[bytes]:
        """First, and at every change of state, also of a statement of a script."""
        if not self.is_news(status):
            return []
        self._state = _states(status)
        return [self.event("status", body)]

    def progress(self, step: StatementProgress) -> list[bytes]:
        body = wire.ProgressEvent(
            progress=shown_progress(step.status), rows=step.status.rows, jobs=shown_jobs(step.log.jobs)
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
        """After 15 s without an event."""
        if asyncio.get_running_loop().time() - self._commented < _COMMENT_EVERY_S:
            return []
        self._commented = asyncio.get_running_loop().time()
        return [b": still there\n\n"]


def _states(status: StatementStatus) -> tuple[str, ...]:
    return (status.state.value, *(part.state.value for part in status.parts))


@router.operation("download_result")
async def download(call: Call, operation_id: str) -> Response:
    """The stored rows in one of seven formats, streamed; with `Range` a part of the file. Contract editor 8.2."""
    asked = await call.read(requests.DownloadParameters)
    is_packed = asked.packed()
    downloads = call.services.statements.downloads
    rows = await downloads.open(
        call.user,
        parse_operation_id(operation_id),
        statement_id=asked.statement_id,
        allow_truncated=asked.allow_truncated,
    )
    kind = DownloadFormat(asked.format)
    coding = ContentCoding.IDENTITY if kind.is_compressed or is_packed else answers.coding_for(call.request)
    stored = None
    if is_packed:
        finding = downloads.packed(call.user, rows, threads=call.services.threads.rendering)
        stored = await answers.while_connected(call.request, finding)
    file = ResultFile(call, rows, FileForm(kind, asked.guard, coding, is_packed), stored)
    conditions = answers.conditions_of(call.request)
    if is_unchanged(conditions, file.version):
        return Response(status_code=304, headers=file.version_headers)
    if call.request.scope.get(answers.HEADERS_ONLY) or not wants_part(conditions, file.version):
        return await file.whole()
    return await answers.while_connected(call.request, file.part(conditions))


async def operation_of(call: Call, asked: OperationRequest) -> UUID:
    """By `operationId`, else by the handle's `guid`, else (cancel and close) by the notebook.

    Raises MissingParameter, OperationNotFound; the services check the owner.
    """
    operation_id, guid = (asked.operation_id, None) if asked.operation_id else asked.named
    return await call.services.statements.access.id_of(call.user, operation_id, guid)


def query_status(status: StatementStatus) -> wire.QueryStatus:
    """`query_status` (Contract editor 2.2)."""
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
        **shown_times(status),
        expires_at=answers.moment(status.expires_at) if state is StatementState.AVAILABLE else None,
        statements=[_script_statement(part) for part in status.parts] if status.runs_all else None,
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
        **error_place(part.error_position),
        start=wire.Position(row=start_row, column=start_column),
        end=wire.Position(row=end_row, column=end_column),
        started=answers.moment(times.started),
        ended=answers.moment(times.ended),
        elapsed_ms=times.elapsed // _MILLISECOND,
    )


def truncation(status: StatementStatus | StatementPart) -> dict[str, Any]:
    """Whether the stored result was cut, and by what (Contract editor 6.4)."""
    reason = status.truncated_reason
    return {
        "truncated": reason is not None,
        "truncated_reason": reason.value if reason else None,
        "truncated_by": status.truncation.by if status.truncation else None,
    }


def shown_times(shown: StatementStatus | HistoryEntry) -> dict[str, Any]:
    """When a statement was recorded, sent and ended, and its place in the queue (Contract editor 2.5)."""
    known = shown.times
    return {
        "submitted": answers.moment(known.submitted),
        "started": answers.moment(known.started),
        "ended": answers.moment(known.ended),
        "elapsed_ms": known.elapsed // _MILLISECOND,
        "queued_ms": known.queued // _MILLISECOND,
        "queue_position": shown.queue_position,
    }


def shown_handle(handle: StatementHandle, status: StatementStatus) -> wire.Handle:
    start_row, start_column, end_row, end_column = handle.position
    return answers.like(
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


def details_of(status: StatementStatus) -> FailureDetails:
    """The details of a status that `StatementReader.with_failure` returned."""
    if status.failure is None:
        raise AssertionError
    return status.failure


def failure_body(status: StatementStatus, details: FailureDetails) -> wire.StatementFailure:
    """The body for an operation without a result (Contract editor 3.4)."""
    number, code = status.outcome or (0, "")
    return wire.StatementFailure(
        status=number,
        code=code,
        message=status.message,
        query_status=query_status(status),
        handle=shown_handle(details.handle, status),
        history_id=status.history_id,
        history_uuid=str(status.id),
        sqlstate=details.error_sqlstate,
        statement_id=_failed_part(status),
        **error_place(details.error_position),
    )


def _failed_part(status: StatementStatus) -> int | None:
    """Which statement of a script ended it; None for any other operation."""
    part = status.part if status.is_script else None
    return part.statement_index if part is not None else None


def error_place(position: Position | None) -> dict[str, Any]:
    """`line` and `column` of a failure (Contract editor 3.4)."""
    return {"line": position and position.line, "column": position and position.column}


async def failure_answer(call: Call, status: StatementStatus) -> Response:
    """HTTP 200: the call itself succeeded."""
    status = await call.services.statements.reader.with_failure(status)
    return answers.answer(failure_body(status, details_of(status)))


def column_meta(columns: Sequence[Column], *, big_numbers_as_text: bool = False) -> list[wire.ColumnMeta]:
    return [wire.ColumnMeta(**one) for one in plain_meta(columns, big_numbers_as_text=big_numbers_as_text)]


def plain_meta(columns: Sequence[Column], *, big_numbers_as_text: bool = False) -> list[dict[str, Any]]:
    """The same as plain values: 10,000 models take 30 ms. `as_text` is there with `big_numbers_as_text` only."""
    plain: list[dict[str, Any]] = [
        {"name": one.name, "type": one.type.value, "comment": one.comment, "native_type": one.native_type}
        for one in columns
    ]
    if big_numbers_as_text:
        for shown, column in zip(plain, columns, strict=True):
            shown["as_text"] = column.type in NUMBERS_AS_TEXT
    return plain


def shown_jobs(reported: Sequence[Any]) -> list[wire.Job]:
    return [wire.Job.model_validate(job) for job in reported]


def shown_progress(status: StatementStatus) -> int:
    """`progress` of get_logs: 0 while waiting, 100 once the statement succeeded (Contract editor 7.1)."""
    match status.state:
        case StatementState.WAITING:
            return 0
        case StatementState.RUNNING:
            return min(status.progress, 99)
        case StatementState.AVAILABLE | StatementState.SUCCESS | StatementState.EXPIRED | StatementState.CLOSED:
            return 100
        case _:
            return status.progress


def cell_form(call: Call, escape: bool | None, big_numbers: BigNumbers | None) -> CellForm:
    """How cells are written; None: the settings of the server, or those of the user, decide."""
    if escape is None:
        escape = call.services.settings.editor.escape_default
    return CellForm(escape, numbers_as_text(call, big_numbers))


def numbers_as_text(call: Call, asked: BigNumbers | None) -> bool:
    """Whether big numbers are text; None: as the user prefers."""
    return (asked or call.user.preferences.big_numbers) == "text"


def page_answer(
    page: ResultPage, form: CellForm, *, beside: Mapping[str, Any] = _SUCCESS, headers: Mapping[str, str] = _NO_HEADERS
) -> Response:
    """The body with the rows in `result` and `beside` around it. A large one is sent in pieces.

    The rows are JSON already: they are never parsed or copied.
    """
    head, tail = _around_rows(page, beside, form)
    if page.rendered.size_bytes <= _AT_ONCE_BYTES:
        if page.held is not None:
            page.held.release()
        return Response(head + page.rendered.json + tail, headers=dict(headers), media_type="application/json")
    length = len(head) + page.rendered.size_bytes + len(tail)
    sent = {**headers, "Content-Length": str(length)}
    return answers.OwnedStream(_pieces(head, page, tail), b"", "application/json", sent)


async def _pieces(head: bytes, page: ResultPage, tail: bytes) -> AsyncGenerator[bytes]:
    """The server waits between pieces for its client; meanwhile the page holds its memory."""
    try:
        before = head + b"["
        for piece in page.rendered.pieces:
            yield before
            for start in range(0, len(piece), _AT_ONCE_BYTES):
                yield piece[start : start + _AT_ONCE_BYTES]
            before = b","
        yield b"]" + tail
    finally:
        if page.held is not None:
            page.held.release()


def _around_rows(page: ResultPage, beside: Mapping[str, Any], form: CellForm) -> tuple[bytes, bytes]:
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
        "expires_at": answers.moment(status.expires_at) if status.state is StatementState.AVAILABLE else None,
    }
    if message:
        fields["message"] = message
    # Within a text of JSON the quotes would have backslashes before them.
    head, mark, tail = orjson.dumps({**beside, "result": fields}).partition(_NO_ROWS)
    return head + mark[:-2], tail
