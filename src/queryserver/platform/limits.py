"""Limits: of this machine, of each user's share, and of caches."""

import asyncio
import itertools
import resource
import shutil
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import structlog

from queryserver.errors.base import TooManyRequests
from queryserver.errors.files import InsufficientStorage

if TYPE_CHECKING:  # engine processes load neither the settings nor pydantic
    from queryserver.platform.settings.tree import Settings

log = structlog.get_logger(__name__)

# Below a second, disks do not change enough to pay for a call of the system with each piece of a file.
_KEPT_S = 1.0
# Files, engines and the service database also need descriptors: a fifth of the limit, at least these.
_OTHER_DESCRIPTORS = 256
_RETRY_AFTER = timedelta(seconds=2)


class DiskUsage(Protocol):
    """Sizes of a file system in bytes, as `shutil.disk_usage` gives them."""

    @property
    def total(self) -> int: ...

    @property
    def free(self) -> int: ...


@dataclass(slots=True, eq=False, kw_only=True)
class DiskFloor:
    """The floor of every file system: `percent` of its size, and `min_bytes` at least. Both 0: no floor.

    May be used by several threads. `usage` measures the file system of a directory; its answer is kept for a second.
    """

    percent: float = 0
    min_bytes: int = 0
    usage: Callable[[Path], DiskUsage] = shutil.disk_usage
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _measured: dict[Path, tuple[float, int]] = field(default_factory=dict[Path, tuple[float, int]], init=False)

    @property
    def is_off(self) -> bool:
        return self.percent <= 0 and self.min_bytes <= 0

    def room(self, directory: Path, *, anew: bool = False) -> int:
        """Bytes that may still be written below `directory`; zero or negative: none. `anew`: measured now.

        Calls the operating system, so it blocks: call it in a thread. Raises OSError, also for a missing directory.
        """
        now = self.clock()
        with self._lock:
            measured_at, room = self._measured.get(directory, (-_KEPT_S, 0))
            if 0 <= now - measured_at < _KEPT_S and not anew:
                return room
        usage = self.usage(directory)
        room = usage.free - max(int(usage.total * self.percent / 100), self.min_bytes)
        with self._lock:
            self._measured[directory] = (now, room)
        return room

    def require(self, directory: Path, size_bytes: int = 0, *, anew: bool = False) -> None:
        """Refuse to write `size_bytes` more below `directory`. Blocks, as `room`. Raises InsufficientStorage.

        A file system that cannot be measured refuses nothing: the write itself reports the problem.
        """
        if self.is_off:
            return
        try:
            room = self.room(directory, anew=anew)
        except OSError:
            return
        if room <= 0 or size_bytes > room:
            raise InsufficientStorage


NO_FLOOR = DiskFloor()


def disk_floor(settings: "Settings") -> DiskFloor:
    """The floor of the settings, for all writers of this machine."""
    desktop = settings.desktop
    return DiskFloor(percent=desktop.min_free_percent, min_bytes=desktop.min_free_bytes)


def affordable_connections(*, at_most: bool = False) -> int:
    """How many connections the limit of open files permits; `at_most`: once it is raised as far as possible."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[at_most]
    if limit == resource.RLIM_INFINITY:
        return 2**31
    return max(limit - max(_OTHER_DESCRIPTORS, limit // 5), 1)


def raise_file_limit(max_connections: int) -> None:
    """Raise the soft limit of open files to what `max_connections` need; log when the hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max_connections + max(_OTHER_DESCRIPTORS, max_connections // 4) + 1
    if soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(raised, soft), hard))
    if (affordable := affordable_connections()) < max_connections:
        log.warning(
            "desktop.max_connections is above what the limit of open files permits",
            max_connections=max_connections,
            permitted=affordable,
            advice="raise the hard limit (ulimit -Hn, LimitNOFILE of systemd)",
        )


@dataclass(slots=True, eq=False)
class _Line:
    """The waiting calls of one user, the oldest first."""

    came: int
    """When it began, as a number that grows from line to line."""
    calls: "deque[asyncio.Future[None]]" = field(default_factory=deque[asyncio.Future[None]])
    rank: "_Rank | None" = None
    """Its entry in the queue; None while the user holds a share."""

    def has_calls(self) -> bool:
        """Whether a call still waits. Those that gave up are dropped from the front."""
        while self.calls and self.calls[0].done():
            self.calls.popleft()
        return bool(self.calls)


_Rank = tuple[int, int, int, int]
"""Places held, number of the last turn, when the line began, and the user: the lowest one is next."""

_NO_TURN = -1
_FEW_RANKS = 16


