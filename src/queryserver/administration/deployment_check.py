"""Checks for the doctor: the service database, its schema, the secret keys, the clocks, data sources, file stores and
servers. Changes nothing."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from types import MappingProxyType

from queryserver import errors
from queryserver.administration.configuration_check import (
    check_key_servers,
    check_login_issuer,
    check_results,
    check_smtp,
    is_file,
)
from queryserver.administration.doctor import Finding, of_settings
from queryserver.connectors.connection_tests import ConnectionTestOutcome, ConnectionTests
from queryserver.connectors.engine_builders import EngineBuilder
from queryserver.connectors.instances import StoredConnectors
from queryserver.connectors.model import Connector
from queryserver.connectors.repository import ConnectorRepository
from queryserver.connectors.sources import configured_connectors, read_stored
from queryserver.errors.base import ConfigurationError, DatabaseUnavailable
from queryserver.files.access import Caller
from queryserver.files.build import open_stores
from queryserver.files.protocol import FileSystem
from queryserver.identity.keys import FINGERPRINT_FACT, KEY_FILE, AesSealer, Keyring, existing_keyring, key_mismatch
from queryserver.identity.model import User
from queryserver.platform.database import Database, FactRepository
from queryserver.platform.embedded.cluster import SAMPLE_ROLE
from queryserver.platform.migrations import newest_revision, read_schema, refusal
from queryserver.platform.settings.desktop import DesktopSettings
from queryserver.platform.settings.tree import Settings, SettingsFinding

DATABASE, SCHEMA, KEYS, CLOCK = "database", "schema", "keys", "clock"
URL = "desktop.database.url"

_ROUND_TRIPS = 7
_SLOW_MS = 20.0
_CLOCKS_APART_S = 2.0

_REASONS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "InvalidPasswordError": ("rejects the password", f"Correct the password in {URL}."),
        "InvalidAuthorizationSpecificationError": ("rejects the login", f"Correct the login in {URL} or pg_hba.conf."),
        "InvalidCatalogNameError": ("does not have this database", f"Create it, or correct {URL}."),
        "TooManyConnectionsError": (
            "accepts no more connections",
            "Increase max_connections, or decrease desktop.database.pool_max.",
        ),
        "ConnectionRefusedError": ("refuses connections", f"Start it, or correct host and port in {URL}."),
        "CannotConnectNowError": ("is starting up or shutting down", "Wait until it is ready, and check its log."),
        "gaierror": ("has an unknown host name", f"Correct the host in {URL}, or fix DNS."),
        "FileNotFoundError": ("has no socket at the configured path", f"Start it, or correct the host in {URL}."),
    }
)
"""By the class name of an error's cause: what PostgreSQL does, and the remedy."""

ENGINES, STORES, RESULTS, MAIL, KEY_SERVERS = "engines", "file stores", "results", "mail", "key servers"
LOGIN_ISSUER = "login issuer"

_AT_ONCE = 16
_STORE_WITHIN_S = 10.0
_REMEDIES = {
    "dns": "Correct the host name, or fix DNS.",
    "refused": "Start the data source, correct its host and port, or allow its network (desktop.connector_policy).",
    "timeout": "Check the data source, and the firewalls on the way to it.",
    "auth": "Correct the login of the connector.",
    "tls": "Correct the certificates, or the TLS options of the connector.",
    "engine": "Check the log of the data source.",
}


def unreachable_finding(error: DatabaseUnavailable) -> Finding:
    """Return the finding for a database that accepts no connections. Does not reveal the database's address."""
    known = _REASONS.get(type(error.__cause__).__name__)
    what, to_do = known or ("does not respond", f"Check PostgreSQL, the network and {URL}.")
    return Finding.error(DATABASE, f"The service database {what}.", to_do)


@dataclass(frozen=True, slots=True)
class _ClockSample:
    """Measured round trips to the database. `ahead_s` is how far the database's clock is ahead of this machine's clock.

    The actual offset may differ from `ahead_s` by up to `unsure_s`.
    """

    version: str
    is_replica: bool
    round_trip_ms: float
    ahead_s: float
    unsure_s: float


async def _measure(database: Database) -> _ClockSample:
    facts = await database.row("select current_setting('server_version') as version, pg_is_in_recovery() as is_replica")
    assert facts is not None  # noqa: S101 a select without from has one row
    trips = list[tuple[float, float]]()
    for _ in range(_ROUND_TRIPS):
        began, before = time.monotonic(), time.time()
        there: datetime = await database.value("select clock_timestamp()")
        took_s = time.monotonic() - began
        # The database reads its clock at some moment between the request and the response.
        trips.append((took_s, there.timestamp() - (before + took_s / 2)))
    shortest_s, ahead_s = min(trips)
    round_trip_ms = 1000 * median(took_s for took_s, _ in trips)
    return _ClockSample(facts["version"], facts["is_replica"], round_trip_ms, ahead_s, shortest_s / 2)


