"""The encodings of files (Contract importer 8.1), and reading a window of the text."""

import pytest
from tests.refusals import raises_code

from queryserver.errors.base import InvalidParameter
from queryserver.formats.delimited.encodings import (
    ENCODINGS,
    Decoder,
    TextWindow,
    decoded,
    parse_encoding,
    python_codec,
    text_window,
)
from queryserver.formats.unpacking import ByteExcerpt, Window


def test_undecodable_bytes_are_counted_without_real_replacement_characters():
    decoder = Decoder("utf-8")
    text = decoder.decode(b"a\xff\xef\xbf") + decoder.decode(b"\xbdb\xc3") + decoder.decode(b"", final=True)
    assert (text, decoder.undecodable, decoder.characters) == ("a\ufffd\ufffdb\ufffd", 2, 5)


def test_only_a_leading_byte_order_mark_is_dropped():
    decoder = Decoder("utf-8-sig")
    assert decoder.decode(b"\xef\xbb") + decoder.decode(b"\xbfa\xef\xbb\xbf") == "a\ufeff"
    assert Decoder("utf-8").decode("\ufeffa".encode()) == "a"


def test_ten_percent_undecodable_characters_are_tolerated():
    decoder = Decoder("utf-8")
    decoder.decode(b"123456789\xff")
    decoder.check()
    decoder.decode(b"\xff")
    with raises_code("encoding_error"):
        decoder.check()


def test_encoding_names_are_case_insensitive():
    assert parse_encoding("UTF-8-SIG") == "utf-8-sig"
    assert parse_encoding("GB18030") == "gb18030"
    assert (parse_encoding("CP932"), parse_encoding("Shift_JIS"), parse_encoding("cp1251")) == (
        "cp932",
        "shift_jis",
        "windows-1251",
    )
    assert python_codec("cp1250") == "windows-1250"
    for name in ("utf8", "rot13", "hex", "utf-7", "", " utf-8"):
        with pytest.raises(InvalidParameter):
            parse_encoding(name)


@pytest.mark.parametrize(
    ("encoding", "content", "text"),
    [
        ("shift_jis", b"\x87\x40\xfb\xfc\x81\x60", "①髙～"),
        ("euc-kr", "똠방".encode("cp949"), "똠방"),
        ("gbk", "㐀😀".encode("gb18030"), "㐀😀"),
        ("big5", b"\xf9\xd6\xa3\xe1", "碁€"),
    ],
)
def test_windows_variants_of_encodings_are_decoded(encoding, content, text):
    decoder = Decoder(encoding)
    assert (decoder.decode(content, final=True), decoder.undecodable) == (text, 0)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([b"a,b\n1,2\n\x1a"], "a,b\n1,2\n"),
        ([b"a\x1a", b"\x1a", b""], "a"),
        ([b"a\x1a", b"b\x1a"], "a\x1ab"),
        ([b"a", b"\x1a" * 128], "a"),
        ([b"\x1a" * 130], "\x1a\x1a"),
    ],
)
def test_trailing_dos_end_of_file_character_is_dropped(pieces, text):
    decoder = Decoder("utf-8")
    assert "".join([*map(decoder.decode, pieces), decoder.decode(b"", final=True)]) == text


@pytest.mark.importer(38)
@pytest.mark.parametrize(
    ("mark", "encoding"), [(b"", "utf-16-le"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")]
)
def test_utf_16_follows_its_byte_order_mark_or_defaults_to_little_endian(mark, encoding):
    sample = mark + "é,b\n".encode(encoding)
    decoder = Decoder("utf-16")
    pieces = [decoder.decode(sample[at : at + 1]) for at in range(len(sample))]
    assert "".join(pieces) + decoder.decode(b"", final=True) == "é,b\n"
    assert decoded(sample, "utf-16", is_whole=True) == "é,b\n"


def test_single_byte_is_not_utf_16():
    decoder = Decoder("utf-16")
    assert (decoder.decode(b"a"), decoder.decode(b"", final=True), decoder.undecodable) == ("", "\ufffd", 1)


LATIN = "Zürich, Škoda\n"
TEXTS = {
    "utf-8": "aé日本😀\U0010fffd\n日本", "utf-16": "aé日本😀\U0010fffd\n日本", "utf-16-le": "aé日本😀😀\n日本",
    "utf-16-be": "aé日本😀😀\n日本", "ascii": "plain text, 12 lines\n", "iso-8859-1": "Zürich\n", "windows-1250": LATIN,
    "windows-1251": "Привет, мир\n", "windows-1252": "“Zürich”\n", "windows-1253": "Καλημέρα\n",
    "windows-1254": "İstanbul ğ\n", "windows-1255": "שלום\n", "windows-1256": "مرحبا\n", "windows-1257": "Rīga š\n",
    "windows-1258": "Viê\n", "iso-8859-2": LATIN, "iso-8859-15": "Zürich €\n", "cp874": "ชื่อ\n",
    "cp866": "Привет, мир\n",
    "mac-roman": "Zürich, “ﬁ”\n", "cp932": "①髙橋、ソ表 ﾃｽﾄ, ok\n表示", "cp949": "한국어 똠방, ok\n뷁",
    "big5-hkscs": "中文功能,許 啫 ok\n中文", "koi8-u": "Привіт, їжак\n",
    "shift_jis": "日本語テキスト、ソ表 ﾃｽﾄ, ok\n表示",
    "euc-jp": "日本語テキスト、表 ﾃｽﾄ, 丂ok\n表示",
    "euc-kr": "한국어 텍스트, ok\n한국", "gbk": "中文文本,镕 ok\n中文", "gb18030": "中文文本,㐀😀 9ok\n中文0",
    "big5": "中文功能,許 ok\n中文",
    "koi8-r": "Привет, мир\n",
}  # fmt: skip


def window(content: bytes, offset: int, length: int, encoding: str) -> TextWindow:
    return text_window(excerpt(content, offset, length), encoding)


def excerpt(content: bytes, offset: int, length: int) -> ByteExcerpt:
    taken = Window(offset, length, 2**40)
    taken.take(content)
    return taken.excerpt()


def read_through(content: bytes, size: int, encoding: str) -> str:
    """Return the text that a client reads in windows of `size` bytes, if each window starts at the `end` of the
    previous one.
    """
    offset, text = 0, ""
    while offset < len(content):
        part = window(content, offset, size, encoding)
        assert part.is_valid, (offset, part)
        assert part.end > offset
        text += part.text
        offset = part.end
    return text


def test_every_listed_encoding_is_covered():
    assert set(TEXTS) == set(ENCODINGS)


@pytest.mark.storage(42)
@pytest.mark.parametrize("encoding", TEXTS)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 16, 1000])
def test_consecutive_windows_give_the_whole_text_once(encoding: str, size: int):
    assert read_through(TEXTS[encoding].encode(encoding), size, encoding) == TEXTS[encoding]


