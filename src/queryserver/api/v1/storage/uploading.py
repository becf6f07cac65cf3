"""Upload of a file in one request (Contract storage 9.1)."""

from typing import Any

from fastapi import APIRouter, Response

from queryserver.api.answers import answer, failures
from queryserver.api.multipart_bodies import announced_bytes
from queryserver.api.v1.storage.calls import StorageCall, StreamedRoute
from queryserver.api.v1.storage.multipart_calls import file_call
from queryserver.api.v1.storage.shapes import EntryShapes
from queryserver.schemas import generated as wire
from queryserver.schemas.requests.storage_uploading import FILE_NAMES, LEADING_NAMES, UploadRequest
from queryserver.services.storage.uploading import ArrivingFile

router = APIRouter(prefix="/api/v1/storage", tags=["storage"], route_class=StreamedRoute)

_BINARY = {"type": "string", "format": "binary"}


def accepts_file(model: str, *names: str) -> dict[str, Any]:
    """What the API description says about a body with a file that goes by one of `names`."""
    fields = {"$ref": f"#/components/schemas/{model}"}
    file = {"type": "object", "properties": dict.fromkeys(names, _BINARY)}
    content = {"multipart/form-data": {"schema": {"allOf": [fields, file]}}}
    return {"requestBody": {"content": content}, "x-request-model": model}


@router.post(
    "/upload/file",
    response_model=wire.UploadResponse,
    status_code=201,
    responses=failures(400, 403, 404, 408, 409, 413, 415, 422, 429, 502, 507),
    openapi_extra=accepts_file(UploadRequest.__name__, *FILE_NAMES),
    summary="Upload a file",
)
async def upload_file(call: StorageCall) -> Response:
    """Store a file; under its name it is complete or not there. Spec §4, Contract storage 9.1."""
    storage = call.services.storage
    length = announced_bytes(call.request)
    storage.uploading.rules.admit(body_bytes=length)
    with call.services.streams.place(call.caller.user) as place:
        arriving = await file_call(call, file_fields=FILE_NAMES, leading_fields=LEADING_NAMES)
        asked = arriving.read(UploadRequest)
        file = ArrivingFile(
            directory=storage.stores.path(asked.dest, parameter="dest"),
            name=arriving.file_name,
            overwrite=asked.overwrite,
            sha256=None if asked.sha256 is None else bytes.fromhex(asked.sha256),
            size_bytes=length,
        )
        content = place.rechecked(
            arriving.content, lambda user: storage.stores.require(call.caller, user, file.directory.scheme)
        )
        uploaded = await storage.uploading.files.receive(call.caller, file, content)
    shapes = EntryShapes.of(call.services.settings, uploaded.path.scheme)
    return answer(
        wire.UploadResponse(
            status=0,
            path=str(uploaded.path),
            data="",
            size=uploaded.entry.size_bytes,
            sha256=uploaded.sha256.hex(),
            next=None,
            result=shapes.entry(uploaded.entry),
            file_stats=shapes.flat(uploaded.entry),
        ),
        status=201,
    )
