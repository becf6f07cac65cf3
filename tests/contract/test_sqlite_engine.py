"""The engine contract for the `sqlite` adapter, with a database file."""

from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
from tests.contract.engine_contract import EngineContract
from tests.contract.engine_facts import Change, EngineFacts, SessionState, TypeFact
from tests.contract.test_duckdb_engine import engines_of_one_pool

from queryserver.engines.protocol import Engine
from queryserver.engines.sqlite.engine import SqliteEngine, sqlite_processes
from queryserver.formats.arrow import ResultType as T
from queryserver.sql.parameters import ParameterType

_COUNT = "WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c LIMIT {rows}) "


def declared(native: str, kind: T, value: object, *, literal: str) -> TypeFact:
    """Return a TypeFact for a table column with this declared type."""
    setup = (
        "DROP TABLE IF EXISTS typed",
        f"CREATE TEMP TABLE typed (c {native})",
        f"INSERT INTO typed VALUES ({literal}), (NULL)",
    )
    return TypeFact(f"{native} {literal}", "SELECT c FROM typed", kind, native, value, setup)


def expression(text: str, kind: T, value: object) -> TypeFact:
    return TypeFact(text, f"SELECT {text} UNION ALL SELECT NULL", kind, "", value)


TYPES = (
    declared("BOOLEAN", T.BOOLEAN, True, literal="1"),
    declared("bool", T.BOOLEAN, False, literal="0"),
    declared("BOOLEAN", T.BOOLEAN, 2, literal="2"),
    declared("BOOLEAN", T.BOOLEAN, "yes", literal="'yes'"),
    declared("DATETIME", T.TIMESTAMP, "2024-01-31 10:20:30", literal="'2024-01-31 10:20:30'"),
    declared("timestamp(3)", T.TIMESTAMP, 1706696430, literal="1706696430"),
    declared("DATE", T.DATE, "2024-01-31", literal="'2024-01-31'"),
    declared("TIME", T.STRING, "10:20:30", literal="'10:20:30'"),
    declared("INTEGER", T.BIGINT, 2**63 - 1, literal=str(2**63 - 1)),
    declared("UNSIGNED BIG INT", T.BIGINT, "x", literal="'x'"),
    declared("POINT", T.BIGINT, "x", literal="'x'"),
    declared("VARCHAR(20)", T.STRING, "é 😀", literal="'é 😀'"),
    declared("CLOB", T.STRING, b"\x00\xff", literal="x'00ff'"),
    declared("BLOB", T.BINARY, b"\x00\xff", literal="x'00ff'"),
    declared("REAL", T.DOUBLE, 1.0, literal="1"),
    declared("DOUBLE PRECISION", T.DOUBLE, 1e308, literal="1e308"),
    declared("DECIMAL(10,2)", T.DOUBLE, 12.5, literal="12.50"),
    declared("NUMERIC", T.DOUBLE, 12, literal="12"),
    declared("JSON", T.STRING, '{"a": 1}', literal="'{\"a\": 1}'"),
    expression("1 + 1", T.BIGINT, 2),
    expression("1.5", T.DOUBLE, 1.5),
    expression("'a' || 'b'", T.STRING, "ab"),
    expression("x'00ff'", T.BINARY, b"\x00\xff"),
    expression("NULL", T.STRING, None),
    expression("9e999", T.DOUBLE, float("inf")),
)