@pytest.mark.storage(42)
@pytest.mark.parametrize("encoding", TEXTS)
@pytest.mark.parametrize("size", [7, 10])
def test_window_at_any_offset_starts_with_a_whole_character(encoding: str, size: int):
    text = TEXTS[encoding]
    content = text.encode(encoding)
    # Maps each offset at which a character starts to the text from that offset.
    mark = 2 if encoding == "utf-16" else 0
    plain = "utf-16-le" if mark else encoding
    borders = {mark + len(text[:place].encode(plain)): text[place:] for place in range(len(text) + 1)}
    for offset in range(1, len(content)):
        part = window(content, offset, size, encoding)
        begins = next(border for border in sorted(borders) if border >= offset)
        assert part.is_valid, offset
        assert borders[begins].startswith(part.text), offset
        assert part.end in borders or part.end < begins, offset


def test_utf16_byte_order_mark_applies_to_every_window():
    content = b"\xfe\xff" + "aé日😀b".encode("utf-16-be")
    assert read_through(content, 3, "utf-16") == "aé日😀b"
    assert window(content, 4, 4, "utf-16").text == "é日"


def test_utf16_without_a_byte_order_mark_is_little_endian():
    assert window("hé".encode("utf-16-le"), 0, 10, "utf-16") == TextWindow("hé", 4, is_valid=True)


@pytest.mark.parametrize("length", [1, 2, 3, 10])
def test_utf8_byte_order_mark_is_dropped_at_the_start_only(length: int):
    content = b"\xef\xbb\xbfab"
    first = window(content, 0, length, "utf-8")
    assert first.text + window(content, first.end, 10, "utf-8").text == "ab"
    assert window(b"x\xef\xbb\xbf", 0, 10, "utf-8").text == "x\ufeff"


def test_character_cut_by_the_end_of_the_file_is_invalid():
    assert not window("日".encode()[:2], 0, 10, "utf-8").is_valid
    assert not window("日".encode()[:2], 0, 1, "utf-8").is_valid
    assert not window(b"a\x82", 0, 10, "shift_jis").is_valid
    assert not window(b"a\0b", 0, 10, "utf-16-le").is_valid


def test_invalid_text_is_shown_with_replacement_characters():
    assert window(b"ab\xff\xfec", 0, 10, "utf-8") == TextWindow("ab\ufffd\ufffdc", 5, is_valid=False)
    assert window(b"Hi\0!", 0, 10, "utf-8") == TextWindow("Hi\ufffd!", 4, is_valid=False)


def test_stray_leading_byte_is_not_a_cut_character():
    assert not window(b"ab\x80\x80cd", 2, 4, "utf-8").is_valid


def test_window_is_correct_at_any_distance_from_a_plain_character():
    content = ("日本" * 5000 + "\n表").encode("shift_jis")
    far = len("日本" * 5000) * 2
    assert window(content, far - 4, 10, "shift_jis").text == "日本\n表"
    assert read_through(content, 4097, "shift_jis") == content.decode("shift_jis")


@pytest.mark.parametrize("offset", [5, 6, 100])
def test_window_past_the_end_is_empty(offset: int):
    for encoding in ENCODINGS:
        assert window(b"plain", offset, 10, encoding) == TextWindow("", offset, is_valid=True)


def test_empty_window_keeps_its_offset():
    assert window("日本".encode(), 1, 0, "utf-8") == TextWindow("", 1, is_valid=True)
    assert window(b"\xef\xbb\xbfa", 0, 0, "utf-8") == TextWindow("", 0, is_valid=True)
