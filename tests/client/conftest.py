"""A server on a real port, and the client of `clients/python` for users of it."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.api.conftest import make_settings, users_url
from tests.api.driving import Api, open_api
from tests.api.serving import served
from tests.fakes.engine import FakeEngine

from queryserver_client import Connection, Retries, connect

__all__ = ["users_url"]

QUICK = Retries(total_s=20, first_s=0.01, most_s=0.1)


@dataclass(frozen=True)
class Server:
    """A served application and its address."""

    api: Api
    url: str

    async def token(self, **more: Any) -> str:
        """Of a new user."""
        caller = await self.api.user("client", **more)
        return caller.headers["Authorization"].removeprefix("Bearer ")

    async def submissions(self, text: str) -> int:
        """How many operations were recorded whose statement is this."""
        return await self.api.database.fetchval("SELECT count(*) FROM statement WHERE text = $1", text)

    @property
    def engine(self) -> FakeEngine:
        """The scripted engine behind the connector `mysql`."""
        connector = self.api.services.connectors.find("mysql")
        assert connector is not None
        engine = self.api.services.connectors.engine(connector)
        assert isinstance(engine, FakeEngine)
        return engine


@pytest.fixture(scope="session")
async def server(
    tmp_path_factory: pytest.TempPathFactory, shared_database_dsn: str, users_url: str
) -> AsyncIterator[Server]:
    settings = make_settings(tmp_path_factory.mktemp("client"), shared_database_dsn, users_url)
    async with open_api(settings) as api, served(api) as url:
        yield Server(api, url)


Connect = Callable[..., Connection]


@pytest.fixture
async def db(server: Server) -> AsyncIterator[Connection]:
    """As a new user."""
    async with connect(server.url, token=await server.token(), retries=QUICK) as connection:
        yield connection


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A folder for downloads."""
    made = tmp_path / "downloads"
    made.mkdir()
    return made
