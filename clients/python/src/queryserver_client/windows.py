"""Downloads a stored file in one stream or, if that is slow, in windows, several at a time, and returns it in order.

One stream needs the least CPU time. Windows hide the latency of networks and stores: while one window arrives, the
server, or another instance behind the same address, already reads the next windows from the store. They are used only
for stored files, whose size is known, because the server would have to generate other files again for each window.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

import anyio

from queryserver_client.downloads import Download
from queryserver_client.errors import ConnectionLost, QueryserverError
from queryserver_client.transport import Transport

WINDOW_BYTES = 8 * 1024 * 1024
AT_ONCE = 3
_MEASURED_BYTES = 2 * 1024 * 1024
_FAST_S = 0.04
"""A stream is fast if its first `_MEASURED_BYTES` arrive within this time, which includes the latency."""
_TASK = "queryserver-window"


async def windowed(transport: Transport, path: str, params: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a file. Memory holds `AT_ONCE` windows.

    The caller must detect lost bytes (`raw_body`). Raises the errors of `Download.chunks`.
    """
    whole, began = Download(transport, path, params, is_framed=True), anyio.current_time()
    async with aclosing(whole.chunks()) as chunks:
        async for chunk in chunks:
            yield chunk
            if whole.position >= _MEASURED_BYTES:
                break
        is_slow = anyio.current_time() - began > _FAST_S
        async with aclosing(_Windows(transport, path, params, whole)) as windows:
            if is_slow:
                windows.begin(AT_ONCE - 1)
            async for chunk in chunks:
                surplus = whole.position - windows.first
                if surplus >= 0 and await windows.are_supported():
                    yield chunk[: len(chunk) - surplus]
                    await chunks.aclose()
                    break
                yield chunk
            async with aclosing(windows.chunks()) as rest:
                async for chunk in rest:
                    yield chunk


class _Windows:
    """The windows of a stored file that follow the first part, which is read from the stream of the whole file.

    If the first window fails before its first byte, the stream of the whole file continues. This happens if a proxy
    removes the header of the range, or if the user's open streams are at their limit.
    """

    def __init__(self, transport: Transport, path: str, params: Mapping[str, Any], whole: Download) -> None:
        self._download = partial(Download, transport, path, params, tag=whole.tag)
        self.first = whole.position + WINDOW_BYTES
        """The position of the first window."""
        self._size = whole.size if whole.size is not None and (whole.tag or "").startswith('"') else 0
        self._starts = iter(range(self.first, self._size, WINDOW_BYTES))
        self._under_way = deque[_Window]()

    def begin(self, count: int) -> None:
        """Begin windows until `count` are being downloaded."""
        while len(self._under_way) < count and (start := next(self._starts, None)) is not None:
            stop = min(start + WINDOW_BYTES, self._size)
            download = self._download(start=start, stop=stop, is_optional=start == self.first)
            self._under_way.append(_Window(download, stop))

    async def are_supported(self) -> bool:
        """Return whether windows have begun and the first one has not failed."""
        return bool(self._under_way) and await self._under_way[0].is_supported()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from `first` on, unless no window has begun or windows are not supported."""
        if not await self.are_supported():
            return
        while self._under_way:
            self.begin(AT_ONCE)
            async with aclosing(self._under_way[0].chunks()) as chunks:
                async for chunk in chunks:
                    yield chunk
            self._under_way.popleft()
            self.begin(AT_ONCE)

    async def aclose(self) -> None:
        # Shielded, so that no task keeps running if the caller is canceled.
        with anyio.CancelScope(shield=True):
            await asyncio.gather(*(window.aclose() for window in self._under_way))


class _Window:
    """A window of a file, up to `stop`, that is downloaded in the background."""

    def __init__(self, download: Download, stop: int) -> None:
        self._received: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._begun = asyncio.Event()
        self._is_refused = False
        self._task = asyncio.create_task(self._read(download, stop), name=_TASK)

    async def is_supported(self) -> bool:
        """Return whether the first bytes of the window have arrived. Waits for them."""
        await self._begun.wait()
        return not self._is_refused

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
                    self._begun.set()
            if download.position != stop:
                # Otherwise the next window would not begin where this one ends.
                message = f"a range of the file ended at byte {download.position} instead of {stop}"
                raise ConnectionLost(message, is_sent=True)
        except QueryserverError:
            self._is_refused = not self._begun.is_set()
            raise
        finally:
            self._received.put_nowait(None)
            self._begun.set()
