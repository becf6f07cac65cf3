"""Detection of Trino statements that may have effects in spite of a read-only transaction."""

import pytest

from queryserver.sql.trino_queries import query_to_plan, read_only_transaction_refusal


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1",
        "-- c\n/* d */ (SELECT a FROM t)",
        "WITH FUNCTION f(x int) RETURNS int RETURN x + 1 SELECT f(1)",
        "TABLE t",
        "SHOW TABLES",
        "DESCRIBE t",
        "EXPLAIN ANALYZE SELECT 'execute' FROM \"table\"",
        "SELECT * FROM TABLE(sequence(1, 10))",
        "SELECT * FROM TABLE(system.table_changes('s', 't', 1))",
        "SELECT * FROM TABLE(exclude_columns(input => TABLE(tpch.tiny.orders), columns => DESCRIPTOR(a)))",
        "SELECT * FROM TABLE(exclude_columns(input => TABLE(VALUES (1, 2)), columns => DESCRIPTOR(a)))",
        "SELECT table_name FROM information_schema.tables",
        "SELECT 'x " + "x" * 200_000 + "'",
    ],
)
def test_query_may_run(text: str):
    assert read_only_transaction_refusal(text, "trino") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SET SESSION query_max_run_time = '5m'",
        "SET ROLE admin",
        "GRANT admin TO USER ana",
        "CREATE CATALOG c USING memory",
        "DROP CATALOG c",
        "CALL system.runtime.kill_query('a', 'b')",
        "PREPARE p FROM SELECT 1",
        "EXECUTE p",
        "EXECUTE IMMEDIATE 'SELECT 1'",
        "EXPLAIN ANALYZE EXECUTE p",
        "EXPLAIN EXECUTE p",
        "START TRANSACTION",
        "COMMIT",
        "USE tpch.tiny",
        "SELECT * FROM TABLE(postgresql.system.query(query => 'DELETE FROM t RETURNING a'))",
        'select * from table /* c */ ( pg . "system" . "query" ( \'x\'))',
        "SELECT * FROM TABLE(\n--c\nsqlserver.system.procedure(query => 'EXECUTE p'))",
        "SELECT * FROM TABLE(sequence(1, 2)), TABLE(pg.system.query('x'))",
        "EXPLAIN ANALYZE SELECT * FROM TABLE(elasticsearch.system.raw_query(schema => 's', index => 'i', query => ''))",
        "SELECT * FROM TABLE(\"select\"(query => 'x'))",
        "SELECT 1 FROM table_x WHERE a = '" + "x" * 200_000 + "' OR b IN (TABLE c)",
        "SELECT '" + "x" * 1_100_000 + "'",
    ],
    ids=lambda text: text[:60],
)
def test_other_statement_is_refused(text: str):
    assert read_only_transaction_refusal(text, "trino") is not None


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("SELECT 1.5E0, 'a b' /* c */ FROM t", "SELECT 1.5E0, 'a b'   FROM t"),
        ("-- c\nWITH a AS (SELECT 1) SELECT * FROM a", " WITH a AS (SELECT 1) SELECT * FROM a"),
        ("(SELECT 1) UNION (SELECT 2)", "(SELECT 1) UNION (SELECT 2)"),
        ("INSERT INTO a.b.t (c, d) SELECT x, y FROM s", "SELECT x, y FROM s"),
        ("INSERT INTO t ((SELECT 1))", "((SELECT 1))"),
        ("INSERT INTO t VALUES 1, 2", "VALUES 1, 2"),
        ("CREATE TABLE t AS SELECT 1 AS a", "SELECT 1 AS a"),
        ("create or replace table t (a) COMMENT 'as' WITH (format = 'ORC') AS (SELECT 1) WITH NO DATA", "(SELECT 1) "),
        ("CREATE TABLE t AS SELECT 1 a WITH DATA", "SELECT 1 a "),
        ("CREATE VIEW v AS SELECT 1", "SELECT 1"),
        ("EXPLAIN ANALYZE SELECT 1", "SELECT 1"),
        ("EXPLAIN /* c */ ANALYZE VERBOSE INSERT INTO t SELECT 1", "SELECT 1"),
    ],
)
def test_query_of_statement_is_planned(text: str, query: str):
    planned = query_to_plan(text, "trino")
    assert planned is not None
    assert planned.replace(" ", "") == query.replace(" ", "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "EXPLAIN SELECT 1",
        "EXPLAIN (TYPE IO) CREATE TABLE t AS SELECT 1",
        "CREATE TABLE t (a integer)",
        "DELETE FROM t WHERE a IN (SELECT 1)",
        "MERGE INTO t USING (SELECT 1) s ON true WHEN MATCHED THEN DELETE",
        "EXECUTE p",
        "EXECUTE IMMEDIATE 'CREATE TABLE t AS SELECT 1'",
        "CALL p(1)",
        "ANALYZE t",
        "CREATE TABLE t AS SELECT '" + "x" * 200_000 + "'",
    ],
    ids=lambda text: text[:60],
)
def test_other_statement_is_not_planned(text: str):
    assert query_to_plan(text, "trino") is None
