"""view=: a directory or part of a file; the entry found decides (Contract storage 5.2, 5.3)."""

from fastapi import APIRouter, Response

from queryserver.api.answers import failures
from queryserver.api.v1.storage.calls import StorageCall, StorageRoute
from queryserver.api.v1.storage.listing import directory_view
from queryserver.api.v1.storage.places import decoded_place
from queryserver.api.v1.storage.viewing import file_view
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import query_parameters
from queryserver.schemas.requests.storage_reading import ViewParameters
from queryserver.schemas.requests.storage_viewing import FileViewParameters


class _Parameters(ViewParameters, FileViewParameters):
    """Whichever kind is found reads its own ones."""


router = APIRouter(prefix="/api/v1/storage", tags=["storage"], route_class=StorageRoute)


@router.get(
    "/view={path:raw}",
    response_model=wire.DirectoryView | wire.FileView,
    responses=failures(400, 403, 404, 413, 422, 501, 502),
    openapi_extra={"parameters": query_parameters(_Parameters)},
    summary="A directory, or part of a file",
)
async def view(call: StorageCall, path: str) -> Response:
    """A page of a directory, or a window of a file; the entry found decides. Spec §4, Contract storage 5.2, 5.3."""
    place = decoded_place(call, path, or_root=True)
    status = await place.storage.stat(place.path.path)
    if status.is_directory:
        return await directory_view(call, place, status)
    return await file_view(call, place, status)
