"""mkdir, touch, save, and their other names (Contract storage 6)."""

from functools import partial

from fastapi import APIRouter, Response

from queryserver.api.answers import accepts, answer, failures
from queryserver.api.dependencies import parsed_aside
from queryserver.api.v1.storage.calls import MIB, StorageCall, StorageRoute
from queryserver.domain.errors.base import PayloadTooLarge
from queryserver.domain.files import StoragePath
from queryserver.domain.storage_names import new_name
from queryserver.formats.text_encodings import encoded
from queryserver.schemas import generated as wire
from queryserver.schemas.requests.storage_changing import NamedEntryRequest, NewEntryRequest, SaveRequest

_MAX_TEXT_BYTES = 10 * MIB


class SaveRoute(StorageRoute):
    """Text takes more room in a form or in JSON than in the file."""

    max_body_bytes = 12 * MIB


router = APIRouter(prefix="/api/v1/storage", tags=["storage"], route_class=StorageRoute)
saving = APIRouter(prefix="/api/v1/storage", tags=["storage"], route_class=SaveRoute)

_FAILURES = failures(400, 403, 404, 409, 413, 415, 501, 502, 507)


async def _mkdir(call: StorageCall, asked: NewEntryRequest | NamedEntryRequest) -> Response:
    path = _target(call, asked, is_directory=True)
    made = await call.services.storage.creations.mkdir(call.caller, path)
    return answer(wire.PathResponse(status=0, path=str(made)), status=201)


async def _touch(call: StorageCall, asked: NewEntryRequest | NamedEntryRequest) -> Response:
    path = _target(call, asked, is_directory=False)
    made = await call.services.storage.creations.touch(call.caller, path)
    return answer(wire.PathResponse(status=0, path=str(made)), status=201)


@router.post(
    "/mkdir",
    response_model=wire.PathResponse,
    status_code=201,
    responses=_FAILURES,
    openapi_extra=accepts(NewEntryRequest),
    summary="A new directory",
)
async def mkdir(call: StorageCall) -> Response:
    """Make a directory, named by its full path or by directory and name. Spec §4, Contract storage 6."""
    return await _mkdir(call, call.read(NewEntryRequest))


@router.post(
    "/create/directory",
    response_model=wire.PathResponse,
    status_code=201,
    responses=_FAILURES,
    openapi_extra=accepts(NamedEntryRequest),
    summary="A new directory, by name",
)
async def create_directory(call: StorageCall) -> Response:
    """Make a directory in another one. Contract storage 6."""
    return await _mkdir(call, call.read(NamedEntryRequest))


@router.post(
    "/touch",
    response_model=wire.PathResponse,
    status_code=201,
    responses=_FAILURES,
    openapi_extra=accepts(NewEntryRequest),
    summary="A new empty file",
)
async def touch(call: StorageCall) -> Response:
    """Make an empty file, named by its full path or by directory and name. Spec §4, Contract storage 6."""
    return await _touch(call, call.read(NewEntryRequest))


@router.post(
    "/create/file",
    response_model=wire.PathResponse,
    status_code=201,
    responses=_FAILURES,
    openapi_extra=accepts(NamedEntryRequest),
    summary="A new empty file, by name",
)
async def create_file(call: StorageCall) -> Response:
    """Make an empty file in a directory. Contract storage 6."""
    return await _touch(call, call.read(NamedEntryRequest))


@saving.post(
    "/save",
    response_model=wire.SaveResponse,
    responses=_FAILURES,
    openapi_extra=accepts(SaveRequest),
    summary="Replace the text of a file",
)
async def save(call: StorageCall) -> Response:
    """Replace the content of a file in one step. Contract storage 6."""
    asked = call.read(SaveRequest)
    path = call.services.storage.stores.path(asked.path)
    # Some encodings take a thread's time for megabytes.
    content, _ = await parsed_aside(
        call.services, call.caller.user.id, partial(encoded, asked.contents, asked.encoding), len(asked.contents)
    )
    if len(content) > _MAX_TEXT_BYTES:
        raise PayloadTooLarge(f"Text of more than {_MAX_TEXT_BYTES} bytes is not saved.")
    saved = await call.services.storage.creations.save(call.caller, path, content)
    return answer(wire.SaveResponse(status=0, path=str(path), size=saved.size_bytes))


def _target(call: StorageCall, asked: NewEntryRequest | NamedEntryRequest, *, is_directory: bool) -> StoragePath:
    path = call.services.storage.stores.path(asked.path)
    if asked.name is None:
        return path
    return path.child(new_name(asked.name, is_directory=is_directory))
