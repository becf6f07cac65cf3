"""DuckDB connections, values and statements."""

import asyncio
import datetime as dt
import sys
from collections.abc import AsyncGenerator
from functools import cache, partial
from pathlib import Path

import duckdb
import psutil
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contract.engine_contract import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, failure, operation, run
from tests.fixtures.processes import EngineProcessList
from tests.refusals import raises_code

from queryserver.engines.blocking_drivers import Interrupted
from queryserver.engines.duckdb.connection import DuckdbConnection, StatementLimits
from queryserver.engines.duckdb.database import DuckdbDatabase
from queryserver.engines.duckdb.engine import DuckdbEngine
from queryserver.engines.duckdb.failures import opening_errors, statement_errors
from queryserver.engines.duckdb.limits import DuckdbLimits
from queryserver.engines.duckdb.values import DuckdbAnswer, correct_batch
from queryserver.engines.protocol import EngineSession, OperationState
from queryserver.errors.statements import EngineError, EngineUnavailable, SessionLost, StatementRejected
from queryserver.formats.arrow import Column, ResultType
from queryserver.sql.markers import BoundStatement, StatementParameters
from queryserver.sql.parameters import read_parameters
from queryserver.sql.positions import position_of

MIB = 1024 * 1024


async def exit_code(program: str, argument: Path) -> int | None:
    """Run a Python program in a new process; return its exit code."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(argument))
    async with asyncio.timeout(60):
        return await process.wait()


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncGenerator[DuckdbEngine]:
    engine = DuckdbEngine(path="own.duckdb", root=tmp_path, max_statements=2)
    yield engine
    await engine.close()


@pytest.fixture
async def session(engine: DuckdbEngine) -> AsyncGenerator[EngineSession]:
    async with engine.session(USER, NO_OPTIONS) as session:
        yield session


def test_only_file_database_is_limited_to_one_process(tmp_path: Path) -> None:
    assert DuckdbEngine(path="own.duckdb", root=tmp_path).capabilities.one_process
    assert not DuckdbEngine().capabilities.one_process


async def test_stored_rows_are_readable_after_the_engine_is_closed(tmp_path: Path) -> None:
    for expected in (1, 2):
        engine = DuckdbEngine(path="own.duckdb", root=tmp_path)
        async with engine.session(USER, NO_OPTIONS) as session:
            await run(session, "CREATE TABLE IF NOT EXISTS t (n INTEGER)")
            await run(session, "INSERT INTO t VALUES (1)")
            assert (await run(session, "SELECT count(*) FROM t")).cell == expected
        await engine.close()


@pytest.mark.item(34)
@pytest.mark.slow
async def test_twenty_million_rows_stream_in_constant_memory(session: EngineSession) -> None:
    process, rows, peak = psutil.Process(), 0, 0
    async with operation(session, "SELECT range AS n, 'x' || range AS s FROM range(20000000)") as handle:
        await ended(session, handle)
        before = process.memory_info().rss
        async for batch in session.batches(handle):
            rows += batch.num_rows
            peak = max(peak, process.memory_info().rss)
    assert rows == 20_000_000
    assert peak - before < 100 * MIB


async def test_returned_rows_are_distinguished_from_change_count(session: EngineSession) -> None:
    await run(session, "CREATE TABLE t (n BIGINT)")
    counted = await run(session, 'INSERT INTO t SELECT 5 AS "Count" -- returning')
    assert (counted.status.has_result_set, counted.status.modified_rows) == (False, 1)
    returned = await run(session, 'INSERT INTO t VALUES (7) RETURNING n AS "Count"')
    assert returned.rows == [(7,)]
    assert (await run(session, 'SELECT count(*) AS "Count" FROM t')).rows == [(2,)]


async def test_statement_that_returns_rows_has_result_set(session: EngineSession, subtests: pytest.Subtests) -> None:
    for statement in [
        "EXPLAIN SELECT 1",
        "SHOW TABLES",
        "DESCRIBE SELECT 1",
        "SUMMARIZE SELECT 1",
        "PRAGMA version",
        "PIVOT t ON n",
        "CALL pragma_version()",
        "VALUES (1)",
        "FROM t",
        "WITH w AS (SELECT 1) FROM w",
        "TABLE t",
    ]:
        with subtests.test(statement=statement):
            await run(session, "CREATE OR REPLACE TABLE t AS SELECT 1 AS n")
            assert (await run(session, statement)).columns


async def test_query_runs_only_once(session: EngineSession) -> None:
    await run(session, "CREATE SEQUENCE s")
    for expected in (1, 2):
        assert (await run(session, "SELECT (nextval('s')::UHUGEINT)")).cell == expected


async def test_union_in_list_keeps_its_values(session: EngineSession) -> None:
    answer = await run(session, "SELECT [union_value(n := 1)::UNION(n INTEGER, s VARCHAR), 'x'] AS v")
    assert answer.columns[0].type is ResultType.ARRAY
    assert answer.cell == [1, "x"]


async def test_statement_waits_while_all_threads_are_busy(engine: DuckdbEngine) -> None:
    slow = "SELECT sum(a.range * b.range) FROM range(300000) a, range(300000) b"
    async with (
        engine.session(USER, NO_OPTIONS) as one,
        engine.session(USER, NO_OPTIONS) as two,
        engine.session(USER, NO_OPTIONS) as three,
        operation(one, slow) as first,
        operation(two, slow),
        operation(three, "SELECT 1") as last,
    ):
        assert (await three.poll(last, wait_s=0.3)).state is OperationState.PENDING
        assert engine.busy == 2
        await one.cancel(first)
        assert (await ended(three, last, within_s=60)).state is OperationState.FINISHED


async def test_canceled_waiting_statement_never_runs(engine: DuckdbEngine, session: EngineSession) -> None:
    slow = "SELECT sum(a.range * b.range) FROM range(300000) a, range(300000) b"
    await run(session, "CREATE TABLE t (n INTEGER)")
    async with (
        engine.session(USER, NO_OPTIONS) as one,
        engine.session(USER, NO_OPTIONS) as two,
        operation(one, slow),
        operation(two, slow),
        operation(session, "INSERT INTO t VALUES (1)") as handle,
    ):
        await session.cancel(handle)
        assert (await session.poll(handle, wait_s=1)).state is OperationState.CANCELED
    assert (await run(session, "SELECT count(*) FROM t")).cell == 0


async def test_progress_increases_while_query_runs(session: EngineSession) -> None:
    async with operation(session, "SELECT sum(a.range * b.range) FROM range(200000) a, range(20000) b") as handle:
        seen = list[int]()
        async with asyncio.timeout(60):  # on a busy machine, each percent may take seconds
            while not seen or seen[-1] <= seen[0]:
                status = await session.poll(handle, wait_s=0.3)
                assert status.state in {OperationState.PENDING, OperationState.RUNNING}
                seen.append(status.progress or 0)
    assert seen == sorted(seen)


async def test_error_location_refers_to_the_submitted_statement(session: EngineSession) -> None:
    for sql in (
        "CREATE TABLE t (n INTEGER, s VARCHAR)",
        "INSERT INTO t VALUES (1, 'x')",
        "CREATE TABLE u (n INTEGER, m INTEGER)",
        "CREATE VIEW v AS SELECT n,   m AS other FROM u",
        "ALTER TABLE u DROP COLUMN m",
    ):
        await run(session, sql)
    for sql, place in (
        ("-- 日本\r\n/* a */ SELECT\t'é😀', nope FROM t; -- b", (2, 22)),
        ("INSERT INTO t SELECT n, nope FROM t", (1, 25)),
        ("EXPLAIN SELECT nope FROM t", (1, 16)),
        ("MERGE INTO t USING u ON nope WHEN MATCHED THEN DELETE", (1, 25)),
        # The error is raised while rows are read. DuckDB then counts lines in the expressions that wrap text columns.
        ("SELECT s,\n s::INTEGER,\n 2,\n 3\nFROM t", (2, 3)),
        # For these statements, DuckDB's position refers to another text, such as the definition of the view.
        ("SELECT 1,  2, 3, 4 FROM v", None),
        ("SHOW nowhere", None),
    ):
        error = await failure(session, sql)
        assert isinstance(error, StatementRejected)
        found = position_of(error.location, sql)
        assert (found and (found.line, found.column)) == place, (sql, error.message)


async def test_locating_an_error_keeps_the_transaction_open(session: EngineSession) -> None:
    for sql in ("CREATE TABLE t (n INTEGER)", "BEGIN", "INSERT INTO t VALUES (1)"):
        await run(session, sql)
    assert (await failure(session, "SELECT nope FROM t")).location is None
    assert (await run(session, "SELECT count(*) FROM t")).cell == 1
    await run(session, "COMMIT")
    assert (await run(session, "SELECT count(*) FROM t")).cell == 1
    assert (await failure(session, "SELECT nope FROM t")).location is not None


async def test_closed_engine_releases_file_and_ends_process(
    tmp_path: Path, engine_processes: EngineProcessList
) -> None:
    engine = DuckdbEngine(path="own.duckdb", root=tmp_path)
    async with engine.session(USER, NO_OPTIONS) as session:
        await run(session, "CREATE TABLE t (n INTEGER)")
        await engine.close()
        assert not await session.is_alive()
    assert not engine_processes()
    holder = "import duckdb, sys; duckdb.connect(sys.argv[1]).execute('FROM t')"
    assert await exit_code(holder, tmp_path / "own.duckdb") == 0


async def test_non_database_file_is_reported_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "junk.duckdb").write_text("no database" * 1000)
    engine = DuckdbEngine(path="junk.duckdb", root=tmp_path)
    with pytest.raises(EngineUnavailable, match=r"^The file is not a DuckDB database\.$"):
        await engine.ping()
    await engine.close()


# The value depends on `range`, because the planner would evaluate a constant.
DEEP = "(repeat('[', 300 + range::INT) || repeat(']', 300 + range::INT))::JSON"


def opened_database(directory: Path) -> DuckdbDatabase:
    return DuckdbDatabase(
        directory,
        directory / "own.duckdb",
        {},
        read_only=False,
        limits=DuckdbLimits(cell_max_bytes=MIB, temporary_max_bytes=MIB),
    )


def connected(database: DuckdbDatabase) -> DuckdbConnection:
    return database.connect(NO_OPTIONS, is_private=False)


def test_internal_error_while_statement_runs_invalidates_database(tmp_path: Path) -> None:
    database = opened_database(tmp_path)
    connection = connected(database)
    connection.run("CREATE TABLE kept AS SELECT 1 AS n")
    with pytest.raises(StatementRejected, match="INTERNAL Error"):
        connection.run(f"CREATE TABLE t AS SELECT json_structure({DEEP}) AS x FROM range(1)")
    assert database.has_ended
    assert not connection.is_usable
    connection.close()
    database.close()
    again = opened_database(tmp_path)
    assert rows(connected(again).run("FROM kept")) == 1


def test_internal_error_while_rows_are_fetched_invalidates_database(tmp_path: Path) -> None:
    database = opened_database(tmp_path)
    connection, text = connected(database), "CASE WHEN range < 500000 THEN '1' ELSE {} END"
    with pytest.raises(StatementRejected, match="INTERNAL Error"):
        rows_of_all(connection.run(f"SELECT json_structure({text.format(DEEP)}::JSON) FROM range(500100)"))
    assert database.has_ended
    assert not connection.is_usable


def test_internal_planner_error_keeps_database_usable(tmp_path: Path) -> None:
    database = opened_database(tmp_path)
    connection = connected(database)
    with pytest.raises(StatementRejected, match="INTERNAL Error"):
        connection.run("SELECT reservoir_quantile(5, NULL::INT[])")
    with pytest.raises(StatementRejected, match="INTERNAL Error: of a text"):
        connection.run("SELECT error('INTERNAL Error: of a text')")
    assert not database.has_ended
    assert rows(connection.run("SELECT 1")) == 1


CLASSES = sorted(
    {
        member
        for member in vars(duckdb).values()
        if isinstance(member, type)
        and issubclass(member, Exception)
        and member is not duckdb.Warning  # required by PEP 249
    },
    key=lambda member: member.__name__,
)
MEANINGS: dict[type[Exception], type[EngineError]] = {
    duckdb.InterruptException: Interrupted,
    duckdb.ConnectionException: SessionLost,
}


def test_driver_exception_classes_are_found() -> None:
    assert len(CLASSES) >= 28


@pytest.mark.parametrize("raised", CLASSES)
def test_every_statement_exception_becomes_a_domain_error(raised: type[Exception]) -> None:
    with pytest.raises(EngineError) as caught, statement_errors(None):
        raise raised("Some Error: what happened")
    assert type(caught.value) is MEANINGS.get(raised, StatementRejected)


@pytest.mark.parametrize("raised", CLASSES)
def test_every_exception_on_open_becomes_engine_unavailable(raised: type[Exception]) -> None:
    with pytest.raises(EngineUnavailable), opening_errors():
        raise raised("Some Error: /srv/data/x.duckdb held by PID 42")


def test_engine_errors_raised_by_arrow_reader_keep_their_meaning() -> None:
    with pytest.raises(StatementRejected, match=r"^Invalid Input Error: boom$"), statement_errors(None):
        raise OSError("Invalid Input Error: boom")
    with pytest.raises(Interrupted), statement_errors(None):
        raise OSError("INTERRUPT Error: Interrupted!")


def test_paths_and_stack_traces_are_removed_from_errors() -> None:
    text = 'IO Error: no room in "/srv/data/x.duckdb"\n\nStack Trace:\n/usr/lib/x.so(+0x1)'
    with pytest.raises(StatementRejected) as caught, statement_errors(Path("/srv/data")):
        raise duckdb.IOException(text)
    assert caught.value.message == 'IO Error: no room in "x.duckdb"'


def opened(cell_max_bytes: int = 16 * MIB) -> DuckdbConnection:
    return DuckdbConnection(duckdb.connect(":memory:"), Path("/nowhere"), limits=StatementLimits(cell_max_bytes))


def rows(answer: DuckdbAnswer) -> int:
    return sum(batch.num_rows for batch in answer.next_batches())


def rows_of_all(answer: DuckdbAnswer) -> int:
    return sum(iter(partial(rows, answer), 0))


def test_error_in_later_batch_omits_excerpt_of_bound_statement() -> None:
    connection = opened()
    values = StatementParameters(read_parameters(["s3cret"]))
    text = "SELECT CAST(CASE WHEN range < 500000 THEN '1' ELSE ? END AS INT) AS a FROM range(500100)"

    def read() -> None:
        """Run the statement and read all rows. Either call may raise the error, because DuckDB computes rows in
        advance.
        """
        answer = connection.run(BoundStatement(text, "duckdb", values))
        try:
            rows_of_all(answer)
        finally:
            answer.close()

    with pytest.raises(StatementRejected, match="Could not convert") as caught:
        read()
    assert "LINE" not in caught.value.message
    connection.close()


@pytest.mark.parametrize(("value", "kind"), [
    ("repeat('x', 1048576 + 1)", "cell"), ("repeat('x', 1048576 + 1)::BLOB", "cell"), ("range(200000)", "cell"),
    ("[repeat('é', 600000)]", "cell"), ("repeat('x', 1000000), repeat('y', 1000000), repeat('z', 1000000)", "row"),
])  # fmt: skip
def test_oversized_value_fails_statement_but_not_session(value: str, kind: str) -> None:
    connection = opened(cell_max_bytes=MIB)
    with raises_code(f"{kind}_too_large", match="in row 0 of column big" if kind == "cell" else "^Row 0 "):
        connection.run(f"SELECT 1 AS small, {value} AS big")
    with raises_code(f"{kind}_too_large", match="(?i)row 5000 "):
        rows_of_all(
            connection.run(
                f"SELECT range, {value} AS big FROM range(5000, 5001) "
                f"UNION ALL BY NAME SELECT range FROM range(5000) ORDER BY 1"
            )
        )
    assert rows(connection.run("SELECT repeat('x', 1048576)")) == 1
    connection.close()


@pytest.mark.parametrize("sql", [
    "SELECT range AS n, 'x' || range AS s, {'a': [range]} AS t FROM range(300000)",
    "SELECT union_value(n := range)::UNION(n BIGINT, s VARCHAR) AS u FROM range(9000)",
    "SELECT CASE WHEN range = 4000 THEN DATE 'infinity' ELSE DATE '2024-01-01' END AS d FROM range(9000)",
])  # fmt: skip
def test_vectors_become_ordered_batches_of_limited_size(sql: str) -> None:
    connection = opened()
    answer, batches = connection.run(sql), list[pa.RecordBatch]()
    while found := answer.next_batches():
        batches.extend(found)
    values = [value for batch in batches for value in batch.column(0).to_pylist()]
    plain = [value for (value,) in database().execute(f"SELECT #1 FROM ({sql})").fetchall()]
    assert [str(value) for value in values] == ["infinity" if value == dt.date.max else str(value) for value in plain]
    assert max(batch.nbytes for batch in batches) <= 4 * MIB
    connection.close()


COUNTING = "SELECT range AS n FROM range(300000)"


def test_small_vectors_are_merged_into_one_batch() -> None:
    connection = opened()
    assert len(connection.run(COUNTING).next_batches()) == 1
    connection.close()


@pytest.mark.parametrize(("statement", "names"), [
    ("SELECT nextval('s') AS a, nextval('s') AS a", ["a", "a"]),
    ("INSERT INTO t VALUES (5, 6) RETURNING i, i, I, i_1", ["i", "i", "i", "i_1"]),
    ("INSERT INTO t VALUES (5, 6) RETURNING *", ["i", "i_1"]),
    ("UPDATE t SET i = 1 RETURNING i, INTERVAL 1 MONTH AS i, UHUGEINT '1' AS j", ["i", "i", "j"]),
    ("EXECUTE p", ["a", "a"]),
    ("SELECT 1 AS a, 2 AS a, TIMETZ '10:20:30+02' AS a_1", ["a", "a", "a_1"]),
])  # fmt: skip
def test_columns_keep_duckdb_names_including_duplicates(statement: str, names: list[str]) -> None:
    connection = opened()
    for sql in ("CREATE SEQUENCE s", "CREATE TABLE t (i INT, i_1 INT)", "PREPARE p AS SELECT 1 AS a, 2 AS a"):
        connection.run(sql)
    answer = connection.run(statement)
    assert [column.name for column in answer.columns or ()] == names
    for batch in answer.next_batches():
        assert batch.schema.names == names
    connection.close()


COLUMN = (Column("v", ResultType.DATE, ""),)


def written(array: pa.Array) -> list[object]:
    return correct_batch(pa.RecordBatch.from_arrays([array], names=["v"]), COLUMN).column(0).to_pylist()


@cache
def database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def answers(sql: str, values: list[int]) -> list[str]:
    return [text for (text,) in database().execute(sql, [values]).fetchall()]


@given(days=st.lists(st.integers(-2_000_000, 4_000_000), min_size=1, max_size=50))
def test_dates_match_duckdb_text(days: list[int]) -> None:
    texts = answers("SELECT (DATE '1970-01-01' + d::INTEGER)::DATE::VARCHAR FROM (SELECT unnest(?) AS d)", days)
    assert [str(value) for value in written(pa.array(days, pa.int32()).view(pa.date32()))] == texts


@given(ticks=st.lists(st.integers(-(10**17), 5 * 10**17), min_size=1, max_size=50))
def test_timestamps_match_duckdb_text(ticks: list[int]) -> None:
    texts = answers("SELECT make_timestamp(t)::VARCHAR FROM (SELECT unnest(?::BIGINT[]) AS t)", ticks)
    values = written(pa.array(ticks, pa.int64()).view(pa.timestamp("us")))
    for value, text in zip(values, texts, strict=True):
        assert text == (engine_text(value) if isinstance(value, dt.datetime) else value)


def engine_text(value: dt.datetime) -> str:
    return value.isoformat(" ").rstrip("0").rstrip(".") if value.microsecond else value.isoformat(" ")


def test_infinity_is_recognized_in_every_unit() -> None:
    for unit in ("s", "ms", "us", "ns"):
        array = pa.array([2**63 - 1, 0, None, -(2**63 - 1)], pa.int64()).view(pa.timestamp(unit))
        values = written(array)
        assert (values[0], values[2], values[3]) == ("infinity", None, "-infinity")
    assert written(pa.array([2**31 - 1, None], pa.int32()).view(pa.date32())) == ["infinity", None]


def test_finite_dates_keep_date32_type() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), None])], names=["v"])
    assert correct_batch(batch, COLUMN).schema.field(0).type == pa.date32()


def test_sliced_union_keeps_its_rows() -> None:
    codes, members = pa.array([0, 1, 0], pa.int8()), [pa.array([1, None, 3]), pa.array([None, "b", None])]
    sparse = pa.UnionArray.from_sparse(codes, members, ["n", "s"])
    batch = pa.RecordBatch.from_arrays([sparse], names=["v"])
    assert correct_batch(batch.slice(1), COLUMN).column(0).to_pylist() == ["b", 3]
