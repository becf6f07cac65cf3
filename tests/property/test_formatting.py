"""Formatting changes only the whitespace between tokens and the case of keywords, whatever the text."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryserver.sql.formatter import STATEMENT_CHARACTERS, format_statements
from queryserver.sql.statements import Script

KEPT = (
    "'from  a'", "'it''s  '", '"select  x"', "/* from  \n b */", "-- where   d\n", "Größe", "order_by", "t.from",
    "e'x'", "1.50", "a$b", "<=", "c::int", "d->>'e'",
)  # fmt: skip
PIECES = (
    "select", "From", "where", "a", "b", ",", "(", ")", ";", "=", "and", "case", "when", "end", "group by", "join",
    "on", "insert into", "values", "union all",
    "\n", "  ", "\t", "'", '"', "`", "\\", "/*", "*/", "--", "#", "$$", "[", "]",
    "begin", "if", "create view", "delimiter //\n", "//", "\r\n", "é", "\x00",
)  # fmt: skip
DIALECTS = (None, "hive", "mysql", "postgresql", "sqlite", "trino", "duckdb", "phoenix", "hplsql")

scripts = st.lists(st.sampled_from(KEPT + PIECES), max_size=30).map(" ".join)
tidy_scripts = st.lists(st.sampled_from(KEPT + PIECES[:20]), max_size=30).map(" ".join)


def _letters(text: str) -> str:
    """Return the text in upper case without whitespace, which formatting must not change."""
    return "".join(text.split()).upper()


@pytest.mark.item(56)
@given(script=scripts, dialect=st.sampled_from(DIALECTS))
def test_formatting_changes_only_blanks_and_case(script: str, dialect: str | None) -> None:
    done = format_statements(script, dialect)
    assert _letters(done) == _letters(script)
    assert len(Script(done, dialect or "")) == len(Script(script, dialect or ""))
    assert done.count("'") == script.count("'")


@pytest.mark.item(56)
@given(script=tidy_scripts, dialect=st.sampled_from(DIALECTS))
def test_quoted_texts_names_and_comments_are_unchanged(script: str, dialect: str | None) -> None:
    done = format_statements(script, dialect)
    for piece in KEPT:
        assert done.count(piece.strip()) == script.count(piece.strip())


@given(script=scripts)
def test_formatted_script_can_be_formatted_again(script: str) -> None:
    assert _letters(format_statements(format_statements(script, None), None)) == _letters(script)


@pytest.mark.parametrize("unit", ["1,", "(1,'a'),", "a+", "a and ", "(", "case when a then ", "/* a */ ", "begin "])
def test_worst_texts_below_limit_take_about_a_second(unit: str) -> None:
    script = "select " + unit * ((STATEMENT_CHARACTERS - 10) // len(unit)) + "1"
    begun = time.process_time()
    format_statements(script, "")
    assert time.process_time() - begun < 3
