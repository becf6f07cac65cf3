"""Files that become tables (Contract importer): upload, detection, preview, create_table."""

from types import MappingProxyType
from typing import Any

import orjson
from fastapi import Request, Response

from queryserver import errors
from queryserver.api import bodies
from queryserver.api.answers import answer, moment, while_connected
from queryserver.api.bodies import Call
from queryserver.api.calls import CallRoute, PathGroup
from queryserver.api.errors import IMPORTER_STYLE
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas import requests
from queryserver.files.model import repaired
from queryserver.formats.cell_types.analysis import Analysis, Oddity, PreviewColumn
from queryserver.formats.cell_types.written_forms import GivenFormats
from queryserver.formats.delimited.encodings import encoding_of
from queryserver.formats.detection import ReadingOptions
from queryserver.formats.multipart import MultipartStream
from queryserver.formats.table_files import RECORD_TYPES, SkippedLines
from queryserver.identity.model import IMPORTER, User
from queryserver.imports.column_names import engine_names
from queryserver.imports.model import PREVIEW_DIALECTS, SQL_TYPES, Origin, type_name
from queryserver.imports.plans import BadRowLimit, ColumnRequest, TableRequest
from queryserver.imports.preview import Records, Sheets
from queryserver.imports.uploads import ImportFile
from queryserver.services import Services

_MAX_BODY_BYTES = 1024 * 1024
_OF_READING = {
    "sheet_name", "field_separator", "quote_char", "record_separator", "encoding", "skip_rows", "comment", "escape",
}  # fmt: skip
_MISSING = "No file was submitted."
# Answers up to these sizes are written on the event loop: 2,000 columns take some 10 ms.
_CELLS_AT_ONCE = 2_000
_CHARACTERS_AT_ONCE = 256 * 1024


class ImporterCall(Call):
    """One authenticated call of a user who may import. `body`: of a GET call the query string."""

    parse = staticmethod(requests.parse_import)


def _require_importer(user: User) -> None:
    if not user.may(IMPORTER):
        raise errors.ImporterDenied("You lack the right to import files.")


class ImporterRoute(CallRoute):
    """A route whose endpoint takes an ImporterCall. Its failures, also a wrong method, have the importer's body."""

    marks = MappingProxyType({IMPORTER_STYLE: errors.QueryServerError.code})

    async def read(self, request: Request, services: Services, user: User) -> ImporterCall:
        """The right of the user first; only then the body is read."""
        if not services.settings.importer.is_enabled:
            raise errors.ImporterDenied("The importer is switched off.")
        _require_importer(user)
        return ImporterCall(request, services, user, await self.body(request, user.id))

    async def body(self, request: Request, user_id: int) -> bodies.Body:
        """The fields of the call; of a repeated one the last counts. Raises as `read_body`."""
        if request.method == "GET":
            return bodies.query_fields(request)
        return await bodies.read_body(request, max_bytes=_MAX_BODY_BYTES, user_id=user_id)


class StreamedImporterRoute(ImporterRoute):
    """A route that reads its body itself."""

    async def body(self, request: Request, user_id: int) -> bodies.Body:
        del request, user_id
        return bodies.Body(dict[str, Any]())


async def _file(call: ImporterCall, asked: requests.MetadataParameters | requests.HeaderParameters) -> ImportFile:
    # Paths of GET calls may have been encoded twice (Contract storage 2.2); references never hold what is repaired.
    remote = asked.import_type is Origin.REMOTE
    file_path = repaired(asked.file_path) if remote else asked.file_path
    return await call.services.importing.sources.find(call.user, asked.import_type, file_path)


def _reading(asked: requests.HeaderParameters) -> ReadingOptions:
    named = asked.model_dump(include=_OF_READING)
    if isinstance(asked, requests.ColumnParameters):
        named |= {"formats": GivenFormats(asked.date_format, asked.number_format), "null_words": asked.null_words}
    return ReadingOptions.given(asked.file_type, **named)


