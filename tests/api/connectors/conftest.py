"""One application whose connectors are this folder's alone."""

from collections.abc import AsyncIterator

import pytest
from tests.api.conftest import make_settings
from tests.api.connectors.driving import Keeper
from tests.api.driving import Api, open_api


@pytest.fixture(scope="package")
async def api(tmp_path_factory: pytest.TempPathFactory, folder_database_dsn: str, users_url: str) -> AsyncIterator[Api]:
    settings = make_settings(tmp_path_factory.mktemp("connectors"), folder_database_dsn, users_url)
    async with open_api(settings) as opened:
        yield opened


@pytest.fixture
async def keeper(api: Api) -> Keeper:
    return await Keeper.of(api)
