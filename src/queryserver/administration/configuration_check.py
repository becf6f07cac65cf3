"""Checks the settings and this machine, for `queryserver config check`, the doctor and a running server.

Contract platform 7.5.
"""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from queryserver.administration.doctor import Finding
from queryserver.administration.readiness import BROKER, check_broker
from queryserver.connectors.engine_builders import (
    EngineBuilder,
    connector_address_rules,
    postgresql_url,
    proxied_drivers,
)
from queryserver.connectors.model import Connector
from queryserver.connectors.sources import EMBEDDED, configured_connectors
from queryserver.engines.connections import MEMORY
from queryserver.engines.protocol import EngineCapabilities
from queryserver.errors.base import ConfigurationError, IssuerUnavailable, QueryServerError
from queryserver.errors.files import StorageError
from queryserver.files.build import BUILDERS
from queryserver.identity.build import AUTHENTICATORS, BACKENDS
from queryserver.identity.external_keys import KeyServers
from queryserver.identity.issuer import DISCOVERY_PATH, Provider
from queryserver.identity.issuer_http import IssuerHttp
from queryserver.identity.model import is_import_path
from queryserver.identity.plug_ins import open_plug_in
from queryserver.identity.threads import LimitedThreads
from queryserver.platform.addresses import AddressRules, HostRefused, UnknownHost, address_rules, database_login
from queryserver.platform.confinement import KernelSupport, detect_support
from queryserver.platform.database import Row
from queryserver.platform.machine_limits import DiskFloor, disk_floor, permitted_connections
from queryserver.platform.migrations import open_service_database
from queryserver.platform.settings.loader import masked_value
from queryserver.platform.settings.sections import LocalResults
from queryserver.platform.settings.tree import Settings, SettingsFinding, contradictions, exposure, warnings
from queryserver.results.stores import RESULTS, build_result_files, is_remote, open_results
from queryserver.statements.retention import COUNT_DOCUMENTS, MANY_DOCUMENTS

_GIB = 1024**3
_CONNECTIONS = "desktop.max_connections"

KEY_SERVERS = "desktop.auth.jwt.key_server_url"
LOGIN_ISSUER = "desktop.auth.oidc.client_id"
_SMTP_HOST = "desktop.smtp.host"

_REPORT_WITHIN_S = 28.0
_CHECK_WITHIN_S = 10.0
_SMTP_WITHIN_S = 5.0

# A login can see the client addresses of its own connections. Unix sockets and loopback addresses count as the same
# host. `connectors` are the ids of the stored connectors.
_DEPLOYMENT = """
    select
        (
            select count(distinct case when client_addr in ('127.0.0.1', '::1') then null else client_addr end)
                + max(case when client_addr is null or client_addr in ('127.0.0.1', '::1') then 1 else 0 end)
            from pg_stat_activity
            where datname = current_database() and usename = current_user and backend_type = 'client backend'
        ) as hosts,
        (select coalesce(array_agg(id), '{}') from connectors where deleted_at is null) as connectors
"""

Check: TypeAlias = Callable[[Settings], Awaitable[Iterable[SettingsFinding]]]


def directories(settings: Settings) -> Mapping[str, Path]:
    """Return the directories that the service uses, by purpose. Excludes result stores on other machines."""
    results = settings.desktop.task_server.result_file_storage
    found = {"the data directory": settings.desktop.data_dir, "uploads": settings.uploads_dir}
    if results is None or isinstance(results, LocalResults):
        found["results"] = settings.results_dir if results is None else Path(results.location)
    if settings.filebrowser.local_root is not None:
        found["the local root"] = settings.filebrowser.local_root
    return found


async def examine_disks(settings: Settings) -> Sequence[Finding]:
    """Compare the free space of each directory with the configured minimum.

    The directories are measured in threads, so a hanging mount does not block the event loop.
    """
    floor = disk_floor(settings)
    rooms = (asyncio.to_thread(_disk, name, directory, floor) for name, directory in directories(settings).items())
    return await asyncio.gather(*rooms)


