"""The pool of the service's own database, and reads that are shared."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from uuid import UUID

import asyncpg
import pytest
from tests.fixtures.database import PATIENT
from tests.timing import until

from queryserver.errors.base import DatabaseUnavailable
from queryserver.platform.database import CoalescingReader, Database, open_database
from queryserver.platform.settings.sections import DatabaseSettings

PID = "select pg_backend_pid()"
SLEEPING = "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'"
ONE = DatabaseSettings(pool_max=1, connect_timeout_s=30)


async def test_one_question_after_the_other_uses_one_connection(database_dsn: str) -> None:
    async with open_database(database_dsn, PATIENT) as database:
        assert len({await database.value(PID) for _ in range(20)}) == 1
        assert database.connections == (1, 1)


@pytest.mark.parametrize("limits", [ONE, DatabaseSettings(pool_max=3, connect_timeout_s=30)])
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


async def test_the_pool_closes_with_an_ended_connection_retained(database_dsn: str) -> None:
    async with asyncio.timeout(60), open_database(database_dsn, ONE) as database:
        await ended(database, database_dsn)


async def test_a_refused_statement_leaves_a_connection_that_works(database_dsn: str) -> None:
    async with open_database(database_dsn, ONE) as database:
        before = await database.value(PID)
        with pytest.raises(asyncpg.DivisionByZeroError):
            await database.value("select 1 / 0")
        assert await database.value(PID) == before


async def test_arrays_of_known_types_cost_no_question_of_their_own(database_dsn: str) -> None:
    values: Mapping[str, object] = {
        "boolean": True,
        "bytea": b"\0a",
        "int": -1,
        "bigint": 2**40,
        "text": "a,b",
        "timestamptz": datetime(2026, 2, 28, 23, 59, 59, 999999, tzinfo=UTC),
        "uuid": UUID("7b0c3f0e-3c44-4c6a-9c3e-6e4a5b4e0c11"),
    }
    asked: list[str] = []
    async with open_database(database_dsn, ONE) as database, database.connection() as connection:
        with connection.query_logger(lambda record: asked.append(record.query)):
            for kind, value in values.items():
                assert await connection.fetchval(f"select $1::{kind}[]", [value, None]) == [value, None]
    assert asked == [f"select $1::{kind}[]" for kind in values]


async def test_an_abandoned_question_does_not_answer_the_next_one(database_dsn: str) -> None:
    watcher = await asyncpg.connect(database_dsn, timeout=60)
    try:
        async with open_database(database_dsn, ONE) as database:
            abandoned = asyncio.create_task(database.value("select 'first' from pg_sleep(60)"))
            # The server drops a cancel that comes before it has begun with the statement.
            await until(lambda: watcher.fetchval(SLEEPING))
            abandoned.cancel()
            with pytest.raises(asyncio.CancelledError):
                await abandoned
            assert await database.value("select 'second'") == "second"
    finally:
        await watcher.close()


async def test_an_open_transaction_stays_with_nobody(database_dsn: str) -> None:
    async with open_database(database_dsn, ONE) as database:
        await database.execute("create table left_open (n int)")
        async with database.connection() as connection:
            await connection.execute("begin")
            await connection.execute("insert into left_open values (1)")
        assert await database.value("select count(*) from left_open") == 0


async def test_a_pool_in_use_refuses_in_time(database_dsn) -> None:
    async with open_database(database_dsn, ONE) as database:
        # The first connection has this limit too, and a busy machine takes its time for it.
        assert database._acquire_timeout_s == ONE.connect_timeout_s
        database._acquire_timeout_s = 0.5
        async with database.connection():
            with pytest.raises(DatabaseUnavailable):
                await database.value(PID)
        database._acquire_timeout_s = 30.0
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


async def test_a_connection_that_lay_idle_for_long_is_not_used_again(database_dsn, monkeypatch) -> None:
    async with open_database(database_dsn, ONE) as database:
        before = await database.value(PID)
        monkeypatch.setattr("queryserver.platform.database._MAX_IDLE_S", 0.0)
        assert await database.value(PID) != before


async def test_a_connection_goes_back_to_the_pool_now_and_then(database_dsn, monkeypatch) -> None:
    async with open_database(database_dsn, ONE) as database:
        before = await database.value(PID)
        monkeypatch.setattr("queryserver.platform.database._RETAINED_FOR_S", -1.0)
        assert await database.value(PID) == before
        assert database._retained == []
        assert await database.value(PID) == before


class Store:
    """Answers with the square of each key, and remembers the queries."""

    def __init__(self) -> None:
        self.queries: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    async def fetch(self, sql: str, keys: Sequence[int]) -> Sequence[Mapping[str, int]]:
        assert sql == "many"
        self.queries.append(list(keys))
        await self.gate.wait()
        if self.error:
            raise self.error
        return [{"n": n, "square": key * key} for n, key in enumerate(keys, 1) if key >= 0]


_OPENED: list[CoalescingReader] = []


@pytest.fixture(autouse=True)
async def closed_readers() -> AsyncIterator[None]:
    """No reader outlives its test, to be destroyed (and logged) in the middle of another one."""
    yield
    while _OPENED:
        await _OPENED.pop().aclose()


class Squares(CoalescingReader):
    def __init__(self, store: Store, *, side_by_side: int = 2) -> None:
        super().__init__(store, many="many", side_by_side=side_by_side)  # type: ignore[arg-type]
        _OPENED.append(self)

    async def read(self, key: int) -> int | None:
        row = await self.get(key)
        return row["square"] if row else None


async def test_each_caller_gets_the_value_of_its_key():
    reader = Squares(Store())
    assert await asyncio.gather(*(reader.read(key) for key in (1, 2, 3, -1, 2))) == [1, 4, 9, None, 4]


async def test_one_key_alone_is_asked_by_the_query_that_is_planned_once():
    class One:
        async def fetch(self, sql: str, *parts: object) -> Sequence[Mapping[str, object]]:
            return [{"sql": sql, "parts": parts}]

    reader = CoalescingReader(One(), many="many", one="one")  # type: ignore[arg-type]
    _OPENED.append(reader)
    row = await reader.get(1, "a")
    assert row is not None
    assert dict(row) == {"sql": "one", "parts": (1, "a")}


async def test_callers_of_one_moment_share_queries():
    store = Store()
    reader = Squares(store)
    await asyncio.gather(*(reader.read(key) for key in range(100)))
    assert len(store.queries) <= 2
    assert sorted(key for query in store.queries for key in query) == list(range(100))


async def test_a_question_is_never_answered_from_before_it_was_asked():
    store = Store()
    store.gate.clear()
    reader = Squares(store, side_by_side=1)
    first = asyncio.ensure_future(reader.read(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second = asyncio.ensure_future(reader.read(1))
    await asyncio.sleep(0)
    store.gate.set()
    assert await asyncio.gather(first, second) == [1, 1]
    assert store.queries == [[1], [1]]


@pytest.mark.parametrize("turns", range(12))
async def test_nobody_waits_for_a_reader_that_has_just_ended(turns: int):
    """Whatever the turn of the loop in which the second caller asks, that of the reader's last step included."""
    reader = Squares(Store(), side_by_side=1)

    async def ask_later() -> int | None:
        for _ in range(turns):
            await asyncio.sleep(0)
        return await reader.read(4)

    async with asyncio.timeout(60):
        assert await asyncio.gather(reader.read(3), ask_later()) == [9, 16]


