"""Columns as columns of text: the raw text forms of Contract editor 6.3, a whole array at a time.

Arrow's kernels make 1,000,000 x 10 texts in some 0.5 s; Python objects would take ten times as long. So only what
Arrow has no kernel for goes through `cell_values`.
"""

from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute

from queryserver.formats.cells import cell_values
from queryserver.formats.columns import Column, ResultType

# pyarrow makes these functions when it is imported, where no type checker sees them.
_kernels: Any = pyarrow.compute


def matching(texts: pa.Array, regex: str) -> pa.Array:
    """Which texts hold a match of an RE2 expression."""
    return _kernels.match_substring_regex(texts, regex)


def count_matches(texts: pa.Array, regex: str) -> int:
    """How many matches all texts hold together."""
    return total(_kernels.count_substring_regex(texts, regex))


def substituted(texts: pa.Array, old: str, new: str) -> pa.Array:
    """Texts with every `old` replaced."""
    return _kernels.replace_substring(texts, old, new)


def byte_lengths(texts: pa.Array) -> pa.Array:
    """Bytes of each text or binary value."""
    return _kernels.binary_length(texts)


def character_lengths(texts: pa.Array) -> pa.Array:
    """Code points of each text."""
    return _kernels.utf8_length(texts)


def present(array: pa.Array) -> pa.Array:
    """Which values are not NULL."""
    return _kernels.is_valid(array)


def only(where: pa.Array, array: pa.Array) -> pa.Array:
    """The values where the mask is true, NULL at the others."""
    return _kernels.if_else(where, array, None)


def within(array: pa.Array, first: float, beyond: float) -> pa.Array:
    """Which numbers are in [first, beyond)."""
    return _kernels.and_(_kernels.greater_equal(array, first), _kernels.less(array, beyond))


def scaled(array: pa.Array, divisor: float, offset: float) -> pa.Array:
    """Numbers divided, then moved, as doubles."""
    return _kernels.add(_kernels.divide(array.cast(pa.float64(), safe=False), divisor), offset)


def some(mask: pa.Array) -> bool:
    """Whether any value is true; NULL is not."""
    return bool(_kernels.any(mask).as_py())


def every(mask: pa.Array) -> bool:
    """Whether all values but NULLs are true."""
    return _kernels.all(mask).as_py() is not False


def both(first: pa.Array, second: pa.Array) -> pa.Array:
    """Logical and."""
    return _kernels.and_(first, second)


def either(first: pa.Array, second: pa.Array) -> pa.Array:
    """Logical or."""
    return _kernels.or_(first, second)


def negated(mask: pa.Array) -> pa.Array:
    """Logical not."""
    return _kernels.invert(mask)


def chosen(mask: pa.Array, yes: pa.Array, no: pa.Array) -> pa.Array:
    """For each row the value of `yes` or of `no`; NULL where the mask is."""
    return _kernels.if_else(mask, yes, no)


def equal_to(array: pa.Array, value: float) -> pa.Array:
    """Which numbers are `value`."""
    return _kernels.equal(array, value)


def above(array: pa.Array, value: int) -> pa.Array:
    """Which numbers are larger than `value`."""
    return _kernels.greater(array, value)


def finite(array: pa.Array) -> pa.Array:
    """Which numbers are neither NaN nor infinite."""
    return _kernels.is_finite(array)


def largest(array: pa.Array) -> int:
    """The largest number; 0 when there is none."""
    return _kernels.max(array).as_py() or 0


def total(array: pa.Array) -> int:
    """The sum; 0 when there is none."""
    return _kernels.sum(array).as_py() or 0


def fractions_of_second(times: pa.Array) -> pa.Array:
    """What is left of times and timestamps without their whole seconds."""
    return _kernels.subsecond(times)


def joined(*pieces: pa.Array | str, separator: str = "", null: str | None = None) -> pa.Array:
    """The pieces of each row as one text; a NULL counts as `null`, or without that makes the row NULL."""
    handling = "emit_null" if null is None else "replace"
    return _kernels.binary_join_element_wise(*pieces, separator, null_handling=handling, null_replacement=null or "")


def row_bytes(*pieces: pa.Array | str, separator: str = "", null: str = "") -> bytes:
    """The pieces of each row, joined, one row after the other."""
    rows = joined(*pieces, separator=separator, null=null)
    _, offsets, characters = rows.buffers()
    if offsets is None or characters is None:
        return b""
    return characters.slice(0, memoryview(offsets).cast("i")[len(rows)]).to_pybytes()


def changed(texts: pa.Array, where: pa.Array, change: Callable[[Any], str], *, of: pa.Array | None = None) -> pa.Array:
    """Texts, but where the mask is true `change` of the value there, of the texts or of another array.

    `change` is Python and slow; it is called once for each different value.
    """
    if not some(where):
        return texts
    found = (texts if of is None else of).filter(where).dictionary_encode()
    spelled = pa.array([change(value) for value in found.dictionary.to_pylist()], pa.string())
    return _kernels.replace_with_mask(texts, _kernels.fill_null(where, False), spelled.take(found.indices))


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
        return chosen(finite(array), plain, joined('"', plain, '"'))
    return joined('"', plain, '"')


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
    whole = negated(matching(shortest, "[.en]"))
    if some(whole):
        shortest = chosen(whole, joined(shortest, ".0"), shortest)
    names = {"nan": "NaN", "-nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    return changed(shortest, negated(finite(array)), names.__getitem__)


def _decimal_texts(array: pa.Array) -> pa.Array:
    plain = array.cast(pa.string())
    if 0 <= array.type.scale <= _PLAIN_DECIMAL_SCALE:
        return plain
    return changed(plain, matching(plain, "E"), "{:f}".format, of=array)


def _temporal_texts(array: pa.Array, column: Column) -> pa.Array:
    kind = array.type
    zone = kind.tz if pa.types.is_timestamp(kind) else None
    if (zone is None or zone in _UTC) and (pa.types.is_date(kind) or kind.unit in _PLAIN_UNITS):
        made = _clock_texts(array.view(pa.timestamp(kind.unit)) if zone else array)
        # Arrow writes `<value out of range: …>` for years that have more than 16 bits.
        if not some(matching(made, "^<")):
            return joined(made, "+00:00") if zone else made
    return value_texts(cell_values(array, column))


def _clock_texts(array: pa.Array) -> pa.Array:
    """Dates, times and timestamps; a fraction only where it is not zero."""
    kind = array.type
    if pa.types.is_date(kind) or kind.unit == "s":
        return array.cast(pa.string())
    whole = equal_to(fractions_of_second(array), 0.0)
    seconds = pa.time32("s") if pa.types.is_time(kind) else pa.timestamp("s")
    without_fraction = array.cast(seconds, safe=False).cast(pa.string())
    if every(whole):
        return without_fraction
    return chosen(whole, without_fraction, array.cast(pa.string()))


def _value_text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return orjson.dumps(value).decode()


def _json_strings(strings: pa.Array) -> pa.Array:
    quoted = joined('"', strings, '"')
    to_escape = matching(strings, r'["\\\x00-\x1f]')
    return changed(quoted, to_escape, lambda text: orjson.dumps(text).decode(), of=strings)
