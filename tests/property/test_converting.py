"""Columns that are converted in bulk equal their cells converted one by one."""

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from queryserver.formats.arrow import BaseType, ColumnType
from queryserver.formats.conversion import InvalidCell, arrow_type, cell_converter, convert, is_null
from queryserver.formats.table_files import QuotedText

_TRICKY = (
    "", " ", "\\N", "null", "0", "-0", "00", "-00", "007", "+5", "1,234", "0x1F", "1_000", "5 ", " 5", "-", ".",
    "1.", ".5", "-.5", "1.50", "0.10", "00.5", "1e5", "1E-400", "1e400", "1e0005", "1.5e3", "1e39", "nan", "-nan",
    "nan(1)", "+inf", "Infinity", "infinit", "9223372036854775807", "9223372036854775808", "-9223372036854775809",
    "127", "128", "255", "256", "340282346638528859811704183484516925440", "123456789012345678",
    "12345678901234567890123456789012345678", "123456789012345678901234567890123456789", "true", "FALSE", "tRuE",
    "t", "truefalse", "1", "yes", "2024-02-29", "2023-02-29", "2024/03/01", "2024-03/01", "0000-01-01",
    "0001-01-01", "9999-12-31", "2024-1-5", "20240105", "2024-01-15 10", "2024-01-15 10:30", "2024-01-15T10:30:00Z",
    "2024-01-15 10:30Z", "2024-01-15T10:30:00+01:00", "2024-01-15T10:30:00-0130", "2024-01-15T10:30:00+01",
    "2024-01-15T10:30+01:00", "2024-01-15 10:30:00.1", "2024-01-15 10:30:00.123456789", "2024-01-15 24:00",
    "2024-01-15 10:30:60", "0001-01-01T00:00+01:00", "2024-01-15 10:30:00.12Z", "10:30", "1:30", "24:00",
    "23:59:59.5", "10:30:00.1234567", "30:00:00", "-1:05", "é", "x" * 80, "5\t", "\n5", "１", "\xa05",
)  # fmt: skip

_INTEGERS = st.integers(-(2**70), 2**70).map(str) | st.integers(-300, 300).map(str)
_FRACTIONS = st.from_regex(r"-?[0-9]{0,20}\.?[0-9]{0,20}([eE][+-]?[0-9]{1,3})?", fullmatch=True)
_MOMENTS = st.from_regex(
    r"[012][0-9]{3}-[01][0-9]-[0-3][0-9]"
    r"([T ][0-2][0-9]:[0-5][0-9](:[0-6][0-9](\.[0-9]{1,9})?)?(Z|[+-][0-2][0-9]:?[0-9]{2})?)?",
    fullmatch=True,
)
_CLOCKS = st.from_regex(r"-?[0-9]{1,3}:[0-6][0-9](:[0-6][0-9](\.[0-9]{1,9})?)?", fullmatch=True)
_CELL = st.sampled_from(_TRICKY) | _INTEGERS | _FRACTIONS | _MOMENTS | _CLOCKS
# Columns of a single kind take different code paths than mixed columns.
_COLUMN = st.one_of(
    *(st.lists(st.none() | one, max_size=8) for one in (_CELL, _INTEGERS, _FRACTIONS, _MOMENTS, _CLOCKS))
)

_DECIMAL_SHAPES = ((3, 1), (5, 0), (18, 4), (38, 10), (38, 38))
_NEVER = {BaseType.DECIMAL, BaseType.BINARY, BaseType.ARRAY, BaseType.STRUCT, BaseType.OBJECT}
_TYPES = [
    *(ColumnType(base) for base in BaseType if base not in _NEVER),
    *(ColumnType(BaseType.DECIMAL, *shape) for shape in _DECIMAL_SHAPES),
]


def _one_by_one(cells: list[str | None], column: ColumnType) -> tuple[list[object], list[int]]:
    is_text = pa.types.is_string(arrow_type(column))
    convert_one = cell_converter(column)
    values: list[object] = []
    invalid_rows: list[int] = []
    for row, cell in enumerate(cells):
        value = None
        # A null cell of a block is already None here, so a cell that is empty or contains a null word was quoted.
        if cell is not None and not is_null(QuotedText(cell), is_text=is_text):
            try:
                value = convert_one(cell)
            except InvalidCell:
                invalid_rows.append(row)
        values.append(value)
    return pa.array(values, arrow_type(column)).to_pylist(), invalid_rows


def _comparable(values: list[object]) -> list[object]:
    return ["nan" if isinstance(value, float) and math.isnan(value) else value for value in values]


@pytest.mark.importer(53)
@examples(100)
@given(cells=_COLUMN, offset=st.integers(0, 3))
def test_column_converts_like_its_cells(cells: list[str | None], offset: int) -> None:
    array = pa.array([None, "7", "", *cells], pa.string()).slice(offset)
    for column in _TYPES:
        converted = convert(array, column)
        values, invalid_rows = _one_by_one(array.to_pylist(), column)
        assert converted.values.type == arrow_type(column)
        assert (column, _comparable(converted.values.to_pylist())) == (column, _comparable(values))
        assert (column, list(converted.invalid_rows)) == (column, invalid_rows)
