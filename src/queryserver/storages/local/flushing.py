"""Files that reach the disk while they arrive.

What only the memory of the machine holds has to be written before a file gets its name, within one time-out: without
this a large file could fail there on a slow disk, after all of it came.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Future

from queryserver.storages.local.threads import FileThreads

_FLUSHED_BYTES = 128 * 1024 * 1024


class Flushing:
    """Calls `flush` for every `size_bytes` that were taken, while the next ones come; not twice at a time."""

    def __init__(self, threads: FileThreads, flush: Callable[[], None], *, size_bytes: int = _FLUSHED_BYTES) -> None:
        self._threads = threads
        self._flush = flush
        self._size_bytes = size_bytes
        self._running: Future[None] | None = None

    async def while_written(self, body: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
        """The same bytes. Who asks for a piece has written those before. Raises what `flush` raises."""
        unflushed = 0
        async for piece in body:
            unflushed += len(piece)
            yield piece
            if unflushed >= self._size_bytes:
                unflushed = 0
                await self._ended()
                self._running = self._threads.start_flush(self._flush)
        await self._ended()

    async def _ended(self) -> None:
        if self._running is not None:
            await self._threads.ended(self._running)
