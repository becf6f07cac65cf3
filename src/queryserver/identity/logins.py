"""From name and password to tokens (Contract platform 3.2, 3.8, 3.10, 4.1)."""

import asyncio
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self, TypeVar

import structlog
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from queryserver.errors.base import (
    AuthenticationFailed,
    IdentityRefused,
    InvalidPassword,
    InvalidUsername,
    LoginBackendUnavailable,
    QueryServerError,
    UserInactive,
    UserNotFound,
)
from queryserver.identity.model import AuthenticatedUser, UsernameRule, identity_of
from queryserver.identity.protocols import LoginBackend, Passwords, RequestInfo
from queryserver.identity.provisioning import Arrivals
from queryserver.identity.repository import AccountRepository, StoredLogin
from queryserver.identity.throttling import LoginThrottle
from queryserver.identity.tokens import AccountNotes, TokenPair, Tokens
from queryserver.identity.users import Accounts

log = structlog.get_logger(__name__)

LOCAL = "local"
"""The name of the back end with the passwords of the service database."""
_BACKEND_LIMIT_S = 10


@dataclass(frozen=True, slots=True)
class LoginSource:
    """One entry of `desktop.auth.backend`."""

    name: str
    backend: LoginBackend
    creates_users: bool = False
    """Whether the first login of a user whom it accepts makes the user."""
    issuer: str | None = None
    """Of the identities that it accepts; None: they are the users of the service database themselves."""


@dataclass(frozen=True, slots=True)
class LoginParts:
    """What logins work with. `backends` are asked in their order."""

    accounts: Accounts
    records: AccountRepository
    tokens: Tokens
    arrivals: Arrivals
    backends: Sequence[LoginSource]
    throttle: LoginThrottle
    usernames: UsernameRule
    notes: AccountNotes
    first_login_becomes_admin: bool = False


@dataclass(frozen=True, slots=True)
class _Attempt:
    """`username` as it was typed, and the key that it is known and counted under."""

    username: str
    key: str
    password: str = field(repr=False)
    request: RequestInfo


class Logins:
    """Logs people in, one answer for every reason of a refusal (Rule T15)."""

    def __init__(self, parts: LoginParts) -> None:
        self._parts = parts
        self._users_exist = False

    async def log_in(self, username: str, password: str, request: RequestInfo) -> TokenPair:
        """The tokens of a new login.

        Raises AuthenticationFailed, LoginThrottled, LoginBackendUnavailable, DatabaseUnavailable.
        """
        try:
            login, back_end = await self._log_in(_Attempt(username, self._key(username), password, request))
        except QueryServerError as error:
            self._parts.notes.refused(username, request.client, error)
            raise
        pair = self._parts.tokens.issue(login)
        self._parts.notes.accepted(login.username, request.client, back_end)
        return pair

    async def _log_in(self, attempt: _Attempt) -> tuple[StoredLogin, str]:
        """Who that is, and the name of the back end that accepted the login."""
        throttle, key, request = self._parts.throttle, attempt.key, attempt.request
        await throttle.require_free(key, request.client)
        try:
            # Read first: a password change during the check raises the epoch, and ends what we are about to issue.
            before = await self._parts.records.login_of(key)
            login, back_end = await self._accepted(attempt, before)
        except AuthenticationFailed:
            log.info("login refused", client=request.client)
            await self._tell_about_first_user()
            await throttle.count(key, request.client)
            raise
        # Of many guesses sent at once the right one must not stand out once the others have used up the limit.
        await throttle.require_free(key, request.client)
        await throttle.succeeded(key, request.client)
        await self._parts.records.record_login(login.user_id)
        log.info("login", user_id=login.user_id, client=request.client)
        return login, back_end

    async def _accepted(self, attempt: _Attempt, before: StoredLogin | None) -> tuple[StoredLogin, str]:
        if before is None and self._parts.first_login_becomes_admin:
            await self._create_first(attempt)
        source, accepted = await self._ask_backends(attempt)
        key = self._key(await self._settle(source, accepted))
        login = before if before and key == attempt.key else await self._parts.records.login_of(key)
        if login is None or not login.is_active:
            raise AuthenticationFailed
        if self._parts.first_login_becomes_admin and await self._parts.records.promote_first(login.user_id):
            log.warning("the first login has become an administrator", user_id=login.user_id)
            self._parts.notes.promoted(login.username, attempt.request.client)
        return login, source.name

    async def _settle(self, source: LoginSource, accepted: AuthenticatedUser) -> str:
        """The name of the user, with the groups that the back end gives. Raises AuthenticationFailed."""
        if source.issuer is None:
            return accepted.username
        identity = identity_of(source.issuer, accepted.username)
        try:
            user = await self._parts.arrivals.user(identity, person=accepted, may_create=source.creates_users)
        except (UserNotFound, UserInactive) as error:
            if isinstance(error, IdentityRefused):
                log.info("user of a login back end refused", backend=source.name, reason=error.reason)
            raise AuthenticationFailed from None
        return user.username

    async def _ask_backends(self, attempt: _Attempt) -> tuple[LoginSource, AuthenticatedUser]:
        """The first that accepts wins. Raises AuthenticationFailed, LoginBackendUnavailable."""
        is_out_of_reach = is_refused = False
        for source in self._parts.backends:
            try:
                async with asyncio.timeout(_BACKEND_LIMIT_S):
                    accepted = await source.backend.login(attempt.username, attempt.password, attempt.request)
            except AuthenticationFailed:
                # Whatever it says: every refused login looks the same (Rule T15).
                raise AuthenticationFailed from None
            except (LoginBackendUnavailable, TimeoutError) as error:
                log.warning("login back end out of reach", backend=source.name, reason=str(error))
                is_out_of_reach = True
            else:
                if accepted:
                    return source, accepted
                is_refused = True
        if is_out_of_reach:
            if is_refused:
                # While one of them is away, passwords of the others must not be free to guess.
                await self._parts.throttle.count(attempt.key, attempt.request.client)
            raise LoginBackendUnavailable("A login back end cannot be reached. Try again later.")
        raise AuthenticationFailed

    async def _create_first(self, attempt: _Attempt) -> None:
        """Only into an empty database, and only what could log in afterwards.

        Without local logins nothing would prove that whoever comes first is who the name says.
        """
        if not any(source.name == LOCAL for source in self._parts.backends):
            return
        try:
            shown = self._parts.usernames.read(attempt.username).shown
            if not await self._users_known() and await self._parts.accounts.create_first(shown, attempt.password):
                log.warning("the first login has become an administrator")
                self._parts.notes.made_first(shown, attempt.request.client)
        except (InvalidUsername, InvalidPassword):
            return

    async def _tell_about_first_user(self) -> None:
        if not await self._users_known():
            log.warning("there are no users yet: make one with `queryserver create-user NAME --admin`")

    async def _users_known(self) -> bool:
        """Users are never taken away again, so that one look that found some is enough."""
        if not self._users_exist:
            self._users_exist = await self._parts.records.has_users()
        return self._users_exist

    def _key(self, username: str) -> str:
        """The key that failures count under; an illegal name counts under itself."""
        try:
            return self._parts.usernames.read(username).key
        except InvalidUsername:
            return username.strip().casefold()


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
