"""Shared code for the tests that use a real PostgreSQL."""

from collections.abc import AsyncGenerator
from typing import ClassVar
from urllib.parse import urlsplit

import pytest
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import run
from tests.engines.servers import ServerAddress
from tests.ports import free_port

from queryserver.engines.postgresql.engine import PostgresqlAddress, PostgresqlEngine
from queryserver.engines.protocol import Engine


def address_of(dsn: str) -> PostgresqlAddress:
    """Parse a connection URL into a PostgresqlAddress."""
    url = urlsplit(dsn)
    assert url.hostname
    assert url.port
    return PostgresqlAddress(url.hostname, url.port, url.path[1:], url.username, url.password)


class PostgresqlBasis:
    """A mixin for the test classes of every PostgreSQL release. It precedes the contract class in the list of bases."""

    adapter: ClassVar[type[PostgresqlEngine]]
    """The adapter under test; it connects to the fixture `address`."""

    @pytest.fixture
    async def engine(self, address: PostgresqlAddress) -> AsyncGenerator[Engine]:
        engine = self.adapter(address)
        yield engine
        await engine.close()

    async def running_statements(self, engine: Engine) -> int:
        """Return how many sessions on the database are running a statement or have an open transaction."""
        async with engine.session(USER, NO_OPTIONS) as session:
            sql = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND state <> 'idle'"
            )
            return (await run(session, sql)).cell

    @pytest.fixture
    async def unreachable_engine(self) -> AsyncGenerator[Engine]:
        engine = self.adapter(PostgresqlAddress("127.0.0.1", free_port(), "none", "nobody", "secret"))
        yield engine
        await engine.close()


class EmbeddedBasis(PostgresqlBasis):
    """A mixin for tests on the release of the embedded default database. Each test has its own database."""

    tested_with = "PostgreSQL 18 of the embedded default"

    @pytest.fixture
    def address(self, users_dsn: str) -> PostgresqlAddress:
        return address_of(users_dsn)


class Release15Basis(PostgresqlBasis):
    """A mixin for tests on an older release from the distribution's packages, including its contrib extensions."""

    tested_with = "PostgreSQL 15"

    @pytest.fixture
    def address(self, release15: ServerAddress) -> PostgresqlAddress:
        return PostgresqlAddress(release15.host, release15.port, "postgres", release15.user, release15.password)
