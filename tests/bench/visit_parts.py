"""The load of small statements on the service database: queries, rows, WAL of each call, and the growth of tables."""

import asyncio
import re
import statistics
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import asyncpg
from tests.bench.client import Client
from tests.bench.parts import full_cycle
from tests.bench.setting import Bench, Measured, bench_server

_CYCLES = 200
_CHURN_CYCLES = 10_000
_CHURN_CLIENTS = 32
_QUIET_S = 0.03
"""Time in seconds without a statement, after which the work of a call counts as done."""
_IDLE_S = 10
_BUFFER_BYTES = 64 * 1024
_COUNTERS = """
select relname, n_tup_ins + n_tup_upd + n_tup_del as written, n_tup_upd as updated, n_tup_hot_upd as updated_in_page,
    n_live_tup as live, n_dead_tup as dead, pg_table_size(relid) as table_bytes, pg_indexes_size(relid) as index_bytes
from pg_stat_user_tables
"""


@dataclass(slots=True)
class Visits:
    """The queries that the server has sent to the service database so far."""

    statements: int = 0
    texts: Counter[str] = field(default_factory=Counter[str])

    def count(self, kind: int, body: bytes, prepared: dict[bytes, bytes], portals: dict[bytes, bytes]) -> None:
        """Count one frontend message. Prepared statements and portals belong to the connection."""
        match kind:
            case 0x50:  # Parse: the name, then the text
                name, text, _ = body.split(b"\0", 2)
                prepared[name] = text
            case 0x42:  # Bind: the portal, then the name
                portal, name, _ = body.split(b"\0", 2)
                portals[portal] = prepared.get(name, b"?")
            case 0x45:  # Execute: the portal
                self._count_text(portals.get(body.split(b"\0", 1)[0], b"?"))
            case 0x51:  # Query
                self._count_text(body.rstrip(b"\0"))
            case _:
                pass

    def _count_text(self, text: bytes) -> None:
        self.statements += 1
        self.texts[re.sub(r"\s+", " ", text.decode()).strip()[:90]] += 1


@asynccontextmanager
async def _counted(dsn: str, folder: Path, visits: Visits) -> AsyncIterator[str]:
    """Yield a DSN that leads to the same database through a socket whose traffic is counted."""
    url = urlsplit(dsn)
    options = {name: values[0] for name, values in parse_qs(url.query).items()}
    file = f".s.PGSQL.{options['port']}"
    target = str(Path(options["host"]) / file)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_unix_connection(target)
        async with asyncio.TaskGroup() as group:
            group.create_task(_count(reader, to_server, visits))
            group.create_task(_copy(from_server, writer))

    async with await asyncio.start_unix_server(serve, str(folder / file)):
        options["host"] = str(folder)
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in options.items())
        yield url._replace(query=query).geturl()


