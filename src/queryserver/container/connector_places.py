"""Whether the connectors of the settings lead to where connections may go, and not to the service itself."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress

from queryserver.container.connectors import configured_connectors
from queryserver.container.interfaces.builders import build_engine
from queryserver.container.interfaces.context import BuildContext, database_login
from queryserver.container.interfaces.sqlalchemy import postgresql_url
from queryserver.domain.connector import Connector
from queryserver.domain.errors.base import ConfigurationError
from queryserver.domain.findings import Finding
from queryserver.network.addresses import AddressRules, HostRefused, UnknownHost
from queryserver.services.connector_urls import DriverUrl
from queryserver.settings import Settings


async def look_at_places(settings: Settings) -> Iterable[Finding]:
    """Resolves the hosts of all connectors of the settings, and connects to none of them."""
    context = BuildContext.of(settings)
    looks = [_look(connector, context) for connector in configured_connectors(settings)]
    return [finding for found in await asyncio.gather(*looks) for finding in found]


async def _look(connector: Connector, context: BuildContext) -> Sequence[Finding]:
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
        return [Finding.error(key, f"cannot be used. {refusals[0]}")]
    if url is None or not await _are_on_own_server(places, context):
        return []
    return _beside_own_database(key, url, context)


def _beside_own_database(key: str, url: DriverUrl, context: BuildContext) -> Sequence[Finding]:
    if context.is_named_as_own_database(url.database):
        return [Finding.error(key, "cannot be used: it is the service's own database.")]
    if url.username and url.username == database_login(context.service_dsn or ""):
        text = (
            "logs in at the server of the service's own database as the service does: by dblink or a foreign data"
            " wrapper its statements could reach that database. Give it a role of its own."
        )
        return [Finding.warning(key, text)]
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
