"""Statements that write to DuckDB and SQLite files are stopped at the file quota and at the disk floor."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.contract.engine_contract import NO_OPTIONS, USER
from tests.contract.engine_driving import failure, operation, run, started

from queryserver.engines.blocking_drivers import ThreadedSessions
from queryserver.engines.duckdb.connection import DuckdbConnection
from queryserver.engines.duckdb.database import DuckdbDatabase
from queryserver.engines.duckdb.limits import DuckdbLimits
from queryserver.engines.protocol import EngineSession, SessionOptions
from queryserver.engines.sqlite import TEMPORARY_DIRECTORY
from queryserver.engines.sqlite.connection import SqliteConnection, temporary_bytes
from queryserver.engines.sqlite.database import SqliteDatabase
from queryserver.engines.storage_watch import StorageLimits, StorageWatch
from queryserver.identity.model import User
from queryserver.platform.machine_limits import NO_FLOOR, DiskFloor

MIB = 1024 * 1024
QUOTA, ROOM = 32 * MIB, 48 * MIB

ROWS = {
    "duckdb": "SELECT uuid()::VARCHAR || uuid()::VARCHAR AS a FROM range(2000000000)",
    "sqlite": """
        WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 2000000000)
        SELECT n, hex(randomblob(500)) AS a FROM r
    """,
}  # fmt: skip


class Usage(NamedTuple):
    total: int
    used: int
    free: int


class SmallDisk:
    """A simulated disk that has `ROOM` free bytes above the floor while the directory is empty."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.other_bytes = 0
        """The number of bytes that other programs have written."""

    def usage(self, _: Path) -> Usage:
        files = (file for file in self.directory.rglob("*") if file.is_file())
        taken = sum(file.stat().st_blocks * 512 for file in files) + self.other_bytes
        taken += temporary_bytes(self.directory / TEMPORARY_DIRECTORY)
        return Usage(10 * ROOM, taken, 2 * ROOM - taken)

    @property
    def floor(self) -> DiskFloor:
        return DiskFloor(min_bytes=ROOM, usage=self.usage)


