"""Uploads, in one request and in parts (Contract storage 9)."""

from fastapi import Response

from queryserver.api.answers import answer, moment
from queryserver.api.bodies import announced_bytes, came
from queryserver.api.calls import PathGroup
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas import requests
from queryserver.api.v1.storage.calls import StorageCall, StorageRoute, StreamedStorageRoute, file_call
from queryserver.api.v1.storage.shapes import EntryShapes
from queryserver.files.part_uploads import CompletionRequest, PartRequest, contiguous, missing_parts, received
from queryserver.files.upload_repository import PartUpload
from queryserver.files.uploads import FileUpload

router = PathGroup(StorageRoute)


@router.operation("upload_file", kind=StreamedStorageRoute)
async def upload_file(call: StorageCall) -> Response:
    """Store a file; under its name it is complete or not there. Spec §4, Contract storage 9.1."""
    storage = call.services.storage
    length = announced_bytes(call.request)
    storage.upload_rules.admit(body_bytes=length)
    with call.services.metrics.uploads.track_inprogress(), call.services.streams.place(call.caller.user) as place:
        given, body, name = await file_call(
            call, file_fields=requests.FILE_NAMES, leading_fields=requests.LEADING_NAMES
        )
        asked = given.read(requests.UploadRequest)
        file = FileUpload(
            directory=storage.stores.path(asked.dest, parameter="dest"),
            name=name,
            overwrite=asked.overwrite,
            sha256=None if asked.sha256 is None else bytes.fromhex(asked.sha256),
            size_bytes=length,
        )
        content = place.rechecked(
            body.content(), lambda user: storage.stores.require(call.caller, user, file.directory.scheme)
        )
        try:
            entry, sha256 = await storage.uploads.receive(call.caller, file, content)
        finally:
            came(call.request.scope, dict(body.fields))  # those behind the file too
    shapes = EntryShapes.of(call.services.settings, file.directory.scheme)
    return answer(
        wire.UploadResponse(
            status=0,
            path=shapes.root + entry.path,
            data="",
            size=entry.size_bytes,
            sha256=sha256.hex(),
            next=None,
            result=wire.FileEntry.model_validate(shapes.entry(entry)),
            file_stats=wire.FlatFileEntry.model_validate(shapes.flat(entry)),
        )
    )


class QueryTooRoute(StorageRoute):
    """A POST that reads all its fields from the query string as well."""

    query_too = None


@router.operation("upload_part", kind=StreamedStorageRoute)
async def upload_part(call: StorageCall) -> Response:
    """Keep a part; the same one again changes nothing. Contract storage 9.2."""
    call.services.storage.upload_rules.admit()
    stores = call.services.storage.stores
    with call.services.metrics.uploads.track_inprogress(), call.services.streams.place(call.caller.user) as place:
        read, body, _ = await file_call(call)
        given = _given(call, read.read(requests.UploadPartRequest))
        content = place.rechecked(
            body.content(), lambda user: stores.require(call.caller, user, given.directory.scheme)
        )
        try:
            upload = await call.services.storage.part_uploads.receive(call.caller, given, content)
        finally:
            came(call.request.scope, dict(body.fields))
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


@router.operation("get_upload", kind=StreamedStorageRoute)
async def upload_state(call: StorageCall) -> Response:
    """What has arrived, on any server and after any restart. Contract storage 9.2."""
    asked = call.read(requests.UploadStateRequest)
    upload = await call.services.storage.part_uploads.state(call.caller, asked.qquuid)
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


@router.operation("discard_upload", kind=StreamedStorageRoute)
async def discard_upload(call: StorageCall) -> Response:
    """Delete the parts of an upload that were sent. Contract storage 9.2."""
    asked = call.read(requests.UploadStateRequest)
    target = await call.services.storage.part_uploads.discard(call.caller, asked.qquuid)
    return answer(wire.PathResponse(status=0, path=str(target)))


@router.operation("complete_upload", kind=QueryTooRoute)
async def complete_upload(call: StorageCall) -> Response:
    """Make the parts one file; once it is done, the same answer again. Contract storage 9.2."""
    asked = call.read(requests.UploadCompleteRequest)
    said = CompletionRequest(
        directory=None if asked.dest is None else call.services.storage.stores.path(asked.dest, parameter="dest"),
        file_name=asked.qqfilename,
        total_bytes=asked.qqtotalfilesize,
        parts=asked.qqtotalparts,
        overwrite=asked.overwrite,
    )
    sha256 = None if asked.sha256 is None else bytes.fromhex(asked.sha256)
    uploads = call.services.storage.part_uploads
    return _completed(call, await uploads.complete(call.caller, asked.qquuid, said, sha256=sha256))


def _given(call: StorageCall, asked: requests.UploadPartRequest) -> PartRequest:
    return PartRequest(
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
            result=wire.FileEntry.model_validate(shapes.entry(upload.result)),
            success=True,
            data="Success",
            next=None,
        )
    )
