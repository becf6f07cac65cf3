"""Read sizes, block-wise reading of bodies, and retries of idempotent calls for stores.

A few concurrent readers use large reads for speed. As their number grows, the read size shrinks to save memory.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

_KIB = 1024
_MAX_READ_BYTES = 1024 * _KIB
MIN_READ_BYTES = 64 * _KIB
_TOTAL_READ_BYTES = 8 * 1024 * _KIB


T = TypeVar("T")
Failure = TypeVar("Failure", bound=Exception)


async def call_with_retries(
    attempt: Callable[[], Awaitable[T]],
    failure: type[Failure],
    *,
    tries: int,
    first_pause_s: float,
    is_retryable: Callable[[Failure], bool] = lambda _: True,
) -> T:
    """Make an idempotent call, at most `tries` times, with exponential backoff and jitter. Return its result."""
    for number in range(1, tries):
        try:
            return await attempt()
        except failure as error:
            if not is_retryable(error):
                raise
        await asyncio.sleep(random.uniform(0.5, 1) * first_pause_s * 2**number)  # noqa: S311 no secret
    return await attempt()


class Blocks:
    """Splits a body into blocks of requested sizes. Between calls, it buffers at most one chunk of the body."""

    def __init__(self, body: AsyncIterator[bytes]) -> None:
        self._body = body
        self._rest = memoryview(b"")

    async def take(self, size_bytes: int) -> bytearray:
        """Return the next `size_bytes` bytes, or fewer at the end of the body."""
        block = bytearray()
        while len(block) < size_bytes:
            if not self._rest:
                piece = await anext(self._body, None)
                if piece is None:
                    break
                self._rest = memoryview(piece)
            wanted = size_bytes - len(block)
            block += self._rest[:wanted]
            self._rest = self._rest[wanted:]
        return block


class ReadSizes:
    """Divides 8 MiB of read buffers among the concurrent readers of a store."""

    def __init__(self, *, max_bytes: int = _MAX_READ_BYTES) -> None:
        self._max_bytes = max_bytes
        self._readers = 0

    @contextmanager
    def reader(self) -> Generator[None]:
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1

    @property
    def piece_bytes(self) -> int:
        """The current read size: a multiple of 64 KiB, at least 64 KiB and at most `max_bytes`."""
        share = _TOTAL_READ_BYTES // max(1, self._readers)
        return max(MIN_READ_BYTES, min(self._max_bytes, share - share % MIN_READ_BYTES))