FACTS = EngineFacts(
    takes_rows=True,
    nan_is_null=True,
    slow_sql=_COUNT.format(rows=400_000_000) + "SELECT sum(n) FROM c",
    rows_sql=lambda rows: _COUNT.format(rows=rows) + "SELECT n FROM c",
    wide_rows_sql=lambda rows, size: _COUNT.format(rows=rows) + f"SELECT printf('%{size}d', n) FROM c",
    text_sql=lambda text: "SELECT '" + text.replace("'", "''") + "'",
    bad_table_sql="SELECT * FROM no_such_table",
    bad_table_message="no such table: no_such_table",
    misspelled_at=(2, 9),
    types=TYPES,
    changes=(
        Change("CREATE TABLE {t} (n INTEGER PRIMARY KEY, s TEXT)"),
        Change("INSERT INTO {t} VALUES (1, 'a'), (2, 'b'), (3, 'c')", rows=3),
        Change("UPDATE {t} SET s = 'c' WHERE n > 1", rows=2),
        Change("WITH w AS (SELECT 1 AS n) UPDATE {t} SET s = 'c' WHERE n > 100", rows=0),
        Change("INSERT INTO {t} VALUES (4, 'd') RETURNING n", rows=1, has_result_set=True),
        Change("SELECT * FROM {t}", has_result_set=True),
        Change("EXPLAIN QUERY PLAN DELETE FROM {t}", has_result_set=True),
        Change("CREATE TABLE {t}_copy AS SELECT * FROM {t}"),
        Change("CREATE INDEX {t}_i ON {t} (s)"),
        Change("ALTER TABLE {t} ADD COLUMN more INTEGER"),
        Change("ANALYZE {t}"),
        Change("VACUUM"),
        Change("DROP TABLE {t}_copy"),
        Change("DELETE FROM {t}", rows=4),
        Change("DROP TABLE {t}"),
    ),
    session_state=(
        SessionState("temporary table", "CREATE TEMP TABLE mine AS SELECT 1 AS n", "SELECT n FROM mine", 1),
        SessionState("setting", "PRAGMA foreign_keys = ON", "PRAGMA foreign_keys", 1),
    ),
    unknown_database="no_such_database",
    known_database="main",
    fails_midway_sql=_COUNT.format(rows=300_000)
    + "SELECT CASE n WHEN 150000 THEN abs(-9223372036854775807 - 1) ELSE n END FROM c",
    inexact_parameters=(ParameterType.DECIMAL,),
    driver_words=("apsw", "sqlite3.", "Error:", "/home/", "/root/", "facts.sqlite", "missing"),
)


@pytest.fixture(scope="module")
async def file_engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Callable[[], SqliteEngine]]:
    """A function that returns an engine. All engines use one process, which has their file open."""
    directory, processes = tmp_path_factory.mktemp("sqlite"), sqlite_processes()
    async for new in engines_of_one_pool(
        partial(SqliteEngine, path="facts.sqlite", root=directory, processes=processes)
    ):
        yield new


@pytest.fixture(scope="module")
async def memory_engine() -> AsyncGenerator[Callable[[], SqliteEngine]]:
    """A function that returns an engine. It uses the spare process that was started for the engine before it."""
    async for new in engines_of_one_pool(partial(SqliteEngine, processes=sqlite_processes())):
        yield new


class TestSqliteEngine(EngineContract):
    facts: ClassVar[EngineFacts] = FACTS
    tested_with = "SQLite of the package apsw"

    @pytest.fixture
    async def engine(self, file_engine: Callable[[], SqliteEngine]) -> AsyncGenerator[SqliteEngine]:
        engine = file_engine()
        yield engine
        await engine.close()

    @pytest.fixture
    async def unreachable_engine(self, tmp_path: Path) -> AsyncGenerator[SqliteEngine]:
        engine = SqliteEngine(path="missing/facts.sqlite", root=tmp_path)
        yield engine
        await engine.close()

    async def running_statements(self, engine: Engine) -> int:
        assert isinstance(engine, SqliteEngine)
        return engine.busy


class TestSqliteInMemory(TestSqliteEngine):
    """The same tests with a private in-memory database per session."""

    known_failures: ClassVar[Mapping[str, pytest.MarkDecorator]] = {
        "test_change_is_visible_to_the_next_session": pytest.mark.never(
            "an in-memory database belongs to one session and ends with it (Contract platform 5.11)"
        )
    }

    @pytest.fixture
    async def engine(self, memory_engine: Callable[[], SqliteEngine]) -> AsyncGenerator[SqliteEngine]:
        engine = memory_engine()
        yield engine
        await engine.close()
