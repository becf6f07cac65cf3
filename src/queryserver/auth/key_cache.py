"""The keys of another issuer, remembered by this process (Contract platform 3.9 rule 3)."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from queryserver.auth.key_server import KeySource, NoKeys
from queryserver.auth.key_sets import KeySet, VerifyingKey
from queryserver.domain.errors.base import KeyServerUnavailable
from queryserver.interfaces.metrics import UNMEASURED, AccountMetrics

log = structlog.get_logger(__name__)

# Keys that are due to be fetched again serve on while a key server is slow; longer nobody waits for it.
_PATIENCE_S = 1.0
# Without any keys every call would ask again, one after the other.
_PAUSE_WITHOUT_KEYS_S = 1.0


@dataclass(frozen=True, slots=True)
class CacheTimes:
    """In seconds; see `desktop.auth.jwt`."""

    cache_s: float = 3600
    refetch_floor_s: float = 30
    max_stale_s: float = 86400


class KeyCache:
    """Fetches when it has to, never twice at once. To be closed by its owner."""

    def __init__(
        self,
        source: KeySource,
        times: CacheTimes,
        *,
        clock: Callable[[], float] = time.monotonic,
        metrics: AccountMetrics = UNMEASURED,
    ) -> None:
        self._source = source
        self._metrics = metrics
        self._times = times
        self._clock = clock
        self._keys: KeySet | None = None
        self._known: frozenset[VerifyingKey] = frozenset()
        self._fetched_at = 0.0
        self._failed_at: float | None = None
        self._unknown_at: float | None = None
        self._flight: asyncio.Task[bool] | None = None

    def still_good(self, key: VerifyingKey) -> bool:
        """Whether a key is in the set, and the set needs no fetch now: a call that need not wait."""
        return key in self._known and self._clock() - self._fetched_at < self._times.cache_s

    async def find(self, kid: str | None) -> tuple[VerifyingKey, ...]:
        """The keys of that id, none when it is unknown; an unknown one may cause a fetch.

        Raises KeyServerUnavailable: there are no keys to judge by.
        """
        was_fetched = await self._refreshed()
        found = self._usable().find(kid)
        if found:
            return found
        now = self._clock()
        if was_fetched:
            self._unknown_at = now
            return ()
        if self._flight is None and _within(self._unknown_at, now, self._times.refetch_floor_s):
            return ()
        if self._flight is None:
            self._unknown_at = now
        await self._fetch()
        return self._usable().find(kid)

    async def aclose(self) -> None:
        """Give up a fetch under way, close connections."""
        if self._flight is not None:
            self._flight.cancel()
            await asyncio.wait([self._flight])
        await self._source.aclose()

    async def _refreshed(self) -> bool:
        """Fetch keys that are missing or due; whether they are new."""
        now = self._clock()
        if self._keys is not None and now - self._fetched_at < self._times.cache_s:
            return False
        has_keys = self._has_usable()
        pause_s = self._times.refetch_floor_s if has_keys else min(_PAUSE_WITHOUT_KEYS_S, self._times.refetch_floor_s)
        if self._flight is None and _within(self._failed_at, now, pause_s):
            return False
        return await self._fetch(patience_s=_PATIENCE_S if has_keys else None)

    async def _fetch(self, *, patience_s: float | None = None) -> bool:
        """Wait for the fetch under way, or for one that begins now; whether new keys came in that time."""
        flight = self._flight
        if flight is None:
            flight = self._flight = asyncio.create_task(self._fly(), name="key-fetch")
        # Whoever waits may leave; the fetch is for all.
        done, _ = await asyncio.wait([flight], timeout=patience_s)
        return bool(done) and flight.result()

    async def _fly(self) -> bool:
        try:
            keys = await self._source.fetch()
        except NoKeys:
            self._failed_at = self._clock()
            self._metrics.keys_fetched("failed")
            return False
        else:
            self._keys, self._known = keys, frozenset(keys.keys)
            self._fetched_at, self._failed_at = self._clock(), None
            self._metrics.keys_fetched("ok")
            log.info("keys fetched", keys=len(keys.keys))
            return True
        finally:
            self._flight = None

    def _has_usable(self) -> bool:
        """Whether there are keys that may be used, be they due or not."""
        longest = max(self._times.cache_s, self._times.max_stale_s)
        return self._keys is not None and self._clock() - self._fetched_at <= longest

    def _usable(self) -> KeySet:
        if self._keys is None or not self._has_usable():
            raise KeyServerUnavailable("The keys of the token's issuer cannot be had. Try again later.")
        return self._keys


def _within(moment: float | None, now: float, seconds: float) -> bool:
    return moment is not None and now - moment < seconds
