"""Previews: worked examples and the rules of Contract importer 7.3 and 7.4, by records and by Blocks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.refusals import raises_code

from queryserver.formats.cell_types.classes import classify
from queryserver.formats.cell_types.header import (
    FIRST_RECORDS,
    Analysis,
    WidthUncertain,
    analyse_blocks,
    analyse_records,
    sample_width,
)
from queryserver.formats.delimited.records import Block, RecordReader
from queryserver.imports.model import (
    NULL,
    PREVIEW_DIALECTS,
    BaseType,
    CellKind,
    ColumnType,
    Delimiters,
    QuotedText,
    TypedText,
    type_name,
)


def blocks_of(records: Sequence[Sequence[str]], width: int, rows: int = 99) -> Iterator[Block]:
    for start in range(0, len(records), rows):
        part = records[start : start + rows]
        cells = [[_block_cell(cell) for cell in record[:width]] + [None] * (width - len(record)) for record in part]
        arrays = [pa.array([row[position] for row in cells], pa.string()) for position in range(width)]
        yield Block(
            start + 1,
            pa.RecordBatch.from_arrays(arrays, [str(position) for position in range(width)]),
            [index for index, record in enumerate(part) if len(record) > width],
            [index for index, record in enumerate(part) if len(record) < width],
        )


def _block_cell(cell: str) -> str | None:
    is_null = cell.strip().lower() in {"", "null"} and not isinstance(cell, QuotedText)
    return None if is_null else str(cell)


def by_blocks(records: Sequence[Sequence[str]], *, has_header: bool, is_whole: bool) -> Analysis:
    first = records[:FIRST_RECORDS]
    blocks = blocks_of(records, sample_width(first, has_header=has_header))
    return analyse_blocks(first, blocks, has_header=has_header, is_whole=is_whole)


Way = Callable[..., Analysis]
both_ways = pytest.mark.parametrize("analyse", [analyse_records, by_blocks], ids=["records", "blocks"])


def records(text: str, delimiters: Delimiters | None = None) -> list[list[str]]:
    return RecordReader(delimiters or Delimiters()).feed(text, final=True)


def shown(analysis: Analysis, dialect: str) -> list[tuple[str, str]]:
    return [(column.name, type_name(column.type, dialect)) for column in analysis.columns]


def warnings(analysis: Analysis) -> list[tuple[str, int, list[int]]]:
    return [(warning.code.value, warning.count, warning.rows) for warning in analysis.warnings]


@pytest.mark.importer(28)
@both_ways
def test_the_worked_previews_come_out_exactly(analyse: Way) -> None:
    typed = analyse(records("col1,col2\n1.1,true\n2.2,false"), has_header=True, is_whole=True)
    assert shown(typed, "hive") == [("col1", "DOUBLE"), ("col2", "BOOLEAN")]
    assert typed.rows == [["1.1", "true"], ["2.2", "false"]]
    mixed = analyse(records("sample1,sample2\n1.1,true\n2.2,false"), has_header=False, is_whole=True)
    assert shown(mixed, "hive") == [("column_1", "STRING"), ("column_2", "STRING")]
    assert mixed.rows == [["sample1", "sample2"], ["1.1", "true"], ["2.2", "false"]]
    text = analyse(records("string_col\nfoo\nbar"), has_header=True, is_whole=True)
    assert shown(text, "trino") == [("string_col", "VARCHAR")]


@pytest.mark.importer(31)
@both_ways
def test_a_header_alone_gives_columns_of_text_and_no_rows(analyse: Way) -> None:
    analysis = analyse(records("id,name\n"), has_header=True, is_whole=True)
    assert analysis.rows == []
    for dialect in PREVIEW_DIALECTS:
        text = {
            **dict.fromkeys(("hive", "impala", "sparksql"), "STRING"),
            "trino": "VARCHAR",
            "phoenix": "VARCHAR",
        }.get(dialect, "VARCHAR" if dialect == "duckdb" else "TEXT")
        assert shown(analysis, dialect) == [("id", text), ("name", text)]


@pytest.mark.importer(31)
@pytest.mark.parametrize("has_header", [True, False])
@both_ways
def test_a_file_of_blanks_is_empty(analyse: Way, has_header: bool) -> None:
    with raises_code("file_empty"):
        analyse(records("\n \n\t\n"), has_header=has_header, is_whole=True)


@both_ways
def test_a_sample_in_which_no_record_ends_is_no_empty_file(analyse: Way) -> None:
    with raises_code("record_too_long"):
        analyse([], has_header=False, is_whole=False)


@pytest.mark.importer(32)
@both_ways
def test_short_rows_are_filled_and_long_rows_cut_and_both_counted(analyse: Way) -> None:
    analysis = analyse(records("a,b\n1\n1,2,3\n\n1,2\n"), has_header=True, is_whole=True)
    assert analysis.rows == [["1", ""], ["1", "2"], ["1", "2"]]
    assert warnings(analysis) == [("long_rows", 1, [3]), ("short_rows", 1, [2])]
    assert shown(analysis, "hive") == [("a", "INT"), ("b", "INT")]


@pytest.mark.importer(32)
@both_ways
def test_the_first_ten_odd_records_are_named(analyse: Way) -> None:
    analysis = analyse(records("a,b\n" + "1,2\n1\n" * 30), has_header=True, is_whole=True)
    assert warnings(analysis) == [("short_rows", 30, list(range(3, 22, 2)))]


@pytest.mark.importer(32)
@pytest.mark.parametrize(
    ("text", "width"), [("1\n1,2\n1,2\n", 2), ("1\n1,2\n", 2), ("1,2,3\n1\n1\n", 1), ("1,2\n1,2\n1,2,3\n", 2)]
)
def test_without_a_header_the_most_frequent_width_counts_and_of_two_the_larger(text: str, width: int) -> None:
    analysis = analyse_records(records(text), has_header=False, is_whole=True)
    assert len(analysis.columns) == width
    assert {len(row) for row in analysis.rows} == {width}


@pytest.mark.importer(32)
def test_blocks_of_a_width_that_may_not_be_the_most_frequent_are_refused() -> None:
    sample = records("1,2\n" * FIRST_RECORDS + "1\n" * 60)
    with pytest.raises(WidthUncertain):
        by_blocks(sample, has_header=False, is_whole=True)
    assert len(analyse_records(sample, has_header=False, is_whole=True).columns) == 1
    with_header = by_blocks(sample, has_header=True, is_whole=True)
    assert len(with_header.columns) == 2
    assert with_header == analyse_records(sample, has_header=True, is_whole=True)


@pytest.mark.importer(39)
@both_ways
def test_cells_are_shown_as_they_are_in_the_file(analyse: Way) -> None:
    analysis = analyse(
        records('a,b,c,d,e\n1.50,007,\\N,NULL, x \n2," q ","","null",=1+1\n'), has_header=True, is_whole=True
    )
    assert analysis.rows == [["1.50", "007", "\\N", "NULL", " x "], ["2", " q ", "", "null", "=1+1"]]
    assert {type(cell) for row in analysis.rows for cell in row} == {str}


@pytest.mark.importer(30)
@both_ways
def test_columns_are_in_the_order_of_the_file_under_unique_names(analyse: Way) -> None:
    analysis = analyse(records("b,a,,A,b\n1,2,3,4,5\n"), has_header=True, is_whole=True)
    assert [column.name for column in analysis.columns] == ["b", "a", "column_3", "A_2", "b_2"]


@pytest.mark.importer(27)
@pytest.mark.parametrize("has_header", [True, False])
@both_ways
def test_fifty_rows_are_shown_and_types_told_from_all(analyse: Way, has_header: bool) -> None:
    sample = [["1"]] * 60 + [["x"]]
    analysis = analyse(sample, has_header=has_header, is_whole=True)
    assert analysis.rows == [["1"]] * 50
    assert shown(analysis, "hive")[0][1] == "STRING"


@pytest.mark.parametrize("has_header", [True, False])
@pytest.mark.parametrize(("beyond", "base"), [(0, BaseType.INT32), (1, BaseType.INT64)])
@both_ways
def test_types_are_told_from_ten_thousand_data_records(
    analyse: Way, has_header: bool, beyond: int, base: BaseType
) -> None:
    sample = [["1"]] * (10_000 + has_header) + [["x"]] * beyond
    analysis = analyse(sample, has_header=has_header, is_whole=True)
    assert [column.type for column in analysis.columns] == [ColumnType(base)]
    assert analysis.is_whole is (not beyond)
    assert warnings(analysis) == []


@pytest.mark.parametrize(
    ("rows", "is_whole", "found"),
    [(49, False, [("truncated_sample", 1, [])]), (50, False, []), (49, True, [])],
)
@both_ways
def test_a_partial_sample_of_fewer_than_fifty_rows_is_told(
    analyse: Way, rows: int, is_whole: bool, found: list[tuple[str, int, list[int]]]
) -> None:
    assert warnings(analyse([["a"], *[["1"]] * rows], has_header=True, is_whole=is_whole)) == found


def test_undecodable_characters_and_open_quotes_are_told_with_their_records() -> None:
    sample = [["a", "b"], ["1", "\ufffd\ufffd"], ["2", "x"], ["\ufffd", '"open']]
    expected = [("unclosed_quote", 1, [4]), ("undecodable", 3, [2, 4])]
    found = analyse_records(sample, has_header=True, is_whole=True, unclosed=[4], undecodable=3)
    assert warnings(found) == expected
    first, second = blocks_of(sample, 2, rows=3)
    second = replace(second, unclosed=[0])
    fast = analyse_blocks(sample, [first, second], has_header=True, is_whole=True, undecodable=3)
    assert warnings(fast) == expected


def test_a_replacement_character_of_the_file_itself_is_no_warning() -> None:
    assert not analyse_records([["\ufffd"], ["x"]], has_header=True, is_whole=True).warnings


@pytest.mark.importer(42)
def test_a_worksheet_is_typed_by_the_classes_of_its_cells() -> None:
    sheet = [
        [TypedText("n", CellKind.TEXT), TypedText("2019", CellKind.TEXT), TypedText("", CellKind.NULL)],
        [TypedText("1", CellKind.INTEGER), TypedText("12", CellKind.TEXT), TypedText("30:00:00", CellKind.DURATION)],
        [TypedText("1.5", CellKind.DOUBLE), TypedText("13", CellKind.TEXT), TypedText("", CellKind.NULL)],
    ]
    analysis = analyse_records(sheet, has_header=True, is_whole=True)
    assert [(column.name, column.type.base) for column in analysis.columns] == [
        ("n", BaseType.FLOAT64),
        ("2019", BaseType.STRING),
        ("column_3", BaseType.DURATION),
    ]
    assert analysis.rows == [["1", "12", "30:00:00"], ["1.5", "13", ""]]
    assert {type(cell) for row in analysis.rows for cell in row} == {str}


def test_a_column_of_nulls_has_the_type_of_nothing() -> None:
    analysis = analyse_records([["a"], [""], ["\\N"], ["NULL"]], has_header=True, is_whole=True)
    assert analysis.columns[0].type == NULL
    assert classify("NULL") is CellKind.NULL


def test_first_records_without_a_block_are_typed_by_themselves() -> None:
    sample = records("a,b\n1,x\n2\n")
    by_no_blocks = analyse_blocks(sample, [], has_header=True, is_whole=True)
    assert by_no_blocks == analyse_records(sample, has_header=True, is_whole=True)
    assert shown(by_no_blocks, "hive") == [("a", "INT"), ("b", "STRING")]
