"""Servers on real ports, and users of the Python client in `clients/python`."""

import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.api.conftest import make_settings
from tests.api.driving import Api, open_api
from tests.api.serving import served
from tests.client.shell import Make, Qs, forker, maker
from tests.fakes.engine import FakeEngine
from tests.fixtures.database import new_database

from queryserver.platform.embedded.postgres import EmbeddedPostgres
from queryserver_client import Connection, Retries, connect

QUICK = Retries(total_s=20, first_s=0.01, most_s=0.1)


@dataclass(frozen=True)
class Server:
    """An application that is served on a real port, and its URL."""

    api: Api
    url: str

    async def token(self, **more: Any) -> str:
        """Create a user; return an access token of the user."""
        caller = await self.api.user("client", **more)
        return caller.headers["Authorization"].removeprefix("Bearer ")

    @property
    def engine(self) -> FakeEngine:
        """The fake engine of the connector `mysql`."""
        connector = self.api.services.connectors.find("mysql")
        assert connector is not None
        engine = self.api.services.connectors.engine(connector)
        assert isinstance(engine, FakeEngine)
        return engine


@pytest.fixture(scope="module")
async def server(
    tmp_path_factory: pytest.TempPathFactory, postgres: EmbeddedPostgres, migrated_template: str, users_url: str
) -> AsyncIterator[Server]:
    """A server with file access, whose local root is a folder on this machine (`root`).

    The server has a database of its own, because servers that share a database run each other's statements. Only the
    tests of one file use it, because tests in other files replace functions that it calls.
    """
    async for dsn in new_database(postgres, template=migrated_template):
        async with _serving(tmp_path_factory.mktemp("client"), dsn, users_url) as server:
            yield server


@pytest.fixture
async def small_server(
    tmp_path_factory: pytest.TempPathFactory, postgres: EmbeddedPostgres, migrated_template: str, users_url: str
) -> AsyncIterator[Server]:
    """A server that stores at most 5,000 rows of each result."""
    async for dsn in new_database(postgres, template=migrated_template):
        async with _serving(tmp_path_factory.mktemp("small"), dsn, users_url, result_max_rows=5000) as server:
            yield server


@asynccontextmanager
async def _serving(directory: Path, dsn: str, users_url: str, **editor: Any) -> AsyncIterator[Server]:
    (directory / "files" / "shared").mkdir(parents=True)
    settings = make_settings(directory, dsn, users_url)
    changed = {
        "filebrowser": settings.filebrowser.model_copy(update={"local_root": directory / "files"}),
        "editor": settings.editor.model_copy(update=editor),
    }
    async with open_api(settings.model_copy(update=changed)) as api, served(api) as url:
        yield Server(api, url)


async def api_token(db: Connection, *scopes: str) -> str:
    """Create an API token with these scopes for the connection's user; return its value."""
    fields = {"name": secrets.token_hex(4), "scopes": scopes}
    return str((await db.transport.call("POST", "token/api_tokens/new", fields))["value"])


Connect = Callable[..., Connection]


@pytest.fixture
async def db(server: Server) -> AsyncIterator[Connection]:
    """A connection of a new user."""
    async with connect(server.url, token=await server.token(), retries=QUICK) as connection:
        yield connection


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A folder for downloads."""
    made = tmp_path / "downloads"
    made.mkdir()
    return made


@pytest.fixture(scope="session")
def commands() -> Iterator[socket.socket]:
    with forker() as requests:
        yield requests


@pytest.fixture
def make(tmp_path: Path, commands: socket.socket) -> Make:
    """Builds the command lines of one test."""
    return maker(tmp_path, commands)


@pytest.fixture
async def qs(server: Server, make: Make) -> Qs:
    """The command line of a new user. An environment variable contains the user's token."""
    return make(QUERYSERVER_URL=server.url, QUERYSERVER_TOKEN=await server.token())


@pytest.fixture
def folder(server: Server, tmp_path: Path) -> str:
    """An empty folder on the server for one test."""
    name = f"shared/{tmp_path.name}"
    (root(server) / name).mkdir()
    return f"file:///{name}"


def root(server: Server) -> Path:
    place = server.api.services.settings.filebrowser.local_root
    assert place is not None
    return Path(place)


def stored(server: Server, folder: str) -> dict[str, bytes]:
    """Return the content of all files in the folder by name, including hidden files."""
    return {path.name: path.read_bytes() for path in (root(server) / folder.removeprefix("file:///")).iterdir()}
