"""Files of the server, read as they come and continued after a cut.

A call that breaks is made again from the byte after the last one, with `Range`, and with `If-Range`, so that bytes of
two different files are never put together (Contract editor 8.2).
"""

import os
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx

from queryserver_client.errors import ApiError, ConnectionLost
from queryserver_client.retries import Attempts
from queryserver_client.transport import Call, Transport

_WRITE_BYTES = 1024 * 1024


class ChangedFile(ConnectionLost):
    """The file of the server became another one while it was read. Reading it anew may succeed."""


class Download:
    """One file. `size` is known when the server names it, at the latest at the end."""

    def __init__(self, transport: Transport, path: str, params: Mapping[str, Any] | None = None) -> None:
        self._transport = transport
        self._path = path
        self._params = params
        self._tag: str | None = None
        self.position = 0
        """Bytes that were given so far."""
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
                if error.status != 416 or not self.position:
                    raise
                self.size = self.position  # the cut came after the last byte: nothing follows it
            except httpx.TransportError as error:
                await self._wait(attempts, error)

    def _call(self) -> Call:
        headers = {"Accept-Encoding": "identity", "Accept": "*/*"}
        if self.position and self._tag:
            headers |= {"Range": f"bytes={self.position}-", "If-Range": self._tag}
        return Call("GET", self._path, params=self._params, headers=headers, is_repeatable=True)

    def _begin(self, response: httpx.Response) -> None:
        tag = response.headers.get("ETag")
        if not self.position:
            self._tag, self.headers = tag, response.headers
        elif response.status_code != 206 or not _starts_at(response, self.position):
            raise ChangedFile(f"{self._path}: the file changed while it was read", is_sent=True)
        length = response.headers.get("Content-Length")
        if length is not None and response.headers.get("Content-Encoding") is None:
            self.size = self.position + int(length)

    async def _wait(self, attempts: Attempts, error: httpx.TransportError) -> None:
        if self.position and not self._tag:
            raise ConnectionLost(f"{self._path}: cut after {self.position} bytes", is_sent=True) from error
        if not await attempts.pause():
            message = f"{self._path}: cut after {self.position} bytes ({attempts.made} tries): {error}"
            raise ConnectionLost(message, attempts=attempts.made, is_sent=True) from error


def _starts_at(response: httpx.Response, position: int) -> bool:
    return response.headers.get("Content-Range", "").startswith(f"bytes {position}-")


async def save(
    transport: Transport,
    path: str,
    target: "str | os.PathLike[str]",
    *,
    params: Mapping[str, Any] | None = None,
    on_bytes: Callable[[int, int | None], None] | None = None,
) -> Path:
    """Write a file of the server to `target`, which never holds a part of it.

    The bytes go to a hidden file beside it, which takes the place of `target` when it is whole, and is removed when it
    fails. `on_bytes` is called with the bytes so far and their number in all, if known.
    """
    target = Path(target)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        for is_last in (False, False, True):
            try:
                await _write(Download(transport, path, params), part, on_bytes)
                break
            except ChangedFile:
                if is_last:
                    raise
        await anyio.to_thread.run_sync(os.replace, part, target)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.Path(part).unlink(missing_ok=True)
    return target


async def _write(download: Download, part: Path, on_bytes: Callable[[int, int | None], None] | None) -> None:
    async with await anyio.open_file(part, "wb") as file, aclosing(download.chunks()) as chunks:
        waiting = bytearray()
        async for chunk in chunks:
            waiting += chunk
            if len(waiting) >= _WRITE_BYTES:
                await file.write(bytes(waiting))
                waiting.clear()
                if on_bytes is not None:
                    on_bytes(download.position, download.size)
        await file.write(bytes(waiting))
        await file.flush()
        await anyio.to_thread.run_sync(os.fsync, file.wrapped.fileno())
    if on_bytes is not None:
        on_bytes(download.position, download.size)