class FairPlaces:
    """`places` in all, at most `per_user` of them for one user. For one event loop.

    A user who holds a share waits with the next call in a line of their own, of at most `max_waiting` calls and for at
    most `wait_s`; None: no limit. A free place goes to the waiting user who holds the fewest places, and among equals
    to the one who has waited longest since their last turn. Each step takes a time that hardly depends on the number
    of waiting users.
    """

    def __init__(
        self, places: int, *, per_user: int = 1, max_waiting: int | None = 16, wait_s: float | None = 60.0
    ) -> None:
        self._free = places
        self._per_user = per_user
        self._max_waiting = max_waiting
        self._wait_s = wait_s
        self._held: Counter[int] = Counter()
        self._turns = itertools.count()
        self._last_turns: dict[int, int] = {}
        """Of users who hold a place or wait."""
        self._lines: dict[int, _Line] = {}
        self._begun_lines = itertools.count()
        self._queue: list[_Rank] = []
        """A heap. It also has former ranks of a line, which are skipped."""

    @asynccontextmanager
    async def place(self, user_id: int) -> AsyncGenerator[None]:
        """A place while inside. Raises TooManyRequests."""
        await self.take(user_id)
        try:
            yield
        finally:
            self.give_back(user_id)

    async def take(self, user_id: int) -> None:
        """Wait for a place, which must be given back. Raises TooManyRequests."""
        if self._free and self._held[user_id] < self._per_user:  # no other user may have it: they would not wait
            self._grant(user_id)
            return
        turn = self._wait(user_id)
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except TimeoutError:
            self._leave(user_id, turn)
            raise TooManyRequests("The processor is busy with earlier calls.", retry_after=_RETRY_AFTER) from None
        except asyncio.CancelledError:
            self._leave(user_id, turn)
            raise

    def give_back(self, user_id: int) -> None:
        """The next user in turn gets the place."""
        self._held[user_id] -= 1
        if not self._held[user_id]:
            del self._held[user_id]
        if line := self._lines.get(user_id):
            self._enqueue(user_id, line)
        self._forget(user_id)
        self._free += 1
        self._assign()

    @property
    def waiting(self) -> int:
        return sum(not turn.done() for line in self._lines.values() for turn in line.calls)

    @property
    def held(self) -> int:
        return self._held.total()

    @property
    def is_unused(self) -> bool:
        return not self._held and not self.waiting

    def _wait(self, user_id: int) -> "asyncio.Future[None]":
        """A call at the end of the user's line, done with its turn. Raises TooManyRequests."""
        line = self._lines.get(user_id) or _Line(next(self._begun_lines))
        if self._max_waiting is not None and sum(not turn.done() for turn in line.calls) >= self._max_waiting:
            raise TooManyRequests("Too many of your calls wait for the processor.", retry_after=_RETRY_AFTER)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.calls.append(turn)
        if user_id not in self._lines:
            self._lines[user_id] = line
            self._enqueue(user_id, line)
        return turn

    def _leave(self, user_id: int, turn: "asyncio.Future[None]") -> None:
        """A call that got its place in the moment of its timeout has to give it back."""
        if turn.done() and not turn.cancelled():
            self.give_back(user_id)
        else:
            turn.cancel()
            line = self._lines.get(user_id)
            if line is not None:
                with suppress(ValueError):  # one in the middle would stay until those before it have had theirs
                    line.calls.remove(turn)
                self._end_if_empty(user_id, line)

    def _assign(self) -> None:
        while self._free and self._queue:
            rank = heappop(self._queue)
            user_id = rank[-1]
            line = self._lines.get(user_id)
            if line is None or line.rank != rank or self._end_if_empty(user_id, line):
                continue
            self._grant(user_id)
            line.calls.popleft().set_result(None)
            if not self._end_if_empty(user_id, line):
                self._enqueue(user_id, line)

    def _grant(self, user_id: int) -> None:
        self._free -= 1
        self._held[user_id] += 1
        self._last_turns[user_id] = next(self._turns)

    def _enqueue(self, user_id: int, line: _Line) -> None:
        """Give the line the rank that fits what its user holds now."""
        held = self._held[user_id]
        if held >= self._per_user:
            line.rank = None
            return
        line.rank = (held, self._last_turns.get(user_id, _NO_TURN), line.came, user_id)
        heappush(self._queue, line.rank)
        # Calls that give up while no place gets free leave their ranks behind.
        if len(self._queue) > 2 * len(self._lines) + _FEW_RANKS:
            self._queue = [one.rank for one in self._lines.values() if one.rank is not None]
            heapify(self._queue)

    def _end_if_empty(self, user_id: int, line: _Line) -> bool:
        """Whether no call of the line waits any longer; it has ended then."""
        if line.has_calls():
            return False
        del self._lines[user_id]
        self._forget(user_id)
        return True

    def _forget(self, user_id: int) -> None:
        if not self._held[user_id] and user_id not in self._lines:
            self._last_turns.pop(user_id, None)


class Slots:
    """Places for each connector: no user holds more than `per_user` of them, and users take turns."""

    def __init__(self, *, per_connector: int, per_user: int) -> None:
        self._per_connector = per_connector
        self._per_user = per_user
        self._connectors: dict[str, FairPlaces] = {}

    @asynccontextmanager
    async def slot(self, connector: str, user_id: int) -> AsyncGenerator[None]:
        places = self._connectors.get(connector)
        if places is None:
            places = self._connectors[connector] = FairPlaces(
                self._per_connector, per_user=self._per_user, max_waiting=None, wait_s=None
            )
        try:
            async with places.place(user_id):
                yield
        finally:
            if places.is_unused:
                self._connectors.pop(connector, None)


