"""What is wrong with the settings of a server that runs (Contract platform 7.5)."""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from urllib.parse import urlsplit

import redis.asyncio
from redis.exceptions import RedisError

from queryserver.connectors.build import configured_connectors
from queryserver.connectors.engine_builders import BuildContext, build_engine
from queryserver.connectors.model import Connector
from queryserver.connectors.sqlalchemy import postgresql_url, proxied_drivers
from queryserver.connectors.urls import DriverUrl
from queryserver.errors.base import ConfigurationError, QueryServerError
from queryserver.errors.files import StorageError
from queryserver.files.build import BUILDERS
from queryserver.files.stores.local.storage import PrivateStorage
from queryserver.identity.build import BACKENDS, BUILT_IN
from queryserver.identity.external_keys import KeyServers, NoKeys
from queryserver.identity.plug_ins import PlugInThreads, is_import_path, open_plug_in
from queryserver.platform.addresses import AddressRules, HostRefused, UnknownHost, address_rules, database_login
from queryserver.platform.database import Database, open_database, pool_limits, required_dsn
from queryserver.platform.deployment import Deployment, read_deployment
from queryserver.platform.limits import affordable_connections
from queryserver.platform.migrations import require_newest
from queryserver.platform.settings.loading import shown_value
from queryserver.platform.settings.sections import LocalResults
from queryserver.platform.settings.tree import Settings, SettingsFinding, contradictions, exposure, warnings
from queryserver.results.segments import SegmentStore
from queryserver.statements.build import results_location
from queryserver.statements.retention import MANY_DOCUMENTS

_RESULTS = "desktop.task_server.result_file_storage"
_BROKER = "desktop.task_server.broker_url"
_BROKER_S = 5.0
KEY_SERVERS = "desktop.auth.jwt.key_server_url"


async def look_at_database(settings: Settings) -> Sequence[SettingsFinding]:
    """Raises DatabaseUnavailable, SchemaMismatch."""
    dsn = required_dsn(settings)
    await require_newest(dsn)
    async with open_database(dsn, pool_limits(settings)) as database:
        return await look_into_database(settings, database)


async def look_into_database(settings: Settings, database: Database) -> Sequence[SettingsFinding]:
    """What an open database of the newest schema tells. Raises DatabaseUnavailable."""
    return list(_of_deployment(settings, await read_deployment(database, count_up_to=MANY_DOCUMENTS + 1)))


def _of_deployment(settings: Settings, deployment: Deployment) -> Iterator[SettingsFinding]:
    if settings.metadata.index.enabled and not deployment.has_trigrams:
        # The contract wants it told (platform 8.4); ADR 37 is why nobody need act on it.
        text = "is on, and the database lacks the extension pg_trgm. Searches work without it, as fast."
        yield SettingsFinding.warning("metadata.index.enabled", text)
    kept = settings.desktop.task_server.result_file_storage
    if deployment.hosts > 1 and (kept is None or isinstance(kept, LocalResults)):
        text = f"keeps results in a directory, and {deployment.hosts} hosts use the database: all must share it."
        yield SettingsFinding.warning(_RESULTS, text)
    if deployment.history_entries > MANY_DOCUMENTS:
        text = f"keeps more than {MANY_DOCUMENTS} history entries: run `queryserver cleanup`."
        yield SettingsFinding.warning("editor.history_retention_days", text)
    for name in settings.notebook.interpreters_shown_on_wheel:
        if name.isdecimal() and int(name) not in deployment.connectors:
            yield SettingsFinding.warning(
                "notebook.interpreters_shown_on_wheel", f"names {name}, which is no stored connector."
            )


async def look_at_results(settings: Settings) -> Iterable[SettingsFinding]:
    """Writes, reads and removes a small file. Raises ConfigurationError."""
    try:
        async with PrivateStorage(results_location(settings)) as storage, SegmentStore(storage) as results:
            await results.ping()
    except StorageError as error:
        return [SettingsFinding.error(_RESULTS, error.message)]
    except OSError as error:
        return [SettingsFinding.error(_RESULTS, f"cannot be used: {error.strerror or type(error).__name__}.")]
    return []


async def look_at_broker(settings: Settings) -> Iterable[SettingsFinding]:
    """Whether Redis answers."""
    client = redis.asyncio.from_url(
        settings.desktop.task_server.broker_url.get_secret_value(),
        socket_connect_timeout=_BROKER_S,
        socket_timeout=_BROKER_S,
    )
    try:
        await client.ping()
    except (RedisError, OSError, ValueError):
        return [SettingsFinding.error(_BROKER, "does not answer, or refuses the login.")]
    finally:
        await client.aclose()
    return []


