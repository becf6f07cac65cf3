"""The measurements of a single server. Ratios are taken within one run; absolute numbers are a guide for two cores."""

import asyncio
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable

import asyncpg
import pyarrow as pa
import pyarrow.csv
from tests.bench.client import Client
from tests.bench.setting import Bench, Measured, peak_mib

_CLIENTS = 64
_PAGE = 100
_MIXED = """select g::int as id, g::bigint * 3 as big, g / 7.0::float8 as ratio, (g % 1000)::numeric(10, 2) as price,
'item ' || g as label, md5(g::text)::varchar(32) as code, g % 2 = 0 as flag, date '2020-01-01' + (g % 1000) as day,
timestamp '2020-01-01' + g * interval '1 second' as at, timestamptz '2020-01-01' + g * interval '1 minute' as zoned
from generate_series(1, {rows}) as g"""


async def latency(bench: Bench) -> list[Measured]:
    """Measure `SELECT 1` from the execute call with `wait` to its first row, compared with the same query through
    asyncpg.
    """
    connection = await asyncpg.connect(bench.sample_dsn)
    raw, ours = [], []
    async with bench.client() as client:
        for _ in range(300):
            started = time.perf_counter()
            await connection.fetch("SELECT 1")
            raw.append(time.perf_counter() - started)
            started = time.perf_counter()
            ended = await client.call("execute/postgresql", statement="SELECT 1", wait=10)
            await client.call("fetch_result_data", operationId=ended["history_uuid"])
            ours.append(time.perf_counter() - started)
    await connection.close()
    above_ms = (statistics.median(ours) - statistics.median(raw)) * 1000
    return [Measured("SELECT 1, execute with wait to first row, above asyncpg", f"{above_ms:.1f} ms", "<= 15 ms")]


async def reuse(bench: Bench) -> list[Measured]:
    """Measure queries of 7 s whose stored rows answer the same query again, from execute to all rows in the answer."""
    found = list[Measured]()
    async with bench.client() as client:
        for rows in (100, 100_000):
            statement = f"select * from (select pg_sleep(7)) as slow, ({_MIXED.format(rows=rows)}) as mixed"
            seconds, quick = list[float](), list[float]()
            for _ in range(51):
                started = time.perf_counter()
                ended = await client.call("execute/postgresql", statement=statement, max_age_s=3600, wait=60, rows=100)
                seconds.append(time.perf_counter() - started)
                assert len(ended["result"]["data"]) == 100
                assert ("reused_from" in ended["query_status"]) == (len(seconds) > 1)
                started = time.perf_counter()
                await client.call("execute/postgresql", statement="SELECT 1", wait=60, rows=100)
                quick.append(time.perf_counter() - started)
            again_ms, quick_ms = statistics.median(seconds[1:]) * 1000, statistics.median(quick) * 1000
            found += [
                Measured(f"query of 7 s, {rows} rows, until its first 100 rows", f"{seconds[0]:.2f} s"),
                Measured("the same again with max_age_s", f"{again_ms:.1f} ms"),
                Measured("SELECT 1 on the data source, in turn with these", f"{quick_ms:.1f} ms"),
            ]
    return found


async def calls(bench: Bench) -> list[Measured]:
    """Measure calls per second with 64 clients."""
    operations: dict[int, str] = {}
    for number in range(_CLIENTS):
        async with bench.client(number) as client:
            ended = await client.call("execute/postgresql", statement=_MIXED.format(rows=100), wait=10)
            operations[number] = ended["history_uuid"]
    alive = await _rate(bench, 300, lambda client, _: client.get("/desktop/debug/is_alive"))
    check = await _rate(bench, 100, lambda client, number: client.call("check_status", operationId=operations[number]))
    fetch = await _rate(
        bench,
        50,
        lambda client, number: client.call("fetch_result_data", operationId=operations[number], start_row=0, rows=100),
    )
    cycles = await _rate(bench, 15, full_cycle)
    return [
        Measured("is_alive, calls/s, 64 clients", f"{alive:.0f}"),
        Measured("check_status, calls/s, 64 clients", f"{check:.0f}", ">= 800"),
        Measured("check_status / is_alive", f"{check / alive:.2f}", ">= 0.4"),
        Measured("fetch_result_data 100 x 10, calls/s, 64 clients", f"{fetch:.0f}", ">= 600"),
        Measured("full cycles/s (execute, check_status, fetch, close)", f"{cycles:.0f}", ">= 100"),
    ]


