"""Cells and rows above the size limit are refused by their length prefix before they are read; large chunks are split.

The server is a MariaDB.
"""

from collections.abc import AsyncGenerator

import pytest
from tests.contract.engine_driving import run
from tests.contract.mariadb_basis import CELL_LIMIT, limited_session
from tests.engines.servers import ServerAddress
from tests.refusals import raises_code

from queryserver.engines.protocol import EngineSession
from queryserver.errors.statements import RowTooLarge

pytestmark = pytest.mark.engine("mariadb")

MIB = 1024 * 1024


@pytest.fixture
async def session(mariadb: ServerAddress) -> AsyncGenerator[EngineSession]:
    async with limited_session(mariadb) as session:
        yield session


@pytest.mark.parametrize(
    ("sql", "row", "column"),
    [
        ("SELECT 1 AS a, repeat('x', 60000000) AS big", 0, "big"),
        ("SELECT seq, repeat('x', IF(seq = 7, 1048577, 1)) AS big FROM seq_0_to_99", 7, "big"),
    ],
    ids=["first", "later"],
)
async def test_huge_cell_is_refused_by_its_header(session: EngineSession, sql: str, row: int, column: str):
    with raises_code(
        "cell_too_large", match=f"in row {row} of column {column} is larger than the limit of {CELL_LIMIT} "
    ):
        await run(session, sql)


async def test_row_of_many_cells_is_refused(session: EngineSession):
    row = ", ".join(["repeat('x', 900000)"] * 10)
    with pytest.raises(RowTooLarge, match="Row 0 is larger"):
        await run(session, f"SELECT {row}")


@pytest.mark.parametrize("width", [10, 5_000, 900_000])
async def test_growing_rows_in_a_chunk_arrive_complete_and_in_order(session: EngineSession, width: int):
    count = min(20_000, 60_000_000 // width)
    sql = f"SELECT seq, repeat('x', IF(seq < {count // 4}, 3, {width})) AS t FROM seq_1_to_{count}"
    handle = await session.submit(sql)
    await session.poll(handle, wait_s=60)
    numbers: list[int] = []
    async for batch in session.batches(handle):
        assert batch.nbytes <= 6 * MIB
        numbers += batch.column("seq").to_pylist()
    assert numbers == list(range(1, count + 1))
    await session.close(handle)
    assert (await run(session, "SELECT 1")).cell == 1
