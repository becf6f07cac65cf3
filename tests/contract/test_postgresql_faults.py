"""The PostgreSQL adapter when the connection breaks."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace

import asyncpg
import pytest
from tests.contract.engine_faults import FaultsContract
from tests.contract.postgresql_basis import address_of
from tests.contract.test_postgresql_engine import FACTS

from queryserver.engines.postgresql.engine import PostgresqlEngine
from queryserver.engines.protocol import Engine


class TestPostgresqlFaults(FaultsContract):
    """The broken-connection tests on the embedded release, over TCP."""

    facts = FACTS
    tested_with = "PostgreSQL 18 of the embedded default"

    @pytest.fixture
    def server(self, users_dsn: str) -> tuple[str, int]:
        address = address_of(users_dsn)
        return address.host, address.port

    @pytest.fixture
    def engine_at(self, users_dsn: str, request: pytest.FixtureRequest) -> Callable[[int], Engine]:
        connect_timeout_s = 3 if "silence" in request.node.name else 30
        address = replace(address_of(users_dsn), connect_timeout_s=connect_timeout_s, clean_up_s=0.5)
        return lambda port: PostgresqlEngine(replace(address, port=port))

    @pytest.fixture
    async def is_at_engine(self, users_dsn: str) -> AsyncGenerator[Callable[[], Awaitable[bool]]]:
        """Return a function that queries PostgreSQL itself, because a statement that counts as started still needs two
        round trips before it runs.
        """
        other = await asyncpg.connect(users_dsn)

        async def is_sleeping() -> bool:
            sleeps = "datname = current_database() AND wait_event = 'PgSleep'"
            return await other.fetchval(f"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE {sleeps})")

        yield is_sleeping
        await other.close()
