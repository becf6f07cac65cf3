"""The login back ends of `desktop.auth.backend` (Contract platform 4.1)."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from queryserver.auth.local import LocalLogin
from queryserver.auth.plug_ins import PlugInThreads, is_import_path, open_plug_in
from queryserver.auth.plugged_login import PluggedLogin
from queryserver.container.directory import open_directory_login
from queryserver.db.accounts import AccountRepository
from queryserver.domain.errors.base import ConfigurationError
from queryserver.domain.identities import LDAP, plug_in_issuer
from queryserver.domain.usernames import UsernameRule
from queryserver.interfaces.auth import Passwords
from queryserver.services.logins import LoginSource
from queryserver.settings import Settings

_KEY = "desktop.auth.backend"


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
    problems = [] if names else [f"{_KEY}: names no login back end."]
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
    raise ConfigurationError([f"{_KEY}: {name} cannot be loaded: known are {', '.join(BACKENDS)} and import paths."])


@asynccontextmanager
async def _plugged(name: str, ground: LoginGround, threads: PlugInThreads) -> AsyncGenerator[LoginSource]:
    opened = open_plug_in(_KEY, name, settings=ground.settings, threads=threads, method="login")
    async with opened as instance:
        login = PluggedLogin(name, instance, threads, ground.usernames)
        yield LoginSource(name, login, creates_users=True, issuer=plug_in_issuer(name))
