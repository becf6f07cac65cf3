"""Texts of engines: error positions, log lines, token redaction; and chunk sizes."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa

from queryserver.errors.statements import ErrorExcerpt, ErrorLocation, LineColumn, Rest, Unit
from queryserver.formats.value_sizes import parts

_MOST_CHARACTERS = 64 * 1024
"""Longest part of a message that is searched, because some repeat statements of several megabytes."""

_NUMBER = r"(\d{1,7})"
_PositionPattern: TypeAlias = tuple[re.Pattern[str], Callable[[re.Match[str]], ErrorLocation]]


def location_in(text: str, patterns: Sequence[_PositionPattern]) -> ErrorLocation | None:
    """The position that the first matching pattern extracts from a message."""
    text = text[:_MOST_CHARACTERS]
    for pattern, location in patterns:
        if match := pattern.search(text):
            return location(match)
    return None


def _from_one(unit: Unit) -> Callable[[re.Match[str]], ErrorLocation]:
    return lambda found: LineColumn(int(found[1]), int(found[2]), unit)


def _from_zero(unit: Unit) -> Callable[[re.Match[str]], ErrorLocation]:
    return lambda found: LineColumn(int(found[1]), int(found[2]) + 1, unit)


# No pattern has adjacent repetitions of the same characters, so each is linear in the text.
LABELED: Sequence[_PositionPattern] = (
    (
        re.compile(rf"^(LINE {_NUMBER}: )(.*)\n( *)\^", re.MULTILINE),
        lambda found: ErrorExcerpt(int(found[2]), found[3].rstrip("\r"), len(found[4]) - len(found[1]), Unit.SCREEN),
    ),
)
"""`LINE 1: SELCT 1` above a caret: DuckDB, and PostgreSQL's errors as psql prints them."""


def _near(found: re.Match[str]) -> ErrorLocation:
    _, near, rest = found.string[: found.start()].partition("near '")
    return Rest(int(found[1]), rest) if near else LineColumn(int(found[1]))


NEAR: Sequence[_PositionPattern] = ((re.compile(rf"' at line {_NUMBER}\s*\Z"), _near),)
"""MySQL and MariaDB: the text that starts at the error, at most 80 bytes of it."""

HIVE: Sequence[_PositionPattern] = ((re.compile(rf"\b[Ll]ine {_NUMBER}:{_NUMBER}\b"), _from_zero(Unit.UTF16)),)
"""`ParseException line 1:7`, `SemanticException [Error 10001]: Line 1:14`; columns from 0, in UTF-16 code units."""

SPARK: Sequence[_PositionPattern] = (
    (re.compile(rf"\(line {_NUMBER}, pos {_NUMBER}\)"), _from_zero(Unit.CHARACTER)),
    (re.compile(rf"; line {_NUMBER},? pos {_NUMBER}\b"), _from_zero(Unit.CHARACTER)),
    (re.compile(rf"== SQL \(line {_NUMBER}, position {_NUMBER}\) =="), _from_one(Unit.CHARACTER)),
)
"""Columns in messages count from 0, those in a query context from 1 (Spark: SQLQueryContext.summary)."""

IMPALA: Sequence[_PositionPattern] = (
    (
        re.compile(rf"error in line {_NUMBER}:[ \t]*(?:undefined:[ \t]*)?\n(.*)\n( *)\^"),
        lambda found: ErrorExcerpt(int(found[1]), found[2].rstrip("\r"), len(found[3]), Unit.UTF16),
    ),
)
"""The line above a caret, truncated to some 60 characters (Impala: sql-parser.cup, getErrorMessage)."""

PHOENIX: Sequence[_PositionPattern] = (
    (re.compile(rf"\bat line {_NUMBER}, column {_NUMBER}\b"), _from_one(Unit.UTF16)),
)
"""Phoenix: PhoenixParserException; line and column count from 1."""

ANY: Sequence[_PositionPattern] = (
    *LABELED,
    (re.compile(rf"\(line {_NUMBER}, col {_NUMBER}\)"), _from_one(Unit.CHARACTER)),  # ClickHouse
    (re.compile(rf"\berror line {_NUMBER} at position {_NUMBER}\b"), _from_zero(Unit.CHARACTER)),  # Snowflake
    (re.compile(rf"\bline {_NUMBER}, column {_NUMBER}\b"), _from_one(Unit.CHARACTER)),
    (re.compile(rf"^line {_NUMBER}:{_NUMBER}: "), _from_one(Unit.CHARACTER)),  # Trino and Presto
    *NEAR,
)
"""For drivers that are not known in advance: the formats of common data sources."""


_LEAST_CHARACTERS = 16
"""Shorter tokens are not redacted, because a response may contain the same characters by chance."""


def without_token(content: bytes, token: str | None) -> bytes:
    """An engine's response with the token replaced by as many asterisks, so that frame lengths stay valid."""
    if token is None or len(token) < _LEAST_CHARACTERS:
        return content
    secret = token.encode()
    return content.replace(secret, b"*" * len(secret)) if secret in content else content


MAX_LINES = 10_000
MAX_CHARACTERS = 1024 * 1024


class LogLines(list[str]):
    """The first lines, at most MAX_LINES and MAX_CHARACTERS of them; the last one may be cut."""

    _room = MAX_CHARACTERS

    def keep(self, line: str) -> None:
        """Add a line if there is room for it."""
        if len(self) >= MAX_LINES or self._room <= 0:
            return
        self.append(line if len(line) <= self._room else f"{line[: self._room]}…")
        self._room -= len(line)


BATCH_BYTES = 4 * 1024 * 1024
"""Target size of a batch; a single larger row still makes a batch."""

_FIRST_ROWS = 256
_GROWTH = 8
_MOST_ROWS = 10_000


class ChunkSize:
    """Number of rows of the next chunk: small at first, then as many as fit `BATCH_BYTES` at the last row width."""

    rows = _FIRST_ROWS

    def learn(self, batch: pa.RecordBatch) -> None:
        """Adapt to the width of the rows in `batch`."""
        row_bytes = max(batch.nbytes // max(batch.num_rows, 1), 1)
        fitting = BATCH_BYTES // row_bytes
        self.rows = max(min(fitting, self.rows * _GROWTH, _MOST_ROWS), 1)


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch, sliced in order and without copying into parts of at most `BATCH_BYTES`, or of one row."""
    return parts(batch, BATCH_BYTES) if batch.num_rows else iter(())
