"""Cutting text into records (Contract importer 8): quotes, ends of lines, limits, and that it stays linear."""

import time

import pytest
from tests.refusals import raises_code

from queryserver.errors.base import InvalidRequest
from queryserver.formats.delimited.cutting import LOOK_AHEAD_CHARACTERS
from queryserver.formats.delimited.records import BlockReader, RecordReader
from queryserver.imports.model import MAX_COLUMNS, MAX_FIELD_CHARACTERS, Delimiters, QuotedText

MIB = 1024 * 1024


def read(text: str, delimiters: Delimiters | None = None) -> list[list[str]]:
    return RecordReader(delimiters or Delimiters()).feed(text, final=True)


@pytest.mark.importer(33)
@pytest.mark.parametrize(
    ("text", "records"),
    [
        ('1,"a,b"\n', [["1", "a,b"]]),
        ('1,"say ""hi"""\n', [["1", 'say "hi"']]),
        ('1,"two\nlines"\r\n2,b\r\n', [["1", "two\nlines"], ["2", "b"]]),
        ('1,"two\r\nlines"\n', [["1", "two\r\nlines"]]),
        ('a, "b" ,c\n', [["a", "b", "c"]]),
        ('5" pipe,a"b"\n', [['5" pipe', 'a"b"']]),
        ('a,""\n', [["a", ""]]),
        ("a,\nb,", [["a", ""], ["b", ""]]),
        ('a,"b"', [["a", "b"]]),
    ],
)
def test_quoted_fields_are_data(text, records):
    assert read(text) == records


@pytest.mark.importer(33)
def test_an_unclosed_quote_does_not_swallow_the_file():
    reader = RecordReader(Delimiters())
    assert reader.feed('a,b\n1,"x\n2,y\n3,z\n', final=True) == [["a", "b"], ["1", '"x'], ["2", "y"], ["3", "z"]]
    assert reader.unclosed == [2]


@pytest.mark.importer(33)
def test_a_quote_with_text_behind_it_makes_the_field_unquoted():
    reader = RecordReader(Delimiters())
    assert reader.feed('"a"b,c\n"d,e" f\n', final=True) == [['"a"b', "c"], ['"d', 'e" f']]
    assert reader.unclosed == [1, 2]


@pytest.mark.importer(33)
def test_an_unclosed_quote_swallows_no_more_of_a_large_file_than_is_looked_ahead():
    reader = RecordReader(Delimiters())
    line = "0123456789,0123456789\n"
    found = reader.feed('"open,1\n')
    for _ in range(LOOK_AHEAD_CHARACTERS * 3 // 2 // len(line * 1000)):
        found += reader.feed(line * 1000)
    assert found[0] == ['"open', "1"]
    assert len(found) > 90_000


@pytest.mark.importer(34)
def test_without_a_quote_nothing_is_quoted():
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
def test_separators_may_have_several_characters_and_be_any_character(text, delimiters):
    assert read(text, delimiters) == [["a", "b c", "d"], ["1", "2", ""]]


@pytest.mark.importer(37)
@pytest.mark.parametrize(
    ("text", "record"),
    [
        ("a,b\n1,2\n3,4\n", "\n"),
        ("a,b\r\n1,2\r\n3,4\r\n", "\n"),
        ("a,b\r1,2\r3,4\r", "\r"),
        ("a,b\r\n1,2\n3,4\r\n", "\n"),
    ],
)
@pytest.mark.parametrize("times", [1, 2000])
def test_ends_of_lines_do_not_matter(text, record, times):
    expected = [["a", "b"], ["1", "2"], ["3", "4"]] * times
    delimiters = Delimiters(record=record)
    assert read(text * times, delimiters) == expected
    reader = BlockReader(delimiters, "utf-8", 2)
    blocks = [*reader.feed((text * times).encode()), *reader.finish()]
    assert [list(row.values()) for block in blocks for row in block.columns.to_pylist()] == expected


def test_only_the_last_return_before_a_line_feed_is_dropped():
    assert read("a\r\r\nb\rc\r") == [["a\r"], ["b\rc\r"]]


def test_blank_lines_are_skipped_and_an_empty_quoted_field_is_no_blank_line():
    reader = RecordReader(Delimiters())
    assert reader.feed('\n a\n  \n\t\n\r\n""\nb\n\n', final=True) == [[" a"], [""], ["b"]]
    assert reader.records == 3


def test_a_line_of_separators_is_no_blank_line():
    assert read(" \n\t\n", Delimiters("\t")) == [["", ""]]
    assert read(",\n") == [["", ""]]


def test_cells_say_that_they_were_quoted_where_it_matters():
    cells = read('"",null,"null"," NULL ","  ","x",x\n')[0]
    assert [isinstance(cell, QuotedText) for cell in cells] == [True, False, True, True, True, False, False]


def test_more_columns_than_a_table_may_have_are_refused():
    for row in ("," * MAX_COLUMNS, '"",' * MAX_COLUMNS, ' "",' * MAX_COLUMNS):
        assert len(read(row[row.index(",") + 1 :] + "\n")[0]) == MAX_COLUMNS
        with raises_code("too_many_columns"):
            read(row + "\n")


def test_a_field_of_more_than_1_mib_is_refused():
    longest = "x" * MAX_FIELD_CHARACTERS
    assert [len(cell) for cell in read(f'{longest},"{longest}"\n')[0]] == [MIB, MIB]
    for text in (f"a,{longest}x\n", f'a,"{longest}x"\n', f'a,"{longest}\n"\n'):
        with raises_code("record_too_long"):
            read(text)


def test_a_record_of_more_than_16_mib_is_refused():
    field = "x" * MIB + ","
    assert len(read(field * 15 + "\n")[0]) == 16
    for text in (field * 16 + "\n", '"",' + field * 16 + "\n"):
        with raises_code("record_too_long"):
            read(text)


def test_a_record_that_does_not_end_is_refused_before_it_fills_the_memory():
    reader = RecordReader(Delimiters())
    half_mib = ("x" * 1023 + ",") * 512
    for _ in range(32):
        assert not reader.feed(half_mib)
    with raises_code("record_too_long"):
        feed_all(reader, half_mib, 10)


@pytest.mark.importer(33, 50)
@pytest.mark.parametrize("record", ["\n", "\r", "###"])
@pytest.mark.slow
def test_what_a_quote_held_back_comes_in_parts(record):
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
@pytest.mark.parametrize(
    "unit",
    ['"', '"\n', '""x\n', 'x,"', '"x\nb,c\n', '"a\n' + "b,c\n" * 5000, '" \n', '"a" x\n', '"""\n', "   \n", '"",\n'],
)
def test_reading_takes_time_in_proportion_to_the_text(unit):
    """Far from what looking over the rest of the text for each quote would take: 30 seconds and more."""
    assert seconds_for(unit, MIB // 2) < 10


def seconds_for(unit: str, characters: int) -> float:
    text = (unit * (characters // len(unit) + 1))[:characters]
    reader = RecordReader(Delimiters())
    started = time.process_time()
    try:
        for start in range(0, len(text), 32 * 1024):
            reader.feed(text[start : start + 32 * 1024])
        reader.feed("", final=True)
    except InvalidRequest:
        pass
    return time.process_time() - started
