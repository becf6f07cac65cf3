"""Records of delimited text (Contract importer 8), read one by one and in blocks."""

import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from tests.refusals import raises_code
from tests.timing import TRIES, processor_s

from queryserver.errors.base import InvalidRequest
from queryserver.formats.delimited.cutting import LOOK_AHEAD_CHARACTERS, ArrowCsvReader
from queryserver.formats.delimited.records import Block, BlockReader, RecordReader
from queryserver.formats.table_files import MAX_COLUMNS, MAX_FIELD_CHARACTERS, Delimiters, QuotedText, SkippedLines

MIB = 1024 * 1024


def read(text: str, delimiters: Delimiters | None = None) -> list[list[str]]:
    return RecordReader(delimiters or Delimiters()).feed(text, final=True)


@pytest.mark.importer(33)
@pytest.mark.parametrize(("text", "records"),
    [('1,"a,b"\n', [["1", "a,b"]]), ('1,"say ""hi"""\n', [["1", 'say "hi"']]),
    ('1,"two\nlines"\r\n2,b\r\n', [["1", "two\nlines"], ["2", "b"]]), ('1,"two\r\nlines"\n', [["1", "two\r\nlines"]]),
    ('a, "b" ,c\n', [["a", "b", "c"]]), ('5" pipe,a"b"\n', [['5" pipe', 'a"b"']]), ('a,""\n', [["a", ""]]),
    ("a,\nb,", [["a", ""], ["b", ""]]), ('a,"b"', [["a", "b"]])])  # fmt: skip
def test_quoted_fields_are_data(text, records):
    assert read(text) == records


@pytest.mark.importer(33)
def test_unclosed_quote_does_not_consume_the_file():
    reader = RecordReader(Delimiters())
    assert reader.feed('a,b\n1,"x\n2,y\n3,z\n', final=True) == [["a", "b"], ["1", '"x'], ["2", "y"], ["3", "z"]]
    assert reader.unclosed == [2]


@pytest.mark.importer(33)
def test_quote_followed_by_text_makes_the_field_unquoted():
    reader = RecordReader(Delimiters())
    assert reader.feed('"a"b,c\n"d,e" f\n', final=True) == [['"a"b', "c"], ['"d', 'e" f']]
    assert reader.unclosed == [1, 2]


