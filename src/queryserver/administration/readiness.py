"""Checks whether this instance can serve calls (Contract platform 9.2)."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from queryserver.errors.base import QueryServerError

_LIMIT_S = 2.0
_STORE_EVERY_S = 10.0
_FAILED_STORE_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class ReadinessCheck:
    ok: bool
    ms: int


_NOT_NEEDED = ReadinessCheck(ok=True, ms=0)


@dataclass(slots=True, eq=False, kw_only=True)
class Readiness:
    """Checks the service's dependencies concurrently, for up to 2 s each. Never returns addresses or error texts."""

    database: Callable[[], Awaitable[object]]
    schema: Callable[[], Awaitable[object]]
    result_store: Callable[[], Awaitable[object]]
    broker: Callable[[], Awaitable[object]] | None = None
    """The check of the broker. None if the task server is disabled."""
    stopping: bool = field(default=False, init=False)
    """Set on the stop signal. The instance is not ready from then on."""
    _store: ReadinessCheck | None = field(default=None, init=False)
    _store_checked_at: float = field(default=0.0, init=False)
    _store_turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def checks(self) -> dict[str, ReadinessCheck]:
        """Run all checks. The result store is checked at most every 10 s, or every second while it fails."""
        database, schema, store, broker = await asyncio.gather(
            _check(self.database), _check(self.schema), self._check_store(), self._check_broker()
        )
        return {"database": database, "schema": schema, "result_store": store, "broker": broker}

    @property
    def has_broker(self) -> bool:
        return self.broker is not None

    async def _check_broker(self) -> ReadinessCheck:
        return _NOT_NEEDED if self.broker is None else await _check(self.broker)

    async def _check_store(self) -> ReadinessCheck:
        # Only one check runs at a time: any client may request it, and each check of a hanging disk occupies a thread.
        async with self._store_turn:
            every_s = _STORE_EVERY_S if self._store is None or self._store.ok else _FAILED_STORE_EVERY_S
            if self._store is None or time.monotonic() - self._store_checked_at >= every_s:
                self._store = await _check(self.result_store)
                self._store_checked_at = time.monotonic()
            return self._store


async def _check(check: Callable[[], Awaitable[object]]) -> ReadinessCheck:
    started = time.monotonic()
    try:
        async with asyncio.timeout(_LIMIT_S):
            await check()
    except (QueryServerError, TimeoutError):
        ok = False
    else:
        ok = True
    return ReadinessCheck(ok, int((time.monotonic() - started) * 1000))
