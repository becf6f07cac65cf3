"""sql_type_mapping: what a dialect calls its types (Contract importer 6)."""

from fastapi import APIRouter, Response

from queryserver.api.answers import answer, importer_failures
from queryserver.api.v1.importer.calls import ImporterCall, ImporterRoute
from queryserver.api.v1.importer.sources import asked_dialect
from queryserver.domain.import_types import SQL_TYPES
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import SqlTypesParameters, query_parameters

router = APIRouter(prefix="/api/v1/importer", tags=["importer"], route_class=ImporterRoute)


@router.get(
    "/sql_type_mapping",
    response_model=wire.SqlTypes,
    responses=importer_failures(),
    openapi_extra={"parameters": query_parameters(SqlTypesParameters)},
    summary="The types of a dialect",
)
async def sql_type_mapping(call: ImporterCall) -> Response:
    """Names of types, sorted. Spec §4, Contract importer 6."""
    asked = await call.read(SqlTypesParameters)
    return answer(wire.SqlTypes(list(SQL_TYPES[asked_dialect(call, asked)])))
