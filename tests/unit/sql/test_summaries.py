"""Summaries of statements for spans: they name operations and tables, and never contain a value."""

import pytest

from queryserver.sql.summaries import MAX_SUMMARY_CHARACTERS, summarize


@pytest.mark.parametrize(
    ("dialect", "statement", "operation", "summary"),
    [
        ("postgresql", "SELECT 1", "SELECT", "SELECT"),
        ("postgresql", "/* x */ select a from b.c.d", "SELECT", "SELECT b.c.d"),
        ("postgresql", 'SELECT * FROM "My sales" s, "b" JOIN c ON s.x = c.x', "SELECT", 'SELECT "My sales" "b" c'),
        ("trino", "SELECT extract(year FROM day), a IS DISTINCT FROM b FROM t", "SELECT", "SELECT t"),
        ("postgresql", "WITH x AS (SELECT 1 FROM y) INSERT INTO s.t SELECT * FROM x", "INSERT", None),
        ("postgresql", "WITH x AS (SELECT 1) SELECT * FROM x", "SELECT", "SELECT SELECT x"),
        ("mysql", "INSERT INTO `a`.`b` VALUES (1)", "INSERT", "INSERT `a`.`b`"),
        ("hive", "INSERT OVERWRITE TABLE x PARTITION (d = 1) SELECT a FROM b", "INSERT", "INSERT x SELECT b"),
        ("postgresql", "INSERT INTO t VALUES (1) ON CONFLICT DO UPDATE SET a = 1", "INSERT", "INSERT t"),
        ("postgresql", "UPDATE ONLY t SET a = 1 FROM u", "UPDATE", "UPDATE t u"),
        ("postgresql", "DELETE FROM t USING u", "DELETE", "DELETE t"),
        ("postgresql", "DROP TABLE IF EXISTS a.b", "DROP", "DROP TABLE a.b"),
        ("postgresql", "CREATE TABLE t AS SELECT * FROM u", "CREATE", "CREATE TABLE t SELECT u"),
        ("duckdb", "SELECT * FROM read_csv('x.csv')", "SELECT", "SELECT read_csv"),
        ("postgresql", "(SELECT 1 FROM a) UNION (SELECT 2 FROM b)", "SELECT", "SELECT a SELECT b"),
        ("postgresql", "CALL refresh('x')", "CALL", "CALL"),
        ("postgresql", "", "", ""),
        ("postgresql", "-- nothing", "", ""),
    ],
)
def test_a_summary_names_operations_and_tables(
    dialect: str, statement: str, operation: str, summary: str | None
) -> None:
    found = summarize(statement, dialect)
    assert found.operation == operation
    assert summary is None or found.text == summary


@pytest.mark.parametrize(
    ("dialect", "statement"),
    [
        ("postgresql", "SELECT 'planted' FROM t WHERE a = 'FROM planted'"),
        ("postgresql", "SELECT * FROM 'planted'"),
        ("postgresql", "SELECT E'\\' FROM planted' FROM t"),
        ("postgresql", "SELECT $$ FROM planted $$"),
        ("postgresql", "SELECT $a$ FROM planted"),
        ("postgresql", "SELECT ' FROM planted"),
        ("postgresql", "SELECT 1 /* FROM planted"),
        ("postgresql", "CREATE USER bob PASSWORD 'planted'"),
        ("postgresql", "ALTER USER bob PASSWORD planted"),
        ("mysql", 'SELECT * FROM "planted"'),
        ("mysql", "SELECT 'a\\' FROM planted' FROM t"),
        ("mysql", "SET PASSWORD = 'planted'"),
        ("duckdb", "SET s3_secret_access_key = planted"),
        ("duckdb", "CREATE SECRET s (TYPE s3, SECRET 'planted')"),
        ("unknown", "SELECT 'a\\' FROM planted' FROM t"),
        ("oracle", "SELECT q'[it's FROM planted]' FROM t"),
        ("sparksql", "SELECT r'a\\' , ' FROM planted'"),
    ],
)
def test_a_summary_contains_no_literal(dialect: str, statement: str) -> None:
    assert "planted" not in summarize(statement, dialect).text


def test_a_summary_of_many_tables_ends_with_a_whole_name() -> None:
    names = [f"table_{number}" for number in range(100)]
    summary = summarize(f"SELECT * FROM {', '.join(names)}", "trino").text
    assert len(summary) <= MAX_SUMMARY_CHARACTERS
    assert summary.split()[-1] in names


def test_location_of_a_file_is_not_part_of_the_summary():
    statement = 'SELECT * FROM "https://store.example/a.parquet?X-Amz-Signature=abc" JOIN sales USING (id)'
    assert summarize(statement, "duckdb").text == "SELECT sales"
