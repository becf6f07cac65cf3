"""Columns of answers become typed Arrow columns (Contract editor 6.3)."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from queryserver.engines.hiveserver2.fetching import WireColumn, null_mask, record_batch, wire_column
from queryserver.engines.hiveserver2.protocol.messages import MalformedMessage
from queryserver.engines.hiveserver2.protocol.structs import (
    TArrayTypeEntry,
    TBinaryColumn,
    TBoolColumn,
    TColumn,
    TColumnDesc,
    TDoubleColumn,
    TI32Column,
    TMapTypeEntry,
    TPrimitiveTypeEntry,
    TRowSet,
    TStringColumn,
    TStructTypeEntry,
    TTypeDesc,
    TTypeEntry,
    TTypeId,
    TTypeQualifiers,
    TTypeQualifierValue,
)
from queryserver.formats.columns import Column, ResultType


def column(kind: TTypeId, **qualifiers: int) -> WireColumn:
    values = {name: TTypeQualifierValue(i32_value=number) for name, number in qualifiers.items()}
    entry = TPrimitiveTypeEntry(type=kind, type_qualifiers=TTypeQualifiers(qualifiers=values))
    described = TTypeDesc(types=[TTypeEntry(primitive=entry)])
    return wire_column(TColumnDesc(column_name="a", type_desc=described, position=1))


def text(*values: bytes, nulls: bytes = b"") -> TColumn:
    return TColumn(string_val=TStringColumn(values=list(values), nulls=nulls))


def read(values: TColumn, declared: WireColumn) -> pa.Array:
    rows = TRowSet(start_row_offset=0, rows=[], columns=[values])
    return record_batch(rows, (declared,)).column(0)


@pytest.mark.parametrize(
    ("nulls", "length", "expected"),
    [
        (b"", 3, None),
        (b"\0\0", 3, None),
        (b"\5", 3, [True, False, True]),
        (b"\2", 12, [False, True, *([False] * 10)]),
        (b"\0\1\xff", 9, [*([False] * 8), True]),
    ],
)
def test_a_null_mask_may_be_shorter_or_longer_than_its_column(nulls, length, expected):
    mask = null_mask(nulls, length)
    assert (None if mask is None else mask.to_pylist()) == expected


def test_values_under_the_mask_are_null_whatever_they_are():
    assert read(TColumn(i32_val=TI32Column(values=[1, 0, 3], nulls=b"\2")), column(TTypeId.INT)).to_pylist() == [
        1,
        None,
        3,
    ]
    assert read(text(b"x", b"", nulls=b"\2"), column(TTypeId.STRING)).to_pylist() == ["x", None]
    assert read(text(b"1", b"", nulls=b"\2"), column(TTypeId.DECIMAL, precision=3, scale=1)).to_pylist() == [
        Decimal("1.0"),
        None,
    ]
    flags = TBoolColumn(values=[False, True], nulls=b"\1")
    assert read(TColumn(bool_val=flags), column(TTypeId.BOOLEAN)).to_pylist() == [None, True]


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (TTypeId.DATE, b"2024-01-31", dt.date(2024, 1, 31)),
        (TTypeId.TIMESTAMP, b"2024-01-31 10:20:30.5", dt.datetime(2024, 1, 31, 10, 20, 30, 500000)),  # noqa: DTZ001 it has none
        (TTypeId.STRING, "Zoë 🐘".encode(), "Zoë 🐘"),
        (TTypeId.STRING, b"a\xffb", "a\ufffdb"),
        (TTypeId.BINARY, b"\0\xff", b"\0\xff"),
        (TTypeId.INTERVAL_DAY_TIME, b"1 02:03:04.000000000", "1 02:03:04.000000000"),
        (TTypeId.ARRAY, b'[1,{"a":null}]', '[1,{"a":null}]'),
        (TTypeId.TIMESTAMP_LOCAL_TZ, b"2024-01-31 10:20:30.0 UTC", "2024-01-31 10:20:30 UTC"),
        (TTypeId.TIMESTAMP_LOCAL_TZ, b"2024-01-31 10:20:30.500 Europe/Rome", "2024-01-31 10:20:30.500 Europe/Rome"),
    ],
)
def test_texts_become_what_their_column_declares(kind, raw, value):
    assert read(text(raw), column(kind)).to_pylist() == [value]


def test_a_timestamp_of_nanoseconds_keeps_them():
    array = read(text(b"2024-01-31 10:20:30.123456789"), column(TTypeId.TIMESTAMP))
    assert array.cast(pa.string()).to_pylist() == ["2024-01-31 10:20:30.123456789"]


@pytest.mark.parametrize("raw", [b"-0044-03-15 00:00:00", b"+12024-01-31 10:20:30"])
def test_a_timestamp_beyond_arrow_stays_text(raw):
    assert read(text(raw), column(TTypeId.TIMESTAMP)).to_pylist() == [raw.decode()]


def test_a_decimal_that_does_not_fit_its_declared_scale_stays_text():
    assert read(text(b"1.2345"), column(TTypeId.DECIMAL, precision=4, scale=2)).to_pylist() == ["1.2345"]


def test_a_float_is_as_short_as_it_was():
    array = read(TColumn(double_val=TDoubleColumn(values=[0.1], nulls=b"")), column(TTypeId.FLOAT))
    assert array.type == pa.float32()


def test_bytes_stay_bytes():
    array = read(TColumn(binary_val=TBinaryColumn(values=[b"\0", b""], nulls=b"\2")), column(TTypeId.BINARY))
    assert array.to_pylist() == [b"\0", None]


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (column(TTypeId.DECIMAL, precision=10, scale=2), (ResultType.DECIMAL, "decimal(10,2)")),
        (column(TTypeId.VARCHAR, characterMaximumLength=20), (ResultType.VARCHAR, "varchar(20)")),
        (column(TTypeId.CHAR, characterMaximumLength=5), (ResultType.CHAR, "char(5)")),
        (column(TTypeId.UNION), (ResultType.UNION, "uniontype")),
        (column(TTypeId.NULL), (ResultType.NULL, "void")),
    ],
)
def test_types_are_named_with_their_qualifiers(declared, expected):
    assert (declared.column.type, declared.column.native_type) == expected


def test_a_type_described_in_full_is_written_in_full():
    types = [
        TTypeEntry(array=TArrayTypeEntry(object_type=1)),
        TTypeEntry(map=TMapTypeEntry(key_type=2, value_type=3)),
        TTypeEntry(primitive=TPrimitiveTypeEntry(type=TTypeId.STRING)),
        TTypeEntry(struct=TStructTypeEntry(name_to_type={"x": 4})),
        TTypeEntry(primitive=TPrimitiveTypeEntry(type=TTypeId.INT)),
    ]
    found = wire_column(TColumnDesc(column_name="a", type_desc=TTypeDesc(types=types), position=1))
    assert found.column == Column("a", ResultType.ARRAY, "array<map<string,struct<x:int>>>")


def test_a_type_that_holds_itself_is_no_endless_loop():
    types = [TTypeEntry(array=TArrayTypeEntry(object_type=0))]
    found = wire_column(TColumnDesc(column_name="a", type_desc=TTypeDesc(types=types), position=1))
    assert found.column.type is ResultType.ARRAY


def test_rows_with_other_columns_than_the_result_are_refused():
    rows = TRowSet(start_row_offset=0, rows=[], columns=[text(b"x")])
    with pytest.raises(MalformedMessage):
        record_batch(rows, (column(TTypeId.STRING), column(TTypeId.STRING)))
    rows = TRowSet(start_row_offset=0, rows=[], columns=[text(b"x"), text(b"x", b"y")])
    with pytest.raises(MalformedMessage):
        record_batch(rows, (column(TTypeId.STRING), column(TTypeId.STRING)))
