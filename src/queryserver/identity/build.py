"""Builds the services for users, logins, tokens and secrets: all of them for a server, single ones for commands."""

import asyncio
import secrets
import ssl
import string
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from queryserver.errors.base import ConfigurationError, InvalidPassword
from queryserver.identity.administration import UserAdministration
from queryserver.identity.api_tokens import ApiTokenBearers, ApiTokens
from queryserver.identity.callers import CallerRepository, Callers, CallerSource, Challenge, JwtCodec, OwnBearers
from queryserver.identity.explainer import Explainer
from queryserver.identity.external_keys import KeyCache, KeyServers
from queryserver.identity.external_tokens import ExternalBearers, TokenChecks
from queryserver.identity.issuer import Provider
from queryserver.identity.issuer_http import IssuerHttp
from queryserver.identity.issuer_logins import IssuerLogins
from queryserver.identity.keys import AesSealer, Keyring, Sealer, open_keyring
from queryserver.identity.logins import LOCAL, LocalLogin, Logins, LoginSource
from queryserver.identity.model import LDAP, UsernameRule, is_import_path, plug_in_issuer
from queryserver.identity.passwords import LoginThrottle, Passwords
from queryserver.identity.plug_ins import PlugInAuthenticator, PlugInLogin, open_plug_in
from queryserver.identity.provisioning import Provisioning
from queryserver.identity.repository import AccountRepository
from queryserver.identity.threads import LimitedThreads
from queryserver.identity.tickets import DownloadTickets
from queryserver.identity.tokens import Tokens
from queryserver.identity.users import Accounts, Groups
from queryserver.platform.addresses import address_rules
from queryserver.platform.database import Database
from queryserver.platform.logs import AUDIT, BY_SERVER
from queryserver.platform.metrics import NO_METRICS, Metrics
from queryserver.platform.migrations import open_service_database
from queryserver.platform.settings.desktop import AuthSettings, LdapSettings
from queryserver.platform.settings.tree import Settings

if TYPE_CHECKING:
    from queryserver.identity.ldap import LdapLogin

T = TypeVar("T")

BACKENDS = (LOCAL, LDAP)
"""The names that `desktop.auth.backend` accepts besides import paths."""
OWN_JWT, CUSTOM_JWT, API_TOKEN = "jwt", "custom_jwt", "api_token"
AUTHENTICATORS = (OWN_JWT, CUSTOM_JWT, API_TOKEN)
"""The names that `desktop.auth.api_auth` accepts besides import paths."""

_MAX_WAITING_LOGINS = 200
_CHALLENGE_LIMIT_S = 2.0
_PASSWORD_LENGTH = 20


@dataclass(frozen=True, slots=True)
class AccountServices:
    authenticator: Callers
    directory: CallerRepository
    sealer: Sealer
    accounts: Accounts
    administration: UserAdministration
    logins: Logins
    tokens: Tokens
    api_tokens: ApiTokens
    issuer_logins: IssuerLogins | None
    """None if no client of an external issuer is configured."""
    tickets: DownloadTickets


@asynccontextmanager
async def open_accounts(
    settings: Settings, database: Database, metrics: Metrics = NO_METRICS
) -> AsyncGenerator[AccountServices]:
    """Open the user services and create the default group if it is missing.

    Raises ConfigurationError if entries of `desktop.auth` cannot be loaded (the error lists them) or if the database
    was used with another secret key; DatabaseUnavailable.
    """
    auth, records = settings.desktop.auth, AccountRepository(database)
    async with AsyncExitStack() as stack:
        bearers = await _open_bearers(settings, database, stack, metrics)
        passwords = stack.enter_context(closing(Passwords()))
        throttle = LoginThrottle(database, auth)
        accounts = Accounts(records, passwords, throttle, auth)
        await accounts.ensure_default_group()
        codec = JwtCodec(bearers.keyring)
        api_tokens = ApiTokenBearers(bearers.callers, auth)
        await stack.enter_async_context(api_tokens.running())
        tokens = Tokens(
            codec,
            bearers.callers,
            auth,
            metrics=metrics,
            external=bearers.external,
            api_tokens=api_tokens if API_TOKEN in auth.authenticators else None,
            are_bearers=OWN_JWT in auth.authenticators,
        )
        logins = Logins(
            auth,
            accounts=accounts,
            records=records,
            tokens=tokens,
            provisioning=bearers.provisioning,
            backends=await _login_sources(settings, records, passwords, stack),
            throttle=throttle,
            metrics=metrics,
        )
        sealer = AesSealer(bearers.keyring)
        yield AccountServices(
            authenticator=await _callers(
                settings, bearers, OwnBearers(codec, bearers.callers).caller, api_tokens.caller, stack
            ),
            directory=bearers.callers,
            sealer=sealer,
            accounts=accounts,
            administration=UserAdministration(accounts, Groups(database, auth)),
            logins=logins,
            tokens=tokens,
            api_tokens=ApiTokens(database, auth),
            issuer_logins=_issuer_logins(settings, bearers, sealer, records, tokens, stack),
            tickets=DownloadTickets(sealer, bearers.callers),
        )


