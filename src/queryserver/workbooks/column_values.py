"""Converts the columns of record files to the types of table columns (Contract importer 8a.1, 8a.6).

A file may contain values that its own types forbid but that Arrow does not check, such as negative times or decimals
with too many digits. Such values are invalid, and so are dates outside the years 1 to 9999, which no supported engine
accepts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyarrow import types

from queryserver.formats.arrow import STRING, BaseType, Column, ColumnType, ResultType, kernels
from queryserver.formats.conversion import RANGES, arrow_type
from queryserver.formats.download.encoder import texts

_MAX_DIGITS = 38
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31, in days since 1970-01-01."""
_TICKS_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}

_BYTES = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
RESULT_TYPES = {BaseType.DECIMAL: ResultType.DECIMAL, BaseType.BOOLEAN: ResultType.BOOLEAN}
_BASE_TYPES = {
    **{
        arrow_type(ColumnType(base)): base
        for base in (*RANGES, BaseType.FLOAT32, BaseType.FLOAT64, BaseType.BOOLEAN, BaseType.DATE)
    },
    pa.float16(): BaseType.FLOAT32,
    pa.date64(): BaseType.DATE,
    pa.null(): BaseType.NULL,
}
_VALID_VALUES = {
    BaseType.DATE: "a date in the years 1 to 9999",
    BaseType.DATETIME: "a timestamp in the years 1 to 9999",
    BaseType.TIME: "a time of day",
}


def column_type_of(kind: pa.DataType) -> ColumnType:
    """Return the type of the table column for an Arrow type. Nested values become JSON strings."""
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return column_type_of(kind.value_type)
    if kind in _BASE_TYPES:
        return ColumnType(_BASE_TYPES[kind])
    if types.is_decimal(kind):
        is_supported = kind.precision <= _MAX_DIGITS and 0 <= kind.scale <= kind.precision
        return ColumnType(BaseType.DECIMAL, kind.precision, kind.scale) if is_supported else STRING
    if types.is_timestamp(kind):
        return ColumnType(BaseType.DATETIME)
    if types.is_time(kind):
        return ColumnType(BaseType.TIME)
    if any(is_kind(kind) for is_kind in _BYTES):
        return ColumnType(BaseType.BINARY)
    return ColumnType(BaseType.DURATION) if types.is_duration(kind) else STRING


@dataclass(frozen=True, slots=True)
class ConvertedColumn:
    """A column converted to the Arrow type of its table column."""

    values: pa.Array
    """The converted values; null where a value is invalid."""
    invalid_texts: Mapping[int, str] = field(default_factory=dict[int, str])
    """The invalid values as strings, by row."""


def convert_column(values: pa.Array, column_type: ColumnType) -> ConvertedColumn:
    """Convert the values of a column. Timestamps become naive UTC. Fractional seconds are truncated to microseconds."""
    if types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if types.is_run_end_encoded(values.type):
        values = kernels.run_end_decode(values)
    target = arrow_type(column_type)
    if types.is_string(target):
        return ConvertedColumn(raw_texts(values).cast(pa.string()))
    original = values
    if types.is_timestamp(values.type):
        values = kernels.cast(values, pa.timestamp(values.type.unit))
    rows = _invalid_rows(values, target)
    if rows:
        values = values.take(pa.array([None if row in rows else row for row in range(len(values))], pa.int64()))
    return ConvertedColumn(
        _cast(values, target), {row: raw_texts(original.slice(row, 1))[0].as_py() for row in sorted(rows)}
    )


def invalid_value_reason(text: str, column_type: ColumnType) -> str:
    """Return a message that starts with the value and explains why it does not fit the column's type."""
    if column_type.base is BaseType.DECIMAL:
        return f"{text[:100]} has more than the {column_type.precision} digits of its column"
    return f"{text[:100]} is not {_VALID_VALUES.get(column_type.base, 'in the range of its type')}"


def raw_texts(values: pa.Array) -> pa.Array:
    """Return each value as a string, in the format of downloads."""
    kind = RESULT_TYPES.get(column_type_of(values.type).base, ResultType.STRING)
    return texts(values, Column("", kind, ""))


def _cast(values: pa.Array, target: pa.DataType) -> pa.Array:
    if values.type == target:
        return values
    is_finer = getattr(values.type, "unit", "") == "ns" or types.is_date64(values.type)
    return kernels.cast(values, target, safe=not is_finer)


def _invalid_rows(values: pa.Array, target: pa.DataType) -> set[int]:
    if types.is_time(values.type):
        return _rows_outside_day(values)
    try:
        return _rows_out_of_range(_cast(values, target))
    except pa.ArrowInvalid:
        # Arrow's error contains the value but not its row, so check the rows one by one.
        return {row for row in range(len(values)) if not _is_valid(values.slice(row, 1), target)}


def _is_valid(value: pa.Array, target: pa.DataType) -> bool:
    try:
        return not _rows_out_of_range(_cast(value, target))
    except pa.ArrowInvalid:
        return False


def _rows_out_of_range(values: pa.Array) -> set[int]:
    """Return the rows with invalid values that Arrow's cast accepts."""
    kind = values.type
    if types.is_date32(kind):
        return _rows_outside(values.view(pa.int32()), _FIRST_DAY, _LAST_DAY)
    if types.is_timestamp(kind):
        per_day = _TICKS_PER_DAY[kind.unit]
        return _rows_outside(values.view(pa.int64()), _FIRST_DAY * per_day, (_LAST_DAY + 1) * per_day - 1)
    return _rows_with_too_many_digits(values) if types.is_decimal(kind) else set()


def _rows_outside_day(times: pa.Array) -> set[int]:
    ticks = times.view(pa.int32() if types.is_time32(times.type) else pa.int64())
    return _rows_outside(ticks, 0, _TICKS_PER_DAY[times.type.unit] - 1)


def _rows_outside(numbers: pa.Array, first: int, last: int) -> set[int]:
    is_outside = kernels.or_(kernels.less(numbers, first), kernels.greater(numbers, last))
    return set(_rows(is_outside))


def _rows_with_too_many_digits(values: pa.Array) -> set[int]:
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        max_digits = values.type.precision
        return {
            row
            for row, one in enumerate(values.to_pylist())
            if one is not None and len(one.as_tuple().digits) > max_digits
        }
    return set()


def _rows(mask: pa.Array) -> Sequence[int]:
    return kernels.indices_nonzero(kernels.fill_null(mask, fill_value=False)).to_pylist()