def _disk(name: str, directory: Path, floor: DiskFloor) -> Finding:
    area = "disk"
    # The directory may not exist yet. Its nearest existing parent is on the same disk.
    measured = next(one for one in (directory.absolute(), *directory.absolute().parents) if one.exists())
    try:
        room, free = floor.room(measured, fresh=True), shutil.disk_usage(measured).free
    except OSError as error:
        what = f"{directory} ({name}) cannot be read: {error.strerror or type(error).__name__}."
        return Finding.error(area, what, "Check the mount and its permissions.")
    text = f"{free / _GIB:.1f} GiB are free for {name} in {directory}"
    floor_text = f"the floor of desktop.min_free_percent and desktop.min_free_bytes is {(free - room) / _GIB:.1f} GiB"
    if not floor.is_off and room <= 0:
        to_do = (
            "Free up space: `queryserver cleanup`, `queryserver close_queries 0`, empty trashes. Or lower the floor."
        )
        return Finding.error(area, f"{text}; {floor_text}: uploads, imports and large results are rejected.", to_do)
    if not floor.is_off and room < free - room:
        return Finding.warning(
            area, f"{text}; {floor_text}.", "Free up space, or enlarge the disk, before the floor is reached."
        )
    return Finding.ok(area, f"{text}.")


def file_limit_findings(settings: Settings) -> Iterator[SettingsFinding]:
    """Warn if the limit on open files is too low for `desktop.max_connections`."""
    permitted = permitted_connections(hard=True)
    if permitted < settings.desktop.max_connections:
        text = f"exceeds the {permitted} connections that the hard limit on open files permits on this machine."
        yield SettingsFinding.warning(_CONNECTIONS, text)


async def examine_limits(settings: Settings) -> Sequence[Finding]:
    area = "limits"
    found = [Finding.of_settings(area, one) for one in file_limit_findings(settings)]
    permitted = permitted_connections(hard=True)
    well = f"The limit on open files permits {_CONNECTIONS} = {settings.desktop.max_connections}."
    to_do = f"Increase the hard limit (ulimit -Hn, LimitNOFILE in systemd), or decrease {_CONNECTIONS} to {permitted}."
    return [Finding(area, one.state, one.what, to_do) for one in found] or [Finding.ok(area, well)]


async def examine_confinement() -> Sequence[Finding]:
    """Report how far the kernel can confine the processes that run DuckDB and read users' files."""
    return [_confinement(await asyncio.to_thread(detect_support))]