async def pages(bench: Bench) -> list[Measured]:
    """Measure pages of 100 rows with 64 clients, from results of 100 rows and by cursor from results of 60,000 rows."""
    small, small_ms = await _page_rate(bench, rows=100)
    large, large_ms = await _page_rate(bench, rows=60_000)
    return [
        Measured("pages/s of results of 100 rows, 64 clients", f"{small:.0f}"),
        Measured("pages/s of results of 60,000 rows, by the cursor", f"{large:.0f}", ">= 1,400"),
        Measured("60,000 rows / 100 rows", f"{large / small:.2f}", ">= 0.88"),
        Measured("processor of the server for a page of both", f"{small_ms:.2f} ms, {large_ms:.2f} ms"),
    ]


async def _page_rate(bench: Bench, *, rows: int, times: int = 50) -> tuple[float, float]:
    """Return the pages per second, and the server's CPU time per page in milliseconds."""
    operations: dict[int, str] = {}
    for number in range(_CLIENTS):
        async with bench.client(number) as client:
            ended = await client.call("execute/postgresql", statement=_MIXED.format(rows=rows), limit=rows, wait=60)
            operations[number] = ended["history_uuid"]
    place = {"start_row": 0} if rows == _PAGE else {}

    async def fetch(client: Client, number: int) -> None:
        page = await client.call("fetch_result_data", operationId=operations[number], rows=_PAGE, **place)
        assert len(page["result"]["data"]) == _PAGE

    before = bench.processor_s
    rate = await _rate(bench, times, fetch)
    return rate, (bench.processor_s - before) * 1000 / (times * (_CLIENTS + 8))


async def spool(bench: Bench) -> list[Measured]:
    """Measure a million rows from PostgreSQL: stored as a result, read as JSON pages, and downloaded as CSV."""
    rows = 1_000_000
    async with bench.client() as client:
        await client.call("execute/postgresql", statement=_MIXED.format(rows=50_000), wait=60)
        raw_s = await _raw_read(bench, rows)
        before = bench.resident_mib
        async with peak_mib(bench) as peak:
            started = time.perf_counter()
            ended = await client.call("execute/postgresql", statement=_MIXED.format(rows=rows), limit=rows, wait=60)
            spool_s = time.perf_counter() - started
        assert ended["query_status"]["rows"] == rows, ended
        grown = peak.mib - before
        operation_id = ended["history_uuid"]
        page_s = await _page_all(client, operation_id, rows)
        started = time.perf_counter()
        status, size = await client.get(f"/api/v1/editor/download/{operation_id}?format=csv")
        csv_s = time.perf_counter() - started
        assert status == 200
    csv_raw_s = await asyncio.to_thread(_raw_csv, rows)
    return [
        Measured("spool 1,000,000 x 10, rate / bare asyncpg cursor", f"{raw_s / spool_s:.2f}", ">= 0.6"),
        Measured("spool 1,000,000 x 10, rows/s", f"{rows / spool_s:,.0f}"),
        Measured("spool 1,000,000 x 10, memory growth", f"{grown:.0f} MiB", "< 150 MiB"),
        Measured("page all as JSON, 10,000 a call, rows/s", f"{rows / page_s:,.0f}", ">= 250,000"),
        Measured("CSV download / pyarrow csv writer, rate", f"{csv_raw_s / csv_s:.2f}", ">= 0.5"),
        Measured("CSV download", f"{int(size) / csv_s / 2**20:.0f} MiB/s"),
    ]


