"""Files of the server, read as they come and continued after a cut.

A call that breaks is made again from the byte after the last one, with `Range`, and with `If-Range`, so that bytes of
two different files are never put together (Contract editor 8.2).
"""

import hashlib
import os
import secrets
import stat
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, BinaryIO

import anyio
import anyio.to_thread
import httpx

from queryserver_client.errors import ApiError, ConnectionLost, QueryserverError
from queryserver_client.retries import Attempts
from queryserver_client.transport import Call, Transport

_WRITE_BYTES = 1024 * 1024
_MOST_CHANGES = 2
AS_STORED: Mapping[str, str] = {"Accept-Encoding": "identity", "Accept": "*/*"}
"""Headers with which positions are those of the file itself, not of a compressed form."""


class ChangedFile(ConnectionLost):
    """The file of the server became another one while it was read. Reading it anew may succeed."""


class WrongDigest(QueryserverError):
    """The bytes that came are not those that the caller expected."""


class Download:
    """One file, or its bytes from `start` to `stop`. `size`, the end of them, is known when the server names it.

    With `tag`, the ETag of a former answer, the bytes are those of the same file, else ChangedFile is raised.
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
    ) -> None:
        self._transport = transport
        self._path = path
        self._params = params
        self._is_part = start > 0 or stop is not None
        self._start, self._stop = start, stop
        self.tag = tag
        """The ETag of the first answer."""
        self.position = start
        """The place in the file behind the bytes that were given so far."""
        self.size: int | None = None
        self.headers = httpx.Headers()
        """Of the first answer."""

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The bytes from `position` on, in order, exactly once each.

        Raises ApiError; ConnectionLost when the rest does not come within the time for retries; ChangedFile.
        """
        attempts = self._transport.retries.begin()
        while self.size is None or self.position < self.size:
            try:
                async with self._transport.stream(self._call()) as response:
                    self._begin(response)
                    async for chunk in response.aiter_raw():
                        self.position += len(chunk)
                        attempts.progressed()
                        yield chunk
                self.size = self.position
            except ApiError as error:  # noqa: PERF203
                if error.status != 416 or not (self.position or self._is_part):
                    raise
                self.size = self.position  # nothing follows: the cut came after the last byte, or the file ends before
            except httpx.TransportError as error:
                await self._wait(attempts, error)

    def _call(self) -> Call:
        headers = dict(AS_STORED)
        if self.position or self._is_part:
            headers["Range"] = f"bytes={self.position}-{'' if self._stop is None else self._stop - 1}"
            if self.tag:
                headers["If-Range"] = self.tag
        return Call("GET", self._path, params=self._params, headers=headers, is_repeatable=True)

    def _begin(self, response: httpx.Response) -> None:
        if "Range" in response.request.headers and not _starts_at(response, self.position):
            raise ChangedFile(f"{self._path}: the file changed while it was read", is_sent=True)
        if self.position == self._start:
            self.tag, self.headers = response.headers.get("ETag"), response.headers
        length = response.headers.get("Content-Length")
        if length is not None and response.headers.get("Content-Encoding") is None:
            self.size = self.position + int(length)

    async def _wait(self, attempts: Attempts, error: httpx.TransportError) -> None:
        if self.position > self._start and not self.tag:
            raise ConnectionLost(f"{self._path}: cut after {self.position} bytes", is_sent=True) from error
        if not await attempts.pause():
            message = f"{self._path}: cut after {self.position} bytes ({attempts.made} tries): {error}"
            raise ConnectionLost(message, attempts=attempts.made, is_sent=True) from error


def _starts_at(response: httpx.Response, position: int) -> bool:
    """Whether it is the part that was wanted. Another file, or one without a tag, is answered whole."""
    return response.status_code == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {position}-")


