"""Files in the stores of the server: HDFS, S3, ADLS, Ozone and its local root (Contract storage).

A path is a store URL (`s3a://bucket/a.csv`, `file:///shared/a.csv`) or an absolute path in the default store.
"""

import builtins
import datetime as dt
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio

from queryserver_client import uploads
from queryserver_client.downloads import Download, save
from queryserver_client.errors import Conflict, NotFound, QueryserverError, api_error
from queryserver_client.reading import RemoteFile
from queryserver_client.transport import Transport
from queryserver_client.uploads import OnBytes, Source, Uploaded

if TYPE_CHECKING:
    from queryserver_client.generated import (
        ChmodResponse,
        ContentSummaryResponse,
        DeleteResponse,
        FileDisplay,
        FileListing,
        FilesystemList,
        FlatFileEntry,
        OperationProgress,
        PathResponse,
        PurgeResponse,
        RestoreResponse,
        SaveResponse,
        StatResponse,
        TransferResponse,
        TrashPathResponse,
    )
    from queryserver_client.transport import Answer

_PAGE_ENTRIES = 1000
_WAIT_S = 20
"""Seconds after which the server responds to a move, copy or delete with an operation id, to be polled."""
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.2, 5.0
_DOWNLOAD = "storage/download"

OnItems = Callable[[int, int | None], None]
"""Called with the number of finished items and, if known, the total."""


@dataclass(frozen=True)
class Entry:
    """A file or directory."""

    path: str
    name: str
    kind: str
    """`dir`, `file`, `link` or `unknown`."""
    size: int
    modified: dt.datetime | None
    owner: str
    group: str
    permissions: str
    """Permissions in the format of `ls`: `-rw-r-----`."""
    mode: int
    """Permissions and file type bits, as in `os.stat_result.st_mode`."""
    replication: int = 0
    block_size: int = 0

    @property
    def is_directory(self) -> bool:
        return self.kind == "dir"

    @property
    def is_file(self) -> bool:
        return self.kind == "file"


@dataclass(frozen=True)
class FileSystem:
    """A store that the user may use, and the user's home directory in the store."""

    name: str
    home: str
    has_trash: bool
    """Whether deleted entries are moved to a trash by default."""


@dataclass(frozen=True)
class Text:
    """A section of a file as text. The next section starts at offset `end`."""

    text: str
    offset: int
    end: int
    compression: str
    """Compression of the file. Offsets count decompressed bytes."""


@dataclass(frozen=True)
class Summary:
    """Counts and sizes of a directory tree."""

    directories: int
    files: int
    size: int
    space: int
    """Bytes on disk, including all replicas."""


@dataclass(frozen=True)
class Removed:
    """A deleted entry. `trash_path` is None if it was deleted permanently."""

    path: str
    trash_path: str | None


class PartlyCopied(QueryserverError):
    """A copy on Ozone skipped the files above the size limit (`skipped`). All other files were copied."""

    def __init__(self, message: str, skipped: Sequence[str]) -> None:
        super().__init__(message)
        self.skipped = tuple(skipped)


