"""preview: the first rows of a file, and its columns typed for a dialect (Contract importer 7)."""

from fastapi import APIRouter, Response

from queryserver.api.answers import answer, importer_failures
from queryserver.api.v1.importer.calls import ImporterCall, ImporterRoute
from queryserver.api.v1.importer.sources import asked_file, asked_reading
from queryserver.domain.import_types import type_name
from queryserver.formats.cell_types.preview import PreviewColumn, SampleWarning
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import PreviewParameters, query_parameters

router = APIRouter(prefix="/api/v1/importer", tags=["importer"], route_class=ImporterRoute)


@router.get(
    "/file/preview",
    response_model=wire.Preview,
    responses=importer_failures(),
    openapi_extra={"parameters": query_parameters(PreviewParameters)},
    summary="Typed columns and first rows of a file",
)
async def preview(call: ImporterCall) -> Response:
    """At most 50 rows; types are told from at most 10,000. Spec §4, Contract importer 7."""
    asked = await call.read(PreviewParameters)
    reading = asked_reading(asked)
    reading.require_separator()
    async with asked_file(call, asked) as file:
        analysis = await call.services.importing.previews.analysis(file, reading, has_header=asked.has_header)
    return answer(
        wire.Preview(
            type=asked.file_type,
            columns=[_column(column, asked.sql_dialect) for column in analysis.columns],
            preview_data=[list(row) for row in analysis.rows],
            warnings=[_warning(warning) for warning in analysis.warnings] or None,
        )
    )


def _column(column: PreviewColumn, dialect: str) -> wire.PreviewColumn:
    told = column.type
    return wire.PreviewColumn(
        name=column.name, type=type_name(told, dialect), precision=told.precision, scale=told.scale
    )


def _warning(warning: SampleWarning) -> wire.PreviewWarning:
    return wire.PreviewWarning(code=warning.code, count=warning.count, rows=list(warning.rows))
