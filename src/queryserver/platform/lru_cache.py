"""A cache that evicts the least recently used values."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(eq=False, repr=False)
class LruCache(Generic[K, V]):
    """Holds at most `most` values, or total weight if `weigh` is set, and evicts the least recently used values first.

    Values expire `life_s` after they were put, regardless of use. The newest `least` values are never evicted.
    """

    most: int
    weigh: Callable[[V], int] = lambda _: 1
    least: int = 0
    life_s: float = float("inf")
    clock: Callable[[], float] = time.monotonic
    _kept: OrderedDict[K, tuple[V, int, float]] = field(
        default_factory=OrderedDict[K, tuple[V, int, float]], init=False
    )
    _weight: int = field(default=0, init=False)

    def get(self, key: K) -> V | None:
        """Return the value, which now counts as recently used; None if there is none."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        value, _, until = kept
        if until <= self.clock():
            self.pop(key)
            return None
        self._kept.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> list[K]:
        """Store or replace a value. Returns the evicted keys."""
        self.pop(key)
        weight = self.weigh(value)
        self._kept[key] = value, weight, self.clock() + self.life_s
        self._weight += weight
        dropped: list[K] = []
        while self._weight > self.most and len(self._kept) > self.least:
            oldest, (_, freed, _) = self._kept.popitem(last=False)
            self._weight -= freed
            dropped.append(oldest)
        return dropped

    def pop(self, key: K) -> V | None:
        """Remove and return a value; None if there is none."""
        kept = self._kept.pop(key, None)
        if kept is None:
            return None
        self._weight -= kept[1]
        return kept[0]

    def drop_old(self) -> list[K]:
        """Remove expired values. Returns their keys."""
        now = self.clock()
        old = [key for key, (_, _, until) in self._kept.items() if until <= now]
        for key in old:
            self.pop(key)
        return old

    def clear(self) -> None:
        self._kept.clear()
        self._weight = 0

    def __iter__(self) -> Iterator[K]:
        return iter(self._kept)

    def __contains__(self, key: K) -> bool:
        return key in self._kept

    def __len__(self) -> int:
        return len(self._kept)