class Files:
    """Implements `Connection.files`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def filesystems(self) -> "builtins.list[FileSystem]":
        """Return the stores that the user may use, starting with the default store."""
        items: FilesystemList = (await self._transport.call("GET", "storage/filesystems"))["items"]
        return [FileSystem(item["name"], item["user_home_directory"], has_trash=item["has_trash"]) for item in items]

    async def list(
        self,
        path: str = "/",
        *,
        filter: str = "",  # noqa: A002
        sort: str = "name",
        descending: bool = False,
    ) -> AsyncIterator[Entry]:
        """Yield the entries of a directory, fetched page by page. `filter` is a substring of their names.

        `sort` is name, size, mtime, atime, type, user or group. If the directory changes meanwhile, entries may be
        missing or appear twice.
        """
        query: dict[str, Any] = {"path": path, "pagesize": _PAGE_ENTRIES, "sortby": sort}
        query |= {"descending": "true"} if descending else {}
        query |= {"filter": filter} if filter else {}
        number = 1
        while number:
            params = {**query, "pagenum": number}
            try:
                body: FileListing = await self._transport.call("GET", "storage/list", params=params)
            except NotFound as error:
                if number > 1 and error.code == "page_not_found":
                    return  # entries were deleted in the meantime
                raise
            for item in body["files"]:
                yield _entry(item)
            number = body["page"]["next_page_number"]

    async def walk(self, path: str = "/") -> AsyncIterator[Entry]:
        """Yield all entries in a directory tree, each directory before its contents. Links are not followed."""
        waiting = [path]
        while waiting:
            below: builtins.list[str] = []
            async for entry in self.list(waiting.pop()):
                yield entry
                if entry.is_directory:
                    below.append(entry.path)
            waiting += reversed(below)

    async def stat(self, path: str) -> Entry:
        body: StatResponse = await self._transport.call("GET", "storage/stat", params={"path": path})
        return _entry(body)

    async def exists(self, path: str) -> bool:
        try:
            await self.stat(path)
        except NotFound:
            return False
        return True

    async def summary(self, path: str) -> Summary:
        """Return counts and sizes of a directory tree. Not available on S3 and ADLS."""
        params = {"path": path}
        body: ContentSummaryResponse = await self._transport.call("GET", "storage/content_summary", params=params)
        return Summary(body["directoryCount"], body["fileCount"], body["length"], body["spaceConsumed"])

    async def view(
        self,
        path: str,
        *,
        offset: int = 0,
        length: int = 65_536,
        encoding: str = "utf-8",
        compression: str | None = None,
    ) -> Text:
        """Return a section of at most 1 MiB of a file as text. gzip, bz2, snappy, avro and parquet are decoded.

        Raises ApiError with the code `not_text` if the bytes are not text in `encoding`.
        """
        query = {"path": path, "offset": offset, "length": length, "encoding": encoding}
        query |= {"compression": compression} if compression else {}
        body: FileDisplay = await self._transport.call("GET", "storage/display", params=query)
        return Text(body["contents"], body["offset"], body["end"], body["compression"])

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return `length` stored bytes from `offset` on; by default, all bytes up to the end."""
        if length == 0:
            return b""
        stop = None if length is None else offset + length
        download = Download(self._transport, _DOWNLOAD, {"path": path}, start=offset, stop=stop)
        async with aclosing(download.chunks()) as chunks:
            return b"".join([chunk async for chunk in chunks])

    async def open(self, path: str) -> RemoteFile:
        """Open a file to read in chunks and from any position, with `async with`. Memory holds one chunk.

        Raises IsADirectoryError.
        """
        entry = await self.stat(path)
        if entry.is_directory:
            raise IsADirectoryError(entry.path)
        return RemoteFile(self._transport, entry.path, entry.size)

    async def download(
        self,
        path: str,
        target: "str | os.PathLike[str] | None" = None,
        *,
        sha256: str | None = None,
        resume: bool = True,
        on_bytes: OnBytes | None = None,
    ) -> Path:
        """Download a file to the path `target` or, if it is a directory, into it; by default, the current directory.

        The file appears only once it is complete. A download continues after a lost connection. If it fails and
        `resume` is set, 1 MiB or more of received bytes are kept in a hidden file in the same directory, and a later
        call with the same arguments continues from there if the file is unchanged. Raises WrongDigest if `sha256` is
        given and does not match.
        """
        place = Path(target or ".")
        if await anyio.Path(place).is_dir():
            place /= (await self.stat(path)).name
        return await save(
            self._transport, _DOWNLOAD, place, params={"path": path}, on_bytes=on_bytes, sha256=sha256, resume=resume
        )

    async def upload(
        self,
        source: Source,
        destination: str,
        *,
        overwrite: bool = False,
        resume: bool = True,
        part_bytes: int = uploads.PART_BYTES,
        on_bytes: OnBytes | None = None,
    ) -> Uploaded:
        """Upload a local file, bytes, or the content of a file object.

        `destination` is the path of the new file, or of a directory if it ends with a slash. The file appears only once
        it is complete and its SHA-256 matches the bytes that were read. It is sent in parts of `part_bytes`, three at a
        time, which are held in memory. A part is sent again after a lost connection. If `resume` is set, parts of a
        local file that were uploaded within the last 24 hours, by this or an earlier process, are not sent again.

        Raises Conflict if the file already exists and `overwrite` is not set.
        """
        return await uploads.upload(
            self._transport,
            source,
            destination,
            overwrite=overwrite,
            resume=resume,
            part_bytes=part_bytes,
            on_bytes=on_bytes,
        )

    async def mkdir(self, path: str, *, exist_ok: bool = False) -> str:
        """Create a directory and, if the store has real directories, its missing parents. Return the path."""
        try:
            body: PathResponse = await self._transport.call(
                "POST", "storage/mkdir", {"path": path}, is_repeatable=exist_ok
            )
        except Conflict as error:
            if not exist_ok or error.code != "already_exists" or not (await self.stat(path)).is_directory:
                raise
            return path
        return body["path"]

    async def touch(self, path: str) -> str:
        """Create an empty file and return its path. Raises Conflict if the file exists."""
        body: PathResponse = await self._transport.call("POST", "storage/touch", {"path": path})
        return body["path"]

    async def write_text(self, path: str, text: str, *, encoding: str = "utf-8") -> int:
        """Replace the content of an existing file atomically with at most 10 MiB of text. Return the size in bytes."""
        fields = {"path": path, "contents": text, "encoding": encoding}
        body: SaveResponse = await self._transport.call("POST", "storage/save", fields, is_repeatable=True)
        return body["size"]

    async def rename(
        self, path: str, new_path: str, *, overwrite: bool = False, on_items: OnItems | None = None
    ) -> str:
        """Rename an entry within its directory or, if `new_path` contains a slash, to that path in the same store.

        Returns the new path.
        """
        body: TransferResponse = await self._change("storage/rename", _transfer(path, new_path, overwrite), on_items)
        return body["path"]

    async def move(
        self, source: str, destination: str, *, overwrite: bool = False, on_items: OnItems | None = None
    ) -> str:
        """Move an entry into an existing directory or to a new path, possibly in another store. Return the new path.

        A move between stores deletes a file only after its copy has been read back and verified. If this task is
        canceled, the move continues on the server.
        """
        body: TransferResponse = await self._change("storage/move", _transfer(source, destination, overwrite), on_items)
        return body["path"]

    async def copy(
        self, source: str, destination: str, *, overwrite: bool = False, on_items: OnItems | None = None
    ) -> str:
        """Copy an entry; the arguments are those of `move`. Raises PartlyCopied."""
        body: Mapping[str, Any] = await self._change(
            "storage/copy", _transfer(source, destination, overwrite), on_items
        )
        if skipped := body.get("items"):
            raise PartlyCopied(skipped, [line.removeprefix("- ") for line in skipped.splitlines()[1:]])
        return body.get("path", destination)

    async def remove(self, path: str, *, skip_trash: bool | None = None, on_items: OnItems | None = None) -> Removed:
        """Delete a file, or a directory and its contents.

        By default, entries are moved to the trash if the store has one (HDFS, local root). `skip_trash=True` deletes
        them permanently; `skip_trash=False` deletes nothing on a store without a trash.
        """
        fields: dict[str, Any] = {"path": path}
        if skip_trash is not None:
            fields["skip_trash"] = skip_trash
        body: DeleteResponse = await self._change("storage/rmtree", fields, on_items)
        return Removed(body["path"], body.get("trash_path"))

    async def restore(self, trash_path: str) -> str:
        """Restore an entry from the trash to its original path, and return that path."""
        body: RestoreResponse = await self._transport.call("POST", "storage/trash/restore", {"path": trash_path})
        return body["path"]

    async def trash(self, path: str) -> str | None:
        """Return the path of the user's trash for this path; None if the trash does not exist yet."""
        body: TrashPathResponse = await self._transport.call("GET", "storage/trash/path", params={"path": path})
        return body["trash_path"]

    async def purge_trash(self, path: str | None = None) -> int:
        """Empty the user's trash in the store of `path` (by default, the default store).

        Returns the number of deleted entries.
        """
        fields = {} if path is None else {"path": path}
        body: PurgeResponse = await self._transport.call("POST", "storage/trash/purge", fields, is_repeatable=True)
        return body["purged"]

    async def chmod(self, path: str, mode: int, *, recursive: bool = False) -> str:
        """Set permissions, for example `0o640`. Return the new mode in octal."""
        fields = {"path": path, "mode": f"{mode:o}", "recursive": recursive}
        body: ChmodResponse = await self._transport.call("POST", "storage/chmod", fields, is_repeatable=True)
        return body["mode"]

    async def chown(
        self, path: str, *, owner: str | None = None, group: str | None = None, recursive: bool = False
    ) -> None:
        """Set the owner, the group or both."""
        fields = {"path": path, "user": owner, "group": group, "recursive": recursive}
        given = {name: value for name, value in fields.items() if value is not None}
        await self._transport.call("POST", "storage/chown", given, is_repeatable=True)

    async def _change(self, path: str, fields: Mapping[str, Any], on_items: OnItems | None) -> "Answer":
        """Make a call and return its final body. If the server responds with an operation id, poll the operation."""
        body: Answer = await self._transport.call("POST", path, {**fields, "wait": _WAIT_S}, wait_s=_WAIT_S)
        pause_s = _FIRST_PAUSE_S
        operation_id = body.get("operation_id")
        while operation_id is not None:
            params = {"id": operation_id}
            progress: OperationProgress = await self._transport.call("GET", "storage/operation", params=params)
            if on_items is not None:
                on_items(progress["done"], progress["total"])
            if progress["state"] != "running":
                return cast("Answer", _outcome(progress["result"]))
            await anyio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _MAX_PAUSE_S)
        return body


