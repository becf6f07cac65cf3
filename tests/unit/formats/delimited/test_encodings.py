"""Telling encodings and decoding in pieces (Contract importer 8.1, 9.2)."""

import pytest
from tests.refusals import raises_code

from queryserver.errors.base import InvalidParameter
from queryserver.errors.files import UnsupportedFormat
from queryserver.formats.delimited.encodings import Decoder, decoded, detect_encoding, encoding_of


@pytest.mark.importer(38)
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "iso-8859-1", "utf-8"])
def test_text_comes_out_the_same_in_every_encoding(encoding):
    text = "name,é\n" * 10
    sample = text.encode(encoding)
    assert decoded(sample, detect_encoding(sample, is_whole=True), is_whole=True) == text


def test_a_character_that_the_end_of_the_sample_cuts_is_ignored_and_the_end_of_the_file_cuts_none():
    sample = "a,é".encode()[:-1]
    assert detect_encoding(sample, is_whole=False) == "utf-8"
    assert decoded(sample, "utf-8", is_whole=False) == "a,"
    assert detect_encoding(sample, is_whole=True) == "iso-8859-1"


@pytest.mark.parametrize(
    ("sample", "encoding"),
    [
        (b"a\x80", "windows-1252"),
        (b"a" * 200 + b"\x80\x81", "iso-8859-1"),
        (b"a\xe9\xa0", "iso-8859-1"),
        ("żółć,1\n".encode("utf-16-le") + "abcdefgh,1\n".encode("utf-16-le"), "utf-16-le"),
    ],
)
def test_other_encodings_are_told_by_their_bytes(sample, encoding):
    assert detect_encoding(sample, is_whole=True) == encoding


@pytest.mark.parametrize(
    "sample",
    [
        b"\xff\xfe\0\0a\0\0\0",
        b"\0\0\xfe\xff\0\0\0a",
        b"a\0b\0",
        b"abc\0defgh",
        b"\0" * 64,
        b"a" * 98 + b"\x07\x08",
        "a\x85\x86".encode(),
    ],
    ids=["UTF-32 LE", "UTF-32 BE", "too short", "one NUL", "NUL only", "bells", "C1 controls"],
)
def test_what_is_no_text_is_unsupported(sample):
    with pytest.raises(UnsupportedFormat):
        detect_encoding(sample, is_whole=True)


def test_one_control_character_in_a_hundred_is_borne():
    assert detect_encoding(b"a" * 99 + b"\x07", is_whole=True) == "utf-8"
    assert detect_encoding(b"a\x01b\x1fc\x1cd\x0c\x03" * 9, is_whole=True) == "utf-8"


def test_undecodable_bytes_are_counted_and_real_replacement_characters_are_not():
    decoder = Decoder("utf-8")
    text = decoder.decode(b"a\xff\xef\xbf") + decoder.decode(b"\xbdb\xc3") + decoder.decode(b"", final=True)
    assert (text, decoder.undecodable, decoder.characters) == ("a\ufffd\ufffdb\ufffd", 2, 5)


def test_only_a_mark_at_the_beginning_is_left_out():
    decoder = Decoder("utf-8-sig")
    assert decoder.decode(b"\xef\xbb") + decoder.decode(b"\xbfa\xef\xbb\xbf") == "a\ufeff"
    assert Decoder("utf-8").decode("\ufeffa".encode()) == "a"


def test_a_tenth_of_undecodable_characters_is_borne_and_more_are_not():
    decoder = Decoder("utf-8")
    decoder.decode(b"123456789\xff")
    decoder.check()
    decoder.decode(b"\xff")
    with raises_code("encoding_error"):
        decoder.check()


def test_encodings_have_names_of_any_case():
    assert encoding_of("UTF-8-SIG") == "utf-8-sig"
    assert encoding_of("GB18030") == "gb18030"
    for name in ("utf8", "rot13", "hex", "utf-7", "", " utf-8"):
        with pytest.raises(InvalidParameter):
            encoding_of(name)


@pytest.mark.importer(38)
@pytest.mark.parametrize(
    ("mark", "encoding"), [(b"", "utf-16-le"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")]
)
def test_utf_16_has_the_order_of_its_mark_and_the_low_byte_first_without_one(mark, encoding):
    sample = mark + "é,b\n".encode(encoding)
    decoder = Decoder("utf-16")
    pieces = [decoder.decode(sample[at : at + 1]) for at in range(len(sample))]
    assert "".join(pieces) + decoder.decode(b"", final=True) == "é,b\n"
    assert decoded(sample, "utf-16", is_whole=True) == "é,b\n"


def test_a_single_byte_is_no_utf_16():
    decoder = Decoder("utf-16")
    assert (decoder.decode(b"a"), decoder.decode(b"", final=True), decoder.undecodable) == ("", "\ufffd", 1)
