"""An application with a local root for the file tests. Tests that need in-memory stores call `open_api(...,
stores=)`.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.api.driving import Api, Caller, open_api
from tests.api.storage.worlds import World, open_world

from queryserver.platform.settings.tree import Settings

_SECRET_KEY = "k7Qm2vX9pLw4Rt8Zb3Nc6Yf1Hs5Jd0Ge"
_numbers = count(1)


def storage_settings(
    directory: Path,
    database_dsn: str,
    *,
    root: Path | None = None,
    ozone: Mapping[str, Any] | None = None,
    tables: Mapping[str, Any] | None = None,
    desktop: Mapping[str, Any] | None = None,
    **filebrowser: Any,
) -> Settings:
    """Return settings without interpreters. The local root is created if it is missing, and `tables` configures other
    stores.
    """
    root = root or directory / "files"
    (root / "shared").mkdir(parents=True, exist_ok=True)
    return Settings.model_validate(
        {
            "desktop": {
                "data_dir": directory / "data",
                "secret_key": _SECRET_KEY,
                "shutdown_grace_s": 0,
                "database": {"url": database_dsn, "pool_max": 5, "connect_timeout_s": 60},
                "ozone": ozone or {},
                **(desktop or {}),
            },
            "filebrowser": {"local_root": root, **filebrowser},
            **(tables or {}),
        }
    )


@dataclass(frozen=True, slots=True)
class Files:
    """An application, and the directory on this machine that serves as its local root."""

    api: Api
    root: Path

    def folder(self) -> str:
        """Create a directory that all users may modify; return its API path without `file:///`."""
        name = f"shared/folder{next(_numbers)}"
        (self.root / name).mkdir(parents=True)
        return name


@pytest.fixture(scope="session")
async def files(tmp_path_factory: pytest.TempPathFactory, shared_database_dsn: str) -> AsyncIterator[Files]:
    """An application with a local root that all tests of a process share."""
    directory = tmp_path_factory.mktemp("storage")
    settings = storage_settings(directory, shared_database_dsn)
    async with open_api(settings) as api:
        yield Files(api, directory / "files")


@pytest.fixture(scope="session")
async def five_stores(tmp_path_factory: pytest.TempPathFactory, shared_database_dsn: str) -> AsyncIterator[World]:
    """An application with five kinds of stores that all tests of a process share."""
    directory = tmp_path_factory.mktemp("five-stores")
    async with open_world(storage_settings(directory, shared_database_dsn), directory / "files") as opened:
        yield opened


@pytest.fixture
async def world(five_stores: World) -> AsyncIterator[World]:
    yield five_stores
    five_stores.heal()


@pytest.fixture
async def ana(files: Files) -> Caller:
    """A user of the application with a local root."""
    return await files.api.user("ana")


@pytest.fixture
async def eva(world: World) -> Caller:
    """A user of the application with five stores."""
    return await world.api.user("eva")


@pytest.fixture
def folder(files: Files) -> str:
    """A new directory in the local root. Its path does not start with `file:///`."""
    return files.folder()
