"""SQLite errors, and the files and settings that statements may use."""

from collections.abc import AsyncGenerator
from pathlib import Path

import apsw
import pytest
from tests.contract.engine_contract import NO_OPTIONS, USER
from tests.contract.engine_driving import failure, run

from queryserver.engines.blocking_drivers import Interrupted
from queryserver.engines.protocol import EngineSession
from queryserver.engines.sqlite.connection import opening_errors, statement_errors
from queryserver.engines.sqlite.engine import SqliteEngine
from queryserver.errors.statements import EngineError, EngineUnavailable, SessionLost, StatementRejected

CLASSES = sorted(
    {member for member in vars(apsw).values() if isinstance(member, type) and issubclass(member, Exception)},
    key=lambda member: member.__name__,
)
MEANINGS: dict[type[Exception], type[EngineError]] = {
    apsw.InterruptError: Interrupted,
    apsw.ConnectionClosedError: SessionLost,
    apsw.ConnectionNotClosedError: SessionLost,
    apsw.CursorClosedError: SessionLost,
    apsw.ForkingViolationError: SessionLost,
    apsw.ThreadingViolationError: SessionLost,
}


def test_driver_exception_classes_are_found() -> None:
    assert len(CLASSES) >= 40


@pytest.mark.parametrize("raised", CLASSES)
def test_every_statement_exception_becomes_a_domain_error(raised: type[Exception]) -> None:
    with pytest.raises(EngineError) as caught, statement_errors():
        raise raised("what happened")
    assert type(caught.value) is MEANINGS.get(raised, StatementRejected)


@pytest.mark.parametrize("raised", CLASSES)
def test_every_exception_on_open_becomes_engine_unavailable(raised: type[Exception]) -> None:
    with pytest.raises(EngineUnavailable), opening_errors():
        raise raised("unable to open database file")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "databases"
    root.mkdir()
    for path in (root / "other.sqlite", tmp_path / "outside.sqlite"):
        connection = apsw.Connection(str(path))
        connection.execute("CREATE TABLE secret (n); INSERT INTO secret VALUES ('secret-value')")
        connection.close()
    return root


@pytest.fixture
async def session(root: Path) -> AsyncGenerator[EngineSession]:
    engine = SqliteEngine(path="own.sqlite", root=root)
    async with engine.session(USER, NO_OPTIONS) as session:
        await run(session, "CREATE TABLE t AS SELECT 1 AS n")
        yield session
    await engine.close()


REACHING = {
    "attach": "ATTACH '{root}/other.sqlite' AS other",
    "attach outside": "ATTACH DATABASE '{outside}/outside.sqlite' AS other",
    "attach a uri": "ATTACH 'file:{outside}/outside.sqlite?mode=ro' AS other",
    "attach an expression": "ATTACH '{outside}' || '/outside.sqlite' AS other",
    "attach a query": "ATTACH (SELECT '{outside}/outside.sqlite') AS other",
    "attach memory": "ATTACH ':memory:' AS other",
    "detach": "DETACH main",
    "vacuum into": "VACUUM INTO '{outside}/copy.sqlite'",
    "vacuum into the neighbor": "VACUUM INTO '{root}/copy.sqlite'",
    "extension": "SELECT load_extension('{outside}/x.so')",
    "extension in a view": "CREATE TEMP VIEW v AS SELECT load_extension('x')",
    "tokenizer": "SELECT fts3_tokenizer('simple')",
    "read a file": "SELECT readfile('/etc/passwd')",
    "write a file": "SELECT writefile('{outside}/x', 'x')",
    "list files": "SELECT * FROM fsdir('/')",
    "csv": "CREATE VIRTUAL TABLE c USING csv(filename='/etc/passwd')",
    "path of the file": "PRAGMA database_list",
    "path of the file by function": "SELECT * FROM pragma_database_list",
    "directory": "PRAGMA temp_store_directory = '{outside}'",
    "data directory": "PRAGMA data_store_directory = '{outside}'",
}


