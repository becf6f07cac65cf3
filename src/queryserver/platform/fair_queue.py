"""Semaphores shared fairly among users, so that many calls of one user do not block other users, and a budget for the
memory that concurrent calls use."""

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from heapq import heapify, heappop, heappush

from queryserver.errors.base import TooManyRequests

_RETRY_AFTER = timedelta(seconds=2)


@dataclass(slots=True, eq=False)
class _Line:
    """The waiting calls of one user, oldest first."""

    number: int
    """Sequence number in the order in which lines were created."""
    calls: "deque[asyncio.Future[None]]" = field(default_factory=deque[asyncio.Future[None]])
    rank: "_Rank | None" = None
    """The line's current entry in the queue; None while the user holds the maximum number of slots."""

    def has_calls(self) -> bool:
        """Return whether any call is still waiting. Removes abandoned calls from the front."""
        while self.calls and self.calls[0].done():
            self.calls.popleft()
        return bool(self.calls)


_Rank = tuple[int, int, int, int]
"""Number of slots held, number of the last turn, line number, user id. The lowest rank is served next."""

_NO_TURN = -1
_FEW_RANKS = 16


class FairSemaphore:
    """A semaphore with `slots` slots, of which one user can hold at most `per_user`. For a single event loop.

    Each user has a separate line with at most `max_waiting` waiting calls, each waiting at most `wait_s`; None disables
    the limit. A free slot goes to the waiting user who holds the fewest slots; among equals, to the one whose last turn
    was longest ago. The cost of an operation hardly depends on the number of waiting users.
    """

    def __init__(
        self, slots: int, *, per_user: int = 1, max_waiting: int | None = 16, wait_s: float | None = 60.0
    ) -> None:
        self._free = slots
        self._per_user = per_user
        self._max_waiting = max_waiting
        self._wait_s = wait_s
        self._held: Counter[int] = Counter()
        self._turns = itertools.count()
        self._last_turns: dict[int, int] = {}
        """Number of the last turn of each user who holds a slot or waits."""
        self._lines: dict[int, _Line] = {}
        self._line_numbers = itertools.count()
        self._queue: list[_Rank] = []
        """A heap of ranks. Outdated ranks of a line stay in the heap until they are popped and skipped."""

    @asynccontextmanager
    async def slot(self, user_id: int) -> AsyncGenerator[None]:
        """Hold a slot while the context is open. Raises TooManyRequests."""
        await self.acquire(user_id)
        try:
            yield
        finally:
            self.release(user_id)

    async def acquire(self, user_id: int) -> None:
        """Wait for a slot. The caller must release it. Raises TooManyRequests."""
        # If a waiting user were entitled to this free slot, that user would already hold it.
        if self.has_free(user_id):
            self._grant(user_id)
            return
        turn = self._wait(user_id)
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except TimeoutError:
            self._abandon(user_id, turn)
            raise TooManyRequests("The processor is busy with earlier calls.", retry_after=_RETRY_AFTER) from None
        except asyncio.CancelledError:
            self._abandon(user_id, turn)
            raise

    def release(self, user_id: int) -> None:
        """Release a slot and grant it to the next user in turn."""
        self._held[user_id] -= 1
        if not self._held[user_id]:
            del self._held[user_id]
        if line := self._lines.get(user_id):
            self._enqueue(user_id, line)
        self._forget(user_id)
        self._free += 1
        self._assign()

    def has_free(self, user_id: int) -> bool:
        """Return whether the user could acquire a slot without waiting."""
        return self._free > 0 and self._held[user_id] < self._per_user

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
        """Append a future to the user's line. Granting a slot sets its result. Raises TooManyRequests."""
        line = self._lines.get(user_id) or _Line(next(self._line_numbers))
        if self._max_waiting is not None and sum(not turn.done() for turn in line.calls) >= self._max_waiting:
            raise TooManyRequests("Too many of your calls are waiting for the processor.", retry_after=_RETRY_AFTER)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.calls.append(turn)
        if user_id not in self._lines:
            self._lines[user_id] = line
            self._enqueue(user_id, line)
        return turn

    def _abandon(self, user_id: int, turn: "asyncio.Future[None]") -> None:
        """Stop waiting. If a slot was granted just as the timeout expired, release it."""
        if turn.done() and not turn.cancelled():
            self.release(user_id)
        else:
            turn.cancel()
            line = self._lines.get(user_id)
            if line is not None:
                with suppress(ValueError):  # removed here, because `has_calls` only removes from the front
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
        """Add the line to the queue, ranked by the number of slots that its user holds now.

        A line whose user holds the maximum number of slots is left out.
        """
        held = self._held[user_id]
        if held >= self._per_user:
            line.rank = None
            return
        line.rank = (held, self._last_turns.get(user_id, _NO_TURN), line.number, user_id)
        heappush(self._queue, line.rank)
        # While no slot becomes free, outdated ranks of abandoned calls would accumulate in the heap.
        if len(self._queue) > 2 * len(self._lines) + _FEW_RANKS:
            self._queue = [one.rank for one in self._lines.values() if one.rank is not None]
            heapify(self._queue)

    def _end_if_empty(self, user_id: int, line: _Line) -> bool:
        """Remove the line if none of its calls is waiting. Returns whether it was removed."""
        if line.has_calls():
            return False
        del self._lines[user_id]
        self._forget(user_id)
        return True

    def _forget(self, user_id: int) -> None:
        if not self._held[user_id] and user_id not in self._lines:
            self._last_turns.pop(user_id, None)


class ConnectorSlots:
    """Slots per connector, of which one user can hold at most `per_user`. Users take turns."""

    def __init__(self, *, per_connector: int, per_user: int) -> None:
        self._per_connector = per_connector
        self._per_user = per_user
        self._connectors: dict[str, FairSemaphore] = {}

    def has_free(self, connector: str, user_id: int) -> bool:
        """Return whether a slot is free for the user now. It is not reserved."""
        slots = self._connectors.get(connector)
        return slots is None or slots.has_free(user_id)

    @asynccontextmanager
    async def slot(self, connector: str, user_id: int) -> AsyncGenerator[None]:
        slots = self._connectors.get(connector)
        if slots is None:
            slots = self._connectors[connector] = FairSemaphore(
                self._per_connector, per_user=self._per_user, max_waiting=None, wait_s=None
            )
        try:
            async with slots.slot(user_id):
                yield
        finally:
            if slots.is_unused:
                self._connectors.pop(connector, None)


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
        """Enlarge the reservation to this size if that is possible without waiting. Returns whether it was possible.

        Never waits, because two reservations that wait for each other would deadlock.
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
        """Wait until the bytes are available and reserve them. Raises TooManyRequests if that takes longer than
        `wait_s`.
        """
        waiting = _Waiting(user_id, min(size_bytes, self._share), asyncio.get_running_loop().create_future())
        self._line.append(waiting)
        self._assign()
        try:
            async with asyncio.timeout(self._wait_s):
                return await waiting.turn
        except TimeoutError:
            self._abandon(waiting)
            raise TooManyRequests(
                "The memory for responses is in use by other calls (`editor.rendering_max_bytes`). Try again later, or"
                " request fewer rows.",
                retry_after=_RETRY_AFTER,
            ) from None
        except asyncio.CancelledError:
            self._abandon(waiting)
            raise

    def extend(self, reservation: Reservation, more_bytes: int) -> bool:
        """Enlarge `reservation` by `more_bytes` if that is possible without waiting. Returns whether it was."""
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