async def look_at_key_servers(settings: Settings) -> Iterable[SettingsFinding]:
    """Which of them give keys. One that does not is an error only when no other does."""
    urls = settings.desktop.auth.jwt.key_server_url
    gives = await asyncio.gather(*(_gives_keys(settings, url) for url in urls))
    silent = [url for url, has_keys in zip(urls, gives, strict=True) if not has_keys]
    found = SettingsFinding.error if len(silent) == len(urls) else SettingsFinding.warning
    return [found(KEY_SERVERS, f"{urlsplit(url).hostname} gives no keys.") for url in silent]


async def _gives_keys(settings: Settings, url: str) -> bool:
    jwt = settings.desktop.auth.jwt
    rules = address_rules(settings)
    server = KeyServers([url], rules=rules, ca=jwt.key_server_ca, timeout_s=jwt.timeout_s)
    try:
        return bool((await server.fetch()).keys)
    except NoKeys:
        return False
    finally:
        await server.aclose()


_WITHIN_S = 28.0


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was found, and where the settings come from."""

    settings: Settings
    findings: Sequence[SettingsFinding]

    @property
    def directory(self) -> str:
        """That of the settings file; empty without one."""
        file = self.settings.sources.file
        return str(file.absolute().parent) if file else ""

    def value_of(self, key: str) -> str:
        """The effective value of a key; secrets masked, empty for tables and for what is no key."""
        return shown_value(self.settings, key)


class ConfigurationCheck:
    """Runs the checks of `queryserver config check` that change nothing, one caller at a time."""

    def __init__(self, settings: Settings, find: Callable[[], Awaitable[Sequence[SettingsFinding]]]) -> None:
        self._settings = settings
        self._find = find
        self._running = asyncio.Lock()

    async def report(self) -> CheckReport:
        """Within 30 s."""
        try:
            async with asyncio.timeout(_WITHIN_S), self._running:
                findings = await self._find()
        except TimeoutError:
            findings = [SettingsFinding.error("desktop", f"could not be checked within {_WITHIN_S:.0f} s.")]
        return CheckReport(self._settings, findings)


async def unloadable(settings: Settings) -> Sequence[SettingsFinding]:
    """Classes of others are built and closed again, as they are when a server starts."""
    auth = settings.desktop.auth
    found: list[SettingsFinding] = []
    threads = PlugInThreads()
    try:
        for key, names, built_in, method in (
            ("desktop.auth.backend", auth.backend, BACKENDS.keys(), "login"),
            ("desktop.auth.api_auth", auth.authenticators, BUILT_IN.keys(), "authenticate"),
        ):
            for name in names:
                if name not in built_in:
                    found += await _problems_of(key, name, method, settings, threads)
    finally:
        threads.close()
    return found


async def _problems_of(
    key: str, name: str, method: str, settings: Settings, threads: PlugInThreads
) -> Sequence[SettingsFinding]:
    if not is_import_path(name):
        return [SettingsFinding.error(key, f"{name} cannot be loaded: it is neither built in nor an import path.")]
    try:
        async with open_plug_in(key, name, settings=settings, threads=threads, method=method):
            return []
    except ConfigurationError as error:
        return [SettingsFinding.of_problem(problem) for problem in error.problems]


async def look_at_places(settings: Settings) -> Iterable[SettingsFinding]:
    """Resolves the hosts of all connectors of the settings, and connects to none of them."""
    context = BuildContext.of(settings)
    looks = [_look(connector, context) for connector in configured_connectors(settings)]
    return [finding for found in await asyncio.gather(*looks) for finding in found]


async def _look(connector: Connector, context: BuildContext) -> Sequence[SettingsFinding]:
    key = f"notebook.interpreters.{connector.key}"
    try:
        engine = await asyncio.to_thread(build_engine, connector, context)
    except ConfigurationError:  # found by another check
        return []
    places = engine.capabilities.places
    await engine.close()
    url = postgresql_url(connector, context)
    rules = context.addresses if url is None else url.rules(context.rules(connector)).addresses
    refusals = [reason for host, port in places if (reason := await _refusal(rules, host, port))]
    if refusals:
        return [SettingsFinding.error(key, f"cannot be used. {refusals[0]}")]
    if url is None or not await _are_on_own_server(places, context):
        return []
    return _beside_own_database(key, url, context)


def _beside_own_database(key: str, url: DriverUrl, context: BuildContext) -> Sequence[SettingsFinding]:
    if context.is_named_as_own_database(url.database):
        return [SettingsFinding.error(key, "cannot be used: it is the service's own database.")]
    if url.username and url.username == database_login(context.service_dsn or ""):
        text = (
            "logs in at the server of the service's own database as the service does: by dblink or a foreign data"
            " wrapper its statements could reach that database. Give it a role of its own."
        )
        return [SettingsFinding.warning(key, text)]
    return []


async def _refusal(rules: AddressRules, host: str, port: int) -> str | None:
    with suppress(UnknownHost):
        try:
            await rules.resolve(host, port)
        except HostRefused as refused:
            return refused.message
    return None


async def _are_on_own_server(places: Sequence[tuple[str, int]], context: BuildContext) -> bool:
    everything = AddressRules()
    for host, port in places:
        with suppress(UnknownHost):
            addresses = await everything.resolve(host, port)
            if await asyncio.to_thread(context.addresses.is_database_server, addresses, port):
                return True
    return False


_LOOK_S = 10.0

Look = Callable[[Settings], Awaitable[Iterable[SettingsFinding]]]


async def check_settings(settings: Settings, *, offline: bool = False) -> Sequence[SettingsFinding]:
    """As a server would start with them: errors, then warnings.

    Unless `offline`, everything that the settings name is tried, side by side, for 10 s each.
    """
    written = [*_written(settings), *await _of_this_machine(settings), *await _unbuildable(settings)]
    tried = [] if offline else await _tried(settings, look_at_results)
    return _in_order(chain(written, await unloadable(settings), *tried))


async def check_running(settings: Settings, results: Look) -> Sequence[SettingsFinding]:
    """Like `check_settings`, for a server that runs with them: nothing is written, no class of others is built.

    `results` looks at the result store.
    """
    written = [*_written(settings), *await _of_this_machine(settings), *await _unbuildable(settings)]
    return _in_order(chain(written, *await _tried(settings, results)))


def _in_order(found: Iterable[SettingsFinding]) -> Sequence[SettingsFinding]:
    """Errors first, nothing twice."""
    return sorted(dict.fromkeys(found), key=lambda finding: finding.level)


def _written(settings: Settings) -> Iterator[SettingsFinding]:
    for key, text in contradictions(settings, settings.sources.origins):
        yield SettingsFinding.error(key, text)
    for key, text in chain(warnings(settings), exposure(settings)):
        yield SettingsFinding.warning(key, text)


async def _of_this_machine(settings: Settings) -> Sequence[SettingsFinding]:
    """Files that are not there, and what its packages and its environment mean together."""
    return await asyncio.to_thread(
        lambda: [*_no_files(settings), *_few_open_files(settings), *proxied_drivers(settings, os.environ)]
    )


def _few_open_files(settings: Settings) -> Iterator[SettingsFinding]:
    permitted = affordable_connections(at_most=True)
    if permitted < settings.desktop.max_connections:
        text = f"is above the {permitted} connections that the hard limit of open files permits here."
        yield SettingsFinding.warning("desktop.max_connections", text)


def _no_files(settings: Settings) -> Iterator[SettingsFinding]:
    desktop = settings.desktop
    files = {
        "desktop.ssl_certificate": desktop.ssl_certificate,
        "desktop.ssl_private_key": desktop.ssl_private_key,
        "desktop.auth.jwt.key_server_ca": desktop.auth.jwt.key_server_ca,
        "desktop.ldap.ldap_cert": desktop.ldap.ldap_cert,
    }
    for key, file in files.items():
        if file is not None and not file.is_file():
            yield SettingsFinding.error(key, f"{file} is not a file.")


async def _unbuildable(settings: Settings) -> Sequence[SettingsFinding]:
    """Interpreters and stores that could not be served. Each is made and closed again; none connects to anything.

    They are made in threads: adapters are imported, certificates read, and paths looked at on the disk.
    """
    found: list[SettingsFinding] = []
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
async def _problems(found: list[SettingsFinding]) -> AsyncGenerator[None]:
    try:
        yield
    except ConfigurationError as error:
        found += map(SettingsFinding.of_problem, error.problems)


async def _tried(settings: Settings, results: Look) -> Sequence[Iterable[SettingsFinding]]:
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


async def _in_time(key: str, look: Awaitable[Iterable[SettingsFinding]]) -> Iterable[SettingsFinding]:
    try:
        async with asyncio.timeout(_LOOK_S):
            return await look
    except TimeoutError:
        return [SettingsFinding.error(key, f"did not answer within {_LOOK_S:.0f} s.")]
    except ConfigurationError as error:
        return map(SettingsFinding.of_problem, error.problems)
    except QueryServerError as error:
        return [SettingsFinding.error(key, error.message)]