def _confinement(support: KernelSupport) -> Finding:
    area = "confinement"
    missing = [
        *([] if support.landlock_abi else ["without Landlock they can open any file that the service can open"]),
        *(
            []
            if support.seccomp
            else ["without seccomp they can start programs, open connections and signal other processes"]
        ),
    ]
    if not missing:
        what = f"Landlock (version {support.landlock_abi}) and seccomp confine the processes that work on user input."
        return Finding.ok(area, what)
    what = f"Processes that work on user input have memory and time limits, but {', and '.join(missing)}."
    return Finding.warning(area, what, "See docs/operations/security.md for supported kernels and container settings.")


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The findings, and the settings with their origins."""

    settings: Settings
    findings: Sequence[SettingsFinding]

    @property
    def directory(self) -> str:
        """The directory of the settings file. Empty if there is no settings file."""
        file = self.settings.sources.file
        return str(file.absolute().parent) if file else ""

    def value_of(self, key: str) -> str:
        """Return the effective value of a key, with secrets masked. Empty for tables and unknown keys."""
        return masked_value(self.settings, key)


class ConfigurationCheck:
    """Runs the checks of `queryserver config check` for one caller at a time. Writes nothing and loads no plug-ins.

    `results` is the check of the result store.
    """

    def __init__(self, settings: Settings, results: Check) -> None:
        self._settings = settings
        self._results = results
        self._running = asyncio.Lock()

    async def report(self) -> CheckReport:
        """Run the checks and return the report within 30 s.

        If the checks take longer, the report contains only one finding, which states this.
        """
        try:
            async with asyncio.timeout(_REPORT_WITHIN_S), self._running:
                tried = await _online_checks(self._settings, self._results)
                findings = _sorted_findings(chain(await offline_findings(self._settings), *tried))
        except TimeoutError:
            findings = [SettingsFinding.error("desktop", f"could not be checked within {_REPORT_WITHIN_S:.0f} s.")]
        return CheckReport(self._settings, findings)


async def check_settings(settings: Settings, *, offline: bool = False) -> Sequence[SettingsFinding]:
    """Return the findings for a server with these settings: errors first, then warnings.

    Unless `offline` is set, contacts every service that the settings refer to, concurrently, for up to 10 s each.
    """
    found = [*await offline_findings(settings), *await plugin_findings(settings)]
    tried = [] if offline else await _online_checks(settings, check_results)
    return _sorted_findings(chain(found, *tried))


def _sorted_findings(found: Iterable[SettingsFinding]) -> Sequence[SettingsFinding]:
    """Sort errors first and remove duplicates."""
    return sorted(dict.fromkeys(found), key=lambda finding: finding.level)


async def _online_checks(settings: Settings, results: Check) -> Sequence[Iterable[SettingsFinding]]:
    checks: list[tuple[str, Check]] = [(RESULTS, results), ("notebook.interpreters", check_connector_hosts)]
    if settings.desktop.database.dsn is not None:
        checks.append(("desktop.database", check_database))
    if settings.desktop.task_server.enabled:
        checks.append((BROKER, check_broker))
    if settings.desktop.auth.jwt.key_server_url:
        checks.append((KEY_SERVERS, check_key_servers))
    if settings.desktop.auth.oidc.client_id:
        checks.append((LOGIN_ISSUER, check_login_issuer))
    if settings.desktop.smtp.host:
        checks.append((_SMTP_HOST, check_smtp))
    return await asyncio.gather(*(_in_time(key, check(settings)) for key, check in checks))


async def _in_time(key: str, check: Awaitable[Iterable[SettingsFinding]]) -> Iterable[SettingsFinding]:
    try:
        async with asyncio.timeout(_CHECK_WITHIN_S):
            return await check
    except TimeoutError:
        return [SettingsFinding.error(key, f"did not respond within {_CHECK_WITHIN_S:.0f} s.")]
    except ConfigurationError as error:
        return map(SettingsFinding.of_problem, error.problems)
    except QueryServerError as error:
        return [SettingsFinding.error(key, error.message)]


async def offline_findings(settings: Settings) -> Sequence[SettingsFinding]:
    """Check the settings, this machine and the installed packages without opening connections.

    Interpreters and stores are built and closed again. They are built in threads, because this imports adapters and
    reads certificates.
    """
    found = [SettingsFinding.error(key, text) for key, text in contradictions(settings, settings.sources.origins)]
    found += [SettingsFinding.warning(key, text) for key, text in chain(warnings(settings), exposure(settings))]
    found += await asyncio.to_thread(lambda: [*_machine_findings(settings)])
    builder = EngineBuilder(settings)
    for connector in configured_connectors(settings):
        with _problems_into(found):
            engine = await asyncio.to_thread(builder.build, connector)
            await engine.close()
    for build in BUILDERS.values():
        with _problems_into(found):
            if (store := await asyncio.to_thread(build, settings)) is not None:
                await store.close()
    if is_remote(settings):
        with _problems_into(found):
            files = await asyncio.to_thread(build_result_files, settings)
            await files.close()
    return found


@contextmanager
def _problems_into(found: list[SettingsFinding]) -> Generator[None]:
    try:
        yield
    except ConfigurationError as error:
        found += map(SettingsFinding.of_problem, error.problems)


def _machine_findings(settings: Settings) -> Iterator[SettingsFinding]:
    """Report missing files, low resource limits, and proxies set in the environment."""
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
    yield from file_limit_findings(settings)
    yield from proxied_drivers(settings, os.environ)


async def check_database(settings: Settings) -> Sequence[SettingsFinding]:
    """Check the service database, and whether the settings suit its contents.

    Raises DatabaseUnavailable, SchemaMismatch.
    """
    async with open_service_database(settings) as database:
        [found] = await database.fetch(_DEPLOYMENT)
        documents = await database.value(COUNT_DOCUMENTS, MANY_DOCUMENTS + 1)
    return list(_deployment_findings(settings, found, documents))


def _deployment_findings(settings: Settings, found: Row, documents: int) -> Iterator[SettingsFinding]:
    if found["hosts"] > 1 and not is_remote(settings):
        text = f"is a directory, but {found['hosts']} hosts use the database: all of them must share it."
        yield SettingsFinding.warning(RESULTS, text)
    if found["hosts"] > 1:
        yield from _multi_host_findings(settings, found["hosts"])
    if documents > MANY_DOCUMENTS:
        text = f"retains more than {MANY_DOCUMENTS} history entries and saved queries: run `queryserver cleanup`."
        yield SettingsFinding.warning("editor.history_retention_days", text)
    for name in settings.notebook.interpreters_shown_on_wheel:
        if name.isdecimal() and int(name) not in found["connectors"]:
            yield SettingsFinding.warning(
                "notebook.interpreters_shown_on_wheel", f"names {name}, but there is no stored connector with this id."
            )


def _multi_host_findings(settings: Settings, hosts: int) -> Iterator[SettingsFinding]:
    """Report settings that refer to one host although several hosts need them."""
    if settings.importer.is_enabled and settings.importer.upload_dir is None:
        text = f"is a directory on this host, but {hosts} hosts use the database: all of them must share it."
        yield SettingsFinding.warning("importer.upload_dir", text)
    if not settings.desktop.secret_key.get_secret_value():
        text = f"was generated on this host, but {hosts} hosts use the database: set the same key on all of them."
        yield SettingsFinding.warning("desktop.secret_key", text)
    files = [one.nice_name for one in configured_connectors(settings) if is_file(one)]
    if files:
        text = (
            f"contains the files of {', '.join(files)}, but {hosts} hosts use the database: all of them must share it."
        )
        yield SettingsFinding.warning("desktop.connector_policy.local_database_dir", text)


def is_file(connector: Connector) -> bool:
    """Return whether the connector's data is a file on this host."""
    return connector.interface in EMBEDDED and str(connector.options.get("path") or MEMORY) != MEMORY


