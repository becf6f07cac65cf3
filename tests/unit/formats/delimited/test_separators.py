"""Separators as clients send them (Contract importer 7.2)."""

import pytest

from queryserver.errors.base import InvalidParameter
from queryserver.formats.detection import delimiters_of, unescaped
from queryserver.imports.model import Delimiters


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        (r"\t\n\r\\\"\'\a\b\f\v\0", "\t\n\r\\\"'\a\b\f\v\0"),
        (r"\x01\x1F\u0001\u20ac", "\x01\x1f\x01€"),
        (r"\ud83d\ude00", "😀"),
        (r"\|", "\\|"),
        (r"\x1", "\\x1"),
        (r"\u12", "\\u12"),
        (r"\\t", "\\t"),
        ("\\", "\\"),
        ("a\\", "a\\"),
        ("\t", "\t"),
        ("é", "é"),
    ],
)
def test_escapes_are_read_and_all_else_stays_as_sent(sent, meant):
    assert unescaped(sent) == meant


@pytest.mark.importer(18, 19)
@pytest.mark.parametrize(("field", "record"), [("\t", "\r\n"), (r"\t", r"\r\n"), (r"\x09", r"\u000d\u000a")])
def test_raw_and_escaped_separators_mean_the_same(field, record):
    assert delimiters_of(field, quote='"', record=record) == Delimiters("\t", '"', "\n")


def test_what_is_absent_or_empty_is_as_usual():
    assert delimiters_of(",", quote="", record="") == delimiters_of(",") == Delimiters()


@pytest.mark.importer(34)
def test_the_escape_of_nul_switches_quoting_off():
    assert delimiters_of(",", quote=r"\0") == Delimiters(",", None, "\n")


@pytest.mark.importer(35)
def test_separators_have_up_to_8_characters():
    assert delimiters_of("||", record="#" * 8) == Delimiters("||", '"', "########")
    assert delimiters_of("é").field == "é"


@pytest.mark.importer(36)
@pytest.mark.parametrize(
    ("field", "quote", "record"),
    [
        (",", ",", "\n"),
        ("\n", '"', "\n"),
        (",", '"', '"'),
        ('a"b', '"', "\n"),
        ("a\nb", '"', "\n"),
        ("a\nb", '"', "\r\n"),
        (",", '"', '#"#'),
    ],
)
def test_equal_separators_and_one_within_another_are_refused(field, quote, record):
    with pytest.raises(InvalidParameter):
        delimiters_of(field, quote=quote, record=record)


@pytest.mark.parametrize(
    ("field", "quote", "record"),
    [
        ("x" * 9, '"', "\n"),
        (",", "''", "\n"),
        (",", '"', "#" * 9),
        ("\0", '"', "\n"),
        (",", "\0", "\n"),
        (r"\ud83d", '"', "\n"),
    ],
)
def test_too_long_ones_raw_nul_and_half_characters_are_refused(field, quote, record):
    with pytest.raises(InvalidParameter):
        delimiters_of(field, quote=quote, record=record)
