"""download: a finished result as a file."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from queryserver.api.answers import failures
from queryserver.api.dependencies import AuthenticatedCall, Call, CallRoute
from queryserver.api.streaming import stream
from queryserver.domain.statement import StatementStatus
from queryserver.formats.download import DownloadFormat
from queryserver.formats.download import download as encode
from queryserver.schemas.requests import DownloadParameters, query_parameters
from queryserver.services.statements.access import parse_operation_id
from queryserver.services.statements.downloading import StoredRows

router = APIRouter(prefix="/api/v1", tags=["editor"], route_class=CallRoute)

_FILE = {
    200: {
        "content": {one.content_type: {"schema": {"type": "string", "format": "binary"}} for one in DownloadFormat},
        "description": "The file.",
    }
}


@router.get(
    "/editor/download/{operation_id:name}",
    responses={**failures(400, 403, 404, 409, 410, 429), **_FILE},
    response_class=StreamingResponse,
    openapi_extra={"parameters": query_parameters(DownloadParameters)},
    summary="A finished result as a file",
)
async def download(call: AuthenticatedCall, operation_id: str) -> Response:
    """The stored rows in one of six formats, streamed from the spool. Contract editor 8.2."""
    asked = await call.read(DownloadParameters)
    kind = DownloadFormat(asked.format)
    downloads = call.services.downloads
    rows = await downloads.open(call.user, parse_operation_id(operation_id))
    return await stream(
        downloads.audited(call.user, rows.status.id, _file(call, rows, kind, guard=asked.guard)),
        media_type=kind.content_type,
        headers=_headers(rows.status, kind, guard=asked.guard),
    )


async def _file(call: Call, rows: StoredRows, kind: DownloadFormat, *, guard: bool) -> AsyncGenerator[bytes]:
    downloads = call.services.downloads
    with call.services.streams.place(call.user) as place:
        async with aclosing(encode(rows, kind, threads=call.services.threads.rendering, guard=guard)) as pieces:
            async for piece in pieces:
                await place.recheck(lambda user: downloads.require(user, rows.status))
                yield piece


def _headers(status: StatementStatus, kind: DownloadFormat, *, guard: bool) -> dict[str, str]:
    reason = status.truncated_reason
    headers = {
        "Content-Disposition": f'attachment; filename="query-{status.history_id}.{kind.value}"',
        "ETag": f'"{status.id}-{kind.value}{"-guarded" if guard else ""}"',
        "X-Result-Rows": str(status.rows),
        "X-Result-Truncated": "true" if reason else "false",
    }
    return headers | ({"X-Result-Truncated-Reason": reason.value} if reason else {})
