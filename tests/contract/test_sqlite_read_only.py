"""Read-only statements on SQLite: known ways around, and what is left of a session."""

from collections.abc import AsyncGenerator, Callable
from functools import partial

import pytest
from tests.contract.engine_contract import NO_OPTIONS, USER
from tests.contract.engine_driving import run
from tests.contract.read_only_contract import Bypass, ReadOnlyContract, ReadOnlyFacts
from tests.contract.test_duckdb_engine import engines_of_one_pool
from tests.contract.test_sqlite_engine import FACTS

from queryserver.engines.protocol import Engine, EngineSession
from queryserver.engines.sqlite.engine import SqliteEngine, sqlite_processes

_OBJECTS = "SELECT name, sql FROM sqlite_schema ORDER BY name"
_HEADER = "SELECT * FROM pragma_user_version, pragma_application_id"

BYPASSES = (
    Bypass("delete_returning", ("DELETE FROM {t} RETURNING a",)),
    Bypass("with_delete_returning", ("WITH d AS (SELECT 1) DELETE FROM {t} RETURNING a",)),
    Bypass("with_update", ("WITH d AS (SELECT 1) UPDATE {t} SET a = 9",)),
    Bypass("replace", ("REPLACE INTO {t} VALUES (4)",)),
    Bypass("upsert", ("INSERT INTO {t} VALUES (1) ON CONFLICT DO NOTHING",)),
    Bypass("instead_of_trigger", ("INSERT INTO {t}_v VALUES (1)",), before=(
        "CREATE VIEW {t}_v AS SELECT a FROM {t}",
        "CREATE TRIGGER {t}_g INSTEAD OF INSERT ON {t}_v BEGIN DELETE FROM {t}; END",
    ), after=("DROP VIEW {t}_v",)),
    Bypass("explain_delete", ("EXPLAIN DELETE FROM {t}",), is_refused=False),
    Bypass("explain_plan_of_delete", ("EXPLAIN QUERY PLAN DELETE FROM {t}",), is_refused=False),
    Bypass("user_version", ("PRAGMA user_version = 7",)),
    Bypass("application_id", ("PRAGMA application_id(7)",)),
    Bypass("explain_pragma", ("EXPLAIN PRAGMA foreign_keys = 1",)),
    Bypass("writable_schema", ("PRAGMA writable_schema = 1", "DELETE FROM sqlite_schema")),
    Bypass("query_only", ("PRAGMA query_only = 0", "DELETE FROM {t}")),
    Bypass("journal_mode", ("PRAGMA journal_mode = DELETE",)),
    Bypass("incremental_vacuum", ("PRAGMA incremental_vacuum",)),
    Bypass("wal_checkpoint", ("PRAGMA wal_checkpoint",)),
    Bypass("optimize", ("PRAGMA optimize",)),
    Bypass("pragma_function", ("SELECT * FROM pragma_optimize",)),
    Bypass("vacuum", ("VACUUM",)),
    Bypass("vacuum_into", ("VACUUM INTO '{t}.sqlite'",)),
    Bypass("attach", ("ATTACH '{t}.sqlite' AS other",)),
    Bypass("attach_memory", ("ATTACH ':memory:' AS other",)),
    Bypass("detach", ("DETACH temp",)),
    Bypass("reindex", ("REINDEX {t}_i",), before=("CREATE INDEX {t}_i ON {t} (a)",), after=("DROP INDEX {t}_i",)),
    Bypass("analyze", ("ANALYZE",)),
    Bypass("begin_immediate", ("BEGIN IMMEDIATE", "DELETE FROM {t}", "COMMIT")),
    Bypass("begin_exclusive", ("BEGIN EXCLUSIVE",)),
    Bypass("savepoint", ("SAVEPOINT s", "DELETE FROM {t}", "RELEASE s")),
    Bypass("open_transaction", ("DELETE FROM {t}", "COMMIT"), before=("BEGIN IMMEDIATE",)),
    Bypass("create_temporary", ("CREATE TEMP TABLE {t}_x (a)",)),
    Bypass("temporary_table", ("INSERT INTO {t}_t VALUES (1)",), before=("CREATE TEMP TABLE {t}_t (a)",)),
    Bypass("temporary_trigger", ("CREATE TEMP TRIGGER {t}_g AFTER INSERT ON {t} BEGIN DELETE FROM {t}; END",)),
    Bypass("virtual_table", ("CREATE VIRTUAL TABLE {t}_x USING fts5 (a)",)),
    Bypass("full_text_command", ("INSERT INTO {t}_x ({t}_x) VALUES ('optimize')",),
           before=("CREATE VIRTUAL TABLE {t}_x USING fts5 (a)",), after=("DROP TABLE {t}_x",)),
    Bypass("load_extension", ("SELECT load_extension('x')",)),
    Bypass("write_file", ("SELECT writefile('/tmp/{t}', 'x')",)),
    Bypass("markers_with_returning", ("DELETE FROM {t} WHERE a = ? RETURNING a",), values=(1,)),
)  # fmt: skip


