"""The administration of stored connectors."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from queryserver.auth.keys import FINGERPRINT_FACT, Keyring, load_keyring, require_known_key
from queryserver.auth.sealing import AesSealer
from queryserver.container.auditing import AUDIT
from queryserver.container.connectors import BuilderChecks
from queryserver.container.interfaces.builders import section_defaults
from queryserver.container.interfaces.context import BuildContext
from queryserver.container.service_database import pool_limits, required_dsn
from queryserver.db.connectors import ConnectorRepository
from queryserver.db.database import Database, open_database
from queryserver.db.deployment import FactRepository, Resealing
from queryserver.db.migrations import require_newest
from queryserver.services.connector_auditing import ConnectorAudit
from queryserver.services.connector_catalogue import catalogue_of
from queryserver.services.connector_examples import ConnectorExamples, Example
from queryserver.services.connector_instances import ConnectorInstances, GivenConnector
from queryserver.services.everything import StoredConnectorServices
from queryserver.settings import Settings

_IN_MEMORY = tuple(
    Example(one, GivenConnector(nice_name=f"{name} (in memory)", dialect=one, interface=one, settings={}))
    for one, name in (("duckdb", "DuckDB"), ("sqlite", "SQLite"))
)
"""What is installed when the settings name nothing."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """Secrets that were encrypted anew, and those that no key of the ring opens."""

    connectors: int
    others: int
    lost: int


def stored_connector_services(
    settings: Settings,
    records: ConnectorRepository,
    context: BuildContext,
    changed: Callable[[], Awaitable[None]],
) -> StoredConnectorServices:
    """`changed` is awaited after each change: when it returns, this process knows it."""
    desktop = settings.desktop
    checks = BuilderChecks(settings, context)
    catalogue = catalogue_of(lambda dialect: section_defaults(dialect, settings))
    audit = ConnectorAudit(AUDIT)
    default_groups = (desktop.auth.default_user_group,) if desktop.connector_policy.grant_to_default_group else ()
    hidden, only = frozenset(desktop.connectors_blacklist), frozenset(desktop.connectors_whitelist)
    instances = ConnectorInstances(
        records=records,
        checks=checks,
        catalogue=catalogue,
        audit=audit,
        changed=changed,
        default_groups=default_groups,
        offers=lambda dialect: dialect not in hidden and (not only or dialect in only),
    )
    examples = ConnectorExamples(
        _examples(settings) or _IN_MEMORY,
        records=records,
        instances=instances,
        audit=audit,
        changed=changed,
        default_groups=default_groups,
    )
    return StoredConnectorServices(instances=instances, examples=examples)


@asynccontextmanager
async def open_connectors(settings: Settings) -> AsyncGenerator[StoredConnectorServices]:
    """The administration alone, for commands. Servers hear of what it changes.

    Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable.
    """
    async with _opened(settings) as (database, keyring):
        records = ConnectorRepository(database, AesSealer(keyring))
        yield stored_connector_services(settings, records, BuildContext.of(settings), _nobody_to_tell)


async def rotate_keys(settings: Settings) -> Rotation:
    """Encrypt everything anew with the present key; when nothing is lost, former keys may be forgotten.

    Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable.
    """
    async with _opened(settings) as (database, keyring):
        sealer = AesSealer(keyring)
        connectors, lost = await ConnectorRepository(database, sealer).reseal()
        resealing = Resealing(database, sealer)
        others = await resealing.everything()
        rotation = Rotation(connectors, others.done, lost + others.lost)
        if not rotation.lost:
            await resealing.know_key(FINGERPRINT_FACT, keyring.present.fingerprint)
    return rotation


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncGenerator[tuple[Database, Keyring]]:
    """The service database and the keys of what is sealed there. Raises as `open_connectors`."""
    dsn = required_dsn(settings)
    await require_newest(dsn)
    keyring = load_keyring(settings.desktop)
    async with open_database(dsn, pool_limits(settings)) as database:
        await require_known_key(keyring, FactRepository(database))
        yield database, keyring


async def _nobody_to_tell() -> None:
    pass


def _examples(settings: Settings) -> list[Example]:
    return [
        Example(
            key,
            GivenConnector(
                nice_name=table.nice_name or key,
                dialect=table.dialect,
                interface=table.interface,
                settings=table.settings,
                groups=table.groups,
            ),
        )
        for key, table in settings.desktop.connectors.items()
    ]
