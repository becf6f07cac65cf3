"""Result cursors that many readers move concurrently, in a real database."""

import asyncio
from uuid import UUID, uuid4

import asyncpg
import pytest

from queryserver.errors.base import DatabaseUnavailable
from queryserver.platform.database import Database, open_database
from queryserver.platform.settings.sections import DatabaseSettings
from queryserver.statements.repository import StatementRecords
from queryserver.statements.result_reader import CursorMoves


@pytest.fixture
async def database(database_dsn):
    async with open_database(database_dsn, DatabaseSettings(pool_max=4, connect_timeout_s=60)) as opened:
        yield opened


@pytest.fixture
async def moves(database):
    made = CursorMoves(database)
    yield made
    await made.aclose()


async def statements(database: Database, count: int) -> list[UUID]:
    user_id = await database.value("insert into users (username, username_key) values ('ana', 'ana') returning id")
    ids = [uuid4() for _ in range(count)]
    await database.execute(
        """insert into statements (
            id, user_id, connector, dialect, state, statement, statement_index, statements_count, position,
            statement_hash, guid, secret, session_id, session_guid, row_limit, timeout_s, deadline_at, has_result_set
        ) select id, $2, 'duckdb', 'duckdb', 'available', 'SELECT 1', 0, 1, '{0, 0, 0, 8}', '', id::text, '', 1, '',
            10, 10, now(), true
        from unnest($1::uuid[]) as id""",
        ids,
        user_id,
    )
    return ids


async def cursor(database: Database, statement_id: UUID) -> int:
    return await database.value("select cursor_row from statements where id = $1", statement_id)


async def test_concurrent_moves_of_many_statements_all_succeed(database, moves):
    ids = await statements(database, 250)
    done = await asyncio.gather(*(moves.move(one, expected=0, to=n + 1) for n, one in enumerate(ids)))
    assert done == [True] * 250
    assert [await cursor(database, one) for one in ids] == list(range(1, 251))


async def test_many_moves_need_few_sql_statements(database, monkeypatch):
    ids = await statements(database, 100)
    calls, fetch = [], database.fetch

    async def counted(sql, *arguments):
        calls.append(arguments)
        return await fetch(sql, *arguments)

    monkeypatch.setattr(database, "fetch", counted)
    moves = CursorMoves(database)
    await asyncio.gather(*(moves.move(one, expected=0, to=1) for one in ids))
    assert len(calls) == 1
    await moves.aclose()


async def test_one_of_many_moves_from_the_same_row_succeeds(database, moves):
    [one, other] = await statements(database, 2)
    calls = [moves.move(one, expected=0, to=n) for n in range(1, 31)]
    done = await asyncio.gather(*calls, moves.move(other, expected=0, to=7))
    assert done.count(True) == 2
    assert await cursor(database, one) == done.index(True) + 1
    assert await cursor(database, other) == 7


async def test_one_of_two_equal_moves_by_two_servers_succeeds(database, moves):
    ids = await statements(database, 20)
    elsewhere = CursorMoves(database)
    for start in range(5):
        mine = [moves.move(one, expected=start, to=start + 1) for one in ids]
        theirs = [elsewhere.move(one, expected=start, to=start + 1) for one in reversed(ids)]
        done = await asyncio.gather(*mine, *theirs)
        assert [done[n] + done[-1 - n] for n in range(20)] == [1] * 20
    await elsewhere.aclose()


async def test_cursor_moves_only_from_the_expected_row(database, moves):
    [one, other, gone] = [*await statements(database, 2), uuid4()]
    done = await asyncio.gather(
        moves.move(one, expected=5, to=6), moves.move(other, expected=None, to=9), moves.move(gone, expected=None, to=1)
    )
    assert done == [False, True, False]
    assert [await cursor(database, each) for each in (one, other)] == [0, 9]


async def test_canceled_waiting_move_changes_nothing(database, moves):
    [one, other] = await statements(database, 2)
    leaving = asyncio.create_task(moves.move(one, expected=0, to=1))
    staying = asyncio.create_task(moves.move(other, expected=0, to=1))
    await asyncio.sleep(0)  # now both are waiting
    leaving.cancel()
    assert await staying
    assert await cursor(database, one) == 0


async def test_lost_database_is_reported_to_each_caller_and_the_next_move_succeeds(database, moves, monkeypatch):
    ids = await statements(database, 3)
    with monkeypatch.context() as broken:

        async def lost(_sql, *_arguments):
            raise DatabaseUnavailable

        broken.setattr(database, "fetch", lost)
        done = await asyncio.gather(*(moves.move(one, expected=0, to=1) for one in ids), return_exceptions=True)
        assert [type(one) for one in done] == [DatabaseUnavailable] * 3
    assert await moves.move(ids[0], expected=0, to=1)


async def test_two_servers_never_deadlock(database, database_dsn):
    """All transactions lock the rows in the same order; otherwise, PostgreSQL would detect a deadlock and abort one of
    them.
    """
    ids = await statements(database, 50)
    both = CursorMoves(database), CursorMoves(database)

    async def move_all(moves: CursorMoves, order: list[UUID]) -> None:
        for to in range(1, 11):
            await asyncio.gather(*(moves.move(one, expected=None, to=to) for one in order))

    await asyncio.gather(move_all(both[0], ids), move_all(both[1], ids[::-1]))
    connection = await asyncpg.connect(database_dsn)
    deadlocks = await connection.fetchval("select deadlocks from pg_stat_database where datname = current_database()")
    await connection.close()
    assert deadlocks == 0
    for moves in both:
        await moves.aclose()


@pytest.fixture
def waits_for_disk(database, monkeypatch):
    """Whether each query's commit would have waited for the disk, as it does by default."""
    seen: list[bool] = []

    async def fetch(sql, *arguments):
        async with database.transaction() as connection:
            await connection.execute("set local synchronous_commit = on")
            rows = await connection.fetch(sql, *arguments)
            seen.append(await connection.fetchval("show synchronous_commit") == "on")
            return rows

    async def row(sql, *arguments):
        return next(iter(await fetch(sql, *arguments)), None)

    monkeypatch.setattr(database, "fetch", fetch)
    monkeypatch.setattr(database, "row", row)
    return seen


async def test_cursor_moves_do_not_wait_for_the_disk(database, moves, waits_for_disk):
    [one, *others] = await statements(database, 4)
    assert await moves.move(one, expected=0, to=1)
    assert waits_for_disk == [False]
    await asyncio.gather(*(moves.move(other, expected=0, to=1) for other in others))
    assert waits_for_disk == [False, False]


@pytest.mark.parametrize("has_bytes", [False, True])
async def test_taking_and_closing_a_result_wait_for_the_disk_only_if_its_bytes_will_be_deleted(
    database, waits_for_disk, has_bytes
):
    [one] = await statements(database, 1)
    user_id = await database.value("update statements set rows = 1, inline_result = '' returning user_id")
    records = StatementRecords(database)
    assert (await records.stored_result(one, start_row=None, rows=1, taken_by=user_id)).is_taken
    assert waits_for_disk == [False]
    if has_bytes:
        await database.execute("insert into result_segments values ($1, 0, 1, 0, 1, 1)", one)
    assert (await records.close_available(one, user_id=user_id, connectors=None))[1]
    assert waits_for_disk == [False, has_bytes]
    await records.aclose()