def _issuer_logins(
    settings: Settings,
    bearers: "_Bearers",
    sealer: Sealer,
    records: AccountRepository,
    tokens: Tokens,
    stack: AsyncExitStack,
) -> IssuerLogins | None:
    auth = settings.desktop.auth
    if not auth.oidc.client_id or bearers.external is None:
        return None
    http = IssuerHttp(address_rules(settings), ca=auth.jwt.key_server_ca)
    provider = Provider(auth.jwt, auth.oidc, http)
    stack.push_async_callback(provider.aclose)
    return IssuerLogins(
        auth,
        provider,
        bearers.external.checks,
        sealer,
        bearers.callers,
        records,
        bearers.provisioning,
        tokens,
        tokens.metrics,
    )


@dataclass(frozen=True, slots=True)
class _Bearers:
    """The services that map tokens to users. `external` is None if `custom_jwt` is off."""

    keyring: Keyring
    callers: CallerRepository
    provisioning: Provisioning
    external: ExternalBearers | None


async def _open_bearers(settings: Settings, database: Database, stack: AsyncExitStack, metrics: Metrics) -> _Bearers:
    """Load the keys and open the services that map tokens to users. Raises ConfigurationError, DatabaseUnavailable."""
    auth, jwt = settings.desktop.auth, settings.desktop.auth.jwt
    keyring = await open_keyring(settings.desktop, database)
    callers = CallerRepository(database)
    stack.push_async_callback(callers.aclose)
    provisioning = Provisioning(callers, AccountRepository(database), auth)
    if CUSTOM_JWT not in auth.authenticators or not jwt.key_server_url:
        return _Bearers(keyring, callers, provisioning, None)
    if jwt.key_server_ca:
        try:
            await asyncio.to_thread(ssl.create_default_context, cafile=jwt.key_server_ca)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            message = f"desktop.auth.jwt.key_server_ca: {jwt.key_server_ca} cannot be read: {reason}."
            raise ConfigurationError([message]) from error
    rules = address_rules(settings)
    servers = KeyServers(jwt.key_server_url, rules=rules, ca=jwt.key_server_ca, timeout_s=jwt.timeout_s)
    keys = KeyCache(servers, jwt, metrics=metrics)
    stack.push_async_callback(keys.aclose)
    external = ExternalBearers(TokenChecks(keys, jwt), provisioning, callers, metrics=metrics)
    return _Bearers(keyring, callers, provisioning, external)


async def _login_sources(
    settings: Settings, records: AccountRepository, passwords: Passwords, stack: AsyncExitStack
) -> Sequence[LoginSource]:
    """Open the login sources listed in `desktop.auth.backend`. Raises ConfigurationError."""
    key, usernames = "desktop.auth.backend", UsernameRule.of(settings.desktop.auth)
    threads = stack.enter_context(closing(LimitedThreads(max_waiting=_MAX_WAITING_LOGINS)))

    async def source(name: str) -> LoginSource:
        if name == LOCAL:
            return LoginSource(LOCAL, LocalLogin(records, passwords, usernames))
        if name == LDAP:
            ldap = settings.desktop.ldap
            login = stack.enter_context(closing(directory_login(ldap, usernames)))
            return LoginSource(LDAP, login, creates_users=ldap.create_users_on_login, issuer=LDAP)
        _require_import_path(key, name, BACKENDS)
        opened = open_plug_in(key, name, settings=settings, threads=threads, method="login")
        login = PlugInLogin(name, await stack.enter_async_context(opened), threads, usernames)
        return LoginSource(name, login, creates_users=True, issuer=plug_in_issuer(name))

    return await _each(settings.desktop.auth.backend, source)


async def _callers(
    settings: Settings, bearers: _Bearers, own: CallerSource, api_token: CallerSource, stack: AsyncExitStack
) -> Callers:
    """Open the entries of `desktop.auth.api_auth`. Raises ConfigurationError."""
    key = "desktop.auth.api_auth"
    # Own thread pool: slow logins of unauthenticated clients must not delay users' calls.
    threads = stack.enter_context(closing(LimitedThreads()))
    challenges = list[Challenge]()

    async def source(name: str) -> CallerSource:
        if name == OWN_JWT:
            return own
        if name == API_TOKEN:
            return api_token
        if name == CUSTOM_JWT:
            if bearers.external is None:
                raise ConfigurationError([f"{key}: {CUSTOM_JWT} requires desktop.auth.jwt.key_server_url."])
            return bearers.external.caller
        _require_import_path(key, name, AUTHENTICATORS)
        opened = open_plug_in(key, name, settings=settings, threads=threads, method="authenticate")
        instance = await stack.enter_async_context(opened)
        # A challenge only adds a header to a 401 response, so it has a short timeout and its own threads.
        for_challenges = stack.enter_context(closing(LimitedThreads(threads=2, limit_s=_CHALLENGE_LIMIT_S)))
        plugged = PlugInAuthenticator(name, instance, threads, for_challenges, bearers.provisioning)
        challenges.append(plugged.challenge)
        return plugged.caller

    return Callers(await _each(settings.desktop.auth.authenticators, source), challenges)


