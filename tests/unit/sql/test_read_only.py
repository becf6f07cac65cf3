"""Detection of statements that only read, so that they may be run a second time (Contract editor 3.3 rule 3)."""

import pytest

from queryserver.sql.classification import only_reads


@pytest.mark.item(92)
@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("postgresql", "SELECT 1"),
        ("postgresql", "-- insert\n/* update */ (select a, 'delete; from' FROM \"into\" WHERE b = ? ORDER BY 1)"),
        ("postgresql", "WITH a AS (SELECT 1), b AS (VALUES (2)) TABLE a UNION ALL TABLE b"),
        ("postgresql", "SELECT $q$ insert into t $q$, E'\\'drop', replace(a, 'x', 'y'), count(*) FROM t"),
        ("postgresql", "EXPLAIN (VERBOSE) SELECT 1"),
        ("postgresql", "SELECT * FROM pg_replication_slots, pg_stat_activity, pg_file_settings"),
        ("postgresql", 'SELECT "a b", count(*) FROM "t" WHERE "c" IN (1, 2) AND ("d") > 0'),
        ("mysql", "SHOW TABLES"),
        ("mysql", "select `update`, 'it''s' # drop\nfrom t"),
        ("hive", "DESCRIBE FORMATTED t"),
        ("duckdb", "FROM range(3)"),
        ("duckdb", "SUMMARIZE t"),
        ("trino", "SELECT * FROM a.b.c WHERE d > timestamp '2024-01-01 00:00:00'"),
        ("sqlite", "VALUES (1), (2)"),
        ("unknown", "SELECT 1"),
    ],
)
def test_query_is_read_only(dialect: str, text: str):
    assert only_reads(text, dialect)


@pytest.mark.item(92)
@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("postgresql", "INSERT INTO t VALUES (1)"),
        ("postgresql", "WITH gone AS (DELETE FROM t RETURNING *) SELECT * FROM gone"),
        ("postgresql", "with a as materialized (/**/ Update t set a = 1 returning a) select * from a"),
        ("postgresql", "EXPLAIN ANALYZE DELETE FROM t"),
        ("postgresql", "EXPLAIN (ANALYSE) SELECT 1"),
        ("postgresql", "SELECT * INTO new FROM old"),
        ("postgresql", "SELECT 1 FROM t FOR UPDATE"),
        ("postgresql", "SELECT nextval('s')"),
        ("postgresql", "SELECT pg_catalog . setval('s', 1)"),
        ("postgresql", "SELECT pg_try_advisory_lock(1)"),
        ("postgresql", "SELECT pg_stat_reset()"),
        ("postgresql", "SELECT * FROM pg_logical_slot_get_changes('s', NULL, NULL)"),
        ("postgresql", "SELECT \"nextval\"('s')"),
        ("postgresql", "SELECT pg_catalog.\"setval\" /* x */ ('s', 1)"),
        ("postgresql", "SELECT U&\"\\006eextval\"('s')"),
        ("mysql", "SELECT `get_lock`('a', 1)"),
        ("duckdb", "SELECT \"nextval\"('s')"),
        ("postgresql", "SELECT dblink_exec('', 'DROP TABLE t')"),
        ("postgresql", "CALL p()"),
        ("postgresql", "DO $$ BEGIN END $$"),
        ("postgresql", ""),
        ("mysql", "/*!50000 DELETE FROM t */"),
        ("mysql", "SELECT 1 /*!, sleep(1) */"),
        ("mysql", "SELECT 1 /*M! INTO OUTFILE 'x' */"),
        ("mysql", "SELECT a FROM t INTO OUTFILE '/tmp/x'"),
        ("mysql", "SELECT GET_LOCK('a', 1)"),
        ("mysql", "ANALYZE TABLE t"),
        ("hive", "FROM a INSERT OVERWRITE TABLE b SELECT *"),
        ("hive", "REFRESH t"),
        ("phoenix", "SELECT NEXT VALUE FOR s"),
        ("duckdb", "PRAGMA x=1"),
        ("duckdb", "SELECT 1; DELETE FROM t"),
        ("sqlite", "SELECT load_extension('x')"),
        ("hplsql", "SELECT 1; SELECT 2"),
        ("mssql", "SELECT 1 DELETE FROM t"),
        ("mssql", "SELECT 1 EXEC p"),
        ("unknown", "SELECT '\\'; DELETE FROM t; --'"),
        ("postgresql", "SELECT " + "1, " * 50_000 + "1"),
    ],
)
def test_statement_that_may_change_data_is_not_read_only(dialect: str, text: str):
    assert not only_reads(text, dialect)