async def test_the_end_of_a_reader_leaves_no_caller_waiting():
    store = Store()
    store.gate.clear()
    reader = Squares(store, side_by_side=1)
    asked = asyncio.ensure_future(reader.read(3))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(reader.read(4))
    await asyncio.sleep(0)
    await reader.aclose()
    async with asyncio.timeout(60):
        ends = await asyncio.gather(asked, waiting, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError] * 2


async def test_a_caller_that_goes_away_takes_nobody_with_it():
    store = Store()
    store.gate.clear()
    reader = Squares(store)
    leaving, staying = asyncio.ensure_future(reader.read(3)), asyncio.ensure_future(reader.read(3))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    leaving.cancel()
    store.gate.set()
    assert await staying == 9
    assert leaving.cancelled()


async def test_an_error_reaches_every_caller_of_its_query_and_no_later_one():
    store = Store()
    store.error = DatabaseUnavailable()
    reader = Squares(store)
    answers = await asyncio.gather(*(reader.read(key) for key in range(3)), return_exceptions=True)
    assert all(isinstance(answer, DatabaseUnavailable) for answer in answers)
    store.error = None
    assert await reader.read(2) == 4


async def test_an_unforeseen_error_cancels_nobody_and_leaves_nobody_waiting():
    store = Store()
    store.error = RuntimeError("nobody thought of this")
    store.gate.clear()
    reader = Squares(store, side_by_side=1)
    first = asyncio.ensure_future(reader.read(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    behind = asyncio.ensure_future(reader.read(2))
    await asyncio.sleep(0)
    store.gate.set()
    async with asyncio.timeout(60):
        answers = await asyncio.gather(first, behind, return_exceptions=True)
    assert [type(answer) for answer in answers] == [RuntimeError, RuntimeError]


async def test_closing_cancels_those_who_wait():
    store = Store()
    store.gate.clear()
    reader = Squares(store)
    waiting = asyncio.ensure_future(reader.read(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await reader.aclose()
    with pytest.raises(asyncio.CancelledError):
        await waiting
