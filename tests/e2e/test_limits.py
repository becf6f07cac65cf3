"""Limits on a whole server: time, bytes, memory, slots, and effects on other users."""

import asyncio
import hashlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import psutil
import pytest
from tests.e2e.installation import Installation, Node, at_work, eventually, installed, query
from tests.fixtures.processes import command_of
from tests.timing import at_best, soon

from queryserver.platform.embedded.postgres import EmbeddedPostgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MIB = 1024 * 1024

Watcher = Callable[[str, str], Awaitable[bool]]

LONG = {
    "postgresql": "SELECT pg_sleep(300), '{marker}'",
    "duckdb": """SELECT count(*) AS c, '{marker}' FROM range(100000) AS a, range(10000000) AS b
                 WHERE a.range % 7 = b.range % 11""",
    "sqlite": """WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 10000000000)
                 SELECT count(*), '{marker}' FROM c""",
}


@pytest.fixture(scope="module")
async def place(
    postgres: EmbeddedPostgres, tcp_open: EmbeddedPostgres, migrated_template: str, tmp_path_factory
) -> AsyncIterator[Installation]:
    """The installation that all tests in this file share."""
    async with installed(postgres, migrated_template, tmp_path_factory.mktemp("limits")) as place:
        yield place


@pytest.fixture(scope="module")
async def node(place: Installation) -> AsyncIterator[Node]:
    """A server with a low limit on the size of results. All tests in this file share it."""
    # The server's own background work must not be mistaken for an orphaned statement.
    settings = {"editor__result_max_bytes": str(200 * MIB), "metadata__index__enabled": "false"}
    # The server waits so long that it never abandons a canceled statement before its engine has stopped it.
    async with place.server(**settings, editor__cancel_wait_s="60") as node:
        yield node


@pytest.fixture
async def watcher(postgres: EmbeddedPostgres, node: Node) -> Watcher:
    """A function that returns whether an engine is still working on the statement with the given marker."""
    server = psutil.Process(node.process.pid)

    async def is_at_work(dialect: str, marker: str) -> bool:
        if dialect == "postgresql":
            return await at_work(postgres.admin_dsn(), marker) > 0
        # These engines compute in child processes of the server, so an orphaned statement uses CPU time there. A thread
        # of this test computes in parallel at a higher priority. It measures how much CPU time is available meanwhile.
        before = spent_by_engines(server)
        ours = await asyncio.to_thread(compute, 0.5)
        return spent_by_engines(server) - before > ours / 20

    return is_at_work


@pytest.mark.item(10)
async def test_execute_of_long_statement_returns_immediately(node: Node) -> None:
    operation = await soon(lambda: node.submit("postgresql", "SELECT pg_sleep(12)"), within_s=1)
    assert await node.state(operation) in {"waiting", "running"}
    await node.until(operation, lambda status: status["state"] == "running")
    assert await node.state(operation, wait=60) == "available"


@pytest.mark.item(12)
async def test_short_wait_returns_running_statement(node: Node) -> None:
    async def wait() -> tuple[float, None]:
        began = time.monotonic()
        body = await node.post_ok("editor/execute/postgresql", statement="SELECT pg_sleep(60)", wait=1.5)
        took_s = time.monotonic() - began
        assert took_s > 1.4
        to_cancel.append(body["history_uuid"])
        state = body["query_status"]["state"]
        assert state in {"waiting", "running"}
        # If the statement has not even started, it was delayed by other load.
        return took_s if state == "running" else math.inf, None

    to_cancel: list[str] = []
    await at_best(wait, below_s=2.5)
    for operation in to_cancel:
        await node.post_ok("editor/cancel_statement", operationId=operation)


@pytest.mark.item(11)
async def test_twenty_long_statements_do_not_slow_down_others(node: Node) -> None:
    crowd = (("ana", "postgresql", 8), ("bob", "postgresql", 8), ("bob", "sqlite", 2), ("ana", "duckdb", 2))
    long = [
        (user, await node.submit(dialect, LONG[dialect].format(marker=f"twenty {number}"), user=user))
        for user, dialect, many in crowd
        for number in range(many)
    ]
    mine = await node.submit("sqlite", "SELECT 1", user="eve")

    async def slowest_of_many() -> tuple[float, None]:
        slowest = 0.0
        for _ in range(20):
            for call in (
                node.status(mine, user="eve"),
                node.http.get("/api/v1/editor/get_history", headers=node.headers("eve")),
                node.post_ok("editor/get_logs", user="eve", operationId=mine),
                node.submit("sqlite", "SELECT 2", user="eve"),
            ):
                began = time.monotonic()
                await call
                slowest = max(slowest, time.monotonic() - began)
        return slowest, None

    try:
        await at_best(slowest_of_many, below_s=1)
        assert await node.value("sqlite", "SELECT 3", user="eve") == 3
    finally:
        for user, operation in long:
            await node.post_ok("editor/close_statement", user=user, operationId=operation)
    for user, operation in long:
        assert await node.state(operation, user=user, wait=30) == "canceled"


