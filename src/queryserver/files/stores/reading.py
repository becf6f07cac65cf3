"""What the stores share: how much is read and written at a time, and how harmless calls are tried again.

Few readers take much, for speed; many take little, for memory.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

_KIB = 1024
_MOST_BYTES = 1024 * _KIB
LEAST_BYTES = 64 * _KIB
"""What a reader may take in any case."""
_TOGETHER_BYTES = 8 * 1024 * _KIB


T = TypeVar("T")
Failure = TypeVar("Failure", bound=Exception)


async def retried(
    attempt: Callable[[], Awaitable[T]],
    failure: type[Failure],
    *,
    tries: int,
    first_pause_s: float,
    may_pass: Callable[[Failure], bool] = lambda _: True,
) -> T:
    """The outcome of a call that may be repeated. Pauses grow, and are random to spread the callers."""
    for number in range(1, tries):
        try:
            return await attempt()
        except failure as error:
            if not may_pass(error):
                raise
        await asyncio.sleep(random.uniform(0.5, 1) * first_pause_s * 2**number)  # noqa: S311 no secret
    return await attempt()


class Blocks:
    """Takes blocks from a body. Holds what is left of one piece."""

    def __init__(self, body: AsyncIterator[bytes]) -> None:
        self._body = body
        self._rest = memoryview(b"")

    async def take(self, size_bytes: int) -> bytearray:
        """The next `size_bytes`; fewer only at the end."""
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
    """Shares out to the readers of one store what they may hold in pieces."""

    def __init__(self, *, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
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
        """What one reader may take now: a multiple of 64 KiB, 1 MiB at most."""
        share = _TOGETHER_BYTES // max(1, self._readers)
        return max(LEAST_BYTES, min(self._most_bytes, share - share % LEAST_BYTES))
