"""fetch_result_data, fetch_result_metadata, fetch_result_size: rows from the spool."""

from collections.abc import AsyncGenerator

import orjson
from fastapi import APIRouter, Response

from queryserver.api.answers import accepts, answer, failures, moment
from queryserver.api.dependencies import AuthenticatedCall, CallRoute
from queryserver.api.streaming import OwnedStream
from queryserver.api.v1.editor import shapes
from queryserver.api.v1.editor.naming import operation_of
from queryserver.domain.statement import ACTIVE, StatementState
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import FetchRequest, OperationRequest
from queryserver.services.statements.reading import PageRequest, ResultPage

router = APIRouter(prefix="/api/v1", tags=["editor"], route_class=CallRoute)

_FAILURES = failures(400, 403, 404, 413, 415)
_AT_ONCE_BYTES = 256 * 1024
_NO_ROWS = b'"data":[]'


@router.post(
    "/editor/fetch_result_data",
    response_model=wire.ResultResponse | wire.StatementFailure,
    responses=failures(400, 403, 404, 413, 415, 429),
    openapi_extra=accepts(FetchRequest),
    summary="A batch of rows",
)
async def fetch_result_data(call: AuthenticatedCall) -> Response:
    """Rows from the cursor on, or from `start_row`. Spec §4, Contract editor 6.1."""
    asked = await call.read(FetchRequest)
    operation_id = await operation_of(call, asked)
    escape = call.services.settings.editor.escape_default if asked.escape is None else asked.escape
    page = await call.services.reading.page(
        call.user, operation_id, PageRequest(asked.rows, asked.start_row, asked.start_over, escape)
    )
    if page.status.outcome is not None:
        return shapes.failed(await call.services.following.record(call.user, operation_id))
    return _answer(page, escape=escape)


@router.post(
    "/editor/fetch_result_metadata",
    response_model=wire.ResultMetadataResponse | wire.StatementFailure,
    responses=_FAILURES,
    openapi_extra=accepts(OperationRequest),
    summary="Columns of a result",
)
async def fetch_result_metadata(call: AuthenticatedCall) -> Response:
    """The columns. Contract editor 6.2."""
    operation_id = await operation_of(call, await call.read(OperationRequest))
    status, columns, _ = await call.services.reading.overview(call.user, operation_id)
    if status.outcome is not None:
        return shapes.failed(await call.services.following.record(call.user, operation_id))
    return answer(wire.ResultMetadataResponse(status=0, result=wire.ResultMetadata(meta=shapes.meta(columns))))


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
        message="Result status is not available" if is_active else "",
        truncated=status.truncated_reason is not None,
    )
    return answer(wire.ResultSizeResponse(status=0, result=size))


def _answer(page: ResultPage, *, escape: bool) -> Response:
    """The body, put together around rows that are JSON already; a large one is sent in pieces."""
    head, tail = _envelope(page, escape=escape)
    if page.rendered.size_bytes <= _AT_ONCE_BYTES:
        if page.held is not None:
            page.held.release()
        return Response(head + page.rendered.json + tail, media_type="application/json")
    length = len(head) + page.rendered.size_bytes + len(tail)
    return OwnedStream(_pieces(head, page, tail), b"", "application/json", {"Content-Length": str(length)})


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


def _envelope(page: ResultPage, *, escape: bool) -> tuple[bytes, bytes]:
    """What stands before and behind the rows."""
    status = page.status
    reason = status.truncated_reason
    fields = {
        "has_more": page.has_more,
        "type": "table",
        "isEscaped": escape,
        "meta": shapes.plain_meta(page.columns),
        "data": [],
        "start_row": page.start_row,
        "rows_total": None if status.state in ACTIVE else status.rows,
        "truncated": reason is not None,
        "truncated_reason": reason.value if reason else None,
        "expires_at": moment(status.expires_at) if status.state is StatementState.AVAILABLE else None,
    }
    if page.message:
        fields["message"] = page.message
    # Within a text of JSON the quotes would have backslashes before them.
    head, mark, tail = orjson.dumps({"status": 0, "result": fields}).partition(_NO_ROWS)
    return head + mark[:-2], tail