async def check_results(settings: Settings) -> Iterable[SettingsFinding]:
    """Write, read and delete a small object. Raises ConfigurationError and the store's errors."""
    try:
        async with open_results(settings) as results:
            await results.store.ping()
    except StorageError as error:
        return [SettingsFinding.error(RESULTS, error.message)]
    except OSError as error:
        return [SettingsFinding.error(RESULTS, f"cannot be used: {error.strerror or type(error).__name__}.")]
    return []


async def check_smtp(settings: Settings) -> Iterable[SettingsFinding]:
    """Connect to the mail server with the configured encryption and login, without sending mail."""
    import aiosmtplib  # noqa: PLC0415 few servers send mail

    smtp = settings.desktop.smtp
    client = aiosmtplib.SMTP(
        hostname=smtp.host,
        port=smtp.port,
        username=smtp.user or None,
        password=smtp.password.get_secret_value() or None,
        use_tls=smtp.tls == "tls",
        start_tls=smtp.tls == "starttls",
        timeout=_SMTP_WITHIN_S,
    )
    try:
        async with client:
            pass
    except aiosmtplib.SMTPAuthenticationError:
        return [SettingsFinding.error("desktop.smtp.user", "is rejected by the mail server.")]
    except aiosmtplib.SMTPConnectError:
        return [SettingsFinding.error(_SMTP_HOST, "does not respond.")]
    except (aiosmtplib.SMTPException, OSError, ValueError):
        return [SettingsFinding.error(_SMTP_HOST, f"does not accept connections with desktop.smtp.tls = {smtp.tls}.")]
    return []


async def check_key_servers(settings: Settings) -> Iterable[SettingsFinding]:
    """Check whether each key server returns keys. A failing key server is an error only if all others fail too."""
    urls = settings.desktop.auth.jwt.key_server_url
    gives = await asyncio.gather(*(_gives_keys(settings, url) for url in urls))
    silent = [url for url, has_keys in zip(urls, gives, strict=True) if not has_keys]
    found = SettingsFinding.error if len(silent) == len(urls) else SettingsFinding.warning
    return [found(KEY_SERVERS, f"{urlsplit(url).hostname} returns no keys.") for url in silent]


async def _gives_keys(settings: Settings, url: str) -> bool:
    jwt = settings.desktop.auth.jwt
    rules = address_rules(settings)
    server = KeyServers([url], rules=rules, ca=jwt.key_server_ca, timeout_s=jwt.timeout_s)
    try:
        return bool(await server.fetch())
    finally:
        await server.aclose()


