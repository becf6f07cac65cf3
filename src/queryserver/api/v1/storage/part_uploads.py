"""Upload of a file in parts (Contract storage 9.2)."""

from collections.abc import Mapping, Sequence

from fastapi import APIRouter, Response

from queryserver.api.answers import accepts, answer, failures, moment
from queryserver.api.v1.storage.calls import StorageCall, StorageRoute, StreamedRoute
from queryserver.api.v1.storage.multipart_calls import file_call
from queryserver.api.v1.storage.shapes import EntryShapes
from queryserver.api.v1.storage.uploading import accepts_file
from queryserver.interfaces.storage_uploads import PartUpload
from queryserver.schemas import generated as wire
from queryserver.schemas.requests.storage_uploading import (
    UploadCompleteRequest,
    UploadPartRequest,
    UploadStateRequest,
)
from queryserver.services.storage.part_terms import GivenPart, contiguous, missing_parts, received
from queryserver.services.storage.part_uploads import SaidOfUpload


class QueryTooRoute(StorageRoute):
    """A POST that reads all its fields from the query string as well."""

    def _from_query(self, query: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[str]]:
        return query


router = APIRouter(prefix="/api/v1/storage/upload", tags=["storage"], route_class=StreamedRoute)
completing = APIRouter(prefix="/api/v1/storage/upload", tags=["storage"], route_class=QueryTooRoute)


@router.post(
    "/chunks",
    response_model=wire.UploadPartResponse | wire.UploadCompleteResponse,
    responses=failures(400, 403, 404, 408, 409, 413, 415, 422, 429, 502, 507),
    openapi_extra=accepts_file(UploadPartRequest.__name__, "file"),
    summary="Upload a part of a file",
)
async def upload_part(call: StorageCall) -> Response:
    """Keep a part; the same one again changes nothing. Contract storage 9.2."""
    call.services.storage.uploading.rules.admit()
    stores = call.services.storage.stores
    with call.services.streams.place(call.caller.user) as place:
        arriving = await file_call(call)
        given = _given(call, arriving.read(UploadPartRequest))
        content = place.rechecked(
            arriving.content, lambda user: stores.require(call.caller, user, given.directory.scheme)
        )
        upload = await call.services.storage.uploading.parts.receive(call.caller, given, content)
    if given.is_whole:
        return _completed(call, upload)
    return answer(
        wire.UploadPartResponse(
            status=0,
            uuid=str(upload.client_uuid),
            path=str(upload.terms.target),
            part=given.index,
            received=received(upload),
            offset=contiguous(upload),
        )
    )


@router.get(
    "/chunks",
    response_model=wire.UploadStateResponse,
    responses=failures(400, 403, 404),
    summary="State of an upload in parts",
)
async def upload_state(call: StorageCall) -> Response:
    """What has arrived, on any server and after any restart. Contract storage 9.2."""
    asked = call.read(UploadStateRequest)
    upload = await call.services.storage.uploading.parts.state(call.caller, asked.qquuid)
    return answer(
        wire.UploadStateResponse(
            status=0,
            uuid=str(upload.client_uuid),
            path=str(upload.terms.target),
            offset=contiguous(upload),
            received=received(upload),
            missing_parts=list(missing_parts(upload)),
            total_size=upload.terms.plan.size_bytes,
            expires_at=moment(upload.expires_at) or "",
        )
    )


@router.delete(
    "/chunks",
    response_model=wire.PathResponse,
    responses=failures(400, 403, 404, 409, 502),
    summary="Give up an upload in parts",
)
async def discard_upload(call: StorageCall) -> Response:
    """Delete the parts of an upload that were sent. Contract storage 9.2."""
    asked = call.read(UploadStateRequest)
    target = await call.services.storage.uploading.parts.discard(call.caller, asked.qquuid)
    return answer(wire.PathResponse(status=0, path=str(target)))


@completing.post(
    "/complete",
    response_model=wire.UploadCompleteResponse,
    status_code=201,
    responses=failures(400, 403, 404, 409, 413, 415, 422, 502, 507),
    openapi_extra=accepts(UploadCompleteRequest),
    summary="Join the parts of an upload",
)
async def complete_upload(call: StorageCall) -> Response:
    """Make the parts one file; once it is done, the same answer again. Contract storage 9.2."""
    asked = call.read(UploadCompleteRequest)
    said = SaidOfUpload(
        directory=None if asked.dest is None else call.services.storage.stores.path(asked.dest, parameter="dest"),
        file_name=asked.qqfilename,
        total_bytes=asked.qqtotalfilesize,
        parts=asked.qqtotalparts,
        overwrite=asked.overwrite,
    )
    sha256 = None if asked.sha256 is None else bytes.fromhex(asked.sha256)
    uploads = call.services.storage.uploading.parts
    return _completed(call, await uploads.complete(call.caller, asked.qquuid, said, sha256=sha256))


def _given(call: StorageCall, asked: UploadPartRequest) -> GivenPart:
    return GivenPart(
        client_uuid=asked.qquuid,
        directory=call.services.storage.stores.path(asked.dest, parameter="dest"),
        file_name=asked.qqfilename,
        index=asked.qqpartindex,
        offset=asked.qqpartbyteoffset,
        total_bytes=asked.qqtotalfilesize,
        parts=asked.qqtotalparts,
        part_bytes=asked.qqchunksize,
        overwrite=asked.overwrite,
        sha256=None if asked.sha256 is None else bytes.fromhex(asked.sha256),
    )


def _completed(call: StorageCall, upload: PartUpload) -> Response:
    if upload.result is None:
        raise AssertionError("an upload that was completed has its entry")
    shapes = EntryShapes.of(call.services.settings, upload.terms.target.scheme)
    return answer(
        wire.UploadCompleteResponse(
            status=0,
            path=str(upload.terms.target),
            uuid=str(upload.client_uuid),
            size=upload.result.size_bytes,
            result=shapes.entry(upload.result),
            success=True,
            data="Success",
            next=None,
        ),
        status=201,
    )
