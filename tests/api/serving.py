"""Serves the application on a real port, for behavior that only real connections show."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from prometheus_client import CollectorRegistry
from tests.api.driving import Api

from queryserver.api.connections.admission import limits_of
from queryserver.api.connections.http_connection import guard_connections
from queryserver.main import server
from queryserver.platform.metrics import ConnectionCounts


@asynccontextmanager
async def served(api: Api, registry: CollectorRegistry | None = None) -> AsyncIterator[str]:
    """Serve the application on a free loopback port, and yield its URL. It has the connection limits of a real server.

    Open connections are counted in `registry`.
    """
    settings = api.services.settings
    free = settings.model_copy(update={"desktop": settings.desktop.model_copy(update={"http_port": 0})})
    config = server(free, api.app)
    config.lifespan = "off"
    guard_connections(config, limits_of(free.desktop), ConnectionCounts(registry or CollectorRegistry()))
    running = uvicorn.Server(config)
    task = asyncio.create_task(running.serve())
    for _ in range(500):
        if running.started:
            break
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    finally:
        running.should_exit = True
        await task