def _has_header(asked: requests.ColumnParameters) -> bool:
    """Whether the first row names the columns; files of records name them. Raises MissingParameter."""
    if asked.file_type in RECORD_TYPES:
        return True
    if asked.has_header is None:
        raise errors.MissingParameter("has_header is required.")
    return asked.has_header


def _dialect(call: ImporterCall, asked: requests.PreviewParameters | requests.SqlTypesParameters) -> str:
    """The dialect that types are named in. Raises MissingParameter, import_connector_not_found, invalid_dialect."""
    if asked.sql_dialect is not None:
        return asked.sql_dialect
    if asked.connector is None:
        raise errors.MissingParameter("sql_dialect is required.")
    try:
        dialect = call.services.connectors.resolve(call.user, asked.connector).dialect
    except errors.UnknownDialect:
        raise errors.import_connector_not_found(asked.connector) from None
    if dialect not in PREVIEW_DIALECTS:
        raise errors.invalid_dialect(
            f"The types of {dialect} are not known here. Valid values of sql_dialect: {', '.join(PREVIEW_DIALECTS)}."
        )
    return dialect


router = PathGroup(ImporterRoute)


@router.operation("upload_import_file", kind=StreamedImporterRoute)
async def upload_file(call: ImporterCall) -> Response:
    """Keep a file for its owner until it was not used for a day. Spec §4, Contract importer 3."""
    uploads = call.services.importing.uploads
    content_type = bodies.multipart_type(call.request)
    if content_type is None:
        raise errors.not_multipart(f"An upload is {bodies.MULTIPART}.")
    length = bodies.announced_bytes(call.request)
    if length == 0:
        raise errors.MissingParameter(_MISSING)
    with call.services.streams.place(call.user) as place, call.services.metrics.uploads.track_inprogress():
        room_bytes = await uploads.admit(call.user, length)
        stream = MultipartStream(bodies.pieces(call.request), content_type)
        try:
            name = await stream.file_name()
        except errors.MissingParameter:
            raise errors.MissingParameter(_MISSING) from None
        if stream.file_field != "file":
            raise errors.MissingParameter(_MISSING)
        content = place.rechecked(stream.content(), _require_importer)
        received = await uploads.receive(call.user, name, content, room_bytes=room_bytes)
    bodies.came_unread(call.request.scope)
    bodies.came(call.request.scope, dict(stream.fields))
    return answer(
        wire.ImportedFile(
            file_path=str(received.reference), size=received.size_bytes, expires_at=moment(received.expires_at) or ""
        ),
        status=201,
    )


class DetectionRoute(ImporterRoute):
    """A route whose faults have the code of detection."""

    marks = MappingProxyType({IMPORTER_STYLE: errors.DetectionFailed.code})


@router.operation("guess_file_metadata", kind=DetectionRoute)
async def guess_metadata(call: ImporterCall) -> Response:
    """Detected from the content of the file, not from its name. Spec §4, Contract importer 4, 9, 10."""
    asked = await call.read(requests.MetadataParameters)
    encoding = None if asked.encoding is None else encoding_of(asked.encoding)
    file = await _file(call, asked)
    detecting = call.services.importing.detection.metadata(call.user.id, file, encoding)
    found = await while_connected(call.request, detecting)
    if isinstance(found, Sheets):
        return answer(wire.ExcelMetadata(type="excel", sheet_names=list(found.names)))
    if isinstance(found, Records):
        return answer(wire.RecordsMetadata(type=found.type))
    return answer(
        wire.DelimitedMetadata(
            type=found.type,
            field_separator=found.delimiters.field,
            quote_char=found.delimiters.quote or '"',
            record_separator=found.record_separator,
            encoding=found.encoding,
            confidence=found.confidence,
            warnings=None
            if found.is_encoding_certain
            else [wire.PreviewWarning(code=Oddity.ENCODING_UNCERTAIN, count=1, rows=[])],
            escape=found.delimiters.escape,
            **_skipped(found.skipped),
        )
    )


