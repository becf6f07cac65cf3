"""Examines the whole deployment, for `queryserver doctor` and for administrators of a running server.

Contract platform 7.11.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from queryserver.administration import configuration_check, deployment_check, readiness
from queryserver.administration.deployment_check import unreachable_finding
from queryserver.administration.doctor import INSTANCES, AreaCheck, Finding, State, examine
from queryserver.errors.base import DatabaseUnavailable
from queryserver.identity.model import User
from queryserver.platform.database import Database, open_database, required_dsn
from queryserver.platform.settings.sections import leaves
from queryserver.platform.settings.tree import Settings

_LONG_S = 60.0
"""Time limit for areas with several servers; each server also has its own time limit."""
_FEW_CONNECTIONS = {"pool_min": 1, "pool_max": 4}

_REPORT_WITHIN_S, _AREA_WITHIN_S = 45.0, 25.0

# A path that begins a word. The lookbehind excludes URLs, relative paths and the keys that replace known paths.
_PATH = re.compile(r"(?<![\w.:/>~-])/[\w.~-][^\s,;:'\"()]*[^\s,;:.'\"()]")
_HIDDEN = "<path>"

FleetCheck: TypeAlias = Callable[[Settings, Database], Awaitable[Sequence[Finding]]]
"""Examines the processes of the fleet, which a higher package reads."""


async def examine_deployment(
    settings: Settings, user: User, fleet: FleetCheck, *, longest_s: float = _LONG_S
) -> Sequence[Finding]:
    """Examine all areas: first the schema and the keys, which other areas need, then the rest concurrently.

    Logs in to data sources and stores as `user`. An area may take `longest_s` seconds. Changes nothing, except that a
    small object is written to the result store and deleted. Raises ConfigurationError without a database.
    """
    dsn = required_dsn(settings)
    limits = await configuration_check.examine_limits(settings)
    async with _database(settings, dsn) as (database, unreachable):
        checks = [_settings(settings, limits)]
        if database is not None:
            checks += await _database_checks(settings, dsn, database, user, fleet)
        checks += _independent_checks(settings, user)
        bounded = [replace(one, within_s=min(one.within_s, longest_s)) for one in checks]
        return [*unreachable, *await examine(bounded), *limits]


@asynccontextmanager
async def _database(settings: Settings, dsn: str) -> AsyncGenerator[tuple[Database | None, Sequence[Finding]]]:
    """Open the service database. If it is unavailable, yield None and a finding with the reason."""
    few = settings.desktop.database.model_copy(update=_FEW_CONNECTIONS)
    async with AsyncExitStack() as stack:
        try:
            database = await stack.enter_async_context(open_database(dsn, few))
        except DatabaseUnavailable as error:
            yield None, [unreachable_finding(error)]
        else:
            yield database, []


def _settings(settings: Settings, limits: Sequence[Finding]) -> AreaCheck:
    area = "settings"

    async def check() -> Sequence[Finding]:
        others = {one.what for one in limits}
        found = [Finding.of_settings(area, one) for one in await configuration_check.offline_findings(settings)]
        return [one for one in found if one.what not in others] or [Finding.ok(area, "No problems.")]

    return AreaCheck(area, check, within_s=_LONG_S)


async def _database_checks(
    settings: Settings, dsn: str, database: Database, user: User, fleet: FleetCheck
) -> list[AreaCheck]:
    schema = await examine([AreaCheck(deployment_check.SCHEMA, partial(deployment_check.examine_schema, dsn))])
    checks = [
        AreaCheck(deployment_check.DATABASE, partial(deployment_check.examine_database, database)),
        AreaCheck(deployment_check.SCHEMA, partial(_fixed_findings, schema)),
    ]
    if any(one.state is State.ERROR for one in schema):
        return checks
    keys, keyring = await deployment_check.examine_keys(settings.desktop, database)
    checks += [
        AreaCheck(deployment_check.KEYS, partial(_fixed_findings, keys)),
        AreaCheck(INSTANCES, partial(fleet, settings, database)),
    ]
    if keyring is None:
        what = "Connectors were not tested: their secrets can be decrypted only with the keys of this database."
        untried = Finding.warning(deployment_check.ENGINES, what, "Correct the keys first.")
        return [*checks, AreaCheck(deployment_check.ENGINES, partial(_fixed_findings, [untried]))]
    engines = partial(deployment_check.examine_engines, settings, database, keyring, user)
    return [*checks, AreaCheck(deployment_check.ENGINES, engines, within_s=_LONG_S)]


async def _fixed_findings(found: Sequence[Finding]) -> Sequence[Finding]:
    return found


def _independent_checks(settings: Settings, user: User) -> Iterator[AreaCheck]:
    if settings.desktop.task_server.enabled:
        yield AreaCheck("broker", partial(readiness.examine_broker, settings))
    yield AreaCheck(deployment_check.RESULTS, partial(deployment_check.examine_results, settings))
    yield AreaCheck(deployment_check.STORES, partial(deployment_check.examine_stores, settings, user), within_s=_LONG_S)
    if settings.desktop.smtp.host:
        yield AreaCheck(deployment_check.MAIL, partial(deployment_check.examine_mail, settings))
    if settings.desktop.auth.jwt.key_server_url:
        yield AreaCheck(deployment_check.KEY_SERVERS, partial(deployment_check.examine_key_servers, settings))
    if settings.desktop.auth.oidc.client_id:
        yield AreaCheck(deployment_check.LOGIN_ISSUER, partial(deployment_check.examine_login_issuer, settings))
    yield AreaCheck("disk", partial(configuration_check.examine_disks, settings))
    yield AreaCheck("confinement", configuration_check.examine_confinement)


@dataclass(frozen=True, slots=True)
class Examination:
    """The findings, by area and without paths of the server, and the seconds that their checks took."""

    findings: Sequence[Finding]
    took_s: float


class Doctor:
    """Examines the deployment from a running server, for one caller at a time."""

    def __init__(self, settings: Settings, fleet: FleetCheck) -> None:
        self._settings = settings
        self._fleet = fleet
        self._running = asyncio.Lock()

    async def examination(self, user: User) -> Examination:
        """Examine the deployment within 45 s, including the time that other callers need.

        If the checks take longer, there is only one finding, which states this. Raises ConfigurationError.
        """
        began = time.monotonic()
        try:
            async with asyncio.timeout(_REPORT_WITHIN_S), self._running:
                found = await examine_deployment(self._settings, user, self._fleet, longest_s=_AREA_WITHIN_S)
        except TimeoutError:
            what = f"The deployment could not be examined within {_REPORT_WITHIN_S:.0f} s."
            found = [Finding.error("doctor", what, "Run `queryserver doctor` on a server, which waits longer.")]
        return Examination([without_paths(one, self._settings) for one in found], time.monotonic() - began)


def without_paths(finding: Finding, settings: Settings) -> Finding:
    """Replace paths of this machine by the keys of the settings that name them, or by `<path>`."""
    known = {str(value): ".".join(path) for path, _, value in leaves(settings) if isinstance(value, Path)}
    known |= {str(Path(path).absolute()): key for path, key in known.items()}
    # The longest first, because one directory may contain another.
    absolute = sorted((path for path in known if path.startswith("/") and path != "/"), key=len, reverse=True)

    def clean(text: str) -> str:
        for path in absolute:
            text = text.replace(path, f"<{known[path]}>")
        return _PATH.sub(_HIDDEN, text)

    return replace(finding, what=clean(finding.what), to_do=clean(finding.to_do))
