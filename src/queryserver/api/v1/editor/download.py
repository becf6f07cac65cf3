"""download: a finished result as a file."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from queryserver.api.answers import failures
from queryserver.api.conditions import coding_for, conditions_of
from queryserver.api.dependencies import AuthenticatedCall, Call, CallRoute
from queryserver.api.presence import while_connected
from queryserver.api.streaming import HEADERS_ONLY, stream
from queryserver.formats.download import ContentCoding, DownloadFormat, FileForm
from queryserver.formats.download import download as encode
from queryserver.schemas.requests import DownloadParameters, query_parameters
from queryserver.services.ranges import Conditions, Version, is_unchanged, only_part, requested_part, wants_part
from queryserver.services.statements.downloading import StoredRows
from queryserver.services.statements.status import parse_operation_id

router = APIRouter(prefix="/api/v1", tags=["editor"], route_class=CallRoute)

_CONTENT = {one.content_type: {"schema": {"type": "string", "format": "binary"}} for one in DownloadFormat}
_FILE = {
    200: {"content": _CONTENT, "description": "The file."},
    206: {"content": _CONTENT, "description": "The part that `Range` requests."},
    304: {"description": "The caller has this version."},
}


@router.get(
    "/editor/download/{operation_id:name}",
    responses={**failures(400, 403, 404, 409, 410, 416, 429), **_FILE},
    response_class=StreamingResponse,
    openapi_extra={"parameters": query_parameters(DownloadParameters)},
    summary="A finished result as a file",
)
async def download(call: AuthenticatedCall, operation_id: str) -> Response:
    """The stored rows in one of seven formats, streamed; with `Range` a part of the file. Contract editor 8.2."""
    asked = await call.read(DownloadParameters)
    downloads = call.services.downloads
    rows = await downloads.open(call.user, parse_operation_id(operation_id), allow_truncated=asked.allow_truncated)
    kind = DownloadFormat(asked.format)
    coding = ContentCoding.IDENTITY if kind.is_compressed else coding_for(call.request)
    file = _File(call, rows, FileForm(kind, asked.guard, coding))
    conditions = conditions_of(call.request)
    if is_unchanged(conditions, file.version):
        return Response(status_code=304, headers=file.version_headers)
    if call.request.scope.get(HEADERS_ONLY) or not wants_part(conditions, file.version):
        return await file.whole()
    return await while_connected(call.request, file.part(conditions))


class _File:
    """One result in one form, on its way to one caller."""

    def __init__(self, call: Call, rows: StoredRows, form: FileForm) -> None:
        self._call = call
        self._rows = rows
        self._form = form
        self.version = Version(form.entity_tag(rows.status.id))

    async def whole(self) -> Response:
        """All of it."""
        return await self._answer(self._kept_size(self._pieces()), {}, 200)

    async def part(self, conditions: Conditions) -> Response:
        """The part that the caller requests. Raises RangeNotSatisfiable.

        A range needs the size of the file: where it was not made before, it is made twice.
        """
        downloads, operation_id = self._call.services.downloads, self._rows.status.id
        size = await downloads.size_of(self._call.user, operation_id, self.version.tag, self._pieces())
        part = requested_part(conditions, self.version, size)
        if part.is_whole:
            return await self.whole()
        headers = {"Content-Range": part.content_range, "Content-Length": str(part.length)}
        return await self._answer(only_part(self._pieces(), part), headers, 206)

    @property
    def version_headers(self) -> dict[str, str]:
        """What names the version."""
        return {"ETag": self.version.tag, "Vary": "Accept-Encoding"}

    async def _answer(self, pieces: AsyncGenerator[bytes], headers: dict[str, str], status: int) -> Response:
        audited = self._call.services.downloads.audited(self._call.user, self._rows.status.id, pieces)
        described = self.version_headers | self._description | headers
        return await stream(audited, media_type=self._form.format.content_type, headers=described, status=status)

    async def _pieces(self) -> AsyncGenerator[bytes]:
        services = self._call.services
        with services.streams.place(self._call.user) as place:
            file = encode(self._rows, self._form, threads=services.threads.rendering)
            async with aclosing(file) as pieces:
                async for piece in pieces:
                    await place.recheck(lambda user: services.downloads.require(user, self._rows.status))
                    yield piece

    async def _kept_size(self, pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """The pieces; their sum makes a later range cheaper."""
        size = 0
        async with aclosing(pieces):
            async for piece in pieces:
                size += len(piece)
                yield piece
        self._call.services.downloads.sizes.put(self.version.tag, size)

    @property
    def _description(self) -> dict[str, str]:
        status, form = self._rows.status, self._form
        reason = status.truncated_reason
        headers = {
            "Accept-Ranges": "bytes",
            "Content-Disposition": f'attachment; filename="query-{status.history_id}.{form.format.value}"',
            "X-Result-Rows": str(status.rows),
            "X-Result-Truncated": "true" if reason else "false",
        }
        if form.coding is not ContentCoding.IDENTITY:
            headers["Content-Encoding"] = form.coding.value
        return headers | ({"X-Result-Truncated-Reason": reason.value} if reason else {})
