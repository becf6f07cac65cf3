"""Values of a type that its Arrow type has no place for: infinite dates, years before 1 and after 9999, NaN decimals.

A batch with such values holds a union of two members in place of the type: the values of the type, and the engine's
text of those that are odd. Its type codes tell it from a union that an engine declares. So cells show the engine's
text, and a file has the column's type whatever its values are (Contract editor 8.2).
"""

import re
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal

import pyarrow as pa
from pyarrow import types

from queryserver.formats.arrow import kernels, union_places

_CODES = [100, 101]
"""Of the values, and of the texts. The codes of other unions begin with 0."""
_FORM = re.compile(
    r"(\d+)-(\d\d)-(\d\d)( \(BC\))?(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?"
    r"(Z|[+-]\d\d(?::\d\d){0,2})?)?( BC| \(BC\))?"
)
_PLACE = pa.int32()
_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY_S = 86_400
_DAYS_OF_400_YEARS = 146_097


def with_odd_values(values: pa.Array, texts: pa.Array) -> pa.Array:
    """`values`, but in the rows where `texts` is not NULL the text. `values` is NULL in these rows."""
    codes = kernels.if_else(kernels.is_valid(texts), _CODES[1], _CODES[0]).cast(pa.int8())
    places = pa.array(range(len(codes)), _PLACE)
    return pa.UnionArray.from_dense(codes, places, [values, texts], type_codes=_CODES)


def is_odd(kind: pa.DataType) -> bool:
    """Whether arrays of the type have odd values beside those of `usual_type`."""
    return types.is_union(kind) and list(kind.type_codes) == _CODES


def usual_type(kind: pa.DataType) -> pa.DataType:
    return kind.field(0).type


def held_in(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """All values as dates or timestamps: the days of any year, and infinities as the extremes of the type.

    So DuckDB writes and reads infinities, in Arrow and in Parquet. Raises ValueError for a text that is no such value.
    """
    codes, places = union_places(array)
    usual, texts = (
        array.field(number).take(
            pa.array([p if c == code else None for c, p in zip(codes, places, strict=True)], _PLACE)
        )
        for number, code in enumerate(_CODES)
    )
    storage = pa.int32() if types.is_date32(kind) else pa.int64()
    read = _reader(kind)
    numbers = pa.array([None if text is None else read(text) for text in texts.to_pylist()], storage)
    return kernels.coalesce(numbers, usual.cast(kind).view(storage)).view(kind)


def _reader(kind: pa.DataType) -> Callable[[str], int]:
    if types.is_date32(kind):
        return lambda text: _number(text, 2**31 - 1, lambda day, _: day)
    if types.is_timestamp(kind):
        per_s = _PER_S[kind.unit]
        return lambda text: _number(text, 2**63 - 1, lambda day, clock: _ticks(day, clock, per_s))
    message = f"{kind} has no place for values such as NaN"
    raise ValueError(message)


def _number(text: str, infinite: int, number: Callable[[int, Sequence[str | None]], int]) -> int:
    if text in ("infinity", "-infinity"):
        return infinite if text[0] != "-" else -infinite
    found = _FORM.fullmatch(text)
    if found is None:
        message = "a text is neither a date nor a timestamp"
        raise ValueError(message)
    year, month, day, before, hour, minute, second, fraction, zone, behind = found.groups()
    day_number = _day(1 - int(year) if before or behind else int(year), int(month), int(day))
    made = number(day_number, (hour, minute, second, fraction, zone))
    if abs(made) > infinite:
        message = "a timestamp is beyond those of 64 bits"
        raise ValueError(message)
    return made


def _day(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 in the calendar of today, for any year."""
    cycles = (year - 2000) // 400
    return (
        date(year - 400 * cycles, month, day).toordinal() - date(1970, 1, 1).toordinal() + cycles * _DAYS_OF_400_YEARS
    )


def _offset_s(zone: str | None) -> int:
    """Of `+02`, `-03:30:15`; none of UTC."""
    if zone is None or zone == "Z":
        return 0
    size = sum(int(part) * unit for part, unit in zip(zone[1:].split(":"), (3600, 60, 1), strict=False))
    return -size if zone[0] == "-" else size


def _ticks(day: int, clock: Sequence[str | None], per_s: int) -> int:
    hour, minute, second, fraction, zone = clock
    seconds = day * _DAY_S + int(hour or 0) * 3600 + int(minute or 0) * 60 + int(second or 0)
    return (seconds - _offset_s(zone)) * per_s + int(Decimal(f"0.{fraction or 0}") * per_s)
