"""The files, settings and functions that DuckDB statements may use."""

from collections.abc import AsyncGenerator
from pathlib import Path

import duckdb
import pytest
from tests.contract.engine_contract import NO_OPTIONS, USER
from tests.contract.engine_driving import failure, run

from queryserver.engines.duckdb.engine import DuckdbEngine
from queryserver.engines.protocol import EngineSession, SessionOptions
from queryserver.errors.statements import StatementRejected
from queryserver.identity.model import User

SECRET = "a\nsecret-value\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "databases"
    root.mkdir()
    (tmp_path / "secret.csv").write_text(SECRET)
    (root / "link.csv").symlink_to(tmp_path / "secret.csv")
    (root / "inside.csv").write_text(SECRET)
    duckdb.connect(root / "other.duckdb").close()
    return root


@pytest.fixture
async def session(root: Path) -> AsyncGenerator[EngineSession]:
    engine = DuckdbEngine(path="own.duckdb", root=root)
    async with engine.session(USER, NO_OPTIONS) as session:
        await run(session, "CREATE TABLE t AS SELECT 1 AS n")
        yield session
    await engine.close()


REACHING = {
    "path": "SELECT * FROM read_csv('{outside}/secret.csv')",
    "dots": "SELECT * FROM read_csv('{root}/../secret.csv')",
    "link": "SELECT * FROM read_text('{root}/link.csv')",
    "neighbor": "SELECT * FROM read_text('{root}/inside.csv')",
    "bare name": "FROM '{outside}/secret.csv'",
    "view": "CREATE VIEW v AS SELECT * FROM read_csv('{outside}/secret.csv')",
    "macro": "CREATE MACRO m() AS TABLE SELECT * FROM read_csv('{outside}/secret.csv')",
    "query text": "FROM query('FROM read_text(''{outside}/secret.csv'')')",
    "glob": "SELECT * FROM glob('{outside}/*')",
    "sniff": "FROM sniff_csv('{outside}/secret.csv')",
    "blob": "SELECT * FROM read_blob('/etc/passwd')",
    "network": "SELECT * FROM 'https://127.0.0.1:9/x.csv'",
    "copy out": "COPY t TO '{root}/out.csv'",
    "copy in": "COPY t FROM '{outside}/secret.csv'",
    "copy over the log": "COPY t TO '{root}/own.duckdb.wal'",
    "copy over the neighbor": "COPY t TO '{root}/other.duckdb'",
    "copy in explain": "EXPLAIN ANALYZE COPY t TO '{root}/own.duckdb.wal'",
    "copy in explain with a comment": "EXPLAIN /* COPY */ ANALYZE /**/COPY/**/ t TO '{root}/own.duckdb.wal'",
    "copy prepared": "PREPARE p AS COPY t TO '{root}/own.duckdb.wal'",
    "copy of a pivot": "COPY (PIVOT t ON n USING count(*)) TO '{root}/own.duckdb.wal'",
    "copy of a pivot in explain": "EXPLAIN ANALYZE COPY (PIVOT t ON n USING count(*)) TO '{root}/own.duckdb.wal'",
    "copy the database": "COPY FROM DATABASE own TO memory",
    "export": "EXPORT DATABASE '{root}/out'",
    "import": "IMPORT DATABASE '{root}/out'",
    "attach": "ATTACH '{root}/other.duckdb' AS other",
    "attach outside": "ATTACH '{outside}/new.duckdb'",
    "attach memory": "ATTACH ':memory:' AS everybodys",
    "detach": "DETACH own",
    "install": "INSTALL httpfs",
    "load": "LOAD httpfs",
    "load a file": "LOAD '{outside}/x.duckdb_extension'",
}


@pytest.mark.platform(77)
@pytest.mark.security("T7")
async def test_statement_that_accesses_files_or_network_is_refused(
    session: EngineSession, root: Path, subtests: pytest.Subtests
) -> None:
    for statement in REACHING.values():
        with subtests.test(statement=statement):
            before = {path: path.stat().st_mtime_ns for path in root.parent.rglob("*")}
            error = await failure(session, statement.format(root=root, outside=root.parent))
            assert isinstance(error, StatementRejected)
            assert "secret-value" not in error.message
            assert before == {path: path.stat().st_mtime_ns for path in root.parent.rglob("*")}
            assert (await run(session, "SELECT count(*) FROM t")).cell == 1


