"""Which part of a file a download asks for, and whether the caller has it already (RFC 9110 sections 13 and 14)."""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from queryserver.domain.errors.files import RangeNotSatisfiable

_UNIT = "bytes="
_RANGE = re.compile(r"([0-9]*)-([0-9]*)")
_ENTITY_TAG = re.compile(r'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')
_HUGE = 2**63


@dataclass(frozen=True, slots=True)
class Conditions:
    """The headers of these names as they came; empty: absent."""

    range: str = ""
    if_range: str = ""
    if_none_match: str = ""
    if_modified_since: str = ""


@dataclass(frozen=True, slots=True)
class Version:
    """What a caller may name the present content by."""

    tag: str
    """A strong entity tag, in quotes."""
    modified_at: datetime | None = None


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


def is_unchanged(conditions: Conditions, version: Version) -> bool:
    """Whether the caller has this version already; tags take precedence over dates."""
    if conditions.if_none_match:
        if conditions.if_none_match.strip() == "*":
            return True
        return version.tag in _ENTITY_TAG.findall(conditions.if_none_match)
    since = _date(conditions.if_modified_since)
    return since is not None and version.modified_at is not None and _in_seconds(version.modified_at) <= since


def wants_part(conditions: Conditions, version: Version) -> bool:
    """Whether bytes of this version are requested."""
    requested = conditions.range.strip()
    if requested[: len(_UNIT)].lower() != _UNIT:
        return False
    return _holds(conditions.if_range.strip(), version)


def requested_part(conditions: Conditions, version: Version, size: int) -> Part:
    """The part to send, of `size` bytes: one range that holds for this version, else the whole file.

    Raises RangeNotSatisfiable.
    """
    if not wants_part(conditions, version):
        return Part(0, size, size, is_whole=True)
    ranges = [_bounds(text.strip(" \t"), size) for text in conditions.range.strip()[len(_UNIT) :].split(",")]
    if len(ranges) > 1:
        return Part(0, size, size, is_whole=True)
    first, last = ranges[0]
    if first >= size:
        raise RangeNotSatisfiable(size)
    return Part(first, min(last, size - 1) - first + 1, size, is_whole=False)


async def only_part(pieces: AsyncGenerator[bytes], part: Part) -> AsyncGenerator[bytes]:
    """The bytes of a part out of those of the whole file; what comes before it is made, and dropped."""
    position, beyond = 0, part.start + part.length
    async with aclosing(pieces):
        async for piece in pieces:
            wanted = piece[max(part.start - position, 0) : max(beyond - position, 0)]
            position += len(piece)
            if wanted:
                yield wanted
            if position >= beyond:
                return


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


def _holds(if_range: str, version: Version) -> bool:
    """Whether the range is meant for this version. Only a strong tag or the very date will do."""
    if not if_range:
        return True
    if if_range.endswith('"'):
        return if_range == version.tag
    date = _date(if_range)
    return date is not None and version.modified_at is not None and _in_seconds(version.modified_at) == date


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
