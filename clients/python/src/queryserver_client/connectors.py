"""Connectors, to which statements are sent, and their configuration by administrators (Contract platform 5)."""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from queryserver_client.status import moment
from queryserver_client.transport import Transport, segment

if TYPE_CHECKING:
    from queryserver_client import generated
    from queryserver_client.generated import (
        ClientConfiguration,
        ConnectionCheck,
        ConnectorList,
        ConnectorResponse,
        ConnectorSetting,
        ConnectorTestResponse,
        ConnectorTypeList,
        ConnectorUpdateResponse,
    )

_TESTED_WITHIN_S = 60.0

Settings = Mapping[str, Any]
"""Setting values by name. The server returns secrets masked; sending a masked value back keeps the stored secret."""


@dataclass(frozen=True)
class Interpreter:
    """A data source to which statements can be sent. `id` is the first argument of `Connection.query`."""

    id: str
    name: str
    dialect: str
    is_sql: bool
    properties: Mapping[str, Any]
    """Properties of the dialect, such as `sql_identifier_quote` and `has_catalog`."""


@dataclass(frozen=True)
class ConnectorType:
    """A type of connector that administrators can create."""

    dialect: str
    interface: str
    category: str
    name: str
    description: str
    settings: Settings
    """The default settings."""
    is_runnable: bool
    """Whether this server can run statements on connectors of this type."""


@dataclass(frozen=True)
class Connector:
    """A stored connector."""

    id: str
    name: str
    dialect: str
    interface: str
    category: str
    description: str
    settings: Settings
    is_runnable: bool
    version: int
    groups: tuple[str, ...]
    """Groups whose members may use the connector; empty unless the user is an administrator."""
    last_modified: dt.datetime | None


@dataclass(frozen=True)
class ConnectionTest:
    """The outcome of a connection test."""

    ok: bool
    message: str
    reason: str
    """dns, refused, timeout, tls, auth, engine or other; empty if the connection succeeded."""
    checks: "tuple[ConnectionCheck, ...]"
    """The steps of the test, each with `name`, `ok` and `ms`."""
    duration_ms: int
    server_version: str | None


class Connectors:
    """Implements `Connection.connectors`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def usable(self) -> "list[Interpreter]":
        """Return the data sources that this user can query: stored connectors, and those in the server's settings."""
        body: ClientConfiguration = await self._transport.call("POST", "get_config", is_repeatable=True)
        return [
            Interpreter(item["id"], item["name"], item["dialect"], item["is_sql"], item["dialect_properties"])
            for item in body["app_config"]["editor"]["interpreters"]
        ]

    async def list(self) -> "list[Connector]":
        """Return the stored connectors that this user may see."""
        body: ConnectorList = await self._transport.call("GET", "connector/instances")
        return [_connector(item) for group in body["connectors"] for item in group["values"]]

    async def types(self) -> "list[ConnectorType]":
        body: ConnectorTypeList = await self._transport.call("GET", "connector/types")
        return [
            ConnectorType(
                item["dialect"],
                item["interface"],
                item["category"],
                item["nice_name"],
                item["description"],
                _settings(item["settings"]),
                item["is_runnable"],
            )
            for group in body["connectors"]
            for item in group["values"]
        ]

    async def get(self, connector_id: str) -> Connector:
        path = f"connector/instance/get/{segment(connector_id)}"
        body: ConnectorResponse = await self._transport.call("GET", path)
        return _connector(body)

    async def create(
        self,
        name: str,
        dialect: str,
        interface: str,
        settings: Settings | None = None,
        *,
        description: str | None = None,
        groups: Sequence[str] | None = None,
    ) -> Connector:
        """Create a connector (administrators). Settings that are not in `settings` get the defaults of the type.

        Raises Conflict if the name is already used.
        """
        return await self._save(
            nice_name=name,
            dialect=dialect,
            interface=interface,
            settings=_pairs(settings or {}),
            description=description,
            groups=groups,
        )

    async def update(
        self,
        connector_id: str,
        *,
        name: str | None = None,
        settings: Settings | None = None,
        description: str | None = None,
        groups: Sequence[str] | None = None,
        version: int | None = None,
    ) -> Connector:
        """Change a stored connector (administrators). `settings` are merged into the stored settings.

        Raises Conflict if the connector was changed since `version`, or during this call.
        """
        pairs = None
        if settings is not None:
            stored = await self.get(connector_id)
            version = stored.version if version is None else version
            pairs = _pairs({**stored.settings, **settings})
        return await self._save(
            id=connector_id, nice_name=name, settings=pairs, description=description, groups=groups, version=version
        )

    async def delete(self, connector_id: str) -> None:
        """Delete a stored connector. Raises Conflict while one of its statements is waiting or running."""
        await self._transport.call("POST", "connector/instance/delete", {"connector": {"id": connector_id}})

    async def test(
        self,
        connector_id: str | None = None,
        *,
        dialect: str | None = None,
        interface: str | None = None,
        settings: Settings | None = None,
    ) -> ConnectionTest:
        """Test the connection of a stored connector, or of one with these properties (administrators)."""
        given = {"id": connector_id, "dialect": dialect, "interface": interface}
        connector = {name: value for name, value in given.items() if value is not None}
        if settings is not None:
            connector["settings"] = _pairs(settings)  # type: ignore[assignment]
        body: ConnectorTestResponse = await self._transport.call(
            "POST", "connector/instance/test", {"connector": connector}, is_repeatable=True, wait_s=_TESTED_WITHIN_S
        )
        return ConnectionTest(
            body["ok"],
            body["warnings"],
            body["reason"],
            tuple(body["checks"]),
            body["duration_ms"],
            body["server_version"],
        )

    async def _save(self, **members: Any) -> Connector:
        connector = {name: value for name, value in members.items() if value is not None}
        body: ConnectorUpdateResponse = await self._transport.call(
            "POST", "connector/instance/update", {"connector": connector}
        )
        return _connector(body["connector"])


def _connector(item: "generated.Connector") -> Connector:
    return Connector(
        id=item["id"],
        name=item["nice_name"],
        dialect=item["dialect"],
        interface=item["interface"],
        category=item["category"],
        description=item["description"],
        settings=_settings(item["settings"]),
        is_runnable=item["is_runnable"],
        version=item["version"],
        groups=tuple(item.get("groups", ())),
        last_modified=moment(item["last_modified"]),
    )


def _settings(pairs: "Sequence[ConnectorSetting]") -> Settings:
    return {setting["name"]: setting["value"] for setting in pairs}


def _pairs(settings: Settings) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in settings.items()]
