"""Parsing of the JSON that clients send (Contract platform 1.2)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.timing import processor_s

from queryserver.errors.base import InvalidJson
from queryserver.platform.text import MAX_DEPTH, parse_json

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(TEXTS, children, max_size=4),
)


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


@given(VALUES)
def test_serialized_json_round_trips(value: object):
    assert parse_json(json.dumps(value)) == value


@pytest.mark.platform(10)
@pytest.mark.parametrize("text",
    ["", "{", "nul", "NaN", "[Infinity]", "-Infinity", '{"a": 1, "a": 1}', '[{"b": {"a": 1, "a": 2}}]', "1 2", b"\xff",
    "9" * 5000])  # fmt: skip
def test_text_that_is_not_strict_json_is_refused(text: str | bytes):
    with pytest.raises(InvalidJson):
        parse_json(text)


def test_number_with_too_many_digits_is_reported_clearly():
    with pytest.raises(InvalidJson, match=r"^A JSON number is too large\.$"):
        parse_json('{"a": ' + "9" * 5000 + "}")


@pytest.mark.platform(10)
def test_nesting_depth_is_limited():
    assert parse_json(nested(MAX_DEPTH)) is not None
    for levels in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(InvalidJson):
            parse_json(nested(levels))


def test_adjacent_brackets_do_not_count_as_nesting():
    wide = {str(number): [{}] for number in range(MAX_DEPTH)}
    assert parse_json(json.dumps(wide)) == wide


def test_brackets_in_strings_do_not_count_as_nesting():
    assert parse_json(json.dumps("[" * 1000)) == "[" * 1000


def test_large_statement_is_parsed_quickly():
    text = json.dumps({"statement": "SELECT '[{\\n'; " * 700_000})
    assert processor_s(lambda: parse_json(text)) < 1
