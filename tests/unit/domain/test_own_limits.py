"""The row limit that a statement itself has (Contract editor 6.4)."""

import pytest

from queryserver.sql.splitter import own_limit


@pytest.mark.parametrize(
    ("statement", "limit"),
    [
        ("SELECT * FROM t LIMIT 6000", 6000),
        ("select * from t limit 6_000;", 6000),
        ("WITH a AS (SELECT 1) SELECT * FROM a ORDER BY 1 LIMIT 6000 OFFSET 10", 6000),
        ("SELECT * FROM t OFFSET 10 LIMIT 6000 -- all of them", 6000),
        ("SELECT * FROM t LIMIT 10, 6000 /* two numbers */", 6000),
        ("SELECT * FROM t FETCH FIRST 6000 ROWS ONLY", 6000),
        ("SELECT * FROM t OFFSET 5 ROWS FETCH NEXT 6000 ROW ONLY", 6000),
        ("(SELECT 1) UNION ALL (SELECT 2 LIMIT 7) LIMIT 6000", 6000),
        ("SELECT DISTINCT TOP (6000) a FROM t", 6000),
        ("-- first\nSELECT TOP 6000 a FROM t", 6000),
        (f"SELECT 1 LIMIT {'9' * 300}", 10**18),
    ],
)
def test_a_number_at_the_outermost_level_is_seen(statement: str, limit: int) -> None:
    assert own_limit(statement, "duckdb") == limit


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1",
        "SELECT * FROM (SELECT * FROM t LIMIT 6000) AS a",
        "SELECT * FROM t WHERE a IN (SELECT TOP 6000 a FROM t)",
        "SELECT 'LIMIT 6000'",
        'SELECT 1 AS "a LIMIT 6000"',
        "SELECT 1 -- LIMIT 6000",
        "SELECT * FROM t LIMIT 60%",
        "SELECT * FROM t LIMIT 6000 PERCENT",
        "SELECT * FROM t LIMIT 6000 + 1",
        "SELECT * FROM t LIMIT 60.5",
        "SELECT * FROM t LIMIT $1",
        "SELECT * FROM t LIMIT ALL",
        "SELECT TOP 60 PERCENT a FROM t",
        "SELECT * FROM t FETCH FIRST 6000 ROWS WITH TIES",
        "INSERT INTO t SELECT * FROM u LIMIT 6000",
        "DELETE FROM t LIMIT 6000",
        "EXPLAIN SELECT 1 LIMIT 6000",
        f"SELECT '{'x' * 100_000}' LIMIT 6000",
    ],
    ids=lambda statement: statement[:60],
)
def test_what_is_not_certain_is_no_limit(statement: str) -> None:
    assert own_limit(statement, "duckdb") is None
