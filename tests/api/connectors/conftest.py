"""A separate service database for the connector tests."""

from collections.abc import AsyncIterator

import pytest
from tests.api.conftest import make_settings
from tests.api.connectors.driving import ConnectorAdmin
from tests.api.driving import Api, open_api
from tests.fixtures.database import new_database

from queryserver.platform.embedded.postgres import EmbeddedPostgres


@pytest.fixture(scope="session")
async def connectors_database_dsn(postgres: EmbeddedPostgres, migrated_template: str) -> AsyncIterator[str]:
    """A migrated service database for the connector tests. It is separate, because all servers on a database share its
    stored connectors.
    """
    async for dsn in new_database(postgres, template=migrated_template):
        yield dsn


@pytest.fixture(scope="session")
async def api(
    tmp_path_factory: pytest.TempPathFactory, connectors_database_dsn: str, users_url: str
) -> AsyncIterator[Api]:
    settings = make_settings(tmp_path_factory.mktemp("connectors"), connectors_database_dsn, users_url)
    async with open_api(settings) as opened:
        yield opened


@pytest.fixture
async def admin(api: Api) -> ConnectorAdmin:
    return await ConnectorAdmin.of(api)
