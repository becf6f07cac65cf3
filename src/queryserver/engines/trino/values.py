"""Rows of JSON to record batches, one Arrow type per column for the whole result."""

import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from queryserver.engines.trino.types import DeclaredType, Kind

Values = Sequence[Any]

_DECIMAL128_DIGITS = 38
_MICROSECOND_DIGITS = 6
_FLOAT_WORDS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_DATE = re.compile(r"([+-]?\d{4,})-(\d\d)-(\d\d)")
_TIMESTAMP = re.compile(r"([+-]?\d{4,}-\d\d-\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_ARROW: Mapping[Kind, pa.DataType] = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.TINYINT: pa.int8(),
    Kind.SMALLINT: pa.int16(),
    Kind.INTEGER: pa.int32(),
    Kind.BIGINT: pa.int64(),
    Kind.UNKNOWN: pa.null(),
}


class Misfit(ValueError):
    """A value is not what its declared type promises."""


def record_batch(names: Sequence[str], declared: Sequence[DeclaredType], rows: Sequence[Values]) -> pa.RecordBatch:
    """Rows as one batch. Raises Misfit."""
    try:
        columns: Sequence[Values] = list(zip(*rows, strict=True)) or [()] * len(declared)
        arrays = [read(kind, values) for kind, values in zip(declared, columns, strict=True)]
    except (ValueError, TypeError, AttributeError, OverflowError, pa.ArrowException) as error:
        raise Misfit from error
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def read(declared: DeclaredType, values: Values) -> pa.Array:
    """The values of one column."""
    return _READERS.get(declared.kind, _plain)(declared, values)


def _plain(declared: DeclaredType, values: Values) -> pa.Array:
    return pa.array(values, _ARROW[declared.kind])


def _text(_declared: DeclaredType, values: Values) -> pa.Array:
    return pa.array(values, pa.string())


def _floats(declared: DeclaredType, values: Values) -> pa.Array:
    wanted = pa.float32() if declared.kind is Kind.REAL else pa.float64()
    try:
        return pa.array(values, wanted)
    except (pa.ArrowException, TypeError):  # NaN and the infinities are words
        numbers = [_FLOAT_WORDS[value] if isinstance(value, str) else value for value in values]
        return pa.array(numbers, wanted)


def _decimals(declared: DeclaredType, values: Values) -> pa.Array:
    precision, scale = declared.numbers if len(declared.numbers) == 2 else (_DECIMAL128_DIGITS, 0)
    texts = pa.array(values, pa.string())
    return texts.cast(pa.decimal128(precision, scale)) if precision <= _DECIMAL128_DIGITS else texts


def _binary(_declared: DeclaredType, values: Values) -> pa.Array:
    return pa.array([None if value is None else b64decode(value, validate=True) for value in values], pa.binary())


def _times(_declared: DeclaredType, values: Values) -> pa.Array:
    """Trino writes all digits of the declared precision; a fraction of nothing is left out (Contract editor 6.3)."""
    return _without_zero_fraction(pa.array(values, pa.string()))


def _dates(_declared: DeclaredType, values: Values) -> pa.Array:
    texts = pa.array(values, pa.string())
    try:
        return texts.cast(pa.date32())
    except pa.ArrowInvalid:  # a year with a sign, or of more than four digits
        days = [None if value is None else _days(value) for value in values]
        return pa.array(days, pa.int32()).cast(pa.date32())


def _timestamps(declared: DeclaredType, values: Values) -> pa.Array:
    """Microseconds cover every year of Trino's; picoseconds have no place in Arrow and stay text."""
    digits = declared.numbers[0] if declared.numbers else 3
    texts = pa.array(values, pa.string())
    if digits > _MICROSECOND_DIGITS:
        return _without_zero_fraction(texts)
    wanted = pa.timestamp("ms" if digits <= 3 else "us")
    try:
        return texts.cast(wanted)
    except pa.ArrowInvalid:
        ticks = [None if value is None else _microseconds(value) for value in values]
        return pa.array(ticks, pa.int64()).cast(pa.timestamp("us")).cast(wanted)


