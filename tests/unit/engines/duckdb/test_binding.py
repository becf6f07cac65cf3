"""Parameter binding in DuckDB: only the statement that the guard has checked runs, and it runs once (ADR 61)."""

import datetime as dt
from collections.abc import AsyncGenerator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.contract.engine_contract import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, failure, operation, run, started
from tests.contract.engine_parameters import NOT_FINITE, VALUES, typed

from queryserver.engines.duckdb.binding import ParameterizedStatement, bind_markers
from queryserver.engines.duckdb.engine import DuckdbEngine
from queryserver.engines.duckdb.guard import tokenize
from queryserver.engines.protocol import EngineSession, OperationState
from queryserver.errors.statements import StatementRejected
from queryserver.sql.literals import DUCKDB
from queryserver.sql.markers import BoundStatement, StatementParameters
from queryserver.sql.parameters import read_parameters

SECRET = "a\nsecret-value\n"


@pytest.fixture
def native() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t (n BIGINT, s VARCHAR)")
    return connection


@pytest.fixture
async def session(tmp_path: Path) -> AsyncGenerator[EngineSession]:
    root = tmp_path / "databases"
    root.mkdir()
    (tmp_path / "secret.csv").write_text(SECRET)
    (root / "inside.csv").write_text(SECRET)
    engine = DuckdbEngine(path="own.duckdb", root=root)
    async with engine.session(USER, NO_OPTIONS) as session:
        for statement in ("CREATE TABLE t AS SELECT 1 AS n", "CREATE SEQUENCE s", "SET VARIABLE x = 'SELECT 1'"):
            await run(session, statement)
        yield session
    await engine.close()


def files_of(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in root.rglob("*")}


def bound(statement: str, *values: object, dialect: str = "duckdb") -> BoundStatement:
    return BoundStatement(statement, dialect, StatementParameters(read_parameters(list(values))))


def what_runs(native: duckdb.DuckDBPyConnection, statement: BoundStatement) -> ParameterizedStatement | None:
    text = statement.render(DUCKDB.write)
    return bind_markers(native, statement, native.extract_statements(text)[0], tokenize(text))


MORE_VALUES: tuple[Any, ...] = (
    2**31, -(2**31), -(2**31) - 1, typed("bigint", 5), typed("decimal", 7), typed("decimal", "9" * 38),
    typed("decimal", "0." + "0" * 37 + "1"), typed("decimal", "1e5"), typed("decimal", "-0.5"), typed("double", 5),
    typed("double", "-0.0"), typed("timestamp", "0001-01-01 00:00:00"),
    typed("timestamp", "9999-12-31 23:59:59.999999"),
    typed("timestamp_tz", "1969-12-31 23:59:59.000001-11:30"), typed("time", "00:00:00"), typed("date", "9999-12-31"),
    typed("time", "23:59:59.999999"), typed("binary", ""), "", [], [[]], [[1], [], None], ["a", None], [1, 2.5],
    [typed("bigint", 1), 2], [typed("decimal", "1.50"), 2], [True, None], [None], typed("array", [typed("date", None)]),
    [[["x'", "y"]], [None]], [2**40, 1],
)  # fmt: skip


@pytest.mark.parametrize("value", [given for given, _ in (*VALUES, *NOT_FINITE)] + list(MORE_VALUES))
def test_bound_value_has_same_value_and_type_as_its_literal(native: duckdb.DuckDBPyConnection, value: object) -> None:
    native.execute("SET TimeZone = 'Asia/Tokyo'")
    statement = bound("SELECT typeof(v), v::VARCHAR, v FROM (SELECT ? AS v)", value)
    literal = native.sql(statement.render(DUCKDB.write)).fetchall()
    found = what_runs(native, statement)
    assert found is not None
    assert repr(native.sql(found.statement, params=found.values).fetchall()) == repr(literal)


