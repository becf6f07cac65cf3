"""Detection of Phoenix statements that may have effects on a read-only connection."""

import pytest

from queryserver.sql.phoenix_queries import read_only_refusal


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1",
        "-- c\n// d\n/* e */ SELECT /*+ NO_INDEX */ a FROM t",
        "EXPLAIN UPSERT INTO t VALUES (1)",
        "SHOW TABLES",
        "SELECT \"NEXT\", 'next value for s', NEXT FROM t",
        "SELECT CURRENT VALUE FOR s",
        "SELECT 'next " + "x" * 50_000 + "'",
    ],
    ids=lambda text: text[:60],
)
def test_query_may_run(text: str):
    assert read_only_refusal(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "UPSERT INTO t VALUES (1)",
        "TRACE ON",
        "ALTER SESSION SET CONSISTENCY = 'strong'",
        "USE s",
        "SELECT NEXT VALUE FOR s",
        "select next /* c */ value -- d\n for s",
        "SELECT NEXT 5 VALUES FOR s",
        "SELECT NEXT ? VALUES FOR s",
        "SELECT NEXT :1 VALUES FOR s",
        "SELECT NEXT VALUE FOR s, '" + "x" * 200_000 + "'",
        "SELECT '" + "x" * 1_100_000 + "'",
    ],
    ids=lambda text: text[:60],
)
def test_other_statement_is_refused(text: str):
    assert read_only_refusal(text) is not None
