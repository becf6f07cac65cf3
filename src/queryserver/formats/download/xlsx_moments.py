"""Dates and times of a sheet: serial numbers of days since 1899-12-30, and the number formats that show them."""

import re
from dataclasses import dataclass
from datetime import datetime
from itertools import count

import pyarrow as pa

from queryserver.formats.columns import Column, ResultType
from queryserver.formats.download import texts as kernels
from queryserver.formats.download.texts import is_text, texts

# Index of each in `cellXfs`; 0 is a plain cell.
HEADER_STYLE = 1
_DATE, _TIME, _TIME_FRACTION, _MOMENT, _MOMENT_FRACTION, _ZONED, _ZONED_FRACTION = range(2, 9)

_CLOCK = "hh:mm:ss"
_DAY = "yyyy\\-mm\\-dd"
_FORMATS = {
    _DATE: _DAY,
    _TIME: _CLOCK,
    _TIME_FRACTION: f"{_CLOCK}.000",
    _MOMENT: f"{_DAY}\\ {_CLOCK}",
    _MOMENT_FRACTION: f"{_DAY}\\ {_CLOCK}.000",
    _ZONED: f"{_DAY}\\ {_CLOCK}&quot;Z&quot;",
    _ZONED_FRACTION: f"{_DAY}\\ {_CLOCK}.000&quot;Z&quot;",
}
_FIRST_OWN_FORMAT = 164
"""Lower numbers are Excel's own formats, which depend on the reader's country."""

_NUMBERED = dict(zip(_FORMATS, count(_FIRST_OWN_FORMAT), strict=False))
NUMBER_FORMATS_XML = (
    f'<numFmts count="{len(_FORMATS)}">'
    + "".join(f'<numFmt numFmtId="{_NUMBERED[style]}" formatCode="{code}"/>' for style, code in _FORMATS.items())
    + "</numFmts>"
)
CELL_STYLES_XML = (
    f'<cellXfs count="{len(_FORMATS) + 2}"><xf numFmtId="0" fontId="0" fillId="0" borderId="0" xfId="0"/>'
    '<xf numFmtId="0" fontId="1" fillId="0" borderId="0" xfId="0" applyFont="1"/>'
    + "".join(
        f'<xf numFmtId="{_NUMBERED[style]}" fontId="0" fillId="0" borderId="0" xfId="0" applyNumberFormat="1"/>'
        for style in _FORMATS
    )
    + "</cellXfs>"
)

_UNIX_EPOCH = 25_569
_FIRST_DAY, _DAY_BEYOND = 61, 2_958_466
"""1900-03-01 to 9999-12-31: Excel holds 1900 for a leap year, so earlier days have two numbers."""
_US_PER_DAY = 86_400_000_000

_CLOCK_TEXT = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
_TIME_NAME = re.compile(r"(?i)time *(\([0-9]+\))?( without time zone)?")
"""Of engines that give times as text."""
_DATE_TEXT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_MOMENT_TEXT = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[ T]{_CLOCK_TEXT}$"
_ZONED_TEXT = rf"{_MOMENT_TEXT[:-1]}(Z| UTC|[+-]([01][0-9]|2[0-3]):?[0-5][0-9])$"


@dataclass(frozen=True, slots=True)
class Moments:
    """The numbers of a column's values as texts, NULL for what has none; and the style of each."""

    serials: pa.Array
    styles: pa.Array


def moments_of(array: pa.Array, column: Column) -> Moments | None:
    """Dates, times and timestamps; None for columns of anything else.

    Some engines give them as text: values of the standard form count where the column is declared so. Times with a
    zone are those of UTC. A serial number keeps microseconds, of which Excel shows milliseconds.
    """
    if is_text(array.type) or pa.types.is_union(array.type):
        read = _read(array, column)
        if read is None:
            return None
        array = read
    kind = array.type
    if pa.types.is_date(kind):
        days = kernels.scaled(array.cast(pa.date32()).cast(pa.int32()), 1, _UNIX_EPOCH)
        return _moments(days, pa.array([str(_DATE)] * len(array), pa.string()))
    if pa.types.is_time(kind):
        ticks = array.cast(pa.time64("ns")).cast(pa.time64("us"), safe=False).cast(pa.int64())
        return _styled(array, kernels.scaled(ticks, _US_PER_DAY, 0), _TIME, _TIME_FRACTION, first=0)
    if pa.types.is_timestamp(kind):
        return _timestamps(array)
    return None


def _timestamps(array: pa.Array) -> Moments | None:
    whole, fraction = (_MOMENT, _MOMENT_FRACTION) if array.type.tz is None else (_ZONED, _ZONED_FRACTION)
    try:
        plain = array.cast(pa.timestamp("us", array.type.tz), safe=array.type.unit != "ns").view(pa.timestamp("us"))
    except pa.ArrowInvalid:  # seconds so far away that they have no microseconds
        return None
    days = kernels.scaled(plain.cast(pa.int64()), _US_PER_DAY, _UNIX_EPOCH)
    return _styled(plain, days, whole, fraction, first=_FIRST_DAY)


def _styled(array: pa.Array, days: pa.Array, whole: int, fraction: int, *, first: int) -> Moments:
    is_whole = kernels.equal_to(kernels.fractions_of_second(array), 0.0)
    return _moments(days, kernels.chosen(is_whole, pa.scalar(str(whole)), pa.scalar(str(fraction))), first=first)


def _moments(days: pa.Array, styles: pa.Array, *, first: int = _FIRST_DAY) -> Moments:
    return Moments(kernels.only(kernels.within(days, first, _DAY_BEYOND), days).cast(pa.string()), styles)


def _read(array: pa.Array, column: Column) -> pa.Array | None:
    """Dates, times or timestamps of a column that is declared so, NULL for texts of another form; None if all are."""
    match column.type:
        case ResultType.DATE:
            form, kind = _DATE_TEXT, pa.date32()
        case ResultType.TIMESTAMP:
            form, kind = _MOMENT_TEXT, pa.timestamp("us")
        case ResultType.TIMESTAMP_TZ:
            form, kind = _ZONED_TEXT, pa.timestamp("us", "UTC")
        case ResultType.STRING if _TIME_NAME.fullmatch(column.native_type):
            return _times(texts(array, column))
        case _:
            return None
    cells = texts(array, column)
    cells = kernels.only(kernels.matching(cells, form), cells)
    if cells.null_count == len(cells):
        return None
    cells = kernels.substituted(cells, " UTC", "Z")
    try:
        return cells.cast(kind)
    except pa.ArrowInvalid:  # 2024-02-30
        are_moments = pa.array([text is not None and _is_moment(text) for text in cells.to_pylist()])
        return kernels.only(are_moments, cells).cast(kind)


def _times(cells: pa.Array) -> pa.Array:
    clocks = kernels.only(kernels.matching(cells, f"^{_CLOCK_TEXT}$"), cells)
    return kernels.joined("1970-01-01 ", clocks).cast(pa.timestamp("us")).cast(pa.time64("us"))


def _is_moment(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
