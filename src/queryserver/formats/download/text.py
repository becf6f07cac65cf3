"""Columns as columns of text: the raw text forms of Contract editor 6.3, a whole array at a time.

Arrow's kernels make 1,000,000 x 10 texts in some 0.5 s; Python objects would take ten times as long. So only what
Arrow has no kernel for goes through `cell_values`.
"""

from base64 import b64encode
from collections.abc import Sequence

import orjson
import pyarrow as pa

from queryserver.domain.result import Column, ResultType
from queryserver.formats.cells import cell_values
from queryserver.formats.download import kernels

NUMERIC_TYPES = frozenset(
    {
        ResultType.TINYINT,
        ResultType.SMALLINT,
        ResultType.INT,
        ResultType.BIGINT,
        ResultType.FLOAT,
        ResultType.DOUBLE,
        ResultType.DECIMAL,
    }
)
NESTED_TYPES = frozenset({ResultType.ARRAY, ResultType.MAP, ResultType.STRUCT, ResultType.UNION})

# Arrow writes decimals in exponent form once the first digit is more than six places behind the point.
_PLAIN_DECIMAL_SCALE = 6
_UTC = frozenset({"UTC", "Etc/UTC", "+00:00"})
_PLAIN_UNITS = frozenset({"s", "us"})
"""Whose fractions Arrow writes with as many digits as the raw form has."""


def is_free_text(kind: pa.DataType) -> bool:
    """Whether the texts of an array can hold any character, in contrast to numbers, times and booleans."""
    if pa.types.is_duration(kind) or pa.types.is_interval(kind):
        return True
    return not (pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind))


def texts(array: pa.Array, column: Column) -> pa.Array:
    """The raw text of each value; NULL stays NULL. Binary is base64, nested values are compact JSON."""
    kind = array.type
    if is_text(kind):
        return _valid_texts(array)
    if is_binary(kind):
        return pa.array([None if value is None else b64encode(value) for value in array.to_pylist()], pa.string())
    if needs_values(kind, column):
        return value_texts(cell_values(array, column))
    return _temporal_texts(array, column) if pa.types.is_temporal(kind) else _plain_texts(array)


def value_texts(values: Sequence[object]) -> pa.Array:
    """The texts of raw cell values."""
    return pa.array([_value_text(value) for value in values], pa.string())


def json_texts(array: pa.Array, column: Column) -> pa.Array:
    """The raw form of each value as JSON text; NULL stays NULL."""
    kind = array.type
    if is_text(kind) and column.type not in NESTED_TYPES:
        return _json_strings(_valid_texts(array))
    if is_text(kind) or needs_values(kind, column):
        values = cell_values(array, column)
        return pa.array([None if value is None else orjson.dumps(value) for value in values], pa.string())
    plain = texts(array, column)
    if pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and column.type is not ResultType.DECIMAL):
        return plain
    if pa.types.is_floating(kind):
        return kernels.chosen(kernels.finite(array), plain, kernels.joined('"', plain, '"'))
    return kernels.joined('"', plain, '"')


def needs_values(kind: pa.DataType, column: Column) -> bool:
    """Whether only `cell_values` knows the raw form; asked for what is not text."""
    # sqlite has no booleans: a column declared so holds integers.
    return is_free_text(kind) or (column.type is ResultType.BOOLEAN and pa.types.is_integer(kind))


def is_text(kind: pa.DataType) -> bool:
    """Any Arrow type that holds text as it is."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_binary(kind: pa.DataType) -> bool:
    """Any Arrow type that holds bytes as they are."""
    return (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def _valid_texts(array: pa.Array) -> pa.Array:
    """Arrow does not check what a driver calls text: bytes that are no UTF-8 become U+FFFD."""
    array = array.cast(pa.string())
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        values = array.cast(pa.binary()).to_pylist()
        return pa.array([None if value is None else value.decode(errors="replace") for value in values], pa.string())
    return array


def _plain_texts(array: pa.Array) -> pa.Array:
    if pa.types.is_floating(array.type):
        return _float_texts(array)
    return _decimal_texts(array) if pa.types.is_decimal(array.type) else array.cast(pa.string())


def _float_texts(array: pa.Array) -> pa.Array:
    if pa.types.is_float16(array.type):
        array = array.cast(pa.float32())
    shortest = array.cast(pa.string())
    whole = kernels.negated(kernels.matching(shortest, "[.en]"))
    if kernels.some(whole):
        shortest = kernels.chosen(whole, kernels.joined(shortest, ".0"), shortest)
    names = {"nan": "NaN", "-nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    return kernels.changed(shortest, kernels.negated(kernels.finite(array)), names.__getitem__)


def _decimal_texts(array: pa.Array) -> pa.Array:
    plain = array.cast(pa.string())
    if 0 <= array.type.scale <= _PLAIN_DECIMAL_SCALE:
        return plain
    return kernels.changed(plain, kernels.matching(plain, "E"), "{:f}".format, of=array)


def _temporal_texts(array: pa.Array, column: Column) -> pa.Array:
    kind = array.type
    zone = kind.tz if pa.types.is_timestamp(kind) else None
    if (zone is None or zone in _UTC) and (pa.types.is_date(kind) or kind.unit in _PLAIN_UNITS):
        made = _clock_texts(array.view(pa.timestamp(kind.unit)) if zone else array)
        # Arrow writes `<value out of range: …>` for years that have more than 16 bits.
        if not kernels.some(kernels.matching(made, "^<")):
            return kernels.joined(made, "+00:00") if zone else made
    return value_texts(cell_values(array, column))


def _clock_texts(array: pa.Array) -> pa.Array:
    """Dates, times and timestamps; a fraction only where it is not zero."""
    kind = array.type
    if pa.types.is_date(kind) or kind.unit == "s":
        return array.cast(pa.string())
    whole = kernels.equal_to(kernels.fractions_of_second(array), 0.0)
    seconds = pa.time32("s") if pa.types.is_time(kind) else pa.timestamp("s")
    without_fraction = array.cast(seconds, safe=False).cast(pa.string())
    if kernels.every(whole):
        return without_fraction
    return kernels.chosen(whole, without_fraction, array.cast(pa.string()))


def _value_text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return orjson.dumps(value).decode()


def _json_strings(strings: pa.Array) -> pa.Array:
    quoted = kernels.joined('"', strings, '"')
    to_escape = kernels.matching(strings, r'["\\\x00-\x1f]')
    return kernels.changed(quoted, to_escape, lambda text: orjson.dumps(text).decode(), of=strings)
