"""Answers about contents that never change, kept for the next call of this process."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

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
        self._kept: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._bytes = 0
        self._turns: dict[Hashable, _Turn] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """What is kept under `key`, or what `make` gives; `key` None: nothing is kept.

        Equal calls at one time take turns, so that the first makes the answer for all. If it fails or is given up,
        the next one tries.
        """
        if key is None:
            return await make()
        if (kept := self._look(key)) is not None:
            return kept[0]
        turn = self._turns.setdefault(key, _Turn())
        turn.callers += 1
        try:
            async with turn.lock:
                if (kept := self._look(key)) is not None:
                    return kept[0]
                answer = await make()
                self._keep(key, answer)
                return answer
        finally:
            turn.callers -= 1
            if not turn.callers:
                del self._turns[key]

    def _look(self, key: Hashable) -> tuple[T, int] | None:
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
        return kept

    def _keep(self, key: Hashable, answer: T) -> None:
        size = self._weigh(answer)
        if size > self._max_bytes // 4:
            return
        self._kept[key] = (answer, size)
        self._bytes += size
        while self._bytes > self._max_bytes:
            _, (_, freed) = self._kept.popitem(last=False)
            self._bytes -= freed
