"""Logs users in with name and password, and issues tokens (Contract platform 3.2, 3.8, 3.10, 4.1)."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from queryserver import errors
from queryserver.identity.model import AuthenticatedUser, LoginBackend, RequestInfo, UsernameRule, identity_of
from queryserver.identity.passwords import LoginThrottle, Passwords
from queryserver.identity.provisioning import Provisioning
from queryserver.identity.repository import AccountRepository, StoredLogin
from queryserver.identity.tokens import TokenPair, Tokens
from queryserver.identity.users import Accounts
from queryserver.platform.logs import AUDIT, BY_SERVER
from queryserver.platform.metrics import Metrics
from queryserver.platform.settings.desktop import AuthSettings

log = structlog.get_logger(__name__)

LOCAL = "local"
"""The name of the back end that checks passwords stored in the service database."""
_BACKEND_LIMIT_S = 10


@dataclass(frozen=True, slots=True)
class LoginSource:
    """One entry of `desktop.auth.backend`."""

    name: str
    backend: LoginBackend
    creates_users: bool = False
    """Whether an accepted user who does not exist yet is created."""
    issuer: str | None = None
    """The issuer of the identities; None if the back end authenticates users of the service database itself."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A login attempt: `username` as typed, and `key`, under which the user is stored and failures are counted."""

    username: str
    key: str
    password: str = field(repr=False)
    request: RequestInfo


