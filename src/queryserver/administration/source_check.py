"""Checks the configured data sources, file stores and servers for the doctor, each with a time limit."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import aclosing

from queryserver import errors
from queryserver.administration.configuration_check import check_key_servers, check_results, check_smtp, is_file
from queryserver.administration.doctor import Finding, of_settings
from queryserver.connectors.connection_tests import ConnectionTestOutcome, ConnectionTests
from queryserver.connectors.engine_builders import EngineBuilder
from queryserver.connectors.instances import StoredConnectors
from queryserver.connectors.model import Connector
from queryserver.connectors.repository import ConnectorRepository
from queryserver.connectors.sources import configured_connectors, read_stored
from queryserver.files.access import Caller
from queryserver.files.build import open_stores
from queryserver.files.protocol import FileSystem
from queryserver.identity.keys import AesSealer, Keyring
from queryserver.identity.model import User
from queryserver.platform.database import Database
from queryserver.platform.embedded.cluster import SAMPLE_ROLE
from queryserver.platform.settings.tree import Settings

ENGINES, STORES, RESULTS, MAIL, KEY_SERVERS = "engines", "file stores", "results", "mail", "key servers"

_AT_ONCE = 16
_STORE_WITHIN_S = 10.0
_REASONS = {
    "dns": "Correct the host name, or fix DNS.",
    "refused": "Start the data source, correct its host and port, or allow its network (desktop.connector_policy).",
    "timeout": "Check the data source, and the firewalls on the way to it.",
    "auth": "Correct the login of the connector.",
    "tls": "Correct the certificates, or the TLS options of the connector.",
    "engine": "Check the log of the data source.",
}


async def examine_engines(settings: Settings, database: Database, keyring: Keyring, user: User) -> Sequence[Finding]:
    """Log in as `user` at each configured and stored connector, and run a trivial statement there."""
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
    """Check that the file exists, without opening it: a server may need it at that moment. Blocks."""
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
        to_do = _REASONS.get(outcome.reason, "Correct the options of the connector.")
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


async def examine_key_servers(settings: Settings) -> Iterable[Finding]:
    return await of_settings(KEY_SERVERS, check_key_servers(settings), "All key servers returned keys in {} ms.".format)
