"""The login roles that the server makes for its users, in the PostgreSQL that it runs itself."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from tests.contract.engine_basis import NO_OPTIONS
from tests.contract.engine_driving import run
from tests.contract.postgresql_basis import address_of

from queryserver.engines.postgresql.engine import PostgresqlEngine, UserLogins
from queryserver.identity.model import User
from queryserver.platform.embedded.cluster import SAMPLE_DATABASE, SAMPLE_OWNER, SAMPLE_ROLE
from queryserver.platform.embedded.postgres import EmbeddedPostgres
from queryserver.platform.embedded.sample import ensure_databases, sample_tables

ANA, BEN = User(1, "ana"), User(2, "ben")


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[EmbeddedPostgres]:
    async with EmbeddedPostgres.start(tmp_path_factory.mktemp("logins"), durable=False) as server:
        await ensure_databases(server, sample_tables())
        yield server


@pytest.fixture
async def sample(server: EmbeddedPostgres) -> AsyncGenerator[PostgresqlEngine]:
    engine = sample_engine(server)
    yield engine
    await engine.close()


def sample_engine(server: EmbeddedPostgres) -> PostgresqlEngine:
    logins = UserLogins(
        server.service_dsn(), group=SAMPLE_OWNER, database=SAMPLE_DATABASE, role_of=f"{SAMPLE_ROLE}_{{:d}}".format
    )
    return PostgresqlEngine(address_of(server.sample_dsn()), user_logins=logins)


async def said(engine: PostgresqlEngine, user: User, sql: str) -> list[tuple[Any, ...]]:
    async with engine.session(user, NO_OPTIONS) as session:
        return (await run(session, sql)).rows


async def test_a_user_who_holds_the_own_role_keeps_nobody_else_waiting(sample: PostgresqlEngine) -> None:
    async with sample.session(ANA, NO_OPTIONS) as session:
        await run(session, "BEGIN")
        await run(session, "ALTER ROLE CURRENT_USER SET work_mem = '1MB'")
        await run(session, "SET ROLE none")
        await run(session, "ALTER ROLE CURRENT_USER PASSWORD 'hostile'")
        waiting = asyncio.create_task(said(sample, ANA, "SELECT 1"))
        while not await said(sample, BEN, "SELECT 1 FROM pg_locks WHERE NOT granted"):
            assert not waiting.done()
        assert await said(sample, User(3, "eve"), "SELECT 1") == [(1,)]
        assert not waiting.done()
        await run(session, "ROLLBACK")
    assert await waiting == [(1,)]


async def test_servers_that_make_the_login_of_one_user_at_once_do_not_disturb_each_other(
    server: EmbeddedPostgres,
) -> None:
    engines = [sample_engine(server) for _ in range(4)]
    user = User(77, "new")
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*(said(engine, user, "SELECT 1") for engine in engines for _ in range(4)))
    assert answers == [[(1,)]] * 16
    for engine in engines:
        await engine.close()
