"""Limits the total memory that concurrent calls use."""

import asyncio
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from queryserver.errors.base import TooManyRequests

_RETRY_AFTER = timedelta(seconds=2)


class Reservation:
    """Bytes reserved from a budget. Call `release` when done; otherwise garbage collection releases the bytes."""

    def __init__(self, budget: "ByteBudget", user_id: int, size_bytes: int) -> None:
        self._budget = budget
        self._loop = asyncio.get_running_loop()
        self.user_id = user_id
        self.size_bytes = size_bytes

    def shrink(self, size_bytes: int) -> None:
        """Reduce the reservation to this size. Sizes that are not smaller have no effect."""
        if size_bytes < self.size_bytes:
            freed, self.size_bytes = self.size_bytes - size_bytes, size_bytes
            self._budget.release(self.user_id, freed)

    def grow(self, size_bytes: int) -> bool:
        """Enlarge the reservation to this size if that is possible without waiting. Returns whether it was.

        Never waits, because holders that wait for each other could deadlock.
        """
        return size_bytes <= self.size_bytes or self._budget.extend(self, size_bytes - self.size_bytes)

    def release(self) -> None:
        """Release all bytes. Idempotent."""
        self.shrink(0)

    def __del__(self) -> None:
        if self.size_bytes:
            # Garbage collection may run in any thread. If the loop is closed (RuntimeError), no call waits for bytes.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._budget.release, self.user_id, self.size_bytes)


@dataclass(slots=True)
class _Waiting:
    user_id: int
    size_bytes: int
    turn: "asyncio.Future[Reservation]"


class ByteBudget:
    """Limits reservations to `max_bytes` in total, and to half of that per user. For a single event loop.

    Requests are granted in order of arrival, but a user who has reached the per-user limit does not block other users.
    A request above the per-user limit is reduced to it, so that a single call can always proceed.
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

    async def reserve(self, user_id: int, size_bytes: int) -> Reservation:
        """Wait until the bytes are available and reserve them. Raises TooManyRequests if that takes `wait_s`."""
        waiting = _Waiting(user_id, min(size_bytes, self._share), asyncio.get_running_loop().create_future())
        self._line.append(waiting)
        self._assign()
        try:
            async with asyncio.timeout(self._wait_s):
                return await waiting.turn
        except TimeoutError:
            self._abandon(waiting)
            raise TooManyRequests(
                "The memory for answers is in use by other calls.", retry_after=_RETRY_AFTER
            ) from None
        except asyncio.CancelledError:
            self._abandon(waiting)
            raise

    def extend(self, reservation: Reservation, more_bytes: int) -> bool:
        """Enlarge `reservation` by `more_bytes` if possible without waiting. Returns whether it was."""
        more_bytes = min(more_bytes, self._share - reservation.size_bytes)
        if more_bytes > 0:
            share = self._by_user[reservation.user_id] + more_bytes
            if self.waiting or more_bytes > self._max_bytes - self._used or share > self._share:
                return False
            self._take(reservation.user_id, more_bytes)
            reservation.size_bytes += more_bytes
        return True

    def release(self, user_id: int, size_bytes: int) -> None:
        self._used -= size_bytes
        self._by_user[user_id] -= size_bytes
        if not self._by_user[user_id]:
            del self._by_user[user_id]
        self._assign()

    def _abandon(self, waiting: _Waiting) -> None:
        """Stop waiting. If the reservation was granted just as the timeout expired, release it."""
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
                # Freed bytes are kept for this request, so that smaller requests behind it cannot starve it.
                is_blocked = True
                left.append(one)
            else:
                self._take(one.user_id, one.size_bytes)
                one.turn.set_result(Reservation(self, one.user_id, one.size_bytes))
        self._line = left

    def _take(self, user_id: int, size_bytes: int) -> None:
        self._used += size_bytes
        self._by_user[user_id] += size_bytes