@dataclass(eq=False, repr=False)
class Logins:
    """Logs users in. All refusals get the same response, whatever the reason (Rule T15)."""

    auth: AuthSettings
    accounts: Accounts
    records: AccountRepository
    tokens: Tokens
    provisioning: Provisioning
    backends: Sequence[LoginSource]
    """Tried in order. An empty sequence raises ConfigurationError."""
    throttle: LoginThrottle
    metrics: Metrics
    _users_exist: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if not self.backends:
            raise errors.ConfigurationError(["desktop.auth.backend: contains no login back end."])
        self._usernames = UsernameRule.of(self.auth)

    async def log_in(self, username: str, password: str, request: RequestInfo) -> TokenPair:
        """Log in and issue tokens.

        Raises AuthenticationFailed, LoginThrottled, LoginBackendUnavailable, DatabaseUnavailable.
        """
        try:
            login, back_end = await self._log_in(_Attempt(username, self._key(username), password, request))
        except errors.QueryServerError as error:
            match error:
                case errors.LoginThrottled():
                    self.metrics.logins_throttled.inc()
                case errors.AuthenticationFailed():
                    self.metrics.logins.labels("refused", "none").inc()
                case errors.LoginBackendUnavailable():
                    self.metrics.logins.labels("unavailable", "none").inc()
                case _:
                    pass
            # The name is recorded as typed, because the user may not exist.
            AUDIT.record(username, "login", outcome=error.code, client=request.client)
            raise
        pair = self.tokens.issue(login)
        self.metrics.logins.labels("accepted", back_end).inc()
        AUDIT.record(login.username, "login", client=request.client, facts={"back_end": back_end})
        return pair

    async def _log_in(self, attempt: _Attempt) -> tuple[StoredLogin, str]:
        """Log in. Returns the login and the name of the back end that accepted it."""
        throttle, key, request = self.throttle, attempt.key, attempt.request
        await throttle.require_free(key, request.client)
        try:
            # Read first: if the password changes during the check, the epoch increases, and the tokens issued with the
            # old epoch are invalid.
            before = await self.records.login_of(key)
            login, back_end = await self._accepted(attempt, before)
        except errors.AuthenticationFailed:
            log.info("login rejected", client=request.client)
            if not await self._users_known():
                log.warning("no users exist; create one with `queryserver create-user NAME --admin`")
            await throttle.count(key, request.client)
            raise
        # Checked again: once concurrent guesses have used up the limit, a correct guess must be refused as well.
        await throttle.require_free(key, request.client)
        await throttle.succeeded(key, request.client)
        await self.records.record_login(login.user_id)
        log.info("login", user_id=login.user_id, client=request.client)
        return login, back_end

    async def _accepted(self, attempt: _Attempt, before: StoredLogin | None) -> tuple[StoredLogin, str]:
        if before is None and self.auth.first_login_becomes_admin:
            await self._create_first(attempt)
        source, accepted = await self._try_backends(attempt)
        key = self._key(await self._provision(source, accepted))
        login = before if before and key == attempt.key else await self.records.login_of(key)
        if login is None or not login.is_active:
            raise errors.AuthenticationFailed
        if self.auth.first_login_becomes_admin and await self.records.promote_first(login.user_id):
            log.warning("first user became an administrator", user_id=login.user_id)
            self._record_change("user.make_admin", login.username, attempt)
        return login, source.name

    async def _provision(self, source: LoginSource, accepted: AuthenticatedUser) -> str:
        """Create or update the user, with the groups from the back end, and return the user name.

        Raises AuthenticationFailed.
        """
        if source.issuer is None:
            return accepted.username
        identity = identity_of(source.issuer, accepted.username)
        try:
            user = await self.provisioning.user(identity, person=accepted, may_create=source.creates_users)
        except (errors.UserNotFound, errors.UserInactive) as error:
            if isinstance(error, errors.IdentityRefused):
                log.info("user of a login back end rejected", backend=source.name, reason=error.reason)
            raise errors.AuthenticationFailed from None
        return user.username

    async def _try_backends(self, attempt: _Attempt) -> tuple[LoginSource, AuthenticatedUser]:
        """Return the first back end that accepts the login. Raises AuthenticationFailed, LoginBackendUnavailable."""
        is_out_of_reach = is_refused = False
        for source in self.backends:
            try:
                async with asyncio.timeout(_BACKEND_LIMIT_S):
                    accepted = await source.backend.login(attempt.username, attempt.password, attempt.request)
            except errors.AuthenticationFailed:
                # Drops the back end's message, so that all refused logins look alike (Rule T15).
                raise errors.AuthenticationFailed from None
            except (errors.LoginBackendUnavailable, TimeoutError) as error:
                log.warning("login back end unreachable", backend=source.name, reason=str(error))
                is_out_of_reach = True
            else:
                if accepted:
                    return source, accepted
                is_refused = True
        if is_out_of_reach:
            if is_refused:
                # An outage of one back end must not allow unlimited guesses at the others.
                await self.throttle.count(attempt.key, attempt.request.client)
            raise errors.LoginBackendUnavailable("A login back end cannot be reached. Try again later.")
        raise errors.AuthenticationFailed

    async def _create_first(self, attempt: _Attempt) -> None:
        """Create the user if the database has no users and local logins are enabled.

        Without local logins, the first client's password could not be checked by this service.
        """
        if not any(source.name == LOCAL for source in self.backends):
            return
        try:
            shown = self._usernames.read(attempt.username).shown
            if not await self._users_known() and await self.accounts.create_first(shown, attempt.password):
                log.warning("first user became an administrator")
                self._record_change("user.create", shown, attempt)
                self._record_change("user.make_admin", shown, attempt)
        except (errors.InvalidUsername, errors.InvalidPassword):
            return

    def _record_change(self, operation: str, username: str, attempt: _Attempt) -> None:
        AUDIT.record(username, operation, username, client=attempt.request.client, facts=BY_SERVER)

    async def _users_known(self) -> bool:
        """Return whether any user exists. Cached once true, because users are never deleted."""
        if not self._users_exist:
            self._users_exist = await self.records.has_users()
        return self._users_exist

    def _key(self, username: str) -> str:
        """Return the key under which failures are counted; for an invalid name, the case-folded name itself."""
        try:
            return self._usernames.read(username).key
        except errors.InvalidUsername:
            return username.strip().casefold()


class LocalLogin:
    """Checks logins against the service database. Refusals take equally long, whatever the reason (Rule T15)."""

    def __init__(self, records: AccountRepository, passwords: Passwords, rule: UsernameRule) -> None:
        self._records = records
        self._passwords = passwords
        self._rule = rule

    async def login(self, username: str, password: str, request: RequestInfo) -> AuthenticatedUser | None:
        del request
        try:
            stored = await self._records.login_of(self._rule.read(username).key)
        except errors.InvalidUsername:
            stored = None
        known_hash = stored.password_hash if stored else None
        if not await self._passwords.verify(known_hash, password) or stored is None or not stored.is_active:
            return None
        if known_hash and self._passwords.is_outdated(known_hash):
            await self._records.replace_hash(stored.user_id, old=known_hash, new=await self._passwords.hash(password))
        return AuthenticatedUser(stored.username)
