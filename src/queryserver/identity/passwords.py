"""Hashes passwords and rates their strength."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, cast

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from queryserver.errors.base import LoginBackendUnavailable
from queryserver.identity.threads import LimitedThreads

_ESTIMATED_CHARACTERS = 72
"""Only this many characters are rated: the time grows quadratically, and a strong prefix makes a strong password."""
_THREADS = 2
_MAX_CALLS = 500


@dataclass(frozen=True, slots=True)
class Strength:
    score: int
    """0: guessed within 1,000 attempts; 1: within a million; 2: 100 million; 3: 10 billion; 4: more."""
    reason: str
    """A sentence that explains why the password is weak; empty if there is none."""


def strength(password: str, *, name: str) -> Strength:
    """Rate the password with zxcvbn, which knows common passwords, words, repetitions, keyboard patterns and dates."""
    # Imported here: the import takes 14 MB and 0.2 s, and few processes ever set a password.
    from zxcvbn import zxcvbn  # noqa: PLC0415 as above

    found = zxcvbn(password[:_ESTIMATED_CHARACTERS], user_inputs=[name, "queryserver"])
    return Strength(found["score"], found["feedback"]["warning"] or "")


class Passwords:
    """Hashes passwords with argon2id. Each call takes tens of milliseconds in one of two threads.

    Raises LoginBackendUnavailable if 500 calls are already in progress or a call takes longer than 10 s.
    """

    # OWASP's recommendation for argon2id. RFC 9106 suggests 64 MiB and four lanes, which keeps all CPUs busy for 110 ms
    # per login here: almost a minute when 500 people log in at nine o'clock.
    hasher: ClassVar = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._threads = LimitedThreads("passwords", threads=_THREADS, max_waiting=_MAX_CALLS - _THREADS)
        self.close = self._threads.close
        self._hasher = hasher or self.hasher
        # Verified for unknown users, so that they take as long as known users.
        self._dummy_hash = self._hasher.hash("nobody's password")

    async def hash(self, password: str) -> str:
        return str(await self._in_thread(lambda: self._hasher.hash(password)))

    async def strength(self, password: str, *, name: str) -> Strength:
        """Rate how hard the password is to guess for an attacker who knows the user name."""
        return cast("Strength", await self._in_thread(lambda: strength(password, name=name)))

    async def verify(self, password_hash: str | None, password: str) -> bool:
        """Return whether the password matches the hash. Takes equally long, and returns False, if the hash is None."""

        def matches() -> bool:
            try:
                return self._hasher.verify(password_hash or self._dummy_hash, password)
            except (VerificationError, InvalidHashError):
                return False

        return await self._in_thread(matches) is True and password_hash is not None

    def is_outdated(self, password_hash: str) -> bool:
        """Return whether the hash was created with outdated parameters."""
        return self._hasher.check_needs_rehash(password_hash)

    async def _in_thread(self, work: Callable[[], object]) -> object:
        try:
            return await self._threads.call(work)
        except TimeoutError:
            raise LoginBackendUnavailable("Too many concurrent logins.") from None
