"""Limits calls per minute by user or address, and the number of long-running calls, whose users are rechecked."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from inspect import isawaitable

import structlog

from queryserver import errors
from queryserver.identity.callers import CallerRepository, TokenKey, api_token_user, require_valid
from queryserver.identity.model import User
from queryserver.platform.database import Database
from queryserver.platform.networks import network_of
from queryserver.platform.threads import background

# Sorted, so that servers lock shared rows in the same order. Counts of past minutes are discarded.
_ADD = """
insert into request_counts as known (caller, minute, requests)
select caller, $2, calls from unnest($1::text[], $3::int[]) as added (caller, calls) order by caller
on conflict (caller) do update set
    requests = case
        when known.minute = excluded.minute then known.requests + excluded.requests
        when known.minute < excluded.minute then excluded.requests
        else known.requests
    end,
    minute = greatest(known.minute, excluded.minute)
returning caller, requests
"""
_FORGET = """
with forgotten as (delete from request_counts where minute < floor(extract(epoch from now()) / 60))
select extract(epoch from now())::float8
"""


class RequestCounts:
    """The table `request_counts`. Each method is one transaction; all raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, minute: int, calls: Mapping[str, int]) -> Mapping[str, int]:
        """Add calls by caller for a minute (counted from 1970). Returns these callers' totals over all servers."""
        rows = await self._database.fetch(_ADD, list(calls), minute, list(calls.values()))
        return {row["caller"]: row["requests"] for row in rows}

    async def forget(self) -> float:
        """Delete the counts of past minutes. Returns the database's time in seconds since 1970."""
        return await self._database.value(_FORGET)


log = structlog.get_logger(__name__)

_WINDOW_S = 60
_EXCHANGE_EVERY_S = 1.0
# Addresses are not authenticated, so a flood of calls from many addresses must not exhaust memory.
_MAX_ADDRESSES = 50_000


@dataclass(slots=True)
class _Calls:
    own: int = 0
    sent: int = 0
    """Calls already added to the totals in the database."""
    others: int = 0
    """Calls of other processes as of the last exchange."""


