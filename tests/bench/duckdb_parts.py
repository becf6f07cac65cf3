"""DuckDB through the server compared with plain DuckDB, on the same machine in the same run."""

import asyncio
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
from tests.bench.client import Client
from tests.bench.client_parts import MIXED, ROWS
from tests.bench.plain_duckdb import StatementTimes, plain_duckdb
from tests.bench.processes import processor_s
from tests.bench.setting import Bench, Measured, bench_server

from queryserver_client import connect

MEMORY_LIMIT = "256MB"
"""The default memory limit of a server's database file; plain DuckDB gets the same limit."""
CONFIG = {"memory_limit": MEMORY_LIMIT, "threads": 2}

_TABLES = ("region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem")
_QUERY = re.compile(r"^-- Q(\d+)\n(.*?)(?=^-- Q|\Z)", re.MULTILINE | re.DOTALL)
_SLOWEST = 10
_ROUNDS = 5
_LIMIT_S = 60
"""Timeout in seconds after which a statement is canceled; the timeout then counts as the statement's time."""
_SMALL = "SELECT 1"
_PAGE = 10_000
_SMALL_TIMES, _WARM_UP = 200, 10


@dataclass(frozen=True)
class TimeComparison:
    """The shortest times of several rounds, through the server and with plain DuckDB."""

    ours_s: float
    ours_processor_s: float
    plain_s: float
    plain_processor_s: float
    is_bound: bool = False
    """Whether a statement through the server was canceled before it returned its rows. If so, the rates are upper
    bounds.
    """

    @property
    def rate(self) -> float:
        """Speed of the server relative to plain DuckDB; 1 means equally fast."""
        return self.plain_s / self.ours_s

    @property
    def processor_rate(self) -> float:
        """The same ratio for CPU time, which depends less on other load on the machine."""
        return self.plain_processor_s / self.ours_processor_s

    def __str__(self) -> str:
        return f"{'<= ' if self.is_bound else ''}{self.rate:.2f}; {self.processor_rate:.2f}"


async def compared(
    bench: Bench,
    ours: Callable[[], Awaitable[int | None]],
    plain: Callable[[], Awaitable[StatementTimes]],
    *,
    rounds: int = _ROUNDS,
) -> TimeComparison:
    """Run `ours` and `plain` alternately, after a warm-up round that does not count. Both must return the same number
    of rows, unless `ours` returns None because its statement was canceled.
    """
    ours_s, ours_processor_s, others = list[float](), list[float](), list[StatementTimes]()
    for number in range(rounds + 1):
        used, began = processor_s([bench.server.pid]), time.perf_counter()
        rows = await ours()
        taken, used = time.perf_counter() - began, processor_s([bench.server.pid]) - used
        other = await plain()
        if rows is None:
            return TimeComparison(taken, used, other.seconds, other.processor_s, is_bound=True)
        assert rows == other.rows, (rows, other)
        if number:
            ours_s.append(taken)
            ours_processor_s.append(used)
            others.append(other)
    return TimeComparison(
        min(ours_s), min(ours_processor_s), min(one.seconds for one in others), min(one.processor_s for one in others)
    )