@pytest.mark.item(35)
@pytest.mark.parametrize("dialect", LONG)
async def test_time_limit_stops_engine(node: Node, watcher, dialect: str) -> None:
    marker = f"time limit {dialect}"
    operation = await node.submit(dialect, LONG[dialect].format(marker=marker), timeout=2)
    body = await node.status(operation, wait=15)
    assert (body["status"], body["code"]) == (-4, "statement_timeout")
    assert (body["query_status"]["state"], body["query_status"]["status"]) == ("timed_out", "failed")
    history = await node.http.get("/api/v1/editor/get_history", headers=node.headers())
    (entry,) = [one for one in history.json()["history"] if one["uuid"] == operation]
    assert (entry["data"]["status"], entry["data"]["state"]) == ("failed", "timed_out")
    assert await is_quiet(watcher, dialect, marker)


@pytest.mark.item(36)
@pytest.mark.item(39)
@pytest.mark.parametrize("call", ["cancel_statement", "close_statement"])
@pytest.mark.parametrize("dialect", LONG)
async def test_canceling_running_statement_stops_engine(node: Node, watcher, dialect: str, call: str) -> None:
    marker = f"{call} {dialect}"
    operation = await node.submit(dialect, LONG[dialect].format(marker=marker))
    await node.until(operation, lambda status: status["state"] == "running")
    # The engine starts to work shortly after the state has become running.
    await eventually(lambda: watcher(dialect, marker))
    answer = await node.post_ok(f"editor/{call}", operationId=operation)
    assert (answer["status"], answer["result"]["status"]) == (0, 0)
    body = await node.status(operation, wait=30)
    assert (body["status"], body["code"]) == (1, "canceled")
    assert body["query_status"]["state"] == "canceled"
    assert await is_quiet(watcher, dialect, marker)
    assert await node.value(dialect, "SELECT 1") == 1


@pytest.mark.item(34)
async def test_memory_stays_flat_while_large_result_is_spooled_and_downloaded(node: Node) -> None:
    server = psutil.Process(node.process.pid)
    wide = "SELECT n, repeat(md5(n::text), 32) FROM generate_series(1, {rows}) AS n"
    await node.file(await node.finished("postgresql", wide.format(rows=20_000), limit=20_000))
    async with peak_of(server) as peak:
        operation = await node.submit("postgresql", wide.format(rows=400_000), limit=1_000_000)
        body = await node.status(operation, wait=60)
        assert (body["query_status"]["state"], body["query_status"]["truncated"]) == ("available", True)
        received = 0
        path = f"/api/v1/editor/download/{operation}?allow_truncated=true"
        headers = {**node.headers(), "Accept-Encoding": "identity"}
        async with node.http.stream("GET", path, headers=headers) as response:
            assert response.headers["X-Result-Truncated-Reason"] == "byte_limit"
            async for piece in response.aiter_raw():
                received += len(piece)
    assert received > 190 * MIB
    assert peak.grown < 150 * MIB
    page = await node.page(operation)
    assert (page["truncated"], page["truncated_reason"]) == (True, "byte_limit")
    await node.post_ok("editor/close_statement", operationId=operation)


async def test_unclosed_statements_leave_only_their_spool(place: Installation, node: Node) -> None:
    server = psutil.Process(node.process.pid)
    for _ in range(2):
        await many(node, 40)
    before = held_by(server)
    await many(node, 300)
    await asyncio.sleep(1)
    after = held_by(server)
    for what, number in after.items():
        # Pools may grow slightly over time. A leak in every twentieth statement would exceed this limit.
        assert number < before[what] + 15, what
    started = await node.submit("postgresql", "SELECT 1; SELECT 2", user="eve")
    assert await node.state(started, user="eve", wait=30) == "available"


async def test_abandoned_scripts_hold_few_connections(
    place: Installation, node: Node, postgres: EmbeddedPostgres
) -> None:
    for number in range(30):
        await node.finished("postgresql", f"SELECT {number}; SELECT 2", user="eve")
    name = place.users_dsn.rpartition("/")[2]
    held = await query(postgres.admin_dsn(), "SELECT count(*) FROM pg_stat_activity WHERE datname = $1", name)
    assert held < 30


async def test_huge_scripts_do_not_block_other_users(node: Node) -> None:
    ten_mb = "SELECT '" + "x;" * (5 * MIB - 10) + "'"
    many_statements = "SELECT 1;\n" * 10_000

    async def gap_at_huge_scripts() -> tuple[float, None]:
        async with longest_gap(node) as gap:
            for script in (ten_mb, many_statements):
                for dialect in ("postgresql", "sqlite"):
                    answer = await node.execute(dialect, script, user="eve")
                    assert answer.json()["handle"]["statements_count"] == (1 if script is ten_mb else 10_000)
            too_large = await node.execute("postgresql", "x" * (10 * MIB + 1), user="eve")
            assert (too_large.status_code, too_large.json()["code"]) == (413, "payload_too_large")
        return gap.seconds, None

    await at_best(gap_at_huge_scripts, below_s=1)


