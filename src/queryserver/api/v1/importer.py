"""Importer calls (upload, detection, preview, create_table) and their error format (Contract importer)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import orjson
from fastapi import Request, Response

from queryserver import errors
from queryserver.api import bodies
from queryserver.api.dependencies import (
    BodyLimit,
    Caller,
    ConnectorsDep,
    DetectionDep,
    ImportSourcesDep,
    ImportUploadsDep,
    MetricsDep,
    ModelFields,
    PreviewsDep,
    StreamsDep,
    TableCreationsDep,
    ThreadsDep,
    dependency,
    services_of,
)
from queryserver.api.errors import headers_of, http_status, respond
from queryserver.api.errors import json_response as error_response
from queryserver.api.responses import json_response, utc_text, while_connected
from queryserver.api.routes import PathGroup, PlatformRoute, failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests import importer as requests
from queryserver.connectors.registry import Connectors
from queryserver.errors.base import QueryServerError
from queryserver.files.model import repaired_path
from queryserver.formats.cell_types.analysis import Analysis, PreviewColumn, WarningCode
from queryserver.formats.cell_types.value_formats import NO_FORMATS, ValueFormats
from queryserver.formats.delimited.encodings import parse_encoding
from queryserver.formats.detection import ReadingOptions, TextParameters
from queryserver.formats.multipart import MultipartStream
from queryserver.formats.table_files import RECORD_TYPES, SkippedLines
from queryserver.identity.model import IMPORTER, Scope, User
from queryserver.imports.model import PREVIEW_DIALECTS, SQL_TYPES, Origin, engine_names, type_name
from queryserver.imports.plans import BadRowLimit, ColumnRequest, TableRequest
from queryserver.imports.preview import Records, Sheets
from queryserver.imports.uploads import ImportFile, ImportSources

_BY_CLASS: Mapping[type[QueryServerError], tuple[int, str | None]] = {
    errors.ImporterDenied: (403, "permission_denied"),
    errors.InsufficientScope: (403, None),
    errors.PermissionDenied: (400, "permission_denied"),
    errors.EngineForbidden: (400, "permission_denied"),
    errors.PathNotFound: (400, "file_not_found"),
    errors.EntryChanged: (400, "file_not_found"),
    errors.TooManyRequests: (429, "too_many_requests"),
    errors.EngineUnavailable: (500, None),
    errors.EngineTimeout: (500, None),
    errors.EngineError: (400, None),
    errors.InsufficientStorage: (500, None),
    errors.StorageError: (500, "storage_unavailable"),
    errors.ServiceUnavailable: (500, None),
    errors.DetectionFailed: (500, None),
}
"""HTTP status and code by error class, where they differ from STATUS. If the code is None, the error's code is used."""

_BY_CODE: Mapping[str, tuple[int, str]] = {
    **dict.fromkeys(
        (
            *("invalid_path", "invalid_name", "unknown_scheme", "unknown_authority", "storage_not_configured"),
            *("not_a_directory", "not_a_file"),
        ),
        (400, "invalid_parameter"),
    ),
    "upload_aborted": (400, "invalid_body"),
    "too_many_statements": (429, "too_many_statements"),
    "stopping": (503, "stopping"),
}
"""HTTP status and code by error code. An entry takes precedence over that of the error class."""


class ImporterRoute(PlatformRoute):
    """A route whose error responses, including those for wrong methods, have the importer's format."""

    internal_error_code: ClassVar[str] = QueryServerError.code

    def failure(self, request: Request, error: QueryServerError) -> Response:
        """Return the response to a failed call.

        Errors without an entry in the tables above get 400 and keep their code, except internal errors (500).
        """
        if isinstance(error, errors.NotAuthenticated | errors.InvalidFields):
            return respond(request, error)
        general = http_status(error)
        by_class = next((_BY_CLASS[kind] for kind in type(error).__mro__ if kind in _BY_CLASS), None)
        entry = _BY_CODE.get(error.code, by_class)
        if general == 500 and entry is None:
            return self.internal_error(request)
        status, code = entry or (400, None)
        column = error.extra_fields.get("column")
        return _failure(status, code or error.code, error.message, headers_of(error, status), column=column)

    def internal_error(self, request: Request) -> Response:
        del request
        return _failure(500, self.internal_error_code, "Internal error.")

    def wrong_method(self, allow: str) -> Response:
        return _failure(405, "method_not_allowed", f"Use {allow}.", {"Allow": allow})


