"""Saves and reads documents as users of the tests."""

from typing import Any

import httpx
from tests.api.driving import Caller

STATEMENT = "rows 3 -- SELECT count(*) FROM shop.orders"


async def save(user: Caller, **document: Any) -> dict[str, Any]:
    """Save a document; return it."""
    response = await user.post_json("documents/save", document=document)
    assert response.status_code == 200, response.text
    return response.json()["document"]


async def read(user: Caller, uuid: str) -> dict[str, Any]:
    response = await user.get(f"documents/{uuid}")
    assert response.status_code == 200, response.text
    return response.json()["document"]


async def listed(user: Caller, **query: Any) -> list[dict[str, Any]]:
    """Return all matching documents, page by page."""
    found: list[dict[str, Any]] = []
    while True:
        response = await user.get("documents", **query)
        assert response.status_code == 200, response.text
        found += response.json()["documents"]
        query["after"] = response.json()["next_after"]
        if query["after"] is None:
            return found


async def share(user: Caller, uuid: str, *grants: dict[str, str]) -> httpx.Response:
    return await user.post_json("documents/share", uuid=uuid, grants=list(grants))
