"""Conversion of rows, columns and cells to values of table columns (Contract importer 13.2)."""

import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal

import pytest

from queryserver.formats.arrow import STRING, BaseType, ColumnType
from queryserver.formats.conversion import (
    ConvertedRows,
    InvalidCell,
    RowConverter,
    TargetColumn,
    cell_converter,
    is_null,
)
from queryserver.formats.delimited.records import Block, BlockReader
from queryserver.formats.table_files import CellKind, Delimiters, QuotedText, TypedText

B = BaseType
moment = datetime.fromisoformat


@pytest.mark.importer(53)
@pytest.mark.parametrize(
    ("base", "cell", "value"),
        [
        (B.INT8, "-128", -128), (B.UINT8, "255", 255), (B.INT32, " 7 ", 7), (B.INT64, "9223372036854775807", 2**63 - 1),
        (B.UINT64, "18446744073709551615", 2**64 - 1), (B.INT16, "-0", 0),
        (B.FLOAT64, "1.50", 1.5), (B.FLOAT64, ".5", 0.5), (B.FLOAT64, "-1e-5", -1e-5), (B.FLOAT64, "7", 7.0),
        (B.FLOAT64, "-Infinity", -math.inf), (B.FLOAT32, "0.5", 0.5),
        (B.BOOLEAN, "TRUE", True), (B.BOOLEAN, "false", False),
        (B.DATE, "2024-02-29", date(2024, 2, 29)), (B.DATE, "2024/03/01", date(2024, 3, 1)),
        (B.DATETIME, "2024-03-01", moment("2024-03-01T00:00:00")),
        (B.DATETIME, "2024-03-01 10:30", moment("2024-03-01T10:30:00")),
        (B.DATETIME, "2024-03-01T10:30:00.123456789", moment("2024-03-01T10:30:00.123456")),
        (B.DATETIME, "2024-03-01T10:30:00Z", moment("2024-03-01T10:30:00")),
        (B.DATETIME, "2024-03-01T00:30:00+01:30", moment("2024-02-29T23:00:00")),
        (B.DATETIME, "2024-03-01T10:30:00-0200", moment("2024-03-01T12:30:00")),
        (B.TIME, "8:05", time(8, 5)), (B.TIME, "23:59:59.5", time(23, 59, 59, 500000)),
        (B.DURATION, "30:00:00", timedelta(hours=30)), (B.DURATION, "-0:30", timedelta(minutes=-30)),
        (B.STRING, " a ", " a "), (B.STRING, "007", "007"), (B.NULL, "x", "x")],
)  # fmt: skip
def test_valid_cell_is_converted(base: BaseType, cell: str, value: object) -> None:
    found = cell_converter(ColumnType(base))(cell)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.importer(54)
@pytest.mark.parametrize(("base", "cells"),
        [(B.INT32, ("007", "+5", "1,234", "0x1F", "1_000", "1.0", "1e3", "2147483648", "x", "1 2")),
        (B.UINT8, ("-1", "256")),
        (B.FLOAT64, ("007.5", "+1.5", "1e400", "1e0005", "nan(1)", ".", "1" * 39, "true")),
        (B.FLOAT32, ("3.5e38", "-1e39")),
        (B.BOOLEAN, ("1", "0", "yes", "t")),
        (B.DATE, ("2024-02-30", "15/01/2024", "2024-1-5", "2024-01/05", "0000-01-01", "2024-01-01 00:00")),
        (B.DATETIME, ("2024-01-01 24:00", "2024-01-01 10", "2024-01-01T10:30+25:00", "10:30")),
        (B.DATETIME, ("0001-01-01T00:00+01:00", "2024-01-01T10:30:00.")),
        (B.TIME, ("24:00", "10:60", "1030", "30:00:00")),
        (B.DURATION, ("1", "1:60", "1:00:60"))])  # fmt: skip
def test_invalid_cell_is_rejected(base: BaseType, cells: tuple[str, ...]) -> None:
    for cell in cells:
        with pytest.raises(InvalidCell):
            cell_converter(ColumnType(base))(cell)


