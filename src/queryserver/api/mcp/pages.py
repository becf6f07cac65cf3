"""Rows of stored results within a byte budget that fits a model's window (Contract mcp 3.3)."""

from typing import Any
from uuid import UUID

import orjson
from pydantic import BaseModel, Field

from queryserver import errors
from queryserver.api.mcp.connectors import reads_results
from queryserver.api.mcp.sizes import clipped, json_bytes
from queryserver.api.mcp.status import failure_of
from queryserver.api.mcp.tools import DATA_NOTICE, ToolCall, ToolFailure
from queryserver.api.v1.editor.status import numbers_as_text
from queryserver.formats.arrow import CellForm
from queryserver.statements.model import StatementStatus
from queryserver.statements.result_reader import PageRequest, ResultPage
from queryserver.statements.states import ACTIVE, StatementState

DEFAULT_ROWS = 200
MAX_ROWS = 5_000
MIN_BYTES = 1_000
DEFAULT_BYTES = 20_000
"""About 7,000 tokens of a language model."""
MAX_BYTES = 200_000


class ResultColumn(BaseModel):
    name: str
    type: str = Field(description="The type's name on the data source.")


class ResultRows(BaseModel):
    """Consecutive rows of a stored result."""

    notice: str = Field(default=DATA_NOTICE, description="How to treat the rows.")
    operation_id: str
    columns: list[ResultColumn]
    rows: list[list[Any]] = Field(description="One array per row, with a cell per column.")
    offset: int = Field(description="Number of the first row, counted from 0.")
    rows_returned: int
    rows_total: int | None = Field(description="Rows of the whole result; null while the statement runs.")
    has_more: bool = Field(description="Whether rows follow that can be read.")
    next_offset: int | None = Field(description="The offset for the next call; null without further rows.")
    truncated: str | None = Field(description="The limit that cut the stored result; null if it is complete.")
    next: str = Field(description="How to read on, or how to reduce the result.")


async def first_rows(call: ToolCall, status: StatementStatus) -> ResultRows | None:
    """Return the first rows within the default budget.

    Returns None if they cannot be read now, for which get_result then returns the reason: the statement has ended, and
    its id must reach the client.
    """
    try:
        return await read_rows(call, status.id, offset=0, rows=DEFAULT_ROWS, max_bytes=DEFAULT_BYTES)
    except (ToolFailure, errors.TooManyRequests, errors.ServiceUnavailable):
        return None


async def read_rows(call: ToolCall, operation_id: UUID, *, offset: int, rows: int, max_bytes: int) -> ResultRows:
    """Return the rows from `offset` that fit into `max_bytes` of JSON.

    Raises the errors of `ResultReader.page`, and ToolFailure if there is no result or the first row does not fit.
    """
    form = CellForm(is_escaped=False, big_numbers_as_text=numbers_as_text(call.user, None))
    request = PageRequest(rows, start_row=offset, form=form, max_bytes=max_bytes)
    try:
        page = await call.services.statements.result_reader.page(call.user, operation_id, request)
    except errors.PageRowTooLarge as error:
        raise _row_too_large(offset, max_bytes) from error
    try:
        if (failure := await failure_of(call, page.status)) is not None:
            raise failure
        columns = _columns(page, max_bytes)
        return _rows(call, operation_id, page, columns)
    finally:
        if page.reservation is not None:
            page.reservation.release()


def _columns(page: ResultPage, max_bytes: int) -> list[ResultColumn]:
    """Return the columns. Raises ToolFailure if they alone exceed the budget, as those of very wide results do."""
    columns = [ResultColumn(name=one.name, type=clipped(one.native_type)) for one in page.columns]
    if sum(map(json_bytes, columns)) > max_bytes:
        raise ToolFailure(
            "row_too_large",
            f"The names and types of the {len(columns)} columns alone exceed {max_bytes} bytes.",
            next_step=f"Select fewer columns in the statement, or raise max_bytes (at most {MAX_BYTES}).",
        )
    return columns


def _rows(call: ToolCall, operation_id: UUID, page: ResultPage, columns: list[ResultColumn]) -> ResultRows:
    status, end = page.status, page.start_row + page.rows
    has_more = status.state in ACTIVE or (status.state is StatementState.AVAILABLE and end < status.rows)
    cut = status.truncation
    return ResultRows(
        operation_id=str(operation_id),
        columns=columns,
        rows=orjson.loads(page.rendered.json),
        offset=page.start_row,
        rows_returned=page.rows,
        rows_total=None if status.state in ACTIVE else status.rows,
        has_more=has_more,
        next_offset=end if has_more else None,
        truncated=None if cut is None else f"{cut.reason.value} ({cut.limit_name})",
        next=_next(call, operation_id, end) if has_more else "All stored rows up to the end have been read.",
    )


def _next(call: ToolCall, operation_id: UUID, end: int) -> str:
    text = f"Read on with offset={end}."
    reducing = reducing_connector(call)
    if reducing is None:
        return f"{text} To reduce the result, aggregate or filter in the statement itself."
    return (
        f"{text} To reduce the result instead, call run_sql on {reducing}, with 'result://{operation_id}' as a table."
    )


def reducing_connector(call: ToolCall) -> str | None:
    """Return the name of the caller's first connector whose SQL may read stored results, or None."""
    found = (one for one in call.services.connectors.visible(call.user) if reads_results(call.services, one))
    return next((one.reference for one in found), None)


def _row_too_large(offset: int, max_bytes: int) -> ToolFailure:
    next_step = (
        f"Raise max_bytes (at most {MAX_BYTES}), select fewer or shorter columns, or skip the row: offset={offset + 1}."
    )
    return ToolFailure("row_too_large", f"Row {offset} alone exceeds {max_bytes} bytes.", next_step=next_step)
