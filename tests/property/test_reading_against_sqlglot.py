"""The recognition of statements that only read, compared with the syntax trees of sqlglot."""

import pytest
import sqlglot
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from tests.examples import examples

from queryserver.sql.classification import only_reads

SQLGLOT = {
    "hive": "hive", "sparksql": "spark", "mysql": "mysql", "postgresql": "postgres", "sqlite": "sqlite",
    "duckdb": "duckdb", "trino": "trino",
}  # fmt: skip
CHANGES = (
    exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Create, exp.Drop, exp.Alter, exp.TruncateTable, exp.Into,
    exp.Set, exp.Use, exp.Copy, exp.LoadData, exp.Cache, exp.Uncache, exp.Refresh, exp.Attach, exp.Detach, exp.Analyze,
    exp.Grant, exp.Revoke, exp.Comment, exp.Kill, exp.Transaction, exp.Commit, exp.Rollback, exp.Pragma, exp.Command,
    exp.Lock, exp.QueryTransform,
)  # fmt: skip

GAPS = st.sampled_from(
    [" ", "\n", "\t", "/**/", " /* SELECT */ ", " /* it's */ ", ' /* " */ ', "\n-- SELECT 1\n", " -- it's\n", "\r\n"]
)
NAMES = st.sampled_from(
    ["a", "t", "u.a", "t.comment", "t.update", "db.into", "comment", "load", "cache", "updated", '"delete"', "`insert`",
     "`it's`", '"x;y"'],
)  # fmt: skip
LITERALS = st.sampled_from(["1", "1.5", "'x'", "'it''s'", "'DELETE'", "'--'", "'/*'", "''", "'; DROP TABLE t'"])
CHANGE_WORDS = [
    ("DELETE", "FROM", "t"),
    ("INSERT", "INTO", "t", "SELECT", "1"),
    ("INSERT", "OVERWRITE", "TABLE", "t", "SELECT", "1"),
    ("UPDATE", "t", "SET", "a", "=", "1"),
    ("DROP", "TABLE", "t"),
    ("CREATE", "TABLE", "t", "AS", "SELECT", "1"),
    ("TRUNCATE", "TABLE", "t"),
    ("ALTER", "TABLE", "t", "ADD", "COLUMN", "a", "int"),
    ("MERGE", "INTO", "t", "USING", "u", "ON", "t.a", "=", "u.a", "WHEN", "MATCHED", "THEN", "DELETE"),
    ("SELECT", "a", "INTO", "u", "FROM", "t"),
    ("SELECT", "*", "FROM", "t", "FOR", "UPDATE"),
    ("SET", "a", "=", "1"),
    ("USE", "t"),
    ("CACHE", "TABLE", "t"),
    ("REFRESH", "TABLE", "t"),
    ("COPY", "t", "TO", "'x'"),
    ("ATTACH", "'x'", "AS", "y"),
    ("ANALYZE", "TABLE", "t"),
    ("GRANT", "SELECT", "ON", "t", "TO", "u"),
    ("CALL", "p", "(", ")"),
    ("PRAGMA", "x", "=", "1"),
    ("FROM", "t", "INSERT", "OVERWRITE", "TABLE", "u", "SELECT", "*"),
]
PROGRAM = ("SELECT", "TRANSFORM", "(", "a", ")", "USING", "'x'", "FROM", "t")
RUNS_PROGRAMS = {"hive", "sparksql"}
"""Dialects in which PROGRAM is a change. Others refuse it, but sqlglot parses any EXPLAIN as an unknown command."""


@st.composite
def queries(draw: st.DrawFn, depth: int = 2) -> list[str]:
    """Draw the tokens of a query."""
    words = ["SELECT", draw(NAMES | LITERALS), ",", draw(NAMES), "FROM"]
    if depth and draw(st.booleans()):
        words += ["(", *draw(queries(depth - 1)), ")", "AS", "s"]
    else:
        words.append(draw(st.sampled_from(["t", "db.t", '"t"'])))
    if draw(st.booleans()):
        words += ["WHERE", draw(NAMES), "=", draw(LITERALS)]
    if depth and draw(st.booleans()):
        words = ["WITH", "c", "AS", "(", *draw(queries(depth - 1)), ")", *words]
    if depth and draw(st.booleans()):
        words += ["UNION", "ALL", *draw(queries(0))]
    return words


@st.composite
def statements(draw: st.DrawFn, dialect: str) -> list[str]:
    """Draw the tokens of a query, a change, or a query that contains a change."""
    known = [*CHANGE_WORDS, PROGRAM] if dialect in RUNS_PROGRAMS else CHANGE_WORDS
    query, change = draw(queries()), list(draw(st.sampled_from(known)))
    return draw(
        st.sampled_from(
            [
                query,
                change,
                ["WITH", "d", "AS", "(", *query, ")", *change],
                ["WITH", "d", "AS", "(", *change, "RETURNING", "*", ")", *query],
                ["WITH", "d", "AS", "(", *change, ")", *query],
                ["EXPLAIN", *change],
                ["EXPLAIN", "ANALYZE", *change],
                ["(", *change, ")"],
                [*query, ";", *change],
                ["SELECT", "*", "FROM", "(", *change, ")", "AS", "s"],
                ["COMMIT", ";", *change],
            ]
        )
    )


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, str]:
    """Draw a dialect and a statement's text, with comments between the tokens and words in any case."""
    dialect = draw(st.sampled_from(sorted(SQLGLOT)))
    words = draw(statements(dialect))
    pieces = [draw(st.sampled_from(["", "/* SELECT */", "-- SELECT\n", "(", " "]))]
    for word in words:
        pieces += [draw(st.sampled_from([str, str.lower, str.title]))(word) if word.isalpha() else word, draw(GAPS)]
    return dialect, "".join(pieces) + (")" if pieces[0] == "(" else "")


def changes(text: str, dialect: str) -> bool | None:
    """Return whether sqlglot finds a change in the text, or None if it cannot parse it."""
    try:
        trees = sqlglot.parse(text, dialect=SQLGLOT[dialect])
    except (ParseError, TokenError):
        return None
    return any(tree is not None and tree.find(*CHANGES) is not None for tree in trees)


@examples(1500)
@given(texts())
@pytest.mark.slow
def test_whatever_sqlglot_parses_to_a_change_is_refused(made: tuple[str, str]) -> None:
    dialect, text = made
    if changes(text, dialect):
        assert not only_reads(text, dialect)


@examples(500)
@given(st.sampled_from(sorted(SQLGLOT)), queries(), GAPS)
@pytest.mark.slow
def test_query_in_which_sqlglot_finds_no_change_is_accepted(dialect: str, words: list[str], gap: str) -> None:
    text = gap.join(words)
    if changes(text, dialect) is False:
        assert only_reads(text, dialect)


@pytest.mark.parametrize("dialect", sorted(SQLGLOT))
@pytest.mark.parametrize("words", CHANGE_WORDS, ids=" ".join)
def test_no_plain_change_is_accepted(dialect: str, words: tuple[str, ...]) -> None:
    assert not only_reads(" ".join(words), dialect)