def _transfer(source: str, destination: str, overwrite: bool) -> dict[str, Any]:
    return {"source_path": source, "destination_path": destination, "overwrite": overwrite}


_STATUSES = {
    "path_not_found": 404,
    "permission_denied": 403,
    "already_exists": 409,
    "conflict": 409,
    "quota_exceeded": 409,
    "verification_failed": 422,
    "storage_error": 502,
    "storage_unavailable": 503,
}


def _outcome(result: Any) -> Mapping[str, Any]:
    """Return the final body of a polled operation. Raises the errors that the call itself would have raised."""
    if not isinstance(result, Mapping):
        return {"items": result}
    if result.get("status"):
        status = _STATUSES.get(result.get("code", ""), 500)
        raise api_error(status, result, request_id=None, retry_after=None)
    return result


def _entry(item: "FlatFileEntry | StatResponse") -> Entry:
    moment = item["mtime"]
    return Entry(
        path=item["path"],
        name=item["name"],
        kind=item["type"],
        size=item["size"],
        modified=None if moment is None else dt.datetime.fromtimestamp(moment, dt.timezone.utc),
        owner=item["user"],
        group=item["group"],
        permissions=item["rwx"],
        mode=item["mode"],
        replication=item["replication"],
        block_size=item["blockSize"],
    )
