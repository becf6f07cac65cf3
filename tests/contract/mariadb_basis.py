"""Shared code for the tests that use a real MariaDB, for all adapters that can connect to it."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import run
from tests.engines.servers import ServerAddress
from tests.ports import free_port

from queryserver.engines.mysql.engine import MysqlAddress, MysqlEngine
from queryserver.engines.protocol import Engine, EngineSession

CELL_LIMIT = 1024 * 1024


@asynccontextmanager
async def limited_session(server: ServerAddress) -> AsyncGenerator[EngineSession]:
    """Open a session on the database `users` in which a value may have at most `CELL_LIMIT` bytes."""
    address = MysqlAddress(server.host, server.port, "users", server.user, server.password, cell_max_bytes=CELL_LIMIT)
    engine = MysqlEngine(address)
    async with engine.session(USER, NO_OPTIONS) as session:
        yield session
    await engine.close()


class MariadbBasis:
    """A mixin for test classes that use the fixture `mariadb`. It precedes the contract class in the list of bases."""

    engine_on: ClassVar[Callable[[ServerAddress], Engine]]
    """Builds the adapter's engine for the server's database `users`."""

    async def running_statements(self, engine: Engine) -> int:
        """Return how many statements the server is running, apart from this query."""
        async with engine.session(USER, NO_OPTIONS) as session:
            sql = (
                "SELECT COUNT(*) FROM information_schema.processlist"
                " WHERE command = 'Query' AND user = 'admin' AND id <> CONNECTION_ID()"
            )
            return (await run(session, sql)).cell

    @pytest.fixture
    async def engine(self, mariadb: ServerAddress) -> AsyncGenerator[Engine]:
        engine = type(self).engine_on(mariadb)
        yield engine
        await engine.close()

    @pytest.fixture
    async def unreachable_engine(self) -> AsyncGenerator[Engine]:
        engine = type(self).engine_on(ServerAddress("127.0.0.1", free_port(), "nobody", "secret"))
        yield engine
        await engine.close()
