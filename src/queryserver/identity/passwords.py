"""The login back end `local`: passwords in the service database."""

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Self, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from queryserver.errors.base import InvalidUsername, LoginBackendUnavailable
from queryserver.identity.model import AuthenticatedUser, UsernameRule
from queryserver.identity.protocols import Passwords, RequestInfo
from queryserver.identity.repository import AccountRepository


class LocalLogin:
    """See `identity.protocols.LoginBackend`. A refusal takes the same work whatever its reason (Rule T15)."""

    def __init__(self, records: AccountRepository, passwords: Passwords, rule: UsernameRule) -> None:
        self._records = records
        self._passwords = passwords
        self._rule = rule

    async def login(self, username: str, password: str, request: RequestInfo) -> AuthenticatedUser | None:
        """The user of that name and password."""
        del request
        try:
            stored = await self._records.login_of(self._rule.read(username).key)
        except InvalidUsername:
            stored = None
        known_hash = stored.password_hash if stored else None
        if not await self._passwords.verify(known_hash, password) or stored is None or not stored.is_active:
            return None
        if known_hash and self._passwords.is_outdated(known_hash):
            await self._records.replace_hash(stored.user_id, old=known_hash, new=await self._passwords.hash(password))
        return AuthenticatedUser(stored.username)


T = TypeVar("T")

# OWASP's recommendation for argon2id. RFC 9106 would have 64 MiB and four lanes: 110 ms of all processors per login
# here, which 500 people who log in at nine o'clock would feel for a minute.
_PARAMETERS = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)

_THREADS = 2
_MOST_WAITING = 500
_LIMIT_S = 10


class Argon2Passwords:
    """See `identity.protocols.Passwords`. At most two run at once; more than 500 waiting are refused."""

    def __init__(self, threads: ThreadPoolExecutor, hasher: PasswordHasher = _PARAMETERS) -> None:
        self._threads = threads
        self._hasher = hasher
        self._waiting = 0
        # What an unknown user's password is compared with, so that it takes as long as any other.
        self._nobodys_hash = hasher.hash("nobody's password")

    @classmethod
    @contextmanager
    def open(cls, hasher: PasswordHasher = _PARAMETERS) -> Generator[Self]:
        """With threads that end with the block."""
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="passwords") as threads:
            yield cls(threads, hasher)

    async def hash(self, password: str) -> str:
        """A salted hash."""
        return await self._in_thread(lambda: self._hasher.hash(password))

    async def verify(self, password_hash: str | None, password: str) -> bool:
        """Whether they belong together; without a hash the same work is done in vain."""
        matches = await self._in_thread(lambda: self._matches(password_hash or self._nobodys_hash, password))
        return matches and password_hash is not None

    def is_outdated(self, password_hash: str) -> bool:
        """Whether the hash was made with other parameters than today's."""
        return self._hasher.check_needs_rehash(password_hash)

    def _matches(self, password_hash: str, password: str) -> bool:
        try:
            return self._hasher.verify(password_hash, password)
        except (VerificationError, InvalidHashError):
            return False

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
