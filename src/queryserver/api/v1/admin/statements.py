"""statements: what runs, whose, since when, and stopping it (Contract platform 7.9)."""

from fastapi import APIRouter, Response

from queryserver.api.answers import answer, failures, moment
from queryserver.api.platform_calls import AdminCall, AdminRoute
from queryserver.domain.statement_overview import OverviewEntry, OverviewFilter
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import StatementListParameters, query_parameters
from queryserver.services.statements.status import parse_operation_id

router = APIRouter(prefix="/api/v1", tags=["admin"], route_class=AdminRoute)


@router.get(
    "/admin/statements",
    response_model=wire.AdminStatementsResponse,
    responses=failures(400, 403),
    openapi_extra={"parameters": query_parameters(StatementListParameters)},
    summary="Statements of all users",
)
async def list_statements(call: AdminCall) -> Response:
    """Newest first, without their texts; by default those that wait or run."""
    asked = await call.read(StatementListParameters)
    chosen = OverviewFilter(asked.states, asked.user, asked.connector, asked.older_than, asked.after)
    page, following = await call.services.statement_administration.page(chosen, limit=asked.limit)
    return answer(
        wire.AdminStatementsResponse(status=0, statements=[_shown(entry) for entry in page], next_after=following)
    )


@router.get(
    "/admin/statements/{operation_id:name}",
    response_model=wire.AdminStatementResponse,
    responses=failures(403, 404),
    summary="One statement of any user",
)
async def show_statement(call: AdminCall, operation_id: str) -> Response:
    """With its text; an audit event says that it was shown."""
    administration = call.services.statement_administration
    found = await administration.details(parse_operation_id(operation_id), by=call.user.username)
    return answer(
        wire.AdminStatementResponse(
            status=0,
            statement=_shown(found.entry),
            text=found.statement,
            text_is_cut=found.text_is_cut,
            database=found.database,
            message=found.message,
            row_limit=found.row_limit,
            timeout_s=found.timeout_s,
            deadline=moment(found.deadline) or "",
        )
    )


@router.post(
    "/admin/statements/{operation_id:name}/cancel",
    response_model=wire.AdminCancelResponse,
    responses=failures(400, 403, 404, 413, 415),
    summary="Cancel a statement of any user",
)
async def cancel_statement(call: AdminCall, operation_id: str) -> Response:
    """Waits up to `editor.cancel_wait_s` for its end. No effect on a statement that has ended."""
    services = call.services
    entry = await services.statement_administration.stop(
        parse_operation_id(operation_id),
        by=call.user.username,
        wait_s=services.settings.editor.cancel_wait.total_seconds(),
    )
    return answer(wire.AdminCancelResponse(status=0, statement=_shown(entry)))


def _shown(entry: OverviewEntry) -> wire.AdminStatement:
    times = entry.times
    return wire.AdminStatement(
        id=str(entry.id),
        history_id=entry.history_id,
        user=entry.user,
        connector=entry.connector,
        dialect=entry.dialect,
        state=entry.state.value,
        submitted=moment(times.submitted) or "",
        started=moment(times.started),
        ended=moment(times.ended),
        elapsed_ms=round(times.elapsed.total_seconds() * 1000),
        queued_ms=round(times.queued.total_seconds() * 1000),
        rows=entry.rows,
        bytes=entry.size_bytes,
        progress=entry.progress,
        server=entry.server,
        session_id=entry.session_id,
        error_code=entry.error_code,
        cancel_requested=entry.cancel_requested,
        canceled_by=entry.canceled_by,
        is_import=entry.is_import,
    )
