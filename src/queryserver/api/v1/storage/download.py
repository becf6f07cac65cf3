"""download: a stored file, or a part of it, as it is (Contract storage 5.5)."""

from datetime import UTC
from email.utils import format_datetime

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from queryserver.api.answers import failures
from queryserver.api.conditions import conditions_of
from queryserver.api.streaming import HEADERS_ONLY, stream
from queryserver.api.v1.storage.calls import StorageCall, StorageRoute
from queryserver.domain.errors.base import MissingParameter
from queryserver.domain.files import FileStatus, StoragePath
from queryserver.domain.storage_paths import decoded_path, repaired
from queryserver.formats.media_types import content_disposition, is_harmless, media_type_of
from queryserver.schemas.requests import query_parameters
from queryserver.schemas.requests.storage_viewing import DispositionParameters, DownloadFileParameters
from queryserver.services.ranges import Part
from queryserver.services.storage.downloading import entity_tag

router = APIRouter(prefix="/api/v1/storage", tags=["storage"], route_class=StorageRoute)

_INLINE = "inline"
_BINARY = {"schema": {"type": "string", "format": "binary"}}
# The name says what a file is, so any type may come.
_BYTES = {"application/octet-stream": _BINARY, "*/*": _BINARY}
_RESPONSES = {
    **failures(400, 403, 404, 416, 429, 502),
    200: {"content": _BYTES, "description": "The file."},
    206: {"content": _BYTES, "description": "The part that `Range` asks for."},
    304: {"description": "The caller has this version."},
}


@router.get(
    "/download={path:raw}",
    responses=_RESPONSES,
    response_class=StreamingResponse,
    openapi_extra={"parameters": query_parameters(DispositionParameters)},
    summary="A file",
)
async def download_path(call: StorageCall, path: str) -> Response:
    """The bytes of a file, streamed; with `Range` a part of them. Spec §4, Contract storage 5.5."""
    return await _download(call, decoded_path(path), call.read(DispositionParameters))


@router.get(
    "/download",
    responses=_RESPONSES,
    response_class=StreamingResponse,
    openapi_extra={"parameters": query_parameters(DownloadFileParameters)},
    summary="A file, by parameter",
)
async def download(call: StorageCall) -> Response:
    """The bytes of a file, streamed; with `Range` a part of them. Contract storage 5.5."""
    asked = call.read(DownloadFileParameters)
    return await _download(call, repaired(asked.path or ""), asked)


async def _download(call: StorageCall, text: str, asked: DispositionParameters) -> Response:
    if not text:
        raise MissingParameter("path is required.")
    path = call.services.storage.stores.path_or_root(text)
    headers_only = bool(call.request.scope.get(HEADERS_ONLY))
    downloads = call.services.storage.downloads
    found = await downloads.find(call.caller, path, conditions_of(call.request), headers_only=headers_only)
    headers = _version(call, found.status)
    part = found.part
    if part is None:
        return Response(status_code=304, headers=headers)
    headers |= _description(path, part, is_inline=asked.disposition == _INLINE)
    status = 200 if part.is_whole else 206
    if headers_only:
        return Response(status_code=status, headers=headers)
    return await stream(downloads.body(call.caller, found, part), headers=headers, status=status)


def _version(call: StorageCall, status: FileStatus) -> dict[str, str]:
    """What says which version of the file it is."""
    headers = {
        "ETag": entity_tag(status),
        "Cache-Control": call.services.settings.filebrowser.file_download_cache_control,
    }
    if status.modified_at is not None:
        headers["Last-Modified"] = format_datetime(status.modified_at.astimezone(UTC), usegmt=True)
    return headers


def _description(path: StoragePath, part: Part, *, is_inline: bool) -> dict[str, str]:
    media_type = media_type_of(path.name)
    headers = {
        "Content-Type": media_type,
        "Content-Length": str(part.length),
        "Accept-Ranges": "bytes",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Content-Disposition": content_disposition(path.name, is_inline=is_inline and is_harmless(media_type)),
    }
    return headers if part.is_whole else headers | {"Content-Range": part.content_range}
