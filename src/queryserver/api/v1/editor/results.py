"""fetch_result_data, fetch_result_metadata, fetch_result_size: rows from the spool."""

from fastapi import APIRouter, Response

from queryserver.api.answers import accepts, answer, failures
from queryserver.api.dependencies import AuthenticatedCall, CallRoute
from queryserver.api.v1.editor import shapes
from queryserver.api.v1.editor.naming import operation_of
from queryserver.api.v1.editor.pages import cell_form, numbers_as_text, page_answer
from queryserver.domain.statement import ACTIVE
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import FetchRequest, OperationRequest, ResultMetadataRequest
from queryserver.services.statements.reading import PageRequest

router = APIRouter(prefix="/api/v1", tags=["editor"], route_class=CallRoute)

_FAILURES = failures(400, 403, 404, 413, 415)


@router.post(
    "/editor/fetch_result_data",
    response_model=wire.ResultResponse | wire.StatementFailure,
    responses=failures(400, 403, 404, 413, 415, 429),
    openapi_extra=accepts(FetchRequest),
    summary="A batch of rows",
)
async def fetch_result_data(call: AuthenticatedCall) -> Response:
    """Rows from the cursor on, or from `start_row`. Spec §4, Contract editor 6.1.

    JavaScript, and other readers that make doubles of numbers, lose digits of integers beyond 2^53:
    `big_numbers=text` gives those columns as text, and `meta` says so.
    """
    asked = await call.read(FetchRequest)
    operation_id = await operation_of(call, asked)
    form = cell_form(call, asked)
    page = await call.services.reading.page(
        call.user, operation_id, PageRequest(asked.rows, asked.start_row, asked.start_over, form)
    )
    if page.status.outcome is not None:
        return shapes.failed(await call.services.following.record(call.user, operation_id))
    return page_answer(page, form)


@router.post(
    "/editor/fetch_result_metadata",
    response_model=wire.ResultMetadataResponse | wire.StatementFailure,
    responses=_FAILURES,
    openapi_extra=accepts(ResultMetadataRequest),
    summary="Columns of a result",
)
async def fetch_result_metadata(call: AuthenticatedCall) -> Response:
    """Names and types of the columns of a result. Contract editor 6.2."""
    asked = await call.read(ResultMetadataRequest)
    operation_id = await operation_of(call, asked)
    status, columns, _ = await call.services.reading.overview(call.user, operation_id)
    if status.outcome is not None:
        return shapes.failed(await call.services.following.record(call.user, operation_id))
    meta = shapes.meta(columns, big_numbers_as_text=numbers_as_text(call, asked.big_numbers))
    return answer(wire.ResultMetadataResponse(status=0, result=wire.ResultMetadata(meta=meta)))


@router.post(
    "/editor/fetch_result_size",
    response_model=wire.ResultSizeResponse | wire.StatementFailure,
    responses=_FAILURES,
    openapi_extra=accepts(OperationRequest),
    summary="Size of a result",
)
async def fetch_result_size(call: AuthenticatedCall) -> Response:
    """Stored rows and bytes, once the statement has ended. Contract editor 6.2."""
    operation_id = await operation_of(call, await call.read(OperationRequest))
    status, _, size_bytes = await call.services.reading.overview(call.user, operation_id)
    if status.outcome is not None:
        return shapes.failed(await call.services.following.record(call.user, operation_id))
    is_active = status.state in ACTIVE
    size = wire.ResultSize(
        rows=None if is_active else status.rows,
        size=None if is_active else size_bytes,
        message="Result status is not available" if is_active else status.message,
        truncated=status.truncated_reason is not None,
    )
    return answer(wire.ResultSizeResponse(status=0, result=size))