def _skipped(skipped: SkippedLines) -> dict[str, Any]:
    """`skip_rows` and `comment` where lines are skipped."""
    return {"skip_rows": skipped.first or None, "comment": skipped.comment or None}


@router.operation("guess_file_header")
async def guess_header(call: ImporterCall) -> Response:
    """False where the content is ambiguous. Spec §4, Contract importer 5, 11."""
    asked = await call.read(requests.HeaderParameters)
    reading = _reading(asked)
    file = await _file(call, asked)
    guessing = call.services.importing.previews.header(call.user.id, file, reading)
    found = await while_connected(call.request, guessing)
    return answer(wire.HeaderGuess(has_header=found.has_header, **_skipped(found.skipped)))


@router.operation("preview_file")
async def preview(call: ImporterCall) -> Response:
    """At most 50 rows; types are detected from at most 10,000. Spec §4, Contract importer 7."""
    asked = await call.read(requests.PreviewParameters)
    reading, dialect, has_header = _reading(asked), _dialect(call, asked), _has_header(asked)
    reading.require_separator()
    file = await _file(call, asked)
    analysing = call.services.importing.previews.analysis(call.user.id, file, reading, has_header=has_header)
    analysis = await while_connected(call.request, analysing)
    sizes = [len(cell) for row in analysis.rows for cell in row]
    if len(sizes) <= _CELLS_AT_ONCE and sum(sizes) <= _CHARACTERS_AT_ONCE:
        return _preview(asked, dialect, analysis)
    return await call.services.threads.answers.run(call.user.id, lambda _: _preview(asked, dialect, analysis))


def _preview(asked: requests.PreviewParameters, dialect: str, analysis: Analysis) -> Response:
    """Cells are not validated: a hundred thousand of them would hold all other calls up."""
    names = engine_names([column.name for column in analysis.columns], dialect)
    shown = wire.Preview(
        type=asked.file_type,
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
    body = shown.model_dump(mode="json", by_alias=True)
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


@router.operation("list_sql_types")
async def sql_type_mapping(call: ImporterCall) -> Response:
    """Names of types, sorted. Spec §4, Contract importer 6."""
    asked = await call.read(requests.SqlTypesParameters)
    return answer(wire.SqlTypes(list(SQL_TYPES[_dialect(call, asked)])))


@router.operation("submit_import", "create_table")
async def create_table(call: ImporterCall) -> Response:
    """Answers once the import is recorded; check_status follows it. Contract importer 13."""
    asked = await call.read(requests.CreateTableRequest)
    key = requests.idempotency_key(call.request.headers.get("idempotency-key"))
    created = await call.services.importing.tables.create(call.user, _table(asked, key))
    status = created.recorded.record.status
    return answer(
        wire.CreateTableResponse(
            status=0,
            history_uuid=str(status.id),
            history_id=status.history_id,
            path=asked.file_path,
            table=created.table,
        ),
        status=202,
        headers={"Idempotency-Replayed": "true"} if created.recorded.replayed else {},
    )


def _max_bad_rows(asked: int | None) -> BadRowLimit:
    if asked is None:
        return "few"
    return None if asked < 0 else asked


def _table(asked: requests.CreateTableRequest, key: str | None) -> TableRequest:
    return TableRequest(
        origin=asked.import_type,
        file_path=asked.file_path,
        reading=_reading(asked),
        has_header=_has_header(asked),
        connector=asked.connector,
        database=asked.database,
        table=asked.table,
        columns=None if asked.columns is None else [ColumnRequest(**dict(one)) for one in asked.columns],
        append=asked.if_exists == "append",
        replace=asked.if_exists == "replace",
        max_bad_rows=_max_bad_rows(asked.max_bad_rows),
        idempotency_key=key,
    )
