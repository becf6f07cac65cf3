"""What is wrong with settings: the checks behind `queryserver config check` and the call check_config."""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain

from queryserver.api.connections.guard import affordable_connections
from queryserver.container.connector_places import look_at_places
from queryserver.container.connectors import configured_connectors
from queryserver.container.interfaces.builders import build_engine
from queryserver.container.interfaces.context import BuildContext
from queryserver.container.looks import (
    KEY_SERVERS,
    look_at_broker,
    look_at_database,
    look_at_key_servers,
    look_at_results,
)
from queryserver.container.plug_in_checks import unloadable
from queryserver.container.proxies import proxied_drivers
from queryserver.container.storage import BUILDERS
from queryserver.domain.errors.base import ConfigurationError, QueryServerError
from queryserver.domain.findings import Finding
from queryserver.settings import Settings
from queryserver.settings.contradictions import contradictions, exposure, warnings

_LOOK_S = 10.0

Look = Callable[[Settings], Awaitable[Iterable[Finding]]]


async def check_settings(settings: Settings, *, offline: bool = False) -> Sequence[Finding]:
    """As a server would start with them: errors, then warnings.

    Unless `offline`, everything that the settings name is tried, side by side, for 10 s each.
    """
    written = [*_written(settings), *await _of_this_machine(settings), *await _unbuildable(settings)]
    tried = [] if offline else await _tried(settings, look_at_results)
    return _in_order(chain(written, await unloadable(settings), *tried))


async def check_running(settings: Settings, results: Look) -> Sequence[Finding]:
    """Like `check_settings`, for a server that runs with them: nothing is written, no class of others is built.

    `results` looks at the result store.
    """
    written = [*_written(settings), *await _of_this_machine(settings), *await _unbuildable(settings)]
    return _in_order(chain(written, *await _tried(settings, results)))


def _in_order(found: Iterable[Finding]) -> Sequence[Finding]:
    """Errors first, nothing twice."""
    return sorted(dict.fromkeys(found), key=lambda finding: finding.level)


def _written(settings: Settings) -> Iterator[Finding]:
    for key, text in contradictions(settings, settings.sources.origins):
        yield Finding.error(key, text)
    for key, text in chain(warnings(settings), exposure(settings)):
        yield Finding.warning(key, text)


async def _of_this_machine(settings: Settings) -> Sequence[Finding]:
    """Files that are not there, and what its packages and its environment mean together."""
    return await asyncio.to_thread(
        lambda: [*_no_files(settings), *_few_open_files(settings), *proxied_drivers(settings, os.environ)]
    )


def _few_open_files(settings: Settings) -> Iterator[Finding]:
    permitted = affordable_connections(at_most=True)
    if permitted < settings.desktop.max_connections:
        text = f"is above the {permitted} connections that the hard limit of open files permits here."
        yield Finding.warning("desktop.max_connections", text)


def _no_files(settings: Settings) -> Iterator[Finding]:
    desktop = settings.desktop
    files = {
        "desktop.ssl_certificate": desktop.ssl_certificate,
        "desktop.ssl_private_key": desktop.ssl_private_key,
        "desktop.auth.jwt.key_server_ca": desktop.auth.jwt.key_server_ca,
        "desktop.ldap.ldap_cert": desktop.ldap.ldap_cert,
    }
    for key, file in files.items():
        if file is not None and not file.is_file():
            yield Finding.error(key, f"{file} is not a file.")


async def _unbuildable(settings: Settings) -> Sequence[Finding]:
    """Interpreters and stores that could not be served. Each is made and closed again; none connects to anything.

    They are made in threads: adapters are imported, certificates read, and paths looked at on the disk.
    """
    found: list[Finding] = []
    context = BuildContext.of(settings)
    for connector in configured_connectors(settings):
        async with _problems(found):
            engine = await asyncio.to_thread(build_engine, connector, context)
            await engine.close()
    for build in BUILDERS.values():
        async with _problems(found):
            if (store := await asyncio.to_thread(build, settings)) is not None:
                await store.close()
    return found


@asynccontextmanager
async def _problems(found: list[Finding]) -> AsyncGenerator[None]:
    try:
        yield
    except ConfigurationError as error:
        found += map(Finding.of_problem, error.problems)


async def _tried(settings: Settings, results: Look) -> Sequence[Iterable[Finding]]:
    looks: list[tuple[str, Look]] = [
        ("desktop.task_server.result_file_storage", results),
        ("notebook.interpreters", look_at_places),
    ]
    if settings.desktop.database.dsn is not None:
        looks.append(("desktop.database", look_at_database))
    if settings.desktop.task_server.enabled:
        looks.append(("desktop.task_server.broker_url", look_at_broker))
    if settings.desktop.auth.jwt.key_server_url:
        looks.append((KEY_SERVERS, look_at_key_servers))
    return await asyncio.gather(*(_in_time(key, look(settings)) for key, look in looks))


async def _in_time(key: str, look: Awaitable[Iterable[Finding]]) -> Iterable[Finding]:
    try:
        async with asyncio.timeout(_LOOK_S):
            return await look
    except TimeoutError:
        return [Finding.error(key, f"did not answer within {_LOOK_S:.0f} s.")]
    except ConfigurationError as error:
        return map(Finding.of_problem, error.problems)
    except QueryServerError as error:
        return [Finding.error(key, error.message)]
