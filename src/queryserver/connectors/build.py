"""Opens stored connectors and re-encrypts their secrets, for commands."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from queryserver.connectors.engine_builders import EngineBuilder
from queryserver.connectors.instances import StoredConnectors
from queryserver.connectors.repository import ConnectorRepository
from queryserver.identity.keys import FINGERPRINT_FACT, AesSealer, Keyring, open_keyring, reseal
from queryserver.platform.database import Database, FactRepository
from queryserver.platform.migrations import open_service_database
from queryserver.platform.settings.tree import Settings


@asynccontextmanager
async def open_connectors(settings: Settings) -> AsyncGenerator[StoredConnectors]:
    """Open the stored connectors for a command. Changes notify all servers.

    Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable.
    """

    async def changed() -> None:
        pass

    async with _opened(settings) as (database, keyring):
        records = ConnectorRepository(database, AesSealer(keyring))
        yield StoredConnectors(records, EngineBuilder(settings), changed)


@dataclass(frozen=True, slots=True)
class Rotation:
    """The numbers of re-encrypted secrets, and of lost secrets, which no key of the keyring can decrypt."""

    connectors: int
    others: int
    lost: int


async def rotate_keys(settings: Settings) -> Rotation:
    """Re-encrypt all secrets with the current key. If none are lost, former keys are no longer needed.

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
    """Open the service database and the keyring for its sealed secrets."""
    async with open_service_database(settings) as database:
        yield database, await open_keyring(settings.desktop, database)
