"""Converts JSON rows to record batches, with one Arrow type per column for the whole result."""

import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from queryserver.engines.record_batches import Values, nulls, offsets
from queryserver.engines.record_batches import record_batch as batch_of
from queryserver.formats.arrow import PLAIN_TYPES, Column, ResultType


@dataclass(frozen=True, slots=True)
class TrinoType:
    """A declared type.

    `numbers` contains the numeric parameters, `parts` the nested types (element, key and value, or fields), and `names`
    the field names.
    """

    result: ResultType
    reader: "Reader"
    numbers: tuple[int, ...] = ()
    parts: tuple["TrinoType", ...] = ()
    names: tuple[str, ...] = ()

    def read(self, values: Values) -> pa.Array:
        """Convert JSON values to an Arrow array of this type."""
        return self.reader(self, values)


Reader = Callable[[TrinoType, Values], pa.Array]

_DECIMAL128_DIGITS = 38
_MICROSECOND_DIGITS = 6
_FLOAT_WORDS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_TIMESTAMP = re.compile(r"([+-]?\d{4,}-\d\d-\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_ARROW = {**PLAIN_TYPES, ResultType.NULL: pa.null()}


class TrinoValueError(ValueError):
    """A value does not fit its declared type."""


def _plain(declared: TrinoType, values: Values) -> pa.Array:
    return pa.array(values, _ARROW.get(declared.result, pa.string()))


def _floats(declared: TrinoType, values: Values) -> pa.Array:
    wanted = _ARROW[declared.result]
    try:
        return pa.array(values, wanted)
    except (pa.ArrowException, TypeError):  # NaN and infinities are strings
        return pa.array([_FLOAT_WORDS[value] if isinstance(value, str) else value for value in values], wanted)


def _decimals(declared: TrinoType, values: Values) -> pa.Array:
    precision, scale = declared.numbers if len(declared.numbers) == 2 else (_DECIMAL128_DIGITS, 0)
    texts = pa.array(values, pa.string())
    return texts.cast(pa.decimal128(precision, scale)) if precision <= _DECIMAL128_DIGITS else texts


def _binary(_declared: TrinoType, values: Values) -> pa.Array:
    return pa.array([None if value is None else b64decode(value, validate=True) for value in values], pa.binary())


def _times(_declared: TrinoType, values: Values) -> pa.Array:
    """Convert times to strings, and remove fractional seconds that are zero (Contract editor 6.3).

    Trino always writes as many fractional digits as the type's precision.
    """
    return _without_zero_fraction(pa.array(values, pa.string()))


def _dates(_declared: TrinoType, values: Values) -> pa.Array:
    texts = pa.array(values, pa.string())
    try:
        return texts.cast(pa.date32())
    except pa.ArrowInvalid:  # a year with a sign or more than four digits
        days = [None if value is None else _days(value) for value in values]
        return pa.array(days, pa.int32()).cast(pa.date32())


def _timestamps(declared: TrinoType, values: Values) -> pa.Array:
    """Convert timestamps.

    Values of types finer than microseconds stay strings, because Arrow's nanosecond timestamps do not cover all years.
    """
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
    """Compute the days since 1970-01-01 in the Gregorian calendar, for any year."""
    match = re.fullmatch(r"([+-]?\d{4,})-(\d\d)-(\d\d)", text)
    if match is None:
        raise TrinoValueError(text)
    year, month, day = (int(part) for part in match.groups())
    # 400 years have 146,097 days; `date` covers only the years 1 to 9999.
    eras, year_of_era = divmod(year - 2000, 400)
    return date(2000 + year_of_era, month, day).toordinal() - date(1970, 1, 1).toordinal() + eras * 146_097


def _microseconds(text: str) -> int:
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise TrinoValueError(text)
    day, hours, minutes, seconds, fraction = match.groups()
    whole = _days(day) * 86_400 + int(hours) * 3600 + int(minutes) * 60 + int(seconds)
    return whole * 1_000_000 + int((fraction or "").ljust(_MICROSECOND_DIGITS, "0"))


def _arrays(declared: TrinoType, values: Values) -> pa.Array:
    (element,) = declared.parts
    items = [item for value in values if value is not None for item in value]
    return pa.ListArray.from_arrays(offsets(values), element.read(items), mask=nulls(values))


def _maps(declared: TrinoType, values: Values) -> pa.Array:
    key_type, value_type = declared.parts
    if key_type.parts:  # in JSON, a key of a nested type is the result of Java's toString
        key_type = TrinoType(key_type.result, _plain)
    pairs = [pair for value in values if value is not None for pair in value.items()]
    keys = key_type.read([_key(key_type, key) for key, _ in pairs])
    items = value_type.read([item for _, item in pairs])
    return pa.MapArray.from_arrays(offsets(values), keys, items, mask=nulls(values))


def _rows(declared: TrinoType, values: Values) -> pa.Array:
    width = len(declared.parts)
    rows = list[Values]()
    for value in values:
        if isinstance(value, dict):  # Presto and old releases of Trino may send an object instead of a list
            rows.append([value.get(name) for name in declared.names])
        else:
            rows.append((None,) * width if value is None else value)
    columns = list(zip(*rows, strict=True)) or [()] * width
    children = [kind.read(column) for kind, column in zip(declared.parts, columns, strict=True)]
    fields = [pa.field(name, child.type) for name, child in zip(declared.names, children, strict=True)]
    return pa.StructArray.from_arrays(children, fields=fields, mask=nulls(values))


def _key(declared: TrinoType, key: str) -> Any:
    """Parse a map key, which is always a string in JSON."""
    arrow = _ARROW.get(declared.result, pa.string())
    if pa.types.is_boolean(arrow):
        return key == "true"
    if pa.types.is_integer(arrow):
        return int(key)
    return float(key) if pa.types.is_floating(arrow) else key


def _texts_or_json(_declared: TrinoType, values: Values) -> pa.Array:
    """Convert values of all other types: strings stay unchanged, and other values become JSON text."""
    texts = [value if value is None or isinstance(value, str) else orjson.dumps(value).decode() for value in values]
    return pa.array(texts, pa.string())


_SIMPLE: Mapping[str, tuple[ResultType, Reader]] = {
    "boolean": (ResultType.BOOLEAN, _plain),
    "tinyint": (ResultType.TINYINT, _plain),
    "smallint": (ResultType.SMALLINT, _plain),
    "integer": (ResultType.INT, _plain),
    "bigint": (ResultType.BIGINT, _plain),
    "real": (ResultType.FLOAT, _floats),
    "double": (ResultType.DOUBLE, _floats),
    "decimal": (ResultType.DECIMAL, _decimals),
    "char": (ResultType.CHAR, _plain),
    "json": (ResultType.STRING, _plain),
    "uuid": (ResultType.STRING, _plain),
    "ipaddress": (ResultType.STRING, _plain),
    "time": (ResultType.STRING, _times),
    "time with time zone": (ResultType.STRING, _plain),
    "date": (ResultType.DATE, _dates),
    "timestamp": (ResultType.TIMESTAMP, _timestamps),
    "timestamp with time zone": (ResultType.TIMESTAMP_TZ, _plain),
    "interval year to month": (ResultType.INTERVAL_YEAR_MONTH, _plain),
    "interval day to second": (ResultType.INTERVAL_DAY_TIME, _plain),
    "array": (ResultType.ARRAY, _arrays),
    "map": (ResultType.MAP, _maps),
    "row": (ResultType.STRUCT, _rows),
    "unknown": (ResultType.NULL, _plain),
    **dict.fromkeys(
        ("varbinary", "hyperloglog", "p4hyperloglog", "qdigest", "tdigest", "setdigest", "kllsketch", "khyperloglog",
         "thetasketch", "sfmsketch", "bloomfilter"),
        (ResultType.BINARY, _binary),
    ),
}  # fmt: skip
_UNBOUNDED_LENGTH = 2**31 - 1
_MAX_DEPTH = 100


def declare(columns: Sequence[Mapping[str, Any]]) -> tuple[TrinoType, ...]:
    """Parse the types in a page's `columns`. Raises KeyError or TypeError if they are malformed."""
    return tuple(_parse_signature(column["typeSignature"]) for column in columns)


def result_columns(columns: Sequence[Mapping[str, Any]], declared: Sequence[TrinoType]) -> tuple[Column, ...]:
    """Build the result columns from a page's `columns` and their parsed types."""
    result = list[Column]()
    for column, kind in zip(columns, declared, strict=True):
        native = str(column["type"])
        if native.startswith("INTERVAL "):  # Trino writes only interval types in upper case
            native = native.lower()
        result.append(Column(str(column["name"]), kind.result, native))
    return tuple(result)


def _parse_signature(signature: Mapping[str, Any], depth: int = 0) -> TrinoType:
    if depth > _MAX_DEPTH:
        raise TypeError("a type is nested too deeply")
    raw = str(signature["rawType"]).lower()
    arguments: Sequence[Mapping[str, Any]] = signature.get("arguments") or ()
    numbers = tuple(int(one["value"]) for one in arguments if one.get("kind") in {"LONG", "LONG_LITERAL"})
    if raw == "varchar":
        bounded = bool(numbers) and numbers[0] < _UNBOUNDED_LENGTH
        return TrinoType(ResultType.VARCHAR if bounded else ResultType.STRING, _plain, numbers)
    result, reader = _SIMPLE.get(raw, (ResultType.USER_DEFINED, _texts_or_json))
    if raw not in {"array", "map", "row"}:
        return TrinoType(result, reader, numbers)
    names, parts = list[str](), list[TrinoType]()
    for argument in arguments:
        name, inner = "", argument["value"]
        if argument.get("kind") in {"NAMED_TYPE", "NAMED_TYPE_SIGNATURE"}:  # a row field
            name = str((inner.get("fieldName") or {}).get("name") or "")
            inner = inner["typeSignature"]
        names.append(name)
        parts.append(_parse_signature(inner, depth + 1))
    return TrinoType(result, reader, parts=tuple(parts), names=tuple(names))


def record_batch(names: Sequence[str], declared: Sequence[TrinoType], rows: Sequence[Values]) -> pa.RecordBatch:
    """Convert rows to one batch. Raises TrinoValueError if a value does not fit its declared type."""
    try:
        return batch_of(rows, names, [kind.read for kind in declared])
    except (ValueError, TypeError, AttributeError, OverflowError, pa.ArrowException) as error:
        raise TrinoValueError from error
