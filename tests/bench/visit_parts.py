"""A small statement's load on the service database: statements, round trips, rows written and WAL for each call."""

import asyncio
import re
import struct
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import asyncpg
from tests.bench.client import Client
from tests.bench.setting import Measured, bench_server

_CYCLES = 200
_QUIET_S = 0.03
"""Time in seconds without a statement, after which the work of a call counts as done."""
_IDLE_S = 10.0
_BUFFER_BYTES = 64 * 1024
_TABLE_COUNTERS = "n_tup_ins + n_tup_upd + n_tup_del"


@dataclass(slots=True)
class Visits:
    """The messages that the server has sent to the service database so far."""

    statements: int = 0
    round_trips: int = 0
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
                self.round_trips += 1
            case 0x53:  # Sync
                self.round_trips += 1
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


@dataclass(frozen=True, slots=True)
class _Cost:
    statements: float = 0
    round_trips: float = 0
    wal_bytes: float = 0

    def __sub__(self, other: "_Cost") -> "_Cost":
        return _Cost(
            self.statements - other.statements, self.round_trips - other.round_trips, self.wal_bytes - other.wal_bytes
        )

    def __add__(self, other: "_Cost") -> "_Cost":
        return self - _Cost(-other.statements, -other.round_trips, -other.wal_bytes)

    def per(self, times: float) -> "_Cost":
        return _Cost(self.statements / times, self.round_trips / times, self.wal_bytes / times)


async def visits(folder: Path) -> list[Measured]:
    """Measure the load on the service database for each call in the life of a small statement.

    A single client makes one call after another. The load of background work is measured on the idle server and
    subtracted.
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
    """A meter that attributes the load on the service database to steps."""

    def __init__(self, database: "asyncpg.Connection[Any]", seen: Visits) -> None:
        self._database = database
        self.seen = seen
        self.steps = dict[str, _Cost]()
        self.seconds = defaultdict[str, float](float)

    async def state(self) -> _Cost:
        wal = await self._database.fetchval("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        return _Cost(self.seen.statements, self.seen.round_trips, float(wal))

    async def step(self, name: str, call: Awaitable[Any]) -> Any:
        """Await the call and wait until the database receives no more statements; add the load of this time to the
        step.
        """
        before, started = await self.state(), asyncio.get_running_loop().time()
        answer = await call
        await self._quiet()
        self.steps[name] = self.steps.get(name, _Cost()) + (await self.state() - before)
        self.seconds[name] += asyncio.get_running_loop().time() - started
        return answer

    async def _quiet(self) -> None:
        count = -1
        while count != self.seen.statements:
            count = self.seen.statements
            await asyncio.sleep(_QUIET_S)

    async def rows(self) -> dict[str, int]:
        """Return the rows written so far by table, including those of the server's background work."""
        await self._database.execute("select pg_stat_clear_snapshot()")
        found = await self._database.fetch(f"select relname, {_TABLE_COUNTERS} as rows from pg_stat_user_tables")
        return {row["relname"]: row["rows"] for row in found}


async def _measured(meter: _Meter, client: Client) -> list[Measured]:
    for _ in range(20):
        await _small_cycle(client, lambda _name, call: call)
    await asyncio.sleep(2)
    before = await meter.state()
    await asyncio.sleep(_IDLE_S)
    idle = (await meter.state() - before).per(_IDLE_S)
    meter.seen.texts.clear()
    rows = await meter.rows()
    for _ in range(_CYCLES):
        await _small_cycle(client, meter.step)
    await asyncio.sleep(2)  # sessions report their counters once a second
    written = {table: count - rows.get(table, 0) for table, count in (await meter.rows()).items()}
    texts = meter.seen.texts.copy()
    for _ in range(_CYCLES):
        await meter.step("one call: execute with wait and rows, then close", _one_call(client))
    return [
        *_report(meter, idle),
        *(
            Measured(f"rows written per cycle: {table}", f"{count / _CYCLES:.2f}")
            for table, count in sorted(written.items())
            if count >= _CYCLES / 10
        ),
        *(
            Measured(f"statement: {text}", f"{count / _CYCLES:.2f}")
            for text, count in texts.most_common()
            if count >= _CYCLES / 10
        ),
    ]


def _report(meter: _Meter, idle: _Cost) -> list[Measured]:
    measured, total = list[Measured](), _Cost()
    for name, cost in meter.steps.items():
        seconds = meter.seconds[name]
        one = (cost - idle.per(1 / seconds)).per(_CYCLES)
        total = total + one if not name.startswith("one call") else total
        measured += _figures(name, one)
    return [*_figures("whole cycle", total), *measured, *_figures("idle, per second", idle)]


def _figures(name: str, cost: _Cost) -> list[Measured]:
    return [
        Measured(f"{name}: statements", f"{cost.statements:.2f}"),
        Measured(f"{name}: round trips", f"{cost.round_trips:.2f}"),
        Measured(f"{name}: WAL", f"{cost.wal_bytes:.0f} B"),
    ]


async def _small_cycle(client: Client, step: Callable[[str, Awaitable[Any]], Awaitable[Any]]) -> None:
    started = await step("execute and run", client.call("execute/duckdb", statement="SELECT 1"))
    operation = started["history_uuid"]
    status = await step("status", client.call("check_status", operationId=operation, wait=10))
    assert status["query_status"]["status"] == "available", status
    page = await step("page", client.call("fetch_result_data", operationId=operation))
    assert page["result"]["data"] == [[1]], page
    await step("close", client.call("close_statement", operationId=operation))


async def _one_call(client: Client) -> None:
    ended = await client.call("execute/duckdb", statement="SELECT 1", wait=10, rows=1)
    await client.call("close_statement", operationId=ended["history_uuid"])
