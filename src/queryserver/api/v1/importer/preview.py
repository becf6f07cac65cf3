"""preview: the first rows of a file, and its columns typed for a dialect (Contract importer 7)."""

import orjson
from fastapi import APIRouter, Response

from queryserver.api.answers import importer_failures
from queryserver.api.presence import while_connected
from queryserver.api.v1.importer.calls import ImporterCall, ImporterRoute
from queryserver.api.v1.importer.sources import asked_dialect, asked_file, asked_header, asked_reading
from queryserver.domain.import_types import type_name
from queryserver.formats.cell_types.preview import Analysis, PreviewColumn, SampleWarning
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import PreviewParameters, query_parameters

router = APIRouter(prefix="/api/v1/importer", tags=["importer"], route_class=ImporterRoute)

_CELLS_AT_ONCE = 2_000
_CHARACTERS_AT_ONCE = 256 * 1024
"""What is written on the event loop: 2,000 columns take some 10 ms."""


@router.get(
    "/file/preview",
    response_model=wire.Preview,
    responses=importer_failures(),
    openapi_extra={"parameters": query_parameters(PreviewParameters)},
    summary="Typed columns and first rows of a file",
)
async def preview(call: ImporterCall) -> Response:
    """At most 50 rows; types are detected from at most 10,000. Spec §4, Contract importer 7."""
    asked = await call.read(PreviewParameters)
    reading, dialect, has_header = asked_reading(asked), asked_dialect(call, asked), asked_header(asked)
    reading.require_separator()
    async with asked_file(call, asked) as file:
        previews = call.services.importing.previews
        analysing = previews.analysis(call.user.id, file, reading, has_header=has_header)
        analysis = await while_connected(call.request, analysing)
    if _is_small(analysis):
        return _preview(asked, dialect, analysis)
    return await call.services.threads.answers.run(call.user.id, lambda _: _preview(asked, dialect, analysis))


def _is_small(analysis: Analysis) -> bool:
    cells = sum(map(len, analysis.rows))
    return cells <= _CELLS_AT_ONCE and sum(len(cell) for row in analysis.rows for cell in row) <= _CHARACTERS_AT_ONCE


def _preview(asked: PreviewParameters, dialect: str, analysis: Analysis) -> Response:
    """A hundred thousand cells are not worth a validation each, which would hold all other calls up."""
    told = wire.Preview(
        type=asked.file_type,
        columns=[_column(source, column, dialect) for source, column in enumerate(analysis.columns, 1)],
        preview_data=[],
        warnings=[_warning(warning) for warning in analysis.warnings] or None,
    )
    body = told.model_dump(mode="json", by_alias=True)
    body["preview_data"] = analysis.rows
    return Response(orjson.dumps(body), media_type="application/json")


def _column(source: int, column: PreviewColumn, dialect: str) -> wire.PreviewColumn:
    found = column.type
    return wire.PreviewColumn(
        name=column.name,
        type=type_name(found, dialect),
        precision=found.precision,
        scale=found.scale,
        source=source,
        format=column.format,
    )


def _warning(warning: SampleWarning) -> wire.PreviewWarning:
    return wire.PreviewWarning(code=warning.code, count=warning.count, rows=list(warning.rows))
