"""Domain values as wire models of the editor."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from fastapi import Response

from queryserver.api.answers import answer, moment
from queryserver.domain.positions import Position
from queryserver.domain.result import NUMBERS_AS_TEXT, Column
from queryserver.domain.statement import ACTIVE, HistoryEntry, StatementRecord, StatementState, StatementStatus
from queryserver.schemas import generated as wire

RETRY_HINT = {"Retry-After": "1"}
_MILLISECOND = timedelta(milliseconds=1)


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
    """`handle` (Contract editor 2.1)."""
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
    """What is told about an operation without a result to give (Contract editor 3.4)."""
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
    """The same as an answer: HTTP 200, as the call itself succeeded."""
    return answer(failure_body(record))


def meta(columns: Sequence[Column], *, big_numbers_as_text: bool = False) -> list[wire.ColumnMeta]:
    """`meta` of a result."""
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
    """Jobs that the engine reports."""
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
