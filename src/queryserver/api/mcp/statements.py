"""Tools that run statements, follow them and read their results (Contract mcp 3.2 to 3.5)."""

import asyncio
from contextlib import nullcontext
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations
from pydantic import BaseModel, Field

from queryserver import errors
from queryserver.api.mcp.pages import (
    DEFAULT_BYTES,
    DEFAULT_ROWS,
    MAX_BYTES,
    MAX_ROWS,
    MIN_BYTES,
    ResultRows,
    first_rows,
    read_rows,
)
from queryserver.api.mcp.status import OperationStatus, failure_of, operation_status
from queryserver.api.mcp.tools import ToolCall, ToolContext, add_tool
from queryserver.api.schemas.fields import INT64_MAX
from queryserver.identity.limits import StreamSlot
from queryserver.identity.model import Scope
from queryserver.platform.settings.editor import EditorSettings
from queryserver.services import Services
from queryserver.statements.model import RecordedStatement, StatementStatus
from queryserver.statements.running_statements import Watch
from queryserver.statements.states import ACTIVE, StatementState
from queryserver.statements.status import parse_operation_id, shown_to
from queryserver.statements.submission import Submission

MAX_WAIT_S = 45
"""Longest wait of a call. Many clients and proxies give up after 60 s."""

_PROGRESS_EVERY_S = 2.0

OperationId = Annotated[str, Field(description="The operation_id that run_sql returned.", max_length=64)]


class SqlOutcome(BaseModel):
    """A statement's state, and its first rows if it has ended with a result."""

    operation: OperationStatus
    result: ResultRows | None = Field(description="The first rows; null while the statement runs, or without rows.")
    warning: str | None = None


def register(server: MCPServer[Any], services: Services) -> None:
    """Add the tools of this file to the server. The descriptions state the limits of `services`."""
    editor = services.settings.editor
    add_tool(
        server,
        run_sql,
        title="Run SQL",
        description=_run_sql_description(editor),
        annotations=ToolAnnotations(
            read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False
        ),
    )
    add_tool(
        server,
        get_status,
        title="Get the state of a statement",
        description=(
            "Return the state of a statement, or wait for its end: wait_s of at most"
            f" {MAX_WAIT_S} seconds. Returns no rows; use get_result."
        ),
    )
    add_tool(
        server,
        get_result,
        title="Read a result",
        description=(
            "Read rows of a stored result from `offset`, as many as fit: at most `rows`"
            f" (default {DEFAULT_ROWS}, at most {MAX_ROWS:,}) and `max_bytes` of JSON (default {DEFAULT_BYTES:,}, at"
            f" most {MAX_BYTES:,}). `has_more` and `next_offset` say where to go on, `rows_total` how many rows there"
            " are. Reading can be repeated, in any order, until the result expires. To reduce a large result, run SQL"
            " over it instead: FROM 'result://<operation_id>' on a connector with reads_results."
        ),
    )
    add_tool(
        server,
        cancel,
        title="Cancel a statement",
        description=(
            "Stop a statement on its data source, and wait up to"
            f" {editor.cancel_wait_s} seconds for its end. Canceling a statement that has ended changes nothing."
        ),
        annotations=ToolAnnotations(
            read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False
        ),
    )


def _run_sql_description(editor: EditorSettings) -> str:
    return (
        "Run one SQL statement and return its operation_id, state and first rows. Only the first statement of a"
        " script is run. The statement must only read, unless write=true is set and the token may write. Waits"
        f" up to wait_s (at most {MAX_WAIT_S}) seconds, with progress notifications if requested; a statement that"
        " is not finished by then goes on, and get_status waits further. If the call is canceled while it waits,"
        " the statement is canceled too, unless idempotency_key is set: then it goes on, and the same call with"
        " the same key returns it. A call has at most 1 MiB. The first rows have at most"
        f" {DEFAULT_BYTES:,} bytes; get_result reads further. At most {editor.result_max_rows:,} rows and"
        f" {editor.result_max_bytes:,} bytes are stored. At most {editor.max_streams_per_user} calls of a user"
        " wait at the same time. The statement may run for statement_timeout_s of list_connectors. Limits on estimated"
        " bytes or cost, and a budget per day, may refuse it; the error names the limit."
    )


async def run_sql(
    context: ToolContext,
    sql: Annotated[str, Field(description="One SQL statement in the connector's dialect.", min_length=1)],
    connector: Annotated[
        str | None, Field(description="A name from list_connectors. By default, the one with is_default.")
    ] = None,
    database: Annotated[str | None, Field(description="Database or schema for names without one.")] = None,
    write: Annotated[
        bool, Field(description="Permit a statement that changes data. Set it only if the user wants the change.")
    ] = False,
    row_limit: Annotated[
        int | None, Field(ge=1, description="Maximum number of rows to store; more are dropped.")
    ] = None,
    timeout_s: Annotated[int | None, Field(ge=1, le=86_400, description="Stop the statement after this time.")] = None,
    idempotency_key: Annotated[
        str | None,
        Field(
            pattern=r"^[ -~]+$",
            max_length=255,
            description="A unique key, such as a UUID. Repeating the call with it never runs the statement twice.",
        ),
    ] = None,
    max_estimated_bytes: Annotated[
        int | None,
        Field(
            ge=1,
            le=INT64_MAX,
            description="Do not run a statement for which the data source expects to read more bytes.",
        ),
    ] = None,
    wait_s: Annotated[int, Field(ge=0, le=MAX_WAIT_S, description="Seconds to wait for the end.")] = MAX_WAIT_S,
) -> SqlOutcome:
    call = ToolCall.of(context)
    if write and not call.user.has_scope(Scope.QUERY):
        raise errors.InsufficientScope(Scope.QUERY)
    submission = Submission(
        connector=connector,
        script=sql,
        database=database,
        limit=row_limit,
        timeout_s=timeout_s,
        idempotency_key=idempotency_key,
        waits_for_end=wait_s > 0,
        read_only=not write,
        max_estimated_bytes=max_estimated_bytes,
        traceparent=call.traceparent,
    )
    recorded, status = await _run(call, submission, wait_s)
    if (failure := await failure_of(call, status)) is not None:
        raise failure
    result = await first_rows(call, status) if status.state is StatementState.AVAILABLE else None
    return SqlOutcome(operation=await operation_status(call, status), result=result, warning=_warning(recorded))