async def check_login_issuer(settings: Settings) -> Iterable[SettingsFinding]:
    """Check whether the issuer at which users log in returns its endpoints. The log has the reason of a failure."""
    auth = settings.desktop.auth
    provider = Provider(auth.jwt, auth.oidc, IssuerHttp(address_rules(settings), ca=auth.jwt.key_server_ca))
    try:
        await provider.endpoints()
    except IssuerUnavailable:
        text = f"{auth.jwt.issuer}{DISCOVERY_PATH} is not the discovery document of this issuer."
        return [SettingsFinding.error(LOGIN_ISSUER, text)]
    finally:
        await provider.aclose()
    return []


async def plugin_findings(settings: Settings) -> Sequence[SettingsFinding]:
    """Report plug-ins that cannot be loaded. The plug-ins are instantiated as at server start, and closed again."""
    auth = settings.desktop.auth
    found: list[SettingsFinding] = []
    threads = LimitedThreads()
    try:
        for key, names, built_in, method in (
            ("desktop.auth.backend", auth.backend, BACKENDS, "login"),
            ("desktop.auth.api_auth", auth.authenticators, AUTHENTICATORS, "authenticate"),
        ):
            for name in (one for one in names if one not in built_in):
                if not is_import_path(name):
                    text = f"{name} cannot be loaded: it is neither built in nor an import path."
                    found.append(SettingsFinding.error(key, text))
                    continue
                with _problems_into(found):
                    async with open_plug_in(key, name, settings=settings, threads=threads, method=method):
                        pass
    finally:
        threads.close()
    return found


async def check_connector_hosts(settings: Settings) -> Iterable[SettingsFinding]:
    """Resolve the hosts of all configured connectors, without connecting, and check their limits on estimates."""
    builder = EngineBuilder(settings)
    found = await asyncio.gather(*(_host_findings(one, builder) for one in configured_connectors(settings)))
    return chain.from_iterable(found)


async def _host_findings(connector: Connector, builder: EngineBuilder) -> Sequence[SettingsFinding]:
    try:
        engine = await asyncio.to_thread(builder.build, connector)
    except ConfigurationError:  # another check reports this error
        return []
    endpoints = engine.capabilities.endpoints
    await engine.close()
    return [
        *_estimate_findings(connector, engine.capabilities),
        *await _endpoint_findings(connector, builder, endpoints),
    ]


def _estimate_findings(connector: Connector, capabilities: EngineCapabilities) -> Iterator[SettingsFinding]:
    """Report limits on estimates that have no effect, because the data source makes no such estimates."""
    limits = connector.limits
    for name, most, is_estimated in (
        ("max_estimated_bytes", limits.max_estimated_bytes, capabilities.estimates_bytes),
        ("max_estimated_cost", limits.max_estimated_cost, capabilities.estimates_cost),
    ):
        if most is not None and not is_estimated:
            text = (
                "has no effect: this data source does not estimate it. Use another limit, such as statement_timeout_s."
            )
            yield SettingsFinding.warning(f"notebook.interpreters.{connector.key}.{name}", text)


async def _endpoint_findings(
    connector: Connector, builder: EngineBuilder, endpoints: Sequence[tuple[str, int]]
) -> Sequence[SettingsFinding]:
    key = f"notebook.interpreters.{connector.key}"
    url = postgresql_url(connector, builder)
    rules = connector_address_rules(connector, builder)
    for host, port in endpoints:
        with suppress(UnknownHost):
            try:
                await rules.resolve(host, port)
            except HostRefused as refused:
                return [SettingsFinding.error(key, f"cannot be used. {refused.message}")]
    if url is None or not await _is_on_own_server(endpoints, builder.addresses):
        return []
    if builder.is_named_as_own_database(url.database):
        return [SettingsFinding.error(key, "cannot be used: it is the service's own database.")]
    if url.username and url.username == database_login(builder.service_dsn or ""):
        text = (
            "logs in to the database server of the service with the service's own role. Through dblink or a foreign"
            " data wrapper, its statements could reach the service database. Use a separate role."
        )
        return [SettingsFinding.warning(key, text)]
    return []


async def _is_on_own_server(endpoints: Sequence[tuple[str, int]], rules: AddressRules) -> bool:
    everything = AddressRules()
    for host, port in endpoints:
        with suppress(UnknownHost):
            addresses = await everything.resolve(host, port)
            if await asyncio.to_thread(rules.is_database_server, addresses, port):
                return True
    return False