class Here:
    """A database that runs in threads of the test process, because the simulated disk exists only in this process."""

    def __init__(self, dialect: str, root: Path, *, floor: DiskFloor, quota_bytes: int) -> None:
        self._sessions = ThreadedSessions(dialect)
        storage = StorageLimits(quota_bytes=quota_bytes, floor=floor)
        limits = DuckdbLimits(temporary_max_bytes=QUOTA, storage=storage)
        file = root / f"own.{dialect}"
        self._open: Callable[[], DuckdbDatabase | SqliteDatabase] = (
            partial(DuckdbDatabase, root, file, {}, read_only=False, limits=limits)
            if dialect == "duckdb"
            else partial(
                SqliteDatabase,
                root,
                file,
                read_only=False,
                busy_timeout_s=5.0,
                cell_max_bytes=limits.cell_max_bytes,
                storage=storage,
            )
        )
        self._database: DuckdbDatabase | SqliteDatabase | None = None

    def session(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[EngineSession]:
        return self._sessions.session(partial(self._connect, options), user_id=user.id)

    async def close(self) -> None:
        await self._sessions.close()
        if isinstance(self._database, DuckdbDatabase):
            self._database.close()

    def _connect(self, options: SessionOptions) -> DuckdbConnection | SqliteConnection:
        self._database = self._database or self._open()
        if isinstance(self._database, DuckdbDatabase):
            return self._database.connect(options, is_private=False)
        return self._database.connect()


def new_engine(dialect: str, root: Path, *, floor: DiskFloor = NO_FLOOR, quota_bytes: int = 1024 * MIB) -> Here:
    return Here(dialect, root, floor=floor, quota_bytes=quota_bytes)


@pytest.fixture(params=["duckdb", "sqlite"])
def dialect(request: pytest.FixtureRequest) -> str:
    return request.param


EngineOf = Callable[..., Here]


@pytest.fixture
async def engine_of(tmp_path: Path, dialect: str) -> AsyncGenerator[EngineOf]:
    made = list[Here]()

    def make(**limits: object) -> Here:
        made.append(new_engine(dialect, tmp_path, **limits))  # pyright: ignore[reportArgumentType]
        return made[-1]

    yield make
    for engine in made:
        await engine.close()


def size(root: Path) -> int:
    return sum(file.stat().st_size for file in root.rglob("*") if file.is_file())


async def code_of(session: EngineSession, statement: str) -> str:
    return (await failure(session, statement)).code


async def test_writing_statement_stops_at_disk_floor_and_frees_disk_space(
    engine_of: EngineOf, dialect: str, tmp_path: Path
) -> None:
    disk = SmallDisk(tmp_path)
    engine = engine_of(floor=disk.floor)
    async with engine.session(USER, NO_OPTIONS) as session, engine.session(USER, NO_OPTIONS) as other:
        await run(other, "CREATE TABLE kept AS SELECT 7 AS n")
        error = await failure(session, f"CREATE TABLE t AS {ROWS[dialect]}")
        assert (error.code, "almost full" in error.message) == ("insufficient_storage", True)
        assert size(tmp_path) < ROOM
        assert (await run(other, "SELECT n FROM kept")).cell == 7
        await run(session, "CREATE TABLE small AS SELECT 8 AS n")
        assert (await run(session, "SELECT n FROM small")).cell == 8


async def test_write_beyond_file_quota_fails(engine_of: EngineOf, dialect: str, tmp_path: Path) -> None:
    engine = engine_of(quota_bytes=QUOTA)
    async with engine.session(USER, NO_OPTIONS) as session:
        await run(session, "CREATE TABLE kept AS SELECT 7 AS n")
        error = await failure(session, f"CREATE TABLE t AS {ROWS[dialect]}")
        assert (error.code, str(QUOTA) in error.message) == ("insufficient_storage", True)
        assert (await run(session, "SELECT n FROM kept")).cell == 7
        await run(session, "INSERT INTO kept VALUES (8)")
    assert size(tmp_path) < 2 * QUOTA


async def test_reads_and_deletes_work_below_disk_floor_but_writes_fail(engine_of: EngineOf, tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path)
    async with engine_of(floor=disk.floor).session(USER, NO_OPTIONS) as session:
        for statement in ("CREATE TABLE a AS SELECT 1 AS n", "CREATE TABLE b AS SELECT 2 AS n"):
            await run(session, statement)
        disk.other_bytes = 2 * ROOM
        for statement in ("CREATE TABLE c (n INTEGER)", "INSERT INTO a VALUES (2)", "UPDATE a SET n = 3"):
            assert await code_of(session, statement) == "insufficient_storage"
        assert (await run(session, "SELECT n FROM a")).cell == 1
        await run(session, "DELETE FROM a WHERE n = 1")
        await run(session, "DROP TABLE b")
        disk.other_bytes = 0
        await run(session, "INSERT INTO a VALUES (2)")
        assert (await run(session, "SELECT n FROM a")).rows == [(2,)]


async def test_file_at_quota_accepts_rows_after_deletion(engine_of: EngineOf, dialect: str, tmp_path: Path) -> None:
    some = ROWS[dialect].replace("2000000000", "900000" if dialect == "duckdb" else "50000")
    unlimited = engine_of()
    async with unlimited.session(USER, NO_OPTIONS) as session:
        await run(session, f"CREATE TABLE t AS {some}")
        await run(session, "CREATE TABLE last AS SELECT 1 AS n")
    await unlimited.close()
    limited = engine_of(quota_bytes=QUOTA)
    async with limited.session(USER, NO_OPTIONS) as session:
        assert await code_of(session, f"INSERT INTO t {some}") == "insufficient_storage"
        await run(session, "DROP TABLE t")
        await run(session, "INSERT INTO last VALUES (2)")
        assert (await run(session, "SELECT count(*) FROM last")).cell == 2


async def test_sqlite_temporary_tables_stay_within_quota_and_directory(tmp_path: Path) -> None:
    engine = new_engine("sqlite", tmp_path, quota_bytes=QUOTA)
    async with engine.session(USER, NO_OPTIONS) as session:
        await run(session, f"CREATE TEMP TABLE some AS {ROWS['sqlite'].replace('2000000000', '10000')}")
        assert 0 < temporary_bytes(tmp_path / TEMPORARY_DIRECTORY) < QUOTA
        assert await code_of(session, f"CREATE TEMP TABLE t AS {ROWS['sqlite']}") == "insufficient_storage"
        assert temporary_bytes(tmp_path / TEMPORARY_DIRECTORY) < 2 * QUOTA
    assert temporary_bytes(tmp_path / TEMPORARY_DIRECTORY) == 0
    assert list((tmp_path / TEMPORARY_DIRECTORY).iterdir()) == []
    await engine.close()


async def test_sqlite_sort_stops_at_temporary_file_quota(tmp_path: Path) -> None:
    engine = new_engine("sqlite", tmp_path, quota_bytes=QUOTA)
    async with engine.session(USER, NO_OPTIONS) as session:
        assert await code_of(session, f"SELECT max(n) FROM ({ROWS['sqlite']} ORDER BY a LIMIT -1 OFFSET 1)") == (
            "insufficient_storage"
        )
    await engine.close()


async def test_sqlite_write_ahead_log_shrinks_after_canceled_statement(tmp_path: Path) -> None:
    engine, log = new_engine("sqlite", tmp_path), tmp_path / "own.sqlite-wal"
    async with engine.session(USER, NO_OPTIONS) as other, engine.session(USER, NO_OPTIONS) as session:
        await run(other, "CREATE TABLE kept AS SELECT 7 AS n")
        async with operation(session, f"CREATE TABLE t AS {ROWS['sqlite']}") as handle:
            await started(session, handle)
            async with asyncio.timeout(60):
                while log.stat().st_size < 40 * MIB:  # noqa: ASYNC110 a file sends no event
                    await asyncio.sleep(0.01)
            await session.cancel(handle)
        assert log.stat().st_size < 16 * MIB
        assert (await run(other, "SELECT n FROM kept")).cell == 7
    await engine.close()


def test_files_far_below_the_quota_are_measured_once_per_interval(tmp_path: Path) -> None:
    sizes: list[int] = []
    size = 4

    def measure() -> int:
        sizes.append(size)
        return size

    watch = StorageWatch(tmp_path, measure, StorageLimits(quota_bytes=10))
    assert watch._allowed_bytes() == 10
    size = 20
    watch._measured_at += 60
    assert watch._allowed_bytes() == 10
    watch._measured_at -= 120
    assert watch._allowed_bytes() == 20
    size = 25
    assert watch._allowed_bytes() == 25
    assert sizes == [4, 20, 25]