async def _count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, visits: Visits) -> None:
    prepared, portals = dict[bytes, bytes](), dict[bytes, bytes]()
    try:
        (size,) = struct.unpack("!I", start := await reader.readexactly(4))  # the start-up message has no type
        writer.write(start + await reader.readexactly(size - 4))
        while True:
            kind, size = struct.unpack("!BI", head := await reader.readexactly(5))
            body = await reader.readexactly(size - 4)
            visits.count(kind, body, prepared, portals)
            writer.write(head + body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while part := await reader.read(_BUFFER_BYTES):
            writer.write(part)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()


async def visits(folder: Path) -> list[Measured]:
    """Measure the load on the service database for each call in the life of a small statement.

    A single client makes 200 calls of each kind, one after another. The load of background work is measured on the idle
    server and subtracted.
    """
    seen = Visits()
    (folder / "counted").mkdir()
    async with (
        bench_server(folder, database=lambda dsn: _counted(dsn, folder / "counted", seen)) as bench,
        bench.client() as client,
    ):
        database = await asyncpg.connect(bench.service_dsn)
        try:
            return await _measured(_Meter(database, seen), client)
        finally:
            await database.close()


class _Meter:
    """Measures the load on the service database while calls are made."""

    def __init__(self, database: "asyncpg.Connection[Any]", seen: Visits) -> None:
        self._database = database
        self.seen = seen
        self._idle = (0.0, 0.0)
        """Queries and bytes of WAL in a second without calls."""

    async def measure_idle(self) -> list[Measured]:
        await asyncio.sleep(2)
        loads = [await self._load()]
        for _ in range(_IDLE_S):
            await asyncio.sleep(1)
            loads.append(await self._load())
        # The median, because a checkpoint or autovacuum in one of the seconds writes more WAL than all calls.
        wal = statistics.median(after[1] - before[1] for before, after in pairwise(loads))
        self._idle = (loads[-1][0] - loads[0][0]) / _IDLE_S, wal
        return [Measured("idle, per second: queries; WAL", f"{self._idle[0]:.1f}; {wal:.0f} B")]

    async def measure(self, name: str, call: Callable[[int], Awaitable[Any]]) -> list[Measured]:
        """Make 200 calls and return the load of one."""
        now = asyncio.get_running_loop().time
        rows = await table_counters(self._database)
        before, started = await self._load(), now()
        self.seen.texts.clear()
        for number in range(_CYCLES):
            await call(number)
        await self._quiet()
        after, seconds = await self._load(), now() - started
        texts = self.seen.texts.copy()
        queries, wal = (
            (end - start - seconds * idle) / _CYCLES for start, end, idle in zip(before, after, self._idle, strict=True)
        )
        await asyncio.sleep(11)  # connections that became idle report their counters after ten seconds
        changes = [
            f"{count / _CYCLES:.1f} {table} ({counters['updated_in_page'] - rows[table]['updated_in_page']} HOT)"
            for table, counters in (await table_counters(self._database)).items()
            if (count := counters["written"] - rows[table]["written"]) >= _CYCLES / 2
        ]
        return [
            Measured(f"{name}: queries", f"{queries:.2f}"),
            Measured(f"{name}: WAL", f"{wal:.0f} B"),
            Measured(f"{name}: rows written", ", ".join(changes) or "0"),
            *(
                Measured(f"  {text}", f"{count / _CYCLES:.2f}")
                for text, count in texts.most_common()
                if count >= _CYCLES / 2
            ),
        ]

    async def _load(self) -> tuple[float, float]:
        """Return the queries and bytes of WAL so far."""
        wal = await self._database.fetchval("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        return self.seen.statements, float(wal)

    async def _quiet(self) -> None:
        """Wait until the database receives no more queries."""
        count = -1
        while count != self.seen.statements:
            count = self.seen.statements
            await asyncio.sleep(_QUIET_S)


async def table_counters(database: "asyncpg.Connection[Any]") -> dict[str, asyncpg.Record]:
    """Return rows written, updates and sizes so far by table, including those of the server's background work."""
    await database.execute("select pg_stat_clear_snapshot()")
    return {row["relname"]: row for row in await database.fetch(_COUNTERS)}


async def _measured(meter: _Meter, client: Client) -> list[Measured]:
    async def execute(number: int) -> None:
        ended = await client.call("execute/duckdb", statement="SELECT 1", wait=10)
        operations[number] = ended["history_uuid"]

    async def page(number: int) -> None:
        read = await client.call("fetch_result_data", operationId=operations[number])
        assert read["result"]["data"] == [[1]], read

    async def close(number: int) -> None:
        await client.call("close_statement", operationId=operations[number])

    async def one_call(number: int) -> None:
        ended = await client.call("execute/duckdb", statement="SELECT 1", wait=10, rows=1)
        operations[number] = ended["history_uuid"]
        await close(number)

    operations: dict[int, str] = {}
    for number in range(20):
        await one_call(number)
    return [
        *await meter.measure_idle(),
        *await meter.measure("execute and run", execute),
        *await meter.measure("status", lambda number: client.call("check_status", operationId=operations[number])),
        *await meter.measure("page", page),
        *await meter.measure("close", close),
        *await meter.measure("one call: execute with wait and rows, then close", one_call),
    ]


async def churn(bench: Bench) -> list[Measured]:
    """Measure how the tables of statements grow in 10,000 full cycles: updates within a page (HOT) and sizes."""
    database = await asyncpg.connect(bench.service_dsn)
    try:
        before = await table_counters(database)
        remaining = iter(range(_CHURN_CYCLES))

        async def cycles(number: int) -> None:
            async with bench.client(number) as client:
                for _ in remaining:
                    await full_cycle(client)

        async with asyncio.TaskGroup() as group:
            for number in range(_CHURN_CLIENTS):
                group.create_task(cycles(number))
        await asyncio.sleep(12)  # connections that became idle report their counters after ten seconds
        measured = list[Measured]()
        for table, counters in (await table_counters(database)).items():
            if (written := counters["written"] - before[table]["written"]) < _CHURN_CYCLES / 10:
                continue
            updated = counters["updated"] - before[table]["updated"]
            in_page = counters["updated_in_page"] - before[table]["updated_in_page"]
            measured += [
                Measured(f"{table}: rows written per cycle", f"{written / _CHURN_CYCLES:.2f}"),
                Measured(f"{table}: updates within their page (HOT)", f"{in_page / max(updated, 1):.2f}"),
                Measured(f"{table}: rows; dead", f"{counters['live']}; {counters['dead']}"),
                Measured(
                    f"{table}: size of table; of indexes, MiB",
                    f"{counters['table_bytes'] / 2**20:.1f}; {counters['index_bytes'] / 2**20:.1f}",
                ),
            ]
        return measured
    finally:
        await database.close()