@pytest.mark.item(50)
@pytest.mark.parametrize("dialect", LONG)
async def test_temporary_table_is_visible_only_in_its_script(node: Node, dialect: str) -> None:
    script = "CREATE TEMPORARY TABLE mine (n INTEGER); INSERT INTO mine VALUES (8); SELECT n FROM mine"
    operation = await node.finished(dialect, script)
    for _ in range(2):
        body = await node.post_ok(f"editor/execute/{dialect}", operationId=operation, wait=30)
        operation = body["history_uuid"]
    assert (await node.page(operation))["data"] == [[8]]
    unrelated = await node.submit(dialect, "SELECT n FROM mine")
    assert (await node.status(unrelated, wait=30))["code"] == "engine_error"


@pytest.mark.item(50)
async def test_setting_applies_only_in_its_script(node: Node) -> None:
    operation = await node.finished("postgresql", "SET work_mem = '7MB'; SHOW work_mem")
    body = await node.post_ok("editor/execute/postgresql", operationId=operation, wait=30)
    assert (await node.page(body["history_uuid"]))["data"] == [["7MB"]]
    assert await node.value("postgresql", "SHOW work_mem") != "7MB"


async def is_quiet(watcher: Watcher, dialect: str, marker: str) -> bool:
    """Return whether the engine has stopped working on the statement.

    The check is repeated, because an orphaned statement keeps working, whereas the server's other work is brief.
    """
    for _ in range(3):
        if not await watcher(dialect, marker):
            return True
    return False


def spent_by_engines(server: psutil.Process) -> float:
    """Return the CPU seconds that the server's processes for local databases have used."""
    spent = 0.0
    for child in server.children():
        with suppress(psutil.NoSuchProcess):
            if ".database import main" in command_of(child):
                times = child.cpu_times()
                spent += times.user + times.system
    return spent


def compute(processor_s: float) -> float:
    """Hash bytes until this thread has used the given CPU time in seconds; return the time that it has used."""
    began, block = time.thread_time(), bytes(256 * 1024)
    while (spent := time.thread_time() - began) < processor_s:
        hashlib.sha256(block).digest()  # hashing releases the interpreter lock
    return spent


async def many(node: Node, number: int) -> None:
    """Run this many statements to completion, ten of them concurrently, without closing them."""

    async def one(place: int) -> None:
        dialect = ("postgresql", "sqlite", "duckdb")[place % 3]
        rows = 3 if place % 5 else 2_000
        generate = {
            "postgresql": f"SELECT n, md5(n::text) FROM generate_series(1, {rows}) n",
            "duckdb": f"SELECT range, md5(range::VARCHAR) FROM range({rows})",
            "sqlite": f"""WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {rows})
                          SELECT n, hex(randomblob(16)) FROM c""",
        }
        await node.finished(dialect, generate[dialect])

    for begin in range(0, number, 10):
        await asyncio.gather(*(one(place) for place in range(begin, begin + 10)))


def held_by(process: psutil.Process) -> dict[str, int]:
    """Return the numbers of threads, files, connections and child processes that a process holds."""
    return {
        "threads": process.num_threads(),
        "files": process.num_fds(),
        "connections": len(process.net_connections("all")),
        "children": len(process.children(recursive=True)),
    }


class Peak:
    """A process's peak memory, compared with its memory at the start."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._first = self._peak = process.memory_info().rss

    def look(self) -> None:
        self._peak = max(self._peak, self._process.memory_info().rss)

    @property
    def grown(self) -> int:
        return self._peak - self._first


@asynccontextmanager
async def peak_of(process: psutil.Process) -> AsyncIterator[Peak]:
    """Sample a process's memory until the context exits; yield its peak."""
    peak = Peak(process)

    async def look() -> None:
        while True:
            peak.look()
            await asyncio.sleep(0.05)

    looking = asyncio.create_task(look())
    try:
        yield peak
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        peak.look()


class Gap:
    """The longest time in seconds that the server took to respond."""

    seconds = 0.0


@asynccontextmanager
async def longest_gap(node: Node) -> AsyncIterator[Gap]:
    """Call the server every 20 ms until the context exits; yield the longest response time."""
    gap = Gap()

    async def probe() -> None:
        while True:
            began = time.monotonic()
            assert (await node.http.get("/desktop/debug/is_alive")).status_code == 200
            gap.seconds = max(gap.seconds, time.monotonic() - began)
            await asyncio.sleep(0.02)

    asking = asyncio.create_task(probe())
    try:
        yield gap
        await asyncio.sleep(0.1)
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