async def save(
    transport: Transport,
    path: str,
    target: "str | os.PathLike[str]",
    *,
    params: Mapping[str, Any] | None = None,
    on_bytes: Callable[[int, int | None], None] | None = None,
    sha256: str | None = None,
) -> Path:
    """Write a file of the server to `target`, which never holds a part of it.

    The bytes go to a hidden file beside it, which takes the place of `target` when it is whole, and is removed when it
    fails (`Place`). `on_bytes` is called with the bytes so far and their number in all, if known. With `sha256`, in
    hexadecimal digits, WrongDigest is raised for bytes that have another one.
    """
    target = Path(target)
    place = await anyio.to_thread.run_sync(Place, target)
    try:
        digest = await _written(
            transport, path, place, params=params, on_bytes=on_bytes, is_digested=sha256 is not None
        )
        if sha256 is not None and digest != sha256.lower():
            message = f"{path}: the bytes that came have the SHA-256 {digest}"
            raise WrongDigest(message)
        await anyio.to_thread.run_sync(place.take)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(place.leave)
    return target


class Place:
    """Where the bytes of a new file go until it is whole: to a hidden file beside `target`.

    A link stays a link, and what is replaced gives its permissions. Into what is no file, such as `/dev/null` or a
    named pipe, the bytes go at once.
    """

    def __init__(self, target: Path) -> None:
        self._target = Path(os.path.realpath(target))
        try:
            self._mode: int | None = self._target.stat().st_mode
        except FileNotFoundError:
            self._mode = None
        self._is_direct = self._mode is not None and not (stat.S_ISREG(self._mode) or stat.S_ISDIR(self._mode))
        hidden = self._target.with_name(f".{self._target.name}.{secrets.token_hex(4)}.part")
        self._part = self._target if self._is_direct else hidden

    def open(self) -> BinaryIO:
        """Empty, for writing; nobody may read it who might not read what it replaces."""
        if self._is_direct or self._mode is None:
            return self._part.open("wb")
        mode = stat.S_IMODE(self._mode)
        file = open(self._part, "wb", opener=lambda path, flags: os.open(path, flags, mode & 0o777))  # noqa: SIM115
        with suppress(OSError):  # a file system without permissions
            self._part.chmod(mode)
        return file

    def take(self) -> None:
        """It is whole."""
        if not self._is_direct:
            self._part.replace(self._target)

    def leave(self) -> None:
        """Remove what is not whole."""
        if not self._is_direct:
            self._part.unlink(missing_ok=True)


async def _written(
    transport: Transport,
    path: str,
    place: Place,
    *,
    params: Mapping[str, Any] | None,
    on_bytes: Callable[[int, int | None], None] | None,
    is_digested: bool,
) -> str | None:
    """Write the file, anew when it changes meanwhile."""
    for _ in range(_MOST_CHANGES):
        with suppress(ChangedFile):
            return await _write(Download(transport, path, params), place, on_bytes, is_digested=is_digested)
    return await _write(Download(transport, path, params), place, on_bytes, is_digested=is_digested)


async def _write(
    download: Download, place: Place, on_bytes: Callable[[int, int | None], None] | None, *, is_digested: bool
) -> str | None:
    """The SHA-256 of the bytes, if it is wanted."""
    digest = hashlib.sha256() if is_digested else None
    file = anyio.wrap_file(await anyio.to_thread.run_sync(place.open))
    async with file, aclosing(download.chunks()) as chunks:
        waiting = bytearray()

        async def write() -> None:
            await file.write(waiting)
            if digest is not None:
                await anyio.to_thread.run_sync(digest.update, waiting)
            waiting.clear()

        async for chunk in chunks:
            waiting += chunk
            if len(waiting) >= _WRITE_BYTES:
                await write()
                if on_bytes is not None:
                    on_bytes(download.position, download.size)
        await write()
        await file.flush()
        with suppress(OSError):  # of what is no file
            await anyio.to_thread.run_sync(os.fsync, file.wrapped.fileno())
    if on_bytes is not None:
        on_bytes(download.position, download.size)
    return digest.hexdigest() if digest is not None else None
