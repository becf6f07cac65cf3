"""From settings to the administration of stored connectors, and what commands do with them."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from queryserver.connectors.engine_builders import EngineBuilder, section_defaults
from queryserver.connectors.instances import GivenConnector, StoredConnectors
from queryserver.connectors.repository import ConnectorRepository
from queryserver.connectors.sources import ConnectorChecks
from queryserver.connectors.types import catalogue_of
from queryserver.identity.keys import FINGERPRINT_FACT, AesSealer, Keyring, open_keyring
from queryserver.platform.database import Database
from queryserver.platform.deployment import FactRepository, reseal
from queryserver.platform.migrations import open_service_database
from queryserver.platform.settings.tree import Settings

_IN_MEMORY = {
    one: GivenConnector(nice_name=f"{name} (in memory)", dialect=one, interface=one, settings={})
    for one, name in (("duckdb", "DuckDB"), ("sqlite", "SQLite"))
}
"""What is installed when the settings name nothing."""


def stored_connectors(
    records: ConnectorRepository, builder: EngineBuilder, changed: Callable[[], Awaitable[None]]
) -> StoredConnectors:
    """`changed` is awaited after each change: when it returns, this process has read it."""
    settings, desktop = builder.settings, builder.settings.desktop
    hidden, only = frozenset(desktop.connectors_blacklist), frozenset(desktop.connectors_whitelist)
    examples = {
        key: GivenConnector(
            nice_name=table.nice_name or key,
            dialect=table.dialect,
            interface=table.interface,
            settings=table.settings,
            groups=table.groups,
        )
        for key, table in desktop.connectors.items()
    }
    return StoredConnectors(
        records=records,
        checks=ConnectorChecks(builder),
        catalogue=catalogue_of(lambda dialect: section_defaults(dialect, settings)),
        changed=changed,
        default_groups=(desktop.auth.default_user_group,) if desktop.connector_policy.grant_to_default_group else (),
        offers=lambda dialect: dialect not in hidden and (not only or dialect in only),
        examples=examples or _IN_MEMORY,
    )


@asynccontextmanager
async def open_connectors(settings: Settings) -> AsyncGenerator[StoredConnectors]:
    """The administration alone, for commands. Its changes notify the servers.

    Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable.
    """

    async def changed() -> None:
        pass

    async with _opened(settings) as (database, keyring):
        records = ConnectorRepository(database, AesSealer(keyring))
        yield stored_connectors(records, EngineBuilder(settings), changed)


@dataclass(frozen=True, slots=True)
class Rotation:
    """Secrets that were encrypted anew, and those that no key of the ring opens."""

    connectors: int
    others: int
    lost: int


async def rotate_keys(settings: Settings) -> Rotation:
    """Encrypt everything anew with the present key; when nothing is lost, former keys may be forgotten.

    Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable.
    """
    async with _opened(settings) as (database, keyring):
        sealer = AesSealer(keyring)
        connectors, lost = await ConnectorRepository(database, sealer).reseal()
        others, lost_others = await reseal(database, sealer)
        if not lost + lost_others:
            await FactRepository(database).replace(FINGERPRINT_FACT, keyring.present.fingerprint)
    return Rotation(connectors, others, lost + lost_others)


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncGenerator[tuple[Database, Keyring]]:
    """The service database and the keys of what is sealed there."""
    async with open_service_database(settings) as database:
        yield database, await open_keyring(settings.desktop, database)
