"""Calls for results: rows, columns, size and downloads. They read only the stored result, never the engine."""

from collections.abc import AsyncGenerator
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from fastapi import Request, Response

from queryserver.api import responses
from queryserver.api.dependencies import (
    DownloadsDep,
    ReadUser,
    ResultDownloader,
    ResultReaderDep,
    SettingsDep,
    StatementReaderDep,
    StreamsDep,
    ThreadsDep,
    editor_fields,
)
from queryserver.api.routes import FILE, contents, editor_group, failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests import editor as requests
from queryserver.api.v1.editor.status import (
    cell_form,
    column_meta,
    failure_body,
    failure_response,
    numbers_as_text,
    page_response,
    requested_operation_id,
)
from queryserver.errors.statements import PageRowTooLarge
from queryserver.files.downloads import (
    Conditions,
    Part,
    Version,
    extract_part,
    is_unchanged,
    requested_part,
    wants_part,
)
from queryserver.formats.download.encoder import ContentCoding, DownloadFormat, FileForm
from queryserver.formats.download.stream import PackedStream
from queryserver.formats.download.stream import download as encode
from queryserver.identity.limits import Streams
from queryserver.identity.model import User
from queryserver.statements.downloads import Downloads, StoredRows
from queryserver.statements.model import FailureDetails, StatementRecord
from queryserver.statements.result_reader import PageRequest
from queryserver.statements.states import ACTIVE
from queryserver.statements.status import parse_operation_id


@dataclass(frozen=True, slots=True)
class ResultSender:
    """The services for sending result files to one caller. `threads` encodes the files."""

    user: User
    downloads: Downloads
    streams: Streams
    threads: Executor


