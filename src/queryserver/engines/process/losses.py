"""Delays the statements of users who have repeatedly crashed the process of a database."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from math import ceil

from queryserver.errors.base import TooManyRequests

_FREE = 2.0
"""Number of lost processes without consequences."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 5.0, 300.0
_HALF_LIFE_S = 600.0


@dataclass(slots=True)
class _Record:
    score: float = 0.0
    """Number of lost processes, which decays by half every ten minutes."""
    lost_at: float = 0.0
    waits_until: float = 0.0


class Losses:
    """Process losses of one database, by user. Each further loss doubles the wait."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._records = dict[int, _Record]()

    def require_admitted(self, user_id: int) -> None:
        """Raises TooManyRequests while the user must wait."""
        record = self._records.get(user_id)
        if record is not None and (left := record.waits_until - self._clock()) > 0:
            raise TooManyRequests(
                "Your statements have ended the process of this database several times. Try again in"
                f" {ceil(left)} seconds, with less work at a time.",
                retry_after=timedelta(seconds=ceil(left)),
            )

    def note(self, user_id: int, share: float) -> None:
        """Record the loss of a process that ran statements of the user; `share` is the user's share of it, 0 to 1."""
        now = self._clock()
        self._records = {user: one for user, one in self._records.items() if now - one.lost_at < 8 * _HALF_LIFE_S}
        record = self._records.setdefault(user_id, _Record())
        record.score = record.score * 0.5 ** ((now - record.lost_at) / _HALF_LIFE_S) + share
        record.lost_at = now
        if record.score > _FREE:
            record.waits_until = now + min(_FIRST_WAIT_S * 2 ** (record.score - _FREE), _LONGEST_WAIT_S)
