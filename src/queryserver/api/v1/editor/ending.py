"""cancel_statement and close_statement."""

from fastapi import APIRouter, Response

from queryserver.api.answers import accepts, answer, failures
from queryserver.api.dependencies import AuthenticatedCall, CallRoute
from queryserver.api.v1.editor import shapes
from queryserver.api.v1.editor.naming import operation_of
from queryserver.domain.statement import ACTIVE, StatementState
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import EndRequest

router = APIRouter(prefix="/api/v1", tags=["editor"], route_class=CallRoute)

_FAILURES = failures(400, 403, 404, 413, 415)


@router.post(
    "/editor/cancel_statement",
    response_model=wire.CancelResponse,
    responses=_FAILURES,
    openapi_extra=accepts(EndRequest),
    summary="Stop a statement",
)
async def cancel_statement(call: AuthenticatedCall) -> Response:
    """Stop the work at the engine and wait a while for its confirmation. Contract editor 7.2."""
    operation_id = await operation_of(call, await call.read(EndRequest))
    status = await call.services.ending.cancel(call.user, operation_id)
    return answer(
        wire.CancelResponse(status=0, result=wire.ActionResult(status=0), query_status=shapes.query_status(status))
    )


@router.post(
    "/editor/close_statement",
    response_model=wire.CloseResponse,
    responses=_FAILURES,
    openapi_extra=accepts(EndRequest),
    summary="Delete a result now",
)
async def close_statement(call: AuthenticatedCall) -> Response:
    """Delete the result, or stop the statement; logs and history stay. Contract editor 7.3."""
    operation_id = await operation_of(call, await call.read(EndRequest))
    before = await call.services.ending.close(call.user, operation_id)
    closed = before in ACTIVE or before is StatementState.AVAILABLE
    message = "Query already expired." if before is StatementState.EXPIRED else "Query closed."
    return answer(wire.CloseResponse(status=0, result=wire.ActionResult(status=0 if closed else -1), message=message))