@pytest.mark.parametrize("statement", [
    "SELECT ?", "-- ?\nSELECT ?", "WITH a AS (SELECT ? AS x) SELECT * FROM a", "FROM t WHERE n = ?", "VALUES (?)",
    "FROM range(?)", "SELECT 1 LIMIT ?", "INSERT INTO t VALUES (?, 'é')", "UPDATE t SET n = ?", "SELECT 'é', [?]",
    "DELETE FROM t WHERE n=?", "PIVOT t ON n IN (?)", "SELECT 5-?", "SUMMARIZE SELECT ?",
    "MERGE INTO t USING (SELECT 1 AS m) ON n = m WHEN NOT MATCHED THEN INSERT VALUES (?, 'a')",
    "SELECT list_transform([1], lambda x: x + ?)", "SELECT n, sum(n) OVER (ORDER BY n ROWS ? PRECEDING) FROM t",
])  # fmt: skip
def test_queries_and_row_changes_are_bound(native: duckdb.DuckDBPyConnection, statement: str) -> None:
    found = what_runs(native, bound(statement, 7))
    assert found is not None
    assert found.values == [7]
    assert "7" not in found.text


@pytest.mark.parametrize("statement", [
    "CREATE TABLE u AS SELECT ? AS a", "CREATE VIEW v AS SELECT ? AS a", "EXPLAIN SELECT ?", "SET VARIABLE a = ?",
    "PREPARE p AS SELECT ? AS a", "CALL pragma_table_info(?)", "PRAGMA table_info(?)", "SELECT DATE ?",
    "SELECT INTERVAL ? DAY", "SELECT 1::DECIMAL(?)", "SELECT * FROM query(?)", "SELECT $1 + ?", "SELECT ?, $a",
    "SELECT ?\n'abc'", "COPY t TO ?", "ATTACH ?", "EXECUTE p(?)", "SELECT nextval('s'), ?", "DELETE FROM t RETURNING ?",
    "INSERT INTO t SELECT length(s || ?), '' FROM t GROUP BY length(s || ?)", "DELETE FROM t WHERE s=?RETURNING n",
    "UPDATE t SET n = (SELECT 1 ORDER BY ? LIMIT 1)", 'SELECT "NextVal"(?)',
])  # fmt: skip
def test_literals_are_kept_where_duckdb_cannot_bind_parameters(
    native: duckdb.DuckDBPyConnection, statement: str
) -> None:
    values = bound(statement, *["2024"] * statement.count("?"))
    with suppress(duckdb.ParserException):  # `DECIMAL('2024')` is invalid even as a literal
        assert what_runs(native, values) is None
    assert "'2024'" in values.render(DUCKDB.write)


@pytest.mark.parametrize(
    ("dialect", "statement"),
    [("trino", "SELECT $$?$$"), ("mysql", "SELECT 1 -- a\n--?\n"), ("sqlite", "SELECT $a$ ? $a$, 1")],
)
def test_placeholder_that_duckdb_parses_differently_is_refused(
    native: duckdb.DuckDBPyConnection, dialect: str, statement: str
) -> None:
    """The rules of the other dialect find a placeholder where DuckDB reads a string or a comment."""
    with pytest.raises(StatementRejected, match="ambiguous"):
        what_runs(native, bound(statement, 7, dialect=dialect))


