"""Record batches as DuckDB gives them, made sound: what Arrow's types cannot say becomes DuckDB's own text."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from queryserver.domain.result import Column

_DAY_S = 86_400
_FIRST_DAY = -719_162  # 0001-01-01
_LAST_DAY = 2_932_896  # 9999-12-31
_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_INFINITE = {"date": 2**31 - 1, "timestamp": 2**63 - 1}
_MOST_DECIMAL = 10**38


def sound(batch: pa.RecordBatch, columns: tuple[Column, ...]) -> pa.RecordBatch:
    """The batch under the names of `columns`; values outside the years 1 to 9999 and unions as dense unions."""
    arrays = [_sound(array) for array in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


def _sound(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_date32(kind):
        return _dates(array)
    if pa.types.is_timestamp(kind):
        return _timestamps(array)
    if pa.types.is_union(kind):
        return _dense(array)
    if pa.types.is_decimal128(kind) and kind.precision == 38 and kind.scale == 0:
        return _hugeint(array)
    return array


def _hugeint(array: pa.Array) -> pa.Array:
    """HUGEINT comes as decimal(38), though it may have 39 digits."""
    widest = max((abs(extreme) for extreme in _extremes(array) if extreme is not None), default=0)
    if widest < _MOST_DECIMAL:
        return array
    return pa.array([None if value is None else int(value) for value in array.to_pylist()], pa.decimal256(39, 0))


def _dates(array: pa.Array) -> pa.Array:
    return _calendar(array, array.view(pa.int32()), _FIRST_DAY, _LAST_DAY, _date_text)


def _timestamps(array: pa.Array) -> pa.Array:
    per_s = _UNITS[array.type.unit]
    first, last = _FIRST_DAY * _DAY_S * per_s, (_LAST_DAY + 1) * _DAY_S * per_s - 1
    suffix = "" if array.type.tz is None else "+00"
    int64 = 2**63 - 1
    return _calendar(
        array,
        array.view(pa.int64()),
        max(first, -int64 + 1),
        min(last, int64 - 1),
        lambda ticks: _timestamp_text(ticks, per_s, suffix),
    )


def _calendar(array: pa.Array, ticks: pa.Array, first: int, last: int, text: Callable[[int], str]) -> pa.Array:
    """As it is when all values lie in [first, last], else a union with the text of those that do not."""
    earliest, latest = _extremes(ticks)
    if earliest is None or (earliest >= first and latest <= last):
        return array
    outside = [tick is not None and not first <= tick <= last for tick in ticks.to_pylist()]
    texts = [text(tick) if out else None for tick, out in zip(ticks.to_pylist(), outside, strict=True)]
    inside = pc.call_function("if_else", [pa.array(outside), pa.scalar(None, array.type), array])
    return _chosen(pa.array([int(out) for out in outside], pa.int8()), [inside, pa.array(texts, pa.string())])


def _extremes(array: pa.Array) -> tuple[Any, Any]:
    extremes = pc.call_function("min_max", [array]).as_py()
    return extremes["min"], extremes["max"]


def _dense(array: pa.Array) -> pa.Array:
    """DuckDB's unions are sparse: children of full length, of which each row uses one."""
    if array.type.mode == "dense":
        return array
    children = [_sound(array.field(number)) for number in range(array.type.num_fields)]
    names = [array.type.field(number).name for number in range(array.type.num_fields)]
    # `type_codes` of a slice begins at the first code of the whole.
    codes = pa.Array.from_buffers(pa.int8(), len(array), [None, array.buffers()[1]], offset=array.offset)
    return _chosen(pa.array(codes.to_pylist(), pa.int8()), children, names)


def _chosen(codes: pa.Array, children: list[pa.Array], names: list[str] | None = None) -> pa.Array:
    offsets = pa.array(range(len(codes)), pa.int32())
    return pa.UnionArray.from_dense(codes, offsets, children, names)


def _date_text(day: int) -> str:
    if abs(day) == _INFINITE["date"]:
        return "infinity" if day > 0 else "-infinity"
    year, month, day_of_month = _civil(day)
    era = "" if year > 0 else " (BC)"
    return f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day_of_month:02d}{era}"


def _timestamp_text(ticks: int, per_s: int, suffix: str) -> str:
    if abs(ticks) == _INFINITE["timestamp"]:
        return "infinity" if ticks > 0 else "-infinity"
    seconds, fraction = divmod(ticks, per_s)
    day, second = divmod(seconds, _DAY_S)
    date, bc, _ = _date_text(day).partition(" (BC)")
    digits = f".{fraction:0{len(str(per_s)) - 1}d}".rstrip("0") if fraction else ""
    clock = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}{digits}"
    return f"{date}{bc} {clock}{suffix}"


def _civil(day: int) -> tuple[int, int, int]:
    """Year (0 is 1 BC), month and day of a count of days since 1970-01-01, in the Gregorian calendar without end."""
    cycles, left = divmod(day + 719_468, 146_097)  # 400 years from a first of March
    year_of_cycle = (left - left // 1460 + left // 36_524 - left // 146_096) // 365
    day_of_year = left - (365 * year_of_cycle + year_of_cycle // 4 - year_of_cycle // 100)
    march_month = (5 * day_of_year + 2) // 153
    month = march_month + 3 if march_month < 10 else march_month - 9
    year = year_of_cycle + cycles * 400 + (1 if month <= 2 else 0)
    return year, month, day_of_year - (153 * march_month + 2) // 5 + 1
