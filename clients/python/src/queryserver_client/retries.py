"""Decides which calls are retried, when, and for how long.

A call is retried if it was not executed or if it is idempotent. It was not executed if the connection was refused, or
if the server responded with 429, or with 503 and a code in NOTHING_DONE. Reads and calls with an idempotency key are
idempotent.
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
"""Codes of 503 responses to calls that the server has not executed (Contract editor 1.5, platform 1.4)."""
LASTING = frozenset({"quota_exceeded"})
"""Codes of 429 responses that are not retried, because the user must first close results."""
_PROXY_STATUSES = frozenset({408, 502, 504})
_SECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?")


@dataclass(frozen=True)
class Retries:
    """How long and at which intervals a call is retried. `total_s=0` disables retries."""

    total_s: float = 60.0
    """Seconds after the first failure during which the call is retried. Any progress resets the time."""
    first_s: float = 0.1
    most_s: float = 5.0
    """Maximum pause in seconds if the server does not specify one."""
    unreached_s: float = 10.0
    """Upper limit of `total_s` until the server has responded once, because the address may be wrong."""

    def begin(self) -> "Attempts":
        return Attempts(self)

    def for_s(self, *, is_reached: bool) -> float:
        """Return for how many seconds after the first failure a call is retried."""
        return self.total_s if is_reached else min(self.total_s, self.unreached_s)


class Attempts:
    """The attempts of one call."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self._began = time.monotonic()
        self._failed_at: float | None = None
        self._wait_s = retries.first_s
        self.made = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first attempt began."""
        return time.monotonic() - self._began

    async def pause(self, retry_after_s: float | None = None, *, is_reached: bool = True) -> bool:
        """Wait before the next attempt. If the time for retries would expire before that, return False immediately."""
        self.made += 1
        now = anyio.current_time()
        if self._failed_at is None:
            self._failed_at = now
        # Jitter, so that many clients do not retry at the same time.
        wait_s = self._wait_s * random.uniform(0.5, 1)  # noqa: S311
        if retry_after_s is not None:
            wait_s = retry_after_s + wait_s / 10
        self._wait_s = min(self._wait_s * 2, self._retries.most_s)
        if now + wait_s > self._failed_at + self._retries.for_s(is_reached=is_reached):
            return False
        await anyio.sleep(wait_s)
        return True

    def progressed(self) -> None:
        """Record that data has arrived, so that the next failure counts as the first."""
        self._failed_at, self._wait_s = None, self._retries.first_s


class Rest:
    """A pause during which something that has failed is avoided. It doubles with each consecutive failure."""

    def __init__(self, first_s: float, most_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._first_s, self._max_s = first_s, most_s
        self._clock = clock
        self._next_s = first_s
        self._until: float | None = None

    @property
    def is_on(self) -> bool:
        return self._until is not None and self._clock() < self._until

    def failed(self) -> None:
        """Record a failure. Further failures during the pause, such as those of parallel streams, are ignored."""
        if not self.is_on:
            self._until = self._clock() + self._next_s
            self._next_s = min(self._next_s * 2, self._max_s)

    def worked(self) -> None:
        self._until, self._next_s = None, self._first_s


def may_repeat_answer(status: int, code: str, *, is_repeatable: bool, is_ours: bool) -> bool:
    """Return whether a call may be retried after this response.

    `is_ours` is False if the response did not come from queryserver, but for example from a proxy.
    """
    if status == 429:
        return code not in LASTING
    if status == 503:
        return is_repeatable or code in NOTHING_DONE
    if status in _PROXY_STATUSES or (not is_ours and status >= 500):
        return is_repeatable
    return False


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the Retry-After header (a number or a date) in seconds; None if it is absent or invalid."""
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
