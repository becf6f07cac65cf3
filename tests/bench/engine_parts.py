"""Row throughput from network engines, compared with a minimal reader for each, in the same run.

The servers are the real servers of `make test-engines`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import trino
from tests.bench.client import Client
from tests.bench.setting import Bench, Measured, bench_server, peak_mib
from tests.engines.servers import ServerAddress
from tests.engines.sparksql import spark_server
from tests.engines.trino import trino_server

from queryserver.engines.hiveserver2.connection import connect
from queryserver.engines.hiveserver2.engine import Hs2Engine
from queryserver.engines.hiveserver2.messages import EXECUTE_STATEMENT, FETCH_RESULTS, OPEN_SESSION
from queryserver.engines.hiveserver2.structs import (
    FetchType,
    TExecuteStatementReq,
    TFetchOrientation,
    TFetchResultsReq,
    TOpenSessionReq,
)
from queryserver.engines.hiveserver2.variants import VARIANTS, Hs2Address, Hs2Login, Member
from queryserver.engines.protocol import Engine, EngineSession, SessionOptions
from queryserver.engines.trino.engine import TrinoEngine
from queryserver.engines.trino.protocol import TrinoAddress
from queryserver.identity.model import User

_USER = User(id=1, username="bench")
_ROWS = 500_000
_MAX_ROWS = 10_000
_SPARK_SQL = f"""select id, id / 7.0d as ratio, concat('item ', id) as label, cast(id % 1000 as string) as code,
id % 2 = 0 as flag from range({_ROWS})"""
_TRINO_SQL = "SELECT * FROM tpch.sf1.orders"
_SLOW_SPARK_SQL = "select count(*) from range(4000000000) a where sin(a.id) > 2"
_STATEMENTS = 200
_LIMIT_S = 60.0


async def hiveserver2() -> list[Measured]:
    """Measure Spark's Thrift server: Arrow batches of the adapter, compared with a loop that only fetches and decodes
    in C.
    """
    with spark_server() as address:
        engine = Hs2Engine(_hs2(address), VARIANTS["sparksql"])
        try:
            await _rows_of(engine, _SPARK_SQL)
            bare, ours = await _best_of(3, lambda: _bare_rows(address), lambda: _rows_of(engine, _SPARK_SQL))
            stall_ms = await _stall_while_polling(engine, 20)
        finally:
            await engine.close()
    return [
        Measured(f"Spark, {_ROWS:,} x 5, bare fetch and decode, rows/s", f"{_ROWS / bare:,.0f}"),
        Measured(f"Spark, {_ROWS:,} x 5 as Arrow batches, rate / bare", f"{bare / ours:.2f}", ">= 0.6"),
        Measured("Spark, longest loop stall while 20 statements long-poll", f"{stall_ms:.0f} ms", "<= 50 ms"),
    ]


async def trino_rows() -> list[Measured]:
    """Measure Trino: tpch.sf1.orders, compared with the official client in a separate thread."""
    with trino_server() as address:
        engine = TrinoEngine(TrinoAddress(address.url))
        try:
            await _rows_of(engine, "SELECT * FROM tpch.tiny.orders")
            rows = await _count(engine, _TRINO_SQL)
            official, ours = await _best_of(
                2,
                lambda: asyncio.to_thread(_official_rows, address.host, address.port),
                lambda: _rows_of(engine, _TRINO_SQL),
            )
        finally:
            await engine.close()
    return [
        Measured("Trino, tpch.sf1.orders, official client, rows/s", f"{rows / official:,.0f}"),
        Measured("Trino, tpch.sf1.orders as Arrow batches, rate / official", f"{official / ours:.2f}", ">= 2"),
    ]


async def three_engines(folder: Path) -> list[Measured]:
    """Run 200 concurrent statements on Spark, Trino and PostgreSQL through one server process."""
    async with _three_engines(folder) as bench:
        idle = bench.resident_mib
        async with peak_mib(bench) as peak:
            started = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                ends = [group.create_task(_one_of_many(bench, number)) for number in range(_STATEMENTS)]
            took_s = time.perf_counter() - started
        good = sum(end.result() == "available" for end in ends)
    return [
        Measured("200 statements on 3 engines at once: ended well", str(good), "200"),
        Measured("200 statements on 3 engines at once: all ended after", f"{took_s:.0f} s"),
        Measured("server process before", f"{idle:.0f} MiB"),
        Measured("server process at its largest", f"{peak.mib:.0f} MiB", "< 400 MiB"),
    ]


async def many_tables(bench: Bench) -> list[Measured]:
    """Measure autocomplete in a schema of 30,000 tables: the first lookup, the second, and one page."""
    async with bench.client() as client:
        make = """DO $$ BEGIN FOR n IN 1..30000 LOOP EXECUTE format('CREATE TABLE many.t%s (a int)', n);
        IF n % 1000 = 0 THEN COMMIT; END IF; END LOOP; END $$"""
        for statement in ("CREATE SCHEMA many", make):
            ended = await client.call("execute/postgresql", statement=statement, wait=60)
            await _end(client, ended["history_uuid"])
        snippet = '{"type": "postgresql"}'
        times = []
        for fields in ({}, {}, {"prefix": "t29", "limit": 100}):
            started = time.perf_counter()
            answer = await client.call("autocomplete/many", snippet=snippet, **fields)
            times.append((time.perf_counter() - started, len(answer["tables_meta"])))
    (cold_s, found), (warm_s, _), (prefix_s, some) = times
    assert found == 30_000, found
    assert some == 100, some
    return [
        Measured("30,000 tables, first look", f"{cold_s * 1000:.0f} ms", "< 1500 ms"),
        Measured("30,000 tables, second look", f"{warm_s * 1000:.0f} ms", "< 100 ms"),
        Measured("30,000 tables, prefix and page of 100", f"{prefix_s * 1000:.0f} ms", "< 100 ms"),
    ]


def _hs2(address: ServerAddress) -> Hs2Address:
    return Hs2Address((Member(address.host, address.port),), username=address.user)


async def _best_of(
    rounds: int, first: Callable[[], Awaitable[object]], second: Callable[[], Awaitable[object]]
) -> tuple[float, float]:
    """Run both functions alternately; return the shortest time of each in seconds."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for kept, work in zip(times, (first, second), strict=True):
            started = time.perf_counter()
            await work()
            kept.append(time.perf_counter() - started)
    return min(times[0]), min(times[1])


