"""Users, logins, tokens and secrets of one process."""

import asyncio
import secrets
import ssl
import string
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from queryserver.errors.base import ConfigurationError
from queryserver.identity.callers import BearerAuthenticator, CallerRepository, Callers, Standing, TokenRepository
from queryserver.identity.explaining import Explainer, ExplainParts
from queryserver.identity.external_keys import CacheTimes, KeyCache, KeyServers
from queryserver.identity.external_tokens import ANY, ExternalBearers, ExternalCaller, ExternalRules, ExternalTokens
from queryserver.identity.keys import AesSealer, load_keyring, require_known_key
from queryserver.identity.ldap.login import Directory, Judge, LdapLogin
from queryserver.identity.logins import Argon2Passwords, LocalLogin, LoginParts, Logins, LoginSource
from queryserver.identity.model import LDAP, ExternalIdentity, UsernameRule, jwt_issuer, plug_in_issuer
from queryserver.identity.plug_ins import PluggedCaller, PluggedLogin, PlugInThreads, is_import_path, open_plug_in
from queryserver.identity.protocols import Authenticator, CallerSource, Passwords, TokenCodec
from queryserver.identity.provisioning import Arrivals
from queryserver.identity.repository import AccountRepository, GroupRepository, IdentityRepository, PreferenceRepository
from queryserver.identity.throttling import (
    LoginFailureRepository,
    LoginNetworkRepository,
    LoginThrottle,
    ThrottleLimits,
)
from queryserver.identity.tokens import AccountNotes, JwtCodec, TokenLives, Tokens
from queryserver.identity.users import AccountRules, Accounts, Groups, Identities, IdentityRules, UserDirectory
from queryserver.platform.addresses import address_rules
from queryserver.platform.database import Database, open_database, pool_limits, required_dsn
from queryserver.platform.deployment import FactRepository, Sealer
from queryserver.platform.logs import AUDIT, BY_SERVER, AuditTrail
from queryserver.platform.metrics import UNMEASURED, AccountMetrics
from queryserver.platform.migrations import require_newest
from queryserver.platform.settings.desktop import AuthSettings, LdapSettings
from queryserver.platform.settings.tree import Settings


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


_KEY = "desktop.auth.api_auth"
OWN_JWT, CUSTOM_JWT = "jwt", "custom_jwt"


@dataclass(frozen=True, slots=True)
class CallerGround:
    """What authenticators are built from."""

    settings: Settings
    codec: TokenCodec
    records: TokenRepository
    arrivals: Arrivals
    external: ExternalBearers | None


@asynccontextmanager
async def open_external_tokens(
    settings: Settings, metrics: AccountMetrics = UNMEASURED
) -> AsyncGenerator[ExternalTokens | None]:
    """What reads external tokens; None when `custom_jwt` is off. Raises ConfigurationError."""
    auth = settings.desktop.auth
    if CUSTOM_JWT not in auth.authenticators or not auth.jwt.key_server_url:
        yield None
        return
    jwt = auth.jwt
    if jwt.key_server_ca:
        await asyncio.to_thread(_require_authorities, jwt.key_server_ca)
    rules = address_rules(settings)
    servers = KeyServers(jwt.key_server_url, rules=rules, ca=jwt.key_server_ca, timeout_s=jwt.timeout_s)
    keys = KeyCache(servers, CacheTimes(jwt.cache_s, jwt.refetch_floor_s, jwt.max_stale_s), metrics=metrics)
    wanted = ExternalRules(jwt.issuer, jwt.audience, jwt.username_header, jwt.leeway_s)
    try:
        yield ExternalTokens(keys, wanted)
    finally:
        await keys.aclose()


@asynccontextmanager
async def open_callers(ground: CallerGround, threads: PlugInThreads) -> AsyncGenerator[Callers]:
    """The authenticators in their order. Raises ConfigurationError that names all that cannot be loaded."""
    problems: list[str] = []
    async with AsyncExitStack() as stack:
        sources: list[CallerSource] = []
        for name in dict.fromkeys(ground.settings.desktop.auth.authenticators):
            try:
                sources.append(await _source(name, ground, threads, stack))
            except ConfigurationError as error:
                problems += error.problems
        if problems:
            raise ConfigurationError(problems)
        yield Callers(sources)


