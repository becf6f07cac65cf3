"""A stored file as a file object for a thread: libraries that jump about in files know nothing of an event loop."""

import asyncio
import io
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from threading import Lock
from typing import Any

from queryserver.domain.errors.files import DecompressionLimit, StorageUnavailable

MAX_READ_BYTES = 64 * 1024 * 1024
"""Largest single read: a broken file may claim to have a footer or a page of any size."""

# The store has time-outs of its own; this one is for a loop that died.
_WITHIN_S = 300.0


class RandomAccess(io.RawIOBase):
    """Reads run on `loop` while the thread waits. After `stop` every read fails at once.

    `read_at` gives up to `length` bytes from `offset` on.
    """

    def __init__(
        self,
        read_at: Callable[[int, int], Coroutine[Any, Any, bytes]],
        size_bytes: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__()
        self._read_at = read_at
        self._size = size_bytes
        self._loop = loop
        self._place = 0
        self._lock = Lock()
        self._stopped = False
        self._reading: Future[bytes] | None = None

    def readable(self) -> bool:
        """True: this is all it can do."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move; nothing is asked of the store."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = max(base + offset, 0)
        return self._place

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes. Raises DecompressionLimit, StorageUnavailable, and what the store raises."""
        left = max(self._size - self._place, 0)
        wanted = left if size < 0 else min(size, left)
        if wanted > MAX_READ_BYTES:
            raise DecompressionLimit(f"A part of the file has more than {MAX_READ_BYTES} bytes.")
        content = self._wait(self._begin(wanted)) if wanted else b""
        self._place += len(content)
        return content

    def stop(self) -> None:
        """End the read under way and all that follow. For the loop."""
        with self._lock:
            self._stopped = True
            if self._reading is not None:
                self._reading.cancel()

    def _begin(self, wanted: int) -> Future[bytes]:
        with self._lock:
            if self._stopped:
                raise StorageUnavailable("The reading was ended.")
            self._reading = asyncio.run_coroutine_threadsafe(self._read_at(self._place, wanted), self._loop)
            return self._reading

    def _wait(self, reading: Future[bytes]) -> bytes:
        try:
            return reading.result(_WITHIN_S)
        except (TimeoutError, CancelledError):
            reading.cancel()
            raise StorageUnavailable("The store did not answer in time.") from None
