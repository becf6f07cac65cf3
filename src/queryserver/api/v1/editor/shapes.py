"""Operations that the editor's calls name, and statements and pages of rows as the wire has them."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any
from uuid import UUID

import orjson
from fastapi import Response

from queryserver.api.answers import OwnedStream, answer, moment
from queryserver.api.calls import Call
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests.editor import EndRequest, OperationRequest
from queryserver.formats.columns import NUMBERS_AS_TEXT, CellForm, Column
from queryserver.identity.model import BigNumbers
from queryserver.sql.positions import Position
from queryserver.statements.model import HistoryEntry, StatementRecord, StatementStatus
from queryserver.statements.paging import ResultPage
from queryserver.statements.states import ACTIVE, StatementState

RETRY_HINT = {"Retry-After": "1"}

_MILLISECOND = timedelta(milliseconds=1)
_AT_ONCE_BYTES = 256 * 1024
_NO_ROWS = b'"data":[]'
_SUCCESS: Mapping[str, Any] = MappingProxyType({"status": 0})
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


async def operation_of(call: Call, asked: OperationRequest) -> UUID:
    """By `operationId`, else by the handle's `guid`, else (cancel and close) by the notebook.

    Raises OperationNotFound; the services check the owner.
    """
    named = asked.operation_id
    if isinstance(asked, EndRequest) and asked.notebook_uuid:
        named = asked.notebook_uuid
    return await call.services.statements.access.id_of(call.user, named, asked.guid)


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
        expires_at=moment(status.expires_at) if state is StatementState.AVAILABLE else None,
        **times(status),
    )


def truncation(status: StatementStatus) -> dict[str, Any]:
    """Whether the stored result was cut, and by what (Contract editor 6.4)."""
    found = status.truncation
    return {
        "truncated": found is not None,
        "truncated_reason": found.reason.value if found else None,
        "truncated_by": found.by if found else None,
    }


def times(shown: StatementStatus | HistoryEntry) -> dict[str, Any]:
    """When a statement was recorded, sent and ended, and its place in the queue (Contract editor 2.5)."""
    known = shown.times
    return {
        "submitted": moment(known.submitted),
        "started": moment(known.started),
        "ended": moment(known.ended),
        "elapsed_ms": known.elapsed // _MILLISECOND,
        "queued_ms": known.queued // _MILLISECOND,
        "queue_position": shown.queue_position,
    }


def handle(record: StatementRecord) -> wire.Handle:
    held, status = record.handle, record.status
    start_row, start_column, end_row, end_column = held.position
    return wire.Handle(
        statement_id=held.statement_index,
        statements_count=held.statements_count,
        has_more_statements=held.has_more_statements,
        previous_statement_hash=held.statement_hash,
        start=wire.Position(row=start_row, column=start_column),
        end=wire.Position(row=end_row, column=end_column),
        statement=held.statement,
        guid=held.guid,
        secret=held.secret,
        operation_type=0,
        has_result_set=status.has_result_set,
        modified_row_count=status.modified_row_count,
        log_context=None,
        session_id=held.session_id,
        session_guid=held.session_guid,
        session_type=status.dialect,
    )


def failure_body(record: StatementRecord) -> wire.StatementFailure:
    """The body for an operation without a result (Contract editor 3.4)."""
    status, code = record.status.outcome or (0, "")
    return wire.StatementFailure(
        status=status,
        code=code,
        message=record.status.message,
        query_status=query_status(record.status),
        handle=handle(record),
        history_id=record.status.history_id,
        history_uuid=str(record.status.id),
        **error_place(record.error_position),
    )


def error_place(position: Position | None) -> dict[str, Any]:
    """`line` and `column` of a failure (Contract editor 3.4)."""
    return {"line": position and position.line, "column": position and position.column}


def failed(record: StatementRecord) -> Response:
    """HTTP 200: the call itself succeeded."""
    return answer(failure_body(record))


def meta(columns: Sequence[Column], *, big_numbers_as_text: bool = False) -> list[wire.ColumnMeta]:
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


def jobs(reported: Sequence[Any]) -> list[wire.Job]:
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
    return OwnedStream(_pieces(head, page, tail), b"", "application/json", sent)


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
    status = page.status
    fields = {
        "has_more": page.has_more,
        "type": "table",
        "isEscaped": form.is_escaped,
        "meta": plain_meta(page.columns, big_numbers_as_text=form.big_numbers_as_text),
        "data": [],
        "start_row": page.start_row,
        "rows_total": None if status.state in ACTIVE else status.rows,
        **truncation(status),
        "expires_at": moment(status.expires_at) if status.state is StatementState.AVAILABLE else None,
    }
    if page.message:
        fields["message"] = page.message
    # Within a text of JSON the quotes would have backslashes before them.
    head, mark, tail = orjson.dumps({**beside, "result": fields}).partition(_NO_ROWS)
    return head + mark[:-2], tail
