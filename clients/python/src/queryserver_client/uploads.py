"""Uploads a file in one request or in parts. An upload in parts can be continued by a later process.

Parts and completion are idempotent for the same upload id (Contract storage 9.2). The server checks the SHA-256 of each
part and, before the file appears under its name, of the whole file.
"""

import hashlib
import io
import os
import platform
import stat
import tempfile
import uuid
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import anyio
import anyio.to_thread

from queryserver_client.errors import (
    ApiError,
    AuthenticationError,
    Conflict,
    NotFound,
    QueryserverError,
    ServerUnavailable,
    TooManyRequests,
)
from queryserver_client.transport import Transport

if TYPE_CHECKING:
    from queryserver_client.generated import UploadCompleteResponse, UploadStateResponse
    from queryserver_client.transport import Answer

Source = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO
"""A local path, bytes, or a binary file object."""
OnBytes = Callable[[int, int | None], None]
"""Called with the number of bytes so far and, if known, the total."""

_MIB = 1024 * 1024
PART_BYTES = 8 * _MIB
"""Default part size. S3 requires at least 5 MiB."""
_MAX_PARTS, _MAX_PART_BYTES = 10_000, 128 * _MIB
_AT_A_TIME = 3
_STORED_WITHIN_S = 120.0
"""Seconds that the store may take for one part."""
_CLAIMED_S = 90.0
"""Seconds for which a part in progress is retried: the claim of a crashed server on a part lasts a minute."""
_JOINED_WITHIN_S = 3600.0
_ANSWERED_WITHIN_S = 300.0
"""Seconds to wait for the response to a completion before it is requested again."""
_BUSY_PAUSE_S = 1.0
_DISCARD_WITHIN_S = 10.0
_SPOOLED_BYTES = 8 * _MIB
_NAMESPACE = uuid.UUID("5f3d4d6e-8f0e-4c0b-9f5e-2f1d9f3a7c10")
_STALE = frozenset({"part_conflict", "upload_not_found", "verification_failed"})
"""Error codes of a continued upload whose earlier parts belong to different content, or no longer exist."""


