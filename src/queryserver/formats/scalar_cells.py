"""Arrow's compute functions, which pyarrow makes when it is imported, where no type checker sees them."""

import math
from base64 import b64encode
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute
from pyarrow import types

kernels: Any = pyarrow.compute


# Arrow writes decimals below 10^-6 with an exponent, as Java does.
_PLAIN_SCALES = range(7)


def is_text(kind: pa.DataType) -> bool:
    """Whether values are text."""
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def is_binary(kind: pa.DataType) -> bool:
    """Whether values are bytes."""
    plain = types.is_binary(kind) or types.is_large_binary(kind)
    return plain or types.is_fixed_size_binary(kind) or types.is_binary_view(kind)


def text_values(array: pa.Array) -> list[object]:
    """Text unchanged. Arrow does not check what a driver gives: bytes that are no UTF-8 become U+FFFD."""
    try:
        return array.to_pylist()
    except UnicodeDecodeError:
        values = array.cast(pa.large_binary()).to_pylist()
        return [None if value is None else value.decode(errors="replace") for value in values]


def float_values(array: pa.Array) -> list[object]:
    """Floats; NaN and the infinities as text."""
    if types.is_float32(array.type):
        # Through text: 0.1 as a float of 32 bits is 0.1, and not the 0.10000000149011612 of a mere widening.
        array = array.cast(pa.string()).cast(pa.float64())
    elif types.is_float16(array.type):
        array = array.cast(pa.float64())
    values = array.to_pylist()
    if kernels.all(kernels.is_finite(array), min_count=0).as_py():
        return values
    return [value if value is None or math.isfinite(value) else _odd_float(value) for value in values]