async def many_users(bench: Bench) -> list[Measured]:
    """Run 500 clients for two minutes on DuckDB and PostgreSQL; each submits a statement every 2 s."""
    idle = bench.resident_mib
    checks: list[float] = []
    statements = 0
    ends_at = time.perf_counter() + 120

    async def one(number: int) -> None:
        nonlocal statements
        dialect = ("duckdb", "postgresql")[number % 2]
        async with bench.client(number) as client:
            await asyncio.sleep(random.uniform(0, 2))
            while time.perf_counter() < ends_at:
                started = time.perf_counter()
                ended = await client.call(f"execute/{dialect}", statement=f"SELECT {number} AS n")
                statements += 1
                state = "waiting"
                while state in {"waiting", "running"}:
                    await asyncio.sleep(0.1)
                    started_at = time.perf_counter()
                    seen = await client.call("check_status", operationId=ended["history_uuid"])
                    checks.append(time.perf_counter() - started_at)
                    state = seen["query_status"]["status"]
                page = await client.call("fetch_result_data", operationId=ended["history_uuid"])
                assert page["result"]["data"] == [[number]], page
                await asyncio.sleep(max(2 - (time.perf_counter() - started), 0))

    await asyncio.gather(*(one(number) for number in range(500)))
    checks.sort()
    return [
        Measured("500 clients, statements/s", f"{statements / 120:.0f}"),
        Measured("500 clients, check_status p99", f"{checks[int(len(checks) * 0.99)] * 1000:.0f} ms", "< 300 ms"),
        Measured("server process, idle", f"{idle:.0f} MiB", "< 220 MiB"),
        Measured("server process, after 500 clients", f"{bench.resident_mib:.0f} MiB", "< 400 MiB"),
    ]


async def stalls(bench: Bench) -> list[Measured]:
    """Measure the longest response time of is_alive during expensive calls, because a blocked event loop delays every
    client.
    """
    big = "SELECT '" + "x" * (9 * 2**20) + "'"
    nasty = {
        "10 MB of SQL text": [("editor/execute/duckdb", "statement=" + big)],
        "a script of 10,000 statements": [("editor/execute/duckdb", "statement=" + "SELECT 1;" * 10_000)],
        "10 MB of percent signs": [("editor/execute/duckdb", "statement=" + "%25" * (3 * 2**20))],
        "1,000,000 empty arrays in a snippet": [
            ("editor/execute/duckdb", 'statement=SELECT+1&snippet={"z":[' + "[]," * 1_000_000 + "[]]}")
        ],
        "nesting of 1,000,000": [("editor/execute/duckdb", 'snippet={"z":' + "[" * 1_000_000 + "}")],
    }
    return [
        Measured(f"longest wait of is_alive during {name}", f"{await _longest_wait(bench, calls):.0f} ms", "<= 200 ms")
        for name, calls in nasty.items()
    ]


async def _longest_wait(bench: Bench, calls: list[tuple[str, str]]) -> float:
    waits: list[float] = []

    async def request_is_alive() -> None:
        async with bench.client() as client:
            while True:
                started = time.perf_counter()
                await client.get("/desktop/debug/is_alive")
                waits.append((time.perf_counter() - started) * 1000)
                await asyncio.sleep(0.005)

    asking = asyncio.create_task(request_is_alive())
    await asyncio.sleep(0.2)
    async with bench.client() as client:
        for path, body in calls:
            await client.send(client.form_body(f"/api/v1/{path}", body.encode()))
    await asyncio.sleep(0.5)
    asking.cancel()
    return max(waits)


async def unclosed(bench: Bench) -> list[Measured]:
    """Measure the server after 10,000 statements of one user that are never closed."""
    import psutil

    process = psutil.Process(bench.server.pid)

    async def some(count: int) -> None:
        async with bench.client(0) as client:
            for _ in range(count):
                await client.call("execute/postgresql", statement="SELECT 1", wait=10)

    await some(50)
    before = (process.num_fds(), process.num_threads(), bench.resident_mib)
    started = time.perf_counter()
    await asyncio.gather(*(some(500) for _ in range(20)))
    seconds = time.perf_counter() - started
    await asyncio.sleep(3)
    after = (process.num_fds(), process.num_threads(), bench.resident_mib)
    return [
        Measured("10,000 unclosed statements, statements/s", f"{10_000 / seconds:.0f}"),
        Measured("10,000 unclosed statements, open files before, after", f"{before[0]}, {after[0]}"),
        Measured("10,000 unclosed statements, threads before, after", f"{before[1]}, {after[1]}"),
        Measured("10,000 unclosed statements, memory growth", f"{after[2] - before[2]:.0f} MiB"),
    ]


