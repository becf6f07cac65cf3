"""Places for work of users: nobody holds more than a share, and users take turns."""

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

from queryserver.domain.errors.base import TooManyRequests

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
