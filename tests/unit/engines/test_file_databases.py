"""Behavior that DuckDB and SQLite share: database files below a directory, and sessions on them."""

import asyncio
import sys
from pathlib import Path

import pytest
from tests.contract.engine_contract import NO_OPTIONS, USER
from tests.contract.engine_driving import failure, run

from queryserver.engines.duckdb.engine import DuckdbEngine
from queryserver.engines.sqlite.engine import SqliteEngine
from queryserver.errors.base import ConfigurationError
from queryserver.errors.files import InvalidPath
from queryserver.errors.statements import EngineUnavailable, StatementRejected

both = pytest.mark.parametrize("make", [DuckdbEngine, SqliteEngine])
WRITE_AND_DIE = """
import asyncio, os, sys
from pathlib import Path
from queryserver.identity.model import User
from {module} import {name} as Engine
from queryserver.engines.protocol import SessionOptions

async def main():
    engine = Engine(path="own.db", root=Path(sys.argv[1]))
    async with engine.session(User(1, "ada"), SessionOptions()) as session:
        for sql in ("CREATE TABLE t (n INTEGER)", "INSERT INTO t VALUES (1), (2)"):
            handle = await session.submit(sql)
            assert (await session.poll(handle, wait_s=20)).error is None
        os.kill(os.getpid(), 9)

asyncio.run(main())
"""


@pytest.mark.platform(77)
@pytest.mark.security("T7")
@both
@pytest.mark.parametrize(
    "path", ["/etc/x.db", "../x.db", "a/../../x", "a/./b", "", ".", "a\\b", "a\0b", "md:x", "file:x", "a//b"]
)
def test_invalid_or_outside_path_is_refused(make, tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidPath):
        make(path=path, root=tmp_path)


@pytest.mark.platform(77)
@pytest.mark.security("T7")
@both
def test_file_needs_directory_and_read_only_needs_file(make) -> None:
    with pytest.raises(InvalidPath):
        make(path="x.db")
    with pytest.raises(ConfigurationError):
        make(read_only=True)


@pytest.mark.platform(77)
@pytest.mark.security("T7")
@both
async def test_database_behind_symlink_is_not_opened(make, tmp_path: Path) -> None:
    outside, root = tmp_path / f"outside-{make.__name__}", tmp_path / make.__name__
    outside.mkdir()
    root.mkdir()
    target = make(path="own.db", root=outside)
    async with target.session(USER, NO_OPTIONS) as session:
        await run(session, "CREATE TABLE t (n INTEGER)")
    await target.close()
    (root / "linked.db").symlink_to(outside / "own.db")
    (root / "linked").symlink_to(outside)
    for path in ("linked.db", "linked/own.db"):
        engine = make(path=path, root=root)
        with pytest.raises(EngineUnavailable):
            await engine.ping()
        await engine.close()


@both
async def test_finished_changes_survive_sigkill(make, tmp_path: Path) -> None:
    root = tmp_path / make.__name__
    root.mkdir()
    program = WRITE_AND_DIE.format(module=make.__module__, name=make.__name__)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(root))
    async with asyncio.timeout(60):
        assert await process.wait() == -9
    engine = make(path="own.db", root=root)
    async with engine.session(USER, NO_OPTIONS) as session:
        assert (await run(session, "SELECT count(*) FROM t")).cell == 2
    await engine.close()


@pytest.mark.security("T23")
@both
async def test_text_with_two_statements_runs_neither(make) -> None:
    engine = make()
    async with engine.session(USER, NO_OPTIONS) as session:
        await run(session, "CREATE TABLE t (n INTEGER)")
        for text in ("INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)", "SELECT 1; DROP TABLE t"):
            assert isinstance(await failure(session, text), StatementRejected)
        assert (await run(session, "SELECT count(*) FROM t; -- the end\n /* of it */")).cell == 0
    await engine.close()


@both
async def test_transaction_spans_statements_of_its_session(make, tmp_path: Path) -> None:
    engine = make(path=f"{make.__name__}.db", root=tmp_path)
    async with engine.session(USER, NO_OPTIONS) as session, engine.session(USER, NO_OPTIONS) as other:
        await run(session, "CREATE TABLE t (n INTEGER)")
        for end, rows in (("ROLLBACK", 0), ("COMMIT", 1)):
            await run(session, "BEGIN")
            await run(session, "INSERT INTO t VALUES (1)")
            assert (await run(other, "SELECT count(*) FROM t")).cell == 0
            await run(session, end)
            assert (await run(session, "SELECT count(*) FROM t")).cell == rows
    await engine.close()
