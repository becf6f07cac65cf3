"""The value of one cell as the type of its column has it (Contract importer 12.1, 13.2).

What fits: integer types take integers within their range; floating types every number that they can hold, also nan
and inf; decimals every number that they hold without loss; timestamps also dates, with an offset as UTC, and fractions
cut after six digits; durations `[-]hours:minutes[:seconds[.fraction]]`; text everything. Blanks around are ignored.
"""

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import TypeAlias

from queryserver.domain.importing import BaseType, CellKind, ColumnType, QuotedText, TypedText
from queryserver.formats.cell_types.classes import BLANKS, MAX_INTEGER_DIGITS, facts_of_text, form_of

Value: TypeAlias = bool | int | float | Decimal | date | datetime | time | timedelta | str

_SHOWN_CHARACTERS = 60

_TIMESTAMP = re.compile(
    r"([0-9]{4}).([0-9]{2}).([0-9]{2}).([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?"
    r"(?:Z|([+-])([0-9]{2}):?([0-9]{2}))?"
)
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?")
"""The parts of what is known to be a timestamp, or a time."""
_DURATION = re.compile(r"(-?)([0-9]{1,9}):([0-5][0-9])(?::([0-5][0-9])(?:\.([0-9]{1,9}))?)?")

RANGES: Mapping[BaseType, tuple[int, int]] = {
    **{getattr(BaseType, f"INT{bits}"): (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{getattr(BaseType, f"UINT{bits}"): (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
}
"""The least and the greatest value of the integer types."""

_NUMBERS = frozenset({"integer", "fraction", "exponent"})
_FLOAT32_LIMIT = (2 - 2**-24) * 2.0**127
"""What is at least so large becomes infinite in 32 bits."""


class Misfit(ValueError):
    """A value that its column does not take; the text says why, with at most some sixty characters of the cell."""


def is_null(cell: str, *, is_text: bool) -> bool:
    """Whether a cell means NULL; in columns of text an empty quoted one does not.

    Cells of workbooks say it themselves. Of others those that are blank, `\\N`, or an unquoted null.
    """
    if isinstance(cell, TypedText):
        return cell.kind is CellKind.NULL
    stripped = cell.strip(BLANKS)
    if not stripped:
        return not (is_text and not cell and isinstance(cell, QuotedText))
    return stripped == r"\N" or (stripped.lower() == "null" and not isinstance(cell, QuotedText))


def converter(column: ColumnType) -> Callable[[str], Value]:
    """What makes values of a column of cells that are not NULL. It raises Misfit."""
    base = column.base
    if base in RANGES:
        least, greatest = RANGES[base]
        return lambda cell: _integer(cell.strip(BLANKS), least, greatest, base)
    if base is BaseType.DECIMAL:
        precision, scale = column.precision or MAX_INTEGER_DIGITS, column.scale or 0
        return lambda cell: _decimal(cell.strip(BLANKS), precision, scale)
    if base in _SIMPLE:
        read = _SIMPLE[base]
        return lambda cell: read(cell.strip(BLANKS))
    if column.length is not None:
        length = column.length
        return lambda cell: _short_text(cell, length)
    return str


def _short_text(text: str, length: int) -> str:
    if len(text) > length:
        raise Misfit(f"{_shown(text)} has more than {length} characters")
    return text


def not_in_format(text: str, form: str) -> Misfit:
    """Why a cell does not fit a column of a format."""
    return _misfit(text, f"in the format {form}")


def _integer(text: str, least: int, greatest: int, base: BaseType) -> int:
    if form_of(text) != "integer":
        raise _misfit(text, "an integer")
    if len(text) > MAX_INTEGER_DIGITS or not least <= (value := int(text)) <= greatest:
        raise Misfit(f"{_shown(text)} is out of the range of {base.value}")
    return value


def _number(text: str) -> str:
    """The text of a finite number, whose digits are not too many."""
    if form_of(text) not in _NUMBERS:
        raise _misfit(text, "a number")
    if facts_of_text(text).kind is CellKind.TEXT:
        raise Misfit(f"{_shown(text)} has more than {MAX_INTEGER_DIGITS} digits")
    return text


def _double(text: str) -> float:
    if form_of(text) == "non_finite":
        return float(text)
    value = float(_number(text))
    if math.isinf(value):
        raise Misfit(f"{_shown(text)} is out of range")
    return value


def _single(text: str) -> float:
    value = _double(text)
    if math.isfinite(value) and abs(value) >= _FLOAT32_LIMIT:
        raise Misfit(f"{_shown(text)} is out of range")
    return value


def _decimal(text: str, precision: int, scale: int) -> Decimal:
    value = Decimal(_number(text))
    context = Context(prec=precision, traps=[Inexact, InvalidOperation])
    try:
        fixed = value.quantize(Decimal(1).scaleb(-scale), context=context)
    except (Inexact, InvalidOperation):
        raise Misfit(f"{_shown(text)} does not fit {precision} digits with {scale} of them behind the point") from None
    return fixed or Decimal(0)


def _boolean(text: str) -> bool:
    if form_of(text) != "boolean":
        raise _misfit(text, "true or false")
    return text.lower() == "true"


def _date(text: str) -> date:
    if form_of(text) != "date":
        raise _misfit(text, "a date")
    return date(int(text[:4]), int(text[5:7]), int(text[8:]))


def _timestamp(text: str) -> datetime:
    if form_of(text) == "date":
        return datetime.combine(_date(text), time())
    found = _TIMESTAMP.fullmatch(text) if form_of(text) == "timestamp" else None
    if found is None:
        raise _misfit(text, "a timestamp")
    *parts, fraction, sign, hours, minutes = found.groups()
    year, month, day, hour, minute, second = (int(part or 0) for part in parts)
    moment = datetime(year, month, day, hour, minute, second, _microseconds(fraction), tzinfo=UTC)
    if sign is not None:
        offset = timedelta(hours=int(hours), minutes=int(minutes))
        try:
            moment = moment - offset if sign == "+" else moment + offset
        except OverflowError:
            raise Misfit(f"{_shown(text)} is out of range") from None
    return moment.replace(tzinfo=None)


def _time(text: str) -> time:
    found = _TIME.fullmatch(text) if form_of(text) == "time" else None
    if found is None:
        raise _misfit(text, "a time")
    return time(int(found[1]), int(found[2]), int(found[3] or 0), _microseconds(found[4]))


def _duration(text: str) -> timedelta:
    if (found := _DURATION.fullmatch(text)) is None:
        raise _misfit(text, "a duration")
    sign, hours, minutes, seconds, fraction = found.groups()
    length = timedelta(
        hours=int(hours), minutes=int(minutes), seconds=int(seconds or 0), microseconds=_microseconds(fraction)
    )
    return -length if sign else length


_SIMPLE: Mapping[BaseType, Callable[[str], Value]] = {
    BaseType.FLOAT32: _single,
    BaseType.FLOAT64: _double,
    BaseType.BOOLEAN: _boolean,
    BaseType.DATE: _date,
    BaseType.DATETIME: _timestamp,
    BaseType.TIME: _time,
    BaseType.DURATION: _duration,
}


def _microseconds(fraction: str | None) -> int:
    return int((fraction or "")[:6].ljust(6, "0"))


def _misfit(text: str, wanted: str) -> Misfit:
    return Misfit(f"{_shown(text)} is not {wanted}")


def _shown(text: str) -> str:
    """The beginning of a cell, on one line."""
    cut = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
    return '"' + "".join(one if one.isprintable() else "�" for one in cut) + '"'
