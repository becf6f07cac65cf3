"""Connectors: what statements can be sent to, and how administrators set it up (Contract platform 5)."""

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
"""The value of each setting by its name. Secrets come masked, and go back so unchanged."""


@dataclass(frozen=True)
class Interpreter:
    """What statements can be sent to: its `id` is the first argument of `Connection.query`."""

    id: str
    name: str
    dialect: str
    is_sql: bool
    properties: Mapping[str, Any]
    """What the dialect has: `sql_identifier_quote`, `has_catalog`, …"""


@dataclass(frozen=True)
class ConnectorType:
    """A kind of connector that an administrator can make."""

    dialect: str
    interface: str
    category: str
    name: str
    description: str
    settings: Settings
    """The defaults."""
    is_runnable: bool
    """Whether this server has what it needs for it."""


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
    """Groups that may use it; shown to administrators only."""
    last_modified: dt.datetime | None


@dataclass(frozen=True)
class ConnectionTest:
    """Whether a connection could be made, and what was found out."""

    ok: bool
    message: str
    reason: str
    """dns, refused, timeout, tls, auth, engine or other; empty when it could."""
    checks: "tuple[ConnectionCheck, ...]"
    """The steps, with `name`, `ok` and `ms`."""
    duration_ms: int
    server_version: str | None


class Connectors:
    """`Connection.connectors`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def usable(self) -> "list[Interpreter]":
        """All that this user can send statements to: connectors, and what the settings of the server name."""
        body: ClientConfiguration = await self._transport.call("POST", "get_config", is_repeatable=True)
        return [
            Interpreter(item["id"], item["name"], item["dialect"], item["is_sql"], item["dialect_properties"])
            for item in body["app_config"]["editor"]["interpreters"]
        ]

    async def list(self) -> "list[Connector]":
        """The stored connectors that this user may see."""
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
        """Store a new one (administrators). What `settings` leaves out has the default of the type.

        Raises Conflict when the name is taken.
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
        """Change a stored one (administrators). `settings` are laid over the stored ones.

        Raises Conflict when it was changed since `version`, or while this call was at work.
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
        """Raises Conflict while a statement of it is waiting or running."""
        await self._transport.call("POST", "connector/instance/delete", {"connector": {"id": connector_id}})

    async def test(
        self,
        connector_id: str | None = None,
        *,
        dialect: str | None = None,
        interface: str | None = None,
        settings: Settings | None = None,
    ) -> ConnectionTest:
        """Make a connection (administrators): of a stored one, or of what `create` would be called with."""
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
