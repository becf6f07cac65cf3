"""Hashes of passwords."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, cast

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from queryserver.errors.base import LoginBackendUnavailable
from queryserver.identity.threads import LimitedThreads

_ESTIMATED_CHARACTERS = 72
"""The time of an estimate grows with the square of the length; what is strong so far stays strong."""
_THREADS = 2
_MOST_CALLS = 500


@dataclass(frozen=True, slots=True)
class Strength:
    score: int
    """0: guessed by 1,000 tries; 1: by a million; 2: by 100 million; 3: by 10 billion; 4: not by these."""
    reason: str
    """What makes it weak, as a sentence or empty."""


def strength(password: str, *, name: str) -> Strength:
    """The estimate of zxcvbn: lists of passwords and words, repetitions, sequences, rows of keys, dates."""
    # 14 MB and 0.2 s, and few processes ever set a password.
    from zxcvbn import zxcvbn  # noqa: PLC0415 as above

    found = zxcvbn(password[:_ESTIMATED_CHARACTERS], user_inputs=[name, "queryserver"])
    return Strength(found["score"], found["feedback"]["warning"] or "")


class Passwords:
    """Hashes of argon2id. Each call takes tens of milliseconds of one of two threads.

    More than 500 calls at once are refused, and a call that waits for 10 s: both raise LoginBackendUnavailable.
    """

    # OWASP's recommendation for argon2id. RFC 9106 would have 64 MiB and four lanes: 110 ms of all processors per
    # login here, which 500 people who log in at nine o'clock would feel for a minute.
    hasher: ClassVar = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._threads = LimitedThreads("passwords", threads=_THREADS, most_waiting=_MOST_CALLS - _THREADS)
        self.close = self._threads.close
        self._hasher = hasher or self.hasher
        # The password of an unknown user is compared with it, which takes as long as any other.
        self._dummy_hash = self._hasher.hash("nobody's password")

    async def hash(self, password: str) -> str:
        return str(await self._in_thread(lambda: self._hasher.hash(password)))

    async def strength(self, password: str, *, name: str) -> Strength:
        """How hard a password is to guess by who knows the name of its user."""
        return cast("Strength", await self._in_thread(lambda: strength(password, name=name)))

    async def verify(self, password_hash: str | None, password: str) -> bool:
        """Whether they belong together; without a hash the same work is done in vain."""

        def matches() -> bool:
            try:
                return self._hasher.verify(password_hash or self._dummy_hash, password)
            except (VerificationError, InvalidHashError):
                return False

        return await self._in_thread(matches) is True and password_hash is not None

    def is_outdated(self, password_hash: str) -> bool:
        """Whether the hash was made with other parameters than today's."""
        return self._hasher.check_needs_rehash(password_hash)

    async def _in_thread(self, work: Callable[[], object]) -> object:
        try:
            return await self._threads.call(work)
        except TimeoutError:
            raise LoginBackendUnavailable("Too many logins at once.") from None
