"""The connection pool of the service database, and coalesced reads."""

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


async def test_sequential_queries_use_one_connection(database_dsn: str) -> None:
    async with open_database(database_dsn, PATIENT) as database:
        assert len({await database.value(PID) for _ in range(20)}) == 1
        assert database.connections == (1, 1)


@pytest.mark.parametrize("limits", [ONE, DatabaseSettings(pool_max=3, connect_timeout_s=30)])
async def test_more_callers_than_connections_all_get_results(database_dsn: str, limits: DatabaseSettings) -> None:
    async with open_database(database_dsn, limits) as database:
        asked = [database.value("select $1::int from pg_sleep(0.005)", number) for number in range(60)]
        assert await asyncio.gather(*asked) == list(range(60))
        size, idle = database.connections
        assert size == idle <= limits.pool_max


async def test_connection_closed_by_server_is_replaced(database_dsn: str) -> None:
    async with open_database(database_dsn, ONE) as database:
        before = await ended(database, database_dsn)
        assert await database.value(PID) != before


async def test_pool_closes_while_retaining_a_closed_connection(database_dsn: str) -> None:
    async with asyncio.timeout(60), open_database(database_dsn, ONE) as database:
        await ended(database, database_dsn)


async def test_failed_statement_leaves_connection_usable(database_dsn: str) -> None:
    async with open_database(database_dsn, ONE) as database:
        before = await database.value(PID)
        with pytest.raises(asyncpg.DivisionByZeroError):
            await database.value("select 1 / 0")
        assert await database.value(PID) == before


async def test_arrays_of_known_types_need_no_additional_query(database_dsn: str) -> None:
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


async def test_canceled_query_does_not_affect_next_query(database_dsn: str) -> None:
    watcher = await asyncpg.connect(database_dsn, timeout=60)
    try:
        async with open_database(database_dsn, ONE) as database:
            abandoned = asyncio.create_task(database.value("select 'first' from pg_sleep(60)"))
            # PostgreSQL ignores a cancel request that arrives before the statement has started.
            await until(lambda: watcher.fetchval(SLEEPING))
            abandoned.cancel()
            with pytest.raises(asyncio.CancelledError):
                await abandoned
            assert await database.value("select 'second'") == "second"
    finally:
        await watcher.close()


async def test_open_transaction_is_rolled_back_on_release(database_dsn: str) -> None:
    async with open_database(database_dsn, ONE) as database:
        await database.execute("create table left_open (n int)")
        async with database.connection() as connection:
            await connection.execute("begin")
            await connection.execute("insert into left_open values (1)")
        assert await database.value("select count(*) from left_open") == 0


async def test_exhausted_pool_refuses_after_timeout(database_dsn) -> None:
    async with open_database(database_dsn, ONE) as database:
        # The acquire timeout also covers opening the first connection, which may be slow on a busy machine.
        assert database._acquire_timeout_s == ONE.connect_timeout_s
        database._acquire_timeout_s = 0.5
        async with database.connection():
            with pytest.raises(DatabaseUnavailable):
                await database.value(PID)
        database._acquire_timeout_s = 30.0
        assert await database.value("select 1") == 1


async def ended(database: Database, dsn: str) -> int:
    """Terminate the backend of the pool's connection; return the backend's PID."""
    pid = await database.value(PID)
    other = await asyncpg.connect(dsn)
    try:
        assert await other.fetchval("select pg_terminate_backend($1, 5000)", pid)
    finally:
        await other.close()
    await asyncio.sleep(0.05)
    return pid


async def test_connection_lost_during_a_query_is_reported_as_unavailable_and_replaced(database_dsn: str) -> None:
    async with open_database(database_dsn, ONE) as database:
        with pytest.raises(DatabaseUnavailable):
            await database.value("select pg_terminate_backend(pg_backend_pid()), pg_sleep(30)")
        assert await database.value("select 1") == 1
        with pytest.raises(ValueError, match="an error of the caller"):
            async with database.connection():
                raise ValueError("an error of the caller")
        assert await database.value("select 1") == 1


