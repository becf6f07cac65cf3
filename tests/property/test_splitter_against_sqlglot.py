"""The splitter, compared with sqlglot's tokenizer, on scripts that both parse alike (ADR 6 lists their differences)."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import TokenError
from sqlglot.tokens import TokenType
from tests.examples import examples

from queryserver.sql.scanner import dialect_patterns, scan
from queryserver.sql.statements import Script

SQLGLOT = {
    "hive": "hive", "sparksql": "spark", "mysql": "mysql", "postgresql": "postgres", "sqlite": "sqlite",
    "duckdb": "duckdb", "trino": "trino",
}  # fmt: skip
BACKSLASH = {"hive", "sparksql", "mysql"}
BACK_TICKS = {"hive", "sparksql", "mysql", "sqlite"}  # and DuckDB since version 2, but not in sqlglot
DOLLARS = {"postgresql", "duckdb"}

_WORDS = ["SELECT", "1", "1.5", "a", "tab.col", "FROM", "ünï", "(", ")", ",", "=", "<=", "+", "*", "case", "END"]
# `/*` is excluded because comments nest in some dialects; `!` and `+` are excluded because they open constructs other
# than comments.
_INSIDE = st.lists(st.sampled_from([";", "a", " ", "--", "*", "/", "é", "\n", "$", "#", "; SELECT 2;"]), max_size=5)


def _quoted(mark: str, *, backslash: bool) -> st.SearchStrategy[str]:
    """Return a strategy for a literal or quoted name, in which quotes are escaped as in the dialect."""
    pieces = [";", "--", "/*", "*/", " ", "\n", "x", "🐘", mark * 2, *("\"'`".replace(mark, ""))]
    pieces += ["\\" + mark, "\\\\", "\\;"] if backslash else ["\\"]
    return st.lists(st.sampled_from(pieces), max_size=6).map(lambda parts: mark + "".join(parts) + mark)


def _pieces(dialect: str) -> st.SearchStrategy[str]:
    inside = _INSIDE.map("".join)
    line, block = inside.map(lambda text: text.replace("\n", "")), inside.map(lambda text: text.replace("*/", ""))
    backslash = dialect in BACKSLASH
    # PostgreSQL and psql do not split within parentheses, so these occur only in pairs without a semicolon.
    words = [word for word in _WORDS if word not in "()"] + ["( a )"] if dialect == "postgresql" else _WORDS
    strategies = [
        st.sampled_from(words),
        st.just(";"),
        _quoted("'", backslash=backslash),
        _quoted('"', backslash=backslash),
        line.map(lambda text: f"-- {text}\n"),
        block.map(lambda text: f"/* {text.replace('/', '')} */"),
    ]
    if dialect in BACK_TICKS:
        strategies.append(_quoted("`", backslash=False))
    if dialect in DOLLARS:
        body = inside.map(lambda text: text.replace("$", ""))
        strategies += [body.map(lambda text: f"$$ {text}'$$"), body.map(lambda text: f'$tag$ {text}" $ $tag$')]
    if dialect == "mysql":
        strategies.append(line.map(lambda text: f"# {text}\n"))
    if dialect == "sqlite":
        strategies.append(block.map(lambda text: f"[ {text}']"))
    return st.one_of(strategies)


@st.composite
def scripts(draw: st.DrawFn) -> tuple[str, str]:
    """Draw a dialect and a script. Whitespace between parts keeps one part from becoming a prefix of the next."""
    dialect = draw(st.sampled_from(sorted(SQLGLOT)))
    pieces = draw(st.lists(_pieces(dialect), max_size=25))
    return dialect, "".join(piece + draw(st.sampled_from([" ", "\n", "\t "])) for piece in pieces)


def groups(script: str, dialect: str) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the offsets of the first and last token of each nonempty statement according to sqlglot, and the offsets
    of semicolons.
    """
    statements: list[tuple[int, int]] = []
    cuts: list[int] = []
    is_open = False
    for token in Dialect.get_or_raise(SQLGLOT[dialect]).tokenize(script):
        if token.token_type is TokenType.SEMICOLON:
            cuts.append(token.start)
            is_open = False
        elif is_open:
            statements[-1] = (statements[-1][0], token.end)
        else:
            statements.append((token.start, token.end))
            is_open = True
    return statements, cuts


@pytest.mark.item(47)
@examples(250)
@given(scripts())
@example(("sqlite", "SELECT [a;b'] ; -- ;\n"))
@example(("postgresql", "SELECT $$ ;' $$ ; $tag$ $$ ; $tag$"))
@example(("mysql", "SELECT 'a\\';' # ;\n; \"\\\";\" ;;"))
@pytest.mark.slow
def test_both_split_at_the_same_semicolons(made: tuple[str, str]) -> None:
    dialect, script = made
    statements, cuts = groups(script, dialect)
    offsets = scan(script, dialect_patterns(dialect))
    ours = [(offsets[place + 1], offsets[place + 2]) for place in range(0, len(offsets), 4)]
    assert len(ours) == len(statements)
    for (first, stop), (token_first, token_last) in zip(ours, statements, strict=True):
        assert first <= token_first <= token_last < stop
        assert not [cut for cut in cuts if first <= cut < stop]
    for (_, stop), (first, _) in pairwise(ours):
        assert [cut for cut in cuts if stop <= cut < first]


@pytest.mark.parametrize(
    ("dialect", "script"),
    [
        ("mysql", "DELIMITER //\nCREATE PROCEDURE p() BEGIN SELECT 1; SELECT 2; END//"),
        ("sqlite", "CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM b; DELETE FROM c; END"),
        ("postgresql", "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT 2; END"),
        ("postgresql", "CREATE RULE r AS ON INSERT TO a DO ALSO (DELETE FROM b; DELETE FROM c)"),
    ],
)
def test_sqlglot_splits_bodies_that_our_splitter_keeps_whole(dialect: str, script: str) -> None:
    assert len(Script(script, dialect)) == 1
    assert len(groups(script, dialect)[0]) > 1


@pytest.mark.parametrize("dialect", SQLGLOT)
def test_unclosed_quote_fails_in_sqlglot_and_is_our_last_statement(dialect: str) -> None:
    script = "SELECT 1; SELECT 'open; SELECT 2"
    assert [statement.text for statement in Script(script, dialect)] == ["SELECT 1", "SELECT 'open; SELECT 2"]
    with pytest.raises(TokenError):
        groups(script, dialect)