REACHING = {
    "SELECT * FROM read_csv(?)": "{outside}/secret.csv",
    "SELECT * FROM read_text(?)": "{root}/inside.csv",
    "SELECT * FROM read_blob([?])": "/etc/passwd",
    "SELECT * FROM glob(?)": "{outside}/*",
    "SELECT * FROM sniff_csv(?)": "{outside}/secret.csv",
    "FROM ?": "{outside}/secret.csv",
    "SELECT * FROM t, ?": "{outside}/secret.csv",
    "SELECT * FROM query(?)": "FROM read_text('{outside}/secret.csv')",
    "SELECT * FROM query('FROM query(' || ? || ')')": "'SELECT 1'",
    "SELECT * FROM query('SELECT current_setting($1)'), (SELECT ?)": "temp_directory",
    "SELECT * FROM query('FROM read_text($1)'), (SELECT ?)": "{root}/inside.csv",
    "SELECT * FROM query('FROM query($1)'), (SELECT ?)": "SELECT current_setting('temp_directory')",
    "SELECT * FROM query(getvariable('x')), (SELECT ?)": "x",
    "SELECT * FROM query_table(?)": "duckdb_settings",
    "SELECT * FROM query_table([?])": "{outside}/secret.csv",
    "SELECT current_setting(?)": "temp_directory",
    "SELECT current_setting(? || '')": "temp_directory",
    "SELECT current_setting($1), ?": "temp_directory",
    "SELECT getenv(?)": "HOME",
    "SELECT json_execute_serialized_sql(?)": "{{}}",
    "ATTACH ?": "{outside}/new.duckdb",
    "ATTACH ? AS other": ":memory:",
    "COPY t TO ?": "{root}/own.duckdb.wal",
    "COPY t FROM ?": "{outside}/secret.csv",
    "EXPORT DATABASE ?": "{root}/out",
    "LOAD ?": "{outside}/x.duckdb_extension",
    "SET temp_directory = ?": "/etc",
    "PREPARE p AS COPY t TO ?": "{root}/own.duckdb.wal",
    "CREATE VIEW v AS SELECT * FROM read_csv(?)": "{outside}/secret.csv",
    "INSERT INTO t SELECT length(content) FROM read_text(?)": "{root}/inside.csv",
    "CREATE MACRO m(p) AS TABLE FROM read_text(p || ?)": "{root}/inside.csv",
    "SELECT ?; COPY t TO 'x.csv'": "x",
    "SELECT '?' || $$ ? $$ || ?; DROP TABLE t": "x",
}  # fmt: skip