def _without_zero_fraction(texts: pa.Array) -> pa.Array:
    return pc.call_function("replace_substring_regex", [texts], pc.ReplaceSubstringOptions(r"\.0+$", ""))


def _days(text: str) -> int:
    """Days since 1970-01-01 of the Gregorian calendar, for any year."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise Misfit(text)
    year, month, day = (int(part) for part in match.groups())
    # 400 years have 146,097 days; `date` knows the years 1 to 9999.
    eras, year_of_era = divmod(year - 2000, 400)
    return date(2000 + year_of_era, month, day).toordinal() - date(1970, 1, 1).toordinal() + eras * 146_097


def _microseconds(text: str) -> int:
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise Misfit(text)
    day, hours, minutes, seconds, fraction = match.groups()
    whole = _days(day) * 86_400 + int(hours) * 3600 + int(minutes) * 60 + int(seconds)
    return whole * 1_000_000 + int((fraction or "").ljust(_MICROSECOND_DIGITS, "0"))


def _arrays(declared: DeclaredType, values: Values) -> pa.Array:
    (element,) = declared.parts
    items = [item for value in values if value is not None for item in value]
    return pa.ListArray.from_arrays(_offsets(values), read(element, items), mask=_nulls(values))


def _maps(declared: DeclaredType, values: Values) -> pa.Array:
    key_type, value_type = declared.parts
    if key_type.parts:  # as a key of JSON it is text of Java's
        key_type = DeclaredType(Kind.TEXT, key_type.result)
    pairs = [pair for value in values if value is not None for pair in value.items()]
    keys = read(key_type, [_key(key_type, key) for key, _ in pairs])
    items = read(value_type, [item for _, item in pairs])
    return pa.MapArray.from_arrays(_offsets(values), keys, items, mask=_nulls(values))


def _rows(declared: DeclaredType, values: Values) -> pa.Array:
    width = len(declared.parts)
    empty = (None,) * width
    rows = [empty if value is None else _fields(declared, value) for value in values]
    columns = list(zip(*rows, strict=True)) or [()] * width
    children = [read(kind, column) for kind, column in zip(declared.parts, columns, strict=True)]
    fields = [pa.field(name, child.type) for name, child in zip(declared.names, children, strict=True)]
    return pa.StructArray.from_arrays(children, fields=fields, mask=_nulls(values))


def _fields(declared: DeclaredType, value: Any) -> Values:
    """Presto and old releases of Trino may give an object instead of a list."""
    return [value.get(name) for name in declared.names] if isinstance(value, dict) else value


def _key(declared: DeclaredType, key: str) -> Any:
    """Keys of JSON objects are text, whatever they are in Trino."""
    if declared.kind is Kind.BOOLEAN:
        return key == "true"
    if declared.kind in {Kind.TINYINT, Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT}:
        return int(key)
    if declared.kind in {Kind.REAL, Kind.DOUBLE}:
        return float(key)
    return key


def _offsets(values: Values) -> pa.Array:
    offsets = [0]
    for value in values:
        offsets.append(offsets[-1] + (0 if value is None else len(value)))
    return pa.array(offsets, pa.int32())


def _nulls(values: Values) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())


def _others(_declared: DeclaredType, values: Values) -> pa.Array:
    texts = [value if value is None or isinstance(value, str) else orjson.dumps(value).decode() for value in values]
    return pa.array(texts, pa.string())


_READERS: Mapping[Kind, Callable[[DeclaredType, Values], pa.Array]] = {
    Kind.REAL: _floats,
    Kind.DOUBLE: _floats,
    Kind.DECIMAL: _decimals,
    Kind.TEXT: _text,
    Kind.TIME: _times,
    Kind.DATE: _dates,
    Kind.TIMESTAMP: _timestamps,
    Kind.BINARY: _binary,
    Kind.ARRAY: _arrays,
    Kind.MAP: _maps,
    Kind.ROW: _rows,
    Kind.OTHER: _others,
}
