"""Looks at what the settings name: whether it answers, and whether it is what the service needs."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import urlsplit

import redis.asyncio
from redis.exceptions import RedisError

from queryserver.errors.files import StorageError
from queryserver.files.stores.local.file_system import PrivateStorage
from queryserver.identity.external_keys import KeyServers, NoKeys
from queryserver.platform.addresses import address_rules
from queryserver.platform.database import Database, open_database, pool_limits, required_dsn
from queryserver.platform.deployment import Deployment, look_at
from queryserver.platform.migrations import require_newest
from queryserver.platform.settings.rules import Finding
from queryserver.platform.settings.sections import LocalResults
from queryserver.platform.settings.tree import Settings
from queryserver.results.segments import SegmentStore
from queryserver.statements.build import results_location
from queryserver.statements.retention import MANY_DOCUMENTS

_RESULTS = "desktop.task_server.result_file_storage"
_BROKER = "desktop.task_server.broker_url"
_BROKER_S = 5.0
KEY_SERVERS = "desktop.auth.jwt.key_server_url"


async def look_at_database(settings: Settings) -> Sequence[Finding]:
    """Raises DatabaseUnavailable, SchemaMismatch."""
    dsn = required_dsn(settings)
    await require_newest(dsn)
    async with open_database(dsn, pool_limits(settings)) as database:
        return await look_into_database(settings, database)


async def look_into_database(settings: Settings, database: Database) -> Sequence[Finding]:
    """What an open database of the newest schema tells. Raises DatabaseUnavailable."""
    return list(_of_deployment(settings, await look_at(database, count_up_to=MANY_DOCUMENTS + 1)))


def _of_deployment(settings: Settings, deployment: Deployment) -> Iterator[Finding]:
    if settings.metadata.index.enabled and not deployment.has_trigrams:
        # The contract wants it told (platform 8.4); ADR 37 is why nobody need act on it.
        text = "is on, and the database lacks the extension pg_trgm. Searches work without it, as fast."
        yield Finding.warning("metadata.index.enabled", text)
    kept = settings.desktop.task_server.result_file_storage
    if deployment.hosts > 1 and (kept is None or isinstance(kept, LocalResults)):
        text = f"keeps results in a directory, and {deployment.hosts} hosts use the database: all must share it."
        yield Finding.warning(_RESULTS, text)
    if deployment.history_entries > MANY_DOCUMENTS:
        text = f"keeps more than {MANY_DOCUMENTS} history entries: run `queryserver cleanup`."
        yield Finding.warning("editor.history_retention_days", text)
    for name in settings.notebook.interpreters_shown_on_wheel:
        if name.isdecimal() and int(name) not in deployment.connectors:
            yield Finding.warning(
                "notebook.interpreters_shown_on_wheel", f"names {name}, which is no stored connector."
            )


async def look_at_results(settings: Settings) -> Iterable[Finding]:
    """Writes, reads and removes a small file. Raises ConfigurationError."""
    try:
        async with PrivateStorage(results_location(settings)) as storage, SegmentStore(storage) as results:
            await results.ping()
    except StorageError as error:
        return [Finding.error(_RESULTS, error.message)]
    except OSError as error:
        return [Finding.error(_RESULTS, f"cannot be used: {error.strerror or type(error).__name__}.")]
    return []


async def look_at_broker(settings: Settings) -> Iterable[Finding]:
    """Whether Redis answers."""
    client = redis.asyncio.from_url(
        settings.desktop.task_server.broker_url.get_secret_value(),
        socket_connect_timeout=_BROKER_S,
        socket_timeout=_BROKER_S,
    )
    try:
        await client.ping()
    except (RedisError, OSError, ValueError):
        return [Finding.error(_BROKER, "does not answer, or refuses the login.")]
    finally:
        await client.aclose()
    return []


async def look_at_key_servers(settings: Settings) -> Iterable[Finding]:
    """Which of them give keys. One that does not is an error only when no other does."""
    urls = settings.desktop.auth.jwt.key_server_url
    gives = await asyncio.gather(*(_gives_keys(settings, url) for url in urls))
    silent = [url for url, has_keys in zip(urls, gives, strict=True) if not has_keys]
    found = Finding.error if len(silent) == len(urls) else Finding.warning
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