async def examine_database(database: Database) -> Sequence[Finding]:
    """Report the version, latency and clock offset of the database."""
    measured = await _measure(database)
    found = [Finding.ok(DATABASE, f"PostgreSQL {measured.version} responds in {measured.round_trip_ms:.1f} ms.")]
    if measured.is_replica:
        to_do = f"Set {URL} to the address of the primary, or list all hosts and set target_session_attrs."
        found.append(Finding.error(DATABASE, "The database is a read-only replica.", to_do))
    if measured.round_trip_ms > _SLOW_MS:
        what = f"A round trip takes {measured.round_trip_ms:.0f} ms, and each API call needs several."
        found.append(Finding.warning(DATABASE, what, "Run the servers closer to the database, and check its load."))
    return [*found, clock_finding(measured.ahead_s, measured.unsure_s)]


def clock_finding(ahead_s: float, unsure_s: float) -> Finding:
    """Return the finding for the offset between the database's clock and this machine's clock."""
    if abs(ahead_s) - unsure_s > _CLOCKS_APART_S:
        side = "behind" if ahead_s > 0 else "ahead of"
        what = (
            f"The clock of this machine is {abs(ahead_s):.1f} s {side} that of the database."
            " Tokens may be accepted or rejected wrongly."
        )
        to_do = "Synchronize both clocks with NTP (chronyc tracking, timedatectl)."
        return Finding.warning(CLOCK, what, to_do)
    return Finding.ok(CLOCK, f"The clocks of this machine and the database differ by {abs(ahead_s):.2f} s.")


async def examine_schema(dsn: str) -> Sequence[Finding]:
    """Compare the schema of the database with the schema that this program expects."""
    present, own = await read_schema(dsn), newest_revision()
    if text := refusal(present):
        is_older = present.version is None or present.version < own
        to_do = "Run `queryserver migrate`." if is_older else "Install the newest release here."
        return [Finding.error(SCHEMA, text, to_do)]
    if present.version != own:
        what = (
            f"Schema version {present.version} belongs to a newer release; this release ({own}) is compatible with it."
        )
        return [Finding.warning(SCHEMA, what, "Finish the upgrade: replace the servers of the older release.")]
    return [Finding.ok(SCHEMA, f"The schema version is {own}, as this release expects.")]


async def examine_keys(desktop: DesktopSettings, database: Database) -> tuple[Sequence[Finding], Keyring | None]:
    """Check the secret keys. Return the findings, and the keys if they belong to this database. Creates no keys."""
    known = await FactRepository(database).value(FINGERPRINT_FACT)
    try:
        keyring = await asyncio.to_thread(existing_keyring, desktop)
    except ConfigurationError as error:
        return [Finding.of_settings(KEYS, SettingsFinding.of_problem(one)) for one in error.problems], None
    if keyring is None:
        return [_no_key(desktop, known)], None
    if known is None:
        what = (
            f"The database has not been used with a key yet. The current key has the fingerprint {keyring.present.id}."
        )
        return [Finding.ok(KEYS, what)], keyring
    if text := key_mismatch(keyring, known):
        to_do = "Configure the same key on all servers, with desktop.secret_key_file."
        return [Finding.error(KEYS, f"desktop.secret_key {text}", to_do)], None
    if keyring.present.fingerprint != known:
        what = f"Secrets in the database are still encrypted with a former key (fingerprint {known[:8]})."
        to_do = "Run `queryserver rotate-keys` once all servers have the new key."
        return [Finding.warning(KEYS, what, to_do)], keyring
    former = f" {len(keyring.former)} former keys are also accepted." if keyring.former else ""
    return [Finding.ok(KEYS, f"The key belongs to this database (fingerprint {known[:8]}).{former}")], keyring


def _no_key(desktop: DesktopSettings, known: str | None) -> Finding:
    key_file = desktop.data_dir / KEY_FILE
    if known is None:
        to_do = "If several servers run, set desktop.secret_key to the same value on each of them."
        return Finding.warning(KEYS, f"There is no key yet. The first server creates one in {key_file}.", to_do)
    what = f"This server has no key, but the database was used with one (fingerprint {known[:8]})."
    return Finding.error(KEYS, what, f"Set desktop.secret_key, or restore the file {key_file}.")


async def examine_engines(settings: Settings, database: Database, keyring: Keyring, user: User) -> Sequence[Finding]:
    """Log in as `user` to each configured and stored connector, and run a trivial statement."""
    builder, records = EngineBuilder(settings), ConnectorRepository(database, AesSealer(keyring))
    _, stored = await read_stored(records, settings)
    connectors = [*configured_connectors(settings), *stored]
    if not connectors:
        return [Finding.ok(ENGINES, "No connectors are configured.")]
    tests = ConnectionTests(
        builder,
        EngineBuilder.build,
        StoredConnectors(records, builder, _ignore_change),
        _never_opens_file,
        at_once=_AT_ONCE,
    )
    async with aclosing(builder), tests.running():
        return await asyncio.gather(*(_examine_engine(one, tests, user, settings) for one in connectors))


