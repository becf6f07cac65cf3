"""Statements with several rows of parameters: which statements are checked only once, and which rows run together."""

from collections.abc import Generator
from typing import Any

import duckdb
import pytest

from queryserver.engines.duckdb.binding import only_stores_values, row_offset, text_with_markers
from queryserver.engines.duckdb.connection import DuckdbConnection
from queryserver.engines.duckdb.guard import tokenize
from queryserver.errors.statements import StatementRejected
from queryserver.sql.literals import DUCKDB
from queryserver.sql.markers import BoundStatement, StatementParameters
from queryserver.sql.parameters import read_parameter_rows, read_parameters


def stores(statement: str, *values: object) -> bool:
    bound = BoundStatement(statement, "duckdb", StatementParameters(read_parameters(list(values))))
    return only_stores_values(tokenize(bound.render(DUCKDB.write)), bound)


@pytest.mark.parametrize("statement",
    ["INSERT INTO t VALUES (?, ?)",
    'INSERT INTO main."t (x)" (a, b) VALUES (?, ?)',
    "INSERT OR REPLACE INTO t(a, b) VALUES (?, ?), (1, 2)",
    "INSERT INTO t VALUES (?, ?) ON CONFLICT (a) DO UPDATE SET b = excluded.b",
    "UPDATE t SET a = ? WHERE (b = ? OR b IN (1, 2)) AND (NOT (a > 3))",
    "DELETE FROM t WHERE a = ? AND b <> ?"])  # fmt: skip
def test_stored_or_compared_values_are_not_function_arguments(statement: str) -> None:
    assert stores(statement, 1, "x")
    assert stores(statement, {"type": "decimal", "value": "1.5"}, {"type": "date", "value": "2024-01-31"})


@pytest.mark.parametrize("statement",
    ["INSERT INTO t SELECT * FROM read_csv(?) WHERE a = ?",
    "INSERT INTO t VALUES (upper(?), ?)",
    "INSERT INTO t VALUES (?, repeat('x', ?))",
    "INSERT INTO t VALUES (?, \"repeat\"('x', ?))",
    "INSERT INTO t VALUES (?.upper(), ?)",
    "INSERT INTO t VALUES (?, [x FOR x IN [?]])",
    "UPDATE t SET a = CAST(? AS VARCHAR(3)), b = ?",
    "INSERT INTO t SELECT ?, a FROM f (?)",
    "INSERT INTO t (a, b) SELECT getenv(?), ?"])  # fmt: skip
def test_guard_checks_each_row_when_statement_may_call_functions(statement: str) -> None:
    assert not stores(statement, "a", "b")


@pytest.mark.parametrize(("statement", "may_follow"),
    [("INSERT INTO t VALUES (?, ?)", True), ('insert into main."values" (a, b) values(?,upper(?)) ', True),
    ("INSERT INTO t VALUES (?, ?) ON CONFLICT DO NOTHING", False), ("INSERT INTO t VALUES (?, ?) RETURNING a", False),
    ("INSERT OR REPLACE INTO t VALUES (?, ?)", False), ("INSERT INTO t VALUES (?, 1), (?, 2)", False),
    ("INSERT INTO t VALUES (?, ?) -- )", False), ("INSERT INTO t VALUES (?, ?);", False),
    ("INSERT INTO t SELECT ?, ?", False), ("INSERT INTO t SELECT * FROM (VALUES (?, ?))", False),
    ("UPDATE t SET a = ?, b = (?)", False), ("INSERT INTO t BY NAME VALUES (?, ?)", True)])  # fmt: skip
def test_rows_are_joined_only_when_one_values_row_ends_the_statement(statement: str, may_follow: bool) -> None:
    text, _ = text_with_markers(BoundStatement(statement, "duckdb", StatementParameters(read_parameters([1, 2]))))
    found = row_offset(tokenize(text), text)
    assert (found is not None) == may_follow
    assert found is None or text[found:].replace(" ", "") in {"($1,$2)", "($1,upper($2))"}


@pytest.fixture
def connection() -> Generator[DuckdbConnection]:
    connection = DuckdbConnection(duckdb.connect(), None)
    connection.run("CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR)")
    yield connection
    connection.close()


def run_rows(connection: DuckdbConnection, statement: str, rows: list[list[Any]]) -> BoundStatement:
    bound = BoundStatement(statement, "duckdb", StatementParameters(read_parameter_rows(rows)))
    answer = connection.run(bound)
    assert answer.modified_rows == len(rows)
    return bound


def stored(connection: DuckdbConnection, query: str) -> list[Any]:
    return [tuple(row.values()) for batch in connection.run(query).next_batches() for row in batch.to_pylist()]


VALUES = [
    1, 2, 2.5, True, "s", 2**40, 7, None, None, [1, 2], ["a"], [1.5], "$1", "'",
    {"type": "decimal", "value": "1.50"}, {"type": "decimal", "value": "2.5"}, {"type": "date", "value": "2024-01-31"},
    {"type": "timestamp", "value": "2024-01-31 10:20:30"},
    {"type": "timestamp_tz", "value": "2024-01-31 10:20:30+02:00"},
]  # fmt: skip


@pytest.mark.parametrize("is_open", [False, True])
def test_value_in_joined_rows_is_stored_as_in_single_row(connection: DuckdbConnection, is_open: bool) -> None:
    for number, value in enumerate(VALUES):
        run_rows(connection, "INSERT INTO t VALUES (?, ?)", [[number, value]])
    alone = stored(connection, "FROM t ORDER BY a")
    connection.run("DELETE FROM t")
    if is_open:
        connection.run("BEGIN")
    run_rows(connection, "INSERT INTO t VALUES (?, ?)", [[number, value] for number, value in enumerate(VALUES)])
    assert stored(connection, "FROM t ORDER BY a") == alone


def test_similar_rows_run_together_and_failing_row_is_identified(connection: DuckdbConnection) -> None:
    sent = list[int]()
    native = connection.native

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(native, name)

        def execute(self, statement: Any, values: Any = None) -> Any:
            sent.append(len(values or ()))
            return native.execute(statement, values)

    connection.native = Counting()  # type: ignore[assignment]
    rows = [[number, f"x{number}"] for number in range(5_000)]
    run_rows(connection, "INSERT INTO t VALUES (?, ?)", rows)
    assert sent == [0, 2, 2000, 2000, 2000, 2000, 1998, 0]
    assert stored(connection, "SELECT count(*), min(b), max(a) FROM t") == [(5000, "x0", 4999)]
    rows = [[6_000 + number, "y"] for number in range(1_500)]
    more = read_parameter_rows([*rows, [4, "dup"], [9_000, "z"]])
    more = BoundStatement("INSERT INTO t VALUES (?, ?)", "duckdb", StatementParameters(more))
    with pytest.raises(StatementRejected, match="primary key"):
        connection.run(more)
    assert more.row == 1_500
    assert stored(connection, "SELECT count(*) FROM t") == [(5000,)]
