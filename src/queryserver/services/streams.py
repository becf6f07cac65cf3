"""How many waits, event streams and downloads one caller has open in this process, and whether they may go on."""

import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, contextmanager
from datetime import timedelta

from queryserver.domain.errors.base import TooManyStreams
from queryserver.domain.user import User
from queryserver.services.standing import Standing

Permits = Callable[[User], object]
"""Raises a domain error when a user may not go on."""


def _anything(user: User) -> None:
    del user


class StreamPlace:
    """The place of one long call."""

    def __init__(self, user: User, standing: Standing, every_s: float, clock: Callable[[], float]) -> None:
        self._user = user
        self._standing = standing
        self._every_s = every_s
        self._clock = clock
        self._due = clock() + every_s

    async def recheck(self, permits: Permits = _anything) -> None:
        """Read the user and the rights again, if that was not done lately; call it at each step of the work.

        Raises UserNotFound, UserInactive, InvalidToken, and what `permits` raises.
        """
        if self._clock() < self._due:
            return
        self._due = self._clock() + self._every_s
        permits(await self._standing.now(self._user))

    async def rechecked(self, pieces: AsyncGenerator[bytes], permits: Permits = _anything) -> AsyncGenerator[bytes]:
        """The pieces, while the user may go on. Raises as `recheck`."""
        async with aclosing(pieces):
            async for piece in pieces:
                await self.recheck(permits)
                yield piece


class Streams:
    """Places for long calls (Contract editor 13: `max_streams_per_user`). Each reads its user again `every`."""

    def __init__(
        self,
        max_per_user: int,
        standing: Standing,
        *,
        every: timedelta,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_per_user = max_per_user
        self._standing = standing
        self._every_s = every.total_seconds()
        self._clock = clock
        self._open: Counter[int] = Counter()

    @contextmanager
    def place(self, user: User) -> Generator[StreamPlace]:
        """Inside, one place is taken. Raises TooManyStreams."""
        if self._open[user.id] >= self._max_per_user:
            raise TooManyStreams(f"{self._max_per_user} waits, event streams and downloads of yours are open.")
        self._open[user.id] += 1
        try:
            yield StreamPlace(user, self._standing, self._every_s, self._clock)
        finally:
            self._open[user.id] -= 1
            if not self._open[user.id]:
                del self._open[user.id]
