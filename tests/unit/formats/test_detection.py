"""Detection of file types and delimiters (Contract importer 9, 10), and separators as clients send them (7.2)."""

import bz2
import gzip
import lzma
from contextlib import suppress

import pytest
from tests.refusals import raises_code
from tests.timing import TRIES, processor_s

from queryserver.errors.base import InvalidParameter, QueryServerError
from queryserver.errors.files import UnsupportedFormat
from queryserver.formats.cell_types.header import has_header
from queryserver.formats.delimited.records import RecordReader
from queryserver.formats.detection import (
    DetectedFormat,
    detect_declared_type,
    detect_delimiters,
    detect_file_type,
    parse_delimiters,
    unescape,
)
from queryserver.formats.table_files import SAMPLE_BYTES, Delimiters, FileType

BEGINNING_BYTES = 64 * 1024
"""The size in bytes of the sample that guess_header reads first."""

CSV, TSV, DELIMITED = FileType.CSV, FileType.TSV, FileType.DELIMITED
D1 = "id,name\n1,a\n2,b\n3,c\n"

CASES = [
    ("D1", D1, CSV, ",", '"', "\n", 1.0),
    ("D2", "ab,cd\nef,gh\nij,kl\n", CSV, ",", '"', "\n", 1.0),
    ("D3", "col1\tcol2\tcol3\nval1\tval2\tval3\n", TSV, "\t", '"', "\n", 1.0),
    ("D4", "a|b\n1|2\n3|4\n", DELIMITED, "|", '"', "\n", 1.0),
    ("D5", "a;b\n1;2\n3;4\n", DELIMITED, ";", '"', "\n", 1.0),
    ("D6", "a:b\n1:2\n3:4\n", DELIMITED, ":", '"', "\n", 1.0),
    ("D7", "a b\n1 2\n3 4\n", DELIMITED, " ", '"', "\n", 1.0),
    ("D8", "a^b\n1^2\n3^4\n", DELIMITED, "^", '"', "\n", 1.0),
    ("D9", "a\x01b\n1\x012\n", DELIMITED, "\x01", '"', "\n", 1.0),
    ("D10", "'a';'b'\n'1';'2'\n", DELIMITED, ";", "'", "\n", 1.0),
    ("D11", "a, b\n1, 2\n3, 4\n", CSV, ",", '"', "\n", 1.0),
    ("D12", "a,b\r\n1,2\r\n", CSV, ",", '"', "\r\n", 1.0),
    ("D13", "a,b\r1,2\r", CSV, ",", '"', "\r", 1.0),
    ("D14", 'id,note\r\n1,"x\ny\nz\nt"\r\n2,b\r\n', CSV, ",", '"', "\r\n", 1.0),
    ("D15", 'id,note\n1,"a,b"\n2,"line1\nline2"\n', CSV, ",", '"', "\n", 1.0),
    ("D16", "a||b||c\n1||2||3\n", DELIMITED, "||", '"', "\n", 1.0),
    ("D17", "a|~|b\n1|~|2\n", DELIMITED, "|~|", '"', "\n", 1.0),
    ("D18", "a::b\n1::2\n", DELIMITED, "::", '"', "\n", 1.0),
    ("D19", "1,5;2,5\n3,5;4,5\n", DELIMITED, ";", '"', "\n", 1.0),
    ("D20", "id,tags\n1,a;b\n2,c;d\n", CSV, ",", '"', "\n", 1.0),
    ("D21", "Smith, John;Paris\nDoe, Jane;Rome\n", DELIMITED, ";", '"', "\n", 1.0),
    ("D22", 'id;amount\n1;"2;5"\n2;"3;5"\n', DELIMITED, ";", '"', "\n", 1.0),
    ("D23", "name;age\nO'Brien;44\nD'Arcy;30\n", DELIMITED, ";", '"', "\n", 1.0),
    ("D24", "a,b,c\n1,2\n3,4,5\n6,7,8\n9,10,11\n12,13,14\n", CSV, ",", '"', "\n", 0.83),
    ("D25 words", "name\nalice\nbob\n", CSV, ",", '"', "\n", 0.5),
    ("D25 numbers", "n\n1\n2\n", CSV, ",", '"', "\n", 0.5),
    ("D25 one word", "hello", CSV, ",", '"', "\n", 0.5),
    ("D26", "the quick brown fox\njumped over\nthe lazy dog again\n", CSV, ",", '"', "\n", 0.5),
    ("D27", "Hello, world\nThis is fine\nOk, bye\n", TSV, "\t", '"', "\n", 0.5),
    ("D28 times", "12:30\n13:45\n", CSV, ",", '"', "\n", 0.5),
    ("D28 timestamps", "2024-01-01 10:00:00\n2024-01-02 11:00:00\n", CSV, ",", '"', "\n", 0.5),
    ("D29", "a,,b\n1,,2\n3,,4\n", CSV, ",", '"', "\n", 1.0),
    ("D30 pairs", "key=value\nfoo=bar\n", CSV, ",", '"', "\n", 0.5),
    ("D30 words", "a b c\nd e f\n", CSV, ",", '"', "\n", 0.5),
]


