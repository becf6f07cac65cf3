"""Dates, times, timestamps and intervals as text (Contract editor 6.3)."""

from collections.abc import Callable

import pyarrow as pa

from queryserver.formats.cells_kernels import kernels

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
