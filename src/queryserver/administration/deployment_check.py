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
        "InvalidPasswordError": ("refuses the password", f"Correct the password in {URL}."),
        "InvalidAuthorizationSpecificationError": ("refuses the login", f"Correct the login in {URL}, or pg_hba.conf."),
        "InvalidCatalogNameError": ("does not have this database", f"Create it, or correct {URL}."),
        "TooManyConnectionsError": (
            "has no connection left",
            "Raise max_connections, or lower desktop.database.pool_max.",
        ),
        "ConnectionRefusedError": ("refuses connections", f"Start it, or correct host and port in {URL}."),
        "CannotConnectNowError": ("is starting or stopping", "Wait for it, and look at its log."),
        "gaierror": ("has a host name that is not known", f"Correct the host in {URL}, or the DNS."),
        "FileNotFoundError": ("has no socket at that path", f"Start it, or correct the host in {URL}."),
    }
)
"""Maps the class name of an error's cause to what PostgreSQL does and to the remedy."""


def unreachable_finding(error: DatabaseUnavailable) -> Finding:
    """Return the finding for a database that accepts no connections. Does not reveal the database's address."""
    known = _REASONS.get(type(error.__cause__).__name__)
    what, to_do = known or ("does not answer", f"Look at PostgreSQL and at the network between; correct {URL}.")
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
    found = [Finding.ok(DATABASE, f"PostgreSQL {measured.version} answers in {measured.round_trip_ms:.1f} ms.")]
    if measured.is_replica:
        to_do = f"Write the address of the primary server into {URL}, or all of them with target_session_attrs."
        found.append(Finding.error(DATABASE, "It is a replica, which cannot be written to.", to_do))
    if measured.round_trip_ms > _SLOW_MS:
        what = f"A round trip takes {measured.round_trip_ms:.0f} ms, and a call makes several."
        found.append(Finding.warning(DATABASE, what, "Run the servers near the database; look at its load."))
    return [*found, clock_finding(measured.ahead_s, measured.unsure_s)]


def clock_finding(ahead_s: float, unsure_s: float) -> Finding:
    """Return the finding for the offset between the database's clock and this machine's clock."""
    if abs(ahead_s) - unsure_s > _CLOCKS_APART_S:
        side = "behind" if ahead_s > 0 else "ahead of"
        what = (
            f"The clock of this machine is {abs(ahead_s):.1f} s {side} that of the database; tokens are read with it."
        )
        to_do = "Synchronize both by NTP (chronyc tracking, timedatectl)."
        return Finding.warning(CLOCK, what, to_do)
    return Finding.ok(CLOCK, f"This machine and the database differ by {abs(ahead_s):.2f} s.")


async def examine_schema(dsn: str) -> Sequence[Finding]:
    """Compare the schema of the database with the schema that this program expects."""
    present, own = await read_schema(dsn), newest_revision()
    if text := refusal(present):
        is_older = present.version is None or present.version < own
        to_do = "Run `queryserver migrate`." if is_older else "Run the newest program here."
        return [Finding.error(SCHEMA, text, to_do)]
    if present.version != own:
        what = f"Schema version {present.version} is that of a newer program; this one, of {own}, runs on it."
        return [Finding.warning(SCHEMA, what, "Finish the upgrade: replace the programs of the older version.")]
    return [Finding.ok(SCHEMA, f"Schema version {own}, that of this program.")]


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
        what = f"The database has not been used with a key yet; this one has the fingerprint {keyring.present.id}."
        return [Finding.ok(KEYS, what)], keyring
    if text := key_mismatch(keyring, known):
        to_do = "Give all servers the same key, by desktop.secret_key_file."
        return [Finding.error(KEYS, f"desktop.secret_key {text}", to_do)], None
    if keyring.present.fingerprint != known:
        what = f"The secrets of the database are still those of a former key (fingerprint {known[:8]})."
        to_do = "Run `queryserver rotate-keys` once all servers have the new key."
        return [Finding.warning(KEYS, what, to_do)], keyring
    former = f" {len(keyring.former)} former keys are accepted too." if keyring.former else ""
    return [Finding.ok(KEYS, f"The key is that of this database (fingerprint {known[:8]}).{former}")], keyring


def _no_key(desktop: DesktopSettings, known: str | None) -> Finding:
    key_file = desktop.data_dir / KEY_FILE
    if known is None:
        to_do = "Set desktop.secret_key where several servers are to run, so that all have the same."
        return Finding.warning(KEYS, f"There is no key yet: the first server makes one in {key_file}.", to_do)
    what = f"There is no key here, and this database was used with one (fingerprint {known[:8]})."
    return Finding.error(KEYS, what, f"Set desktop.secret_key, or put the file {key_file} back.")
