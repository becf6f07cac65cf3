"""Which calls are repeated, when, and for how long.

A call is repeated if it was not carried out, or if it is idempotent. It was not carried out if the connection was
refused, or the server responded with 429, or with 503 and a code that says so. Reads and calls with an idempotency key
are idempotent.
"""

import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

import anyio

NOTHING_DONE = frozenset({"stopping", "not_ready"})
"""503 codes with which the server reports that it has not started the call (Contract editor 1.5, platform 1.4)."""
LASTING = frozenset({"quota_exceeded"})
"""429 codes that waiting does not resolve, because the user must close results first."""
_PROXY_STATUSES = frozenset({408, 502, 504})
_SECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?")


@dataclass(frozen=True)
class Retries:
    """How long, and how often, a call is repeated. `total_s=0` disables retries."""

    total_s: float = 60.0
    """Time from the first failure until the call is given up. A success in between restarts it."""
    first_s: float = 0.1
    most_s: float = 5.0
    """The longest pause if the server does not specify one."""
    unreached_s: float = 10.0
    """Replaces a longer `total_s` until the server has responded for the first time, because the address may be
    wrong.
    """

    def begin(self) -> "Attempts":
        return Attempts(self)

    def for_s(self, *, is_reached: bool) -> float:
        """Return the number of seconds from the first failure until a call is given up."""
        return self.total_s if is_reached else min(self.total_s, self.unreached_s)


class Attempts:
    """One call's tries."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self._failed_at: float | None = None
        self._wait_s = retries.first_s
        self.made = 0

    async def pause(self, retry_after_s: float | None = None, *, is_reached: bool = True) -> bool:
        """Wait before the next try. Return False immediately if the pause would end after the time for retries."""
        self.made += 1
        now = anyio.current_time()
        if self._failed_at is None:
            self._failed_at = now
        # Many clients must not retry simultaneously.
        wait_s = self._wait_s * random.uniform(0.5, 1)  # noqa: S311
        if retry_after_s is not None:
            wait_s = retry_after_s + wait_s / 10
        self._wait_s = min(self._wait_s * 2, self._retries.most_s)
        if now + wait_s > self._failed_at + self._retries.for_s(is_reached=is_reached):
            return False
        await anyio.sleep(wait_s)
        return True

    def progressed(self) -> None:
        """Record that something arrived. The next failure then counts as the first one."""
        self._failed_at, self._wait_s = None, self._retries.first_s


class Rest:
    """How long to avoid something that did not work: the time doubles after each consecutive failure."""

    def __init__(self, first_s: float, most_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._first_s, self._max_s = first_s, most_s
        self._clock = clock
        self._next_s = first_s
        self._until: float | None = None

    @property
    def is_on(self) -> bool:
        return self._until is not None and self._clock() < self._until

    def failed(self) -> None:
        """Record a failure. Simultaneous failures, such as those of several streams, count as one."""
        if not self.is_on:
            self._until = self._clock() + self._next_s
            self._next_s = min(self._next_s * 2, self._max_s)

    def worked(self) -> None:
        self._until, self._next_s = None, self._first_s


def may_repeat_answer(status: int, code: str, *, is_repeatable: bool, is_ours: bool) -> bool:
    """Return whether a call with this response may be repeated.

    `is_ours` is False for a response that did not come from queryserver.
    """
    if status == 429:
        return code not in LASTING
    if status == 503:
        return is_repeatable or code in NOTHING_DONE
    if status in _PROXY_STATUSES or (not is_ours and status >= 500):
        return is_repeatable
    return False


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the Retry-After header, a number or a date, in seconds, or None without it."""
    value = headers.get("Retry-After", "").strip()
    if not value:
        return None
    if _SECONDS.fullmatch(value):
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    return max(0.0, (moment - datetime.now(timezone.utc)).total_seconds())
