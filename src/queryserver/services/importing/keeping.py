"""Answers about contents that never change, kept for the next call of this process."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from queryserver.domain.lru import LruCache

T = TypeVar("T")


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    callers: int = 0


class KeptAnswers(Generic[T]):
    """At most `max_bytes` of answers; those that were asked for longest ago go first.

    `weigh` says about how many bytes an answer takes; one of more than a quarter of all is not kept.
    """

    def __init__(self, weigh: Callable[[T], int], *, max_bytes: int) -> None:
        self._weigh = weigh
        self._max_bytes = max_bytes
        self._kept = LruCache[Hashable, T](max_bytes, weigh=weigh)
        self._turns: dict[Hashable, _Turn] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """What is kept under `key`, or what `make` gives; `key` None: nothing is kept.

        Equal calls at one time take turns, so that the first makes the answer for all. If it fails or is given up,
        the next one tries.
        """
        if key is None:
            return await make()
        if (kept := self._kept.get(key)) is not None:
            return kept
        turn = self._turns.setdefault(key, _Turn())
        turn.callers += 1
        try:
            async with turn.lock:
                if (kept := self._kept.get(key)) is not None:
                    return kept
                answer = await make()
                if self._weigh(answer) <= self._max_bytes // 4:
                    self._kept.put(key, answer)
                return answer
        finally:
            turn.callers -= 1
            if not turn.callers:
                del self._turns[key]
