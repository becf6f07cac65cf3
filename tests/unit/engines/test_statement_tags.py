"""The texts that name user and operation in an engine's views, whatever characters the names contain."""

import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryserver.engines.protocol import NO_CONTEXT, StatementContext
from queryserver.engines.statement_tags import leading_comment, short_tag, trace_comment, trailing_comment
from queryserver.sql.markers import BoundStatement, StatementParameters
from queryserver.sql.parameters import read_parameters
from queryserver.sql.scanner import first_keyword

OPERATION = "0b5f6a2e-8a39-4f0e-9d53-3c3a4d6f7e21"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CONTEXT = StatementContext(user="ana", operation_id=OPERATION, connector="shop", traceparent=TRACE)
_COMMENT = re.compile(r"/\*(?:[a-z_]+='[A-Za-z0-9_.~%-]*',?)+\*/ ")


def values_of(comment: str) -> dict[str, str]:
    """Return the decoded values of a comment in the form of sqlcommenter."""
    return {key: unquote(value) for key, value in re.findall(r"([a-z_]+)='([^']*)'", comment)}


def test_comment_has_the_form_of_sqlcommenter():
    assert leading_comment(CONTEXT) == (
        f"/*connector='shop',operation_id='{OPERATION}',traceparent='{TRACE}',user='ana'*/ "
    )
    assert trace_comment(CONTEXT) == f"/*traceparent='{TRACE}'*/ "


def test_unknown_parts_are_left_out():
    assert leading_comment(StatementContext(user="ana", read_only=True)) == "/*user='ana'*/ "
    assert leading_comment(NO_CONTEXT) == trace_comment(NO_CONTEXT) == short_tag(NO_CONTEXT, 63) == ""
    assert short_tag(StatementContext(connector="shop"), 63) == "connector=shop"


@pytest.mark.parametrize(
    ("user", "written"),
    [
        ("*/ DROP TABLE t; /*", "%2A%2F%20DROP%20TABLE%20t%3B%20%2F%2A"),
        ("o'brien", "o%27brien"),
        ("a\\'b", "a%5C%27b"),
        ("! +hint", "%21%20%2Bhint"),
        ("line\r\nbreak\0\x1b[31m", "line%0D%0Abreak%00%1B%5B31m"),
        ("what? :name %s", "what%3F%20%3Aname%20%25s"),
        ("Zoë 日本", "Zo%C3%AB%20%E6%97%A5%E6%9C%AC"),
        ("\u202egnp.exe", "%E2%80%AEgnp.exe"),
        ("\ud800", "%3F"),
    ],
)
def test_values_are_percent_encoded(user: str, written: str):
    assert leading_comment(StatementContext(user=user)) == f"/*user='{written}'*/ "


@given(st.builds(StatementContext, user=st.text(), operation_id=st.text(), connector=st.text(), traceparent=st.text()))
def test_no_value_ends_the_comment(context: StatementContext):
    comment = leading_comment(context)
    assert comment == "" or _COMMENT.fullmatch(comment)
    assert len(comment) < 4 * 3 * 121 + 80


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30))
def test_comment_can_be_decoded_again(user: str):
    assert values_of(leading_comment(StatementContext(user=user))) == ({"user": user} if user else {})


@pytest.mark.parametrize("user", ["a" * 500, "日" * 500, "é" * 59 + "日" * 500])
def test_long_values_are_cut_between_characters(user: str):
    kept = values_of(leading_comment(StatementContext(user=user)))["user"]
    assert user.startswith(kept)
    assert 118 <= len(kept.encode()) <= 120


@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "hive", "impala", "sparksql", "trino", "duckdb", "sqlite"])
def test_comment_hides_neither_the_kind_of_a_statement_nor_its_markers(dialect: str):
    comment = leading_comment(StatementContext(user="? :x */ '\"`", operation_id=OPERATION))
    assert first_keyword(f"{comment}SELECT 1", dialect) == "SELECT"
    bound = BoundStatement(f"{comment}SELECT ?", dialect, StatementParameters(read_parameters([1])))
    assert bound.render(lambda _number, one: str(one.value)) == f"{comment}SELECT 1"


@pytest.mark.parametrize(
    ("max_bytes", "tag"),
    [
        (200, f"op={OPERATION} user=ana connector=shop"),
        (62, f"op={OPERATION} user=ana connector=sho"),
        (59, f"op={OPERATION} user=ana"),
        (47, f"op={OPERATION} user=an"),
        (45, f"op={OPERATION}"),
        (39, f"op={OPERATION}"),
        (38, ""),
        (0, ""),
    ],
)
def test_short_tag_begins_with_the_operation_and_fits(max_bytes: int, tag: str):
    assert short_tag(CONTEXT, max_bytes) == tag


@pytest.mark.parametrize(
    ("user", "written"), [("o'br\\ien", "o_br_ien"), ("a b\n*/;$", "a_b__/__"), ("Zoë", "Zo_"), ("a@b.c+d", "a@b.c+d")]
)
def test_short_tag_has_no_special_characters(user: str, written: str):
    assert short_tag(StatementContext(user=user), 63) == f"user={written}"


@given(st.builds(StatementContext, user=st.text(), operation_id=st.text(), connector=st.text()), st.integers(0, 100))
def test_short_tag_never_exceeds_its_limit(context: StatementContext, max_bytes: int):
    tag = short_tag(context, max_bytes)
    assert len(tag.encode()) <= max_bytes
    assert re.fullmatch(r"[A-Za-z0-9_.@+/:= -]*", tag)


@pytest.mark.parametrize(
    ("text", "separator"),
    [
        ("SELECT 1", " "),
        ("-- first\nSELECT 1", " "),
        ("INSERT INTO t SELECT '--'", "\n"),
        ("SELECT 1 -- last", "\n"),
        ("/* SET */ WITH a AS (SELECT 1) SELECT * FROM a", " "),
        ("SET x = 1", None),
        ("ADD JAR /x.jar", None),
        ("USE shop", None),
        ("", None),
    ],
)
def test_trailing_comment_follows_queries_and_changes_only(text: str, separator: str | None):
    expected = "" if separator is None else separator + leading_comment(CONTEXT).rstrip()
    assert trailing_comment(text, "sparksql", CONTEXT) == expected
    assert trailing_comment(text, "sparksql", StatementContext()) == ""
