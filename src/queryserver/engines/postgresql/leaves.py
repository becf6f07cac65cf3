"""Single values to Arrow: the Arrow type of each declared type, and its values from native or text form."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from queryserver.engines.postgresql.dates import date_text, timestamp_text
from queryserver.engines.postgresql.declared import DeclaredType, Kind

_DAYS_1970_TO_2000 = 10_957
_US_1970_TO_2000 = 946_684_800_000_000
_CALENDAR_DAYS = (-719_162 - _DAYS_1970_TO_2000, 2_932_896 - _DAYS_1970_TO_2000)
_CALENDAR_US = (-62_135_596_800_000_000 - _US_1970_TO_2000, 253_402_300_799_999_999 - _US_1970_TO_2000)
_DECIMAL128_DIGITS = 38
_ARROW_TYPES = {
    Kind.BOOL: pa.bool_(),
    Kind.INT2: pa.int16(),
    Kind.INT4: pa.int32(),
    Kind.INT8: pa.int64(),
    Kind.OID: pa.int64(),
    Kind.FLOAT4: pa.float32(),
    Kind.FLOAT8: pa.float64(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us"),
    Kind.TIMESTAMPTZ: pa.timestamp("us", tz="UTC"),
    Kind.BYTEA: pa.binary(),
}


class Unfit(Exception):
    """A value has no place in the Arrow type of its column."""


def arrow_type(declared: DeclaredType) -> pa.DataType:
    """The Arrow type of single values: text where no other type holds every digit."""
    if declared.kind is Kind.NUMERIC and declared.precision is not None:
        digits = max(declared.precision, declared.scale)
        if declared.scale >= 0 and digits <= _DECIMAL128_DIGITS:
            return pa.decimal128(digits, declared.scale)
    return _ARROW_TYPES.get(declared.kind, pa.string())


def read_native(declared: DeclaredType, values: Sequence[Any]) -> pa.Array:
    """Values as the connection's codecs give them: dates and timestamps are integers, `numeric` is text.

    Raises Unfit.
    """
    wanted = arrow_type(declared)
    if declared.kind is Kind.DATE:
        return _moved(pa.array(values, pa.int32()), _CALENDAR_DAYS, _DAYS_1970_TO_2000).cast(wanted)
    if declared.kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        return _moved(pa.array(values, pa.int64()), _CALENDAR_US, _US_1970_TO_2000).cast(wanted)
    if declared.kind is Kind.NUMERIC:
        return read_text(declared, values)
    return pa.array(values, wanted)


def read_text(declared: DeclaredType, values: Sequence[str | None]) -> pa.Array:
    """Values in the server's text form, as they stand inside arrays and composite values. Raises Unfit."""
    wanted = arrow_type(declared)
    if declared.kind is Kind.BYTEA:
        return pa.array([None if v is None else bytes.fromhex(v.removeprefix("\\x")) for v in values], wanted)
    texts = pa.array(values, pa.string())
    if declared.kind is Kind.BOOL:
        return pc.call_function("equal", [texts, pa.scalar("t")])
    try:
        return texts.cast(wanted)
    except pa.ArrowInvalid as error:
        raise Unfit from error


def native_as_text(declared: DeclaredType, values: Sequence[Any]) -> pa.Array:
    """The same values as text, for a column that holds one that is unfit."""
    write = _WRITERS.get(declared.kind)
    if write is None:
        return pa.array(values, pa.string())
    return pa.array([None if value is None else write(value) for value in values], pa.string())


_WRITERS: dict[Kind, Callable[[int], str]] = {
    Kind.DATE: date_text,
    Kind.TIMESTAMP: timestamp_text,
    Kind.TIMESTAMPTZ: lambda microseconds: timestamp_text(microseconds, "+00:00"),
}


def _moved(numbers: pa.Array, limits: tuple[int, int], offset: int) -> pa.Array:
    """`numbers` plus `offset`. Raises Unfit for a number outside of `limits`."""
    extremes = pc.call_function("min_max", [numbers])
    lowest, highest = extremes["min"].as_py(), extremes["max"].as_py()
    if lowest is not None and (lowest < limits[0] or highest > limits[1]):
        raise Unfit
    return pc.call_function("add", [numbers, pa.scalar(offset, numbers.type)])
