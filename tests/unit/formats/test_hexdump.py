"""Bytes as lines (Contract storage 5.3)."""

import json

from queryserver.files.viewing import hexdump


def lines_of(content: bytes, offset: int) -> list:
    return json.loads(hexdump(content, offset))


def test_words_of_two_bytes_and_what_is_printable():
    assert lines_of(b"Hi\x00!", 0) == [[0, [[72, 105], [0, 33]], "Hi.!"]]


def test_sixteen_bytes_a_line_from_the_offset_on():
    lines = lines_of(bytes(range(0x1E, 0x30)) + b"\x7e\x7f\xff", 5)
    assert [offset for offset, _, _ in lines] == [5, 21]
    assert lines[0][2] == ".. !\"#$%&'()*+,-"
    assert lines[1] == [21, [[0x2E, 0x2F], [0x7E, 0x7F], [0xFF]], "./~.."]


def test_nothing_has_no_line():
    assert lines_of(b"", 7) == []


def test_quotes_and_backslashes_are_escaped():
    assert lines_of(b'a"b\\c%s', 0)[0][2] == 'a"b\\c%s'
