"""Calls for stores and single entries: filesystems, stat, content_summary, download (Contract storage 5)."""

from dataclasses import dataclass
from datetime import UTC
from email.utils import format_datetime
from typing import Annotated

from fastapi import Depends, Request, Response

from queryserver.api.responses import conditions_of, is_headers_only, json_response, stream
from queryserver.api.routes import FILE, contents, failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests import storage as requests
from queryserver.api.service_dependencies import FileDownloadsDep, FileSystemsDep, SettingsDep, StoresDep
from queryserver.api.v1.storage.dependencies import FilesReader, PathText, storage_fields, storage_group
from queryserver.api.v1.storage.shapes import EntryShapes
from queryserver.errors.base import MissingParameter
from queryserver.files.access import AvailableFileSystem, Caller, Location, Stores
from queryserver.files.changes import content_summary as summary_of
from queryserver.files.downloads import FileDownloads, Part, content_disposition, entity_tag, is_harmless, media_type_of
from queryserver.files.model import FileStatus, StoragePath, repaired_path
from queryserver.platform.settings.tree import Settings

router = storage_group()

_ReadParameters = Annotated[requests.ReadParameters, storage_fields(requests.ReadParameters)]
_PathParameters = Annotated[requests.PathParameters, storage_fields(requests.PathParameters)]


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
    """Return the counts and sizes of a tree. Spec §4, Contract storage 5.6."""
    return await _summary(_location(stores, caller, path))


@router.get("/content_summary", response_model=wire.ContentSummaryResponse, responses=failures(403, 404, 413, 501, 502))
async def content_summary(caller: FilesReader, request: _PathParameters, stores: StoresDep) -> Response:
    """Return the counts and sizes of a tree. Spec §4, Contract storage 5.6."""
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


FileSenderDep = Annotated[_FileSender, Depends(_file_sender)]


@router.get(
    "/download={path:raw}", response_class=Response, responses=contents("*/*", words=FILE) | failures(403, 416, 502)
)
async def download_path(
    caller: FilesReader,
    request: Annotated[requests.DispositionParameters, storage_fields(requests.DispositionParameters)],
    path: PathText,
    stores: StoresDep,
    sender: FileSenderDep,
) -> Response:
    """Stream the bytes of a file, or a part of them with `Range`. Spec §4, Contract storage 5.5."""
    return await sender.send(caller, _path(stores, path), request.disposition)


@router.get("/download", response_class=Response, responses=contents("*/*", words=FILE) | failures(403, 404, 416, 502))
async def download_file(
    caller: FilesReader,
    request: Annotated[requests.DownloadFileParameters, storage_fields(requests.DownloadFileParameters)],
    stores: StoresDep,
    sender: FileSenderDep,
) -> Response:
    """Stream the bytes of a file, or a part of them with `Range`. Spec §4, Contract storage 5.5."""
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