class ResultFile:
    """A result that is sent to one caller as a file in one format."""

    def __init__(
        self, sender: ResultSender, rows: StoredRows, form: FileForm, stored: PackedStream | None, *, headers_only: bool
    ) -> None:
        """`stored` is the encoded file if it already exists. Its size is then known, and ranges can be read directly.

        If `headers_only` is set, no body is sent.
        """
        self._sender = sender
        self._headers_only = headers_only
        self._rows = rows
        self._form = form
        self._stored = stored
        tag = form.entity_tag(rows.status.id) if stored is None else stored.entity_tag(rows.status.id)
        self.version = Version(tag)

    async def whole(self) -> Response:
        if self._stored is not None:
            headers = {"Content-Length": str(self._stored.size_bytes)}
            if self._headers_only:
                described = self.version_headers | self._result_headers | headers
                return Response(media_type=self._form.format.content_type, headers=described)
            return await self._answer(self._pieces(), headers, 200)
        return await self._answer(self._storing_size(self._pieces()), {}, 200)

    async def part(self, conditions: Conditions) -> Response:
        """Return the requested range. Raises RangeNotSatisfiable.

        A file of unknown size is encoded twice: first to determine its size, then to extract the range.
        """
        part = requested_part(conditions, self.version, await self._size())
        if part.is_whole:
            return await self.whole()
        headers = {"Content-Range": part.content_range, "Content-Length": str(part.length)}
        pieces = self._pieces(part) if self._stored is not None else extract_part(self._pieces(), part)
        return await self._answer(pieces, headers, 206)

    async def _size(self) -> int:
        if self._stored is not None:
            return self._stored.size_bytes
        sender = self._sender
        return await sender.downloads.size_of(sender.user, self._rows.status.id, self.version.tag, self._pieces())

    @property
    def version_headers(self) -> dict[str, str]:
        return {"ETag": self.version.tag, "Vary": "Accept-Encoding"}

    async def _answer(self, pieces: AsyncGenerator[bytes], headers: dict[str, str], status: int) -> Response:
        audited = self._sender.downloads.audited(self._sender.user, self._rows.status.id, pieces)
        described = self.version_headers | self._result_headers | headers
        return await responses.stream(
            audited, media_type=self._form.format.content_type, headers=described, status=status
        )

    async def _pieces(self, part: Part | None = None) -> AsyncGenerator[bytes]:
        """Yield the whole file, or a range of a stored file."""
        sender = self._sender
        with sender.streams.slot(sender.user) as slot:
            if self._stored is not None:
                file = self._stored.pieces(part.start, part.length) if part else self._stored.pieces()
            else:
                file = encode(self._rows, self._form, threads=sender.threads)
            async with aclosing(file) as pieces:
                async for piece in pieces:
                    await slot.recheck(partial(sender.downloads.require, status=self._rows.status))
                    yield piece

    async def _storing_size(self, pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """Yield the chunks and cache their total size, which makes later range requests cheaper."""
        size = 0
        async with aclosing(pieces):
            async for piece in pieces:
                size += len(piece)
                yield piece
        self._sender.downloads.sizes.put(self.version.tag, size)

    @property
    def _result_headers(self) -> dict[str, str]:
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


router = editor_group()


@router.post("/notebook/api/fetch_result_data", include_in_schema=False)
@router.post(
    "/api/v1/editor/fetch_result_data",
    response_model=wire.ResultResponse | wire.StatementFailure,
    responses=failures(403, 404),
)
async def fetch_result_data(
    user: ReadUser,
    request: Annotated[requests.FetchRequest, editor_fields(requests.FetchRequest)],
    reader: StatementReaderDep,
    results: ResultReaderDep,
    settings: SettingsDep,
) -> Response:
    """Return the next rows of a result, or the rows from `start_row`.

    Clients that parse numbers as 64-bit floating point, such as JavaScript, lose digits of integers beyond 2^53.
    With `big_numbers=text`, columns with such integers contain strings, and `meta` marks them. Spec §4, Contract
    editor 6.1.
    """
    form = cell_form(user, settings, request.escape, request.big_numbers)
    operation_id = await requested_operation_id(reader.access, user, request)
    wanted = PageRequest(
        request.rows, request.start_row, request.start_over, form, request.statement_id, request.max_bytes
    )
    try:
        page = await results.page(user, operation_id, wanted)
    except PageRowTooLarge:
        if request.max_bytes is None:
            raise
        # One row is larger than the page that the client prefers, but may be within the limit of the server.
        page = await results.page(user, operation_id, replace(wanted, rows=1, max_bytes=None))
    if page.status.outcome is not None:
        return await failure_response(reader, page.status)
    if page.is_cut_off:
        return _cut_off(await reader.access.result_record(user, page.status.id))
    return page_response(page, form)


def _cut_off(record: StatementRecord) -> Response:
    """Return the response to a request for rows after the end of a truncated result.

    The response is a failure, so that clients that read all pages do not mistake the rows for the complete result.
    Contract editor 6.1.
    """
    body, rows = failure_body(record.status, FailureDetails(record.handle, None, None)), record.status.rows
    message = f"{body.message} To accept these rows as the complete result, execute the statement with limit={rows}."
    return responses.json_response(body.model_copy(update={"status": 1, "code": "truncated", "message": message}))


@router.post("/notebook/api/fetch_result_metadata", include_in_schema=False)
@router.post(
    "/api/v1/editor/fetch_result_metadata",
    response_model=wire.ResultMetadataResponse | wire.StatementFailure,
    responses=failures(403, 404),
)
async def fetch_result_metadata(
    user: ReadUser,
    request: Annotated[requests.ResultMetadataRequest, editor_fields(requests.ResultMetadataRequest)],
    reader: StatementReaderDep,
    results: ResultReaderDep,
) -> Response:
    """Return the column names and types of a result. Contract editor 6.2."""
    operation_id = await requested_operation_id(reader.access, user, request)
    status, columns, _ = await results.overview(user, operation_id, request.statement_id)
    if status.outcome is not None:
        return await failure_response(reader, status)
    meta = column_meta(columns, big_numbers_as_text=numbers_as_text(user, request.big_numbers))
    return responses.json_response(wire.ResultMetadataResponse(status=0, result=wire.ResultMetadata(meta=meta)))


@router.post("/notebook/api/fetch_result_size", include_in_schema=False)
@router.post(
    "/api/v1/editor/fetch_result_size",
    response_model=wire.ResultSizeResponse | wire.StatementFailure,
    responses=failures(403, 404),
)
async def fetch_result_size(
    user: ReadUser,
    request: Annotated[requests.ResultRequest, editor_fields(requests.ResultRequest)],
    reader: StatementReaderDep,
    results: ResultReaderDep,
) -> Response:
    """Return the number of rows and bytes of a result once its statement has ended. Contract editor 6.2."""
    operation_id = await requested_operation_id(reader.access, user, request)
    status, _, size_bytes = await results.overview(user, operation_id, request.statement_id)
    if status.outcome is not None:
        return await failure_response(reader, status)
    is_active = status.state in ACTIVE
    size = wire.ResultSize(
        rows=None if is_active else status.rows,
        size=None if is_active else size_bytes,
        message="Result status is not available" if is_active else status.message,
        truncated=status.truncated_reason is not None,
    )
    return responses.json_response(wire.ResultSizeResponse(status=0, result=size))


@router.get(
    "/api/v1/editor/download/{operation_id:name}",
    response_class=Response,
    responses=contents(*(one.content_type for one in DownloadFormat), words=FILE) | failures(403, 409, 410, 416),
)
async def download_result(
    http: Request,
    operation_id: str,
    user: ResultDownloader,
    request: Annotated[requests.DownloadParameters, editor_fields(requests.DownloadParameters)],
    downloads: DownloadsDep,
    streams: StreamsDep,
    threads: ThreadsDep,
) -> Response:
    """Stream the stored rows as a file in one of seven formats, or the part of the file that `Range` requests.

    Contract editor 8.2.
    """
    is_packed = request.packed()
    rows = await downloads.open(
        user,
        parse_operation_id(operation_id),
        statement_id=request.statement_id,
        allow_truncated=request.allow_truncated,
    )
    kind = DownloadFormat(request.format)
    coding = ContentCoding.IDENTITY if kind.is_compressed or is_packed else responses.coding_for(http)
    stored = None
    if is_packed:
        finding = downloads.packed(user, rows, threads=threads.rendering)
        stored = await responses.while_connected(http, finding)
    sender = ResultSender(user, downloads, streams, threads.rendering)
    form = FileForm(kind, request.guard, coding, "lz4" if is_packed else "")
    file = ResultFile(sender, rows, form, stored, headers_only=responses.is_headers_only(http))
    conditions = responses.conditions_of(http)
    if is_unchanged(conditions, file.version):
        return Response(status_code=304, headers=file.version_headers)
    if responses.is_headers_only(http) or not wants_part(conditions, file.version):
        return await file.whole()
    return await responses.while_connected(http, file.part(conditions))