@pytest.mark.platform(77)
@pytest.mark.security("T7")
async def test_statement_that_accesses_files_or_extensions_is_refused(
    session: EngineSession, root: Path, subtests: pytest.Subtests
) -> None:
    for template in REACHING.values():
        with subtests.test(statement=template):
            statement = template
            before = {path for path in root.parent.rglob("*") if not path.name.startswith("own.sqlite")}
            if statement.startswith("CREATE TEMP VIEW"):
                await run(session, statement)
                statement = "SELECT * FROM v"
            error = await failure(session, statement.format(root=root, outside=root.parent))
            assert isinstance(error, StatementRejected)
            assert str(root) not in error.message
            assert before == {path for path in root.parent.rglob("*") if not path.name.startswith("own.sqlite")}
            assert (await run(session, "SELECT count(*) FROM t")).cell == 1


@pytest.mark.platform(77)
@pytest.mark.security("T7")
async def test_changing_a_server_setting_is_refused(session: EngineSession, subtests: pytest.Subtests) -> None:
    for statement in [
        "PRAGMA journal_mode = DELETE",
        "PRAGMA synchronous = OFF",
        "PRAGMA writable_schema = ON",
        "PRAGMA trusted_schema = ON",
        "PRAGMA query_only = OFF",
        "PRAGMA cache_size = 100000000",
        "PRAGMA busy_timeout = 1000000",
        "PRAGMA mmap_size = 1000000000",
        "PRAGMA hard_heap_limit = 1",
        "PRAGMA schema_version = 1",
        "PRAGMA locking_mode = EXCLUSIVE",
        "PRAGMA main.journal_mode(delete)",
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "UPDATE sqlite_schema SET sql = 'x'",
        "DELETE FROM sqlite_schema",
    ]:
        with subtests.test(statement=statement):
            assert isinstance(await failure(session, statement), StatementRejected)


@pytest.mark.platform(77)
@pytest.mark.security("T7")
async def test_statement_limited_to_own_database_is_permitted(
    session: EngineSession, subtests: pytest.Subtests
) -> None:
    for statement in [
        "PRAGMA table_info(t)",
        "SELECT * FROM pragma_table_info('t')",
        "PRAGMA foreign_keys = ON",
        "PRAGMA user_version = 7",
        "PRAGMA integrity_check",
        "PRAGMA journal_mode",
        "VACUUM",
        "ANALYZE",
        "REINDEX",
        "CREATE VIRTUAL TABLE f USING fts5(words)",
        "SELECT json_extract('{\"a\": 1}', '$.a')",
    ]:
        with subtests.test(statement=statement):
            await run(session, statement)


@pytest.mark.platform(77)
@pytest.mark.security("T7")
@pytest.mark.security("T24")
@pytest.mark.parametrize("statement",
    ["INSERT INTO secret VALUES (2)", "WITH w AS (SELECT 1) DELETE FROM secret", "UPDATE secret SET n = 1 RETURNING n",
    "CREATE TABLE u (n)", "PRAGMA user_version = 7", "VACUUM"])  # fmt: skip
async def test_read_only_engine_refuses_changes(root: Path, statement: str) -> None:
    engine = SqliteEngine(path="other.sqlite", root=root, read_only=True)
    async with engine.session(USER, NO_OPTIONS) as reader:
        assert "readonly" in (await failure(reader, statement)).message
        assert (await run(reader, "SELECT * FROM secret")).rows == [("secret-value",)]
    await engine.close()


@pytest.mark.platform(77)
@pytest.mark.security("T7")
async def test_single_huge_value_is_refused(session: EngineSession) -> None:
    assert (await failure(session, "SELECT zeroblob(1000000000)")).code == "cell_too_large"


@pytest.mark.platform(77)
@pytest.mark.security("T7")
async def test_row_of_many_large_values_is_refused(session: EngineSession) -> None:
    row = ", ".join(["randomblob(16000000)"] * 100)
    assert "out of memory" in (await failure(session, f"SELECT {row}")).message
    assert (await run(session, "SELECT 1 AS a")).rows == [(1,)]


@pytest.mark.platform(77)
@pytest.mark.security("T7")
async def test_in_memory_database_has_a_size_limit(tmp_path: Path) -> None:
    engine = SqliteEngine(path=":memory:", root=tmp_path)
    async with engine.session(USER, NO_OPTIONS) as session:
        await run(session, "CREATE TABLE t (a BLOB)")
        filling = (
            "WITH RECURSIVE n (a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM n WHERE a < 100)"
            " INSERT INTO t SELECT randomblob(1000000) FROM n"
        )
        assert "full" in (await failure(session, filling)).message
        assert "not authorized" in (await failure(session, "PRAGMA max_page_count = 1000000")).message
    await engine.close()