async def test_connection_idle_for_too_long_is_not_reused(database_dsn, monkeypatch) -> None:
    async with open_database(database_dsn, ONE) as database:
        before = await database.value(PID)
        monkeypatch.setattr("queryserver.platform.database._MAX_IDLE_S", 0.0)
        assert await database.value(PID) != before


async def test_retained_connection_periodically_returns_to_pool(database_dsn, monkeypatch) -> None:
    async with open_database(database_dsn, ONE) as database:
        before = await database.value(PID)
        monkeypatch.setattr("queryserver.platform.database._RETAINED_FOR_S", -1.0)
        assert await database.value(PID) == before
        assert database._retained == []
        assert await database.value(PID) == before


async def test_all_connections_are_retained_while_callers_wait(database_dsn) -> None:
    async with open_database(database_dsn, DatabaseSettings(pool_max=6, connect_timeout_s=30)) as database:
        await asyncio.gather(*(database.value("select 1 from pg_sleep(0.05)") for _ in range(18)))
        assert len(database._retained) == database.connections[0] > 1


async def test_unused_connection_returns_to_pool(database_dsn, monkeypatch) -> None:
    async with open_database(database_dsn, PATIENT) as database:
        async with database.connection() as one, database.connection() as other:
            assert await one.fetchval(PID) != await other.fetchval(PID)
        assert len(database._retained) == 2
        monkeypatch.setattr("queryserver.platform.database._UNUSED_FOR_S", 0.0)
        await database.value("select 1")
        assert len(database._retained) == 1
        assert database.connections == (2, 2)


class Store:
    """A database query that returns the square of each key and records its calls; there are no rows for
    negative keys.
    """

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

    async def row(self, sql: str, key: int) -> Mapping[str, int] | None:
        assert sql == "one"
        self.queries.append([key])
        await self.gate.wait()
        if self.error:
            raise self.error
        return {"square": key * key} if key >= 0 else None


_OPENED: list[CoalescingReader] = []


@pytest.fixture(autouse=True)
async def closed_readers() -> AsyncIterator[None]:
    """Close all readers after the test; otherwise, they would be garbage-collected, and logged, during another test."""
    yield
    while _OPENED:
        await _OPENED.pop().aclose()


class Squares(CoalescingReader):
    def __init__(self, store: Store, *, one: str | None = None, max_queries: int = 2) -> None:
        super().__init__(store, many="many", one=one, max_queries=max_queries)  # type: ignore[arg-type]
        _OPENED.append(self)

    async def read(self, key: int) -> int | None:
        row = await self.get(key)
        return row["square"] if row else None


async def test_each_caller_gets_the_value_of_its_key():
    reader = Squares(Store())
    assert await asyncio.gather(*(reader.read(key) for key in (1, 2, 3, -1, 2))) == [1, 4, 9, None, 4]


async def test_single_key_uses_the_single_row_query():
    class One:
        async def row(self, sql: str, *parts: object) -> Mapping[str, object]:
            return {"sql": sql, "parts": parts}

    reader = CoalescingReader(One(), many="many", one="one")  # type: ignore[arg-type]
    _OPENED.append(reader)
    row = await reader.get(1, "a")
    assert row is not None
    assert dict(row) == {"sql": "one", "parts": (1, "a")}


async def test_concurrent_callers_share_queries():
    store = Store()
    reader = Squares(store)
    await asyncio.gather(*(reader.read(key) for key in range(100)))
    assert len(store.queries) <= 2
    assert sorted(key for query in store.queries for key in query) == list(range(100))


