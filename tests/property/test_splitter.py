"""The splitter, compared with a reference implementation of the contract, on scripts made of all special elements."""

import re
import sys
from itertools import product
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.examples import examples

from queryserver.sql.statements import Script, ScriptStatement

sys.path.insert(0, str(Path(__file__).parent))
from splitter_reference import Reference

DIALECTS = [
    "hive", "impala", "sparksql", "mysql", "phoenix", "sqlite", "postgresql", "duckdb", "trino", "snowflake", "oracle",
]  # fmt: skip
_QUOTES = [
    "'", '"', "`", "[", "]", "''", '""', "``", "E'", "e'", "\\", "\\'", "\\\\", "$", "$$", "$a$", "$a", "a$b$", "$1",
    "q'", "NQ'[", "q'<", ">'", "]'", "q'x",
]  # fmt: skip
_COMMENTS = ["--", "-- ", "--\n", "#", "/*", "*/", "/*!", "/*/", "-", "/", "*", "//", "//\n", "://", "://a"]
_PLAIN = ["a", "_", "1", "é", "😀", " ", "\t", "\n", "\r", "\r\n", ".", "(", ")", ";", ";", ";;", "; "]
_WORDS = [
    " BEGIN ", " END", "END;", " case ", " AS ", " BEGIN ATOMIC ", " ATOMIC ", ".end ", "SELECT 1", "begin/**/atomic ",
]  # fmt: skip
_HEADS = [
    "CREATE TRIGGER t ", "create temp/**/trigger ", "EXPLAIN CREATE TRIGGER t BEGIN x; ", "CREATE FUNCTION f() ",
    "CREATE OR REPLACE PROCEDURE p() BEGIN ATOMIC ", "DELIMITER //\n", "DELIMITER $$\r", "\ndelimiter ;\n", "//",
]  # fmt: skip
SCRIPTS = st.lists(st.sampled_from(_QUOTES + _COMMENTS + _PLAIN + _WORDS + _HEADS), max_size=40).map("".join)


def placed(statement: ScriptStatement) -> tuple[str, tuple[int, int], tuple[int, int]]:
    start, end = statement.start, statement.end
    return statement.text, (start.row, start.column), (end.row, end.column)


@pytest.mark.item(46)
@pytest.mark.item(47)
@pytest.mark.security("T23")
@examples(700)
@given(script=SCRIPTS, dialect=st.sampled_from(DIALECTS))
@example(script="E'a'--\n'\\';';b", dialect="postgresql")
@example(script="5--3;--\n;1", dialect="mysql")
def test_splitter_matches_reference(script: str, dialect: str):
    assert [placed(statement) for statement in Script(script, dialect)] == Reference(script, dialect).statements()


_OPENINGS = ["'", '"', "`", "[", "$$", "$tag$", "E'", "q'[", "q'!", "//", "--", "#", "/*", "/* /*", "a", "\\", ";"]
_FILLINGS = ["x", "; ", "''", "\\'", "/*", "*/", "\n", "é;"]


@pytest.mark.item(47)
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.slow
def test_long_tokens_match_reference(dialect: str, subtests: pytest.Subtests):
    """The tokens are so long that a chunk of the scanner's pattern ends inside them."""
    for opening, filling in product(_OPENINGS, _FILLINGS):
        with subtests.test(opening=opening, filling=filling):
            script = f"select 1; {opening}{filling * 5000}'; \"; `; ]; */; $$; $tag$; \n; select 2"
            spans = Reference(script, dialect).spans()
            assert [statement.text for statement in Script(script, dialect)] == [
                script[first:stop] for _, first, stop, _ in spans
            ]


@examples(300)
@given(script=SCRIPTS, dialect=st.sampled_from(DIALECTS))
def test_texts_are_in_script_order_and_only_empty_parts_are_dropped(script: str, dialect: str):
    # Each text is searched from the current position, because the same text may occur in an earlier comment.
    rows = [0, *(line_end.end() for line_end in re.finditer(r"\r\n|\r|\n", script))]
    offset, lost = 0, []
    for statement in Script(script, dialect):
        begin = rows[statement.start.row] + statement.start.column
        assert begin >= offset
        found = script.index(statement.text, begin)
        lost.append(script[offset:found])
        offset = found + len(statement.text)
    lost.append(script[offset:])
    if "elimiter" not in script.lower():
        for piece in lost:
            assert not Script(piece, dialect)


@examples(300)
@given(script=SCRIPTS, dialect=st.sampled_from(DIALECTS))
def test_positions_point_at_the_text(script: str, dialect: str):
    rows = script.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for statement in Script(script, dialect):
        first_line = statement.text.replace("\r", "\n").split("\n")[0]
        assert first_line in rows[statement.start.row][statement.start.column :]
        assert 0 <= statement.end.column <= len(rows[statement.end.row])


@pytest.mark.item(47)
@examples(300)
@given(
    inside=st.text(max_size=30),
    quoting=st.sampled_from(
        [(d, "'", "'") for d in DIALECTS]
        + [(d, '"', '"') for d in DIALECTS]
        + [
            ("hive", "`", "`"),
            ("mysql", "`", "`"),
            ("sqlite", "[", "]"),
            ("postgresql", "$q$", "$q$"),
            ("duckdb", "$$", "$$"),
        ]
        + [(d, "/*", "*/") for d in DIALECTS]
    ),
)
def test_quoted_text_is_never_split(inside: str, quoting: tuple[str, str, str]):
    dialect, opening, closing = quoting
    for mark in (closing[-1], "\\", "/", "$", "!"):
        inside = inside.replace(mark, "")
    script = f"SELECT {opening};{inside};{closing} ; SELECT 2"
    assert [statement.text for statement in Script(script, dialect)] == [
        f"SELECT {opening};{inside};{closing}",
        "SELECT 2",
    ]


@examples(300)
@given(script=SCRIPTS, dialect=st.sampled_from(DIALECTS))
def test_statement_split_again_stays_whole(script: str, dialect: str):
    """A custom terminator is excluded, because it is known only within its script."""
    if "elimiter" in script.lower():
        return
    for statement in Script(script, dialect):
        assert [again.text for again in Script(statement.text, dialect)] == [statement.text]