def seen(text: str, *, is_whole: bool = True) -> DetectedFormat:
    sample = text.encode()
    assert detect_file_type(sample, is_whole=is_whole) is FileType.DELIMITED
    return detect_delimiters(sample, is_whole=is_whole)


@pytest.mark.importer(12)
@pytest.mark.parametrize(("text", "file_type", "field", "quote", "record", "confidence"), [case[1:] for case in CASES])
def test_documented_case_gives_the_expected_result(text, file_type, field, quote, record, confidence):
    found = seen(text)
    assert (found.type, found.delimiters.field, found.delimiters.quote) == (file_type, field, quote)
    assert (found.record_separator, found.encoding, found.confidence) == (record, "utf-8", confidence)
    assert found.delimiters.record == ("\n" if record == "\r\n" else record)


@pytest.mark.importer(12)
def test_d31_json_is_not_delimited_text():
    assert detect_file_type(b'{"a":1,"b":2}\n{"a":3,"b":4}\n', is_whole=True) is FileType.NDJSON
    with pytest.raises(UnsupportedFormat):
        detect_file_type(b'[{"a":1,"b":2},\n{"a":3,"b":4}]\n', is_whole=True)


@pytest.mark.importer(12, 38)
@pytest.mark.parametrize(
    ("sample", "encoding"),
    [
        (b"\xef\xbb\xbf" + D1.encode(), "utf-8-sig"),
        (D1.encode("utf-16-le"), "utf-16-le"),
        (D1.encode("utf-16-be"), "utf-16-be"),
        (b"\xff\xfe" + D1.encode("utf-16-le"), "utf-16-le"),
        (b"\xfe\xff" + D1.encode("utf-16-be"), "utf-16-be"),
    ],
)
def test_d32_encoding_does_not_affect_detection(sample, encoding):
    assert detect_file_type(sample, is_whole=True) is FileType.DELIMITED
    found = detect_delimiters(sample, is_whole=True)
    assert found.encoding == encoding
    assert found == DetectedFormat(CSV, found.delimiters, "\n", encoding, 1.0)
    assert found.delimiters.field == ","


@pytest.mark.importer(12)
@pytest.mark.parametrize(
    ("sample", "encoding"), [("a,é".encode("iso-8859-1"), "iso-8859-1"), ("a,€".encode("windows-1252"), "windows-1252")]
)
def test_d33_single_byte_encodings_are_distinguished(sample, encoding):
    assert detect_file_type(sample, is_whole=True) is FileType.DELIMITED
    found = detect_delimiters(sample, is_whole=True)
    assert (found.type, found.encoding) == (CSV, encoding)


PNG = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489") + bytes(range(256))


@pytest.mark.importer(12)
@pytest.mark.parametrize(("sample", "error"),
    [(PNG, "unsupported_format"), (b"\0\1\2\3", "unsupported_format"), (b"", "file_empty"),
    (b"\n\n", "file_empty")])  # fmt: skip
def test_d34_binary_or_empty_data_is_rejected(sample, error):
    with raises_code(error) as caught:
        detect_file_type(sample, is_whole=True)
    if error == "file_empty":
        assert caught.value.message == "File is empty, cannot detect file format."


@pytest.mark.parametrize("text", ["a|~|b|c\n1|~|2|3\n", "a~|~b\n1~|~2\n"])
def test_long_separators_precede_their_parts(text):
    assert seen(text).delimiters.field in {"|~|", "~|~"}


def test_run_of_three_is_a_separator_and_a_run_of_four_is_not():
    assert seen("a|||b\n1|||2\n").delimiters.field == "|||"
    assert seen("a||||b\n1||||2\n").delimiters.field == "|"


