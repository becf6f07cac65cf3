"""One application for all tests of a process. It has three real engines, and scripted engines for rules that need
them.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.api.dialects import ALL, Dialect
from tests.api.driving import Api, Caller, open_api

from queryserver.platform.settings.tree import Settings

ApiOpener = Callable[..., AbstractAsyncContextManager[Api]]

SECRET_KEY = "k7Qm2vX9pLw4Rt8Zb3Nc6Yf1Hs5Jd0Ge"


def make_settings(
    directory: Path,
    database_dsn: str,
    users_url: str,
    *,
    desktop: Mapping[str, Any] | None = None,
    documents: Mapping[str, Any] | None = None,
    index: bool = False,
    **editor: Any,
) -> Settings:
    """Return settings with every kind of interpreter that the tests need.

    Limits are high enough for a busy machine, except those that a test waits for.

    Unless `index` is set, no background task reads data sources, so tests can count reads. Stored connectors may use
    the service database's server because the tests have only one PostgreSQL server.
    """
    changed = dict(desktop or {})
    policy = {
        "local_database_dir": directory / "databases",
        "session_conf_allowed": ("work_mem", "statement_timeout", "mem_limit"),
    }
    policy = {"allow_service_database_server": True, **changed.pop("connector_policy", policy)}
    databases = directory / "databases"
    databases.mkdir(exist_ok=True)
    (databases / "api.sqlite").touch()
    open_url = users_url.replace("api_tests:planted-secret@", "${USER}:${PASSWORD}@")
    interpreters: dict[str, Any] = {
        "duckdb": {"interface": "duckdb", "options": {"path": "api.duckdb"}},
        "sqlite": {"interface": "sqlite", "options": {"path": "api.sqlite"}},
        "postgresql": {"interface": "sqlalchemy", "options": {"url": users_url}},
        "warehouse": {"interface": "sqlalchemy", "dialect": "postgresql", "options": {"url": users_url}},
        "replica": {
            "interface": "sqlalchemy",
            "dialect": "postgresql",
            "options": {"url": users_url},
            "read_only": True,
        },
        "hive2": {"interface": "fake", "dialect": "hive"},
        # This key looks like the id of a stored connector, but the tests never store that many connectors.
        "7070": {"interface": "fake", "dialect": "hive"},
        "mysql": {"interface": "fake"},
        "together": {"interface": "fake", "shared_session": True},
        "shelf": {"interface": "fake", "options": {"catalog": True}},
        "vault": {"interface": "fake", "options": {"catalog": True}, "groups": ("analysts",)},
        "down": {"interface": "fake"},
        "frozen": {"interface": "fake", "read_only": True, "strict_settings": True},
        "closed": {"interface": "fake", "groups": ("analysts",)},
        "login": {"interface": "sqlalchemy", "dialect": "guarded", "options": {"url": open_url}},
    }
    return Settings.model_validate(
        {
            "desktop": {
                "data_dir": directory / "data",
                "secret_key": SECRET_KEY,
                "shutdown_grace_s": 0,
                "database": {"url": database_dsn, "pool_max": 5, "connect_timeout_s": 60},
                "connector_policy": policy,
                **changed,
            },
            # A slow machine has 30 s to confirm a cancellation. The statements that tests cancel must run longer than
            # this; otherwise, tests would not notice a cancel call without any effect.
            "editor": {"cancel_wait_s": 30, "lease_timeout_s": 600, **editor},
            "documents": dict(documents or {}),
            "metadata": {"index": {"enabled": index}},
            "notebook": {"interpreters": interpreters, "default_interpreter": "duckdb"},
        }
    )


@pytest.fixture(scope="session", autouse=True)
def patient_readiness() -> Iterator[None]:
    """Extend the readiness timeout to a minute, from the first API test until the end of the process.

    A check may take seconds on a busy machine. No test relies on a timeout of the check.
    """
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr("queryserver.administration.readiness._LIMIT_S", 60.0)
        yield


@pytest.fixture(scope="session")
async def api(tmp_path_factory: pytest.TempPathFactory, shared_database_dsn: str, users_url: str) -> AsyncIterator[Api]:
    """The application that most tests share. Each test creates its own users."""
    async with open_api(make_settings(tmp_path_factory.mktemp("api"), shared_database_dsn, users_url)) as opened:
        yield opened


@pytest.fixture
def small_api(tmp_path: Path, database_dsn: str, users_url: str) -> ApiOpener:
    """A function that opens an application for one test, with changed editor and `desktop` settings."""

    def opener(**changes: Any) -> AbstractAsyncContextManager[Api]:
        return open_api(make_settings(tmp_path, database_dsn, users_url, **changes))

    return opener


@pytest.fixture
async def ana(api: Api) -> Caller:
    return await api.user("ana")


@pytest.fixture
async def bob(api: Api) -> Caller:
    return await api.user("bob")


@pytest.fixture(params=ALL, ids=str)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return request.param
