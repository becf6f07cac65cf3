"""Single values to Arrow: the Arrow type of each declared type, and its values from native or text form."""

from collections.abc import Callable, Sequence
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from queryserver.engines.postgresql import types as literals
from queryserver.engines.postgresql.types import DeclaredType, Kind, Nested

_DAYS_TO_2000 = date(2000, 1, 1).toordinal()
_LAST_ORDINAL = date(9999, 12, 31).toordinal()
_DAYS_OF_400_YEARS = 146_097
_DAY_US = 86_400_000_000
_SECOND_US = 1_000_000

DATE_INFINITY = 2**31 - 1
TIMESTAMP_INFINITY = 2**63 - 1


def date_text(days: int) -> str:
    """`days` since 2000-01-01 as ISO text; `infinity`, `-infinity`, years beyond 9999 and `BC` as the server's."""
    if days == DATE_INFINITY:
        return "infinity"
    if days == -DATE_INFINITY - 1:
        return "-infinity"
    return "".join(_date_parts(days))


def timestamp_text(microseconds: int, zone: str = "") -> str:
    """Microseconds since 2000-01-01 as ISO text with `zone` behind the time; a fraction only when not zero."""
    if microseconds == TIMESTAMP_INFINITY:
        return "infinity"
    if microseconds == -TIMESTAMP_INFINITY - 1:
        return "-infinity"
    days, in_day = divmod(microseconds, _DAY_US)
    seconds, fraction = divmod(in_day, _SECOND_US)
    day, era = _date_parts(days)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{day} {clock}{f'.{fraction:06}' if fraction else ''}{zone}{era}"


def _date_parts(days: int) -> tuple[str, str]:
    """The date and its era, ` BC` or nothing. The Gregorian calendar repeats itself every 400 years."""
    ordinal = days + _DAYS_TO_2000
    if 1 <= ordinal <= _LAST_ORDINAL:
        return date.fromordinal(ordinal).isoformat(), ""
    cycles, rest = divmod(ordinal - 1, _DAYS_OF_400_YEARS)
    within = date.fromordinal(rest + 1)
    year = within.year + 400 * cycles
    era = "" if year > 0 else " BC"
    return f"{year if year > 0 else 1 - year:04}-{within:%m-%d}", era


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


NESTED = frozenset({Kind.ARRAY, Kind.COMPOSITE, Kind.HSTORE})


def read_nested(declared: DeclaredType, texts: Sequence[str | None], *, dimensions: int = 1) -> pa.Array:
    """Values from the server's text form; an array has `dimensions`. Raises Unfit."""
    if declared.kind is Kind.ARRAY:
        arrays = [None if text is None else literals.array(text, declared.delimiter) for text in texts]
        return _lists(declared, arrays, dimensions)
    if declared.kind is Kind.COMPOSITE:
        return _structs(declared, [None if text is None else literals.attributes(text) for text in texts])
    if declared.kind is Kind.HSTORE:
        pairs = [None if text is None else literals.pairs(text) for text in texts]
        return pa.array(pairs, pa.map_(pa.string(), pa.string()))
    return read_text(declared, texts)


def dimensions_of(declared: DeclaredType, texts: Sequence[str | None]) -> int:
    """The most dimensions of the given arrays; the declared type does not tell them."""
    return max((_depth(literals.array(text, declared.delimiter)) for text in texts if text is not None), default=1)


def with_fields(declared: DeclaredType, texts: Sequence[str | None]) -> DeclaredType:
    """An anonymous record as composite type. It declares no fields: they are numbered, and text.

    Raises Unfit when no value tells how many there are.
    """
    first = next((text for text in texts if text is not None), None)
    if first is None:
        raise Unfit
    text_type = DeclaredType(Kind.TEXT, declared.result, "text")
    fields = tuple((f"field{i}", text_type) for i in range(len(literals.attributes(first))))
    return DeclaredType(Kind.COMPOSITE, declared.result, declared.name, fields=fields)


def _depth(value: Nested) -> int:
    depth = 0
    while isinstance(value, list):
        depth += 1
        value = value[0] if value else None
    return depth


def _lists(declared: DeclaredType, arrays: Sequence[Nested], dimensions: int) -> pa.Array:
    items: list[Nested] = []
    offsets = [0]
    for array in arrays:
        if isinstance(array, list):
            items.extend(array)
        elif array is not None:
            raise Unfit
        offsets.append(len(items))
    inner = _lists(declared, items, dimensions - 1) if dimensions > 1 else _elements(declared, items)
    nulls = pa.array([array is None for array in arrays], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), inner, mask=nulls)


def _elements(declared: DeclaredType, items: Sequence[Nested]) -> pa.Array:
    texts = [item for item in items if not isinstance(item, list)]
    if len(texts) < len(items) or declared.element is None:
        raise Unfit
    return read_nested(declared.element, texts)


def _structs(declared: DeclaredType, values: Sequence[list[str | None] | None]) -> pa.Array:
    count = len(declared.fields)
    if any(value is not None and len(value) != count for value in values):
        raise Unfit
    children = [
        read_nested(field, [None if value is None else value[i] for value in values])
        for i, (_, field) in enumerate(declared.fields)
    ]
    fields = [pa.field(name, child.type) for (name, _), child in zip(declared.fields, children, strict=True)]
    nulls = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(children, fields=fields, mask=nulls)
