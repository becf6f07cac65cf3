"""The first word of a statement."""

import pytest

from queryserver.engines.statement_texts import first_keyword


@pytest.mark.parametrize(
    ("sql", "keyword"),
    [
        ("", ""),
        ("  select 1", "SELECT"),
        ("(( values (1)))", "VALUES"),
        ("-- a\n insert into t", "INSERT"),
        ("-- only", ""),
        ("/* a /* b */ */ call p()", "CALL"),
        ("/* open", ""),
        ("/**/with x as (select 1)", "WITH"),
        ("# not a comment here", ""),
    ],
)
def test_the_first_word(sql: str, keyword: str) -> None:
    assert first_keyword(sql) == keyword


def test_line_comments_of_the_dialect() -> None:
    assert first_keyword("# a\ndelete from t", line_comments=("--", "#")) == "DELETE"
