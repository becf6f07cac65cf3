"""The engine contract for the `duckdb` adapter, with a database file."""

import datetime as dt
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeVar

import pytest
from tests.contract.engine_contract import EngineContract
from tests.contract.engine_facts import Change, EngineFacts, SessionState, TypeFact

from queryserver.engines.duckdb.engine import DuckdbEngine, duckdb_processes
from queryserver.engines.duckdb.limits import DuckdbResources
from queryserver.engines.protocol import Engine
from queryserver.formats.arrow import ResultType as T

E = TypeVar("E", bound=Engine)

RESOURCES = DuckdbResources(memory_limit="300MB")
_HOLD_FILE = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"


def typed(expression: str, kind: T, native: str, value: object) -> TypeFact:
    return TypeFact(expression, f"SELECT {expression} UNION ALL SELECT NULL", kind, native, value)


TYPES = (
    typed("true", T.BOOLEAN, "BOOLEAN", True),
    typed("(-128)::TINYINT", T.TINYINT, "TINYINT", -128),
    typed("255::UTINYINT", T.SMALLINT, "UTINYINT", 255),
    typed("1::SMALLINT", T.SMALLINT, "SMALLINT", 1),
    typed("65535::USMALLINT", T.INT, "USMALLINT", 65535),
    typed("1::INTEGER", T.INT, "INTEGER", 1),
    typed("4294967295::UINTEGER", T.BIGINT, "UINTEGER", 4294967295),
    typed("9223372036854775807", T.BIGINT, "BIGINT", 9223372036854775807),
    typed("18446744073709551615::UBIGINT", T.BIGINT, "UBIGINT", 18446744073709551615),
    typed("12::HUGEINT", T.DECIMAL, "HUGEINT", Decimal(12)),
    typed("170141183460469231731687303715884105727::HUGEINT", T.DECIMAL, "HUGEINT", Decimal(2**127 - 1)),
    typed("340282366920938463463374607431768211455::UHUGEINT", T.DECIMAL, "UHUGEINT", Decimal(2**128 - 1)),
    typed("1.5::FLOAT", T.FLOAT, "FLOAT", 1.5),
    typed("'inf'::DOUBLE", T.DOUBLE, "DOUBLE", float("inf")),
    typed("12.5::DECIMAL(10,2)", T.DECIMAL, "DECIMAL(10,2)", Decimal("12.50")),
    typed("'é 😀'", T.STRING, "VARCHAR", "é 😀"),
    typed("'{\"a\": 1}'::JSON", T.STRING, "JSON", '{"a": 1}'),
    typed("'x'::ENUM('x', 'y')", T.STRING, "ENUM('x', 'y')", "x"),
    typed("'6ba7b810-9dad-11d1-80b4-00c04fd430c8'::UUID", T.STRING, "UUID", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
    typed("TIME '10:20:30.5'", T.STRING, "TIME", dt.time(10, 20, 30, 500000)),
    typed("'0101'::BIT", T.STRING, "BIT", "0101"),
    typed("DATE '2024-01-31'", T.DATE, "DATE", dt.date(2024, 1, 31)),
    typed("DATE 'infinity'", T.DATE, "DATE", "infinity"),
    typed("DATE '0044-03-15 (BC)'", T.DATE, "DATE", "0044-03-15 (BC)"),
    typed("TIMESTAMP '2024-01-31 10:20:30'", T.TIMESTAMP, "TIMESTAMP", dt.datetime(2024, 1, 31, 10, 20, 30)),  # noqa: DTZ001 a naive timestamp
    typed("TIMESTAMP '-infinity'", T.TIMESTAMP, "TIMESTAMP", "-infinity"),
    typed("TIMESTAMP '12024-01-31 10:20:30.5'", T.TIMESTAMP, "TIMESTAMP", "12024-01-31 10:20:30.5"),
    typed("INTERVAL '1 day 02:03:04'", T.INTERVAL_DAY_TIME, "INTERVAL", "1 day 02:03:04"),
    typed("'\\x00\\xFF'::BLOB", T.BINARY, "BLOB", b"\x00\xff"),
    typed("[1, NULL]", T.ARRAY, "INTEGER[]", [1, None]),
    typed("[1::UHUGEINT]", T.ARRAY, "UHUGEINT[]", [Decimal(1)]),
    typed(
        "{'a': MAP {1: TIMESTAMP '-infinity'}}",
        T.STRUCT,
        "STRUCT(a MAP(INTEGER, TIMESTAMP))",
        {"a": [(1, "-infinity")]},
    ),
    typed("[1, 2]::INTEGER[2]", T.ARRAY, "INTEGER[2]", [1, 2]),
    typed("[DATE 'infinity', DATE '2024-01-31']", T.ARRAY, "DATE[]", ["infinity", dt.date(2024, 1, 31)]),
    typed("MAP {'a': 1}", T.MAP, "MAP(VARCHAR, INTEGER)", [("a", 1)]),
    typed("MAP {1: INTERVAL 1 day}", T.MAP, "MAP(INTEGER, INTERVAL)", [(1, "1 day")]),
    typed("{'a': 1, 'b \"c': 'x'}", T.STRUCT, 'STRUCT(a INTEGER, "b ""c" VARCHAR)', {"a": 1, 'b "c': "x"}),
    typed("{'a': [1::HUGEINT]}", T.STRUCT, "STRUCT(a HUGEINT[])", {"a": [Decimal(1)]}),
    typed("row(1, 'x')", T.STRUCT, "TUPLE(INTEGER, VARCHAR)", {"field0": 1, "field1": "x"}),
    typed("union_value(n := 1)", T.UNION, "UNION(n INTEGER)", 1),
    typed("TIMETZ '10:20:30+02'", T.USER_DEFINED, "TIME WITH TIME ZONE", "10:20:30+02"),
    TypeFact(
        "TIMESTAMPTZ",
        "SELECT TIMESTAMPTZ '2024-01-31 10:20:30+02' UNION ALL SELECT NULL",
        T.TIMESTAMP_TZ,
        "TIMESTAMP WITH TIME ZONE",
        dt.datetime(2024, 1, 31, 8, 20, 30, tzinfo=dt.UTC),
    ),
)

FACTS = EngineFacts(
    takes_rows=True,
    slow_sql="SELECT sum(a.range * b.range) FROM range(300000) a, range(300000) b",
    rows_sql=lambda rows: f"SELECT range AS n FROM range({rows})",
    wide_rows_sql=lambda rows, size: (
        f"SELECT repeat('x', {size - 10}) || lpad(range::VARCHAR, 10, ' ') FROM range({rows})"
    ),
    text_sql=lambda text: "SELECT '" + text.replace("'", "''") + "'",
    bad_table_sql="SELECT * FROM no_such_table",
    bad_table_message="Table with name no_such_table does not exist",
    misspelled_at=(2, 9),
    types=TYPES,
    changes=(
        Change("CREATE TABLE {t} (n INTEGER, s VARCHAR)"),
        Change("INSERT INTO {t} VALUES (1, 'a'), (2, 'b'), (3, 'returning')", rows=3),
        Change("UPDATE {t} SET s = 'c' WHERE n > 1", rows=2),
        Change("UPDATE {t} SET s = 'c' WHERE n > 100", rows=0),
        Change("INSERT INTO {t} VALUES (4, 'd') RETURNING n AS \"Count\"", has_result_set=True),
        Change("SELECT * FROM {t}", has_result_set=True),
        Change("CREATE VIEW {t}_v AS SELECT * FROM {t}"),
        Change("DROP VIEW {t}_v"),
        Change("DELETE FROM {t}", rows=4),
        Change("DROP TABLE {t}"),
    ),
    session_state=(
        SessionState("temporary table", "CREATE TEMP TABLE mine AS SELECT 1 AS n", "SELECT n FROM mine", 1),
        SessionState("variable", "SET VARIABLE mine = 42", "SELECT getvariable('mine')", 42),
        SessionState("zone", "SET TimeZone = 'Asia/Tokyo'", "SELECT current_setting('TimeZone')", "Asia/Tokyo"),
        SessionState("schema", "USE information_schema", "SELECT current_schema()", "information_schema"),
    ),
    unknown_database="no_such_schema",
    known_database="main",
    fails_midway_sql="SELECT CASE WHEN range = 1500000 THEN error('boom') ELSE range END FROM range(2000000)",
    driver_words=("_duckdb", "duckdb.", "Exception", "Stack Trace", "/home/", "/root/", "PID", "held.duckdb"),
)


async def engines_of_one_pool(new: Callable[[], E]) -> AsyncGenerator[Callable[[], E]]:
    """Yield the function while one of its engines is open. Their pool keeps its processes as long as it has engines, so
    that tests need not start one each, which takes half a second of CPU time.
    """
    keeper = new()
    await keeper.ping()
    yield new
    await keeper.close()


@pytest.fixture(scope="module")
async def file_engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Callable[[], DuckdbEngine]]:
    """A function that returns an engine. All engines use one process, which has their file open."""
    directory, processes = tmp_path_factory.mktemp("duckdb"), duckdb_processes()
    new = partial(DuckdbEngine, path="facts.duckdb", root=directory, resources=RESOURCES, processes=processes)
    async for one in engines_of_one_pool(new):
        yield one


