"""Limits on concurrent work: places per user, and a budget in bytes."""

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

from queryserver.errors.base import TooManyRequests

_RETRY_AFTER = timedelta(seconds=2)

MAX_WAITING = 16
WAIT_S = 60.0


class FairPlaces:
    """`places` in all, at most `per_user` of them for one user. For one event loop.

    A user who holds a share waits with the next call in a line of their own, of at most `max_waiting` calls and for at
    most `wait_s`; None: no limit. A free place goes to the waiting user who holds the fewest places, and among equals
    to the one who has waited longest since their last turn.
    """

    def __init__(
        self,
        places: int,
        *,
        per_user: int = 1,
        max_waiting: int | None = MAX_WAITING,
        wait_s: float | None = WAIT_S,
    ) -> None:
        self._free = places
        self._per_user = per_user
        self._max_waiting = max_waiting
        self._wait_s = wait_s
        self._held: Counter[int] = Counter()
        self._turns = itertools.count()
        self._last_turns: dict[int, int] = {}
        """Of users who hold a place or wait."""
        self._lines: dict[int, deque[asyncio.Future[None]]] = {}

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
        line = self._lines.setdefault(user_id, deque())
        if self._max_waiting is not None and sum(not turn.done() for turn in line) >= self._max_waiting:
            raise TooManyRequests("Too many of your calls wait for the processor.", retry_after=_RETRY_AFTER)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(turn)
        self._assign()
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
            self._forget(user_id)
        self._free += 1
        self._assign()

    @property
    def waiting(self) -> int:
        """Calls in line."""
        return sum(not turn.done() for line in self._lines.values() for turn in line)

    @property
    def is_unused(self) -> bool:
        """No place is held and no call waits."""
        return not self._held and not self.waiting

    def _leave(self, user_id: int, turn: "asyncio.Future[None]") -> None:
        """A call that was given its place in the very moment in which it gave up has to give it back."""
        if turn.done() and not turn.cancelled():
            self.give_back(user_id)
        else:
            turn.cancel()
            line = self._lines.get(user_id)
            if line is not None and turn in line:  # one in the middle would stay until those before it have had theirs
                line.remove(turn)
            self._assign()

    def held(self, user_id: int) -> int:
        """Places of one user."""
        return self._held[user_id]

    def _assign(self) -> None:
        while self._free and (user_id := self._next_user()) is not None:
            self._free -= 1
            self._held[user_id] += 1
            self._last_turns[user_id] = next(self._turns)
            self._lines[user_id].popleft().set_result(None)
        self._forget_empty_lines()

    def _next_user(self) -> int | None:
        self._forget_empty_lines()
        waiting = [user_id for user_id in self._lines if self._held[user_id] < self._per_user]
        return min(waiting, key=lambda user_id: (self._held[user_id], self._last_turns.get(user_id, -1)), default=None)

    def _forget(self, user_id: int) -> None:
        if not self._held[user_id] and user_id not in self._lines:
            self._last_turns.pop(user_id, None)

    def _forget_empty_lines(self) -> None:
        for user_id in list(self._lines):
            line = self._lines[user_id]
            while line and line[0].done():
                line.popleft()
            if not line:
                del self._lines[user_id]
                self._forget(user_id)


class Slots:
    """Places for each connector: no user holds more than `per_user` of them, and users take turns."""

    def __init__(self, *, per_connector: int, per_user: int) -> None:
        self._per_connector = per_connector
        self._per_user = per_user
        self._connectors: dict[str, FairPlaces] = {}

    @asynccontextmanager
    async def slot(self, connector: str, user_id: int) -> AsyncGenerator[None]:
        """Inside, one of the places is taken."""
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


BYTE_BUDGET_WAIT_S = 30.0


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
        """Use more, if that is possible at once: who waits with bytes in hand could wait for ever."""
        return size_bytes <= self.size_bytes or self._budget.extend(self, size_bytes - self.size_bytes)

    def release(self) -> None:
        """Give everything back. Idempotent."""
        self.shrink(0)

    def __del__(self) -> None:
        if self.size_bytes:
            # Objects may be collected in any thread; a loop that is closed has nobody waiting.
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
    What is asked for beyond a share is cut to it, so that one call alone can always go on.
    """

    def __init__(self, max_bytes: int, *, wait_s: float = BYTE_BUDGET_WAIT_S) -> None:
        self._max_bytes = max_bytes
        self._share = max(max_bytes // 2, 1)
        self._wait_s = wait_s
        self._used = 0
        self._by_user: Counter[int] = Counter()
        self._line: deque[_Waiting] = deque()

    @property
    def used_bytes(self) -> int:
        """In use now."""
        return self._used

    @property
    def waiting(self) -> int:
        """Calls in line."""
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
            if not self._has_room(held.user_id, more_bytes):
                return False
            self._take(held.user_id, more_bytes)
            held.size_bytes += more_bytes
        return True

    def give_back(self, user_id: int, size_bytes: int) -> None:
        """From now on so much less is in use."""
        self._used -= size_bytes
        self._by_user[user_id] -= size_bytes
        if not self._by_user[user_id]:
            del self._by_user[user_id]
        self._assign()

    def _leave(self, waiting: _Waiting) -> None:
        """A call that was served in the moment in which it gave up has to give its bytes back."""
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
            if not self._has_share(one):
                left.append(one)
            elif is_blocked or one.size_bytes > self._max_bytes - self._used:
                # Its turn comes as soon as bytes are free: later calls do not take them away.
                is_blocked = True
                left.append(one)
            else:
                self._take(one.user_id, one.size_bytes)
                one.turn.set_result(Held(self, one.user_id, one.size_bytes))
        self._line = left

    def _has_share(self, one: _Waiting) -> bool:
        return self._by_user[one.user_id] + one.size_bytes <= self._share

    def _has_room(self, user_id: int, size_bytes: int) -> bool:
        free = self._max_bytes - self._used
        return not self.waiting and size_bytes <= free and self._by_user[user_id] + size_bytes <= self._share

    def _take(self, user_id: int, size_bytes: int) -> None:
        self._used += size_bytes
        self._by_user[user_id] += size_bytes