async def tpch(folder: Path) -> list[Measured]:
    """Measure the 22 TPC-H queries at scale 1, each executed with `wait` and then read completely as pages."""
    made = await asyncio.to_thread(tpch_database, folder)
    more = {"tpch": {"interface": "duckdb", "options": {"path": "tpch.duckdb", **CONFIG}}}
    found = dict[int, TimeComparison]()
    # The server and plain DuckDB each get a copy, because DuckDB locks its file against other processes. The copy must
    # exist before the server would create an empty database.
    databases = folder / "state" / "databases"
    databases.mkdir(parents=True, mode=0o700)
    await asyncio.to_thread(shutil.copy, made, databases / "tpch.duckdb")
    async with bench_server(folder, more=more) as bench, plain_duckdb(made, CONFIG) as plain, bench.client() as client:
        for number, sql in queries().items():
            found[number] = await compared(
                bench, lambda sql=sql: paged(client, "tpch", sql), lambda sql=sql: plain.run(sql)
            )
        small = await compared(bench, lambda: paged(client, "tpch", _SMALL), lambda: plain.run(_SMALL))
    slowest = sorted(found, key=lambda number: -found[number].plain_s)
    lines = [
        Measured(
            f"TPC-H Q{number}, DuckDB by itself {found[number].plain_s * 1000:.0f} ms; rate; of processor",
            str(found[number]),
            ">= 0.9" if place < _SLOWEST else "",
        )
        for place, number in enumerate(slowest)
    ]
    ten, all_of = [found[number] for number in slowest[:_SLOWEST]], list(found.values())
    return [
        *lines,
        Measured("TPC-H, the ten slowest, lowest rate", f"{min(one.rate for one in ten):.2f}", ">= 0.9"),
        Measured("TPC-H, the ten slowest, geometric mean; of processor", _means(ten)),
        Measured("the same without the time that SELECT 1 takes", _without(small, ten)),
        Measured("TPC-H, all 22, geometric mean; of processor", _means(all_of)),
        Measured("TPC-H, all 22, seconds of ours; of DuckDB by itself", _sums(all_of)),
    ]


async def duckdb_rows(folder: Path) -> list[Measured]:
    """Measure the time to the first row of small statements, and the time to read a million rows as Arrow."""
    more = {
        "memory": {"interface": "duckdb", "options": {"path": ":memory:"}},
        "file": {"interface": "duckdb", "options": {"path": "file.duckdb", **CONFIG}},
    }
    async with bench_server(folder, more=more) as bench:
        return [*await _first_rows(bench), *await _into_arrow(bench, folder)]


async def _first_rows(bench: Bench) -> list[Measured]:
    """Measure the first row alternately with PostgreSQL, which other load on the machine slows down equally."""
    async with bench.client() as client:
        session = await client.call("create_session", session='{"type": "memory", "properties": []}')
        ways: dict[str, Callable[[], Awaitable[None]]] = {
            "postgresql": lambda: _first_row(client, "postgresql"),
            "duckdb, a session in memory": lambda: _first_row(client, "memory", session_id=session["session"]["id"]),
            "duckdb in memory, a session for each": lambda: _first_row(client, "memory"),
            "duckdb, a file": lambda: _first_row(client, "file"),
        }
        times, processor = {name: list[float]() for name in ways}, dict.fromkeys(ways, 0.0)
        for number in range(_SMALL_TIMES + _WARM_UP):
            for name, call in ways.items():
                used, began = processor_s([bench.server.pid]), time.perf_counter()
                await call()
                if number >= _WARM_UP:
                    times[name].append((time.perf_counter() - began) * 1000)
                    processor[name] += processor_s([bench.server.pid]) - used
    return [
        Measured(
            f"SELECT 1 on {name}, first row: least; median; p99; processor",
            f"{_quantiles(times[name])}; {processor[name] * 1000 / _SMALL_TIMES:.1f} ms",
        )
        for name in ways
    ]


async def _into_arrow(bench: Bench, folder: Path) -> list[Measured]:
    sql, parts = MIXED.format(rows=ROWS), list[tuple[float, float]]()
    async with (
        bench.client() as client,
        plain_duckdb(":memory:", CONFIG) as plain,
        connect(bench.server.base_url, token=bench.tokens[0]) as db,
    ):

        async def bare() -> int:
            """Execute with `wait`, then download the result and discard its bytes."""
            ended = await client.call("execute/file", statement=sql, limit=ROWS, wait=60)
            operation, rows = ended["history_uuid"], ended["query_status"]["rows"]
            status, _ = await client.get(f"/api/v1/editor/download/{operation}?format=arrow&compression=lz4")
            assert status == 200
            await client.call("close_statement", operationId=operation)
            return rows

        async def by_client() -> int:
            began = time.perf_counter()
            result = await db.query("file", sql, limit=ROWS)
            ended = time.perf_counter()
            rows = (await result.arrow()).num_rows
            parts.append((ended - began, time.perf_counter() - ended))
            await client.call("close_statement", operationId=result.operation_id)
            return rows

        table = await compared(bench, by_client, lambda: plain.run(sql, into="table"))
        file = await compared(bench, bare, lambda: plain.run(sql, into=str(folder / "plain.arrow")))
    query_s, fetch_s = (min(times) for times in zip(*parts, strict=True))
    return [
        Measured("1M x 10 into an Arrow table by the client / DuckDB's own; of processor", str(table), ">= 0.6"),
        Measured("the same, seconds of ours; of DuckDB's own", _sums([table])),
        Measured("the same, seconds of ours: to the end of the statement; to fetch", f"{query_s:.2f}; {fetch_s:.2f}"),
        Measured("1M x 10 as an Arrow stream through HTTP / DuckDB's own to a packed file", str(file), ">= 0.6"),
        Measured("the same, seconds of ours; of DuckDB's own", _sums([file])),
    ]