@pytest.fixture(scope="module")
async def memory_engine() -> AsyncGenerator[Callable[[], DuckdbEngine]]:
    """A function that returns an engine. It uses the spare process that was started for the engine before it."""
    async for new in engines_of_one_pool(partial(DuckdbEngine, processes=duckdb_processes(), resources=RESOURCES)):
        yield new


class TestDuckdbEngine(EngineContract):
    facts: ClassVar[EngineFacts] = FACTS
    tested_with = "DuckDB 2.0"

    @pytest.fixture
    async def engine(self, file_engine: Callable[[], DuckdbEngine]) -> AsyncGenerator[DuckdbEngine]:
        engine = file_engine()
        yield engine
        await engine.close()

    @pytest.fixture
    async def unreachable_engine(self, tmp_path: Path) -> AsyncGenerator[DuckdbEngine]:
        with held_by_another_process(tmp_path / "held.duckdb"):
            engine = DuckdbEngine(path="held.duckdb", root=tmp_path)
            yield engine
            await engine.close()

    async def running_statements(self, engine: Engine) -> int:
        assert isinstance(engine, DuckdbEngine)
        return engine.busy


class TestDuckdbInMemory(TestDuckdbEngine):
    """The same tests with a private in-memory database per session."""

    known_failures: ClassVar[Mapping[str, pytest.MarkDecorator]] = {
        "test_change_is_visible_to_the_next_session": pytest.mark.never(
            "an in-memory database belongs to one session and ends with it (Contract platform 5.11)"
        )
    }

    @pytest.fixture
    async def engine(self, memory_engine: Callable[[], DuckdbEngine]) -> AsyncGenerator[DuckdbEngine]:
        engine = memory_engine()
        yield engine
        await engine.close()


@contextmanager
def held_by_another_process(file: Path) -> Generator[None]:
    """Lock the database file from another process."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD_FILE, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield
        holder.communicate("")