async def get_status(
    context: ToolContext,
    operation_id: OperationId,
    wait_s: Annotated[int, Field(ge=0, le=MAX_WAIT_S, description="Seconds to wait for the end.")] = 0,
) -> OperationStatus:
    call, operation = ToolCall.of(context), parse_operation_id(operation_id)
    statements = call.services.statements
    with statements.control.signals.watch(operation, ends_only=True) as watch:
        status = await statements.access.shared_status(call.user, operation)
        if wait_s and not status.state.is_terminal:
            with call.services.streams.slot(call.user) as slot:
                status = shown_to(call.user, await _wait_on_watch(call, status, wait_s, watch, slot))
    return await operation_status(call, status)


async def get_result(
    context: ToolContext,
    operation_id: OperationId,
    offset: Annotated[int, Field(ge=0, le=INT64_MAX, description="The first row to read, counted from 0.")] = 0,
    rows: Annotated[int, Field(ge=1, le=MAX_ROWS, description="Maximum number of rows.")] = DEFAULT_ROWS,
    max_bytes: Annotated[
        int, Field(ge=MIN_BYTES, le=MAX_BYTES, description="Maximum size of the rows as JSON.")
    ] = DEFAULT_BYTES,
) -> ResultRows:
    return await read_rows(
        ToolCall.of(context), parse_operation_id(operation_id), offset=offset, rows=rows, max_bytes=max_bytes
    )


async def cancel(context: ToolContext, operation_id: OperationId) -> OperationStatus:
    call = ToolCall.of(context)
    status = await call.services.statements.control.cancel(call.user, parse_operation_id(operation_id))
    return await operation_status(call, status)


async def _run(call: ToolCall, submission: Submission, wait_s: int) -> tuple[RecordedStatement, StatementStatus]:
    """Submit the statement and wait for its end.

    If the call is canceled, the statement is canceled, because the client cannot know its id, unless the client can
    repeat the call with its idempotency key. Raises the errors of `Submissions.submit`, TooManyStreams.
    """
    statements = call.services.statements

    async def abandon(recorded: RecordedStatement) -> None:
        if submission.idempotency_key is None:
            await statements.control.cancel(call.user, recorded.record.status.id)

    # Taken before the statement is recorded, so that without a free slot nothing runs.
    with call.services.streams.slot(call.user) if wait_s else nullcontext() as slot:
        recorded = await call.to_end(statements.submissions.submit(call.user, submission), canceled=abandon)
        status = recorded.record.status
        if slot is None or status.state.is_terminal:
            return recorded, status
        try:
            status = await _wait_for_end(call, status, wait_s, slot)
        except asyncio.CancelledError:
            call.in_background(abandon(recorded))
            raise
    if not status.state.is_terminal:
        await statements.submissions.make_durable(status.id)
    return recorded, status


async def _wait_for_end(call: ToolCall, status: StatementStatus, wait_s: int, slot: StreamSlot) -> StatementStatus:
    """Return the first terminal status of a newly recorded statement within `wait_s`, otherwise the latest one.

    Raises the errors of `StreamSlot.recheck` once the user may no longer read the statement.
    """
    with call.services.statements.control.signals.watch(status.id, ends_only=True) as watch:
        return await _wait_on_watch(call, status, wait_s, watch, slot)


async def _wait_on_watch(
    call: ToolCall, status: StatementStatus, wait_s: int, watch: Watch, slot: StreamSlot
) -> StatementStatus:
    """Wait as `StatementReader.wait_on_watch` does, and report progress if requested."""
    reader, signals = call.services.statements.reader, call.services.statements.control.signals
    now = asyncio.get_running_loop().time
    started = now()
    while not status.state.is_terminal and not signals.waits_are_over:
        left_s = started + wait_s - now()
        if left_s <= 0:
            break
        step_s = min(left_s, _PROGRESS_EVERY_S) if call.wants_progress else left_s
        status = await reader.wait_on_watch(status, step_s, watch, slot)
        if status.state in ACTIVE:
            message = f"{status.state.value}: {status.rows} rows so far"
            await call.context.report_progress(round(now() - started, 1), float(wait_s), message)
    return status


def _warning(recorded: RecordedStatement) -> str | None:
    handle = recorded.record.handle
    if handle.statements_count <= 1:
        return None
    return f"Only statement 1 of {handle.statements_count} was run. Send each statement in its own call."