@pytest.mark.platform(77)
@pytest.mark.security("T7")
async def test_changing_a_server_setting_is_refused(session: EngineSession, subtests: pytest.Subtests) -> None:
    for statement in [
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "SET allowed_configs = ['threads']",
        "SET allowed_directories = ['/']",
        "RESET memory_limit",
        "SET memory_limit = '100GB'",
        "PRAGMA threads = 64",
        "SET SESSION threads = 64",
        "SET GLOBAL python_enable_replacements = true",
        "SET temp_directory = '/etc'",
        "SET enable_progress_bar_print = true",
        "RESET enable_progress_bar_print",
        "PRAGMA enable_print_progress_bar",
        "PRAGMA enable_profiling",
        "SET profiling_output = '/dev/stderr'",
        "SET log_query_path = '/dev/stderr'",
        "CALL enable_logging()",
    ]:
        with subtests.test(statement=statement):
            assert isinstance(await failure(session, statement), StatementRejected)


@pytest.mark.platform(77)
@pytest.mark.security("T7")
async def test_table_name_never_resolves_to_python_variable(session: EngineSession) -> None:
    for name in ("statement", "relation", "self", "duckdb", "text"):
        assert "does not exist" in (await failure(session, f"SELECT * FROM {name}")).message


@pytest.mark.platform(77)
@pytest.mark.security("T7")
async def test_keyword_in_literal_or_alias_is_not_refused(session: EngineSession) -> None:
    for statement in (
        "SELECT 'COPY t TO ''x'''",
        "EXPLAIN SELECT 'copy that' AS load",
        "PREPARE p AS SELECT 1 AS copy",
        "CREATE TABLE copy AS SELECT 'progress_bar' AS attach",
    ):
        await run(session, statement)


@pytest.mark.platform(77)
@pytest.mark.security("T7")
async def test_error_messages_contain_no_server_paths(session: EngineSession, root: Path) -> None:
    for statement in ("INSTALL httpfs", "SELECT * FROM duckdb_extensions()", "EXPORT DATABASE 'out'"):
        message = (await failure(session, statement)).message
        assert str(root) not in message
        assert str(Path.home()) not in message


@pytest.mark.platform(77)
@pytest.mark.security("T7")
@pytest.mark.security("T24")
@pytest.mark.parametrize("statement",
    ["INSERT INTO t VALUES (2)", "EXPLAIN ANALYZE INSERT INTO t VALUES (2)", "CREATE TABLE u (n INTEGER)",
    "DROP TABLE t"])  # fmt: skip
async def test_read_only_engine_refuses_changes(root: Path, session: EngineSession, statement: str) -> None:
    with duckdb.connect(root / "kept.duckdb") as writer:
        writer.execute("CREATE OR REPLACE TABLE t AS SELECT 1 AS n")
    engine = DuckdbEngine(path="kept.duckdb", root=root, read_only=True)
    async with engine.session(USER, NO_OPTIONS) as reader:
        error = await failure(reader, statement)
        assert "read-only" in error.message
        assert (await run(reader, "SELECT count(*) FROM t")).cell == 1
    await engine.close()


@pytest.mark.platform(77)
@pytest.mark.security("T7")
@pytest.mark.security("T11")
async def test_session_option_for_server_setting_is_refused(root: Path) -> None:
    engine = DuckdbEngine(path="own.duckdb", root=root)
    for name, value in {"memory_limit": "9GB", "enable_external_access": "true", "TimeZone": "x' ; DROP"}.items():
        with pytest.raises(StatementRejected):
            async with engine.session(USER, SessionOptions(settings={name: value})):
                pass
    async with engine.session(USER, SessionOptions(settings={"TimeZone": "Asia/Tokyo"})) as session:
        assert (await run(session, "SELECT current_setting('TimeZone')")).cell == "Asia/Tokyo"
    await engine.close()


@pytest.mark.security("T7")
@pytest.mark.parametrize(
    "blank", [chr(code) for code in (0xA0, *range(0x2000, 0x200C), 0x202F, 0x205F, 0x2060, 0x3000, 0xFEFF)]
)
async def test_non_ascii_blank_does_not_hide_refused_name(tmp_path: Path, blank: str) -> None:
    """DuckDB's parser treats these characters as blanks, but its tokenizer treats them as parts of names."""
    engine = DuckdbEngine(path="own.duckdb", root=tmp_path)
    async with engine.session(User(1, "ana"), NO_OPTIONS) as session:
        for statement in (
            "SELECT~write_log('x')",
            "FROM~duckdb_settings()",
            "FROM query('FROM~duckdb_settings()')",
            "SET~GLOBAL~TimeZone='UTC'",
            "PRAGMA~database_list",
        ):
            assert "Permission Error" in (await failure(session, statement.replace("~", blank))).message
    await engine.close()


async def test_table_may_share_its_name_with_a_restricted_function(tmp_path: Path) -> None:
    engine = DuckdbEngine(path="own.duckdb", root=tmp_path)
    async with engine.session(User(1, "ana"), NO_OPTIONS) as session:
        await run(session, "CREATE TABLE query (id INTEGER)")
        await run(session, "INSERT INTO query (id) VALUES (7)")
        assert (await run(session, "SELECT id FROM query")).cell == 7
    await engine.close()
