"""Refreshes of the search index that a test triggers."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from tests.api.driving import Api, Caller, until

from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.identity.model import User
from queryserver.platform.ownership import Ownership
from queryserver.search.model import ScopeKey
from queryserver.search.refresh import IndexRefresh, RefreshLimits, scope_key
from queryserver.search.repository import MetadataIndexRecords

SERVICE = User(0, "index", is_admin=True)


class SingleConnectorServer:
    """The connectors of a server that has only one connector."""

    def __init__(self, connectors: Connectors, connector: Connector) -> None:
        self.engine = connectors.engine
        self._connector = connector

    def visible(self, user: User) -> Sequence[Connector]:
        del user
        return [self._connector]


def another(api: Api, ownership: Ownership | None = None, **limits: Any) -> IndexRefresh:
    """Return another index refresh on the same database. It has its own limits, and its background refreshes read only
    `shelf`. `ownership` is the process that it belongs to, by default the server.
    """
    return IndexRefresh(
        ownership=ownership or api.services.ownership,
        records=MetadataIndexRecords(api.database),
        connectors=SingleConnectorServer(api.services.connectors, shelf_of(api)),
        lookups=api.services.metadata.lookups,
        metrics=api.services.metrics,
        limits=RefreshLimits(**{"interval": timedelta(seconds=1), "max_tables": 100, "max_columns": 100, **limits}),
    )


async def asked(api: Api, what: str) -> None:
    """Wait until the engine has received this metadata read."""
    await until(lambda: what in api.shelf.looks)


async def user_of(api: Api, caller: Caller) -> User:
    """Return the `User` of the caller."""
    user_id = await api.database.value("select id from users where username_key = $1", caller.username)
    return User(user_id, caller.username)


async def refreshed(
    api: Api, refresh: IndexRefresh, user: User = SERVICE, *, connector: Connector | None = None
) -> None:
    """Refresh the index of `shelf` even if no refresh is due. `connector` replaces the configuration of `shelf`."""
    await api.database.execute("update metadata_scopes set refreshed_at = null, failed_at = null")
    await refresh.refresh(user, connector or shelf_of(api), shelf_key(api, user))


def shelf_of(api: Api) -> Connector:
    shelf = api.services.connectors.find("shelf")
    assert shelf is not None
    return shelf


def shelf_key(api: Api, user: User = SERVICE) -> ScopeKey:
    """Return the key of the index scope in which this user sees `shelf`."""
    key = scope_key(api.services.connectors, user, shelf_of(api))
    assert key is not None
    return key