def test_run_within_quotes_does_not_prevent_a_doubled_separator():
    assert seen('a||b\n"x|y"||2\n').delimiters.field == "||"


def test_run_cut_by_the_end_of_the_sample_does_not_prevent_a_doubled_separator():
    assert seen("a||b\n1||2\n3|", is_whole=False).delimiters.field == "||"


def test_single_quotes_require_two_valid_fields_and_no_broken_field():
    assert seen("'a';b\n1;2\n").delimiters.quote == '"'
    assert seen("'a';'b'\n'c;2\n'd';e\n").delimiters.quote == '"'
    assert seen("'a';'b'\n\"1\";'2'\n").delimiters.quote == '"'


def test_last_record_of_a_partial_sample_is_ignored():
    assert seen("a,b\n1,2\n3", is_whole=False).confidence == 1.0
    assert seen("'a','b'\n'c','d'\n'e','f", is_whole=False).delimiters.quote == "'"


def test_first_line_of_a_partial_sample_counts():
    assert seen("a,b,c", is_whole=False).delimiters.field == ","


def test_single_column_gets_a_separator_absent_from_the_text():
    text = "a,b\tc|d;e\nx\ny\nz\n"
    found = seen(text)
    assert found.confidence == 0.5
    assert found.delimiters.field == "\x01"
    assert seen(text + "\x01\x1f\n").delimiters.field not in text


@pytest.mark.importer(12)
@pytest.mark.parametrize(
    ("pairs", "others", "field", "confidence"), [(4, 1, ",", 0.8), (16, 4, ",", 0.8), (19, 5, "\t", 0.5)]
)
def test_separator_fits_if_four_of_five_records_have_the_same_width(pairs, others, field, confidence):
    """For 19 records of the same width and 5 others, the share is only 0.79, so the file is read as one column, with a
    separator that does not occur in it.
    """
    found = seen("a,b\n" + "1,2\n" * (pairs - 1) + "x\n" * others)
    assert (found.delimiters.field, found.confidence) == (field, confidence)


@pytest.mark.importer(12)
@pytest.mark.parametrize("quote", ["", '"', "'"])
def test_too_many_columns_do_not_hide_the_separator(quote):
    found = seen((",".join([f"{quote}1{quote}"] * 2_001) + "\n") * 3)
    assert (found.delimiters.field, found.delimiters.quote, found.confidence) == (",", quote or '"', 1.0)
    assert seen("a;b\n" * 99 + "1;" * 5_000 + "\n").delimiters.field == ";"


@pytest.mark.importer(50, 61)
@pytest.mark.parametrize("unit",
    ['"', "'", ",", "|", "\t", " ", ":", "x", '"\n', '",', "'\",", "\r", '"\r\n', '""x\n', "a,'b\n", "[", "{}\n",
    "1,"])  # fmt: skip
@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.slow
def test_detection_time_is_bounded_for_any_sample(unit, is_whole):
    sample = (unit * SAMPLE_BYTES)[:SAMPLE_BYTES].encode()

    def look() -> None:
        with suppress(QueryServerError):
            detect_file_type(sample, is_whole=is_whole)
            found = detect_delimiters(sample, is_whole=is_whole)
            reader = RecordReader(found.delimiters)
            has_header(reader.feed(sample[:BEGINNING_BYTES].decode(), final=True))

    assert any(processor_s(look) < 2 for _ in range(TRIES))


@pytest.mark.importer(31)
@pytest.mark.parametrize("sample",
    [b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\n\n", b" \t\r\n", b"\xef\xbb\xbf \n",
    " \n".encode("utf-16")])  # fmt: skip
def test_file_of_a_byte_order_mark_and_blanks_is_empty(sample):
    with raises_code("file_empty"):
        detect_file_type(sample, is_whole=True)


@pytest.mark.parametrize("sample", [b"PK\x03\x04rest", bytes.fromhex("d0cf11e0a1b11ae1") + b"rest"])
def test_zip_and_compound_files_may_be_workbooks(sample):
    assert detect_file_type(sample, is_whole=False) is FileType.EXCEL


