"""guess_metadata: how a text is delimited, or the sheets of a workbook (Contract importer 4)."""

from typing import ClassVar

from fastapi import APIRouter, Response

from queryserver.api.answers import answer, importer_failures
from queryserver.api.presence import while_connected
from queryserver.api.v1.importer.calls import ImporterCall, ImporterRoute
from queryserver.api.v1.importer.sources import asked_file
from queryserver.domain.errors.files import DetectionFailed
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import MetadataParameters, query_parameters
from queryserver.services.importing.detecting import Records, Sheets


class _DetectionRoute(ImporterRoute):
    """A route whose faults are told as such of detection."""

    fault_code: ClassVar[str] = DetectionFailed.code


router = APIRouter(prefix="/api/v1/importer", tags=["importer"], route_class=_DetectionRoute)


@router.get(
    "/file/guess_metadata",
    response_model=wire.DelimitedMetadata | wire.ExcelMetadata | wire.RecordsMetadata,
    responses=importer_failures(),
    openapi_extra={"parameters": query_parameters(MetadataParameters)},
    summary="Kind, separators or sheets of a file",
)
async def guess_metadata(call: ImporterCall) -> Response:
    """Detected from the content of the file, not from its name. Spec §4, Contract importer 4, 9, 10."""
    asked = await call.read(MetadataParameters)
    async with asked_file(call, asked) as file:
        detecting = call.services.importing.detection.metadata(call.user.id, file)
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
        )
    )
