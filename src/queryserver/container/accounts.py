"""Users, logins, tokens and secrets of one process."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from queryserver.auth.keys import load_keyring, require_known_key
from queryserver.auth.passwords import Argon2Passwords
from queryserver.auth.plug_ins import PlugInThreads
from queryserver.auth.sealing import AesSealer
from queryserver.auth.tokens import JwtCodec
from queryserver.container.administration import account_rules, login_throttle
from queryserver.container.auditing import AUDIT
from queryserver.container.callers import OWN_JWT, CallerGround, open_callers, open_external_tokens
from queryserver.container.logins import LoginGround, open_backends
from queryserver.db.accounts import AccountRepository, IdentityRepository, PreferenceRepository
from queryserver.db.database import Database
from queryserver.db.deployment import FactRepository
from queryserver.db.tokens import CallerRepository, TokenRepository
from queryserver.interfaces.metrics import UNMEASURED, AccountMetrics
from queryserver.services.account_notes import AccountNotes
from queryserver.services.accounts import Accounts
from queryserver.services.arrivals import Arrivals
from queryserver.services.auditing import AuditTrail
from queryserver.services.everything import AccountServices
from queryserver.services.external_bearers import ExternalBearers
from queryserver.services.logins import LoginParts, Logins
from queryserver.services.standing import Standing
from queryserver.services.tokens import TokenLives, Tokens
from queryserver.settings import Settings
from queryserver.settings.auth import AuthSettings

_MOST_LOGINS_WAITING = 200


@asynccontextmanager
async def open_accounts(
    settings: Settings, database: Database, metrics: AccountMetrics = UNMEASURED
) -> AsyncGenerator[AccountServices]:
    """The services of users; the default group is there when this returns.

    Raises ConfigurationError, also when the database was used with another secret key; DatabaseUnavailable.
    """
    auth = settings.desktop.auth
    keyring = await asyncio.to_thread(load_keyring, settings.desktop)
    await require_known_key(keyring, FactRepository(database))
    codec, rules, records = JwtCodec(keyring), account_rules(auth), AccountRepository(database)
    async with AsyncExitStack() as stack:
        token_records, callers = _caller_records(stack, database)
        passwords = stack.enter_context(Argon2Passwords.open())
        threads, login_threads = _plug_in_threads(stack)
        accounts = Accounts(records, passwords, login_throttle(auth, database), rules)
        await accounts.ensure_default_group()
        trail = AuditTrail(AUDIT)
        identities = IdentityRepository(database)
        arrivals = Arrivals(
            callers, records, identities, rules.usernames, default_group=rules.default_group, audit=trail
        )
        external = await _external_bearers(stack, settings, arrivals, token_records, metrics)
        notes = AccountNotes(trail, metrics)
        own = OWN_JWT in auth.authenticators
        tokens = Tokens(codec, token_records, _lives(auth), notes=notes, external=external, are_bearers=own)
        ground = LoginGround(settings, records, passwords, rules.usernames)
        parts = LoginParts(
            accounts=accounts,
            records=records,
            tokens=tokens,
            arrivals=arrivals,
            backends=await stack.enter_async_context(open_backends(ground, login_threads)),
            throttle=login_throttle(auth, database),
            usernames=rules.usernames,
            notes=notes,
            first_login_becomes_admin=auth.first_login_becomes_admin,
        )
        caller_ground = CallerGround(settings, codec, token_records, arrivals, external)
        yield AccountServices(
            authenticator=await stack.enter_async_context(open_callers(caller_ground, threads)),
            directory=token_records,
            standing=Standing(token_records),
            sealer=AesSealer(keyring),
            accounts=accounts,
            logins=Logins(parts),
            tokens=tokens,
            preferences=PreferenceRepository(database),
        )


async def _external_bearers(
    stack: AsyncExitStack, settings: Settings, arrivals: Arrivals, records: TokenRepository, metrics: AccountMetrics
) -> ExternalBearers | None:
    """None: no other issuer's tokens are accepted."""
    reader = await stack.enter_async_context(open_external_tokens(settings, metrics))
    create_users = settings.desktop.auth.jwt.create_users
    return reader and ExternalBearers(reader, arrivals, records, create_users=create_users, metrics=metrics)


def _caller_records(stack: AsyncExitStack, database: Database) -> tuple[TokenRepository, CallerRepository]:
    tokens, callers = TokenRepository(database), CallerRepository(database)
    stack.push_async_callback(tokens.aclose)
    stack.push_async_callback(callers.aclose)
    return tokens, callers


def _plug_in_threads(stack: AsyncExitStack) -> tuple[PlugInThreads, PlugInThreads]:
    """Those of authenticators, and of login back ends: slow logins of strangers must hold up no call of others."""
    threads = PlugInThreads(), PlugInThreads(most_waiting=_MOST_LOGINS_WAITING)
    for one in threads:
        stack.callback(one.close)
    return threads


def _lives(auth: AuthSettings) -> TokenLives:
    return TokenLives(auth.access_token_lifetime, auth.refresh_token_lifetime, rotate=auth.rotate_refresh_tokens)