class Held:
    """Bytes of a budget in use. To be released by its owner; one that is forgotten is released with its object."""

    def __init__(self, budget: "ByteBudget", user_id: int, size_bytes: int) -> None:
        self._budget = budget
        self._loop = asyncio.get_running_loop()
        self.user_id = user_id
        self.size_bytes = size_bytes

    def shrink(self, size_bytes: int) -> None:
        """Use less from now on; more than now changes nothing."""
        if size_bytes < self.size_bytes:
            freed, self.size_bytes = self.size_bytes - size_bytes, size_bytes
            self._budget.give_back(self.user_id, freed)

    def grow(self, size_bytes: int) -> bool:
        """Use more, if that is possible at once: waiting with bytes in hand could last for ever."""
        return size_bytes <= self.size_bytes or self._budget.extend(self, size_bytes - self.size_bytes)

    def release(self) -> None:
        """Give everything back. Idempotent."""
        self.shrink(0)

    def __del__(self) -> None:
        if self.size_bytes:
            # Objects may be collected in any thread; in a closed loop no call waits.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._budget.give_back, self.user_id, self.size_bytes)


@dataclass(slots=True)
class _Waiting:
    user_id: int
    size_bytes: int
    turn: "asyncio.Future[Held]"


class ByteBudget:
    """`max_bytes` in use at a time, at most half of them by one user. Only for one event loop.

    Callers are served in the order of their calls; one whose own share is used up does not hold up other users.
    A request above a share is cut to it, so that one call alone can always go on.
    """

    def __init__(self, max_bytes: int, *, wait_s: float = 30.0) -> None:
        self._max_bytes = max_bytes
        self._share = max(max_bytes // 2, 1)
        self._wait_s = wait_s
        self._used = 0
        self._by_user: Counter[int] = Counter()
        self._line: deque[_Waiting] = deque()

    @property
    def used_bytes(self) -> int:
        return self._used

    @property
    def waiting(self) -> int:
        return sum(not one.turn.done() for one in self._line)

    async def hold(self, user_id: int, size_bytes: int) -> Held:
        """Bytes of the budget, once they are free. Raises TooManyRequests when that takes too long."""
        waiting = _Waiting(user_id, min(size_bytes, self._share), asyncio.get_running_loop().create_future())
        self._line.append(waiting)
        self._assign()
        try:
            async with asyncio.timeout(self._wait_s):
                return await waiting.turn
        except TimeoutError:
            self._leave(waiting)
            raise TooManyRequests(
                "The memory for answers is in use by other calls.", retry_after=_RETRY_AFTER
            ) from None
        except asyncio.CancelledError:
            self._leave(waiting)
            raise

    def extend(self, held: Held, more_bytes: int) -> bool:
        """Whether `held` could become so much larger."""
        more_bytes = min(more_bytes, self._share - held.size_bytes)
        if more_bytes > 0:
            share = self._by_user[held.user_id] + more_bytes
            if self.waiting or more_bytes > self._max_bytes - self._used or share > self._share:
                return False
            self._take(held.user_id, more_bytes)
            held.size_bytes += more_bytes
        return True

    def give_back(self, user_id: int, size_bytes: int) -> None:
        self._used -= size_bytes
        self._by_user[user_id] -= size_bytes
        if not self._by_user[user_id]:
            del self._by_user[user_id]
        self._assign()

    def _leave(self, waiting: _Waiting) -> None:
        """A call that was served in the moment of its timeout has to give its bytes back."""
        if waiting.turn.done() and not waiting.turn.cancelled():
            waiting.turn.result().release()
        waiting.turn.cancel()
        self._assign()

    def _assign(self) -> None:
        left: deque[_Waiting] = deque()
        is_blocked = False
        for one in self._line:
            if one.turn.done():
                continue
            if self._by_user[one.user_id] + one.size_bytes > self._share:
                left.append(one)
            elif is_blocked or one.size_bytes > self._max_bytes - self._used:
                # Its turn comes as soon as bytes are free: later calls do not take them away.
                is_blocked = True
                left.append(one)
            else:
                self._take(one.user_id, one.size_bytes)
                one.turn.set_result(Held(self, one.user_id, one.size_bytes))
        self._line = left

    def _take(self, user_id: int, size_bytes: int) -> None:
        self._used += size_bytes
        self._by_user[user_id] += size_bytes


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(eq=False, repr=False)
class LruCache(Generic[K, V]):
    """At most `most` values, or with `weigh` so much weight; the least recently used go first.

    A value is gone `life_s` after it was put, however often it was used. The newest `least` values always stay.
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
        """The value, which counts as used now; None: it is not kept."""
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
        """Keep a value in the place of a former one; the keys that were dropped for it."""
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
        """Take a value out; None: it is not kept."""
        kept = self._kept.pop(key, None)
        if kept is None:
            return None
        self._weight -= kept[1]
        return kept[0]

    def drop_old(self) -> list[K]:
        """Drop the values that are gone by their age; their keys."""
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
