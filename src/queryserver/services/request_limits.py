"""The limit on calls per minute (Contract platform 1.6, setting `limits.api_requests_per_minute`; Rule T30).

Minutes of the clock are windows: whoever has used one up waits for the next. Each process counts by itself, so that no
call waits for the database, and tells the others once a second through it. So one process keeps the limit exactly; of
several together a caller may get what comes within a second more from each.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import structlog

from queryserver.db.deployment import RequestCounts
from queryserver.domain.errors.base import DatabaseUnavailable, TooManyRequests
from queryserver.services.client_networks import network_of

log = structlog.get_logger(__name__)

_WINDOW_S = 60
_TELL_EVERY_S = 1.0
# Users are known by then, addresses are not: a flood from more of them is no matter for a table in memory.
_MOST_ADDRESSES = 50_000


@dataclass(slots=True)
class _Calls:
    own: int = 0
    told: int = 0
    """How many of them the database knows."""
    others: int = 0
    """Those of other processes, as last heard."""


class RequestLimits:
    """Counts calls. Use `running()`. With `most` 0 nothing is counted and nobody is refused."""

    def __init__(self, counts: RequestCounts, *, most: int, clock: Callable[[], float] = time.time) -> None:
        self._counts = counts
        self._most = most
        self._clock = clock
        self._minute = 0
        self._calls: dict[str, _Calls] = {}
        self._addresses = 0

    @property
    def are_on(self) -> bool:
        """Whether there is a limit."""
        return self._most > 0

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Share counts with other processes, while inside."""
        if not self.are_on:
            yield
            return
        teller = asyncio.create_task(self._keep_telling(), name="request-counts")
        try:
            yield
        finally:
            teller.cancel()
            await asyncio.gather(teller, return_exceptions=True)

    def count_user(self, user_id: int) -> None:
        """One call of a user. Raises TooManyRequests."""
        if self.are_on:
            self._count(f"user {user_id}")

    def count_address(self, address: str) -> None:
        """One call to a public path. Raises TooManyRequests."""
        if self.are_on:
            self._count(f"address {network_of(address)}", is_address=True)

    async def tell(self) -> None:
        """Add what was counted since the last time to the sums of all processes. Raises DatabaseUnavailable."""
        self._turn()
        minute, calls = self._minute, self._calls
        news = {caller: one.own - one.told for caller, one in calls.items() if one.own > one.told}
        if not news:
            return
        sums = await self._counts.add(minute, news)
        for caller, told in news.items():
            one = calls[caller]
            one.told += told
            one.others = max(sums.get(caller, 0) - one.told, 0)

    def _count(self, caller: str, *, is_address: bool = False) -> None:
        """Calls that are refused do not count: they must not make the others' sums grow."""
        now = self._turn()
        one = self._calls.get(caller)
        if one is None:
            if is_address and self._addresses >= _MOST_ADDRESSES:
                return
            self._addresses += is_address
            one = self._calls[caller] = _Calls()
        if one.own + one.others >= self._most:
            left_s = _WINDOW_S - now % _WINDOW_S
            message = f"More than {self._most} calls in a minute. Try again later."
            raise TooManyRequests(message, retry_after=timedelta(seconds=left_s))
        one.own += 1

    def _turn(self) -> float:
        """The time; with a new minute everybody begins anew."""
        now = self._clock()
        minute = int(now // _WINDOW_S)
        if minute != self._minute:
            self._minute, self._calls, self._addresses = minute, {}, 0
        return now

    async def _keep_telling(self) -> None:
        forgotten = 0
        while True:
            await asyncio.sleep(_TELL_EVERY_S)
            try:
                await self.tell()
                if forgotten < self._minute:
                    await self._counts.forget(before=self._minute)
                    forgotten = self._minute
            except DatabaseUnavailable:
                log.warning("calls of other servers are not known: the database is out of reach")
            except Exception:  # the outer wall of a task: without it each server would count for itself for ever
                log.exception("counts of calls not told")
