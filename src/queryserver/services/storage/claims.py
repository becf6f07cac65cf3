"""Waiting for a claim, and keeping it while one works."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import structlog

from queryserver.domain.errors.base import DatabaseUnavailable

log = structlog.get_logger(__name__)

LEASE = timedelta(seconds=60)
"""After that time without a sign of life somebody else may take the work over."""

_RENEW_EVERY_S = LEASE.total_seconds() / 4
_LONGEST_PAUSE_S = 1.0


async def attempts(within_s: float) -> AsyncGenerator[None]:
    """Now, and again after longer and longer pauses, until the time is over."""
    clock = asyncio.get_running_loop().time
    end = clock() + within_s
    pause_s = 0.02
    while True:
        yield
        if clock() + pause_s > end:
            return
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


@asynccontextmanager
async def renewed(renew: Callable[[], Awaitable[bool]], *, every_s: float = _RENEW_EVERY_S) -> AsyncGenerator[None]:
    """Inside, a claim is renewed in the background. Who has lost it learns so from the records at the end."""
    keeper = asyncio.create_task(_renew(renew, every_s), name="claim")
    try:
        yield
    finally:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)


async def _renew(renew: Callable[[], Awaitable[bool]], every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        try:
            if not await renew():
                return
        except DatabaseUnavailable:
            log.warning("claim not renewed")