async def test_caller_never_gets_result_of_earlier_query():
    store = Store()
    store.gate.clear()
    reader = Squares(store, max_queries=1)
    first = asyncio.ensure_future(reader.read(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second = asyncio.ensure_future(reader.read(1))
    await asyncio.sleep(0)
    store.gate.set()
    assert await asyncio.gather(first, second) == [1, 1]
    assert store.queries == [[1], [1]]


@pytest.mark.parametrize("turns", range(12))
async def test_caller_never_waits_for_a_reader_that_has_just_ended(turns: int):
    """Over all cases, the second caller starts in every loop iteration, including the one in which the reader takes its
    last step.
    """
    reader = Squares(Store(), max_queries=1)

    async def ask_later() -> int | None:
        for _ in range(turns):
            await asyncio.sleep(0)
        return await reader.read(4)

    async with asyncio.timeout(60):
        assert await asyncio.gather(reader.read(3), ask_later()) == [9, 16]


async def test_closing_reader_cancels_running_and_queued_calls():
    store = Store()
    store.gate.clear()
    reader = Squares(store, max_queries=1)
    asked = asyncio.ensure_future(reader.read(3))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(reader.read(4))
    await asyncio.sleep(0)
    await reader.aclose()
    async with asyncio.timeout(60):
        ends = await asyncio.gather(asked, waiting, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError] * 2


async def test_canceled_caller_does_not_cancel_others():
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


async def test_query_error_reaches_its_callers_but_no_later_caller():
    store = Store()
    store.error = DatabaseUnavailable()
    reader = Squares(store)
    answers = await asyncio.gather(*(reader.read(key) for key in range(3)), return_exceptions=True)
    assert all(isinstance(answer, DatabaseUnavailable) for answer in answers)
    store.error = None
    assert await reader.read(2) == 4


async def test_unexpected_error_reaches_running_and_queued_callers():
    store = Store()
    store.error = RuntimeError("nobody thought of this")
    store.gate.clear()
    reader = Squares(store, max_queries=1)
    first = asyncio.ensure_future(reader.read(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    behind = asyncio.ensure_future(reader.read(2))
    await asyncio.sleep(0)
    store.gate.set()
    async with asyncio.timeout(60):
        answers = await asyncio.gather(first, behind, return_exceptions=True)
    assert [type(answer) for answer in answers] == [RuntimeError, RuntimeError]


async def test_keys_requested_during_single_row_queries_share_the_next_query():
    store = Store()
    store.gate.clear()
    reader = Squares(store, one="one")
    asked = [asyncio.ensure_future(reader.read(key)) for key in (1, -1, 3, 4, 3)]
    await asyncio.sleep(0)
    assert store.queries == [[1], [-1]]
    store.gate.set()
    async with asyncio.timeout(60):
        assert await asyncio.gather(*asked) == [1, None, 9, 16, 9]
    assert store.queries == [[1], [-1], [3, 4]]


async def test_canceled_single_row_query_lets_waiting_callers_proceed():
    store = Store()
    store.gate.clear()
    reader = Squares(store, one="one", max_queries=1)
    leaving, staying = asyncio.ensure_future(reader.read(3)), asyncio.ensure_future(reader.read(5))
    await asyncio.sleep(0)
    leaving.cancel()
    store.gate.set()
    async with asyncio.timeout(60):
        assert await staying == 25
    assert leaving.cancelled()


async def test_closed_reader_can_be_used_again():
    store = Store()
    store.gate.clear()
    reader = Squares(store, max_queries=1)
    waiting = asyncio.ensure_future(reader.read(1))
    await asyncio.sleep(0)
    await reader.aclose()
    store.gate.set()
    async with asyncio.timeout(60):
        assert await reader.read(2) == 4
    assert waiting.cancelled()


async def test_closing_cancels_waiting_callers():
    store = Store()
    store.gate.clear()
    reader = Squares(store)
    waiting = asyncio.ensure_future(reader.read(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await reader.aclose()
    with pytest.raises(asyncio.CancelledError):
        await waiting