async def _each(names: Iterable[str], open_one: Callable[[str], Awaitable[T]]) -> list[T]:
    """Open each distinct name once, in order. Raises ConfigurationError, which lists all names that failed to load."""
    opened, problems = list[T](), list[str]()
    for name in dict.fromkeys(names):
        try:
            opened.append(await open_one(name))
        except ConfigurationError as error:
            problems += error.problems
    if problems:
        raise ConfigurationError(problems)
    return opened


def _require_import_path(key: str, name: str, known: Iterable[str]) -> None:
    if not is_import_path(name):
        raise ConfigurationError([f"{key}: {name} cannot be loaded: valid are {', '.join(known)} and import paths."])


def directory_login(ldap: LdapSettings, usernames: UsernameRule) -> "LdapLogin":
    """Build the LDAP login back end. It does not connect before the first login.

    Raises ConfigurationError if ldap3 is not installed or the CA file is unusable.
    """
    try:
        from queryserver.identity.ldap import LdapLogin  # noqa: PLC0415 few servers have a directory
        from queryserver.identity.ldap3_directory import Ldap3Session  # noqa: PLC0415 an extra
    except ModuleNotFoundError as error:
        message = "desktop.auth.backend: ldap requires the package ldap3. Install queryserver[ldap]."
        raise ConfigurationError([message]) from error
    try:
        context = ssl.create_default_context(cafile=ldap.ldap_cert)
    except ssl.SSLError as error:
        raise ConfigurationError([f"desktop.ldap.ldap_cert: {ldap.ldap_cert} contains no certificate."]) from error
    except OSError as error:
        raise ConfigurationError([f"desktop.ldap.ldap_cert: {ldap.ldap_cert}: {error.strerror}."]) from error
    return LdapLogin(lambda: closing(Ldap3Session(ldap.ldap_url, ldap.timeout_s, context)), ldap, usernames)


async def ensure_administrator(accounts: Accounts, given_password: str | None, show: Callable[[str], None]) -> None:
    """Create the user `admin` if there are no users at all.

    If `given_password` is None, a random password is shown once and stored only as a hash. Raises InvalidPassword.
    """
    alphabet = string.ascii_letters + string.digits
    name, password = "admin", given_password or "".join(secrets.choice(alphabet) for _ in range(_PASSWORD_LENGTH))
    try:
        if not await accounts.create_first(name, password):
            return
    except InvalidPassword as error:
        raise InvalidPassword(f"QUERYSERVER_ADMIN_PASSWORD: {error.message}") from None
    for operation in ("user.create", "user.make_admin"):
        AUDIT.record(name, operation, name, facts=BY_SERVER)
    if given_password is None:
        show(f"Administrator: {name}\nPassword:      {password}\nThe password will not be shown again.")


# The functions below are for commands. All of them raise ConfigurationError, SchemaMismatch, DatabaseUnavailable.


@asynccontextmanager
async def open_administration(settings: Settings) -> AsyncGenerator[Accounts]:
    """Open only user administration, which needs no secret key."""
    auth = settings.desktop.auth
    async with open_service_database(settings) as database:
        with closing(Passwords()) as passwords:
            yield Accounts(AccountRepository(database), passwords, LoginThrottle(database, auth), auth)


@asynccontextmanager
async def open_records(settings: Settings, kind: Callable[[Database, AuthSettings], T]) -> AsyncGenerator[T]:
    """Open only one service, such as the administration of groups, identities or API tokens. `kind` constructs it."""
    async with open_service_database(settings) as database:
        yield kind(database, settings.desktop.auth)


@asynccontextmanager
async def open_explainer(settings: Settings) -> AsyncGenerator[Explainer]:
    """Open the token checks of `queryserver auth explain`."""
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_service_database(settings))
        bearers = await _open_bearers(settings, database, stack, NO_METRICS)
        taken = settings.desktop.auth.authenticators
        yield Explainer(
            bearers.keyring,
            bearers.callers,
            takes_own=OWN_JWT in taken,
            takes_api_tokens=API_TOKEN in taken,
            external=bearers.external,
        )
