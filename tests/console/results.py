"""Statements that tests run by the API, to look at their results in the console."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from playwright.async_api import BrowserContext, Page
from tests.console.conftest import ADMIN, PASSWORD, log_in


@asynccontextmanager
async def calls(base_url: str, username: str = ADMIN, password: str = PASSWORD) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the API with the rights of a user."""
    async with httpx.AsyncClient(base_url=base_url, timeout=60) as client:
        answer = await client.post("/api/v1/token/auth", json={"username": username, "password": password})
        client.headers["Authorization"] = f"Bearer {answer.raise_for_status().json()['access']}"
        yield client


async def run(client: httpx.AsyncClient, statement: str, connector: str = "duckdb") -> str:
    """Run a statement to its end; return the id of its operation."""
    answer = await client.post(f"/api/v1/editor/execute/{connector}", json={"statement": statement, "wait": 60})
    body = answer.raise_for_status().json()
    assert body["query_status"]["state"] in {"available", "success"}, body
    return body["history_uuid"]


async def submit(client: httpx.AsyncClient, statement: str, **fields: Any) -> str:
    """Submit a statement to DuckDB; return the id of its operation."""
    answer = await client.post("/api/v1/editor/execute/duckdb", json={"statement": statement, **fields})
    return answer.raise_for_status().json()["history_uuid"]


async def cancel(client: httpx.AsyncClient, operation: str) -> None:
    (await client.post("/api/v1/editor/cancel_statement", json={"operationId": operation})).raise_for_status()


async def begin(client: httpx.AsyncClient, statement: str, **fields: Any) -> str:
    """Start a statement on DuckDB; return the id of its operation once it runs."""
    operation = await submit(client, statement, **fields)
    async with asyncio.timeout(30):
        body: dict[str, Any] = {}
        while body.get("query_status", {}).get("state") != "running":
            await asyncio.sleep(0.1)
            body = (await client.post("/api/v1/editor/check_status", json={"operationId": operation})).json()
    return operation


async def open_result(
    context: BrowserContext, operation_id: str, username: str = ADMIN, password: str = PASSWORD
) -> Page:
    """Open the link of a result in a new page, and log in."""
    page = await context.new_page()
    await page.goto(f"/results/{operation_id}")
    await log_in(page, username, password)
    return page
