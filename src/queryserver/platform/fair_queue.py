"""Shares a number of places between users, so that one with many calls does not hold up the others."""

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
