"""File objects for files on the server, which are read in chunks and from any position."""

import io
import os
from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING

import anyio

from queryserver_client.downloads import ChangedFile, Download
from queryserver_client.transport import Transport

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

    from queryserver_client.event_loop import Loop

_BUFFER_BYTES = 256 * 1024


class RemoteFile:
    """A file opened by `Files.open`. If the file is replaced on the server, reading raises ChangedFile."""

    def __init__(self, transport: Transport, path: str, size: int) -> None:
        self.path = path
        self.size = size
        self._transport = transport
        self._position = 0
        self._is_checked = False
        """Whether the size in a response has been compared with `size`."""
        self._tag: str | None = None
        self._download: Download | None = None
        self._chunks: AsyncGenerator[bytes, None] | None = None
        self._rest = b""

    def __repr__(self) -> str:
        return f"RemoteFile({self.path!r}, size={self.size})"

    def tell(self) -> int:
        return self._position

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to another position, like `io.IOBase.seek`. The next `read` then makes a new request."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        if base + offset < 0:
            message = f"{base + offset} is before the start of the file"
            raise ValueError(message)
        if base + offset != self._position:
            await self.close()
            self._position = base + offset
        return self._position

    async def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes, or fewer at the end of the file; by default, all remaining bytes."""
        left = max(self.size - self._position, 0)
        wanted = left if size < 0 else min(size, left)
        pieces, began = list[bytes](), self._position
        try:
            while wanted:
                chunk = await self._next()
                pieces.append(chunk[:wanted])
                self._rest = chunk[wanted:]
                self._position += len(pieces[-1])
                wanted -= len(pieces[-1])
        except BaseException:
            self._position = began  # the bytes of this call are lost, so that the next call reads them again
            raise
        return b"".join(pieces)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the remaining bytes in chunks as they arrive."""
        while self._position < self.size:
            chunk = await self._next()
            self._rest = b""
            self._position += len(chunk)
            yield chunk

    async def close(self) -> None:
        """Close the current request. A later read makes a new request."""
        chunks, self._chunks, self._rest = self._chunks, None, b""
        if chunks is not None:
            await chunks.aclose()

    async def __aenter__(self) -> "Self":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _next(self) -> bytes:
        """Return at least one byte. Raises ChangedFile if the file was replaced. An error closes the request."""
        if self._rest:
            return self._rest
        if self._chunks is None:
            params = {"path": self.path}
            self._download = Download(self._transport, "storage/download", params, start=self._position, tag=self._tag)
            self._chunks = self._download.chunks()
        try:
            async for chunk in self._chunks:
                if self._download is not None:
                    self._tag = self._download.tag
                    if not self._is_checked and self._download.size not in (None, self.size):
                        break
                    self._is_checked = True
                return chunk
            raise ChangedFile(f"{self.path}: the file changed while it was being read", is_sent=True)  # noqa: TRY301
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.close()
            raise


class BlockingFile(io.RawIOBase):
    """A `RemoteFile` as a Python file object, for `csv`, `zipfile`, pandas, pyarrow and others."""

    def __init__(self, loop: "Loop", core: RemoteFile) -> None:
        super().__init__()
        self._loop = loop
        self.core = core
        """The wrapped async object."""

    @property
    def name(self) -> str:
        return self.core.path

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.core.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._loop.run(lambda: self.core.seek(offset, whence))

    def readinto(self, buffer: "Buffer") -> int:
        place = memoryview(buffer).cast("B")
        data = self._loop.run(lambda: self.core.read(len(place)))
        place[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._loop.run(self.core.close)
        super().close()


def buffered(loop: "Loop", core: RemoteFile) -> io.BufferedReader:
    return io.BufferedReader(BlockingFile(loop, core), _BUFFER_BYTES)
