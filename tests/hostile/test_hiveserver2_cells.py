"""A HiveServer2 returns rows that are far too large. The statement fails with a clear error, and memory usage stays
limited.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import psutil
import pytest
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, run
from tests.engines.scripted_hs2.server import Fault, ScriptedServer
from tests.refusals import raises_code

from queryserver.engines.hiveserver2.engine import Hs2Engine
from queryserver.engines.hiveserver2.variants import IMPALA, Hs2Address, Mechanism, Member
from queryserver.errors.statements import RowTooLarge

MIB = 1024 * 1024
MAX_GROWTH_BYTES = 200 * MIB
"""The limit on the growth of this process, in which the HiveServer2 runs as well. The cell has 900 MB."""

Peers = tuple[ScriptedServer, Hs2Engine]


@pytest.fixture(params=["sasl", "nosasl", "http"])
async def peers(request: pytest.FixtureRequest) -> AsyncGenerator[Peers]:
    async with ScriptedServer(request.param).serving() as server:
        address = Hs2Address(
            (Member("127.0.0.1", server.port),),
            mechanism=Mechanism.NOSASL if request.param == "nosasl" else Mechanism.NONE,
            http_path="cliservice" if request.param == "http" else None,
        )
        engine = Hs2Engine(address, IMPALA)
        try:
            yield server, engine
        finally:
            await engine.close()


@asynccontextmanager
async def memory_watched() -> AsyncGenerator[None]:
    """On exit, check that the process has not grown by more than MAX_GROWTH_BYTES at any time."""
    process = psutil.Process()
    before = peak = process.memory_info().rss

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, process.memory_info().rss)
            await asyncio.sleep(0.005)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait({watching})
    assert peak - before < MAX_GROWTH_BYTES


async def test_cell_of_900_mb_is_refused_at_its_header_and_named(peers: Peers) -> None:
    server, engine = peers
    async with memory_watched(), engine.session(USER, NO_OPTIONS) as session:
        handle = await session.submit("SELECT 1 AS n, 'a' AS first, 'b' AS second UNION ALL SELECT 2, 'c', 'd'")
        await ended(session, handle)
        server.faults["FetchResults"] = Fault.HUGE_CELL
        with raises_code("cell_too_large", match=r"row 1 of column second .* 16777216 bytes"):
            async for _ in session.batches(handle):
                pass
    server.faults.clear()
    async with engine.session(USER, NO_OPTIONS) as session:
        assert (await run(session, "SELECT 1 AS a")).rows == [(1,)]


async def test_row_of_many_large_cells_is_refused(peers: Peers) -> None:
    """Each cell is small enough, but together they exceed twice the maximum size of a cell."""
    _, engine = peers
    columns = ", ".join(f"repeat('x', 6000000) AS c{number}" for number in range(8))
    async with engine.session(USER, NO_OPTIONS) as session:
        handle = await session.submit(f"SELECT {columns} FROM range(3)")
        await ended(session, handle)
        with pytest.raises(RowTooLarge, match=r"Row 0 .* 33554432 bytes"):
            async for _ in session.batches(handle):
                pass
        # The unread response was skipped, so the connection and session are still usable.
        await session.close(handle)
        assert (await run(session, "SELECT 1 AS a")).rows == [(1,)]


async def test_suddenly_wide_rows_arrive_in_limited_batches(peers: Peers) -> None:
    _, engine = peers
    width, count = 3_000_000, 530
    sql = f"SELECT CASE WHEN range < 500 THEN 'x' ELSE repeat('y', {width}) END AS t FROM range({count})"
    async with engine.session(USER, NO_OPTIONS) as session:
        handle = await session.submit(sql)
        await ended(session, handle)
        lengths = list[int]()
        async for batch in session.batches(handle):
            assert batch.get_total_buffer_size() < 64 * MIB
            lengths += [len(value) for value in batch.column(0).to_pylist()]
    assert lengths == [1] * 500 + [width] * (count - 500)