class DetectionRoute(ImporterRoute):
    """A route whose internal errors have the code of DetectionFailed."""

    internal_error_code = errors.DetectionFailed.code


def _failure(
    status: int, code: str, text: str, headers: Mapping[str, str] | None = None, *, column: int | None = None
) -> Response:
    """Return the response to a failed call. `column` is the position of the refused column in `columns`, from 1."""
    body = {"error": text, "code": code}
    return error_response(body if column is None else body | {"column": column}, status, headers)


_MAX_BODY_BYTES = 1024 * 1024
_TEXT_FIELDS = {"field_separator", "quote_char", "record_separator", "encoding", "comment", "escape"}
_NO_FILE = "No file was submitted."
# Responses up to these sizes are encoded on the event loop: 2,000 columns take about 10 ms.
_MAX_INLINE_CELLS = 2_000
_MAX_INLINE_CHARACTERS = 256 * 1024


class Importer(Caller):
    """Dependency that returns a caller who may import files. Raises ImporterDenied and the errors of `Caller`."""

    async def __call__(self, request: Request) -> User:
        user = await super().__call__(request)
        if not services_of(request).settings.importer.is_enabled:
            raise errors.ImporterDenied("The importer is disabled.")
        _require_importer(user)
        return user


def _require_importer(user: User) -> None:
    if not user.may(IMPORTER):
        raise errors.ImporterDenied("You do not have the right to import files.")


ImporterUser = Annotated[User, dependency(Importer(Scope.IMPORT, is_admin=False))]


def _fields(model: type[requests.ImportFields]) -> Any:
    return dependency(ModelFields(model, BodyLimit("", lambda _: _MAX_BODY_BYTES), parse=requests.parse_import))


router = PathGroup("importer", prefix="/api/v1/importer", route_class=ImporterRoute)
detection_router = PathGroup("importer", prefix="/api/v1/importer", route_class=DetectionRoute)


async def _file(
    sources: ImportSources, user: User, request: requests.MetadataParameters | requests.HeaderParameters
) -> ImportFile:
    # Clients may percent-encode the path of a GET call twice (Contract storage 2.2). This is repaired only for storage
    # paths, because references to uploads contain no characters that are encoded.
    remote = request.import_type is Origin.REMOTE
    file_path = repaired_path(request.file_path) if remote else request.file_path
    return await sources.find(user, request.import_type, file_path)


def _reading_options(request: requests.HeaderParameters) -> ReadingOptions:
    text = TextParameters(**request.model_dump(include=_TEXT_FIELDS))
    formats = NO_FORMATS
    if isinstance(request, requests.ColumnParameters):
        formats = ValueFormats(request.date_format, request.number_format)
        text = replace(text, null_words=request.null_words)
    return ReadingOptions.from_parameters(
        request.file_type, sheet_name=request.sheet_name, formats=formats, skip_rows=request.skip_rows, text=text
    )


def _has_header(request: requests.ColumnParameters) -> bool:
    """Return whether the file has column names. Record files (Parquet, Avro, Arrow, NDJSON) always have them.

    Raises MissingParameter.
    """
    if request.file_type in RECORD_TYPES:
        return True
    if request.has_header is None:
        raise errors.MissingParameter("has_header is required.")
    return request.has_header


def _dialect(
    connectors: Connectors, user: User, request: requests.PreviewParameters | requests.SqlTypesParameters
) -> str:
    """Return the SQL dialect of the column types: `sql_dialect`, or else the connector's dialect.

    Raises MissingParameter, import_connector_not_found, invalid_dialect.
    """
    if request.sql_dialect is not None:
        return request.sql_dialect
    if request.connector is None:
        raise errors.MissingParameter("sql_dialect is required.")
    try:
        dialect = connectors.resolve(user, request.connector).dialect
    except errors.UnknownDialect:
        raise errors.import_connector_not_found(request.connector) from None
    if dialect not in PREVIEW_DIALECTS:
        raise errors.invalid_dialect(
            f"{dialect} is not a valid choice for sql_dialect. Valid values: {', '.join(PREVIEW_DIALECTS)}."
        )
    return dialect


