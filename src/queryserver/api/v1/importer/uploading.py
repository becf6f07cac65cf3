"""Upload of a file that is to be imported (Contract importer 3)."""

from typing import Any

from fastapi import APIRouter, Response

from queryserver.api.answers import answer, importer_failures, moment
from queryserver.api.multipart_bodies import MULTIPART, announced_bytes, multipart_type, pieces
from queryserver.api.unknown_fields import came, came_unread
from queryserver.api.v1.importer.calls import ImporterCall, StreamedRoute, require_importer
from queryserver.domain.errors.base import MissingParameter
from queryserver.domain.errors.files import not_multipart
from queryserver.formats.multipart_stream import MultipartStream
from queryserver.schemas import generated as wire

router = APIRouter(prefix="/api/v1/importer", tags=["importer"], route_class=StreamedRoute)

_FIELD = "file"
_MISSING = "No file was submitted."
_FILE: dict[str, Any] = {
    "type": "object",
    "required": [_FIELD],
    "properties": {_FIELD: {"type": "string", "format": "binary"}},
}


@router.post(
    "/upload/file",
    response_model=wire.ImportedFile,
    status_code=201,
    responses=importer_failures(429),
    openapi_extra={"requestBody": {"content": {MULTIPART: {"schema": _FILE}}}},
    summary="Upload a file to import",
)
async def upload_file(call: ImporterCall) -> Response:
    """Keep a file for its owner until it was not used for a day. Spec §4, Contract importer 3."""
    uploads = call.services.importing.uploads
    content_type = multipart_type(call.request)
    if content_type is None:
        raise not_multipart(f"An upload is {MULTIPART}.")
    length = announced_bytes(call.request)
    if length == 0:
        raise MissingParameter(_MISSING)
    with call.services.streams.place(call.user) as place, call.services.metrics.upload():
        room_bytes = await uploads.admit(call.user, length)
        stream = MultipartStream(pieces(call.request), content_type)
        name = await _file_name(stream)
        content = place.rechecked(stream.content(), require_importer)
        received = await uploads.receive(call.user, name, content, room_bytes=room_bytes)
    came_unread(call.request.scope)
    came(call.request.scope, (field for field, _ in stream.fields))
    return answer(
        wire.ImportedFile(
            file_path=str(received.reference), size=received.size_bytes, expires_at=moment(received.expires_at) or ""
        ),
        status=201,
    )


async def _file_name(stream: MultipartStream) -> str:
    """Raises MissingParameter, and as `MultipartStream.file_name`."""
    try:
        name = await stream.file_name()
    except MissingParameter:
        raise MissingParameter(_MISSING) from None
    if stream.file_field != _FIELD:
        raise MissingParameter(_MISSING)
    return name
