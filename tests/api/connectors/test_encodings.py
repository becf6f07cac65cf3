"""What administrators send, as form, as JSON with texts in it, and natively (Contract platform 1.2)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import httpx
import pytest
from scripts.check_operations import SERVED, read_operations
from tests.api.conftest import ApiOpener
from tests.api.connectors.driving import listed
from tests.api.driving import Caller

ENCODINGS = ("form", "json with texts", "json")

# What differs from one equal call to the next: numbers that are given out, times, and how long something took.
_VOLATILE = frozenset({"id", "last_modified", "ms", "duration_ms"})
_IDS = frozenset({"added", "updated", "unchanged"})


@dataclass
class Sender:
    """An administrator who sends each body in one encoding. What was answered is kept without what differs."""

    caller: Caller
    encoding: str
    answers: list[tuple[str, int, Any]] = field(default_factory=list)

    async def post(self, path: str, **fields: Any) -> dict[str, Any]:
        """The body of the answer."""
        response = await self._sent(path, fields)
        self.answers.append((path, response.status_code, steady(response.json())))
        return response.json()

    async def _sent(self, path: str, fields: Mapping[str, Any]) -> httpx.Response:
        if self.encoding == "json":
            return await self.caller.post_json(path, **fields)
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
        return await (self.caller.post if self.encoding == "form" else self.caller.post_json)(path, **texts)


def steady(value: Any, name: str = "") -> Any:
    # A stored connector has its id as name; settings and checks have names of their own.
    if name in _VOLATILE or (name == "name" and isinstance(value, str) and value.isdecimal()):
        return None if value is None else "…"
    if isinstance(value, dict):
        return {key: steady(element, key) for key, element in value.items()}
    if isinstance(value, list):
        return ["…" if name in _IDS else steady(element) for element in value]
    return value


async def whole_life(sender: Sender) -> None:
    """A connector from its making to its end, with what is refused on the way; then examples come and go."""
    drawer = {"nice_name": "Drawer", "dialect": "sqlite", "interface": "sqlite"}
    made = (await sender.post("connector/instance/update", connector={**drawer, "description": "Ours"}))["connector"]
    await sender.post("connector/instance/update", connector=drawer)
    await sender.post(
        "connector/instance/update", connector={"id": made["id"], "version": 1, "description": "All of ours"}
    )
    await sender.post(
        "connector/instance/update", connector={"id": made["id"], "version": 1, "description": "Too late"}
    )
    await sender.post("connector/instance/update", connector={"id": made["id"], "settings": listed({"colour": "red"})})
    await sender.post("connector/instance/update")
    await sender.post("connector/instance/test", connector={"id": made["id"]})
    await sender.post("connector/instance/test", connector={**drawer, "settings": made["settings"]})
    await sender.post("connector/instance/test", connector={"dialect": "sqlite", "interface": "livy"})
    await sender.post("connector/instance/delete", connector={"id": made["id"]})
    await sender.post("connector/instance/delete", connector={"id": "123456789"})
    installed = await sender.post("connector/examples/install")
    await sender.post("connector/examples/install", unknown=1)
    await sender.post("install_app_examples", app_name="connectors")
    await sender.post(f"admin/statements/{UUID(int=0)}/cancel")
    for connector_id in installed["added"]:
        await sender.post("connector/instance/delete", connector={"id": connector_id})


@pytest.mark.platform(2)
async def test_calls_of_administrators_answer_the_same_in_every_encoding(small_api: ApiOpener) -> None:
    told: dict[str, list[tuple[str, int, Any]]] = {}
    async with small_api() as api:
        for encoding in ENCODINGS:
            sender = Sender(await api.user("root", admin=True), encoding)
            await whole_life(sender)
            told[encoding] = sender.answers
    served = {
        row.path for row in read_operations() if (row.method, row.rights, row.status) == ("POST", "admin", SERVED)
    }
    sent = {f"/api/v1/{path}".replace(str(UUID(int=0)), "{operation_id}") for path, _, _ in told["form"]}
    assert sent == served
    statuses = [status for _, status, _ in told["form"]]
    assert statuses == [200, 409, 200, 409, 400, 400, 200, 200, 404, 200, 404, 200, 200, 200, 404, 200, 200]
    assert told["json"] == told["form"]
    assert told["json with texts"] == told["form"]