@router.post("/upload/file", status_code=201, response_model=wire.ImportedFile, responses=failures(403))
async def upload_import_file(
    http: Request,
    user: ImporterUser,
    uploads: ImportUploadsDep,
    previews: PreviewsDep,
    streams: StreamsDep,
    metrics: MetricsDep,
) -> Response:
    """Upload a file for the caller's imports. It expires a day after its last use. Spec §4, Contract importer 3."""
    content_type = bodies.multipart_type(http)
    if content_type is None:
        raise errors.not_multipart(f"An upload must be {bodies.MULTIPART}.")
    length = bodies.announced_bytes(http)
    if length == 0:
        raise errors.MissingParameter(_NO_FILE)
    with streams.slot(user) as slot, metrics.uploads.track_inprogress():
        room_bytes = await uploads.admit(user, length)
        previews.warm_up(user.id)
        stream = MultipartStream(bodies.pieces(http), content_type)
        try:
            name = await stream.file_name()
        except errors.MissingParameter:
            raise errors.MissingParameter(_NO_FILE) from None
        if stream.file_field != "file":
            raise errors.MissingParameter(_NO_FILE)
        content = slot.rechecked(stream.content(), _require_importer)
        received = await uploads.receive(user, name, content, room_bytes=room_bytes)
    bodies.note_unread_query(http.scope)
    bodies.note_received(http.scope, dict(stream.fields))
    return json_response(
        wire.ImportedFile(
            file_path=str(received.reference), size=received.size_bytes, expires_at=utc_text(received.expires_at) or ""
        ),
        status=201,
    )


@router.post("/upload/discard", response_model=wire.DiscardedFile, responses=failures(403))
async def discard_import_file(
    user: ImporterUser,
    request: Annotated[requests.DiscardRequest, _fields(requests.DiscardRequest)],
    uploads: ImportUploadsDep,
) -> Response:
    """Remove an uploaded file of the caller before it expires. Contract importer 3.

    Refused with `file_in_use` while an import of the file waits or runs. Discarding it again succeeds.
    """
    return json_response(wire.DiscardedFile(status=0, discarded=await uploads.discard(user, request.file_path)))


@detection_router.get(
    "/file/guess_metadata",
    response_model=wire.DelimitedMetadata | wire.ExcelMetadata | wire.RecordsMetadata,
    responses=failures(403),
)
async def guess_file_metadata(
    http: Request,
    user: ImporterUser,
    request: Annotated[requests.MetadataParameters, _fields(requests.MetadataParameters)],
    sources: ImportSourcesDep,
    detection: DetectionDep,
) -> Response:
    """Detect the type of a file from its content, not from its name. Spec §4, Contract importer 4, 9, 10."""
    encoding = None if request.encoding is None else parse_encoding(request.encoding)
    file = await _file(sources, user, request)
    found = await while_connected(http, detection.metadata(user.id, file, encoding))
    if isinstance(found, Sheets):
        return json_response(wire.ExcelMetadata(type="excel", sheet_names=list(found.names)))
    if isinstance(found, Records):
        return json_response(wire.RecordsMetadata(type=found.type))
    return json_response(
        wire.DelimitedMetadata(
            type=found.type,
            field_separator=found.delimiters.field,
            quote_char=found.delimiters.quote or '"',
            record_separator=found.record_separator,
            encoding=found.encoding,
            confidence=found.confidence,
            warnings=None
            if found.is_encoding_certain
            else [wire.PreviewWarning(code=WarningCode.ENCODING_UNCERTAIN, count=1, rows=[])],
            escape=found.delimiters.escape,
            **_skipped(found.skipped),
        )
    )


def _skipped(skipped: SkippedLines) -> dict[str, Any]:
    """Return the keys `skip_rows` and `comment`, which are None if no such lines are skipped."""
    return {"skip_rows": skipped.first or None, "comment": skipped.comment or None}


@router.get("/file/guess_header", response_model=wire.HeaderGuess, responses=failures(403))
async def guess_file_header(
    http: Request,
    user: ImporterUser,
    request: Annotated[requests.HeaderParameters, _fields(requests.HeaderParameters)],
    sources: ImportSourcesDep,
    previews: PreviewsDep,
) -> Response:
    """Detect whether the first row contains column names. The result is false if this is unclear.

    Spec §4, Contract importer 5, 11.
    """
    reading = _reading_options(request)
    file = await _file(sources, user, request)
    found = await while_connected(http, previews.header(user.id, file, reading))
    return json_response(wire.HeaderGuess(has_header=found.has_header, **_skipped(found.skipped)))


