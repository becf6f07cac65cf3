"""list, and directories as view= shows them (Contract storage 5.2)."""

from collections.abc import Callable, Mapping, Sequence

import orjson
from fastapi import APIRouter, Response

from queryserver.api.answers import failures
from queryserver.api.v1.storage.calls import StorageCall, StorageRoute
from queryserver.api.v1.storage.places import given_place
from queryserver.api.v1.storage.shapes import EntryShapes
from queryserver.domain.errors.base import PermissionDenied
from queryserver.domain.errors.files import StorageError, page_not_found
from queryserver.domain.files import EntryKind, FileStatus
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import query_parameters
from queryserver.schemas.requests.storage_reading import DirectoryParameters, ListParameters, ViewParameters
from queryserver.services.storage.listing import Page, PageWanted
from queryserver.services.storage.sorting import SortKey
from queryserver.services.storage.stores import Place

router = APIRouter(prefix="/api/v1/storage", tags=["storage"], route_class=StorageRoute)

_FAILURES = failures(400, 403, 404, 413, 502)
_APPS = ("editor", "filebrowser")
_IMPORTER = "importer"
# Above so many entries a thread writes them, so many at a time that the event loop gets its turn in between.
_SLICE = 200


@router.get(
    "/list",
    response_model=wire.FileListing,
    responses=_FAILURES,
    openapi_extra={"parameters": query_parameters(ListParameters)},
    summary="A directory",
)
async def list_directory(call: StorageCall) -> Response:
    """A page of a directory. Contract storage 5.2."""
    asked, place = call.read(ListParameters), given_place(call, or_root=True)
    page = await _page(call, asked, place)
    if page.is_past_the_end:
        raise page_not_found(f"The directory has {page.pages} pages.")
    shapes = EntryShapes.of(call.services.settings, place.path.scheme)
    body = {"status": 0, "path": str(place.path), "page": _page_facts(page).model_dump()}
    return await _written(call, body, page.entries, shapes.flat_fields)


async def directory_view(call: StorageCall, place: Place, status: FileStatus) -> Response:
    """What view= answers for the directory of that status."""
    asked = call.read(ViewParameters)
    page = await _page(call, asked, place)
    shapes = EntryShapes.of(call.services.settings, place.path.scheme)
    dots = [shapes.entry_fields(status, name=".")]
    if not place.path.is_root:
        dots.insert(0, shapes.entry_fields(await _parent(place), name=".."))
    facts = await _view_facts(call, place, asked, page)
    return await _written(call, facts.model_dump(), page.entries, shapes.entry_fields, dots)


async def _page(call: StorageCall, asked: DirectoryParameters, place: Place) -> Page:
    wanted = PageWanted(asked.pagenum, asked.pagesize, asked.filter, SortKey(asked.sortby), asked.descending)
    return await call.services.storage.listings.page(call.caller, place, wanted)


async def _view_facts(call: StorageCall, place: Place, asked: ViewParameters, page: Page) -> wire.DirectoryView:
    """Everything but the entries."""
    settings, file_systems = call.services.settings, call.services.storage.file_systems
    shapes = EntryShapes.of(settings, place.path.scheme)
    home = await file_systems.existing_home(call.caller, place)
    cluster = await file_systems.cluster(call.caller, place.file_system)
    facts = cluster.facts if cluster else None
    return wire.DirectoryView(
        status=0,
        path=str(place.path),
        current_dir_path=str(place.path),
        current_request_path=shapes.url(place.path),
        breadcrumbs=shapes.breadcrumbs(place.path),
        files=[],
        page=_page_facts(page),
        pagesize=asked.pagesize,
        descending=next(reversed(call.given.query.get("descending", ())), None),
        home_directory=None if home is None else str(home),
        is_trash_enabled=await file_systems.has_trash(call.caller, place),
        is_fs_superuser=cluster is not None and cluster.is_superuser,
        groups=list(cluster.groups) if cluster else [],
        users=list(cluster.users) if cluster else [],
        superuser=facts.superuser if facts else None,
        supergroup=facts.supergroup if facts else None,
        is_sentry_managed=shapes.is_managed(place.path),
        apps=[*_APPS, _IMPORTER] if call.caller.user.may(_IMPORTER) else [*_APPS],
        show_download_button=settings.desktop.enable_download,
        show_upload_button=settings.filebrowser.show_upload_button,
        is_embeddable=asked.is_embeddable,
        cwd_set=True,
        file_filter="any",
        s3_listing_not_allowed="",
    )


async def _parent(place: Place) -> FileStatus:
    """The directory above; without its attributes where the caller may not look at it."""
    parent = place.path.parent
    try:
        return await place.storage.stat(parent.path)
    except (PermissionDenied, StorageError):
        return FileStatus(parent.path, EntryKind.DIRECTORY, 0, None)


def _page_facts(page: Page) -> wire.ListingPage:
    wanted = page.wanted
    return wire.ListingPage(
        number=wanted.number,
        page_number=wanted.number,
        page_size=wanted.size,
        num_pages=page.pages,
        total_pages=page.pages,
        total_count=page.total,
        total_size=page.total,
        previous_page_number=page.previous_number,
        next_page_number=page.next_number,
        start_index=wanted.start + 1 if page.entries else 0,
        end_index=wanted.start + len(page.entries) if page.entries else 0,
        total_is_exact=page.total_is_exact,
    )


async def _written(
    call: StorageCall,
    body: Mapping[str, object],
    entries: Sequence[FileStatus],
    shape: Callable[[FileStatus], dict[str, object]],
    before: Sequence[dict[str, object]] = (),
) -> Response:
    """The answer with its `files`; many of them are written by a thread."""

    def write() -> bytes:
        slices = (entries[start : start + _SLICE] for start in range(0, len(entries), _SLICE))
        pieces = [orjson.dumps([*map(shape, some)])[1:-1] for some in slices]
        pieces = [orjson.dumps(before)[1:-1], *pieces] if before else pieces
        return orjson.dumps({**body, "files": orjson.Fragment(b"[" + b",".join(pieces) + b"]")})

    if len(entries) <= _SLICE:
        content = write()
    else:
        content = await call.services.threads.answers.run(call.caller.user.id, lambda _: write())
    return Response(content, media_type="application/json")
