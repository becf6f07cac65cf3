"""Downloads a large file from the server in windows, several at a time, and returns them in order.

While one window arrives, the server, or another instance behind the same address, already reads the next windows from
the store. Used only for stored files of known size, because the server would have to generate other files again for
each window.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any

import anyio

from queryserver_client.downloads import AS_STORED, ChangedFile, Download
from queryserver_client.errors import ApiError, ConnectionLost
from queryserver_client.transport import Call, Transport

WINDOW_BYTES = 8 * 1024 * 1024
AT_ONCE = 3
_TASK = "queryserver-window"


async def windowed(transport: Transport, path: str, params: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a file. Memory holds `AT_ONCE` windows.

    A file that is small or of unknown size is downloaded as a whole, as is every file if a proxy does not support
    ranges. Raises the errors of `Download.chunks`.
    """
    size, tag = 0, ""
    with suppress(ApiError):  # HEAD has no error message; the following GET returns one
        head = await transport.send(Call("HEAD", path, params=params, headers=AS_STORED, is_repeatable=True))
        length, tag = head.headers.get("Content-Length", ""), head.headers.get("ETag", "")
        size = int(length) if length.isdecimal() else 0
    if size > WINDOW_BYTES and tag.startswith('"'):
        given = 0
        try:
            async with aclosing(_windows(transport, path, params, size, tag)) as chunks:
                async for chunk in chunks:
                    given += len(chunk)
                    yield chunk
        except ChangedFile:
            if given:
                raise
        else:
            return
    async with aclosing(Download(transport, path, params).chunks()) as chunks:
        async for chunk in chunks:
            yield chunk


async def _windows(
    transport: Transport, path: str, params: Mapping[str, Any], size: int, tag: str
) -> AsyncGenerator[bytes, None]:
    starts = iter(range(0, size, WINDOW_BYTES))
    under_way = deque[_Window]()
    try:
        while True:
            while len(under_way) < AT_ONCE and (start := next(starts, None)) is not None:
                stop = min(start + WINDOW_BYTES, size)
                under_way.append(_Window(Download(transport, path, params, start=start, stop=stop, tag=tag), stop))
            if not under_way:
                return
            async with aclosing(under_way[0].chunks()) as chunks:
                async for chunk in chunks:
                    yield chunk
            under_way.popleft()
    finally:
        # Shielded, so that no task keeps running if the caller is canceled.
        with anyio.CancelScope(shield=True):
            await asyncio.gather(*(window.aclose() for window in under_way))


class _Window:
    """A window of a file, up to `stop`, that is downloaded in the background."""

    def __init__(self, download: Download, stop: int) -> None:
        self._received: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._read(download, stop), name=_TASK)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        while (chunk := await self._received.get()) is not None:
            yield chunk
        await self._task

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self, download: Download, stop: int) -> None:
        try:
            async with aclosing(download.chunks()) as chunks:
                async for chunk in chunks:
                    self._received.put_nowait(chunk)
            if download.position != stop:
                # Otherwise the next window would not begin where this one ends.
                message = f"a range of the file ended at byte {download.position} instead of {stop}"
                raise ConnectionLost(message, is_sent=True)
        finally:
            self._received.put_nowait(None)
