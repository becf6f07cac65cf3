"""An application with real data sources, an index and a local file store, and agents that use it."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import pytest
from tests.api.driving import Api, Caller, open_api
from tests.api.serving import served
from tests.api.storage.conftest import Files, storage_settings
from tests.mcp_sessions import REVISIONS, Session, session

Agents = Callable[[Caller], AbstractAsyncContextManager[Session]]
"""Opens an agent's session with the credentials of a caller."""


def interpreters(users_url: str) -> Mapping[str, Any]:
    postgresql = {"interface": "sqlalchemy", "dialect": "postgresql", "options": {"url": users_url}}
    return {
        "duckdb": {"interface": "duckdb", "options": {"path": "agents.duckdb"}},
        "postgresql": postgresql,
        "granted": {**postgresql, "groups": ("analysts",)},
    }


@pytest.fixture(scope="module")
async def files(
    tmp_path_factory: pytest.TempPathFactory, module_database_dsn: str, users_url: str
) -> AsyncIterator[Files]:
    directory = tmp_path_factory.mktemp("agents")
    tables = {
        "notebook": {"interpreters": interpreters(users_url), "default_interpreter": "duckdb"},
        "editor": {"cancel_wait_s": 30, "lease_timeout_s": 600},
        "metadata": {"index": {"enabled": True}},
    }
    desktop = {"connector_policy": {"local_database_dir": directory / "databases"}}
    (directory / "databases").mkdir()
    settings = storage_settings(directory, module_database_dsn, tables=tables, desktop=desktop)
    async with open_api(settings) as api:
        # Tests fill the index themselves, because a scheduled refresh could run in the middle of a test.
        vars(api.services.searching.refresh)["_start_due"] = lambda: None
        yield Files(api, directory / "files")


@pytest.fixture
def api(files: Files) -> Api:
    return files.api


@pytest.fixture
async def ana(api: Api) -> Caller:
    return await api.user("ana")


@pytest.fixture
async def bob(api: Api) -> Caller:
    return await api.user("bob")


@pytest.fixture(scope="module")
async def endpoint(files: Files) -> AsyncIterator[str]:
    async with served(files.api) as url:
        yield f"{url}/mcp"


@pytest.fixture(params=REVISIONS)
def agents(request: pytest.FixtureRequest, endpoint: str) -> Agents:
    """Opens sessions in each revision of the protocol."""
    return partial(connected, endpoint, request.param)


@pytest.fixture
def newest(endpoint: str) -> Agents:
    """Opens sessions in the newest revision, for rules that do not depend on it."""
    return partial(connected, endpoint, REVISIONS[0])


def connected(url: str, revision: str, caller: Caller) -> AbstractAsyncContextManager[Session]:
    return session(url, caller.headers["Authorization"].removeprefix("Bearer "), revision)


def error_in(text: str) -> dict[str, Any]:
    """Return the error that the text of a refusal contains."""
    error = json.loads(text)["error"]
    assert error["next"]
    return error
