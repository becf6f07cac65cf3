"""Statements that a read-only transaction of PostgreSQL or MySQL would not stop, found by their text."""

import pytest

from queryserver.sql.effects import read_only_transaction_refusal


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("postgresql", "SELECT 1"),
        ("postgresql", "/* a */ (SELECT comment, copy, query FROM t)"),
        ("postgresql", "EXPLAIN ANALYZE DELETE FROM t"),  # the server refuses it
        ("postgresql", "SELECT nextval('s')"),  # as above
        ("postgresql", "SELECT column_default FROM c WHERE column_default LIKE 'nextval%'"),
        ("postgresql", "SELECT * FROM pg_stat_activity, pg_replication_slots, pg_advisory"),
        ("mysql", "SELECT * FROM sys_users /*+ NO_ICP(t) */ WHERE a = 'into'"),
        ("mysql", "DESC t"),
        ("mysql", "SELECT 1 INTO @a"),
    ],
)
def test_query_may_run_in_a_read_only_transaction(dialect: str, text: str):
    assert read_only_transaction_refusal(text, dialect) is None


@pytest.mark.parametrize(
    ("dialect", "text", "word"),
    [
        ("postgresql", "COPY t TO PROGRAM 'x'", "COPY"),
        ("postgresql", "/* SELECT */ CALL p()", "CALL"),
        ("postgresql", "SET x = 1", "SET"),
        ("postgresql", "", "it"),
        ("postgresql", "SELECT Dblink_Exec('', 'DROP TABLE t')", "dblink_exec"),
        ("postgresql", 'SELECT "lo_create" /**/ (0)', "lo_create"),
        ("postgresql", "SELECT pg_try_advisory_xact_lock(1)", "pg_try_advisory_xact_lock"),
        ("postgresql", "SELECT query_to_xml('SELECT 1', true, true, '')", "query_to_xml"),
        ("postgresql", "SELECT * FROM crosstab2('SELECT pg_adv' || 'isory_lock(1)')", "crosstab2"),
        ("postgresql", "SELECT U&\"\\0070g_notify\"('a', 'b')", 'u&"'),
        ("mysql", "SELECT `GET_LOCK`('a', 1)", "get_lock"),
        ("mysql", "SELECT a FROM t INTO/**/OUTFILE 'x'", "outfile"),
        ("mysql", "SELECT 1 /*! INTO OUTFILE 'x' */", "/*!"),
        ("mysql", "SELECT 1 /*m! , sleep(1) */", "/*m!"),
        ("mysql", "HANDLER t OPEN", "HANDLER"),
    ],
)
def test_refusal_names_what_the_transaction_would_not_stop(dialect: str, text: str, word: str):
    refusal = read_only_transaction_refusal(text, dialect)
    assert refusal is not None
    assert f", and {word} " in refusal


@pytest.mark.parametrize("text", ["SELECT " + "1, " * 500_000 + "1", "/*" + " " * 100_000 + "*/ SELECT 1"])
def test_statement_that_is_too_long_to_search_is_refused(text: str):
    assert "too long" in (read_only_transaction_refusal(text, "postgresql") or "")
