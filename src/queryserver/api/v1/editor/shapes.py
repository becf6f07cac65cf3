"""Builds the response bodies of editor calls: statements, results and failures."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any
from uuid import UUID

import orjson
from fastapi import Response

from queryserver.api import responses
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests.editor import OperationRequest
from queryserver.formats.arrow import NUMBERS_AS_TEXT, CellForm, Column
from queryserver.identity.model import BigNumbers, User
from queryserver.platform.settings.tree import Settings
from queryserver.sql.positions import Position
from queryserver.statements.model import FailureDetails, HistoryEntry, StatementHandle, StatementPart, StatementStatus
from queryserver.statements.result_reader import ResultPage
from queryserver.statements.states import ACTIVE, StatementState
from queryserver.statements.status import StatementAccess, StatementReader

_MILLISECOND = timedelta(milliseconds=1)


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
    )


def truncation(status: StatementStatus | StatementPart) -> dict[str, Any]:
    """Return the keys that report whether the stored result was truncated, and by which limit (Contract editor 6.4)."""
    reason = status.truncated_reason
    return {
        "truncated": reason is not None,
        "truncated_reason": reason.value if reason else None,
        "truncated_by": status.truncation.limit_name if status.truncation else None,
    }


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
    """Return the index of the statement that failed in a script; None for other operations."""
    part = status.part if status.is_script else None
    return part.statement_index if part is not None else None


def error_position(position: Position | None) -> dict[str, Any]:
    """Return the keys `line` and `column` of a failure (Contract editor 3.4)."""
    return {"line": position and position.line, "column": position and position.column}


def column_meta(columns: Sequence[Column], *, big_numbers_as_text: bool = False) -> list[wire.ColumnMeta]:
    return [wire.ColumnMeta(**one) for one in plain_meta(columns, big_numbers_as_text=big_numbers_as_text)]


def plain_meta(columns: Sequence[Column], *, big_numbers_as_text: bool = False) -> list[dict[str, Any]]:
    """Return the content of `column_meta` as plain dicts, because 10,000 models take 30 ms.

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

    An `operationId` is only parsed. The service that gets the id checks that the operation exists and who owns it.
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
    """Return the cell format: as the call requests, or else from the server settings and the user's preferences."""
    if escape is None:
        escape = settings.editor.escape_default
    return CellForm(escape, numbers_as_text(user, big_numbers))


def numbers_as_text(user: User, big_numbers: BigNumbers | None) -> bool:
    """Return whether big numbers are written as strings: as the call requests, or else by the user's preference."""
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