def _odd_float(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def decimal_texts(array: pa.Array) -> list[object]:
    """Decimals with the digits of their scale, never with an exponent."""
    texts = array.cast(pa.string()).to_pylist()
    if array.type.scale in _PLAIN_SCALES:
        return texts
    return [format(Decimal(text), "f") if text and "E" in text else text for text in texts]


def binary_values(array: pa.Array) -> list[object]:
    """Bytes as base64."""
    return [None if value is None else b64encode(value).decode() for value in array.to_pylist()]


EXACT_IN_A_DOUBLE = 2**53 - 1
"""The largest integer that no other one is read as (JavaScript: Number.MAX_SAFE_INTEGER)."""

Integers: TypeAlias = Callable[[pa.Array], list[object]]
"""The cells of an array of integers."""


def as_numbers(array: pa.Array) -> list[object]:
    """All of them as numbers."""
    return array.to_pylist()


def as_texts(array: pa.Array) -> list[object]:
    """Those of a type of 64 bits as text, whatever their values: a column has one form."""
    return array.cast(pa.string()).to_pylist() if array.type.bit_width == 64 else array.to_pylist()


def as_texts_where_needed(array: pa.Array) -> list[object]:
    """Those that a double does not keep as text."""
    values = array.to_pylist()
    if array.type.bit_width < 64 or not len(array):
        return values
    bounds = kernels.min_max(array).as_py()
    if max(-(bounds["min"] or 0), bounds["max"] or 0) <= EXACT_IN_A_DOUBLE:
        return values
    return [str(value) if value is not None and abs(value) > EXACT_IN_A_DOUBLE else value for value in values]


_UTC = frozenset({"UTC", "utc", "Etc/UTC", "Etc/GMT", "GMT", "Z", "Zulu", "+00:00", "-00:00"})
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY_S = 86_400
# Engines keep `infinity` as the greatest number there is, `-infinity` as the same negated.
_INFINITE_DAYS = 2**31 - 1
_INFINITE_TICKS = 2**63 - 1


def date_texts(array: pa.Array) -> list[object]:
    """`2024-01-31`."""
    dates = kernels.cast(array, pa.date32(), safe=False)
    texts = dates.cast(pa.string())
    if not _has_gaps(texts):
        return texts.to_pylist()
    return _fill_gaps(texts, dates.view(pa.int32()), _INFINITE_DAYS, _date_text)


def time_texts(array: pa.Array) -> list[object]:
    """`10:20:30`, with a fraction only when it is not zero."""
    texts = array.cast(pa.string()).to_pylist()
    return texts if array.type.unit == "s" else [text and _short_fraction(text) for text in texts]


def timestamp_texts(array: pa.Array) -> list[object]:
    """`2024-01-31 10:20:30`, a fraction only when it is not zero; with a zone the local time and its `+01:00`."""
    zone, unit = array.type.tz, array.type.unit
    if zone is None:
        return _naive_texts(array)
    utc = array.view(pa.timestamp(unit))
    if zone in _UTC:
        return _utc_texts(utc)
    try:
        local = kernels.local_timestamp(array)
    except pa.ArrowInvalid:  # a zone that this machine does not know; in UTC the instant is as right
        return _utc_texts(utc)
    ticks = zip(local.view(pa.int64()).to_pylist(), utc.view(pa.int64()).to_pylist(), strict=True)
    offsets = [None if there is None else (there - here) // _PER_SECOND[unit] for there, here in ticks]
    names = {offset: _offset_text(offset) for offset in set(offsets) if offset is not None}
    return [text and f"{text}{names[offset]}" for text, offset in zip(_naive_texts(local), offsets, strict=True)]


def duration_texts(array: pa.Array) -> list[object]:
    """`1 day 02:03:04`; a negative duration has a sign at both parts."""
    scale = _PER_SECOND["ns"] // _PER_SECOND[array.type.unit]
    return [tick if tick is None else _duration_text(tick * scale) for tick in array.view(pa.int64()).to_pylist()]


def interval_texts(array: pa.Array) -> list[object]:
    """`1 year 2 months 3 days 02:03:04.5`, as DuckDB writes it, the engine that gives intervals as Arrow values."""
    return [value and _interval_text(*value) for value in array.to_pylist()]


def _naive_texts(array: pa.Array) -> list[object]:
    texts = _timestamp_column(array)
    if not _has_gaps(texts):
        return texts.to_pylist()
    per_second = _PER_SECOND[array.type.unit]
    return _fill_gaps(texts, array.view(pa.int64()), _INFINITE_TICKS, lambda tick: _timestamp_text(tick, per_second))


def _utc_texts(utc: pa.Array) -> list[object]:
    texts = _timestamp_column(utc)
    if not _has_gaps(texts):
        return kernels.binary_join_element_wise(texts, "+00:00", "").to_pylist()
    return [text if text in (None, "infinity", "-infinity") else f"{text}+00:00" for text in _naive_texts(utc)]


def _timestamp_column(array: pa.Array) -> pa.Array:
    """Texts with 6 digits of fraction or none, or as many as nanoseconds need; gaps where the year is beyond Arrow."""
    try:
        return array.cast(pa.timestamp("s")).cast(pa.string())
    except pa.ArrowInvalid:  # some value has a fraction: seconds would lose it
        pass
    try:
        micros = array.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        return pa.array([text and _short_fraction(text) for text in array.cast(pa.string()).to_pylist()], pa.string())
    texts = micros.cast(pa.string())
    whole = kernels.cast(micros, pa.timestamp("s"), safe=False).cast(pa.string())
    return kernels.if_else(kernels.ends_with(texts, ".000000"), whole, texts)


def _short_fraction(text: str) -> str:
    """No fraction when it is zero, else at least 6 digits."""
    head, _, fraction = text.partition(".")
    digits = fraction.rstrip("0")
    return f"{head}.{digits.ljust(6, '0')}" if digits else head


def _has_gaps(texts: pa.Array) -> bool:
    """Arrow writes `<value out of range: 1>` for years that have more than 16 bits."""
    return kernels.any(kernels.starts_with(texts, "<"), min_count=0).as_py()


def _fill_gaps(texts: pa.Array, numbers: pa.Array, infinite: int, text_of: Callable[[int], str]) -> list[object]:
    return [
        text if text is None or text[0] != "<" else _infinity(number, infinite) or text_of(number)
        for text, number in zip(texts.to_pylist(), numbers.to_pylist(), strict=True)
    ]


def _infinity(number: int, infinite: int) -> str:
    return "" if abs(number) < infinite else "infinity" if number > 0 else "-infinity"


def _timestamp_text(tick: int, per_second: int) -> str:
    seconds, fraction = divmod(tick, per_second)
    days, second = divmod(seconds, _DAY_S)
    micros = f".{fraction * 1_000_000 // per_second:06d}" if fraction else ""
    return f"{_date_text(days)} {_clock_text(second)}{micros}"


def _date_text(days: int) -> str:
    """A day since 1970-01-01 of the Gregorian calendar, any year."""
    # Years begin in March here, so that the leap day is the last one; 400 years have 146,097 days.
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted_month + 2) // 5 + 1
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    return f"{year_of_era + 400 * era + (month <= 2):04d}-{month:02d}-{day:02d}"


def _clock_text(seconds: int) -> str:
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def _offset_text(seconds: int) -> str:
    """`+01:00`; zones of the 19th century have seconds too."""
    text = _clock_text(abs(seconds))
    return ("-" if seconds < 0 else "+") + text.removesuffix(":00")


def _duration_text(nanoseconds: int) -> str:
    sign = -1 if nanoseconds < 0 else 1
    days, rest = divmod(abs(nanoseconds), _DAY_S * _PER_SECOND["ns"])
    return _interval_text(0, sign * days, sign * rest)


def _interval_text(months: int, days: int, nanoseconds: int) -> str:
    sign = -1 if months < 0 else 1
    amounts = ((sign * (abs(months) // 12), "year"), (sign * (abs(months) % 12), "month"), (days, "day"))
    parts = [f"{amount} {name}{'' if abs(amount) == 1 else 's'}" for amount, name in amounts if amount]
    if nanoseconds or not parts:
        seconds, fraction = divmod(abs(nanoseconds), _PER_SECOND["ns"])
        digits = f".{fraction:09d}".rstrip("0") if fraction else ""
        parts.append(f"{'-' if nanoseconds < 0 else ''}{_clock_text(seconds)}{digits}")
    return " ".join(parts)