async def _source(name: str, ground: CallerGround, threads: PlugInThreads, stack: AsyncExitStack) -> CallerSource:
    if builder := BUILT_IN.get(name):
        return builder(ground)
    if not is_import_path(name):
        known = ", ".join(BUILT_IN)
        raise ConfigurationError([f"{_KEY}: {name} cannot be loaded: known are {known} and import paths."])
    opened = open_plug_in(_KEY, name, settings=ground.settings, threads=threads, method="authenticate")
    return PluggedCaller(name, await stack.enter_async_context(opened), threads, ground.arrivals)


def _require_authorities(file: Path) -> None:
    """Raises ConfigurationError."""
    try:
        ssl.create_default_context(cafile=file)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigurationError([f"desktop.auth.jwt.key_server_ca: {file} cannot be read: {reason}."]) from error


def _own(ground: CallerGround) -> CallerSource:
    return BearerAuthenticator(ground.codec, ground.records)


def _external(ground: CallerGround) -> CallerSource:
    if ground.external is None:
        raise ConfigurationError([f"{_KEY}: {CUSTOM_JWT} needs desktop.auth.jwt.key_server_url."])
    return ExternalCaller(ground.external)


BUILT_IN: Mapping[str, Callable[[CallerGround], CallerSource]] = {OWN_JWT: _own, CUSTOM_JWT: _external}
"""Authenticators by their name in the settings."""


@contextmanager
def open_directory_login(ldap: LdapSettings, usernames: UsernameRule) -> Generator[LdapLogin]:
    """The back end; nothing is sent before the first login.

    Raises ConfigurationError: its package is not installed, or the file of authorities is of no use.
    """
    with LdapLogin.open(_directory(ldap), Judge(ldap, usernames), limit_s=ldap.timeout_s) as login:
        yield login


def _directory(ldap: LdapSettings) -> Directory:
    try:
        from queryserver.identity.ldap.ldap3_directory import DirectoryServer, Ldap3Directory, client_context  # noqa: PLC0415 an extra
    except ModuleNotFoundError as error:
        message = "desktop.auth.backend: ldap needs the package ldap3; install queryserver[ldap]."
        raise ConfigurationError([message]) from error
    try:
        context = client_context(ldap.ldap_cert)
    except ssl.SSLError as error:
        raise ConfigurationError([f"desktop.ldap.ldap_cert: {ldap.ldap_cert} holds no certificate."]) from error
    except OSError as error:
        raise ConfigurationError([f"desktop.ldap.ldap_cert: {ldap.ldap_cert}: {error.strerror}."]) from error
    return Ldap3Directory(DirectoryServer(ldap.ldap_url, ldap.timeout_s), context)


_LOGINS_KEY = "desktop.auth.backend"


@dataclass(frozen=True, slots=True)
class LoginGround:
    """What login back ends are built from."""

    settings: Settings
    records: AccountRepository
    passwords: Passwords
    usernames: UsernameRule


Opener = Callable[[LoginGround], AbstractAsyncContextManager[LoginSource]]


@asynccontextmanager
async def _local(ground: LoginGround) -> AsyncGenerator[LoginSource]:
    yield LoginSource("local", LocalLogin(ground.records, ground.passwords, ground.usernames))


@asynccontextmanager
async def _ldap(ground: LoginGround) -> AsyncGenerator[LoginSource]:
    ldap = ground.settings.desktop.ldap
    with open_directory_login(ldap, ground.usernames) as login:
        yield LoginSource(LDAP, login, creates_users=ldap.create_users_on_login, issuer=LDAP)


BACKENDS: Mapping[str, Opener] = {"local": _local, "ldap": _ldap}
"""Built-in back ends by their name in the settings; each is closed at the end of its block."""


@asynccontextmanager
async def open_backends(ground: LoginGround, threads: PlugInThreads) -> AsyncGenerator[Sequence[LoginSource]]:
    """The back ends in their order. Raises ConfigurationError that names all that cannot be loaded."""
    names = tuple(dict.fromkeys(ground.settings.desktop.auth.backend))
    problems = [] if names else [f"{_LOGINS_KEY}: names no login back end."]
    async with AsyncExitStack() as stack:
        sources: list[LoginSource] = []
        for name in names:
            try:
                sources.append(await stack.enter_async_context(_open(name, ground, threads)))
            except ConfigurationError as error:
                problems += error.problems
        if problems:
            raise ConfigurationError(problems)
        yield sources


def _open(name: str, ground: LoginGround, threads: PlugInThreads) -> AbstractAsyncContextManager[LoginSource]:
    if opener := BACKENDS.get(name):
        return opener(ground)
    if is_import_path(name):
        return _plugged(name, ground, threads)
    raise ConfigurationError(
        [f"{_LOGINS_KEY}: {name} cannot be loaded: known are {', '.join(BACKENDS)} and import paths."]
    )


