"""The state of a statement as the tools return it (Contract mcp 3.4)."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field

from queryserver.api.mcp.tools import DATA_NOTICE, ToolCall, ToolFailure
from queryserver.api.responses import utc_text
from queryserver.api.v1.editor.status import error_position, progress_percent
from queryserver.identity.model import Scope
from queryserver.statements.model import StatementStatus
from queryserver.statements.states import ACTIVE, StatementState

State = Literal["waiting", "running", "available", "success", "failed", "canceled", "timed_out", "expired", "closed"]


class StatementError(BaseModel):
    """Why a statement ended without a result."""

    code: str
    message: str = Field(description=DATA_NOTICE)
    line: int | None = Field(description="Line of the error in the statement, from 1, if the data source reports it.")
    column: int | None = Field(description="Column of the error, from 1.")


class OperationStatus(BaseModel):
    """The state of a statement."""

    operation_id: str
    connector: str
    state: State = Field(description="available: ended with a result; success: ended without rows.")
    rows: int = Field(description="Rows stored so far.")
    modified_rows: int | None = Field(description="Rows that the statement changed, if the data source reports it.")
    progress_percent: int
    queue_position: int | None = Field(description="Position in the connector's queue, from 1, while it waits.")
    queued_ms: int
    elapsed_ms: int
    expires_at: str | None = Field(description="When the stored result is deleted (UTC).")
    error: StatementError | None
    next: str = Field(description="What to do next.")


async def operation_status(call: ToolCall, status: StatementStatus) -> OperationStatus:
    """Return the state with the queue position, and with the error of a failed statement."""
    reader = call.services.statements.reader
    status = await reader.with_queue_position(status)
    available = status.state is StatementState.AVAILABLE
    return OperationStatus(
        operation_id=str(status.id),
        connector=status.connector,
        state=status.state.value,  # pyright: ignore[reportArgumentType] a test compares the states
        rows=status.rows,
        modified_rows=status.modified_row_count,
        progress_percent=progress_percent(status),
        queue_position=status.queue_position,
        queued_ms=int(status.times.queued.total_seconds() * 1000),
        elapsed_ms=int(status.times.elapsed.total_seconds() * 1000),
        expires_at=utc_text(status.expires_at) if available else None,
        error=await _error(call, status),
        next=_next(call, status),
    )


async def failure_of(call: ToolCall, status: StatementStatus) -> ToolFailure | None:
    """Return the tool error of a statement that ended without a result, or None for any other."""
    error = await _error(call, status)
    if error is None:
        return None
    facts: dict[str, Any] = {"operation_id": str(status.id), "state": status.state.value}
    facts |= {"line": error.line, "column": error.column}
    return ToolFailure(error.code, error.message, next_step=_next_after(call, status), facts=facts)


async def _error(call: ToolCall, status: StatementStatus) -> StatementError | None:
    if status.outcome is None:
        return None
    status = await call.services.statements.reader.with_failure(status)
    position = status.failure.error_position if status.failure else None
    _, code = status.outcome or (0, "")
    return StatementError(code=code, message=status.message, **error_position(position))


def _next(call: ToolCall, status: StatementStatus) -> str:
    if status.state in ACTIVE:
        return "Call get_status with wait_s to wait for the end, or cancel to stop the statement."
    if status.state is StatementState.AVAILABLE:
        return "Call get_result to read rows."
    if status.state is StatementState.SUCCESS:
        return "Nothing: the statement has ended and returns no rows."
    return _next_after(call, status)


def _next_after(call: ToolCall, status: StatementStatus) -> str:
    """Return what to do after a statement that ended without a result."""
    code = status.outcome[1] if status.outcome else ""
    if code == "rejected":
        return _next_after_rejection(call, status)
    if code in _NEXT_BY_CODE:
        return _NEXT_BY_CODE[code]
    match status.state:
        case StatementState.EXPIRED | StatementState.CLOSED:
            return "The result was deleted. Run the statement again."
        case StatementState.CANCELED:
            return "Run the statement again if its result is still needed."
        case StatementState.TIMED_OUT:
            return "Reduce what the statement reads, or set a larger timeout_s."
        case _:
            return "Read the message, then correct the statement."


_NEXT_BY_CODE: Mapping[str, str] = {
    "estimate_exceeded": "Reduce what the statement reads, for example by partitions and fewer columns; see explain.",
    "outcome_unknown": "Find out whether the statement took effect before you send it again.",
}


def _next_after_rejection(call: ToolCall, status: StatementStatus) -> str:
    text = "Send a statement that only reads."
    connector = call.services.connectors.known(status.connector)
    if connector is not None and connector.read_only:
        return f"{text} This connector refuses all changes."
    if not call.user.has_scope(Scope.QUERY):
        return f"{text} This token may only read."
    return f"{text} If the user wants the change, set write=true."
