"""Values in record files that are invalid for the type of their column (Contract importer 8a.6)."""

from decimal import Decimal

import pyarrow as pa
import pytest

from queryserver.workbooks.column_values import column_type_of, convert_column, invalid_value_reason

DAY_MS = 86_400_000


def ticks(kind: pa.DataType, values: list[int | None]) -> pa.Array:
    """Return the numbers as values of the type, as a file stores them, even if they are out of its range."""
    return pa.array(values, {32: pa.int32(), 64: pa.int64()}[kind.bit_width]).view(kind)


def decimals(kind: pa.DataType, values: list[int]) -> pa.Array:
    size = kind.bit_width // 8
    content = b"".join(value.to_bytes(size, "little", signed=True) for value in values)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(content)])


@pytest.mark.parametrize(
    ("kind", "per_second"),
    [(pa.time32("s"), 1), (pa.time32("ms"), 10**3), (pa.time64("us"), 10**6), (pa.time64("ns"), 10**9)],
)  # fmt: skip
def test_times_must_lie_within_a_day(kind, per_second):
    found = convert_column(
        ticks(kind, [-5 * per_second, 0, 86_400 * per_second, None, 86_399 * per_second]), column_type_of(kind)
    )
    assert found.invalid_texts == {0: "-00:00:05", 2: "24:00:00"}
    assert found.values.cast(pa.string()).to_pylist() == [None, "00:00:00.000000", None, None, "23:59:59.000000"]
    found.values.validate(full=True)


def test_time_just_before_midnight_is_invalid_at_any_resolution():
    assert convert_column(ticks(pa.time64("ns"), [-5]), column_type_of(pa.time64("ns"))).invalid_texts == {
        0: "-00:00:00.000000005"
    }


@pytest.mark.parametrize("kind", [pa.decimal32(5, 2), pa.decimal64(5, 2), pa.decimal128(5, 2), pa.decimal256(5, 2)])
def test_decimals_are_limited_to_the_declared_digits(kind):
    found = convert_column(decimals(kind, [99999, 100000, -99999, -123456789]), column_type_of(kind))
    assert found.invalid_texts == {1: "1000.00", 3: "-1234567.89"}
    assert found.values.to_pylist() == [Decimal("999.99"), None, Decimal("-999.99"), None]
    assert found.values.type == pa.decimal128(5, 2)
    found.values.validate(full=True)
    assert invalid_value_reason("1000.00", column_type_of(kind)) == "1000.00 has more than the 5 digits of its column"


@pytest.mark.parametrize(
    ("kind", "values", "invalid_texts"),
    [
        (pa.date32(), [-719_163, -719_162, 2_932_896, 2_932_897], {0: "0000-12-31", 3: "10000-01-01"}),
        (pa.date64(), [-719_163 * DAY_MS, 5, 0, 2_932_897 * DAY_MS], {0: "0000-12-31", 3: "10000-01-01"}),
        (
            pa.timestamp("s"),
            [253_402_300_800, 253_402_300_799, -62_135_596_800, -62_135_596_801],
            {0: "10000-01-01 00:00:00", 3: "0000-12-31 23:59:59"},
        ),
        (pa.timestamp("us", "UTC"), [253_402_300_800_000_000, 0, 5, None], {0: "10000-01-01 00:00:00+00:00"}),
    ],
)
def test_dates_must_lie_in_years_1_to_9999(kind, values, invalid_texts):
    plain = pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind
    found = convert_column(ticks(plain, values).view(kind), column_type_of(kind))
    assert found.invalid_texts == invalid_texts
    assert found.values.null_count == len(invalid_texts) + values.count(None)


def test_invalid_values_of_dictionary_columns_are_found():
    values = pa.DictionaryArray.from_arrays(pa.array([1, 0, 1]), ticks(pa.time32("s"), [-5, 5]))
    assert convert_column(values, column_type_of(values.type)).invalid_texts == {1: "-00:00:05"}
