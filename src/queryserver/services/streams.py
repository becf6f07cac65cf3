"""How many waits, event streams and downloads one caller has open in this process."""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from queryserver.domain.errors import TooManyStreams
from queryserver.domain.user import User


class Streams:
    """Places for long calls (Contract editor 13: `max_streams_per_user`)."""

    def __init__(self, max_per_user: int) -> None:
        self._max_per_user = max_per_user
        self._open: Counter[int] = Counter()

    @contextmanager
    def place(self, user: User) -> Generator[None]:
        """Inside, one place is taken. Raises TooManyStreams."""
        if self._open[user.id] >= self._max_per_user:
            raise TooManyStreams(f"{self._max_per_user} waits, event streams and downloads of yours are open.")
        self._open[user.id] += 1
        try:
            yield
        finally:
            self._open[user.id] -= 1
            if not self._open[user.id]:
                del self._open[user.id]
