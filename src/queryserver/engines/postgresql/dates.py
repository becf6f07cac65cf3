"""Dates and timestamps beyond the calendar of Arrow's readers, as PostgreSQL writes them."""

from datetime import date

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
