"""Users, logins, tokens and secrets of one process."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from queryserver.auth.authenticator import BearerAuthenticator
from queryserver.auth.keys import load_keyring, require_known_key
from queryserver.auth.local import LocalLogin
from queryserver.auth.passwords import Argon2Passwords
from queryserver.auth.sealing import AesSealer
from queryserver.auth.tokens import JwtCodec
from queryserver.container.records import pool_limits, required_dsn
from queryserver.db.accounts import AccountRepository
from queryserver.db.database import Database, open_database
from queryserver.db.facts import FactRepository
from queryserver.db.login_failures import LoginFailureRepository
from queryserver.db.migrations import require_newest
from queryserver.db.tokens import TokenRepository
from queryserver.domain.errors import ConfigurationError
from queryserver.domain.usernames import UsernameRule
from queryserver.interfaces.auth import LoginBackend
from queryserver.services.accounts import AccountRules, Accounts
from queryserver.services.everything import AccountServices
from queryserver.services.logins import LoginParts, Logins
from queryserver.services.throttling import LoginThrottle, ThrottleLimits
from queryserver.services.tokens import TokenLives, Tokens
from queryserver.settings import Settings
from queryserver.settings.auth import AuthSettings


@asynccontextmanager
async def open_administration(settings: Settings) -> AsyncGenerator[Accounts]:
    """The administration of users alone, for commands: it needs no secret key.

    Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable.
    """
    dsn, auth = required_dsn(settings), settings.desktop.auth
    await require_newest(dsn)
    async with open_database(dsn, pool_limits(settings)) as database:
        with Argon2Passwords.open() as passwords:
            records = AccountRepository(database)
            yield Accounts(records, passwords, _throttle(auth, database), _rules(auth))


@asynccontextmanager
async def open_accounts(settings: Settings, database: Database) -> AsyncGenerator[AccountServices]:
    """The services of users; the default group is there when this returns.

    Raises ConfigurationError, also when the database was used with another secret key; DatabaseUnavailable.
    """
    auth = settings.desktop.auth
    _require_built_in(auth)
    keyring = await asyncio.to_thread(load_keyring, settings.desktop)
    await require_known_key(keyring, FactRepository(database))
    token_records = TokenRepository(database)
    codec = JwtCodec(keyring)
    lives = TokenLives(auth.access_token_lifetime, auth.refresh_token_lifetime, rotate=auth.rotate_refresh_tokens)
    tokens = Tokens(codec, token_records, lives)
    with Argon2Passwords.open() as passwords:
        accounts, logins = _logins(auth, database, passwords, tokens)
        await accounts.ensure_default_group()
        try:
            yield AccountServices(
                authenticator=BearerAuthenticator(codec, token_records),
                directory=token_records,
                sealer=AesSealer(keyring),
                accounts=accounts,
                logins=logins,
                tokens=tokens,
            )
        finally:
            await token_records.aclose()


def _logins(
    auth: AuthSettings, database: Database, passwords: Argon2Passwords, tokens: Tokens
) -> tuple[Accounts, Logins]:
    records = AccountRepository(database)
    rules, throttle = _rules(auth), _throttle(auth, database)
    accounts = Accounts(records, passwords, throttle, rules)
    backends: Sequence[LoginBackend] = [LocalLogin(records, passwords, rules.usernames)]
    parts = LoginParts(
        accounts=accounts,
        records=records,
        tokens=tokens,
        backends=backends,
        throttle=throttle,
        usernames=rules.usernames,
        first_login_becomes_admin=auth.first_login_becomes_admin,
    )
    return accounts, Logins(parts)


def _rules(auth: AuthSettings) -> AccountRules:
    names = UsernameRule(auth.ignore_username_case, auth.force_username_lowercase, auth.force_username_uppercase)
    return AccountRules(names, auth.default_user_group, auth.password_min_length)


def _throttle(auth: AuthSettings, database: Database) -> LoginThrottle:
    limits = ThrottleLimits(
        window=auth.login_window,
        per_user_and_address=auth.login_failures_per_user_and_address,
        per_user=auth.login_failures_per_user,
        per_address=auth.login_failures_per_address,
    )
    return LoginThrottle(LoginFailureRepository(database), limits)


def _require_built_in(auth: AuthSettings) -> None:
    """Names that this version cannot load stop the start (Contract platform 4.2)."""
    problems = [
        f"desktop.auth.{key}: {name} cannot be loaded."
        for key, names, known in (("backend", auth.backend, "local"), ("api_auth", auth.authenticators, "jwt"))
        for name in names
        if name != known
    ]
    if not auth.backend:
        problems.append("desktop.auth.backend: names no login back end.")
    if problems:
        raise ConfigurationError(problems)
