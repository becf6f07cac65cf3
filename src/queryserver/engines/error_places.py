"""Where in a statement an error is, read from the texts of engines."""

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from queryserver.domain.positions import Excerpt, LineColumn, Place, Rest, Unit

_MOST_CHARACTERS = 64 * 1024
"""Of a text that are read: some repeat statements of megabytes."""

_NUMBER = r"(\d{1,7})"
_Reading: TypeAlias = tuple[re.Pattern[str], Callable[[re.Match[str]], Place]]


def place_in(text: str, readings: Sequence[_Reading]) -> Place | None:
    """The place that the first fitting pattern reads in a text."""
    text = text[:_MOST_CHARACTERS]
    for pattern, place in readings:
        if found := pattern.search(text):
            return place(found)
    return None


def _from_one(unit: Unit) -> Callable[[re.Match[str]], Place]:
    return lambda found: LineColumn(int(found[1]), int(found[2]), unit)


def _from_zero(unit: Unit) -> Callable[[re.Match[str]], Place]:
    return lambda found: LineColumn(int(found[1]), int(found[2]) + 1, unit)


# Without one repetition behind another of the same characters: each is linear in the text.
LABELED: Sequence[_Reading] = (
    (
        re.compile(rf"^(LINE {_NUMBER}: )(.*)\n( *)\^", re.MULTILINE),
        lambda found: Excerpt(int(found[2]), found[3].rstrip("\r"), len(found[4]) - len(found[1]), Unit.SCREEN),
    ),
)
"""`LINE 1: SELCT 1` above a mark: DuckDB, and psql's form of PostgreSQL's errors."""


def _near(found: re.Match[str]) -> Place:
    _, near, rest = found.string[: found.start()].partition("near '")
    return Rest(int(found[1]), rest) if near else LineColumn(int(found[1]))


NEAR: Sequence[_Reading] = ((re.compile(rf"' at line {_NUMBER}\s*\Z"), _near),)
"""MySQL and MariaDB: the text from the error on, of at most 80 bytes."""

HIVE: Sequence[_Reading] = ((re.compile(rf"\b[Ll]ine {_NUMBER}:{_NUMBER}\b"), _from_zero(Unit.UTF16)),)
"""`ParseException line 1:7`, `SemanticException [Error 10001]: Line 1:14`; columns from 0, in Java's characters."""

SPARK: Sequence[_Reading] = (
    (re.compile(rf"\(line {_NUMBER}, pos {_NUMBER}\)"), _from_zero(Unit.CHARACTER)),
    (re.compile(rf"; line {_NUMBER},? pos {_NUMBER}\b"), _from_zero(Unit.CHARACTER)),
    (re.compile(rf"== SQL \(line {_NUMBER}, position {_NUMBER}\) =="), _from_one(Unit.CHARACTER)),
)
"""Positions in words are from 0, those of a query context from 1 (Spark: SQLQueryContext.summary)."""

IMPALA: Sequence[_Reading] = (
    (
        re.compile(rf"error in line {_NUMBER}:[ \t]*(?:undefined:[ \t]*)?\n(.*)\n( *)\^"),
        lambda found: Excerpt(int(found[1]), found[2].rstrip("\r"), len(found[3]), Unit.UTF16),
    ),
)
"""The line above a mark, cut to some 60 characters (Impala: sql-parser.cup, getErrorMessage)."""

PHOENIX: Sequence[_Reading] = ((re.compile(rf"\bat line {_NUMBER}, column {_NUMBER}\b"), _from_one(Unit.UTF16)),)
"""Phoenix: PhoenixParserException, both from 1."""

ANY: Sequence[_Reading] = (
    *LABELED,
    (re.compile(rf"\(line {_NUMBER}, col {_NUMBER}\)"), _from_one(Unit.CHARACTER)),  # ClickHouse
    (re.compile(rf"\berror line {_NUMBER} at position {_NUMBER}\b"), _from_zero(Unit.CHARACTER)),  # Snowflake
    (re.compile(rf"\bline {_NUMBER}, column {_NUMBER}\b"), _from_one(Unit.CHARACTER)),
    (re.compile(rf"^line {_NUMBER}:{_NUMBER}: "), _from_one(Unit.CHARACTER)),  # Trino and Presto
    *NEAR,
)
"""Drivers that are not known beforehand: the forms of well-known data sources."""
