"""The administration of users alone, for commands: nothing else of a server is loaded for it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from queryserver.auth.passwords import Argon2Passwords
from queryserver.container.service_database import pool_limits, required_dsn
from queryserver.db.accounts import AccountRepository
from queryserver.db.database import Database, open_database
from queryserver.db.logins import LoginFailureRepository, LoginNetworkRepository
from queryserver.db.migrations import require_newest
from queryserver.domain.usernames import UsernameRule
from queryserver.services.accounts import AccountRules, Accounts
from queryserver.services.throttling import LoginThrottle, ThrottleLimits
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
            yield Accounts(records, passwords, login_throttle(auth, database), account_rules(auth))


def account_rules(auth: AuthSettings) -> AccountRules:
    """What new users and passwords obey."""
    names = UsernameRule(auth.ignore_username_case, auth.force_username_lowercase, auth.force_username_uppercase)
    return AccountRules(names, auth.default_user_group, auth.password_min_length)


def login_throttle(auth: AuthSettings, database: Database) -> LoginThrottle:
    """Counts failed logins, together with all servers."""
    limits = ThrottleLimits(
        window=auth.login_window,
        per_user_and_address=auth.login_failures_per_user_and_address,
        per_user=auth.login_failures_per_user,
        per_address=auth.login_failures_per_address,
    )
    return LoginThrottle(LoginFailureRepository(database), LoginNetworkRepository(database), limits)
