"""Classification of statements: reading or changing, literal LIMIT clauses, and whether EXPLAIN can be applied."""

import pytest

from queryserver.errors.base import InvalidParameter
from queryserver.sql.classification import changes_data, changes_objects, read_only_refusal
from queryserver.sql.statements import explainable, literal_limit

COLUMNS = ", ".join(f"updated_at_{number}, ⌘{number}" for number in range(30_000))
LONG_QUERY = f"with a as (select 1) select {COLUMNS} from a"


@pytest.mark.parametrize("text", ["select 1", "WITH a AS (SELECT 1) SELECT * FROM a", "-- x\n(values (1))", LONG_QUERY])
def test_query_is_allowed_on_a_read_only_connector(text: str):
    assert not changes_data(text, "postgresql")
    assert read_only_refusal(text, "postgresql") is None


@pytest.mark.parametrize(
    "text",
    [
        "delete from t",
        "with a as (DELETE from t returning *) select * from a",
        "explain analyze Update t set a = 1",
        LONG_QUERY + " union all select 1; merge into t",
        "with \ud800 as (insert into t values (1) returning 1) select 1",
    ],
)
def test_change_is_rejected_on_a_read_only_connector(text: str):
    assert changes_data(text, "postgresql")
    refusal = read_only_refusal(text, "postgresql") or ""
    assert refusal.startswith("This connector is read-only, but the statement ")


@pytest.mark.item(111)
@pytest.mark.parametrize("dialect", ["postgresql", "duckdb", "sqlite", "mysql", "trino"])
@pytest.mark.parametrize(
    "text",
    [
        "WITH a AS (SELECT replace(b, 'x', 'y') AS c FROM t) SELECT * FROM a",
        "WITH a AS (SELECT 'please update, or delete' AS b) SELECT * FROM a -- insert",
        "EXPLAIN SELECT t.update FROM t",
    ],
)
def test_query_with_a_word_of_a_change_may_run_where_it_changes_nothing(text: str, dialect: str):
    assert changes_data(text, dialect)
    assert read_only_refusal(text, dialect) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("WITH a AS (DELETE FROM t RETURNING b) SELECT * FROM a", "the statement contains the word DELETE."),
        ("WITH a AS (SELECT merge FROM t) SELECT * FROM a", "If it is a name, quote it or put its table's name"),
        ("EXPLAIN ANALYZE DELETE FROM t", "contains a word of a change, such as INSERT."),
        (f"WITH a AS (SELECT '{'x' * 100_000}') DELETE FROM t", "contains a word of a change, such as INSERT."),
    ],
)
def test_refusal_names_the_change(text: str, reason: str):
    assert reason in (read_only_refusal(text, "postgresql") or "")


def test_pivot_of_duckdb_is_a_query_unless_it_contains_a_change():
    for text in ("PIVOT t ON a USING count(*)", "unpivot t ON a, b"):
        assert read_only_refusal(text, "duckdb") is None
    change = "PIVOT (WITH d AS (DELETE FROM t RETURNING a) FROM d) ON a"
    assert "contains a word of a change" in (read_only_refusal(change, "duckdb") or "")


@pytest.mark.parametrize("text", ["with a as (select 1) select " + "a, " * 400_000, "--" + "x" * 70_000 + "\nselect 1"])
def test_overlong_statement_is_rejected_with_the_reason(text: str):
    told = read_only_refusal(text, "postgresql")
    assert told is not None
    assert "too long" in told


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
def test_outermost_literal_limit_is_recognized(statement: str, limit: int) -> None:
    assert literal_limit(statement, "duckdb") == limit


@pytest.mark.parametrize("statement",
    ["SELECT 1", "SELECT * FROM (SELECT * FROM t LIMIT 6000) AS a",
    "SELECT * FROM t WHERE a IN (SELECT TOP 6000 a FROM t)", "SELECT 'LIMIT 6000'", 'SELECT 1 AS "a LIMIT 6000"',
    "SELECT 1 -- LIMIT 6000", "SELECT * FROM t LIMIT 60%", "SELECT * FROM t LIMIT 6000 PERCENT",
    "SELECT * FROM t LIMIT 6000 + 1", "SELECT * FROM t LIMIT 60.5", "SELECT * FROM t LIMIT $1",
    "SELECT * FROM t LIMIT ALL", "SELECT TOP 60 PERCENT a FROM t", "SELECT * FROM t FETCH FIRST 6000 ROWS WITH TIES",
    "INSERT INTO t SELECT * FROM u LIMIT 6000", "DELETE FROM t LIMIT 6000", "EXPLAIN SELECT 1 LIMIT 6000",
    f"SELECT '{'x' * 100_000}' LIMIT 6000"], ids=lambda statement: statement[:60])  # fmt: skip
def test_uncertain_limit_is_ignored(statement: str) -> None:
    assert literal_limit(statement, "duckdb") is None


@pytest.mark.parametrize(("statement", "changes"),
    [("CREATE TABLE t (a int)", True), ("/* a */ drop view v", True), ("ANALYZE TABLE t COMPUTE STATISTICS", True),
    ("COMMENT ON TABLE t IS 'x'", True), ("MSCK REPAIR TABLE t", True), ("INVALIDATE METADATA", True), ("COMMIT", True),
    ("UPDATE STATISTICS t", True), ("SELECT * INTO new FROM old", True),
    ("EXPLAIN ANALYZE CREATE TABLE t AS SELECT 1", True), ("an unknown word", True), ("SELECT 'x'", False),
    ("INSERT INTO t VALUES (1)", False), ("UPDATE t SET a = 1", False), ("SHOW CREATE TABLE t", False),
    ("SET x = 1", False)])  # fmt: skip
def test_statements_that_may_change_objects_are_recognized(statement: str, changes: bool):
    assert changes_objects(statement, "postgresql") is changes


@pytest.mark.item(56)
@pytest.mark.parametrize(
    ("statement", "dialect", "explained"),
    [
        ("/* a */ SELECT 1", "postgresql", "SELECT 1"),
        ("((SELECT 1))", "mysql", "((SELECT 1))"),
        ("WITH a AS (SELECT 1) DELETE FROM t", "postgresql", "WITH a AS (SELECT 1) DELETE FROM t"),
        ("SELECT analyze FROM t", "trino", "SELECT analyze FROM t"),
        ("SELEC 1", "hive", "SELEC 1"),
    ],
)
def test_leading_comments_are_removed_before_explain(statement: str, dialect: str, explained: str):
    assert explainable(statement, dialect) == explained


@pytest.mark.item(56)
@pytest.mark.parametrize(("statement", "dialect"),
    [("explain select 1", "sqlite"), ("/*!80018 ANALYZE */ SELECT 1", "mysql"), ("(/*! ANALYZE */ SELECT 1)", "mysql"),
    ("EXTENDED ANALYZE SELECT 1", "hive"), ("something ANALYZE SELECT 1", "hive"), ("REOPTIMIZATION SELECT 1", "hive"),
    ("(TYPE DISTRIBUTED) SELECT 1", "trino"), ("`ANALYZE` SELECT 1", "mysql"), ("", "duckdb")])  # fmt: skip
def test_executable_text_after_explain_is_rejected(statement: str, dialect: str):
    with pytest.raises(InvalidParameter):
        explainable(statement, dialect)
