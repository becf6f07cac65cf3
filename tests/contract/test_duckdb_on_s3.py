"""DuckDB on a real S3 server: reads, writes, and the orphaned files of a canceled write."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.contract.engine_driving import ended, failure, operation, run
from tests.contract.store_accounts import s3_options
from tests.engines.versitygw import S3Address
from tests.fakes.statement_files import ANA, GivenFiles

from queryserver.engines.duckdb.engine import DuckdbEngine
from queryserver.engines.duckdb.limits import DuckdbResources
from queryserver.engines.protocol import EngineSession, OperationState, SessionOptions
from queryserver.files.statement_files import SessionFiles
from queryserver.files.stores.s3.storage import S3FileSystem

pytestmark = pytest.mark.engine("s3")
ROWS = 500_000


@pytest.fixture(scope="module")
async def store(s3_server: S3Address) -> AsyncIterator[S3FileSystem]:
    file_system = S3FileSystem(s3_options(s3_server))
    yield file_system
    await file_system.close()


@pytest.fixture
async def place(store: S3FileSystem, s3_server: S3Address) -> str:
    """Create a bucket for the test and return its URL."""
    bucket = f"duckdb-{uuid4().hex}"
    (s3_server.directory / bucket).mkdir()
    return f"s3a://{bucket}"


@pytest.fixture
async def files(store: S3FileSystem) -> SessionFiles:
    return GivenFiles(store).session()


@pytest.fixture
async def session(tmp_path: Path, files: SessionFiles) -> AsyncIterator[EngineSession]:
    engine = DuckdbEngine(path="own.duckdb", root=tmp_path, resources=DuckdbResources(threads=4))
    async with engine.session(ANA, SessionOptions(files=files)) as session, files.acting(ANA):
        yield session
    await engine.close()


@pytest.mark.parametrize("name", ["all.parquet", "all.csv", "all.csv.gz", "all.json"])
async def test_written_rows_are_read_back(session: EngineSession, place: str, name: str) -> None:
    made = f"SELECT range AS n, 'name ' || hash(range) AS name FROM range({ROWS})"
    await run(session, f"COPY ({made}) TO '{place}/{name}'")
    found = await run(session, f"SELECT count(*)::INT, sum(n)::BIGINT, count(DISTINCT name)::INT FROM '{place}/{name}'")
    assert found.rows == [(ROWS, ROWS * (ROWS - 1) // 2, ROWS)]


async def test_partitions_are_written_and_filtered(session: EngineSession, place: str, s3_server: S3Address) -> None:
    made = "SELECT range AS n, range % 50 AS shop FROM range(1_000_000)"
    await run(session, f"COPY ({made}) TO '{place}/shops' (FORMAT parquet, PARTITION_BY (shop))")
    assert len({one.parent.name for one in (s3_server.directory / place[6:] / "shops").rglob("*.parquet")}) == 50
    assert (await run(session, f"SELECT count(*)::INT FROM '{place}/shops/*/*.parquet' WHERE shop = 7")).cell == 20_000
    again = await failure(session, f"COPY ({made}) TO '{place}/shops' (FORMAT parquet, PARTITION_BY (shop))")
    assert "is not empty" in again.message


async def test_stopped_write_leaves_no_object_or_upload(
    session: EngineSession, store: S3FileSystem, place: str, s3_server: S3Address
) -> None:
    endless = f"COPY (SELECT range, hash(range) FROM range(1_000_000_000)) TO '{place}/big.csv'"
    client = await store._connection._open_client()  # only the driver, not the store, can list uploads
    async with operation(session, endless) as handle:
        while not (await client.list_multipart_uploads(Bucket=place[6:])).get("Uploads"):  # noqa: ASYNC110 the engine sends no event
            await asyncio.sleep(0.05)
        await session.cancel(handle)
        assert (await ended(session, handle, within_s=30)).state is OperationState.CANCELED
    assert not (await client.list_multipart_uploads(Bucket=place[6:])).get("Uploads")
    assert not [one for one in (s3_server.directory / place[6:]).rglob("*") if one.is_file()]
    assert (await run(session, "SELECT 1")).cell == 1
