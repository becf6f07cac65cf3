"""A number of bytes in memory that calls share."""

import asyncio
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from queryserver.errors.base import TooManyRequests

_RETRY_AFTER = timedelta(seconds=2)


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
