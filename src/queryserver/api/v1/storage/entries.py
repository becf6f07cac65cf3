"""Calls that read stores, directories and files: list, view, display, filesystems, stat, content_summary, download.

Contract storage 5.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from email.utils import format_datetime
from functools import partial
from typing import Annotated

import orjson
from fastapi import Request, Response

from queryserver.api.dependencies import (
    ExcerptsDep,
    FileDownloadsDep,
    FileSystemsDep,
    ListingsDep,
    SettingsDep,
    StoresDep,
    ThreadsDep,
    dependency,
)
from queryserver.api.responses import conditions_of, is_headers_only, json_response, stream, while_connected
from queryserver.api.routes import FILE, contents, failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests import storage as requests
from queryserver.api.v1.storage.dependencies import (
    EntryShapes,
    FileDownloader,
    FilesReader,
    PathText,
    QueryValuesDep,
    breadcrumbs,
    last_value,
    storage_fields,
    storage_group,
)
from queryserver.errors.base import MissingParameter, PermissionDenied
from queryserver.errors.files import NotAFile, StorageError, not_text, page_not_found
from queryserver.files.access import AvailableFileSystem, Caller, FileSystems, Location, Stores
from queryserver.files.directory_pages import DirectoryPage, Listings, PageRequest, SortKey
from queryserver.files.downloads import (
    Excerpts,
    FileDownloads,
    FileExcerpt,
    Part,
    content_disposition,
    entity_tag,
    hexdump,
    is_harmless,
    media_type_of,
)
from queryserver.files.model import EntryKind, FileStatus, StoragePath, repaired_path
from queryserver.files.trash import content_summary as summary_of
from queryserver.formats.delimited.encodings import TextWindow, python_codec, text_window
from queryserver.formats.unpacking import Codec
from queryserver.platform.settings.tree import Settings
from queryserver.platform.threads import Threads

router = storage_group()

# More entries are encoded in a thread, in slices of this size, so that the event loop can run in between.
_ENTRIES_PER_SLICE = 200

_ReadParameters = Annotated[requests.ReadParameters, storage_fields(requests.ReadParameters)]
_PathParameters = Annotated[requests.PathParameters, storage_fields(requests.PathParameters)]


@dataclass(frozen=True, slots=True)
class _Directories:
    """Builds the responses for paged directory listings."""

    listings: Listings
    file_systems: FileSystems
    settings: Settings
    threads: Threads

    async def flat(self, caller: Caller, location: Location, request: requests.DirectoryParameters) -> Response:
        """Return the response of `list`. Raises page_not_found."""
        page = await self._page(caller, location, request)
        if page.is_past_the_end:
            raise page_not_found(f"The directory has only {page.pages} pages.")
        body = {"status": 0, "path": str(location.path), "page": _page_numbers(page).model_dump()}
        return await self._json_listing(caller, body, page.entries, self._shapes(location).flat)

    async def view(
        self,
        caller: Caller,
        location: Location,
        status: FileStatus,
        request: requests.ViewPathParameters,
        descending: str | None,
    ) -> Response:
        """Return the response of `view`. `descending` is the parameter as sent, which the response repeats."""
        python_codec(request.encoding)  # an invalid encoding is an error for a directory too
        page = await self._page(caller, location, request)
        shapes = self._shapes(location)
        dots = [shapes.entry(status, name=".")]
        if not location.path.is_root:
            dots.insert(0, shapes.entry(await _parent(location), name=".."))
        facts = await self._directory_view(caller, location, request, page)
        body = facts.model_dump() | {"descending": descending}
        return await self._json_listing(caller, body, page.entries, shapes.entry, dots)

    def _shapes(self, location: Location) -> EntryShapes:
        return EntryShapes.of(self.settings, location.path.scheme)

    async def _page(self, caller: Caller, location: Location, request: requests.DirectoryParameters) -> DirectoryPage:
        sort_key = SortKey(request.sortby)
        page_request = PageRequest(request.pagenum, request.pagesize, request.filter, sort_key, request.descending)
        return await self.listings.page(caller, location, page_request)

    async def _directory_view(
        self, caller: Caller, location: Location, request: requests.ViewParameters, page: DirectoryPage
    ) -> wire.DirectoryView:
        """Return the response body with an empty list of files."""
        shapes = self._shapes(location)
        home = await self.file_systems.existing_home(caller, location)
        cluster = await self.file_systems.cluster(caller, location.file_system)
        facts = cluster.facts if cluster else None
        return wire.DirectoryView(
            status=0,
            path=str(location.path),
            current_dir_path=str(location.path),
            current_request_path=shapes.url(str(location.path)),
            breadcrumbs=breadcrumbs(location.path),
            files=[],
            page=_page_numbers(page),
            pagesize=request.pagesize,
            descending=None,
            home_directory=None if home is None else str(home),
            is_trash_enabled=await self.file_systems.has_trash(caller, location),
            is_fs_superuser=cluster is not None and cluster.is_superuser,
            groups=list(cluster.groups) if cluster else [],
            users=list(cluster.users) if cluster else [],
            superuser=facts.superuser if facts else None,
            supergroup=facts.supergroup if facts else None,
            is_sentry_managed=shapes.is_managed(location.path),
            apps=["editor", "filebrowser", *(["importer"] if caller.user.may("importer") else [])],
            show_download_button=self.settings.desktop.enable_download,
            show_upload_button=self.settings.filebrowser.show_upload_button,
            is_embeddable=request.is_embeddable,
            cwd_set=True,
            file_filter="any",
            s3_listing_not_allowed="",
        )

    async def _json_listing(
        self,
        caller: Caller,
        body: Mapping[str, object],
        entries: Sequence[FileStatus],
        shape: Callable[[FileStatus], dict[str, object]],
        before: Sequence[dict[str, object]] = (),
    ) -> Response:
        """Return the response with the entries as `files`. If there are many entries, encode them in a thread."""

        def write() -> bytes:
            slices = (
                entries[start : start + _ENTRIES_PER_SLICE] for start in range(0, len(entries), _ENTRIES_PER_SLICE)
            )
            pieces = [orjson.dumps([*map(shape, some)])[1:-1] for some in slices]
            pieces = [orjson.dumps(before)[1:-1], *pieces] if before else pieces
            return orjson.dumps({**body, "files": orjson.Fragment(b"[" + b",".join(pieces) + b"]")})

        if len(entries) <= _ENTRIES_PER_SLICE:
            content = write()
        else:
            content = await self.threads.answers.run(caller.user.id, lambda _: write())
        return Response(content, media_type="application/json")


async def _directories(
    listings: ListingsDep, file_systems: FileSystemsDep, settings: SettingsDep, threads: ThreadsDep
) -> _Directories:
    return _Directories(listings, file_systems, settings, threads)


DirectoriesDep = Annotated[_Directories, dependency(_directories)]


async def _parent(location: Location) -> FileStatus:
    """Return the parent directory, with empty attributes if they cannot be read."""
    parent = location.path.parent
    try:
        return await location.storage.stat(parent.path)
    except (PermissionDenied, StorageError):
        return FileStatus(parent.path, EntryKind.DIRECTORY, 0, None)


def _page_numbers(page: DirectoryPage) -> wire.ListingPage:
    request = page.request
    return wire.ListingPage(
        number=request.number,
        page_number=request.number,
        page_size=request.size,
        num_pages=page.pages,
        total_pages=page.pages,
        total_count=page.total,
        total_size=page.total,
        previous_page_number=page.previous_number,
        next_page_number=page.next_number,
        start_index=request.start + 1 if page.entries else 0,
        end_index=request.start + len(page.entries) if page.entries else 0,
        total_is_exact=page.total_is_exact,
    )


@router.get("/list", response_model=wire.FileListing, responses=failures(403, 404, 413, 502))
async def list_directory(
    caller: FilesReader,
    request: Annotated[requests.ListParameters, storage_fields(requests.ListParameters)],
    stores: StoresDep,
    directories: DirectoriesDep,
) -> Response:
    """List one page of a directory. Contract storage 5.2."""
    location = stores.location(caller, stores.path_or_root(repaired_path(request.path or "")))
    return await directories.flat(caller, location, request)


@dataclass(frozen=True, slots=True)
class _FileViews:
    """Builds the responses for windows, which are byte ranges of a file. Reading stops if the client disconnects."""

    http: Request
    excerpts: Excerpts
    settings: Settings

    async def excerpt(
        self, caller: Caller, location: Location, status: FileStatus, window: tuple[int, int], codec: Codec | None
    ) -> FileExcerpt:
        """Read the bytes of a window. `window` is offset and length."""
        reading = self.excerpts.read(caller.user.id, location, status, *window, codec)
        return await while_connected(self.http, reading)

    async def text(self, caller: Caller, file_excerpt: FileExcerpt, encoding: str, length: int) -> TextWindow:
        return await self.excerpts.run_in_thread_if_large(
            caller.user.id, partial(text_window, file_excerpt.excerpt, encoding), length
        )

    async def view(
        self, caller: Caller, location: Location, status: FileStatus, request: requests.ViewPathParameters
    ) -> Response:
        """Return the response of `view`: text, or a hexadecimal dump of binary content."""
        offset, length = request.window
        encoding = python_codec(request.encoding)
        codec = Codec.NONE if request.mode == "binary" else _codec(request.compression)
        file_excerpt = await self.excerpt(caller, location, status, (offset, length), codec)
        text = None
        if request.mode != "binary":
            text = await self.text(caller, file_excerpt, encoding, length)
        if text is not None and (text.is_valid or request.mode == "text"):
            return json_response(self._body(location, status, request, file_excerpt, text))
        facts = self._body(location, status, request, file_excerpt, None)
        return await self.excerpts.run_in_thread_if_large(
            caller.user.id, partial(_with_dump, facts, file_excerpt), length
        )

    def _body(
        self,
        location: Location,
        status: FileStatus,
        request: requests.FileViewParameters,
        file_excerpt: FileExcerpt,
        text: TextWindow | None,
    ) -> wire.FileView:
        """Return the response body without the hexadecimal dump. `text` is None for binary content."""
        shapes = EntryShapes.of(self.settings, location.path.scheme)
        contents = text.text if text else ""
        is_small = status.size_bytes < self.settings.filebrowser.max_file_editor_size
        fields = shapes.entry(status) | {
            "status": 0,
            "success": True,
            "contents": contents,
            "filename": location.path.name,
            "editable": text is not None and is_small,
            "show_download_button": self.settings.desktop.enable_download,
            "is_embeddable": request.is_embeddable,
            "breadcrumbs": breadcrumbs(location.path),
            "view": wire.FileWindow(
                offset=file_excerpt.excerpt.offset,
                length=file_excerpt.excerpt.length,
                end=text.end if text else file_excerpt.excerpt.offset + len(file_excerpt.excerpt.requested),
                dirname=str(location.path.parent),
                mode="text" if text else "binary",
                compression=file_excerpt.codec,
                size=status.size_bytes,
                max_chunk_size=str(requests.MAX_WINDOW_BYTES),
                contents=contents,
                masked_binary_data=text is not None and not text.is_valid,
            ),
        }
        return wire.FileView.model_validate(fields)


async def _file_views(http: Request, excerpts: ExcerptsDep, settings: SettingsDep) -> _FileViews:
    return _FileViews(http, excerpts, settings)


FileViewsDep = Annotated[_FileViews, dependency(_file_views)]


@router.get(
    "/view={path:raw}", response_model=wire.DirectoryView | wire.FileView, responses=failures(403, 413, 422, 501, 502)
)
async def view_path(
    caller: FilesReader,
    request: Annotated[requests.ViewPathParameters, storage_fields(requests.ViewPathParameters)],
    path: PathText,
    query: QueryValuesDep,
    stores: StoresDep,
    directories: DirectoriesDep,
    files: FileViewsDep,
) -> Response:
    """Return one page of a directory, or a byte range of a file. Spec §4, Contract storage 5.2, 5.3."""
    location = stores.location(caller, stores.path_or_root(path))
    status = await location.storage.stat(location.path.path)
    if status.is_directory:
        return await directories.view(caller, location, status, request, last_value(query, "descending"))
    return await files.view(caller, location, status, request)


@router.get("/display", response_model=wire.FileDisplay, responses=failures(403, 404, 413, 422, 501, 502))
async def display_file(
    caller: FilesReader,
    request: Annotated[requests.DisplayParameters, storage_fields(requests.DisplayParameters)],
    stores: StoresDep,
    files: FileViewsDep,
) -> Response:
    """Return a byte range of a file as text. Contract storage 5.3."""
    offset, length = request.window
    encoding = python_codec(request.encoding)
    location = stores.location(caller, stores.path_or_root(repaired_path(request.path or "")))
    status = await location.storage.stat(location.path.path)
    if status.is_directory:
        raise NotAFile(f"{location.path} is a directory.")
    file_excerpt = await files.excerpt(caller, location, status, (offset, length), _codec(request.compression))
    text = await files.text(caller, file_excerpt, encoding, length)
    if not text.is_valid:
        raise not_text(f"This part of the file is not valid {encoding} text.")
    return json_response(
        wire.FileDisplay(
            status=0,
            path=str(location.path),
            contents=text.text,
            offset=offset,
            length=length,
            end=text.end,
            mode="text",
            compression=file_excerpt.codec,
        )
    )


def _with_dump(facts: wire.FileView, file_excerpt: FileExcerpt) -> Response:
    """Return the response with the dump. The dump bypasses the model, because a megabyte has 65,536 lines."""
    body = facts.model_dump(by_alias=True)
    body["view"]["xxd"] = orjson.Fragment(hexdump(file_excerpt.excerpt.requested, file_excerpt.excerpt.offset))
    return Response(orjson.dumps(body), media_type="application/json")


def _codec(name: str | None) -> Codec | None:
    return None if name is None else Codec(name)


@router.get("/filesystems", response_model=wire.FilesystemList, responses=failures(403))
async def list_file_systems(caller: FilesReader, _: _ReadParameters, file_systems: FileSystemsDep) -> Response:
    """List the configured stores that the caller may access. Spec §4, Contract storage 5.1."""
    known = await file_systems.all(caller)
    return json_response(wire.FilesystemList(list(map(_file_system, known))))


def _file_system(known: AvailableFileSystem) -> wire.Filesystem:
    cluster = known.cluster
    return wire.Filesystem(
        file_system=known.scheme.value,
        name=known.scheme.value,
        user_home_directory=str(known.home),
        has_trash=known.has_trash,
        supports=[feature.value for feature in known.features],
        config=wire.FilesystemConfig(
            is_trash_enabled=cluster.is_trash_enabled if cluster else known.has_trash,
            is_hdfs_superuser=cluster is not None and cluster.is_superuser,
            groups=list(cluster.groups) if cluster else [],
            users=list(cluster.users) if cluster else [],
            superuser=cluster.facts.superuser if cluster and cluster.facts else None,
            supergroup=cluster.facts.supergroup if cluster and cluster.facts else None,
        ),
    )


@router.get("/stat={path:raw}", response_model=wire.StatResponse, responses=failures(403, 502))
async def stat_path(
    caller: FilesReader, _: _ReadParameters, path: PathText, stores: StoresDep, settings: SettingsDep
) -> Response:
    """Return the attributes of a file or directory, or of a link itself. Contract storage 5.4."""
    return await _stat(_location(stores, caller, path), settings)


@router.get("/stat", response_model=wire.StatResponse, responses=failures(403, 404, 502))
async def stat(caller: FilesReader, request: _PathParameters, stores: StoresDep, settings: SettingsDep) -> Response:
    """Return the attributes of a file or directory, or of a link itself. Contract storage 5.4."""
    return await _stat(_location(stores, caller, repaired_path(request.path or "")), settings)


async def _stat(location: Location, settings: Settings) -> Response:
    status = await location.storage.stat(location.path.path)
    flat = EntryShapes.of(settings, location.path.scheme).flat(status)
    return json_response(wire.StatResponse.model_validate({"status": 0, **flat}))


def _location(stores: Stores, caller: Caller, text: str) -> Location:
    """Return the location of a path. Raises MissingParameter and the errors of `Stores.location`."""
    return stores.location(caller, _path(stores, text))


def _path(stores: Stores, text: str) -> StoragePath:
    if not text:
        raise MissingParameter("path is required.")
    return stores.path_or_root(text)


@router.get(
    "/content_summary={path:raw}", response_model=wire.ContentSummaryResponse, responses=failures(403, 413, 501, 502)
)
async def content_summary_of_path(
    caller: FilesReader, _: _ReadParameters, path: PathText, stores: StoresDep
) -> Response:
    """Return the number of files and directories in a tree, and their total size. Spec §4, Contract storage 5.6."""
    return await _summary(_location(stores, caller, path))


@router.get("/content_summary", response_model=wire.ContentSummaryResponse, responses=failures(403, 404, 413, 501, 502))
async def content_summary(caller: FilesReader, request: _PathParameters, stores: StoresDep) -> Response:
    """Return the number of files and directories in a tree, and their total size. Spec §4, Contract storage 5.6."""
    return await _summary(_location(stores, caller, repaired_path(request.path or "")))


async def _summary(location: Location) -> Response:
    found = await summary_of(location)
    counts: dict[str, object] = {
        "typeQuota": {},
        **(found.extra_fields or {}),  # store-specific keys
        "directoryCount": found.directory_count,
        "fileCount": found.file_count,
        "length": found.length_bytes,
        "quota": found.quota,
        "spaceConsumed": found.space_consumed_bytes,
        "spaceQuota": found.space_quota_bytes,
        "replication": found.replication,
    }
    body = {**counts, "status": 0, "message": "", "path": str(location.path), "summary": counts}
    return json_response(wire.ContentSummaryResponse.model_validate(body))


@dataclass(frozen=True, slots=True)
class _FileSender:
    """Sends a file, or a range of it, in response to one call."""

    http: Request
    settings: Settings
    downloads: FileDownloads

    async def send(self, caller: Caller, path: StoragePath, disposition: str) -> Response:
        headers_only = is_headers_only(self.http)
        found = await self.downloads.find(caller, path, conditions_of(self.http), headers_only=headers_only)
        headers = self._version(found.status)
        part = found.part
        if part is None:
            return Response(status_code=304, headers=headers)
        headers |= _description(path, part, is_inline=disposition == "inline")
        status = 200 if part.is_whole else 206
        if headers_only:
            return Response(status_code=status, headers=headers)
        return await stream(self.downloads.body(caller, found, part), headers=headers, status=status)

    def _version(self, status: FileStatus) -> dict[str, str]:
        headers = {"ETag": entity_tag(status), "Cache-Control": self.settings.filebrowser.file_download_cache_control}
        if status.modified_at is not None:
            headers["Last-Modified"] = format_datetime(status.modified_at.astimezone(UTC), usegmt=True)
        return headers


async def _file_sender(http: Request, settings: SettingsDep, downloads: FileDownloadsDep) -> _FileSender:
    return _FileSender(http, settings, downloads)


FileSenderDep = Annotated[_FileSender, dependency(_file_sender)]


@router.get(
    "/download={path:raw}", response_class=Response, responses=contents("*/*", words=FILE) | failures(403, 416, 502)
)
async def download_path(
    caller: FileDownloader,
    request: Annotated[requests.DispositionParameters, storage_fields(requests.DispositionParameters)],
    path: PathText,
    stores: StoresDep,
    sender: FileSenderDep,
) -> Response:
    """Stream a file, or the part of it that `Range` requests. Spec §4, Contract storage 5.5."""
    return await sender.send(caller, _path(stores, path), request.disposition)


@router.get("/download", response_class=Response, responses=contents("*/*", words=FILE) | failures(403, 404, 416, 502))
async def download_file(
    caller: FileDownloader,
    request: Annotated[requests.DownloadFileParameters, storage_fields(requests.DownloadFileParameters)],
    stores: StoresDep,
    sender: FileSenderDep,
) -> Response:
    """Stream a file, or the part of it that `Range` requests. Spec §4, Contract storage 5.5."""
    return await sender.send(caller, _path(stores, repaired_path(request.path or "")), request.disposition)


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
