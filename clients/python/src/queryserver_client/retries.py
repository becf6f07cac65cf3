"""Which calls are repeated, when, and for how long.

A call is repeated when it was not carried out, or when a repeat does no harm. Not carried out: the connection was
refused, the server answered 429, or 503 with a code that says so. Harmless: reading, and what has an idempotency key.
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
"""Codes of 503 with which the server says that it has not begun (Contract editor 1.5, platform 1.4)."""
LASTING = frozenset({"quota_exceeded"})
"""Codes of 429 that waiting does not change: the user must close results first."""
_PROXY_STATUSES = frozenset({408, 502, 504})
_SECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?")


@dataclass(frozen=True)
class Retries:
    """How long, and how often, a call is repeated. `total_s=0` repeats nothing."""

    total_s: float = 60.0
    """From the first failure until the call is given up; a success in between starts it anew."""
    first_s: float = 0.1
    most_s: float = 5.0
    """The longest wait where the server names none."""
    unreached_s: float = 10.0
    """In place of a longer `total_s` until the server has answered for the first time: the address may be wrong."""

    def begin(self) -> "Attempts":
        return Attempts(self)

    def for_s(self, *, is_reached: bool) -> float:
        """Seconds from the first failure until a call is given up."""
        return self.total_s if is_reached else min(self.total_s, self.unreached_s)


class Attempts:
    """The tries of one call."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self._failed_at: float | None = None
        self._wait_s = retries.first_s
        self.made = 0

    async def pause(self, retry_after_s: float | None = None, *, is_reached: bool = True) -> bool:
        """Wait before the next try. False, at once, when that would end after the time for retries."""
        self.made += 1
        now = anyio.current_time()
        if self._failed_at is None:
            self._failed_at = now
        # Many clients must not come back together.
        wait_s = self._wait_s * random.uniform(0.5, 1)  # noqa: S311
        if retry_after_s is not None:
            wait_s = retry_after_s + wait_s / 10
        self._wait_s = min(self._wait_s * 2, self._retries.most_s)
        if now + wait_s > self._failed_at + self._retries.for_s(is_reached=is_reached):
            return False
        await anyio.sleep(wait_s)
        return True

    def progressed(self) -> None:
        """Something arrived: the next failure counts as the first one."""
        self._failed_at, self._wait_s = None, self._retries.first_s


class Rest:
    """For how long something that did not work is left alone: twice as long after each failure in a row."""

    def __init__(self, first_s: float, most_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._first_s, self._most_s = first_s, most_s
        self._clock = clock
        self._next_s = first_s
        self._until: float | None = None

    @property
    def is_on(self) -> bool:
        return self._until is not None and self._clock() < self._until

    def failed(self) -> None:
        """What fails at the same time, such as several streams at once, counts as one failure."""
        if not self.is_on:
            self._until = self._clock() + self._next_s
            self._next_s = min(self._next_s * 2, self._most_s)

    def worked(self) -> None:
        self._until, self._next_s = None, self._first_s


def may_repeat_answer(status: int, code: str, *, is_repeatable: bool, is_ours: bool) -> bool:
    """Whether a call that was answered so may be made again.

    `is_ours` is False for an answer that did not come from queryserver.
    """
    if status == 429:
        return code not in LASTING
    if status == 503:
        return is_repeatable or code in NOTHING_DONE
    if status in _PROXY_STATUSES or (not is_ours and status >= 500):
        return is_repeatable
    return False


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of the header Retry-After, which is a number or a date; None without it."""
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
