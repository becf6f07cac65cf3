"""Converts text, binary, decimal and time columns to their raw text form (Contract editor 6.3), a column at a time.

Used for JSON pages and downloads. Values without a suitable Arrow kernel are converted one by one in Python.
"""

from base64 import b64encode
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyarrow import types

from queryserver.formats.arrow import is_binary, is_text, kernels

_TEXT = pa.string()
_PLAIN_SCALES = range(7)
"""Decimal scales that Arrow always writes without an exponent. Like Java, Arrow writes numbers below 10^-6 with an
exponent.
"""
_UTC = frozenset({"UTC", "utc", "Etc/UTC", "Etc/GMT", "GMT", "Z", "Zulu", "+00:00", "-00:00"})
_TICKS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY_S = 86_400
# Engines represent `infinity` as the largest integer and `-infinity` as its negative.
_INFINITE_DAYS = 2**31 - 1
_INFINITE_TICKS = 2**63 - 1


def text_form(array: pa.Array) -> pa.Array | None:
    """Convert each value to raw text; NULL stays NULL. Return None if the raw form is not text or the array is
    nested.
    """
    make = next((make for fits, make in _CONVERTERS if fits(array.type)), None)
    return None if make is None else make(array)


def _valid_texts(array: pa.Array) -> pa.Array:
    """Replace invalid UTF-8 with U+FFFD. Arrow does not validate the bytes that a driver returns."""
    array = array.cast(_TEXT)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return _map_values(array.cast(pa.binary()), lambda value: value.decode(errors="replace"))
    return array


def _binary_texts(array: pa.Array) -> pa.Array:
    return _map_values(array, b64encode)


def _decimal_texts(array: pa.Array) -> pa.Array:
    """Format decimals without an exponent, with all fraction digits of their scale."""
    texts = array.cast(_TEXT)
    has_exponent = array.type.scale not in _PLAIN_SCALES and kernels.any(kernels.match_substring(texts, "E")).as_py()
    return _map_values(texts, lambda text: format(Decimal(text), "f")) if has_exponent else texts


def _map_values(array: pa.Array, text_of: Callable[[Any], str | bytes]) -> pa.Array:
    return pa.array([value if value is None else text_of(value) for value in array.to_pylist()], _TEXT)


def _concat(*pieces: pa.Array | str) -> pa.Array:
    return kernels.binary_join_element_wise(*pieces, "")


def _date_texts(array: pa.Array) -> pa.Array:
    """Format dates as `2024-01-31`."""
    dates = kernels.cast(array, pa.date32(), safe=False)
    return _fill_out_of_range(dates.cast(pa.string()), dates.view(pa.int32()), _INFINITE_DAYS, _date_text)


def _time_texts(array: pa.Array) -> pa.Array:
    """Format times as `10:20:30`, with a fraction if it is not zero.

    Times outside the range of a day have the form `24:00:00` or `-00:00:05`.
    """
    per_second = _TICKS_PER_SECOND[array.type.unit]
    ticks = array.view(pa.int32() if types.is_time32(array.type) else pa.int64())
    is_beyond = kernels.or_(kernels.less(ticks, 0), kernels.greater_equal(ticks, _DAY_S * per_second))
    if not kernels.any(is_beyond, min_count=0).as_py():
        return _clock_texts(array, pa.time32("s"), pa.time64("us"))
    # Arrow's times must lie within a day (Schema.fbs: Time), but DuckDB has 24:00:00, and files may contain any number.
    within = kernels.if_else(is_beyond, pa.scalar(None, array.type), array)
    beyond = _map_values(kernels.if_else(is_beyond, ticks, None), lambda tick: _beyond_day_text(tick, per_second))
    return kernels.coalesce(beyond, _clock_texts(within, pa.time32("s"), pa.time64("us")))


def _timestamp_texts(array: pa.Array) -> pa.Array:
    """Format timestamps as `2024-01-31 10:20:30`, with a fraction if it is not zero. Append the UTC offset if the type
    has a time zone.
    """
    zone, unit = array.type.tz, array.type.unit
    if zone is None:
        return _naive_texts(array)
    utc = array.view(pa.timestamp(unit))
    if zone in _UTC:
        return _utc_texts(utc)
    try:
        local = kernels.local_timestamp(array)
    except pa.ArrowInvalid:  # this machine does not know the zone; UTC denotes the same instant
        return _utc_texts(utc)
    offsets = kernels.divide(kernels.subtract(local.view(pa.int64()), utc.view(pa.int64())), _TICKS_PER_SECOND[unit])
    return _concat(_naive_texts(local), _map_values(offsets, _offset_text))


@lru_cache(maxsize=256)
def _offset_text(seconds: int) -> str:
    """Format a UTC offset as `+01:00`, or with seconds if needed, as for zones in the 19th century."""
    return ("-" if seconds < 0 else "+") + _clock_text(abs(seconds)).removesuffix(":00")


def _duration_texts(array: pa.Array) -> pa.Array:
    """Format durations as `1 day 02:03:04`. If a duration is negative, both parts have a sign."""
    scale = _TICKS_PER_SECOND["ns"] // _TICKS_PER_SECOND[array.type.unit]
    return _map_values(array.view(pa.int64()), lambda tick: _duration_text(tick * scale))