class RequestLimits:
    """Counts and limits calls per minute. Enter `running()` to share counts. `limit=0` disables the limit."""

    def __init__(self, counts: RequestCounts, *, limit: int, clock: Callable[[], float] = time.time) -> None:
        self._counts = counts
        self._limit = limit
        self.are_on = limit > 0
        self._clock = clock
        self._ahead_s = 0.0
        self._minute = 0
        self._calls: dict[str, _Calls] = {}
        self._addresses = 0

    def running(self) -> AbstractAsyncContextManager[None]:
        """Exchange counts with other processes while the context is open."""
        return background(self._keep_exchanging(), "request-counts") if self.are_on else nullcontext()

    def count_user(self, user_id: int) -> None:
        """Count a call by the user. Raises TooManyRequests."""
        if self.are_on:
            self._count(f"user {user_id}")

    def count_address(self, address: str) -> None:
        """Count a call to a public path. Raises TooManyRequests."""
        if self.are_on:
            self._count(f"address {network_of(address)}", is_address=True)

    async def exchange(self) -> None:
        """Add the counts since the last exchange to the shared totals, and read the totals.

        Raises DatabaseUnavailable.
        """
        self._turn()
        minute, calls = self._minute, self._calls
        news = {caller: one.own - one.sent for caller, one in calls.items() if one.own > one.sent}
        if not news:
            return
        sums = await self._counts.add(minute, news)
        for caller, sent in news.items():
            one = calls[caller]
            one.sent += sent
            one.others = max(sums.get(caller, 0) - one.sent, 0)

    async def follow_clock(self) -> None:
        """Synchronize with the database's clock, so minutes are the same on all servers. Raises DatabaseUnavailable."""
        self._ahead_s = await self._counts.forget() - self._clock()

    def _count(self, caller: str, *, is_address: bool = False) -> None:
        """Count a call. Raises TooManyRequests if the limit is reached.

        Refused calls are not counted, so they do not increase the totals that other processes read.
        """
        now = self._turn()
        one = self._calls.get(caller)
        if one is None:
            if is_address and self._addresses >= _MAX_ADDRESSES:
                return
            self._addresses += is_address
            one = self._calls[caller] = _Calls()
        if one.own + one.others >= self._limit:
            left_s = _WINDOW_S - now % _WINDOW_S
            message = f"More than {self._limit} calls in a minute (`limits.api_requests_per_minute`). Try again later."
            raise errors.TooManyRequests(message, retry_after=timedelta(seconds=left_s))
        one.own += 1

    def _turn(self) -> float:
        """Return the current time. Resets all counts when a new minute begins."""
        now = self._clock() + self._ahead_s
        minute = int(now // _WINDOW_S)
        if minute != self._minute:
            self._minute, self._calls, self._addresses = minute, {}, 0
        return now

    async def _keep_exchanging(self) -> None:
        followed = None
        while True:
            try:
                if followed != self._minute:
                    await self.follow_clock()
                    followed = self._minute
                await self.exchange()
            except errors.DatabaseUnavailable:
                log.warning("call counts of other servers unknown: database unreachable")
            except Exception:  # if the task ended, each server would count only its own calls
                log.exception("call counts could not be exchanged")
            await asyncio.sleep(_EXCHANGE_EVERY_S)


Permits = Callable[[User], Awaitable[None] | object]
"""Raises a domain error if the user may not continue. The result is awaited if it can be."""


def _permit_always(user: User) -> None:
    del user


class StreamSlot:
    def __init__(self, user: User, records: CallerRepository, every_s: float, clock: Callable[[], float]) -> None:
        self._user = user
        self._records = records
        self._every_s = every_s
        self._clock = clock
        self._due = clock() + every_s

    @property
    def due_in_s(self) -> float:
        """Seconds until `recheck` next reads the user from the database."""
        return max(self._due - self._clock(), 0)

    async def recheck(self, permits: Permits = _permit_always) -> None:
        """Reread the user and the user's rights if due. Call this at each step of a long-running call.

        Raises UserNotFound, UserInactive, InvalidToken, and the errors of `permits`.
        """
        if self._clock() < self._due:
            return
        self._due = self._clock() + self._every_s
        checked = permits(await self._user_now())
        if isawaitable(checked):
            try:
                await checked
            except errors.DatabaseUnavailable:
                log.warning("grant of a long call not checked: database unreachable", user_id=self._user.id)

    async def rechecked(
        self, pieces: AsyncGenerator[bytes], permits: Permits = _permit_always
    ) -> AsyncGenerator[bytes]:
        """Yield the chunks while the user may continue. Raises the same errors as `recheck`."""
        async with aclosing(pieces):
            async for piece in pieces:
                await self.recheck(permits)
                yield piece

    async def _user_now(self) -> User:
        """Return the caller with current rights, or unchanged if the database is unavailable."""
        user = self._user
        try:
            if user.api_token is not None:
                return api_token_user(await self._records.api_token(user.api_token.digest))
            owner = await self._records.owner(TokenKey(user.id, *user.token_ids))
        except errors.DatabaseUnavailable:
            log.warning("rights of a long call not refreshed: database unreachable", user_id=user.id)
            return user
        present = require_valid(owner, user.token_epoch).user
        return replace(
            present, external_token=user.external_token, token_ids=user.token_ids, token_epoch=user.token_epoch
        )


@dataclass(eq=False, repr=False)
class Streams:
    """Slots for long calls (Contract editor 13: `max_streams_per_user`). Each slot rechecks its user at the interval
    `every`.
    """

    max_per_user: int
    records: CallerRepository
    every: timedelta
    clock: Callable[[], float] = time.monotonic
    _open: Counter[int] = field(default_factory=Counter[int], init=False)

    @contextmanager
    def slot(self, user: User) -> Generator[StreamSlot]:
        """Occupy a slot while the context is open. Raises TooManyStreams."""
        if self._open[user.id] >= self.max_per_user:
            raise errors.TooManyStreams(
                f"{self.max_per_user} of your waits, event streams and downloads are open, which is the limit"
                " (`editor.max_streams_per_user`). Wait until one of them ends."
            )
        self._open[user.id] += 1
        try:
            yield StreamSlot(user, self.records, self.every.total_seconds(), self.clock)
        finally:
            self._open[user.id] -= 1
            if not self._open[user.id]:
                del self._open[user.id]
