"""Finds the line and column of an error in a statement (Contract editor 3.4).

Engines count characters, bytes, UTF-16 units or screen columns, or quote a part of the text.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from queryserver.errors.statements import Character, ErrorExcerpt, ErrorLocation, LineColumn, Octet, Rest, Unit

_DOTS = "..."
_MAX_LINEAR_CHARACTERS = 1000
# Characters that join with a neighbor: Thai and Lao vowels, Hangul jamo, regional indicators, skin tones.
_JOINED = re.compile("[\u0e33\u0eb3\u1100-\u11ff\ua960-\ua97f\ud7b0-\ud7ff\U0001f1e6-\U0001f1ff\U0001f3fb-\U0001f3ff]")


@dataclass(frozen=True, slots=True)
class Position:
    """A line and column, both counted from 1. Columns count Unicode code points.

    Line endings follow Contract editor 5.2.
    """

    line: int
    column: int | None


def position_of(location: ErrorLocation | None, statement: str) -> Position | None:
    """Return the line and column in `statement`, or None if the location is unknown or outside the statement."""
    match location:
        case None:
            return None
        case Character(offset):
            return position_at(statement, offset)
        case Octet(offset):
            if statement.isascii():
                return position_at(statement, offset)
            octets = statement.encode()
            is_inside = 0 <= offset <= len(octets)
            return position_at(statement, len(octets[:offset].decode(errors="ignore")) if is_inside else -1)
        case LineColumn(line, column, unit):
            return _in_line(statement, line, lambda text: None if column is None else _index_of(text, column - 1, unit))
        case ErrorExcerpt(line, shown, mark, unit):
            shown_line = _line_of(statement, line, shown)
            if shown_line is None:
                return None
            return _in_line(statement, shown_line, lambda text: _mark_offset(text, shown, mark, unit))
        case Rest(line, text):
            start = _offset_of_rest(statement, line, text)
            return _in_line(statement, line, lambda _: None) if start is None else position_at(statement, start)
        case _:
            assert_never(location)


def without_prefix(position: Position | None, prefix: str) -> Position | None:
    """Return the position in the text after removing the single-line `prefix`, or None if it is inside the prefix."""
    if position is None or position.line > 1 or position.column is None:
        return position
    column = position.column - len(prefix)
    return Position(1, column) if column > 0 else None


def after_prefix(position: Position | None, before: str) -> Position | None:
    """Return the position after `before` is prepended to the text."""
    start = position_at(before, len(before))
    if position is None or start is None or start.column is None:
        return position
    column = position.column
    if column is not None and position.line == 1:
        column += start.column - 1
    return Position(position.line + start.line - 1, column)


def line_start(statement: str, line: int) -> int:
    """Return the offset of the start of `line`, counted from 1.

    If there are fewer lines, return the start of the last line.
    """
    at = 0
    for _ in range(line - 1):
        ends = [end for end in (statement.find("\n", at), statement.find("\r", at)) if end >= 0]
        if not ends:
            break
        at = min(ends) + (2 if statement.startswith("\r\n", min(ends)) else 1)
    return at


def position_at(statement: str, offset: int) -> Position | None:
    """Return the position of the character at `offset`, or None if the offset is out of range.

    The offset may be the end of the statement.
    """
    if not 0 <= offset <= len(statement):
        return None
    ends = sum(statement.count(end, 0, offset) for end in "\r\n") - statement.count("\r\n", 0, offset)
    start = max(statement.rfind(end, 0, offset) for end in "\r\n") + 1
    return Position(ends + 1, offset - start + 1)


def _line_bounds(statement: str, line: int) -> tuple[int, int] | None:
    """Return the start and end of a line, as engines count them."""
    if line < 1 or line - 1 > statement.count("\n"):
        return None
    start, stop, before = 0, len(statement), line - 1  # number of line endings between `start` and the line
    while stop - start > _MAX_LINEAR_CHARACTERS:
        middle = (start + stop) // 2
        ends = statement.count("\n", start, middle)
        if ends >= before:
            stop = middle
        else:
            start, before = middle, before - ends
    for _ in range(before):
        start = statement.index("\n", start) + 1
    end = statement.find("\n", start)
    return start, len(statement) if end < 0 else end


def _line_of(statement: str, line: int, shown: str) -> int | None:
    """Return `line` if it contains the shown text, otherwise the only line that contains it.

    The line may be wrong: while DuckDB reads the rows of a guarded statement, it also counts the lines of the text
    around the statement.
    """
    body = shown.removeprefix(_DOTS).removesuffix(_DOTS)
    bounds = _line_bounds(statement, line)
    if bounds is not None and body in statement[slice(*bounds)]:
        return line
    first = statement.find(body)
    if first < 0 or statement.find(body, first + 1) >= 0:
        return None
    return statement.count("\n", 0, first) + 1


def _in_line(statement: str, line: int, find_offset: Callable[[str], int | None]) -> Position | None:
    bounds = _line_bounds(statement, line)
    if bounds is None:
        return None
    start, end = bounds
    within = find_offset(statement[start:end])
    if within is not None and 0 <= within <= end - start:
        return position_at(statement, start + within)
    found = position_at(statement, start)
    return found and Position(found.line, None)


def _index_of(text: str, column: int, unit: Unit) -> int | None:
    """Return the number of characters before the 0-based `column`, or None if uncertain.

    For UTF-16 units and display columns, also return None if the text is shorter.
    """
    if column < 0:
        return None
    if unit is Unit.CHARACTER:
        return column
    if unit is Unit.UTF16:
        units = text[:column].encode("utf-16-le", "replace")[: 2 * column]
        return len(units.decode("utf-16-le", "ignore")) if len(units) == 2 * column else None
    so_far = 0
    for number, character in enumerate(text):
        if so_far < column and _is_joined(character):
            return None
        width = 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1
        if unicodedata.combining(character) or unicodedata.category(character) in {"Cc", "Cf"}:
            width = 0
        if so_far >= column and width:
            return number
        so_far += width
    return len(text) if so_far >= column else None


def _is_joined(character: str) -> bool:
    """Return whether a character's display width depends on its neighbors: joined emoji, flags, vowel signs."""
    if character < "\xad":  # the first such character
        return False
    if unicodedata.category(character) in {"Mn", "Mc", "Me", "Cf"}:
        return not unicodedata.combining(character)
    return _JOINED.match(character) is not None


def _mark_offset(text: str, shown: str, mark: int, unit: Unit) -> int | None:
    """Return the offset in `text` of the character above the mark, or None if uncertain."""
    before = len(_DOTS) if shown.startswith(_DOTS) and not text.startswith(shown) else 0
    body = shown[before:]
    if body.endswith(_DOTS) and body not in text:
        body = body[: -len(_DOTS)]
    start = text.find(body)
    if start < 0 or (before and text.find(body, start + 1) >= 0):
        return None
    within = _index_of(body, mark - before, unit)
    return None if within is None else start + within


def _offset_of_rest(statement: str, line: int, rest: str) -> int | None:
    """Return the offset of `rest` if the statement ends with it, or if the statement or the line contains it only
    once.
    """
    if statement.endswith(rest):
        return len(statement) - len(rest)
    first = statement.find(rest)
    if first >= 0 and statement.find(rest, first + 1) < 0:
        return first
    bounds = _line_bounds(statement, line)
    if bounds is None:
        return None
    start, end = bounds
    first = statement.find(rest, start, end + len(rest))
    return None if first < 0 or statement.find(rest, first + 1, end + len(rest)) >= 0 else first