async def _rows_of(engine: Engine, sql: str) -> None:
    assert await _count(engine, sql) > 0


async def _count(engine: Engine, sql: str) -> int:
    async with engine.session(_USER, SessionOptions()) as session:
        handle = await session.submit(sql)
        while not (await session.poll(handle, wait_s=1)).state.is_terminal:
            pass
        rows = sum([batch.num_rows async for batch in session.batches(handle)])
        await session.close(handle)
    return rows


async def _bare_rows(address: ServerAddress) -> None:
    """Fetch and decode all rows, but discard the replies without converting them to Arrow."""
    member = Member(address.host, address.port)
    connection = await connect(_hs2(address), Hs2Login(member, address.user))
    try:
        opened = await connection.call(OPEN_SESSION, TOpenSessionReq(username=address.user), limit_s=_LIMIT_S)
        statement = TExecuteStatementReq(session_handle=opened.session_handle, statement=_SPARK_SQL)
        executed = await connection.call(EXECUTE_STATEMENT, statement, limit_s=_LIMIT_S)
        fetch = TFetchResultsReq(
            operation_handle=executed.operation_handle,
            orientation=TFetchOrientation.NEXT,
            max_rows=_MAX_ROWS,
            fetch_type=FetchType.ROWS,
        )
        rows = 0
        while rows < _ROWS:
            reply = await connection.call(FETCH_RESULTS, fetch, limit_s=_LIMIT_S)
            assert reply.results is not None
            assert reply.results.columns
            assert reply.results.columns[0].i64_val is not None
            rows += len(reply.results.columns[0].i64_val.values)
    finally:
        await connection.disconnect()


async def _stall_while_polling(engine: Engine, statements: int) -> float:
    """Return the longest event loop stall in ms while this many running statements are polled."""
    async with AsyncExitStack() as stack:
        running = []
        for _ in range(statements):
            session: EngineSession = await stack.enter_async_context(engine.session(_USER, SessionOptions()))
            running.append((session, await session.submit(_SLOW_SPARK_SQL)))
        lag = asyncio.create_task(_longest_turn(5.0))
        async with asyncio.TaskGroup() as group:
            for session, handle in running:
                group.create_task(_poll_for(session, handle, 5.0))
        longest = await lag
        for session, handle in running:
            await session.cancel(handle)
    return longest * 1000


async def _poll_for(session: EngineSession, handle: Any, seconds: float) -> None:
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        await session.poll(handle, wait_s=1)


async def _longest_turn(seconds: float) -> float:
    longest, give_up = 0.0, time.monotonic() + seconds
    while time.monotonic() < give_up:
        started = time.monotonic()
        await asyncio.sleep(0.01)
        longest = max(longest, time.monotonic() - started - 0.01)
    return longest


def _official_rows(host: str, port: int) -> None:
    connection = trino.dbapi.connect(host=host, port=port, user="bench")
    try:
        cursor = connection.cursor()
        cursor.execute(_TRINO_SQL)
        while cursor.fetchmany(_MAX_ROWS):
            pass
    finally:
        connection.close()


_MANY = {
    "sparksql": "select id, concat('item ', id) as label from range(20000)",
    "trino": "SELECT orderkey, clerk FROM tpch.tiny.orders",
    "postgresql": "SELECT g, 'item ' || g FROM generate_series(1, 20000) AS g",
}


async def _one_of_many(bench: Bench, number: int) -> str:
    dialect = tuple(_MANY)[number % len(_MANY)]
    async with bench.client(number) as client:
        begun = await client.call(f"execute/{dialect}", statement=_MANY[dialect], limit=20_000)
        return await _end(client, begun["history_uuid"])


async def _end(client: Client, operation_id: str) -> str:
    while True:
        body = await client.call("check_status", operationId=operation_id, wait=30)
        if body["query_status"]["status"] not in {"waiting", "running"}:
            return body["query_status"]["state"]


@asynccontextmanager
async def _three_engines(folder: Path) -> AsyncIterator[Bench]:
    with spark_server() as spark, trino_server() as coordinator:
        interpreters = {
            "sparksql": {
                "interface": "hiveserver2",
                "options": {"server_host": spark.host, "server_port": spark.port, "username": spark.user},
            },
            "trino": {"interface": "trino", "options": {"url": coordinator.url}},
        }
        async with bench_server(folder, interpreters) as bench:
            yield bench
