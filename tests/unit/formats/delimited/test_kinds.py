"""What a file is by its first bytes (Contract importer 9.1)."""

import bz2
import gzip
import lzma

import pytest
from tests.refusals import raises_code

from queryserver.errors.files import UnsupportedFormat
from queryserver.formats.detection import FileKind, recognise, recognise_given


@pytest.mark.importer(31)
@pytest.mark.parametrize(
    "sample",
    [b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\n\n", b" \t\r\n", b"\xef\xbb\xbf \n", " \n".encode("utf-16")],
)
def test_nothing_but_a_mark_and_blanks_is_an_empty_file(sample):
    with raises_code("file_empty"):
        recognise(sample, is_whole=True)


@pytest.mark.parametrize("sample", [b"PK\x03\x04rest", bytes.fromhex("d0cf11e0a1b11ae1") + b"rest"])
def test_zip_and_compound_files_may_be_workbooks(sample):
    assert recognise(sample, is_whole=False) is FileKind.WORKBOOK_CANDIDATE


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
def test_known_other_formats_are_unsupported(sample):
    with pytest.raises(UnsupportedFormat):
        recognise(sample, is_whole=True)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1',
        ' { "a": 1}\n{',
        '{"a": 1}\n[1]\n{',
        '[{"a": 1}]',
        "[ {",
        '{}\n[1]\n\n{"a": 2}\n',
        "[1, 2]\r\n[3, 4]\r\n",
        '[1]\n[2]\n[3, "cut',
    ],
)
def test_json_is_unsupported(text):
    with pytest.raises(UnsupportedFormat):
        recognise(text.encode(), is_whole=text.endswith("{"))


@pytest.mark.parametrize(
    ("sample", "kind"),
    [
        (b"PAR1....", FileKind.PARQUET),
        (b"Obj\x01....", FileKind.AVRO),
        (b"ARROW1\0\0....", FileKind.ARROW),
        (b"\xff\xff\xff\xff\x10\0\0\0....", FileKind.ARROW),
        (b'{"a": 1}', FileKind.NDJSON),
        (b'\xef\xbb\xbf{"a": 1}\r\n\r\n {}\r\n{"cut', FileKind.NDJSON),
    ],
)
def test_files_of_records_are_recognised(sample, kind):
    assert recognise(sample, is_whole=False) is kind
    if kind is not FileKind.NDJSON:
        with raises_code("format_mismatch"):
            recognise_given(sample, is_whole=False)


@pytest.mark.parametrize(
    "text",
    [
        "{a},{b}\n",
        "[1],[2]\n",
        "[x]\n[y]\n",
        "a,b\n{}\n",
        "[" * 100_000,
        "[1]\n[2]\n[3, cut",
        "BZh,a\n",
        "PK,a\n",
        "<a,b\n",
    ],
)
def test_what_only_looks_like_another_format_is_text(text):
    assert recognise(text.encode(), is_whole=True) is FileKind.TEXT
