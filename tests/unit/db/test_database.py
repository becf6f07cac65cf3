"""Connections of the service database: taken, kept at hand, given back."""

import asyncio

import asyncpg
import pytest

from queryserver.errors.base import DatabaseUnavailable
from queryserver.platform.database import Database, open_database
from queryserver.platform.settings.sections import DatabaseSettings

PID = "select pg_backend_pid()"
ONE = DatabaseSettings(pool_max=1, connect_timeout_s=2)


async def test_one_question_after_the_other_uses_one_connection(database_dsn: str) -> None:
    async with open_database(database_dsn) as database:
        assert len({await database.value(PID) for _ in range(20)}) == 1
        assert database.connections == (1, 1)


@pytest.mark.parametrize("limits", [ONE, DatabaseSettings(pool_max=3)], ids=["one", "three"])
async def test_more_askers_than_connections_all_get_their_answer(database_dsn: str, limits: DatabaseSettings) -> None:
    async with open_database(database_dsn, limits) as database:
        asked = [database.value("select $1::int from pg_sleep(0.005)", number) for number in range(60)]
        assert await asyncio.gather(*asked) == list(range(60))
        size, idle = database.connections
        assert size == idle <= limits.pool_max


async def test_a_connection_that_the_server_ended_is_replaced(database_dsn: str) -> None:
    async with open_database(database_dsn, ONE) as database:
        before = await ended(database, database_dsn)
        assert await database.value(PID) != before


async def test_the_pool_closes_with_an_ended_connection_at_hand(database_dsn: str) -> None:
    async with asyncio.timeout(4), open_database(database_dsn, ONE) as database:
        await ended(database, database_dsn)


async def test_a_refused_statement_leaves_a_connection_that_works(database_dsn: str) -> None:
    async with open_database(database_dsn, ONE) as database:
        before = await database.value(PID)
        with pytest.raises(asyncpg.DivisionByZeroError):
            await database.value("select 1 / 0")
        assert await database.value(PID) == before


async def test_an_abandoned_question_does_not_answer_the_next_one(database_dsn: str) -> None:
    async with open_database(database_dsn, ONE) as database:
        abandoned = asyncio.create_task(database.value("select 'first' from pg_sleep(10)"))
        await asyncio.sleep(0.1)
        abandoned.cancel()
        with pytest.raises(asyncio.CancelledError):
            await abandoned
        assert await database.value("select 'second'") == "second"


async def test_an_open_transaction_stays_with_nobody(database_dsn: str) -> None:
    async with open_database(database_dsn, ONE) as database:
        await database.execute("create table left_open (n int)")
        async with database.connection() as connection:
            await connection.execute("begin")
            await connection.execute("insert into left_open values (1)")
        assert await database.value("select count(*) from left_open") == 0


async def test_a_pool_in_use_refuses_in_time(database_dsn: str) -> None:
    # The first connection has this limit too, and a busy machine takes its time for it.
    limits = DatabaseSettings(pool_max=1, connect_timeout_s=1)
    async with open_database(database_dsn, limits) as database:
        async with database.connection():
            with pytest.raises(DatabaseUnavailable):
                await database.value(PID)
        assert await database.value("select 1") == 1


async def ended(database: Database, dsn: str) -> int:
    """The process of a connection at hand, which the server has just ended."""
    pid = await database.value(PID)
    other = await asyncpg.connect(dsn)
    try:
        assert await other.fetchval("select pg_terminate_backend($1, 5000)", pid)
    finally:
        await other.close()
    await asyncio.sleep(0.05)
    return pid


async def test_a_connection_that_lay_idle_for_long_is_not_used_again(
    database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_database(database_dsn, ONE) as database:
        before = await database.value(PID)
        monkeypatch.setattr("queryserver.platform.database._IDLE_AT_MOST_S", 0.0)
        assert await database.value(PID) != before


async def test_a_connection_goes_back_to_the_pool_now_and_then(
    database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_database(database_dsn, ONE) as database:
        before = await database.value(PID)
        monkeypatch.setattr("queryserver.platform.database._AT_HAND_FOR_S", -1.0)
        assert await database.value(PID) == before
        assert database._at_hand == []
        assert await database.value(PID) == before