def _interval_texts(array: pa.Array) -> pa.Array:
    """Format intervals like DuckDB: `1 year 2 months 3 days 02:03:04.5`. Only DuckDB returns Arrow intervals."""
    return _map_values(array, lambda value: _interval_text(*value))


def _naive_texts(array: pa.Array) -> pa.Array:
    per_second = _TICKS_PER_SECOND[array.type.unit]

    def text_of(tick: int) -> str:
        seconds, fraction = divmod(tick, per_second)
        days, second = divmod(seconds, _DAY_S)
        micros = f".{fraction * 1_000_000 // per_second:06d}" if fraction else ""
        return f"{_date_text(days)} {_clock_text(second)}{micros}"

    texts = _clock_texts(array, pa.timestamp("s"), pa.timestamp("us"))
    return _fill_out_of_range(texts, array.view(pa.int64()), _INFINITE_TICKS, text_of)


def _utc_texts(utc: pa.Array) -> pa.Array:
    texts = _naive_texts(utc)
    return kernels.if_else(kernels.ends_with(texts, "infinity"), texts, _concat(texts, "+00:00"))


def _clock_texts(array: pa.Array, seconds: pa.DataType, micros: pa.DataType) -> pa.Array:
    """Format times with 0 or 6 fraction digits, or up to 9 for nanoseconds. For years beyond 16 bits, the result is
    Arrow's `<value out of range: …>`.
    """
    try:
        return array.cast(seconds).cast(_TEXT)
    except pa.ArrowInvalid:  # a value has fractional seconds, which the cast to seconds would lose
        pass
    try:
        return without_zero_fraction(array.cast(micros).cast(_TEXT))
    except pa.ArrowInvalid:
        return _map_values(array.cast(_TEXT), _short_fraction)


def without_zero_fraction(texts: pa.Array) -> pa.Array:
    """Remove zero fractions from times in Arrow's form, such as `10:20:30.000000`."""
    is_zero = kernels.ends_with(texts, ".000000")
    if not kernels.any(is_zero, min_count=0).as_py():
        return texts
    return kernels.if_else(is_zero, kernels.utf8_slice_codeunits(texts, 0, -7), texts)


def _short_fraction(text: str) -> str:
    """Remove trailing zeros from the fraction, but keep at least 6 digits. Remove a zero fraction completely."""
    head, _, fraction = text.partition(".")
    digits = fraction.rstrip("0")
    return f"{head}.{digits.ljust(6, '0')}" if digits else head


def _fill_out_of_range(texts: pa.Array, numbers: pa.Array, infinite: int, text_of: Callable[[int], str]) -> pa.Array:
    """Replace `<value out of range: 1>`, which Arrow writes for years beyond 16 bits, with the correct text."""
    if not kernels.any(kernels.starts_with(texts, "<"), min_count=0).as_py():
        return texts
    infinities = {infinite: "infinity", -infinite: "-infinity", -infinite - 1: "-infinity"}
    filled = [
        text if text is None or text[0] != "<" else infinities.get(number) or text_of(number)
        for text, number in zip(texts.to_pylist(), numbers.to_pylist(), strict=True)
    ]
    return pa.array(filled, _TEXT)


def _date_text(days: int) -> str:
    """Format a number of days since 1970-01-01 in the proleptic Gregorian calendar, for any year."""
    # The calendar repeats every 400 years, which have 146,097 days.
    eras, day = divmod(days + date(1970, 1, 1).toordinal() - 1, 146_097)
    first = date.fromordinal(day + 1)
    return f"{first.year + 400 * eras:04d}-{first.month:02d}-{first.day:02d}"


def _clock_text(seconds: int) -> str:
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def _beyond_day_text(tick: int, per_second: int) -> str:
    seconds, fraction = divmod(abs(tick), per_second)
    digits = f".{fraction * 10**9 // per_second:09d}" if fraction else ""
    return _short_fraction(f"{'-' if tick < 0 else ''}{_clock_text(seconds)}{digits}")


def _duration_text(nanoseconds: int) -> str:
    sign = -1 if nanoseconds < 0 else 1
    days, rest = divmod(abs(nanoseconds), _DAY_S * _TICKS_PER_SECOND["ns"])
    return _interval_text(0, sign * days, sign * rest)


def _interval_text(months: int, days: int, nanoseconds: int) -> str:
    sign = -1 if months < 0 else 1
    amounts = ((sign * (abs(months) // 12), "year"), (sign * (abs(months) % 12), "month"), (days, "day"))
    parts = [f"{amount} {name}{'' if abs(amount) == 1 else 's'}" for amount, name in amounts if amount]
    if nanoseconds or not parts:
        seconds, fraction = divmod(abs(nanoseconds), _TICKS_PER_SECOND["ns"])
        digits = f".{fraction:09d}".rstrip("0") if fraction else ""
        parts.append(f"{'-' if nanoseconds < 0 else ''}{_clock_text(seconds)}{digits}")
    return " ".join(parts)


_CONVERTERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]], ...] = (
    (is_text, _valid_texts),
    (is_binary, _binary_texts),
    (types.is_decimal, _decimal_texts),
    (types.is_timestamp, _timestamp_texts),
    (types.is_date, _date_texts),
    (types.is_time, _time_texts),
    (types.is_duration, _duration_texts),
    (types.is_interval, _interval_texts),
)
