"""Downloads of server files, which resume after a lost connection.

After a failure, the request is repeated from the byte after the last received one, with `Range` and `If-Range`, so that
bytes of two versions of a file are never mixed (Contract editor 8.2).
"""

import hashlib
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import anyio
import anyio.to_thread
import httpx

from queryserver_client.bodies import raw_body
from queryserver_client.errors import ApiError, ConnectionLost, QueryserverError
from queryserver_client.places import Place
from queryserver_client.retries import Attempts
from queryserver_client.transport import Call, Transport
from queryserver_client.unreachable import reason_of

_WRITE_BYTES = 1024 * 1024
_MAX_CHANGES = 2
AS_STORED: Mapping[str, str] = {"Accept-Encoding": "identity", "Accept": "*/*"}
"""Headers that prevent compression, so that positions refer to the bytes of the file."""


class ChangedFile(ConnectionLost):
    """The file was replaced on the server while it was read. Reading it again may succeed."""


class WrongDigest(QueryserverError):
    """The digest of the received bytes is not the one that the caller expected."""


class Download:
    """A download of one file, or of its bytes from `start` up to but not including `stop`.

    `size` is the end position, or None until the server reports it. `tag` is the ETag of an earlier response; if the
    file has another ETag, ChangedFile is raised. If `is_framed` is set, a large file is read with less CPU time
    (`raw_body`). The format of the file must then allow the reader to detect lost bytes. If `is_optional` is set, the
    download fails at once if the user's open streams are at their limit when it begins.
    """

    def __init__(
        self,
        transport: Transport,
        path: str,
        params: Mapping[str, Any] | None = None,
        *,
        start: int = 0,
        stop: int | None = None,
        tag: str | None = None,
        is_framed: bool = False,
        is_optional: bool = False,
    ) -> None:
        self._transport = transport
        self._path = path
        self._params = params
        self._is_part = start > 0 or stop is not None
        self._start, self._stop = start, stop
        self._is_framed = is_framed and transport.has_default_http_transport
        self._is_optional = is_optional
        self.tag = tag
        """The ETag of the first response."""
        self.position = start
        """The position in the file after the bytes yielded so far."""
        self.size: int | None = None
        self.headers = httpx.Headers()
        """The headers of the first response."""

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from `position` on, in order and exactly once.

        Raises ApiError, ChangedFile, and ConnectionLost once retries are exhausted.
        """
        attempts = self._transport.retries.begin()
        while self.size is None or self.position < self.size:
            try:
                async with self._transport.stream(self._call()) as response:
                    self._begin(response)
                    async with aclosing(self._body(response)) as chunks:
                        async for chunk in chunks:
                            self.position += len(chunk)
                            attempts.progressed()
                            yield chunk
                self.size = self.position
            except ApiError as error:  # noqa: PERF203
                if error.status != 416 or not (self.position or self._is_part):
                    raise
                # No bytes follow: the connection was lost after the last byte, or `start` is past the end of the file.
                self.size = self.position
            except httpx.TransportError as error:
                await self._wait(attempts, error)

    def _body(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        return raw_body(response) if self._is_framed else cast("AsyncGenerator[bytes, None]", response.aiter_raw())

    def _call(self) -> Call:
        headers = dict(AS_STORED)
        if self.position or self._is_part:
            headers["Range"] = f"bytes={self.position}-{'' if self._stop is None else self._stop - 1}"
            if self.tag:
                headers["If-Range"] = self.tag
        is_optional = self._is_optional and self.position == self._start
        return Call(
            "GET", self._path, params=self._params, headers=headers, is_repeatable=True, is_optional=is_optional
        )

    def _begin(self, response: httpx.Response) -> None:
        if "Range" in response.request.headers and not _starts_at(response, self.position):
            raise ChangedFile(f"{self._path}: the file changed while it was being read", is_sent=True)
        if self.position == self._start:
            self.tag, self.headers = response.headers.get("ETag"), response.headers
        length = response.headers.get("Content-Length")
        if length is not None and response.headers.get("Content-Encoding") is None:
            self.size = self.position + int(length)

    async def _wait(self, attempts: Attempts, error: httpx.TransportError) -> None:
        if self.position > self._start and not self.tag:
            raise ConnectionLost(f"{self._path}: interrupted after {self.position} bytes", is_sent=True) from error
        if not await attempts.pause():
            message = (
                f"{self._path}: interrupted after {self.position} bytes ({attempts.made} attempts): {reason_of(error)}"
            )
            raise ConnectionLost(message, attempts=attempts.made, is_sent=True) from error


def _starts_at(response: httpx.Response, position: int) -> bool:
    """Return whether the response contains the requested range. The server sends the whole file if the ETag differs."""
    return response.status_code == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {position}-")


async def save(
    transport: Transport,
    path: str,
    target: "str | os.PathLike[str]",
    *,
    params: Mapping[str, Any] | None = None,
    on_bytes: Callable[[int, int | None], None] | None = None,
    sha256: str | None = None,
    resume: bool = False,
) -> Path:
    """Download a server file to `target`, which never contains a partial file.

    The bytes are written to a hidden file in the same directory, which replaces `target` once it is complete (`Place`).
    After a failure, the hidden file is removed or, if `resume` is set, kept: a later call with the same arguments
    continues it if the file on the server is unchanged. `on_bytes` is called with the number of bytes so far and, if
    known, the total. Raises WrongDigest if `sha256` (in hexadecimal) is given and does not match.
    """
    target = Path(target)
    place = await anyio.to_thread.run_sync(partial(Place, target, is_kept=resume))
    writing = _FileDownload(transport, path, params, place, on_bytes, is_digested=sha256 is not None)
    is_wrong = False
    try:
        digest = await writing.whole()
        if sha256 is not None and digest != sha256.lower():
            is_wrong = True
            message = f"{path}: checksum mismatch: the received bytes have the SHA-256 digest {digest}"
            raise WrongDigest(message)
        await anyio.to_thread.run_sync(place.take)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(partial(place.leave, is_wrong=is_wrong))
    return target


@dataclass
class _FileDownload:
    """A download of one server file to its place on disk."""

    transport: Transport
    path: str
    params: Mapping[str, Any] | None
    place: Place
    on_bytes: Callable[[int, int | None], None] | None
    is_digested: bool
    has_begun: bool = False

    async def whole(self) -> str | None:
        """Write the file, and start again if it changes during the download.

        Return its SHA-256 if `is_digested` is set.
        """
        for _ in range(_MAX_CHANGES):
            try:
                return await self._written()
            except ChangedFile:  # noqa: PERF203
                if self.has_begun and self.place.is_direct:
                    raise  # bytes already written to a pipe or device cannot be taken back
        return await self._written()

    async def _written(self) -> str | None:
        download = Download(self.transport, self.path, self.params)
        async with AsyncExitStack() as stack:
            chunks = await stack.enter_async_context(aclosing(download.chunks()))
            # Fetch the first chunk, because the ETag in the response identifies the version of the file.
            first = await anext(chunks, b"")
            source = f"{self.transport.url} {self.path} {self.params} {download.tag}" if download.tag else ""
            # Opening or writing to a pipe or device may block, so the thread is abandoned on cancellation.
            file, kept = await anyio.to_thread.run_sync(self.place.open, source, abandon_on_cancel=self.place.is_direct)
            stack.callback(file.close)
            self.has_begun = True
            digest = hashlib.sha256() if self.is_digested else None
            if kept and download.size is not None and kept <= download.size:
                await chunks.aclose()
                await _digest_kept(file, digest)
                tag = download.tag
                download = Download(self.transport, self.path, self.params, start=kept, tag=tag)
                chunks = await stack.enter_async_context(aclosing(download.chunks()))
                first = b""
            elif kept:
                file.truncate(0)
                file.seek(0)
            await self._copied(first, chunks, file, digest, download)
        return digest.hexdigest() if digest is not None else None

    async def _copied(
        self, first: bytes, chunks: AsyncGenerator[bytes, None], file: BinaryIO, digest: Any, download: Download
    ) -> None:
        waiting = bytearray(first)

        async def write() -> None:
            data = bytes(waiting)
            waiting.clear()
            await anyio.to_thread.run_sync(partial(_write, file, data, digest), abandon_on_cancel=self.place.is_direct)

        try:
            async for chunk in chunks:
                waiting += chunk
                if len(waiting) >= _WRITE_BYTES:
                    await write()
                    if self.on_bytes is not None:
                        self.on_bytes(download.position, download.size)
            await write()
        except BaseException:
            if not self.place.is_direct:
                with anyio.CancelScope(shield=True):  # keeps the received bytes for a later download that resumes
                    await write()
            raise
        if not self.place.is_direct:
            await anyio.to_thread.run_sync(os.fsync, file.fileno())
        if self.on_bytes is not None:
            self.on_bytes(download.position, download.size)


def _write(file: BinaryIO, data: bytes, digest: Any) -> None:
    if digest is not None:
        digest.update(data)
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


async def _digest_kept(file: BinaryIO, digest: Any) -> None:
    """Add the existing bytes of the file to the digest, and leave the file position at the end."""
    if digest is None:
        return

    def more() -> bool:
        data = file.read(_WRITE_BYTES)
        digest.update(data)
        return bool(data)

    file.seek(0)
    while await anyio.to_thread.run_sync(more):
        pass
