"""Checks the service database, its schema, the secret keys and the clocks for the doctor. Changes nothing."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from types import MappingProxyType

from queryserver.administration.doctor import Finding
from queryserver.errors.base import ConfigurationError, DatabaseUnavailable
from queryserver.identity.keys import FINGERPRINT_FACT, KEY_FILE, Keyring, existing_keyring, key_mismatch
from queryserver.platform.database import Database, FactRepository
from queryserver.platform.migrations import newest_revision, read_schema, refusal
from queryserver.platform.settings.desktop import DesktopSettings
from queryserver.platform.settings.tree import SettingsFinding

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
"""Maps the class name of an error's cause to what PostgreSQL does and to the remedy."""


def unreachable_finding(error: DatabaseUnavailable) -> Finding:
    """Return the finding for a database that accepts no connections. Does not reveal the database's address."""
    known = _REASONS.get(type(error.__cause__).__name__)
    what, to_do = known or ("does not respond", f"Check PostgreSQL, the network and {URL}.")
    return Finding.error(DATABASE, f"The service database {what}.", to_do)


@dataclass(frozen=True, slots=True)
class _ClockSample:
    """Measured round trips to the database. `ahead_s` is how far its clock is ahead of this machine's clock."""

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
