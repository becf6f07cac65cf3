"""An application with a local root and several engines, whose results are exported."""

from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest
from tests.api.driving import Api, Caller, open_api
from tests.api.storage.conftest import Files, storage_settings

_numbers = count(1)


def interpreters(users_url: str) -> dict[str, Any]:
    return {
        "duckdb": {"interface": "duckdb", "options": {"path": ":memory:"}},
        "postgresql": {"interface": "sqlalchemy", "options": {"url": users_url}},
        "mysql": {"interface": "fake", "dialect": "mysql"},
        "measured": {"interface": "fake", "options": {"estimates": True}, "max_estimated_bytes": 10_000},
        "hive": {"interface": "fake", "dialect": "hive", "options": {"tables": True}, "groups": ("analysts",)},
        "other": {"interface": "fake", "dialect": "hive", "options": {"tables": True}},
        "frozen": {
            "interface": "sqlalchemy", "dialect": "postgresql", "options": {"url": users_url}, "read_only": True
        },
    }  # fmt: skip


@pytest.fixture(scope="module")
async def files(
    tmp_path_factory: pytest.TempPathFactory, module_database_dsn: str, users_url: str
) -> AsyncIterator[Files]:
    directory = tmp_path_factory.mktemp("exports")
    tables = {
        "notebook": {"interpreters": interpreters(users_url), "default_interpreter": "duckdb"},
        "editor": {"cancel_wait_s": 30, "result_max_rows": 20_000, "lease_timeout_s": 600},
    }
    async with open_api(storage_settings(directory, module_database_dsn, tables=tables)) as api:
        yield Files(api, directory / "files")


@pytest.fixture
def api(files: Files) -> Api:
    return files.api


@pytest.fixture
async def ana(files: Files) -> Caller:
    return await files.api.user("ana")


@pytest.fixture
async def bob(files: Files) -> Caller:
    return await files.api.user("bob")


@pytest.fixture
def folder(files: Files) -> str:
    """A new directory in the local root. Its path does not start with `file:///`."""
    return files.folder()
