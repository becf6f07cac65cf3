"""Which part of a file a download asks for, and whether it is wanted at all (RFC 9110 sections 13 and 14)."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from hashlib import sha256

from queryserver.domain.errors import RangeNotSatisfiable
from queryserver.domain.files import FileStatus

_UNIT = "bytes="
_RANGE = re.compile(r"([0-9]*)-([0-9]*)")
_ENTITY_TAG = re.compile(r'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')
_TAG_TEXT = re.compile(r"[\x21\x23-\x7e]{1,200}")
_HUGE = 2**63
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Conditions:
    """The headers of these names as they came; empty: absent."""

    range: str = ""
    if_range: str = ""
    if_none_match: str = ""
    if_modified_since: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes [start, start + length) of a file of `size_bytes`."""

    start: int
    length: int
    size_bytes: int
    is_whole: bool
    """Whether the whole file was asked for, which need not be the same as having all bytes."""

    @property
    def content_range(self) -> str:
        """As the header says it."""
        return f"bytes {self.start}-{self.start + self.length - 1}/{self.size_bytes}"


def entity_tag(status: FileStatus) -> str:
    """A strong tag in quotes: the store's, else of file, size and time of change in milliseconds."""
    if _TAG_TEXT.fullmatch(status.tag):
        return f'"{status.tag}"'
    changed = 0 if status.modified_at is None else (status.modified_at - _EPOCH) // timedelta(milliseconds=1)
    seed = f"{status.tag}-{status.file_id}" if status.tag else status.file_id
    known = seed if not seed or _TAG_TEXT.fullmatch(seed) else sha256(seed.encode("utf-8", "replace")).hexdigest()
    return f'"{known}-{status.size_bytes}-{changed}"'


def is_unchanged(conditions: Conditions, status: FileStatus) -> bool:
    """Whether the caller has this version already; tags take precedence over dates."""
    if conditions.if_none_match:
        if conditions.if_none_match.strip() == "*":
            return True
        return entity_tag(status) in _ENTITY_TAG.findall(conditions.if_none_match)
    since = _date(conditions.if_modified_since)
    return since is not None and status.modified_at is not None and _in_seconds(status.modified_at) <= since


def asked_part(conditions: Conditions, status: FileStatus) -> Part:
    """The part to send: one range that holds for this version, else the whole file. Raises RangeNotSatisfiable."""
    size = status.size_bytes
    asked = conditions.range.strip()
    if asked[: len(_UNIT)].lower() != _UNIT or not _holds(conditions.if_range.strip(), status):
        return Part(0, size, size, is_whole=True)
    ranges = [_bounds(text.strip(" \t"), size) for text in asked[len(_UNIT) :].split(",")]
    if len(ranges) > 1:
        return Part(0, size, size, is_whole=True)
    first, last = ranges[0]
    if first >= size:
        raise RangeNotSatisfiable(size)
    return Part(first, min(last, size - 1) - first + 1, size, is_whole=False)


def _bounds(text: str, size: int) -> tuple[int, int]:
    """First and last byte; a start at `size` is outside. Raises RangeNotSatisfiable: this is no range."""
    match = _RANGE.fullmatch(text)
    if match is None or text == "-":
        raise RangeNotSatisfiable(size)
    first, last = match.groups()
    if not first:
        count = _number(last)
        return (max(size - count, 0), size - 1) if count else (size, size)
    if last and _number(last) < _number(first):
        raise RangeNotSatisfiable(size)
    return _number(first), _number(last) if last else size


def _number(digits: str) -> int:
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) < 19 else _HUGE


def _holds(if_range: str, status: FileStatus) -> bool:
    """Whether the range is meant for this version. Only a strong tag or the very date will do."""
    if not if_range:
        return True
    if if_range.endswith('"'):
        return if_range == entity_tag(status)
    date = _date(if_range)
    return date is not None and status.modified_at is not None and _in_seconds(status.modified_at) == date


def _date(text: str) -> datetime | None:
    """A date of HTTP; None when it is none."""
    if not text:
        return None
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)


def _in_seconds(time: datetime) -> datetime:
    return time.replace(microsecond=0)
