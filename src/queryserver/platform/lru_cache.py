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
    """Stores values with a total weight of at most `max_weight`; evicts the least recently used values first.

    By default each value weighs 1. Values expire `life_s` seconds after they were stored, regardless of use. At least
    `min_values` values are kept, even if they exceed `max_weight`.
    """

    max_weight: int
    weigh: Callable[[V], int] = lambda _: 1
    min_values: int = 0
    life_s: float = float("inf")
    clock: Callable[[], float] = time.monotonic
    _values: OrderedDict[K, tuple[V, int, float]] = field(
        default_factory=OrderedDict[K, tuple[V, int, float]], init=False
    )
    _weight: int = field(default=0, init=False)

    def get(self, key: K) -> V | None:
        """Return the value and mark it as recently used; None if there is none."""
        stored = self._values.get(key)
        if stored is None:
            return None
        value, _, until = stored
        if until <= self.clock():
            self.pop(key)
            return None
        self._values.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> list[K]:
        """Store or replace a value. Returns the evicted keys."""
        self.pop(key)
        weight = self.weigh(value)
        self._values[key] = value, weight, self.clock() + self.life_s
        self._weight += weight
        dropped: list[K] = []
        while self._weight > self.max_weight and len(self._values) > self.min_values:
            oldest, (_, freed, _) = self._values.popitem(last=False)
            self._weight -= freed
            dropped.append(oldest)
        return dropped

    def pop(self, key: K) -> V | None:
        """Remove and return the value; None if there is none."""
        stored = self._values.pop(key, None)
        if stored is None:
            return None
        self._weight -= stored[1]
        return stored[0]

    def drop_old(self) -> list[K]:
        """Remove expired values. Returns their keys."""
        now = self.clock()
        old = [key for key, (_, _, until) in self._values.items() if until <= now]
        for key in old:
            self.pop(key)
        return old

    def clear(self) -> None:
        self._values.clear()
        self._weight = 0

    def __iter__(self) -> Iterator[K]:
        return iter(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)