async def _ignore_change() -> None:
    """Do nothing. The doctor changes no connectors."""


async def _never_opens_file(_data: str) -> bool:
    """Return False, so that files that only one process can open are left to the servers."""
    return False


async def _examine_engine(connector: Connector, tests: ConnectionTests, user: User, settings: Settings) -> Finding:
    name = f"{connector.nice_name} ({connector.dialect}, {connector.reference})"
    if is_file(connector):
        return await asyncio.to_thread(_examine_file, name, connector, tests.builder)
    if settings.desktop.database.embedded and f"//{SAMPLE_ROLE}:" in str(connector.options.get("url", "")):
        text = f"{name} was not tested: its private PostgreSQL server starts on first use."
        return Finding.ok(ENGINES, text)
    try:
        outcome = await tests.ping(user, connector)
    except errors.QueryServerError as error:
        return Finding.error(
            ENGINES, f"{name} cannot be used: {error.message}", "Correct the options of the connector."
        )
    return _engine_finding(name, outcome)


def _examine_file(name: str, connector: Connector, builder: EngineBuilder) -> Finding:
    """Check that the file exists, without opening it, because a server may be using it. Blocks."""
    path = str(connector.options["path"])
    file = (builder.databases_dir / path) if builder.databases_dir else None
    if file is not None and file.is_file():
        return Finding.ok(ENGINES, f"{name}: the file exists. It was not opened, because a server may be using it.")
    if connector.read_only or file is None or not file.parent.is_dir():
        to_do = "Restore the file, or correct the path or desktop.connector_policy.local_database_dir."
        return Finding.error(ENGINES, f"{name}: the file {path} does not exist.", to_do)
    return Finding.ok(ENGINES, f"{name}: the file does not exist yet; the first statement creates it.")


def _engine_finding(name: str, outcome: ConnectionTestOutcome) -> Finding:
    if outcome.reason:
        to_do = _REMEDIES.get(outcome.reason, "Correct the options of the connector.")
        return Finding.error(ENGINES, f"{name} failed ({outcome.reason}): {outcome.warnings}.", to_do)
    version = f", version {outcome.server_version}" if outcome.server_version else ""
    hint = f" {outcome.warnings}." if outcome.warnings else ""
    return Finding.ok(ENGINES, f"{name} responds in {outcome.duration_ms} ms{version}.{hint}")


async def examine_stores(settings: Settings, user: User) -> Sequence[Finding]:
    """List the root of each store as `user`."""
    caller = Caller.of(user)
    async with open_stores(settings) as stores:
        file_systems = stores.permitted(caller)
        if not file_systems:
            return [Finding.ok(STORES, "No file stores are configured.")]
        return await asyncio.gather(*(_examine_store(one, caller) for one in file_systems))


async def _examine_store(file_system: FileSystem, caller: Caller) -> Finding:
    name, began = f"The store {file_system.scheme.value}", time.monotonic()
    try:
        async with asyncio.timeout(_STORE_WITHIN_S):
            listing = file_system.as_user(caller.acting).list_directory("", batch_size=1)
            try:
                await anext(listing)
            finally:
                await listing.aclose()
    except TimeoutError:
        what = f"{name} did not respond within {_STORE_WITHIN_S:g} s."
        return Finding.error(STORES, what, "Check the store, and the firewalls on the way to it.")
    except errors.PermissionDenied:
        # The store responds. Whether this user may list its root does not matter to the service.
        return Finding.ok(STORES, f"{name} responds, but {caller.acting.name} may not list its root.")
    except errors.QueryServerError as error:
        to_do = "Check the store, and its address and login in the settings."
        return Finding.error(STORES, f"{name} failed: {error.message}", to_do)
    return Finding.ok(STORES, f"{name} responds in {1000 * (time.monotonic() - began):.0f} ms.")


async def examine_results(settings: Settings) -> Iterable[Finding]:
    """Write, read and delete a small object."""
    return await of_settings(
        RESULTS, check_results(settings), "A small object was written, read and deleted in {} ms.".format
    )


async def examine_mail(settings: Settings) -> Iterable[Finding]:
    """Connect to the mail server and log in, without sending mail."""
    return await of_settings(MAIL, check_smtp(settings), "The mail server accepted the login in {} ms.".format)


async def examine_login_issuer(settings: Settings) -> Iterable[Finding]:
    found = "The issuer returned its endpoints in {} ms."
    return await of_settings(LOGIN_ISSUER, check_login_issuer(settings), found.format)


async def examine_key_servers(settings: Settings) -> Iterable[Finding]:
    return await of_settings(KEY_SERVERS, check_key_servers(settings), "All key servers returned keys in {} ms.".format)
