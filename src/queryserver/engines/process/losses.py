"""Users whose statements end the process of a database again and again wait before their next one."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from math import ceil

from queryserver.errors.base import TooManyRequests

_FREE = 2.0
"""So many lost processes have no consequence."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 5.0, 300.0
_HALF_LIFE_S = 600.0


@dataclass(slots=True)
class _Record:
    score: float = 0.0
    """Lost processes; an old one counts half after ten minutes."""
    lost_at: float = 0.0
    waits_until: float = 0.0


class Losses:
    """Of the processes of one database, by user. Each wait is twice as long as the one before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._records = dict[int, _Record]()

    def require_admitted(self, user_id: int) -> None:
        """Raises TooManyRequests while the user has to wait."""
        record = self._records.get(user_id)
        if record is not None and (left := record.waits_until - self._clock()) > 0:
            raise TooManyRequests(
                "Your statements have ended the process of this database several times. Try again in"
                f" {ceil(left)} seconds, with less work at a time.",
                retry_after=timedelta(seconds=ceil(left)),
            )

    def note(self, user_id: int, share: float) -> None:
        """A process was lost while statements of the user ran; `share`: 1 divided by all statements that ran."""
        now = self._clock()
        self._records = {user: one for user, one in self._records.items() if now - one.lost_at < 8 * _HALF_LIFE_S}
        record = self._records.setdefault(user_id, _Record())
        record.score = record.score * 0.5 ** ((now - record.lost_at) / _HALF_LIFE_S) + share
        record.lost_at = now
        if record.score > _FREE:
            record.waits_until = now + min(_FIRST_WAIT_S * 2 ** (record.score - _FREE), _LONGEST_WAIT_S)