def tpch_database(folder: Path) -> Path:
    """Create a DuckDB file with the TPC-H tables at scale 1, 270 MB. Takes half a minute."""
    source, database = folder / "tpch", folder / "plain.duckdb"
    generator = Path(sys.executable).with_name("tpchgen-cli")
    subprocess.run([str(generator), "parquet", "-s", "1", "-q", "--output-dir", str(source)], check=True)
    with duckdb.connect(database) as connection:
        for table in _TABLES:
            connection.execute(f"CREATE TABLE {table} AS FROM '{source / table}.parquet'")
    shutil.rmtree(source)
    return database


def queries() -> dict[int, str]:
    """Return the queries in tpch.sql by their number."""
    text = Path(__file__).with_name("tpch.sql").read_text()
    return {int(number): sql.strip() for number, sql in _QUERY.findall(text)}


def _without(small: TimeComparison, found: Sequence[TimeComparison]) -> str:
    """Return the geometric mean of the rates, after subtracting the time of a small statement from both sides."""
    rates = [(one.plain_s - small.plain_s) / (one.ours_s - small.ours_s) for one in found]
    return f"{statistics.geometric_mean(rates):.2f}; SELECT 1: {small.ours_s * 1000:.1f} ms"


async def paged(client: Client, dialect: str, sql: str) -> int | None:
    """Run a statement and read all its rows as pages; return their number, or None if the statement was canceled."""
    given = {"statement": sql, "limit": 100_000, "timeout": _LIMIT_S, "wait": _LIMIT_S}
    ended = await _answer(client, f"execute/{dialect}", given)
    operation, rows, has_more = ended["history_uuid"], 0, True
    while (state := ended["query_status"]["state"]) in {"waiting", "running"}:
        ended = await _answer(client, "check_status", {"operationId": operation, "wait": _LIMIT_S})
    if state == "timed_out":
        return None
    while has_more:
        page = (await client.call("fetch_result_data", operationId=operation, start_row=rows, rows=_PAGE))["result"]
        rows, has_more = rows + len(page["data"]), page["has_more"]
    return rows


async def _answer(client: Client, call: str, fields: Mapping[str, object]) -> dict[str, Any]:
    """Make an editor call and return its body, even if its statement failed."""
    status, body = await client.post(f"/api/v1/editor/{call}", fields)
    assert status == 200, body
    return json.loads(body)


async def _first_row(client: Client, dialect: str, **fields: object) -> None:
    ended = await client.call(f"execute/{dialect}", statement="SELECT 1", wait=10, **fields)
    page = await client.call("fetch_result_data", operationId=ended["history_uuid"])
    assert page["result"]["data"] == [[1]], page


def _quantiles(times: list[float]) -> str:
    ordered = sorted(times)
    return f"{ordered[0]:.1f}; {statistics.median(ordered):.1f}; {ordered[int(len(ordered) * 0.99)]:.1f}"


def _means(found: Sequence[TimeComparison]) -> str:
    """Return the geometric means of the wall-time and CPU-time rates."""
    rates = [one.rate for one in found], [one.processor_rate for one in found]
    return "; ".join(f"{math.exp(statistics.fmean(map(math.log, one))):.2f}" for one in rates)


def _sums(found: Sequence[TimeComparison]) -> str:
    return f"{sum(one.ours_s for one in found):.2f}; {sum(one.plain_s for one in found):.2f} s"
