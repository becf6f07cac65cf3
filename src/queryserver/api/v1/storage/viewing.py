"""Parts of files as people see them: display, and view= of a file (Contract storage 5.3)."""

from functools import partial

import orjson
from fastapi import APIRouter, Response

from queryserver.api.answers import answer, failures
from queryserver.api.presence import while_connected
from queryserver.api.v1.storage.calls import StorageCall, StorageRoute
from queryserver.api.v1.storage.places import given_place
from queryserver.api.v1.storage.shapes import EntryShapes
from queryserver.domain.errors.files import NotAFile, not_text
from queryserver.domain.files import FileStatus
from queryserver.formats.hexdump import hexdump
from queryserver.formats.text_encodings import codec_of
from queryserver.formats.text_windows import TextWindow, text_window
from queryserver.formats.unpacking.codecs import Codec
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import query_parameters
from queryserver.schemas.requests.storage_viewing import (
    MAX_WINDOW_BYTES,
    DisplayParameters,
    FileViewParameters,
)
from queryserver.services.storage.stores import Place
from queryserver.services.storage.viewing import Shown

router = APIRouter(prefix="/api/v1/storage", tags=["storage"], route_class=StorageRoute)

_BINARY = "binary"
_TEXT = "text"


@router.get(
    "/display",
    response_model=wire.FileDisplay,
    responses=failures(400, 403, 404, 413, 422, 501, 502),
    openapi_extra={"parameters": query_parameters(DisplayParameters)},
    summary="Part of a text file",
)
async def display(call: StorageCall) -> Response:
    """A window of a file as text. Contract storage 5.3."""
    asked = call.read(DisplayParameters)
    offset, length = asked.window
    encoding = codec_of(asked.encoding)
    place = given_place(call, or_root=True)
    status = await place.storage.stat(place.path.path)
    if status.is_directory:
        raise NotAFile(f"{place.path} is a directory.")
    viewing = call.services.storage.viewing
    showing = viewing.show(call.caller.user.id, place, status, offset, length, _codec(asked.compression))
    shown = await while_connected(call.request, showing)
    text = await viewing.aside(call.caller.user.id, partial(text_window, shown.excerpt, encoding), length)
    if not text.is_valid:
        raise not_text(f"This part of the file is no text in {encoding}.")
    return answer(
        wire.FileDisplay(
            status=0,
            path=str(place.path),
            contents=text.text,
            offset=offset,
            length=length,
            end=text.end,
            mode=_TEXT,
            compression=shown.codec,
        )
    )


async def file_view(call: StorageCall, place: Place, status: FileStatus) -> Response:
    """What view= answers for the file of that status."""
    asked = call.read(FileViewParameters)
    offset, length = asked.window
    encoding = codec_of(asked.encoding)
    codec = Codec.NONE if asked.mode == _BINARY else _codec(asked.compression)
    viewing = call.services.storage.viewing
    showing = viewing.show(call.caller.user.id, place, status, offset, length, codec)
    shown = await while_connected(call.request, showing)
    text = None
    if asked.mode != _BINARY:
        text = await viewing.aside(call.caller.user.id, partial(text_window, shown.excerpt, encoding), length)
    if text is not None and (text.is_valid or asked.mode == _TEXT):
        return answer(_view(call, place, status, asked, shown, text))
    facts = _view(call, place, status, asked, shown, None)
    return await viewing.aside(call.caller.user.id, partial(_with_dump, facts, shown), length)


def _view(
    call: StorageCall,
    place: Place,
    status: FileStatus,
    asked: FileViewParameters,
    shown: Shown,
    text: TextWindow | None,
) -> wire.FileView:
    """Everything but the hexadecimal dump; `text` None: binary."""
    settings = call.services.settings
    shapes = EntryShapes.of(settings, place.path.scheme)
    contents = text.text if text else ""
    is_small = status.size_bytes < settings.filebrowser.max_file_editor_size
    fields = shapes.entry_fields(status) | {
        "status": 0,
        "success": True,
        "contents": contents,
        "filename": place.path.name,
        "editable": text is not None and is_small,
        "show_download_button": settings.desktop.enable_download,
        "is_embeddable": asked.is_embeddable,
        "breadcrumbs": shapes.breadcrumbs(place.path),
        "view": wire.FileWindow(
            offset=shown.excerpt.offset,
            length=shown.excerpt.length,
            end=text.end if text else shown.excerpt.offset + len(shown.excerpt.asked),
            dirname=str(place.path.parent),
            mode=_TEXT if text else _BINARY,
            compression=shown.codec,
            size=status.size_bytes,
            max_chunk_size=str(MAX_WINDOW_BYTES),
            contents=contents,
            masked_binary_data=text is not None and not text.is_valid,
        ),
    }
    return wire.FileView.model_validate(fields)


def _with_dump(facts: wire.FileView, shown: Shown) -> Response:
    """A megabyte has 65,536 lines: they are not worth a validation each."""
    body = facts.model_dump(by_alias=True)
    body["view"]["xxd"] = orjson.Fragment(hexdump(shown.excerpt.asked, shown.excerpt.offset))
    return Response(orjson.dumps(body), media_type="application/json")


def _codec(name: str | None) -> Codec | None:
    return None if name is None else Codec(name)
