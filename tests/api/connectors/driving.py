"""Calls with which an administrator manages connectors."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from tests.api.driving import Api, Caller

Values = Mapping[str, Any]


def listed(settings: Values) -> list[dict[str, Any]]:
    """Convert settings to the format of requests, a list of objects with name and value."""
    return [{"name": name, "value": value} for name, value in settings.items()]


def by_name(connector: Values) -> dict[str, Any]:
    """Convert the settings in a connector response to a mapping from name to value."""
    return {one["name"]: one["value"] for one in connector["settings"]}


@dataclass(frozen=True, slots=True)
class ConnectorAdmin:
    """An administrator who manages stored connectors."""

    caller: Caller

    @classmethod
    async def of(cls, api: Api) -> "ConnectorAdmin":
        return cls(await api.user("root", admin=True))

    async def update(self, connector: object) -> httpx.Response:
        return await self.caller.post("connector/instance/update", connector=json.dumps(connector))

    async def save(self, **connector: Any) -> dict[str, Any]:
        """Store a connector; return the connector in the response. `settings` maps names to values."""
        return await self.send({**connector, "settings": listed(connector["settings"])})

    async def create(self, nice_name: str, dialect: str, interface: str, **settings: Any) -> dict[str, Any]:
        return await self.save(nice_name=nice_name, dialect=dialect, interface=interface, settings=settings)

    async def send(self, connector: object) -> dict[str, Any]:
        """Send an update that must succeed; return the connector in the response."""
        response = await self.update(connector)
        assert response.status_code == 200, response.text
        return response.json()["connector"]

    async def refused(self, connector: object) -> tuple[int, str, Any]:
        """Send an update that must fail; return its HTTP status, `code` and `errors`."""
        response = await self.update(connector)
        body = response.json()
        assert response.status_code >= 400, body
        return response.status_code, body["code"], body.get("errors")

    async def shown(self, connector_id: str) -> dict[str, Any]:
        """Return the body of a get call, which must succeed, without the fields `status` and `options`."""
        response = await self.caller.get(f"connector/instance/get/{connector_id}")
        assert response.status_code == 200, response.text
        body = response.json()
        assert body.pop("status") == 0
        del body["options"]
        return body

    async def instances(self) -> list[dict[str, Any]]:
        """Return all connectors that the administrator sees, in listing order."""
        return await instances_of(self.caller)

    async def delete(self, connector_id: str) -> httpx.Response:
        return await self.caller.post("connector/instance/delete", connector=json.dumps({"id": connector_id}))


async def instances_of(caller: Caller) -> list[dict[str, Any]]:
    """Return all connectors that the caller sees, in listing order."""
    body = (await caller.get("connector/instances")).json()
    seen = [group["category"] for group in body["connectors"]]
    assert seen == ["editor", "browsers", "catalogs", "optimizers", "schedulers", "plugins"]
    return [one for group in body["connectors"] for one in group["values"]]
