"""Texts of engines: error positions, log lines, tokens; and sizes of chunks."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa

from queryserver.errors.statements import ErrorExcerpt, ErrorPlace, LineColumn, Rest, Unit
from queryserver.formats.columns import parts

_MOST_CHARACTERS = 64 * 1024
"""Of a text that are read: some repeat statements of megabytes."""

_NUMBER = r"(\d{1,7})"
_Reading: TypeAlias = tuple[re.Pattern[str], Callable[[re.Match[str]], ErrorPlace]]


def place_in(text: str, readings: Sequence[_Reading]) -> ErrorPlace | None:
    """The place that the first fitting pattern reads in a text."""
    text = text[:_MOST_CHARACTERS]
    for pattern, place in readings:
        if found := pattern.search(text):
            return place(found)
    return None


def _from_one(unit: Unit) -> Callable[[re.Match[str]], ErrorPlace]:
    return lambda found: LineColumn(int(found[1]), int(found[2]), unit)


def _from_zero(unit: Unit) -> Callable[[re.Match[str]], ErrorPlace]:
    return lambda found: LineColumn(int(found[1]), int(found[2]) + 1, unit)


# Without one repetition behind another of the same characters: each is linear in the text.
LABELED: Sequence[_Reading] = (
    (
        re.compile(rf"^(LINE {_NUMBER}: )(.*)\n( *)\^", re.MULTILINE),
        lambda found: ErrorExcerpt(int(found[2]), found[3].rstrip("\r"), len(found[4]) - len(found[1]), Unit.SCREEN),
    ),
)
"""`LINE 1: SELCT 1` above a mark: DuckDB, and psql's form of PostgreSQL's errors."""


def _near(found: re.Match[str]) -> ErrorPlace:
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
"""Positions in messages are from 0, those of a query context from 1 (Spark: SQLQueryContext.summary)."""

IMPALA: Sequence[_Reading] = (
    (
        re.compile(rf"error in line {_NUMBER}:[ \t]*(?:undefined:[ \t]*)?\n(.*)\n( *)\^"),
        lambda found: ErrorExcerpt(int(found[1]), found[2].rstrip("\r"), len(found[3]), Unit.UTF16),
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
"""For drivers that are not known beforehand: the forms of well-known data sources."""


_LEAST_CHARACTERS = 16
"""A shorter text is no token: answers may hold the same letters by chance."""


def without_token(content: bytes, token: str | None) -> bytes:
    """An answer of an engine with asterisks in place of the call's token; of the same length, as frames need."""
    if token is None or len(token) < _LEAST_CHARACTERS:
        return content
    secret = token.encode()
    return content.replace(secret, b"*" * len(secret)) if secret in content else content


MAX_LINES = 10_000
MAX_CHARACTERS = 1024 * 1024


class KeptLines(list[str]):
    """The first lines, at most MAX_LINES and MAX_CHARACTERS of them; the last one may be cut."""

    _room = MAX_CHARACTERS

    def keep(self, line: str) -> None:
        """Add a line if there is room for it."""
        if len(self) >= MAX_LINES or self._room <= 0:
            return
        self.append(line if len(line) <= self._room else f"{line[: self._room]}…")
        self._room -= len(line)


BATCH_BYTES = 4 * 1024 * 1024
"""What a batch should weigh at most; one row may be heavier."""

_FIRST_ROWS = 256
_GROWTH = 8
_MOST_ROWS = 10_000


class ChunkSize:
    """Rows of the next chunk: few at first, then as many as weigh `BATCH_BYTES` by the widths seen so far."""

    rows = _FIRST_ROWS

    def learn(self, batch: pa.RecordBatch) -> None:
        """Grow or shrink by the width of the rows in `batch`."""
        row_bytes = max(batch.nbytes // max(batch.num_rows, 1), 1)
        fitting = BATCH_BYTES // row_bytes
        self.rows = max(min(fitting, self.rows * _GROWTH, _MOST_ROWS), 1)


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in order, cut (without copying) into parts of at most `BATCH_BYTES`, or of one row."""
    return parts(batch, BATCH_BYTES) if batch.num_rows else iter(())
