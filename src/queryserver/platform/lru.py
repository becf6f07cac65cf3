"""A mapping of bounded size that drops what was not used for longest."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def _one(_value: object) -> int:
    return 1


class LruCache(Generic[K, V]):
    """At most `most` values, or with `weigh` so much weight; the least recently used go first.

    A value is gone `life_s` after it was put, however often it was used. The newest `least` values stay whatever they
    weigh.
    """

    def __init__(
        self,
        most: int,
        *,
        weigh: Callable[[V], int] = _one,
        least: int = 0,
        life_s: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._weigh = weigh
        self._least = least
        self._life_s = life_s
        self._clock = clock
        self._kept: OrderedDict[K, tuple[V, int, float]] = OrderedDict()
        self._weight = 0

    def get(self, key: K) -> V | None:
        """The value, which counts as used now; None: it is not kept."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        value, _, until = kept
        if until <= self._clock():
            self.pop(key)
            return None
        self._kept.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> list[K]:
        """Keep a value in the place of a former one; the keys that were dropped for it."""
        self.pop(key)
        weight = self._weigh(value)
        self._kept[key] = value, weight, self._clock() + self._life_s
        self._weight += weight
        dropped: list[K] = []
        while self._weight > self._most and len(self._kept) > self._least:
            oldest, (_, freed, _) = self._kept.popitem(last=False)
            self._weight -= freed
            dropped.append(oldest)
        return dropped

    def pop(self, key: K) -> V | None:
        """Take a value out; None: it is not kept."""
        kept = self._kept.pop(key, None)
        if kept is None:
            return None
        self._weight -= kept[1]
        return kept[0]

    def clear(self) -> None:
        """Take everything out."""
        self._kept.clear()
        self._weight = 0

    def __iter__(self) -> Iterator[K]:
        """The keys, least recently used first."""
        return iter(self._kept)

    def __contains__(self, key: K) -> bool:
        return key in self._kept

    def __len__(self) -> int:
        return len(self._kept)
