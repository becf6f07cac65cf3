"""Blocks of delimited text: nulls, rows of another width, numbers of records, and that memory stays bounded."""

import tracemalloc

import pytest
from tests.refusals import raises_code

from queryserver.formats.delimited.cutting import PlainReader
from queryserver.formats.delimited.records import Block, BlockReader
from queryserver.imports.model import Delimiters

MANY = 4000
"""Enough records for Arrow."""


def blocks_of(content: bytes, width: int, delimiters: Delimiters | None = None, encoding: str = "utf-8") -> list[Block]:
    reader = BlockReader(delimiters or Delimiters(), encoding, width)
    return [*reader.feed(content), *reader.finish()]


def rows_of(blocks: list[Block]) -> list[list[str | None]]:
    return [list(row.values()) for block in blocks for row in block.columns.to_pylist()]


@pytest.mark.parametrize("times", [1, MANY])
@pytest.mark.parametrize(
    ("line", "cells"),
    [
        (b'a,"",,x\n', ["a", "", None, "x"]),
        (b'null,NULL,nUlL,"null"\n', [None, None, None, "null"]),
        (b" null ,null\t,nulls,anull\n", [None, None, "nulls", "anull"]),
        (b"\\N,NA, , a \n", ["\\N", "NA", " ", " a "]),
        (b'"a ""b""","c,d","e\nf",5" x\r\n', ['a "b"', "c,d", "e\nf", '5" x']),
        ("é,\u2028,\ufeff,\x00\n".encode(), ["é", "\u2028", "\ufeff", "\x00"]),
    ],
)
def test_cells_are_the_text_of_the_file_or_null(line, cells, times):
    assert rows_of(blocks_of(line * times, 4)) == [cells] * times


@pytest.mark.importer(32)
@pytest.mark.parametrize("times", [1, MANY])
def test_short_rows_are_filled_and_long_ones_cut(times):
    blocks = blocks_of(b'a,b\n1\n1,2,3\n"x,2\n' * times, 2)
    assert rows_of(blocks) == [["a", "b"], ["1", None], ["1", "2"], ['"x', "2"]] * times
    assert numbers(blocks, "short_rows") == list(range(2, 4 * times, 4))
    assert numbers(blocks, "long_rows") == list(range(3, 4 * times, 4))
    assert numbers(blocks, "unclosed") == list(range(4, 4 * times + 1, 4))


def numbers(blocks: list[Block], name: str) -> list[int]:
    return [row + block.first_record for block in blocks for row in getattr(block, name)]


def test_records_are_numbered_without_blank_lines():
    content = b"a,b\n\n  \n1,2\n" * (4 * MANY) + b'"\n",3\n' + b"a,b\n" * MANY
    blocks = blocks_of(content, 2)
    assert len(blocks) > 2
    following = 1
    for block in blocks:
        assert block.first_record == following
        following += block.columns.num_rows
    assert following == 9 * MANY + 2


@pytest.mark.importer(35)
@pytest.mark.parametrize("separator", ["||", "é", "|~|", " ", "\x01", "\0"])
def test_arrow_reads_text_with_any_separator(separator):
    text = separator.join(("a", "b", "c")) + "\n"
    assert PlainReader(Delimiters(separator), 3).batch(text.encode()) is not None
    assert rows_of(blocks_of((text * MANY).encode(), 3, Delimiters(separator))) == [["a", "b", "c"]] * MANY


@pytest.mark.parametrize(
    "content",
    [b"a\rb,c\n", b"a, null\n", b"a\n", b"a,b,c\n", b"\xef\xbb\xbfa,b\n", b"a,b\n   \n", b"\n\n"],
    ids=["lone CR", "null between blanks", "short", "long", "mark", "blanks", "blank lines"],
)
def test_arrow_leaves_what_it_reads_otherwise_to_the_exact_reader(content):
    batch = PlainReader(Delimiters(), 2).batch(content)
    assert batch is None or not batch.num_rows


def test_text_in_other_encodings_is_read_as_well():
    text = "é,ß\n" * MANY
    for encoding in ("iso-8859-1", "windows-1252", "utf-16-le", "utf-16"):
        assert rows_of(blocks_of(text.encode(encoding), 2, encoding=encoding)) == [["é", "ß"]] * MANY
    assert rows_of(blocks_of(("你,好\n" * MANY).encode("gb18030"), 2, encoding="gb18030")) == [["你", "好"]] * MANY


def test_limits_hold_in_long_files():
    good = b"a,b\n" * MANY
    with raises_code("too_many_columns"):
        blocks_of(good + b"," * 2000 + b"\n" + good, 2)
    with raises_code("record_too_long"):
        blocks_of(good + b"x" * (1024 * 1024 + 1) + b",b\n" + good, 2)


@pytest.mark.parametrize(("line", "pieces"), [(b"abc,def,12345,1.5\n", 40), (b'abc, "def" x,12,"1.5\n', 2)])
@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(line, pieces):
    reader = BlockReader(Delimiters(), "utf-8", 4)
    piece = line * (256 * 1024 // len(line))
    tracemalloc.start()
    try:
        rows = sum(block.columns.num_rows for _ in range(pieces) for block in reader.feed(piece))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert rows > (pieces - 1) * (256 * 1024 // len(line))
    assert peak < 8 * 1024 * 1024
