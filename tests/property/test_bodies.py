"""Any bytes result in fields or in one of the documented errors, and both JSON parsers agree."""

import json
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.examples import examples

from queryserver.api.bodies import parse_form, parse_json_object, parse_multipart
from queryserver.errors.base import InvalidJson, InvalidParameter, InvalidRequest, PayloadTooLarge
from queryserver.platform.text import StepwiseParser, parse_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)
MARKS = st.text(alphabet='{}[]",:\\u0123dDeE.+-truefalsn \n\t\x00\x1fé😀', max_size=40)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """Draw JSON text in which a few characters are replaced with other characters."""
    text = json.dumps(draw(JSON), ensure_ascii=draw(st.booleans()), indent=draw(st.none() | st.integers(0, 2)))
    start = draw(st.integers(0, len(text)))
    return text[:start] + draw(MARKS)[: draw(st.integers(0, 4))] + text[start + draw(st.integers(0, 3)) :]


def outcome(text: str) -> object:
    """Return the outcome that the strict rules require, computed with Python's parser and a check of the value."""

    def unique(members: list[tuple[str, object]]) -> dict[str, object]:
        if len(dict(members)) != len(members):
            raise ValueError
        return dict(members)

    def check(value: object, depth: int) -> None:
        if isinstance(value, str) and "\0" in value:
            raise ValueError
        if isinstance(value, str):
            value.encode()
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            raise ValueError
        if isinstance(value, list | dict) and depth == 64:
            raise ValueError
        for member in (
            value if isinstance(value, list) else [*value, *value.values()] if isinstance(value, dict) else []
        ):
            check(member, depth + 1)

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=lambda word: [][word])
        check(value, 0)
    except (ValueError, TypeError):
        return InvalidJson
    return value


def read(text: str) -> object:
    try:
        return parse_json(text.encode(), max_depth=64)
    except InvalidJson:
        return InvalidJson


def read_stepwise(text: str) -> object:
    try:
        return StepwiseParser(text, 64).parse()
    except InvalidJson:
        return InvalidJson


@pytest.mark.platform(10)
@examples(700)
@given(text=damaged() | MARKS)
@example(text='["\\ud83d\\ude00","\\ud83d"]')
@example(text="[1e400]")
@pytest.mark.slow
def test_both_parsers_follow_the_strict_rules(text: str):
    expected = outcome(text)
    assert repr(read(text)) == repr(expected)
    assert repr(read_stepwise(text)) == repr(expected)


@examples(500)
@given(body=st.binary(max_size=60) | damaged().map(str.encode))
def test_any_json_bytes_are_parsed_or_refused(body: bytes):
    with suppress(InvalidRequest):
        assert isinstance(parse_json_object(body), dict)


@examples(500)
@given(
    body=st.binary(max_size=60)
    | st.lists(st.sampled_from([b"a", b"=", b"&", b"%", b"%4", b"%c3%a9", b"%00", b"+"])).map(b"".join)
)
def test_any_form_bytes_are_parsed_or_refused(body: bytes):
    with suppress(InvalidParameter):
        assert all("\0" not in name + value for name, value in parse_form(body).items())


PIECES = [
    b"--XX", b"--XX--", b"\r\n", b"\r", b"\n", b"Content-Disposition: form-data; name=a", b'; filename="x"', b": ",
    b"x", b"\xff", b"-", b" ", b"--XX\r\n",
]  # fmt: skip


@pytest.mark.security("T6")
@examples(500)
@given(
    body=st.lists(st.sampled_from(PIECES), max_size=15).map(b"".join) | st.binary(max_size=40),
    content_type=st.sampled_from(
        ["multipart/form-data; boundary=XX", "multipart/form-data;boundary=\r", "multipart/form-data"]
    )
    | st.text(max_size=20),
)
def test_any_multipart_bytes_are_parsed_or_refused(body: bytes, content_type: str):
    with suppress(InvalidParameter, PayloadTooLarge):
        assert isinstance(parse_multipart(body, content_type), dict)


@examples(200)
@given(
    fields=st.dictionaries(
        st.from_regex(r"[a-z]{1,5}", fullmatch=True),
        st.text(max_size=20).map(lambda text: text.replace("\0", "")),
        max_size=5,
    )
)
def test_three_encodings_give_the_same_fields(fields: dict[str, str]):
    from urllib.parse import urlencode

    parts = "".join(
        f'--b0undary\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    )
    assert parse_json_object(json.dumps(fields).encode()) == fields
    assert parse_form(urlencode(fields).encode()) == fields
    if fields:
        assert parse_multipart(f"{parts}--b0undary--\r\n".encode(), "multipart/form-data; boundary=b0undary") == fields
