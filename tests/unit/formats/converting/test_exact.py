"""What fits the type of a column, and as what value (Contract importer 12.1, 13.2)."""

import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal

import pytest
from tests.cases import each

from queryserver.formats.conversion import Misfit, converter, is_null
from queryserver.imports.model import BaseType, CellKind, ColumnType, QuotedText, TypedText

B = BaseType
moment = datetime.fromisoformat


@pytest.mark.importer(53)
@each(
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
        (B.STRING, " a ", " a "), (B.STRING, "007", "007"), (B.NULL, "x", "x"),
    ],
)  # fmt: skip
def test_what_fits_has_its_value(base: BaseType, cell: str, value: object) -> None:
    found = converter(ColumnType(base))(cell)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.importer(54)
@pytest.mark.parametrize(
    ("base", "cells"),
    [
        (B.INT32, ("007", "+5", "1,234", "0x1F", "1_000", "1.0", "1e3", "2147483648", "x", "1 2")),
        (B.UINT8, ("-1", "256")),
        (B.FLOAT64, ("007.5", "+1.5", "1e400", "1e0005", "nan(1)", ".", "1" * 39, "true")),
        (B.FLOAT32, ("3.5e38", "-1e39")),
        (B.BOOLEAN, ("1", "0", "yes", "t")),
        (B.DATE, ("2024-02-30", "15/01/2024", "2024-1-5", "2024-01/05", "0000-01-01", "2024-01-01 00:00")),
        (B.DATETIME, ("2024-01-01 24:00", "2024-01-01 10", "2024-01-01T10:30+25:00", "10:30")),
        (B.DATETIME, ("0001-01-01T00:00+01:00", "2024-01-01T10:30:00.")),
        (B.TIME, ("24:00", "10:60", "1030", "30:00:00")),
        (B.DURATION, ("1", "1:60", "1:00:60")),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(base: BaseType, cells: tuple[str, ...]) -> None:
    for cell in cells:
        with pytest.raises(Misfit):
            converter(ColumnType(base))(cell)


def test_decimals_take_what_they_hold_without_loss() -> None:
    convert = converter(ColumnType(B.DECIMAL, 5, 2))
    assert [convert(cell) for cell in ("1.5", "-999.99", "1.500", "12", "1e1")] == [
        Decimal("1.50"), Decimal("-999.99"), Decimal("1.50"), Decimal("12.00"), Decimal("10.00"),
    ]  # fmt: skip
    for cell in ("1.555", "1000", "nan", "x"):
        with pytest.raises(Misfit):
            convert(cell)


@pytest.mark.security("T29")
def test_a_reason_shows_the_beginning_of_a_cell_on_one_line() -> None:
    with pytest.raises(Misfit) as raised:
        converter(ColumnType(B.INT32))("line\none" + "x" * 5000)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 100


@pytest.mark.parametrize(
    ("cell", "in_text", "elsewhere"),
    [
        ("", True, True), (" ", True, True), (r"\N", True, True), ("null", True, True), (" NULL ", True, True),
        ("a", False, False), (QuotedText(""), False, True), (QuotedText("null"), False, False),
        (QuotedText(" "), True, True), ("NA", False, False),
        (TypedText("", CellKind.NULL), True, True), (TypedText("null", CellKind.TEXT), False, False),
    ],
)  # fmt: skip
def test_null_cells_are_null_but_for_empty_quoted_text(cell: str, in_text: bool, elsewhere: bool) -> None:
    assert is_null(cell, is_text=True) is in_text
    assert is_null(cell, is_text=False) is elsewhere
