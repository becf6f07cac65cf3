"""Which statements of rows of values the guard reads once: those whose values reach nothing but columns."""

from tests.cases import each

from queryserver.engines.duckdb.binding import only_stores_values
from queryserver.engines.duckdb.guard import tokens_of
from queryserver.sql.literals import DUCKDB
from queryserver.sql.parameters import read_parameters
from queryserver.sql.places import Bound, StatementParameters


def stores(statement: str, *values: object) -> bool:
    bound = Bound(statement, "duckdb", StatementParameters(read_parameters(list(values))))
    return only_stores_values(tokens_of(bound.written(DUCKDB.write)), bound)


@each("statement",
    "INSERT INTO t VALUES (?, ?)",
    'INSERT INTO main."t (x)" (a, b) VALUES (?, ?)',
    "INSERT OR REPLACE INTO t(a, b) VALUES (?, ?), (1, 2)",
    "INSERT INTO t VALUES (?, ?) ON CONFLICT (a) DO UPDATE SET b = excluded.b",
    "UPDATE t SET a = ? WHERE (b = ? OR b IN (1, 2)) AND (NOT (a > 3))",
    "DELETE FROM t WHERE a = ? AND b <> ?")  # fmt: skip
def test_values_that_are_stored_and_compared_reach_no_function(statement):
    assert stores(statement, 1, "x")
    assert stores(statement, {"type": "decimal", "value": "1.5"}, {"type": "date", "value": "2024-01-31"})


@each("statement",
    "INSERT INTO t SELECT * FROM read_csv(?) WHERE a = ?",
    "INSERT INTO t VALUES (upper(?), ?)",
    "INSERT INTO t VALUES (?, repeat('x', ?))",
    "INSERT INTO t VALUES (?, \"repeat\"('x', ?))",
    "INSERT INTO t VALUES (?.upper(), ?)",
    "INSERT INTO t VALUES (?, [x FOR x IN [?]])",
    "UPDATE t SET a = CAST(? AS VARCHAR(3)), b = ?",
    "INSERT INTO t SELECT ?, a FROM f (?)",
    "INSERT INTO t (a, b) SELECT getenv(?), ?")  # fmt: skip
def test_the_guard_reads_each_row_where_anything_is_called(statement):
    assert not stores(statement, "a", "b")
