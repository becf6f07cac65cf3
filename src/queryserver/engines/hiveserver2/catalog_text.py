"""Cells of DESCRIBE as text: escapes of Hive, dates of Java, numbers that may be unknown."""

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_DATE = re.compile(r"\w{3} (\w{3} +\d{1,2} \d\d:\d\d:\d\d) ([\w:+-]+) (\d{4})")
_OFFSET = re.compile(r"GMT([+-])(\d\d):?(\d\d)")
_ZONES = {
    "UTC": 0, "GMT": 0, "Z": 0, "WET": 0, "CET": 1, "WEST": 1, "EET": 2, "CEST": 2, "EEST": 3, "JST": 9, "KST": 9,
    "EDT": -4, "EST": -5, "MDT": -6, "MST": -7, "PDT": -7, "PST": -8,
}  # fmt: skip
"""Hours east of Greenwich of the zone names that mean one zone only."""


def cell(value: Any) -> str:
    """A cell without the blanks that pad it; NULL is empty."""
    return "" if value is None else str(value).strip()


def unescaped(text: str) -> str:
    r"""What Hive wrote as in Java's source: `\"`, `\\`, `\n`, `\u00eb`."""
    return _ESCAPE.sub(_character, text) if "\\" in text else text


def _character(match: re.Match[str]) -> str:
    code = match.group(1)
    return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPED.get(code, code)


def utc_text(java_date: str) -> str:
    """`Sat Nov 21 22:48:19 UTC 2026` as `2026-11-21T22:48:19Z`; empty when it is no date, or its zone is ambiguous."""
    match = _DATE.fullmatch(java_date)
    zone = _zone(match.group(2)) if match else None
    if match is None or zone is None:
        return ""
    try:
        local = datetime.strptime(f"{match.group(1)} {match.group(3)}", "%b %d %H:%M:%S %Y").replace(tzinfo=zone)
    except ValueError:
        return ""
    return local.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _zone(name: str) -> timezone | None:
    if name in _ZONES:
        return timezone(timedelta(hours=_ZONES[name]))
    match = _OFFSET.fullmatch(name)
    if match is None:
        return None
    offset = timedelta(hours=int(match.group(2)), minutes=int(match.group(3)))
    return timezone(offset if match.group(1) == "+" else -offset)


def known(text: str) -> str | None:
    """A statistic; None where the engine has none: empty, `NULL`, or Impala's -1."""
    return None if text in {"", "NULL", "-1"} else text


def whole(text: str) -> int | None:
    """A count, None when unknown."""
    value = real(text)
    return None if value is None else int(value)


def real(text: str) -> float | None:
    """A number, None when unknown."""
    try:
        return float(text) if known(text) is not None else None
    except ValueError:
        return None
