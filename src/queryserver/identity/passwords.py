"""Hashes of passwords."""

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import ClassVar, Self, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from queryserver.errors.base import LoginBackendUnavailable

T = TypeVar("T")

_THREADS = 2
_MOST_WAITING = 500
_LIMIT_S = 10


class Passwords:
    """Hashes of argon2id. Each call takes tens of milliseconds of one of two threads.

    More than 500 waiting calls are refused, and a call that waits for 10 s: both raise LoginBackendUnavailable.
    """

    # OWASP's recommendation for argon2id. RFC 9106 would have 64 MiB and four lanes: 110 ms of all processors per
    # login here, which 500 people who log in at nine o'clock would feel for a minute.
    hasher: ClassVar = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)

    def __init__(self, threads: ThreadPoolExecutor, hasher: PasswordHasher) -> None:
        self._threads = threads
        self._hasher = hasher
        self._waiting = 0
        # The password of an unknown user is compared with it, which takes as long as any other.
        self._dummy_hash = hasher.hash("nobody's password")

    @classmethod
    @contextmanager
    def open(cls, hasher: PasswordHasher | None = None) -> Generator[Self]:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="passwords") as threads:
            yield cls(threads, hasher or cls.hasher)

    async def hash(self, password: str) -> str:
        return await self._in_thread(lambda: self._hasher.hash(password))

    async def verify(self, password_hash: str | None, password: str) -> bool:
        """Whether they belong together; without a hash the same work is done in vain."""

        def matches() -> bool:
            try:
                return self._hasher.verify(password_hash or self._dummy_hash, password)
            except (VerificationError, InvalidHashError):
                return False

        return await self._in_thread(matches) and password_hash is not None

    def is_outdated(self, password_hash: str) -> bool:
        """Whether the hash was made with other parameters than today's."""
        return self._hasher.check_needs_rehash(password_hash)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._waiting >= _MOST_WAITING:
            raise LoginBackendUnavailable("Too many logins at once.")
        self._waiting += 1
        try:
            async with asyncio.timeout(_LIMIT_S):
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except TimeoutError:
            raise LoginBackendUnavailable("Too many logins at once.") from None
        finally:
            self._waiting -= 1