@pytest.fixture(scope="module")
async def file_engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Callable[[], SqliteEngine]]:
    """A function that returns an engine. All engines use one process and one file."""
    directory, processes = tmp_path_factory.mktemp("sqlite"), sqlite_processes()
    async for one in engines_of_one_pool(
        partial(SqliteEngine, path="facts.sqlite", root=directory, processes=processes)
    ):
        yield one


class TestSqliteReadOnly(ReadOnlyContract):
    facts = FACTS
    read_only = ReadOnlyFacts(
        probes=("SELECT a FROM {t} ORDER BY a", _OBJECTS, _HEADER),
        bypasses=BYPASSES,
        reads=(
            "VALUES (1)",
            "WITH x AS (SELECT a FROM {t}) SELECT count(*) FROM x",
            "WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 3) SELECT n FROM c",
            "SELECT name FROM pragma_table_info('{t}')",
            "SELECT value FROM json_each('[1]')",
            "PRAGMA table_info({t})",
            "PRAGMA integrity_check",
            "PRAGMA user_version",
            "EXPLAIN DELETE FROM {t}",
            "EXPLAIN QUERY PLAN SELECT * FROM {t}",
            "-- comment\n/* DELETE */ SELECT 'delete', random()",
        ),
    )

    @pytest.fixture
    async def engine(self, file_engine: Callable[[], SqliteEngine]) -> AsyncGenerator[SqliteEngine]:
        engine = file_engine()
        yield engine
        await engine.close()

    async def test_refused_statement_leaves_settings_unchanged(self, engine: Engine, session: EngineSession) -> None:
        settings = "SELECT * FROM pragma_foreign_keys, pragma_recursive_triggers"
        before = (await run(session, settings)).rows
        for name in ("foreign_keys", "recursive_triggers", "case_sensitive_like", "defer_foreign_keys"):
            for prefix in ("", "EXPLAIN "):
                await self.refused(engine, session, f"{prefix}PRAGMA {name} = 1")
        assert (await run(session, settings)).rows == before
        assert (await run(session, "SELECT 'A' LIKE 'a'")).cell == 1

    async def test_open_transaction_goes_on_after_read_only_statements(
        self, engine: Engine, session: EngineSession, filled: str
    ) -> None:
        await run(session, "BEGIN")
        await run(session, f"INSERT INTO {filled} VALUES (4)")
        assert len((await self.run_read_only(engine, session, f"SELECT a FROM {filled}")).rows) == 4
        for sql in (f"DELETE FROM {filled}", "COMMIT", "ROLLBACK"):
            assert "the statement is read-only" in await self.refused(engine, session, sql)
        await run(session, f"INSERT INTO {filled} VALUES (5)")
        await run(session, "COMMIT")
        async with engine.session(USER, NO_OPTIONS) as other:
            assert (await run(other, f"SELECT count(*) FROM {filled}")).cell == 5