@pytest.mark.parametrize(
    "sample",
    [
        gzip.compress(b"a,b\n1,2\n", mtime=0),
        bz2.compress(b"a,b\n1,2\n"),
        bz2.compress(b""),
        lzma.compress(b"a,b\n1,2\n"),
        b"%PDF-1.7\n",
        b'<?xml version="1.0"?><a/>',
        b"<!DOCTYPE html>",
        b"\n <html>",
        b"{\\rtf1 hello}",
        "<?xml?>".encode("utf-16"),
        '{"a": 1}\n{"a": 2}\n'.encode("utf-16"),
    ],
)
def test_other_known_formats_are_unsupported(sample):
    with pytest.raises(UnsupportedFormat):
        detect_file_type(sample, is_whole=True)


@pytest.mark.parametrize("text",
    ['{"a": 1', ' { "a": 1}\n{', '{"a": 1}\n[1]\n{', '[{"a": 1}]', "[ {", '{}\n[1]\n\n{"a": 2}\n',
    "[1, 2]\r\n[3, 4]\r\n", '[1]\n[2]\n[3, "cut'])  # fmt: skip
def test_json_is_unsupported(text):
    with pytest.raises(UnsupportedFormat):
        detect_file_type(text.encode(), is_whole=text.endswith("{"))


@pytest.mark.parametrize(("sample", "kind"),
    [(b"PAR1....", FileType.PARQUET), (b"Obj\x01....", FileType.AVRO), (b"ARROW1\0\0....", FileType.ARROW),
    (b"\xff\xff\xff\xff\x10\0\0\0....", FileType.ARROW), (b'{"a": 1}', FileType.NDJSON),
    (b'\xef\xbb\xbf{"a": 1}\r\n\r\n {}\r\n{"cut', FileType.NDJSON)])  # fmt: skip
def test_record_files_are_recognized(sample, kind):
    assert detect_file_type(sample, is_whole=False) is kind
    if kind is not FileType.NDJSON:
        with raises_code("format_mismatch"):
            detect_declared_type(sample, is_whole=False)


@pytest.mark.parametrize("text",
    ["{a},{b}\n", "[1],[2]\n", "[x]\n[y]\n", "a,b\n{}\n", "[" * 100_000, "[1]\n[2]\n[3, cut", "BZh,a\n", "PK,a\n",
    "<a,b\n"])  # fmt: skip
def test_text_resembling_another_format_is_delimited(text):
    assert detect_file_type(text.encode(), is_whole=True) is FileType.DELIMITED


@pytest.mark.parametrize(("sent", "meant"),
    [(r"\t\n\r\\\"\'\a\b\f\v\0", "\t\n\r\\\"'\a\b\f\v\0"), (r"\x01\x1F\u0001\u20ac", "\x01\x1f\x01€"),
    (r"\ud83d\ude00", "😀"), (r"\|", "\\|"), (r"\x1", "\\x1"), (r"\u12", "\\u12"), (r"\\t", "\\t"), ("\\", "\\"),
    ("a\\", "a\\"), ("\t", "\t"), ("é", "é")])  # fmt: skip
def test_known_escapes_are_decoded_and_other_text_is_unchanged(sent, meant):
    assert unescape(sent) == meant


@pytest.mark.importer(18, 19)
@pytest.mark.parametrize(("field", "record"), [("\t", "\r\n"), (r"\t", r"\r\n"), (r"\x09", r"\u000d\u000a")])
def test_raw_and_escaped_separators_are_equivalent(field, record):
    assert parse_delimiters(field, quote='"', record=record) == Delimiters("\t", '"', "\n")


def test_missing_or_empty_delimiters_use_the_defaults():
    assert parse_delimiters(",", quote="", record="") == parse_delimiters(",") == Delimiters()


@pytest.mark.importer(34)
def test_escaped_nul_disables_quoting():
    assert parse_delimiters(",", quote=r"\0") == Delimiters(",", None, "\n")


@pytest.mark.importer(35)
def test_separators_have_up_to_8_characters():
    assert parse_delimiters("||", record="#" * 8) == Delimiters("||", '"', "########")
    assert parse_delimiters("é").field == "é"


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
def test_equal_or_nested_separators_are_rejected(field, quote, record):
    with pytest.raises(InvalidParameter):
        parse_delimiters(field, quote=quote, record=record)


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
def test_overlong_nul_or_surrogate_separators_are_rejected(field, quote, record):
    with pytest.raises(InvalidParameter):
        parse_delimiters(field, quote=quote, record=record)