@pytest.mark.importer(33)
def test_unclosed_quote_in_a_large_file_consumes_at_most_the_look_ahead():
    reader = RecordReader(Delimiters())
    line = "0123456789,0123456789\n"
    found = reader.feed('"open,1\n')
    for _ in range(LOOK_AHEAD_CHARACTERS * 3 // 2 // len(line * 1000)):
        found += reader.feed(line * 1000)
    assert found[0] == ['"open', "1"]
    assert len(found) > 90_000


@pytest.mark.importer(34)
def test_no_quote_character_disables_quoting():
    assert read('"a,b",c\n', Delimiters(quote=None)) == [['"a', 'b"', "c"]]


@pytest.mark.importer(35)
@pytest.mark.parametrize(
    ("text", "delimiters"),
    [
        ("a||b c||d\n1||2||\n", Delimiters("||")),
        ("aéb céd\n1é2é\n", Delimiters("é")),
        ("a,b c,d###1,2,###", Delimiters(record="###")),
        ('a||"b c"||d\n1||2||\n', Delimiters("||")),
        ('aé"b c"éd\n1é2é\n', Delimiters("é")),
        ('a,"b c",d###1,2,', Delimiters(record="###")),
    ],
)
def test_separators_may_be_long_and_of_any_character(text, delimiters):
    assert read(text, delimiters) == [["a", "b c", "d"], ["1", "2", ""]]


@pytest.mark.importer(37)
@pytest.mark.parametrize(("text", "record"),
    [("a,b\n1,2\n3,4\n", "\n"), ("a,b\r\n1,2\r\n3,4\r\n", "\n"), ("a,b\r1,2\r3,4\r", "\r"),
    ("a,b\r\n1,2\n3,4\r\n", "\n")])  # fmt: skip
@pytest.mark.parametrize("times", [1, 2000])
def test_line_endings_do_not_matter(text, record, times):
    expected = [["a", "b"], ["1", "2"], ["3", "4"]] * times
    delimiters = Delimiters(record=record)
    assert read(text * times, delimiters) == expected
    reader = BlockReader(delimiters, "utf-8", 2)
    blocks = [*reader.feed((text * times).encode()), *reader.finish()]
    assert [list(row.values()) for block in blocks for row in block.columns.to_pylist()] == expected


def test_only_the_last_carriage_return_before_a_line_feed_is_dropped():
    assert read("a\r\r\nb\rc\r") == [["a\r"], ["b\rc\r"]]


def test_blank_lines_are_skipped_except_an_empty_quoted_field():
    reader = RecordReader(Delimiters())
    assert reader.feed('\n a\n  \n\t\n\r\n""\nb\n\n', final=True) == [[" a"], [""], ["b"]]
    assert reader.records == 3


def test_line_of_separators_is_not_blank():
    assert read(" \n\t\n", Delimiters("\t")) == [["", ""]]
    assert read(",\n") == [["", ""]]


def test_cells_record_quoting_where_it_matters():
    cells = read('"",null,"null"," NULL ","  ","x",x\n')[0]
    assert [isinstance(cell, QuotedText) for cell in cells] == [True, False, True, True, True, False, False]


def test_too_many_columns_are_rejected():
    for row in ("," * MAX_COLUMNS, '"",' * MAX_COLUMNS, ' "",' * MAX_COLUMNS):
        assert len(read(row[row.index(",") + 1 :] + "\n")[0]) == MAX_COLUMNS
        with raises_code("too_many_columns"):
            read(row + "\n")


def test_field_above_1_mib_is_rejected():
    longest = "x" * MAX_FIELD_CHARACTERS
    assert [len(cell) for cell in read(f'{longest},"{longest}"\n')[0]] == [MIB, MIB]
    for text in (f"a,{longest}x\n", f'a,"{longest}x"\n', f'a,"{longest}\n"\n'):
        with raises_code("record_too_long"):
            read(text)


def test_record_above_16_mib_is_rejected():
    field = "x" * MIB + ","
    assert len(read(field * 15 + "\n")[0]) == 16
    for text in (field * 16 + "\n", '"",' + field * 16 + "\n"):
        with raises_code("record_too_long"):
            read(text)


def test_endless_record_is_rejected_before_it_fills_the_memory():
    reader = RecordReader(Delimiters())
    half_mib = ("x" * 1023 + ",") * 512
    for _ in range(32):
        assert not reader.feed(half_mib)
    with raises_code("record_too_long"):
        feed_all(reader, half_mib, 10)


@pytest.mark.importer(33, 50)
@pytest.mark.parametrize("record", ["\n", "\r", "###"])
@pytest.mark.slow
def test_records_held_back_by_a_quote_are_returned_in_parts(record):
    text = 'a,"b' + record + f"c{record}" * 1_000_000
    reader = RecordReader(Delimiters(record=record))
    sizes, unclosed = [], []
    for records in reader.parts(text, final=True):
        sizes.append(len(records))
        unclosed += reader.unclosed
    assert (sum(sizes), reader.records, unclosed) == (1_000_001, 1_000_001, [1])
    assert max(sizes) < 500_000


def feed_all(reader: RecordReader, text: str, times: int) -> None:
    for _ in range(times):
        reader.feed(text)


@pytest.mark.importer(50)
@pytest.mark.parametrize("unit",
    ['"', '"\n', '""x\n', 'x,"', '"x\nb,c\n', '"a\n' + "b,c\n" * 5000, '" \n', '"a" x\n', '"""\n', "   \n",
    '"",\n'])  # fmt: skip
def test_reading_time_is_linear_in_the_text(unit):
    """Searching the remaining text at each quote would take at least 7 seconds."""
    assert any(seconds_for(unit, MIB // 4) < 4 for _ in range(TRIES))


def seconds_for(unit: str, characters: int) -> float:
    text = (unit * (characters // len(unit) + 1))[:characters]
    reader = RecordReader(Delimiters())

    def read() -> None:
        with suppress(InvalidRequest):
            for start in range(0, len(text), 32 * 1024):
                reader.feed(text[start : start + 32 * 1024])
            reader.feed("", final=True)

    return processor_s(read)


MANY = 4000
"""A number of records for which the reader uses Arrow."""


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
def test_cells_are_file_text_or_null(line, cells, times):
    assert rows_of(blocks_of(line * times, 4)) == [cells] * times


@pytest.mark.importer(32)
@pytest.mark.parametrize("times", [1, MANY])
def test_short_rows_are_filled_and_long_rows_cut(times):
    blocks = blocks_of(b'a,b\n1\n1,2,3\n"x,2\n' * times, 2)
    assert rows_of(blocks) == [["a", "b"], ["1", None], ["1", "2"], ['"x', "2"]] * times
    assert numbers(blocks, "short_rows") == list(range(2, 4 * times, 4))
    assert numbers(blocks, "long_rows") == list(range(3, 4 * times, 4))
    assert numbers(blocks, "unclosed") == list(range(4, 4 * times + 1, 4))


def numbers(blocks: list[Block], name: str) -> list[int]:
    return [row + block.first_record for block in blocks for row in getattr(block, name)]


def test_record_numbers_skip_blank_lines():
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
    assert ArrowCsvReader(Delimiters(separator), 3).batch(text.encode()) is not None
    assert rows_of(blocks_of((text * MANY).encode(), 3, Delimiters(separator))) == [["a", "b", "c"]] * MANY


@pytest.mark.parametrize(
    "content", [b"a\rb,c\n", b"a, null\n", b"a\n", b"a,b,c\n", b"\xef\xbb\xbfa,b\n", b"a,b\n   \n", b"\n\n"]
)
def test_text_arrow_would_misread_is_left_to_the_exact_reader(content):
    batch = ArrowCsvReader(Delimiters(), 2).batch(content)
    assert batch is None or not batch.num_rows


def test_other_encodings_are_read():
    text = "é,ß\n" * MANY
    for encoding in ("iso-8859-1", "windows-1252", "utf-16-le", "utf-16"):
        assert rows_of(blocks_of(text.encode(encoding), 2, encoding=encoding)) == [["é", "ß"]] * MANY
    assert rows_of(blocks_of(("你,好\n" * MANY).encode("gb18030"), 2, encoding="gb18030")) == [["你", "好"]] * MANY


def test_limits_apply_in_long_files():
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
    list(BlockReader(Delimiters(), "utf-8", 4).feed(piece))  # the first cells import modules of 29 MB
    tracemalloc.start()
    try:
        rows = sum(block.columns.num_rows for _ in range(pieces) for block in reader.feed(piece))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert rows > (pieces - 1) * (256 * 1024 // len(line))
    assert peak < 8 * 1024 * 1024


def in_two_pieces(
    text: str, cut: int, delimiters: Delimiters, skipped: SkippedLines
) -> tuple[list[list[str]], list[Any]]:
    """Feed a text in two chunks to both readers; return the records of RecordReader and the rows of BlockReader."""
    reader = RecordReader(delimiters, skipped=skipped)
    records = reader.feed(text[:cut]) + reader.feed(text[cut:], final=True)
    blocks = BlockReader(delimiters, "utf-8", 2, skipped=skipped)
    parts = [*blocks.feed(text[:cut].encode()), *blocks.feed(text[cut:].encode()), *blocks.finish()]
    return records, [list(row.values()) for part in parts for row in part.columns.to_pylist()]


@pytest.mark.importer(69)
@pytest.mark.parametrize("record", ["\n", "\r", "##"])
def test_skipped_and_comment_lines_are_omitted_at_any_chunk_boundary(record: str) -> None:
    text = 'skip me, "x\nline 2\n!c,1,"\na,b\n! comment "q\n1,2\n!\n3,4'.replace("\n", record)
    for cut in range(len(text)):
        records, rows = in_two_pieces(text, cut, Delimiters(record=record), SkippedLines(2, "!"))
        assert records == rows == [["a", "b"], ["1", "2"], ["3", "4"]]


@pytest.mark.importer(70)
@pytest.mark.parametrize("field", [",", "||"])
def test_escapes_are_read_at_any_chunk_boundary(field: str) -> None:
    text = 'a,b\n1,x\\\ny\n2,\\N\n3,q\\,\\"\n4,"q\\"\\\\ \\x ""z"""\n5,tab\\tz\n6,end\\'.replace(",", field)
    expected = [
        ["a", "b"], ["1", "x\ny"], ["2", "\\N"], ["3", f'q{field}"'], ["4", 'q"\\ \\x "z"'], ["5", "tab\tz"],
        ["6", "end\\"],
    ]  # fmt: skip
    if field == "||":
        # Each escape applies only to the next character.
        text = text.replace("q\\||", "q\\|\\|")
    for cut in range(len(text)):
        records, rows = in_two_pieces(text, cut, Delimiters(field, escape="\\"), SkippedLines())
        assert records == rows == expected
