"""Calls that upload a file in one request or in parts (Contract storage 9)."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

from fastapi import Response

from queryserver.api.dependencies import (
    FileUploadsDep,
    MetricsDep,
    PartUploadsDep,
    SettingsDep,
    StoresDep,
    StreamsDep,
    UploadRulesDep,
    dependency,
)
from queryserver.api.responses import json_response, utc_text
from queryserver.api.routes import failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests import storage as requests
from queryserver.api.v1.storage.dependencies import (
    EntryShapes,
    FilesWriter,
    UploadBody,
    storage_fields,
    storage_group,
    upload_body,
)
from queryserver.files.access import Caller, Stores
from queryserver.files.part_uploads import (
    CompletionRequest,
    PartRequest,
    contiguous_bytes,
    missing_parts,
    received_ranges,
)
from queryserver.files.upload_repository import PartUpload
from queryserver.files.uploads import FileUpload, UploadRules
from queryserver.identity.limits import Streams, StreamSlot
from queryserver.platform.metrics import Metrics
from queryserver.platform.settings.tree import Settings

router = storage_group()

_UploadState = Annotated[requests.UploadStateRequest, storage_fields(requests.UploadStateRequest, query_too=None)]
_FAILURES = failures(403, 404, 408, 409, 422, 502, 507)


@dataclass(frozen=True, slots=True)
class _Admission:
    rules: UploadRules
    streams: Streams
    metrics: Metrics

    @contextmanager
    def admitted(self, caller: Caller, body_bytes: int | None = None) -> Generator[StreamSlot]:
        """Admit an upload, and hold a stream slot until the block ends.

        Raises upload_disabled, file_too_large, TooManyStreams.
        """
        self.rules.admit(body_bytes=body_bytes)
        with self.metrics.uploads.track_inprogress(), self.streams.slot(caller.user) as slot:
            yield slot


async def _admission(rules: UploadRulesDep, streams: StreamsDep, metrics: MetricsDep) -> _Admission:
    return _Admission(rules, streams, metrics)


AdmissionDep = Annotated[_Admission, dependency(_admission)]


@router.post("/upload/file", response_model=wire.UploadResponse, responses=_FAILURES)
async def upload_file(
    caller: FilesWriter,
    body: Annotated[
        UploadBody[requests.UploadRequest],
        upload_body(requests.UploadRequest, file_fields=requests.FILE_NAMES, leading_fields=requests.LEADING_NAMES),
    ],
    admission: AdmissionDep,
    stores: StoresDep,
    uploads: FileUploadsDep,
    settings: SettingsDep,
) -> Response:
    """Upload a file atomically: it appears under its name only once it is complete. Spec §4, Contract storage 9.1."""
    with admission.admitted(caller, body.announced_bytes) as slot:
        request, name = await body.start()
        file = FileUpload(
            directory=stores.path(request.dest, parameter="dest"),
            name=name,
            overwrite=request.overwrite,
            sha256=None if request.sha256 is None else bytes.fromhex(request.sha256),
            size_bytes=body.announced_bytes,
        )
        content = slot.rechecked(
            body.content(), lambda user: stores.require_rights(caller, user, file.directory.scheme)
        )
        try:
            entry, sha256 = await uploads.receive(caller, file, content)
        finally:
            body.note_fields()
    shapes = EntryShapes.of(settings, file.directory.scheme)
    return json_response(
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


@router.post(
    "/upload/chunks", response_model=wire.UploadPartResponse | wire.UploadCompleteResponse, responses=_FAILURES
)
async def upload_part(
    caller: FilesWriter,
    body: Annotated[UploadBody[requests.UploadPartRequest], upload_body(requests.UploadPartRequest)],
    admission: AdmissionDep,
    stores: StoresDep,
    uploads: PartUploadsDep,
    settings: SettingsDep,
) -> Response:
    """Upload a part of a file. Sending the same part again has no effect. Contract storage 9.2."""
    with admission.admitted(caller) as slot:
        request, _ = await body.start()
        part = _part(stores, request)
        content = slot.rechecked(
            body.content(), lambda user: stores.require_rights(caller, user, part.directory.scheme)
        )
        try:
            upload = await uploads.receive(caller, part, content)
        finally:
            body.note_fields()
    if part.is_whole:
        return _completed(settings, upload)
    return json_response(
        wire.UploadPartResponse(
            status=0,
            uuid=str(upload.client_uuid),
            path=str(upload.terms.target),
            part=part.index,
            received=received_ranges(upload),
            offset=contiguous_bytes(upload),
        )
    )


@router.get("/upload/chunks", response_model=wire.UploadStateResponse, responses=failures(403, 404))
async def get_upload(caller: FilesWriter, request: _UploadState, uploads: PartUploadsDep) -> Response:
    """Return which parts of an upload have arrived. Every server returns the same state, even after a restart.

    Contract storage 9.2.
    """
    upload = await uploads.state(caller, request.qquuid)
    return json_response(
        wire.UploadStateResponse(
            status=0,
            uuid=str(upload.client_uuid),
            path=str(upload.terms.target),
            offset=contiguous_bytes(upload),
            received=received_ranges(upload),
            missing_parts=list(missing_parts(upload)),
            total_size=upload.terms.plan.size_bytes,
            expires_at=utc_text(upload.expires_at) or "",
        )
    )


@router.delete("/upload/chunks", response_model=wire.PathResponse, responses=failures(403, 404, 409, 502))
async def discard_upload(caller: FilesWriter, request: _UploadState, uploads: PartUploadsDep) -> Response:
    """Cancel an upload and delete its parts. Contract storage 9.2."""
    target = await uploads.discard(caller, request.qquuid)
    return json_response(wire.PathResponse(status=0, path=str(target)))


@router.post(
    "/upload/complete", response_model=wire.UploadCompleteResponse, responses=failures(403, 404, 409, 422, 502, 507)
)
async def complete_upload(
    caller: FilesWriter,
    request: Annotated[requests.UploadCompleteRequest, storage_fields(requests.UploadCompleteRequest, query_too=None)],
    stores: StoresDep,
    uploads: PartUploadsDep,
    settings: SettingsDep,
) -> Response:
    """Assemble the file from its parts. Repeated calls return the same response. Contract storage 9.2."""
    completion = CompletionRequest(
        directory=None if request.dest is None else stores.path(request.dest, parameter="dest"),
        file_name=request.qqfilename,
        total_bytes=request.qqtotalfilesize,
        parts=request.qqtotalparts,
        overwrite=request.overwrite,
    )
    sha256 = None if request.sha256 is None else bytes.fromhex(request.sha256)
    return _completed(settings, await uploads.complete(caller, request.qquuid, completion, sha256=sha256))


def _part(stores: Stores, request: requests.UploadPartRequest) -> PartRequest:
    return PartRequest(
        client_uuid=request.qquuid,
        directory=stores.path(request.dest, parameter="dest"),
        file_name=request.qqfilename,
        index=request.qqpartindex,
        offset=request.qqpartbyteoffset,
        total_bytes=request.qqtotalfilesize,
        parts=request.qqtotalparts,
        part_bytes=request.qqchunksize,
        overwrite=request.overwrite,
        sha256=None if request.sha256 is None else bytes.fromhex(request.sha256),
    )


def _completed(settings: Settings, upload: PartUpload) -> Response:
    if upload.result is None:
        raise AssertionError("a completed upload has a result")
    shapes = EntryShapes.of(settings, upload.terms.target.scheme)
    return json_response(
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