async def _rate(bench: Bench, times: int, call: Callable[[Client, int], Awaitable[object]]) -> float:
    """Return the calls per second of all clients together; each client calls with its own operation."""
    await repeated(bench, 8, times, call)
    return await repeated(bench, _CLIENTS, times, call)


async def repeated(bench: Bench, clients: int, times: int, call: Callable[[Client, int], Awaitable[object]]) -> float:
    """Return the calls per second of this many clients, each of which makes `times` calls."""

    async def repeat(number: int) -> None:
        async with bench.client(number) as client:
            for _ in range(times):
                await call(client, number)

    started = time.perf_counter()
    await asyncio.gather(*(repeat(number) for number in range(clients)))
    return clients * times / (time.perf_counter() - started)


async def full_cycle(client: Client, _number: int = 0) -> None:
    """Execute a statement, wait for it, fetch a page, and close it."""
    ended = await client.call("execute/postgresql", statement="SELECT 1")
    seen = await client.call("check_status", operationId=ended["history_uuid"], wait=10)
    assert seen["query_status"]["status"] == "available", seen
    page = await client.call("fetch_result_data", operationId=ended["history_uuid"])
    assert page["result"]["data"] == [[1]], page
    await client.call("close_statement", operationId=ended["history_uuid"])


async def _raw_read(bench: Bench, rows: int) -> float:
    """Return the seconds of a plain cursor loop, the fairest reference: same database, same rows, no processing."""
    connection = await asyncpg.connect(bench.sample_dsn)
    started = time.perf_counter()
    count = 0
    async with connection.transaction():
        cursor = await connection.cursor(_MIXED.format(rows=rows))
        while batch := await cursor.fetch(5_000):
            count += len(batch)
    seconds = time.perf_counter() - started
    assert count == rows
    await connection.close()
    return seconds


async def _page_all(client: Client, operation_id: str, rows: int) -> float:
    started = time.perf_counter()
    seen = 0
    has_more = True
    while has_more:
        status, body = await client.post(
            "/api/v1/editor/fetch_result_data", {"operationId": operation_id, "rows": 10_000, "start_row": seen}
        )
        assert status == 200
        # The body is searched instead of parsed, because parsing by the client is not part of the measurement.
        has_more = b'"has_more":true' in body[:60]
        seen += 10_000
    seconds = time.perf_counter() - started
    assert seen == rows
    assert len(json.loads(body)["result"]["data"]) == 10_000
    return seconds


def _raw_csv(rows: int) -> float:
    """Return the seconds that pyarrow takes to write a table with the same columns as CSV."""
    numbers = pa.array(range(1, rows + 1), pa.int64())
    texts = pa.array([f"item {number}" for number in range(1, rows + 1)])
    seconds = pa.array(range(rows), pa.int64()).cast(pa.timestamp("s")).cast(pa.timestamp("us"))
    table = pa.table(
        {
            "id": numbers.cast(pa.int32()),
            "big": numbers,
            "ratio": numbers.cast(pa.float64()),
            "price": numbers.cast(pa.decimal128(21, 2)),
            "label": texts,
            "code": texts,
            "flag": pa.array([number % 2 == 0 for number in range(rows)]),
            "day": seconds.cast(pa.date32(), safe=False),
            "at": seconds,
            "zoned": seconds.cast(pa.timestamp("us", "UTC")),
        }
    )
    started = time.perf_counter()
    with pa.BufferOutputStream() as sink:
        pyarrow.csv.write_csv(table, sink)
    return time.perf_counter() - started