@pytest.mark.security("T7")
async def test_bound_value_has_no_more_access_than_its_literal(
    session: EngineSession, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    root = tmp_path / "databases"
    for template, value in REACHING.items():
        with subtests.test(statement=template, value=value):
            statement = template
            if statement.startswith("CREATE MACRO"):
                statement, made = "SELECT * FROM m(?)", bound(statement, "")
                await run(session, made)
            before = files_of(tmp_path)
            values = bound(statement, value.format(root=root, outside=tmp_path))
            error = await failure(session, values)
            assert isinstance(error, StatementRejected)
            assert "secret-value" not in error.message
            assert before == files_of(tmp_path)
            assert (await run(session, "SELECT sum(n) FROM t")).cell == 1


async def test_bound_statement_runs_only_once(session: EngineSession) -> None:
    for statement in (
        "SELECT nextval('s') + ?",
        "SELECT nextval('s') + 0 ORDER BY ?",
        "SELECT nextval('s') + ? LIMIT 1",
    ):
        await run(session, bound(statement, 1))
    await run(session, bound("INSERT INTO t SELECT nextval('s') + ?", 0))
    assert (await run(session, "SELECT currval('s')")).cell == 4
    assert (await run(session, "SELECT sum(n) FROM t")).cell == 1 + 4


async def test_failed_query_has_run_only_once(session: EngineSession, subtests: pytest.Subtests) -> None:
    """DuckDB evaluates nextval() while it plans a query, even in a macro, so planning the query twice would call it
    twice.
    """
    for statement, value, expected in [
        ("SELECT nextval('s'), CAST(? AS INT)", "abc", 2),
        ("SELECT CASE WHEN range >= 3000 THEN error(?) ELSE nextval('s')::VARCHAR END FROM range(4000)", "boom", None),
        ("SELECT m(), CAST(? AS INT)", "abc", 2),
        ("SELECT m(), n FROM t ORDER BY ?", 2, 2),
    ]:
        with subtests.test(statement=statement, value=value, expected=expected):
            at = {}
            for way in ("literal", "bound"):
                await run(session, "CREATE OR REPLACE SEQUENCE s")
                await run(session, "CREATE OR REPLACE MACRO m() AS nextval('s')")
                values = bound(statement, value)
                with suppress(StatementRejected):
                    await run(session, values if way == "bound" else values.render(DUCKDB.write))
                at[way] = (await run(session, "SELECT nextval('s')")).cell
            assert at["bound"] == at["literal"]
            assert expected in (None, at["bound"])


async def test_failed_query_in_transaction_reports_its_original_error(session: EngineSession) -> None:
    await run(session, "BEGIN")
    assert "abc" in (await failure(session, bound("SELECT nextval('s'), CAST(? AS INT)", "abc"))).message
    await run(session, "ROLLBACK")


async def test_bound_row_changes_work_wherever_literals_do(session: EngineSession, subtests: pytest.Subtests) -> None:
    for statement, values, rows in [
        ("INSERT INTO t VALUES (?) RETURNING ? AS tag", (5, "x"), [("x",)]),
        ("UPDATE t SET n = ? RETURNING n, ?", (6, 7), [(6, 7)]),
        ("DELETE FROM t WHERE n = ? RETURNING n + ?", (1, 1), [(2,)]),
        ("INSERT INTO t SELECT n % ? FROM t GROUP BY n % ? RETURNING 1", (3, 3), [(1,)]),
        ("INSERT INTO t SELECT n FROM t ORDER BY ?", (1,), None),
    ]:
        with subtests.test(statement=statement, values=values, rows=rows):
            await run(session, "CREATE OR REPLACE TABLE t AS SELECT 1 AS n")
            answer = await run(session, bound(statement, *values))
            assert rows is None or answer.rows == rows


async def test_bound_number_in_order_by_is_a_column_position(session: EngineSession) -> None:
    """DuckDB rejects parameters in ORDER BY before the query runs, so the query is planned again with literals."""
    answer = await run(session, bound("SELECT n FROM (VALUES (2), (1)) v(n) ORDER BY ?", 1))
    assert answer.cell == 1


async def test_transaction_survives_replanned_query(session: EngineSession) -> None:
    await run(session, "BEGIN")
    await run(session, bound("INSERT INTO t VALUES (?)", 5))
    await run(session, bound("SELECT n FROM t ORDER BY ?", 1))
    assert isinstance(await failure(session, bound("SELECT nope + ?", 1)), StatementRejected)
    await run(session, "COMMIT")
    assert (await run(session, "SELECT sum(n) FROM t")).cell == 6


async def test_bound_statement_can_be_canceled(session: EngineSession) -> None:
    slow = "sum(a.range * b.range) FROM range(?) a, range(?) b"
    for statement in (f"SELECT {slow}", f"INSERT INTO t SELECT {slow}"):
        async with operation(session, bound(statement, 300_000, 300_000)) as handle:
            await started(session, handle)
            await session.cancel(handle)
            assert (await ended(session, handle)).state is OperationState.CANCELED
    assert (await run(session, "SELECT count(*) FROM t")).cell == 1


async def test_thousands_of_values_can_be_bound(session: EngineSession) -> None:
    places = ", ".join(["(?)"] * 5_000)
    answer = await run(session, bound(f"INSERT INTO t VALUES {places}", *range(5_000)))
    assert answer.status.modified_rows == 5_000
    listed = bound("SELECT len(?), len(?)", list(range(9_000)), ["a"] * 8_000)
    assert (await run(session, listed)).rows == [(9_000, 8_000)]


def test_decimals_and_timestamps_are_bound_exactly(native: duckdb.DuckDBPyConnection) -> None:
    found = what_runs(
        native, bound("SELECT ?, ?", typed("decimal", "1.50"), typed("timestamp_tz", "2024-01-31 10:20:30+02:00"))
    )
    assert found is not None
    assert found.text == "SELECT CAST($1 AS DECIMAL(3,2)) , $2"
    assert found.values == ["1.50", dt.datetime(2024, 1, 31, 8, 20, 30, tzinfo=dt.UTC)]
    assert native.sql(found.statement, params=found.values).fetchall()[0][0] == Decimal("1.50")
