"""Rows become batches; bad ones are left out and explained (Contract importer 13.2)."""

import pytest

from queryserver.formats.conversion import Portion, RowConverter, TargetColumn
from queryserver.formats.delimited.records import Block, BlockReader
from queryserver.imports.model import STRING, BaseType, CellKind, ColumnType, Delimiters, TypedText

INTEGER = ColumnType(BaseType.INT32)
ID, NAME = TargetColumn(0, "id", INTEGER), TargetColumn(1, "name", STRING)


def blocks_of(text: str, width: int) -> list[Block]:
    reader = BlockReader(Delimiters(), "utf-8", width)
    return [*reader.feed(text.encode()), *reader.finish()]


def converted(text: str, *columns: TargetColumn, has_header: bool = True, explain: int = 100) -> list[Portion]:
    converter = RowConverter(columns, explain=explain)
    return [converter.block(block, has_header=has_header) for block in blocks_of(text, 2)]


def rows(portions: list[Portion]) -> list[list[object]]:
    return [list(row.values()) for portion in portions for row in portion.batch.to_pylist()]


def test_a_header_is_no_row_and_columns_are_those_asked_for() -> None:
    assert rows(converted("id,name\n1,a\n2,b\n", NAME, ID)) == [["a", 1], ["b", 2]]
    assert rows(converted("1,a\n", ID, has_header=False)) == [[1]]


def test_short_rows_are_filled_and_nulls_are_null() -> None:
    assert rows(converted('id,name\n1\n,""\n\\N,null\n', ID, NAME)) == [[1, None], [None, ""], [None, None]]


@pytest.mark.importer(54)
def test_bad_rows_are_left_out_and_explained() -> None:
    strict = TargetColumn(1, "name", STRING, nullable=False)
    (portion,) = converted("id,name\nx,a\n1,b\n2,c,d\n3,\n", ID, strict)
    assert rows([portion]) == [[1, "b"]]
    assert (portion.rows, portion.bad) == (4, 3)
    assert [str(bad) for bad in portion.explained] == [
        'record 2, column "id": "x" is not an integer',
        "record 4: the row has more fields than the file has columns",
        'record 5, column "name": the value is missing, and the column takes no NULL',
    ]


def test_only_so_many_bad_rows_are_explained() -> None:
    (portion,) = converted("id\n" + "x\n" * 20, ID, explain=3)
    assert (portion.bad, len(portion.explained)) == (20, 3)


def test_rows_are_counted_even_if_no_column_can_make_them_bad() -> None:
    assert NAME.takes_all
    (portion,) = converted("id,name\n1,a\n1,2,3\n")
    assert (portion.rows, portion.bad) == (2, 1)


@pytest.mark.importer(44)
def test_cells_of_workbooks_are_what_the_workbook_says_they_are() -> None:
    cells = [
        [TypedText("1", CellKind.INTEGER), TypedText("null", CellKind.TEXT)],
        [TypedText("", CellKind.NULL), TypedText("", CellKind.NULL)],
        [TypedText("true", CellKind.BOOLEAN), TypedText("12", CellKind.TEXT)],
    ]
    portion = RowConverter([ID, NAME], explain=10).cells(cells, 2)
    assert rows([portion]) == [[1, "null"], [None, None]]
    assert [(bad.record, bad.column) for bad in portion.explained] == [(4, "id")]
