"""Processing of engine messages: error positions, token redaction, and size-limited logs."""

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from queryserver.errors.statements import ErrorExcerpt, ErrorLocation, LineColumn, Rest, Unit

_MAX_TEXT_CHARACTERS = 64 * 1024
"""Maximum number of characters searched, because some messages repeat a statement of several megabytes."""

_NUMBER = r"(\d{1,7})"
_PositionPattern: TypeAlias = tuple[re.Pattern[str], Callable[[re.Match[str]], ErrorLocation]]


def find_location(text: str, patterns: Sequence[_PositionPattern]) -> ErrorLocation | None:
    """Return the position that the first matching pattern extracts from a message; None if no pattern matches."""
    text = text[:_MAX_TEXT_CHARACTERS]
    for pattern, location in patterns:
        if match := pattern.search(text):
            return location(match)
    return None


def _from_one(unit: Unit) -> Callable[[re.Match[str]], ErrorLocation]:
    return lambda found: LineColumn(int(found[1]), int(found[2]), unit)


def _from_zero(unit: Unit) -> Callable[[re.Match[str]], ErrorLocation]:
    return lambda found: LineColumn(int(found[1]), int(found[2]) + 1, unit)


# No pattern has adjacent repetitions of the same characters, so matching takes linear time.
LABELED_POSITIONS: Sequence[_PositionPattern] = (
    (
        re.compile(rf"^(LINE {_NUMBER}: )(.*)\n( *)\^", re.MULTILINE),
        lambda found: ErrorExcerpt(int(found[2]), found[3].rstrip("\r"), len(found[4]) - len(found[1]), Unit.SCREEN),
    ),
)
"""`LINE 1: SELCT 1` above a caret, as in messages from DuckDB, and from PostgreSQL as printed by psql."""


def _near(found: re.Match[str]) -> ErrorLocation:
    _, near, rest = found.string[: found.start()].partition("near '")
    return Rest(int(found[1]), rest) if near else LineColumn(int(found[1]))


NEAR_POSITIONS: Sequence[_PositionPattern] = ((re.compile(rf"' at line {_NUMBER}\s*\Z"), _near),)
"""MySQL and MariaDB messages, which quote up to 80 bytes of the statement from the error position on."""

HIVE: Sequence[_PositionPattern] = ((re.compile(rf"\b[Ll]ine {_NUMBER}:{_NUMBER}\b"), _from_zero(Unit.UTF16)),)
"""`ParseException line 1:7` and `SemanticException [Error 10001]: Line 1:14`.

Columns count UTF-16 code units and start at 0.
"""

SPARK: Sequence[_PositionPattern] = (
    (re.compile(rf"\(line {_NUMBER}, pos {_NUMBER}\)"), _from_zero(Unit.CHARACTER)),
    (re.compile(rf"; line {_NUMBER},? pos {_NUMBER}\b"), _from_zero(Unit.CHARACTER)),
    (re.compile(rf"== SQL \(line {_NUMBER}, position {_NUMBER}\) =="), _from_one(Unit.CHARACTER)),
)
"""Column numbers start at 0 in messages, but at 1 in a query context (Spark: SQLQueryContext.summary)."""

IMPALA: Sequence[_PositionPattern] = (
    (
        re.compile(rf"error in line {_NUMBER}:[ \t]*(?:undefined:[ \t]*)?\n(.*)\n( *)\^"),
        lambda found: ErrorExcerpt(int(found[1]), found[2].rstrip("\r"), len(found[3]), Unit.UTF16),
    ),
)
"""The statement's line, truncated to about 60 characters, above a caret (Impala: sql-parser.cup, getErrorMessage)."""

PHOENIX: Sequence[_PositionPattern] = (
    (re.compile(rf"\bat line {_NUMBER}, column {_NUMBER}\b"), _from_one(Unit.UTF16)),
)
"""Messages of Phoenix's PhoenixParserException. Line and column numbers start at 1."""

ANY: Sequence[_PositionPattern] = (
    *LABELED_POSITIONS,
    (re.compile(rf"\(line {_NUMBER}, col {_NUMBER}\)"), _from_one(Unit.CHARACTER)),  # ClickHouse
    (re.compile(rf"\berror line {_NUMBER} at position {_NUMBER}\b"), _from_zero(Unit.CHARACTER)),  # Snowflake
    (re.compile(rf"\bline {_NUMBER}, column {_NUMBER}\b"), _from_one(Unit.CHARACTER)),
    (re.compile(rf"^line {_NUMBER}:{_NUMBER}: "), _from_one(Unit.CHARACTER)),  # Trino and Presto
    *NEAR_POSITIONS,
)
"""Position formats of common data sources, for drivers that are not known in advance."""


_MIN_TOKEN_CHARACTERS = 16
"""Minimum length of tokens that are redacted. A shorter token might occur in a response by chance."""


def redact_token(content: bytes, token: str | None) -> bytes:
    """Replace each occurrence of the token in an engine's response with asterisks.

    The response keeps its length, so that frame lengths stay valid.
    """
    if token is None or len(token) < _MIN_TOKEN_CHARACTERS:
        return content
    secret = token.encode()
    return content.replace(secret, b"*" * len(secret)) if secret in content else content


MAX_LINES = 10_000
MAX_CHARACTERS = 1024 * 1024


class LogLines(list[str]):
    """The first lines of a log, limited to MAX_LINES and MAX_CHARACTERS. The last line may be truncated."""

    _room = MAX_CHARACTERS

    def add_line(self, line: str) -> None:
        """Append a line unless a limit has been reached. Truncate a line that exceeds the remaining characters."""
        if len(self) >= MAX_LINES or self._room <= 0:
            return
        self.append(line if len(line) <= self._room else f"{line[: self._room]}…")
        self._room -= len(line)
