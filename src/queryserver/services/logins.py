"""From name and password to tokens (Contract platform 3.2, 3.8, 3.10, 4.1)."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from queryserver.domain.errors import (
    AuthenticationFailed,
    InvalidPassword,
    InvalidUsername,
    LoginBackendUnavailable,
)
from queryserver.domain.user import AuthenticatedUser
from queryserver.domain.usernames import UsernameRule
from queryserver.interfaces.accounts import AccountRecords, StoredLogin
from queryserver.interfaces.auth import LoginBackend, RequestInfo
from queryserver.services.accounts import Accounts
from queryserver.services.throttling import LoginThrottle
from queryserver.services.tokens import TokenPair, Tokens

log = structlog.get_logger(__name__)

_BACKEND_LIMIT_S = 10


@dataclass(frozen=True, slots=True)
class LoginParts:
    """What logins work with. `backends` are asked in their order."""

    accounts: Accounts
    records: AccountRecords
    tokens: Tokens
    backends: Sequence[LoginBackend]
    throttle: LoginThrottle
    usernames: UsernameRule
    first_login_becomes_admin: bool = False


class Logins:
    """Logs people in, one answer for every reason of a refusal (Rule T15)."""

    def __init__(self, parts: LoginParts) -> None:
        self._parts = parts
        self._users_exist = False

    async def log_in(self, username: str, password: str, request: RequestInfo) -> TokenPair:
        """The tokens of a new login.

        Raises AuthenticationFailed, LoginThrottled, LoginBackendUnavailable, DatabaseUnavailable.
        """
        throttle, key = self._parts.throttle, self._key(username)
        await throttle.require_free(key, request.client)
        try:
            # Read first: a password change during the check raises the epoch, and ends what we are about to issue.
            before = await self._parts.records.login_of(key)
            login = await self._accepted(username, password, request, before)
        except AuthenticationFailed:
            log.info("login refused", client=request.client)
            await self._tell_about_first_user()
            await throttle.count(key, request.client)
            raise
        # Of many guesses sent at once the right one must not stand out once the others have used up the limit.
        await throttle.require_free(key, request.client)
        await throttle.forget(key, request.client)
        await self._parts.records.record_login(login.user_id)
        log.info("login", user_id=login.user_id, client=request.client)
        return self._parts.tokens.issue(login)

    async def _accepted(
        self, username: str, password: str, request: RequestInfo, before: StoredLogin | None
    ) -> StoredLogin:
        if before is None and self._parts.first_login_becomes_admin:
            await self._create_first(username, password)
        accepted = await self._ask_backends(username, password, request)
        key = self._key(accepted.username)
        login = before if before and key == self._key(username) else await self._parts.records.login_of(key)
        if login is None or not login.is_active:
            raise AuthenticationFailed
        if self._parts.first_login_becomes_admin and await self._parts.records.promote_first(login.user_id):
            log.warning("the first login has become an administrator", user_id=login.user_id)
        return login

    async def _ask_backends(self, username: str, password: str, request: RequestInfo) -> AuthenticatedUser:
        """The first that accepts wins. Raises AuthenticationFailed, LoginBackendUnavailable."""
        is_out_of_reach = False
        for backend in self._parts.backends:
            try:
                async with asyncio.timeout(_BACKEND_LIMIT_S):
                    accepted = await backend.login(username, password, request)
            except (LoginBackendUnavailable, TimeoutError) as error:
                log.warning("login back end out of reach", backend=type(backend).__name__, reason=str(error))
                is_out_of_reach = True
            else:
                if accepted:
                    return accepted
        if is_out_of_reach:
            raise LoginBackendUnavailable("A login back end cannot be reached. Try again later.")
        raise AuthenticationFailed

    async def _create_first(self, username: str, password: str) -> None:
        """Only into an empty database, and only what could log in afterwards."""
        try:
            if not await self._users_known() and await self._parts.accounts.create_first(username, password):
                log.warning("the first login has become an administrator")
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