@router.get("/file/preview", response_model=wire.Preview, responses=failures(403))
async def preview_file(
    http: Request,
    user: ImporterUser,
    request: Annotated[requests.PreviewParameters, _fields(requests.PreviewParameters)],
    connectors: ConnectorsDep,
    sources: ImportSourcesDep,
    previews: PreviewsDep,
    threads: ThreadsDep,
) -> Response:
    """Return up to 50 rows, and column types inferred from up to 10,000 rows. Spec §4, Contract importer 7."""
    reading, dialect, has_header = _reading_options(request), _dialect(connectors, user, request), _has_header(request)
    reading.require_separator()
    file = await _file(sources, user, request)
    analysis = await while_connected(http, previews.analysis(user.id, file, reading, has_header=has_header))
    sizes = [len(cell) for row in analysis.rows for cell in row]
    if len(sizes) <= _MAX_INLINE_CELLS and sum(sizes) <= _MAX_INLINE_CHARACTERS:
        return _preview(request, dialect, analysis)
    return await threads.answers.run(user.id, lambda _: _preview(request, dialect, analysis))


def _preview(request: requests.PreviewParameters, dialect: str, analysis: Analysis) -> Response:
    """Build the response. Cells bypass the model, because validating 100,000 cells would block the event loop."""
    names = engine_names([column.name for column in analysis.columns], dialect)
    preview = wire.Preview(
        type=request.file_type,
        columns=[
            _column(source, name, column, dialect)
            for source, (name, column) in enumerate(zip(names, analysis.columns, strict=True), 1)
        ],
        preview_data=[],
        warnings=[wire.PreviewWarning(code=one.code, count=one.count, rows=list(one.rows)) for one in analysis.warnings]
        or None,
        escape=analysis.delimiters.escape,
        **_skipped(analysis.skipped),
    )
    body = preview.model_dump(mode="json", by_alias=True)
    body["preview_data"] = analysis.rows
    return Response(orjson.dumps(body), media_type="application/json")


def _column(source: int, name: str, column: PreviewColumn, dialect: str) -> wire.PreviewColumn:
    found = column.type
    return wire.PreviewColumn(
        name=name,
        type=type_name(found, dialect),
        precision=found.precision,
        scale=found.scale,
        source=source,
        format=column.format,
        null_words=list(column.null_words) or None,
    )


@router.get("/sql_type_mapping", response_model=wire.SqlTypes, responses=failures(403))
async def list_sql_types(
    user: ImporterUser,
    request: Annotated[requests.SqlTypesParameters, _fields(requests.SqlTypesParameters)],
    connectors: ConnectorsDep,
) -> Response:
    """List the type names of a dialect, sorted. Spec §4, Contract importer 6."""
    return json_response(wire.SqlTypes(list(SQL_TYPES[_dialect(connectors, user, request)])))


@router.post("/create_table", status_code=202, response_model=wire.CreateTableResponse, responses=failures(403, 503))
@router.post(
    "/submit",
    name="submit_import",
    status_code=202,
    response_model=wire.CreateTableResponse,
    responses=failures(403, 503),
)
async def create_table(
    http: Request,
    user: ImporterUser,
    request: Annotated[requests.CreateTableRequest, _fields(requests.CreateTableRequest)],
    tables: TableCreationsDep,
) -> Response:
    """Start an import. The response is sent once the import is recorded, and check_status reports its end.

    Contract importer 13.
    """
    key = requests.idempotency_key(http.headers.get("idempotency-key"))
    created = await tables.create(user, _table(request, key))
    status = created.recorded.record.status
    return json_response(
        wire.CreateTableResponse(
            status=0,
            history_uuid=str(status.id),
            history_id=status.history_id,
            path=request.file_path,
            table=created.table,
        ),
        status=202,
        headers={"Idempotency-Replayed": "true"} if created.recorded.is_replay else {},
    )


def _max_bad_rows(max_bad_rows: int | None) -> BadRowLimit:
    if max_bad_rows is None:
        return "few"
    return None if max_bad_rows < 0 else max_bad_rows


def _table(request: requests.CreateTableRequest, key: str | None) -> TableRequest:
    return TableRequest(
        origin=request.import_type,
        file_path=request.file_path,
        reading=_reading_options(request),
        has_header=_has_header(request),
        connector=request.connector,
        database=request.database,
        table=request.table,
        columns=None if request.columns is None else [ColumnRequest(**dict(one)) for one in request.columns],
        append=request.if_exists == "append",
        replace=request.if_exists == "replace",
        max_bad_rows=_max_bad_rows(request.max_bad_rows),
        idempotency_key=key,
    )