@dataclass(frozen=True)
class Uploaded:
    """A complete file on the server."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Content:
    """The content to upload: `size` bytes of a file, from offset `start` on."""

    file: BinaryIO
    start: int
    size: int
    identity: tuple[Any, ...] | None
    """Identifies the content across processes; None if a later process cannot access it."""

    def part(self, position: int, length: int) -> bytes:
        """Return `length` bytes from `position` on. Raises QueryserverError if the file has become shorter."""
        self.file.seek(self.start + position)
        data = self.file.read(length)
        if len(data) != length:
            raise _changed(self.file)
        return data

    def body(self, on_bytes: OnBytes | None = None) -> "BinaryIO":
        """Return a file object with exactly this content, for a single request."""
        return cast("BinaryIO", _Body(self, on_bytes))

    def require_unchanged(self) -> None:
        if self.identity is not None and _identity(self.file) != self.identity:
            raise _changed(self.file)


class _Body:
    """A file object for httpx, which seeks to the beginning for each attempt."""

    def __init__(self, content: Content, on_bytes: OnBytes | None) -> None:
        self._content = content
        self._on_bytes = on_bytes
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        left = self._content.size - self._position
        data = self._content.part(self._position, left if size < 0 else min(size, left))
        self._position += len(data)
        if self._on_bytes is not None:
            self._on_bytes(self._position, self._content.size)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._content.size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position


async def upload(
    transport: Transport,
    source: Source,
    destination: str,
    *,
    overwrite: bool = False,
    resume: bool = True,
    part_bytes: int = PART_BYTES,
    on_bytes: OnBytes | None = None,
) -> Uploaded:
    """See `Files.upload`."""
    directory, name = _target(destination, source)
    async with opened(source) as content:
        part_bytes = _part_bytes(content.size, part_bytes)
        terms = {"dest": directory, "qqfilename": name, "overwrite": "true" if overwrite else "false"}
        sending = _FileUpload(transport, content, terms, part_bytes, on_bytes)
        if content.size <= part_bytes:
            return await sending.whole()
        if content.identity is None or not resume:
            return await sending.in_parts(str(uuid.uuid4()), ())
        upload_id = _lasting_id(transport.url, directory, name, overwrite, part_bytes, content.identity)
        arrived = await sending.arrived(upload_id)
        try:
            return await sending.in_parts(upload_id, arrived, is_lasting=True)
        except ApiError as error:
            if not arrived or error.code not in _STALE:
                raise
        return await sending.in_parts(str(uuid.uuid4()), ())


class _FileUpload:
    """The upload of one file."""

    def __init__(
        self,
        transport: Transport,
        content: Content,
        terms: Mapping[str, str],
        part_bytes: int,
        on_bytes: OnBytes | None,
    ) -> None:
        self._transport = transport
        self._content = content
        self._part_bytes = part_bytes
        self._parts = -(-content.size // part_bytes)
        self._terms = {**terms, "qqtotalfilesize": content.size, "qqchunksize": part_bytes}
        self._on_bytes = on_bytes
        self._done = 0

    async def whole(self) -> Uploaded:
        """Upload the file in one request, which also completes the upload."""
        data = await anyio.to_thread.run_sync(self._content.part, 0, self._content.size)
        digest = (await anyio.to_thread.run_sync(hashlib.sha256, data)).hexdigest()
        self._content.require_unchanged()
        body: UploadCompleteResponse = await self._send(str(uuid.uuid4()), 0, data, digest, parts=0)
        self._advance(len(data))
        return Uploaded(body["path"], body["size"], digest)

    async def arrived(self, upload_id: str) -> Collection[int]:
        """Return the indexes of the parts that an earlier process has uploaded."""
        params = {"qquuid": upload_id}
        try:
            body: UploadStateResponse = await self._transport.call("GET", "storage/upload/chunks", params=params)
        except NotFound:
            return ()
        missing = set(body["missing_parts"])
        if missing:
            return set(range(self._parts)) - missing
        # All parts have arrived. The server does not report whether the upload was also completed, and the stored file
        # may have changed since, so the upload starts again.
        await self._discard(upload_id)
        return ()

    async def in_parts(self, upload_id: str, arrived: Collection[int], *, is_lasting: bool = False) -> Uploaded:
        """Upload the file in parts. Parts in `arrived` are not sent again, but only read for the digest.

        After a failure, the uploaded parts are deleted, unless `is_lasting` is set and another attempt may succeed.
        """
        try:
            digest = await self._send_parts(upload_id, arrived)
            self._content.require_unchanged()
            body = await self._complete(upload_id, digest)
        except BaseException as error:
            if not is_lasting or _is_refusal(error):
                await self._discard(upload_id)
            raise
        if is_lasting:
            await self._discard(upload_id)  # deletes the record of the upload, not the file, so the id can be reused
        return Uploaded(body["path"], body["size"], digest)

    async def _send_parts(self, upload_id: str, arrived: Collection[int]) -> str:
        """Send up to three parts concurrently. Return the SHA-256 of the whole file."""
        whole, places = hashlib.sha256(), anyio.Semaphore(_AT_A_TIME)
        failures: list[Exception] = []
        self._done = 0
        async with anyio.create_task_group() as group:

            async def send(index: int, data: bytes) -> None:
                try:
                    digest = (await anyio.to_thread.run_sync(hashlib.sha256, data)).hexdigest()
                    await self._send(upload_id, index, data, digest, parts=self._parts)
                    self._advance(len(data))
                except Exception as error:  # noqa: BLE001  # the group would wrap it
                    failures.append(error)
                    group.cancel_scope.cancel()
                finally:
                    places.release()

            try:
                for index in range(self._parts):
                    await places.acquire()
                    data = await self._part(index)
                    await anyio.to_thread.run_sync(whole.update, data)
                    if index in arrived:
                        self._advance(len(data))
                        places.release()
                    else:
                        group.start_soon(send, index, data)
            except Exception as error:  # noqa: BLE001  # as above
                failures.append(error)
                group.cancel_scope.cancel()
        if failures:
            raise failures[0]
        return whole.hexdigest()

    async def _part(self, index: int) -> bytes:
        position = index * self._part_bytes
        length = min(self._part_bytes, self._content.size - position)
        return await anyio.to_thread.run_sync(self._content.part, position, length)

    async def _send(self, upload_id: str, index: int, data: bytes, digest: str, *, parts: int) -> "Answer":
        params = {
            **self._terms,
            "qquuid": upload_id,
            "qqpartindex": index,
            "qqpartbyteoffset": index * self._part_bytes,
            "qqtotalparts": parts,
            "sha256": digest,
        }
        # Closed explicitly, because requests and responses of httpx form reference cycles, which would keep the bytes
        # in memory for a while.
        with io.BytesIO(data) as body:
            files = {"qqfile": ("part", body)}
            return await self._patiently(
                "storage/upload/chunks", _CLAIMED_S, params=params, files=files, wait_s=_STORED_WITHIN_S
            )

    async def _complete(self, upload_id: str, digest: str) -> "UploadCompleteResponse":
        body = {"qquuid": upload_id, "sha256": digest}
        return await self._patiently("storage/upload/complete", _JOINED_WITHIN_S, body=body, wait_s=_ANSWERED_WITHIN_S)

    async def _patiently(self, path: str, busy_s: float, **more: Any) -> "Answer":
        """Retry a call for up to `busy_s` while an earlier call for this upload, now disconnected, is still running."""
        until = anyio.current_time() + busy_s
        while True:
            try:
                return await self._transport.call("POST", path, is_repeatable=True, **more)
            except Conflict as error:
                if error.code != "operation_in_progress" or anyio.current_time() > until:
                    raise
            await anyio.sleep(_BUSY_PAUSE_S)

    async def _discard(self, upload_id: str) -> None:
        """Discard an upload, even if the task is canceled. Never raises; the server deletes uploads after 24 hours."""
        with anyio.move_on_after(_DISCARD_WITHIN_S, shield=True):
            with suppress(QueryserverError):
                await self._transport.call(
                    "DELETE", "storage/upload/chunks", params={"qquuid": upload_id}, is_repeatable=True
                )

    def _advance(self, length: int) -> None:
        self._done += length
        if self._on_bytes is not None:
            self._on_bytes(self._done, self._content.size)


def _target(destination: str, source: Source) -> tuple[str, str]:
    """Return the directory and the name of the new file. Raises ValueError."""
    directory, slash, name = destination.rpartition("/")
    if not slash:
        message = f"{destination!r} is not a store path; use file:///shared/a.csv, for example, or a directory and /"
        raise ValueError(message)
    if not name:
        name = name_of(source)
        if name is None:
            message = f"{destination!r} is a directory, but the upload has no file name"
            raise ValueError(message)
    # For `file:///a` and `/a`, the directory is the root, whose slash must be kept.
    return (directory + "/" if not directory or directory[-1] in ":/" else directory), name


def name_of(source: Source) -> str | None:
    """Return the file name of the source; None if it has none."""
    given = source if isinstance(source, (str, os.PathLike)) else getattr(source, "name", None)
    return Path(given).name if isinstance(given, (str, os.PathLike)) else None


def _part_bytes(size: int, wanted: int) -> int:
    """Return the part size: `wanted`, or more if there would be too many parts. Raises ValueError."""
    needed = -(-size // _MAX_PARTS)
    part_bytes = max(wanted, -(-needed // _MIB) * _MIB if needed > wanted else 0)
    if not 0 < part_bytes <= _MAX_PART_BYTES:
        message = f"a file of {size} bytes cannot be sent in parts of {wanted} bytes: the maximum is 128 MiB per part"
        raise ValueError(message)
    return part_bytes


@asynccontextmanager
async def opened(source: Source) -> AsyncGenerator[Content]:
    """Yield the content with random access. A source that can be read only once is first copied to a temporary file."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        yield Content(io.BytesIO(source), 0, memoryview(source).nbytes, None)
    elif isinstance(source, (str, os.PathLike)):
        file = await _opened(source)
        try:
            facts = os.fstat(file.fileno())
            if stat.S_ISREG(facts.st_mode) and facts.st_size:
                yield Content(file, 0, facts.st_size, _identity(file))
            else:  # pipes and devices can be read only once, and files in /proc report a size of 0
                async with _kept(file) as content:
                    yield content
        finally:
            file.close()
    elif _is_seekable(source):
        start = source.tell()
        yield Content(source, start, source.seek(0, os.SEEK_END) - start, None)
    else:
        async with _kept(source) as content:
            yield content


