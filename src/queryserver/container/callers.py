"""The authenticators of `desktop.auth.api_auth` (Contract platform 4.2)."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from queryserver.auth.authenticator import BearerAuthenticator
from queryserver.auth.external import ExternalRules, ExternalTokens
from queryserver.auth.external_caller import ExternalCaller
from queryserver.auth.key_cache import CacheTimes, KeyCache
from queryserver.auth.key_server import KeyServers
from queryserver.auth.plug_ins import PlugInThreads, is_import_path, open_plug_in
from queryserver.auth.plugged_caller import PluggedCaller
from queryserver.container.interfaces.context import BuildContext
from queryserver.db.tokens import TokenRepository
from queryserver.domain.errors.base import ConfigurationError
from queryserver.interfaces.auth import CallerSource, TokenCodec
from queryserver.interfaces.metrics import UNMEASURED, AccountMetrics
from queryserver.services.arrivals import Arrivals
from queryserver.services.callers import Callers
from queryserver.services.external_bearers import ExternalBearers
from queryserver.settings import Settings

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
    rules = BuildContext.of(settings).addresses
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