def test_decimals_accept_lossless_values_only() -> None:
    convert = cell_converter(ColumnType(B.DECIMAL, 5, 2))
    assert [convert(cell) for cell in ("1.5", "-999.99", "1.500", "12", "1e1")] == [
        Decimal("1.50"), Decimal("-999.99"), Decimal("1.50"), Decimal("12.00"), Decimal("10.00"),
    ]  # fmt: skip
    for cell in ("1.555", "1000", "nan", "x"):
        with pytest.raises(InvalidCell):
            convert(cell)


@pytest.mark.security("T29")
def test_error_shows_the_start_of_a_cell_on_one_line() -> None:
    with pytest.raises(InvalidCell) as raised:
        cell_converter(ColumnType(B.INT32))("line\none" + "x" * 5000)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 100


@pytest.mark.parametrize(("cell", "in_text", "elsewhere"),
        [("", True, True), (" ", True, True), (r"\N", True, True), ("null", True, True), (" NULL ", True, True),
        ("a", False, False), (QuotedText(""), False, True), (QuotedText("null"), False, False),
        (QuotedText(" "), True, True), ("NA", False, False),
        (TypedText("", CellKind.NULL), True, True), (TypedText("null", CellKind.TEXT), False, False)])  # fmt: skip
def test_null_cells_are_null_except_quoted_empty_text(cell: str, in_text: bool, elsewhere: bool) -> None:
    assert is_null(cell, is_text=True) is in_text
    assert is_null(cell, is_text=False) is elsewhere


INTEGER = ColumnType(BaseType.INT32)
ID, NAME = TargetColumn(0, "id", INTEGER), TargetColumn(1, "name", STRING)


def blocks_of(text: str, width: int) -> list[Block]:
    reader = BlockReader(Delimiters(), "utf-8", width)
    return [*reader.feed(text.encode()), *reader.finish()]


def converted(
    text: str, *columns: TargetColumn, has_header: bool = True, max_explanations: int = 100
) -> list[ConvertedRows]:
    converter = RowConverter(columns, max_explanations=max_explanations)
    return [converter.block(block, has_header=has_header) for block in blocks_of(text, 2)]


def rows(portions: list[ConvertedRows]) -> list[list[object]]:
    return [list(row.values()) for portion in portions for row in portion.batch.to_pylist()]


def test_header_is_skipped_and_columns_are_the_requested_ones() -> None:
    assert rows(converted("id,name\n1,a\n2,b\n", NAME, ID)) == [["a", 1], ["b", 2]]
    assert rows(converted("1,a\n", ID, has_header=False)) == [[1]]


def test_short_rows_are_filled_and_null_cells_are_null() -> None:
    assert rows(converted('id,name\n1\n,""\n\\N,null\n', ID, NAME)) == [[1, None], [None, ""], [None, None]]


@pytest.mark.importer(54)
def test_bad_rows_are_omitted_and_explained() -> None:
    strict = TargetColumn(1, "name", STRING, nullable=False)
    (portion,) = converted("id,name\nx,a\n1,b\n2,c,d\n3,\n", ID, strict)
    assert rows([portion]) == [[1, "b"]]
    assert (portion.rows, portion.bad) == (4, 3)
    assert [str(bad) for bad in portion.explanations] == [
        'record 2, column "id": "x" is not an integer',
        "record 4: the row has more fields than the file has columns",
        'record 5, column "name": the value is missing, and the column does not allow NULL',
    ]


def test_explanations_of_bad_rows_are_limited() -> None:
    (portion,) = converted("id\n" + "x\n" * 20, ID, max_explanations=3)
    assert (portion.bad, len(portion.explanations)) == (20, 3)


def test_rows_are_counted_without_target_columns() -> None:
    assert NAME.accepts_any_cell
    (portion,) = converted("id,name\n1,a\n1,2,3\n")
    assert (portion.rows, portion.bad) == (2, 1)


@pytest.mark.importer(44)
def test_workbook_cells_keep_their_workbook_class() -> None:
    cells = [
        [TypedText("1", CellKind.INTEGER), TypedText("null", CellKind.TEXT)],
        [TypedText("", CellKind.NULL), TypedText("", CellKind.NULL)],
        [TypedText("true", CellKind.BOOLEAN), TypedText("12", CellKind.TEXT)],
    ]
    portion = RowConverter([ID, NAME], max_explanations=10).cells(cells, 2)
    assert rows([portion]) == [[1, "null"], [None, None]]
    assert [(bad.record, bad.column) for bad in portion.explanations] == [(4, "id")]
