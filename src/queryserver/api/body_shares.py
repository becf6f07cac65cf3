"""The bytes of request bodies in memory, by their sender: an attacker would send many and finish none."""

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager

from queryserver.domain.errors.base import ServiceUnavailable, TooManyRequests

BODY_SHARES = "queryserver.body_shares"
"""Key of a call's scope under which the BodyShares of the process are."""

_MIB = 1024 * 1024
_OF_USERS_BYTES = 192 * _MIB
_OF_STRANGERS_BYTES = 64 * _MIB

Hold = Callable[[int], None]
"""Counts that many further bytes. Raises TooManyRequests, ServiceUnavailable."""


class BodyShares:
    """The bytes of one process. Users together have one bound, and callers without credentials another.

    Anybody can send bodies of logins from many addresses; they must not keep users from sending theirs.
    """

    def __init__(self, of_users: int = _OF_USERS_BYTES, of_strangers: int = _OF_STRANGERS_BYTES) -> None:
        self._of_users = of_users
        self._of_strangers = of_strangers
        self._held: Counter[str] = Counter()
        self._sums: Counter[bool] = Counter()

    @contextmanager
    def holding(self, sender: str, most: int, *, is_user: bool) -> Generator[Hold]:
        """Counts the bytes of one body while inside; `most` bounds those of all bodies of the sender."""
        held = 0
        in_all = self._of_users if is_user else self._of_strangers

        def hold(size: int) -> None:
            nonlocal held
            if self._held[sender] + size > most:
                raise TooManyRequests("Too many bytes of your request bodies are under way.")
            if self._sums[is_user] + size > in_all:
                raise ServiceUnavailable("Too many bytes of request bodies are under way.")
            held += size
            self._sums[is_user] += size
            self._held[sender] += size

        try:
            yield hold
        finally:
            self._sums[is_user] -= held
            self._held[sender] -= held
            if not self._held[sender]:
                del self._held[sender]
