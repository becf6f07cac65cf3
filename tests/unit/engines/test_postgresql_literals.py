"""Text forms of nested values, taken apart; dates that no calendar of ours has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryserver.engines.postgresql.values import (
    DATE_INFINITY,
    TIMESTAMP_INFINITY,
    array_literal,
    composite_attributes,
    date_text,
    hstore_pairs,
    timestamp_text,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", []),
        ("{1,2}", ["1", "2"]),
        ("{NULL,null,NULLS}", [None, None, "NULLS"]),
        ('{"NULL","",a}', ["NULL", "", "a"]),
        (r'{"a\"b","c\\d",e\,f}', ['a"b', "c\\d", "e,f"]),
        ('{"a,b","{x}"}', ["a,b", "{x}"]),
        ("{{1,2},{3,4}}", [["1", "2"], ["3", "4"]]),
        ("[0:1]={5,6}", ["5", "6"]),
        ("[1:1][0:1]={{5,6}}", [["5", "6"]]),
        ('{"(1,\\"a b\\")"}', ['(1,"a b")']),
    ],
)
def test_arrays(text, expected) -> None:
    assert array_literal(text, ",") == expected


def test_an_array_of_boxes_is_cut_at_semicolons() -> None:
    assert array_literal("{(1,1),(0,0);(3,3),(2,2)}", ";") == ["(1,1),(0,0)", "(3,3),(2,2)"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("()", [None]),
        ("(,)", [None, None]),
        ("(1,,x)", ["1", None, "x"]),
        ('("",a)', ["", "a"]),
        ('("a ""b""","c\\\\d")', ['a "b"', "c\\d"]),
        ('("{1,""x y""}")', ['{1,"x y"}']),
        ('("(1,""a"")",2)', ['(1,"a")', "2"]),
    ],
)
def test_composite_values(text, expected) -> None:
    assert composite_attributes(text) == expected


def test_pairs_of_hstore() -> None:
    assert hstore_pairs(r'"a"=>"1", "b c"=>NULL, "\"q\""=>"x, y"') == [("a", "1"), ("b c", None), ('"q"', "x, y")]


@given(st.lists(st.none() | st.text(st.characters(exclude_characters="\0"))))
def test_what_is_quoted_comes_back(items) -> None:
    quoted = ["NULL" if i is None else '"' + i.replace("\\", "\\\\").replace('"', '\\"') + '"' for i in items]
    assert array_literal("{" + ",".join(quoted) + "}", ",") == items


@given(st.lists(st.none() | st.text(st.characters(exclude_characters="\0")), min_size=1))
def test_attributes_that_are_quoted_come_back(items) -> None:
    quoted = ["" if i is None else '"' + i.replace("\\", "\\\\").replace('"', '""') + '"' for i in items]
    assert composite_attributes("(" + ",".join(quoted) + ")") == items


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (0, "2000-01-01"),
        (-1, "1999-12-31"),
        (DATE_INFINITY, "infinity"),
        (-DATE_INFINITY - 1, "-infinity"),
        (2_921_939, "9999-12-31"),
        (2_921_940, "10000-01-01"),
        (-730_119, "0001-01-01"),
        (-730_120, "0001-12-31 BC"),
        (-730_485, "0001-01-01 BC"),
        (-730_486, "0002-12-31 BC"),
    ],
)
def test_dates(days, text) -> None:
    assert date_text(days) == text


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "2000-01-01 00:00:00"),
        (-1, "1999-12-31 23:59:59.999999"),
        (TIMESTAMP_INFINITY, "infinity"),
        (-TIMESTAMP_INFINITY - 1, "-infinity"),
        (-730_120 * 86_400_000_000, "0001-12-31 00:00:00 BC"),
    ],
)
def test_timestamps(microseconds, text) -> None:
    assert timestamp_text(microseconds) == text


def test_a_zone_stands_between_the_time_and_the_era() -> None:
    assert timestamp_text(500_000, "+00:00") == "2000-01-01 00:00:00.500000+00:00"
    assert timestamp_text(-730_120 * 86_400_000_000, "+00:00") == "0001-12-31 00:00:00+00:00 BC"
