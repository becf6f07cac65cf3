"""The Python client in `clients/python`: reading large results as Arrow, and the memory that streaming needs."""

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pyarrow as pa
from pyarrow import flight
from tests.bench.flight_server import flight_server
from tests.bench.setting import Bench, Measured

from queryserver_client import Connection, Result, connect

ROWS = 1_000_000
_TIMES = 9
MIXED = """SELECT i AS id, i * 3 AS big, i / 7.0::DOUBLE AS ratio, (i % 1000)::DECIMAL(10, 2) AS price,
i % 2 = 0 AS flag, 'item ' || i AS label, md5(i::VARCHAR) AS code, DATE '2020-01-01' + (i % 1000)::INTEGER AS day,
TIMESTAMP '2020-01-01' + to_seconds(i) AS at, (i % 100)::SMALLINT AS small FROM range({rows}) AS r(i)"""


async def client(bench: Bench) -> list[Measured]:
    """Measure reading a result of a million rows of ten columns, compared with the same rows in Arrow files on disk."""
    packed, plain = bench.data_dir / "packed.arrow", bench.data_dir / "plain.arrow"
    async with connect(bench.server.base_url, token=bench.tokens[0]) as db:
        result = await db.query("duckdb", MIXED.format(rows=ROWS), limit=ROWS)
        grown = await _growth(result)
        table = await result.arrow()
        mib = table.nbytes / 2**20
        for file, compression in ((packed, "lz4"), (plain, None)):
            options = pa.ipc.IpcWriteOptions(compression=compression)
            with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema, options=options) as writer:
                writer.write_table(table)
        del table
        async with flight_server(plain) as flights:
            files, flight_s, arrow_s, own_s, served_s = await _alternating(bench, result, (packed, plain), flights)
        batches_s, _ = await _timed(lambda: _streamed(result))
        bare_s, _ = await _timed(lambda: _bare(bench, result))
        rows_s, _ = await _timed(lambda: _counted(result), times=1)
        small = [await _small(db) for _ in range(200)]

    def against(name: str, file: Path, *, is_cold: bool, wanted: str = "") -> Measured:
        return Measured(f"client: into Arrow / {name}", f"{files[file, is_cold] / arrow_s:.2f}", wanted)

    return [
        Measured(f"client: 1M rows x 10 columns into Arrow, {mib:.0f} MiB", f"{mib / arrow_s:.0f} MiB/s"),
        against("the same file read from the disk", packed, is_cold=True, wanted=">= 0.5"),
        against("the same file read from the memory of the system", packed, is_cold=False, wanted=">= 0.8"),
        against("the rows in a file that is not packed, read from the disk", plain, is_cold=True),
        against("that file read from the memory of the system", plain, is_cold=False),
        Measured("client: into Arrow / the same table by Flight", f"{flight_s / arrow_s:.2f}", ">= 0.5"),
        Measured("client: the same bytes by a bare socket", f"{mib / bare_s:.0f} MiB/s"),
        Measured("client: processor of client / of server for it", f"{own_s:.2f} / {served_s:.2f} s"),
        Measured("client: the same as batches", f"{mib / batches_s:.0f} MiB/s"),
        Measured("client: memory that streaming adds", f"{grown:.0f} MiB", "<= 50 MiB"),
        Measured("client: the same as rows of Python", f"{ROWS / rows_s:.0f} rows/s"),
        Measured("client: SELECT 1, query and rows, median", f"{statistics.median(small) * 1000:.1f} ms"),
    ]


def _read(file: Path, *, is_cold: bool) -> float:
    """Return the seconds to read a file's rows into a table. If `is_cold` is set, drop the file from the page cache
    first.
    """
    if is_cold:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    began = time.perf_counter()
    with pa.OSFile(str(file)) as source:
        assert pa.ipc.open_stream(source).read_all().num_rows == ROWS
    return time.perf_counter() - began


async def _alternating(
    bench: Bench, result: Result, files: Sequence[Path], flights: flight.FlightClient
) -> tuple[dict[tuple[Path, bool], float], float, float, float, float]:
    """Read the rows in turn from each file, cold or not, by Flight, and by the client.

    Return the medians: the seconds for each file; by Flight; by the client; the CPU seconds of the client; of its
    server.
    """
    cases = [(file, is_cold) for file in files for is_cold in (True, False)]
    times = {case: list[float]() for case in cases}
    by_flight, by_client, own, served = list[float](), list[float](), list[float](), list[float]()
    for _ in range(_TIMES):
        for file, is_cold in cases:
            times[file, is_cold].append(_read(file, is_cold=is_cold))
        began = time.perf_counter()
        assert flights.do_get(flight.Ticket(b"")).read_all().num_rows == ROWS
        by_flight.append(time.perf_counter() - began)
        before = bench.processor_s
        wall_s, processor_s = await _timed(result.arrow, times=1)
        by_client.append(wall_s)
        own.append(processor_s)
        served.append(bench.processor_s - before)
    files_s = {case: statistics.median(found) for case, found in times.items()}
    flight_s, client_s, own_s, served_s = map(statistics.median, (by_flight, by_client, own, served))
    return files_s, flight_s, client_s, own_s, served_s


async def _timed(work: Callable[[], Awaitable[object]], times: int = _TIMES) -> tuple[float, float]:
    """Return the median wall time and the median CPU time of this process, in seconds."""
    walls, processors = list[float](), list[float]()
    for _ in range(times):
        used, began = time.process_time(), time.perf_counter()
        await work()
        walls.append(time.perf_counter() - began)
        processors.append(time.process_time() - used)
    return statistics.median(walls), statistics.median(processors)


async def _streamed(result: Result) -> None:
    assert sum([batch.num_rows async for batch in result.batches()]) == ROWS


async def _bare(bench: Bench, result: Result) -> None:
    """Download the same result and discard its bytes, which shows the server's upper limit."""
    address = urlsplit(bench.server.base_url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=2**20)
    path = f"/api/v1/editor/download/{result.operation_id}?format=arrow&compression=lz4"
    head = f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n"
    writer.write(f"{head}Authorization: Bearer {bench.tokens[0]}\r\n\r\n".encode())
    read = 0
    while chunk := await reader.read(2**20):
        read += len(chunk)
    writer.close()
    assert read > 30 * 2**20


async def _counted(result: Result) -> None:
    assert sum([len(page) async for page in result.pages()]) == ROWS


async def _growth(result: Result) -> float:
    """Return by how many MiB memory grows while the result is read in batches. Must be measured before other reads."""
    before, peak = psutil.Process().memory_info().rss, 0
    async for _ in result.batches():
        peak = max(peak, psutil.Process().memory_info().rss)
    return (peak - before) / 2**20


async def _small(db: Connection) -> float:
    began = time.perf_counter()
    await (await db.query("duckdb", "SELECT 1")).rows()
    return time.perf_counter() - began
