"""Calls that read: filesystems, list, view, display, stat, content_summary, download (Contract storage 5)."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from email.utils import format_datetime
from functools import partial

import orjson
from fastapi import Response

from queryserver.api.answers import HEADERS_ONLY, answer, conditions_of, stream, while_connected
from queryserver.api.calls import PathGroup
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas import requests
from queryserver.api.v1.storage.calls import StorageCall, StorageRoute, place_of
from queryserver.api.v1.storage.shapes import EntryShapes, breadcrumbs
from queryserver.errors.base import MissingParameter, PermissionDenied
from queryserver.errors.files import NotAFile, StorageError, not_text, page_not_found
from queryserver.files.access import AvailableFileSystem, Location
from queryserver.files.changes import content_summary
from queryserver.files.directory_pages import DirectoryPage, PageRequest, SortKey
from queryserver.files.downloads import Part, content_disposition, entity_tag, is_harmless, media_type_of
from queryserver.files.excerpts import FileExcerpt, hexdump
from queryserver.files.model import EntryKind, FileStatus, StoragePath, decoded_path, repaired
from queryserver.formats.delimited.encodings import TextWindow, codec_of, text_window
from queryserver.formats.unpacking import Codec

router = PathGroup(StorageRoute)

# Above so many entries a thread writes them, so many at a time that the event loop gets its turn in between.
_SLICE = 200


@router.operation("list_file_systems")
async def filesystems(call: StorageCall) -> Response:
    """The stores that are configured and permitted. Spec §4, Contract storage 5.1."""
    known = await call.services.storage.file_systems.all(call.caller)
    return answer(wire.FilesystemList(list(map(_file_system, known))))


def _file_system(known: AvailableFileSystem) -> wire.Filesystem:
    cluster = known.cluster
    return wire.Filesystem(
        file_system=known.scheme.value,
        name=known.scheme.value,
        user_home_directory=str(known.home),
        has_trash=known.has_trash,
        config=wire.FilesystemConfig(
            is_trash_enabled=cluster.is_trash_enabled if cluster else known.has_trash,
            is_hdfs_superuser=cluster is not None and cluster.is_superuser,
            groups=list(cluster.groups) if cluster else [],
            users=list(cluster.users) if cluster else [],
            superuser=cluster.facts.superuser if cluster and cluster.facts else None,
            supergroup=cluster.facts.supergroup if cluster and cluster.facts else None,
        ),
    )


@router.operation("list_directory")
async def list_directory(call: StorageCall) -> Response:
    """A page of a directory. Contract storage 5.2."""
    asked, place = call.read(requests.ListParameters), place_of(call, None, or_root=True)
    page = await _page(call, asked, place)
    if page.is_past_the_end:
        raise page_not_found(f"The directory has {page.pages} pages.")
    shapes = EntryShapes.of(call.services.settings, place.path.scheme)
    body = {"status": 0, "path": str(place.path), "page": _page_facts(page).model_dump()}
    return await _written(call, body, page.entries, shapes.flat)


async def _directory_view(call: StorageCall, place: Location, status: FileStatus) -> Response:
    asked = call.read(requests.ViewPathParameters)
    codec_of(asked.encoding)  # what is wrong for a file is wrong for a directory, too
    page = await _page(call, asked, place)
    shapes = EntryShapes.of(call.services.settings, place.path.scheme)
    dots = [shapes.entry(status, name=".")]
    if not place.path.is_root:
        dots.insert(0, shapes.entry(await _parent(place), name=".."))
    facts = await _view_facts(call, place, asked, page)
    return await _written(call, facts.model_dump(), page.entries, shapes.entry, dots)


async def _page(call: StorageCall, asked: requests.DirectoryParameters, place: Location) -> DirectoryPage:
    wanted = PageRequest(asked.pagenum, asked.pagesize, asked.filter, SortKey(asked.sortby), asked.descending)
    return await call.services.storage.listings.page(call.caller, place, wanted)


async def _view_facts(
    call: StorageCall, place: Location, asked: requests.ViewParameters, page: DirectoryPage
) -> wire.DirectoryView:
    settings, file_systems = call.services.settings, call.services.storage.file_systems
    shapes = EntryShapes.of(settings, place.path.scheme)
    home = await file_systems.existing_home(call.caller, place)
    cluster = await file_systems.cluster(call.caller, place.file_system)
    facts = cluster.facts if cluster else None
    return wire.DirectoryView(
        status=0,
        path=str(place.path),
        current_dir_path=str(place.path),
        current_request_path=shapes.url(str(place.path)),
        breadcrumbs=breadcrumbs(place.path),
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
        apps=["editor", "filebrowser", *(["importer"] if call.caller.user.may("importer") else [])],
        show_download_button=settings.desktop.enable_download,
        show_upload_button=settings.filebrowser.show_upload_button,
        is_embeddable=asked.is_embeddable,
        cwd_set=True,
        file_filter="any",
        s3_listing_not_allowed="",
    )


async def _parent(place: Location) -> FileStatus:
    """The directory above; without its attributes where the caller may not read them."""
    parent = place.path.parent
    try:
        return await place.storage.stat(parent.path)
    except (PermissionDenied, StorageError):
        return FileStatus(parent.path, EntryKind.DIRECTORY, 0, None)


def _page_facts(page: DirectoryPage) -> wire.ListingPage:
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


@router.operation("view_path")
async def view(call: StorageCall, path: str) -> Response:
    """A page of a directory, or a window of a file; the entry found decides. Spec §4, Contract storage 5.2, 5.3."""
    place = place_of(call, path, or_root=True)
    status = await place.storage.stat(place.path.path)
    if status.is_directory:
        return await _directory_view(call, place, status)
    return await _file_view(call, place, status)


@router.operation("display_file")
async def display(call: StorageCall) -> Response:
    """A window of a file as text. Contract storage 5.3."""
    asked = call.read(requests.DisplayParameters)
    offset, length = asked.window
    encoding = codec_of(asked.encoding)
    place = place_of(call, None, or_root=True)
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
            mode="text",
            compression=shown.codec,
        )
    )


async def _file_view(call: StorageCall, place: Location, status: FileStatus) -> Response:
    asked = call.read(requests.ViewPathParameters)
    offset, length = asked.window
    encoding = codec_of(asked.encoding)
    codec = Codec.NONE if asked.mode == "binary" else _codec(asked.compression)
    viewing = call.services.storage.viewing
    showing = viewing.show(call.caller.user.id, place, status, offset, length, codec)
    shown = await while_connected(call.request, showing)
    text = None
    if asked.mode != "binary":
        text = await viewing.aside(call.caller.user.id, partial(text_window, shown.excerpt, encoding), length)
    if text is not None and (text.is_valid or asked.mode == "text"):
        return answer(_view(call, place, status, asked, shown, text))
    facts = _view(call, place, status, asked, shown, None)
    return await viewing.aside(call.caller.user.id, partial(_with_dump, facts, shown), length)


def _view(
    call: StorageCall,
    place: Location,
    status: FileStatus,
    asked: requests.FileViewParameters,
    shown: FileExcerpt,
    text: TextWindow | None,
) -> wire.FileView:
    """The body without the hexadecimal dump; `text` None: binary."""
    settings = call.services.settings
    shapes = EntryShapes.of(settings, place.path.scheme)
    contents = text.text if text else ""
    is_small = status.size_bytes < settings.filebrowser.max_file_editor_size
    fields = shapes.entry(status) | {
        "status": 0,
        "success": True,
        "contents": contents,
        "filename": place.path.name,
        "editable": text is not None and is_small,
        "show_download_button": settings.desktop.enable_download,
        "is_embeddable": asked.is_embeddable,
        "breadcrumbs": breadcrumbs(place.path),
        "view": wire.FileWindow(
            offset=shown.excerpt.offset,
            length=shown.excerpt.length,
            end=text.end if text else shown.excerpt.offset + len(shown.excerpt.asked),
            dirname=str(place.path.parent),
            mode="text" if text else "binary",
            compression=shown.codec,
            size=status.size_bytes,
            max_chunk_size=str(requests.MAX_WINDOW_BYTES),
            contents=contents,
            masked_binary_data=text is not None and not text.is_valid,
        ),
    }
    return wire.FileView.model_validate(fields)


def _with_dump(facts: wire.FileView, shown: FileExcerpt) -> Response:
    """The dump is not validated: a megabyte has 65,536 lines."""
    body = facts.model_dump(by_alias=True)
    body["view"]["xxd"] = orjson.Fragment(hexdump(shown.excerpt.asked, shown.excerpt.offset))
    return Response(orjson.dumps(body), media_type="application/json")


def _codec(name: str | None) -> Codec | None:
    return None if name is None else Codec(name)


@router.operation("stat_path", "stat")
async def stat(call: StorageCall, path: str | None = None) -> Response:
    """Attributes of a file or directory; of a link, its own. Contract storage 5.4."""
    place = place_of(call, path)
    status = await place.storage.stat(place.path.path)
    flat = EntryShapes.of(call.services.settings, place.path.scheme).flat(status)
    return answer(wire.StatResponse.model_validate({"status": 0, **flat}))


@router.operation("content_summary_of_path", "content_summary")
async def summary(call: StorageCall, path: str | None = None) -> Response:
    """Counts and bytes of a tree. Spec §4, Contract storage 5.6."""
    place = place_of(call, path)
    found = await content_summary(place)
    counts: dict[str, object] = {
        "typeQuota": {},
        **(found.further or {}),  # keys of the store
        "directoryCount": found.directory_count,
        "fileCount": found.file_count,
        "length": found.length_bytes,
        "quota": found.quota,
        "spaceConsumed": found.space_consumed_bytes,
        "spaceQuota": found.space_quota_bytes,
        "replication": found.replication,
    }
    body = {**counts, "status": 0, "message": "", "path": str(place.path), "summary": counts}
    return answer(wire.ContentSummaryResponse.model_validate(body))


@router.operation("download_path", "download_file")
async def download(call: StorageCall, path: str | None = None) -> Response:
    """The bytes of a file, streamed; with `Range` a part of them. Spec §4, Contract storage 5.5."""
    if path is None:
        asked = call.read(requests.DownloadFileParameters)
        text = repaired(asked.path or "")
    else:
        asked, text = call.read(requests.DispositionParameters), decoded_path(path)
    if not text:
        raise MissingParameter("path is required.")
    place = call.services.storage.stores.path_or_root(text)
    headers_only = bool(call.request.scope.get(HEADERS_ONLY))
    downloads = call.services.storage.downloads
    found = await downloads.find(call.caller, place, conditions_of(call.request), headers_only=headers_only)
    headers = _version(call, found.status)
    part = found.part
    if part is None:
        return Response(status_code=304, headers=headers)
    headers |= _description(place, part, is_inline=asked.disposition == "inline")
    status = 200 if part.is_whole else 206
    if headers_only:
        return Response(status_code=status, headers=headers)
    return await stream(downloads.body(call.caller, found, part), headers=headers, status=status)


def _version(call: StorageCall, status: FileStatus) -> dict[str, str]:
    headers = {
        "ETag": entity_tag(status),
        "Cache-Control": call.services.settings.filebrowser.file_download_cache_control,
    }
    if status.modified_at is not None:
        headers["Last-Modified"] = format_datetime(status.modified_at.astimezone(UTC), usegmt=True)
    return headers


def _description(path: StoragePath, part: Part, *, is_inline: bool) -> dict[str, str]:
    media_type = media_type_of(path.name)
    headers = {
        "Content-Type": media_type,
        "Content-Length": str(part.length),
        "Accept-Ranges": "bytes",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Content-Disposition": content_disposition(path.name, is_inline=is_inline and is_harmless(media_type)),
    }
    return headers if part.is_whole else headers | {"Content-Range": part.content_range}
