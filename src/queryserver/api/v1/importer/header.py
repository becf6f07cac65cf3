"""guess_header: whether the first row holds names (Contract importer 5)."""

from fastapi import APIRouter, Response

from queryserver.api.answers import answer, importer_failures
from queryserver.api.presence import while_connected
from queryserver.api.v1.importer.calls import ImporterCall, ImporterRoute
from queryserver.api.v1.importer.sources import asked_file, asked_reading
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import HeaderParameters, query_parameters

router = APIRouter(prefix="/api/v1/importer", tags=["importer"], route_class=ImporterRoute)


@router.get(
    "/file/guess_header",
    response_model=wire.HeaderGuess,
    responses=importer_failures(),
    openapi_extra={"parameters": query_parameters(HeaderParameters)},
    summary="Whether a file has a header",
)
async def guess_header(call: ImporterCall) -> Response:
    """False where the content is ambiguous. Spec §4, Contract importer 5, 11."""
    asked = await call.read(HeaderParameters)
    reading = asked_reading(asked)
    async with asked_file(call, asked) as file:
        guessing = call.services.importing.previews.has_header(call.user.id, file, reading)
        return answer(wire.HeaderGuess(has_header=await while_connected(call.request, guessing)))