@asynccontextmanager
async def _kept(source: Any) -> AsyncGenerator[Content]:
    """Copy a source that can be read only once to a temporary file, and yield its content."""
    with tempfile.SpooledTemporaryFile(_SPOOLED_BYTES) as kept:
        # Reading from a pipe may block for a long time, so the thread is abandoned on cancellation.
        while data := await anyio.to_thread.run_sync(source.read, _MIB, abandon_on_cancel=True):
            await anyio.to_thread.run_sync(kept.write, data)
        yield Content(cast("BinaryIO", kept), 0, kept.tell(), None)


async def _opened(path: "str | os.PathLike[str]") -> BinaryIO:
    """Open a file in a thread. Opening a named pipe blocks until it has a writer, but can be canceled."""
    is_given_up = False

    def work() -> BinaryIO:
        # Pipes are unbuffered, because closing a buffered file would wait for an abandoned read.
        is_file = Path(path).is_file()
        file = Path(path).open("rb", buffering=-1 if is_file else 0)  # noqa: SIM115
        if is_given_up:
            file.close()
        return file

    try:
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
    except anyio.get_cancelled_exc_class():
        is_given_up = True
        raise


def _is_seekable(source: BinaryIO) -> bool:
    seekable = getattr(source, "seekable", None)
    return bool(seekable and seekable())


def _identity(file: BinaryIO) -> tuple[Any, ...]:
    facts = os.fstat(file.fileno())
    return platform.node(), os.path.realpath(file.name), facts.st_size, facts.st_mtime_ns


def _lasting_id(*facts: Any) -> str:
    """Return an upload id that is the same in every process for the same file, destination and options."""
    return str(uuid.uuid5(_NAMESPACE, repr(facts)))


def _changed(file: BinaryIO) -> QueryserverError:
    return QueryserverError(f"{getattr(file, 'name', 'the file')} changed while it was being uploaded")


def _is_refusal(error: BaseException) -> bool:
    """Return whether the same upload would be rejected again, so that keeping the uploaded parts is useless."""
    passing = AuthenticationError | ServerUnavailable | TooManyRequests
    return isinstance(error, ApiError) and not isinstance(error, passing)