@asynccontextmanager
async def _plugged(name: str, ground: LoginGround, threads: PlugInThreads) -> AsyncGenerator[LoginSource]:
    opened = open_plug_in(_LOGINS_KEY, name, settings=ground.settings, threads=threads, method="login")
    async with opened as instance:
        login = PluggedLogin(name, instance, threads, ground.usernames)
        yield LoginSource(name, login, creates_users=True, issuer=plug_in_issuer(name))


@dataclass(frozen=True, slots=True)
class AccountServices:
    """What routes and commands call about users."""

    authenticator: Authenticator
    directory: UserDirectory
    standing: Standing
    sealer: Sealer
    accounts: Accounts
    logins: Logins
    tokens: Tokens
    preferences: PreferenceRepository


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


@asynccontextmanager
async def open_groups(settings: Settings) -> AsyncGenerator[Groups]:
    """Groups on the service database. Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable."""
    dsn, auth = required_dsn(settings), settings.desktop.auth
    await require_newest(dsn)
    rule = UsernameRule(auth.ignore_username_case, auth.force_username_lowercase, auth.force_username_uppercase)
    async with open_database(dsn, pool_limits(settings)) as database:
        yield Groups(GroupRepository(database), rule, auth.default_user_group)


@asynccontextmanager
async def open_identities(settings: Settings) -> AsyncGenerator[Identities]:
    """Links on the service database. Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable."""
    dsn, auth = required_dsn(settings), settings.desktop.auth
    await require_newest(dsn)
    async with open_database(dsn, pool_limits(settings)) as database:
        yield Identities(IdentityRepository(database), _rules(auth))


def checked_identity(settings: Settings, name: str, issuer: str, subject: str | None) -> ExternalIdentity:
    """The subject of an issuer of the settings. Raises InvalidUsername, InvalidParameter."""
    return _rules(settings.desktop.auth).identity(name, issuer, subject)


def _rules(auth: AuthSettings) -> IdentityRules:
    return IdentityRules(account_rules(auth).usernames, _issuers(auth))


def _issuers(auth: AuthSettings) -> Collection[str] | None:
    """The issuers that the settings name; None: tokens of any issuer are taken."""
    if auth.jwt.issuer == ANY:
        return None
    listed = {plug_in_issuer(name) for name in (*auth.backend, *auth.authenticators) if is_import_path(name)}
    if LDAP in auth.backend:
        listed.add(LDAP)
    if auth.jwt.key_server_url:
        listed.add(jwt_issuer(auth.jwt.issuer))
    return listed


@asynccontextmanager
async def open_explainer(settings: Settings) -> AsyncGenerator[Explainer]:
    """Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable."""
    dsn, auth = required_dsn(settings), settings.desktop.auth
    await require_newest(dsn)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(dsn, pool_limits(settings)))
        keyring = await asyncio.to_thread(load_keyring, settings.desktop)
        await require_known_key(keyring, FactRepository(database))
        records, callers = TokenRepository(database), CallerRepository(database)
        stack.push_async_callback(records.aclose)
        stack.push_async_callback(callers.aclose)
        rules = account_rules(auth)
        arrivals = Arrivals(
            callers,
            AccountRepository(database),
            IdentityRepository(database),
            rules.usernames,
            default_group=auth.default_user_group,
        )
        reader = await stack.enter_async_context(open_external_tokens(settings))
        bearers = reader and ExternalBearers(reader, arrivals, records, create_users=auth.jwt.create_users)
        yield Explainer(ExplainParts(keyring, records, OWN_JWT in auth.authenticators, reader, bearers))


NAME = "admin"
_ALPHABET = string.ascii_letters + string.digits
_LENGTH = 20


async def ensure_administrator(accounts: Accounts, given: str | None, tell: Callable[[str], None]) -> None:
    """Make `admin` when there is no user at all.

    A random password is told once and kept as a hash only; a `given` one is not told. Raises InvalidPassword.
    """
    password = given or "".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH))
    if not await accounts.create_first(NAME, password):
        return
    trail = AuditTrail(AUDIT)
    for operation in ("user.create", "user.make_admin"):
        trail.record(NAME, operation, NAME, facts=BY_SERVER)
    if given is None:
        tell(f"Administrator: {NAME}\nPassword:      {password}\nThe password is shown this once only.")
