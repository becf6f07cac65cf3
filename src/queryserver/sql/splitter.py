"""A script cut into its statements, and which of them runs next (Contract editor 5)."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from queryserver.errors.statements import NoMoreStatements
from queryserver.sql.splitter_rules import lexis_of
from queryserver.sql.splitter_scan import NOWHERE, Span, expects_result_set, scan
from queryserver.sql.statement_kinds import own_limit


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the script as sent: 0-based, columns in Unicode code points."""

    row: int
    column: int


@dataclass(frozen=True, slots=True)
class ScriptStatement:
    """One statement: its text as the engine gets it, and its place in the script (Contract editor 5.2)."""

    text: str
    start: Position
    end: Position


@dataclass(frozen=True, slots=True)
class PreviousStatement:
    """What a handle says about the statement that ran before; the defaults stand for absent members."""

    statement_id: int = 0
    has_more_statements: bool = False
    statement_hash: str = ""


class Script(Sequence[ScriptStatement]):
    """The statements of a script, made when asked for: only four offsets are kept of each.

    Going through all of them is linear in the script's length; so is each access by index.
    """

    def __init__(self, text: str, dialect: str) -> None:
        self._text = text
        self._spans = scan(text, lexis_of(dialect))

    def __len__(self) -> int:
        return len(self._spans) // 4

    def __iter__(self) -> Iterator[ScriptStatement]:
        rows = _Rows(self._text)
        for index in range(len(self)):
            yield self._statement(index, rows)

    @overload
    def __getitem__(self, index: int) -> ScriptStatement: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ScriptStatement, ...]: ...
    def __getitem__(self, index: int | slice) -> ScriptStatement | tuple[ScriptStatement, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        return self._statement(range(len(self))[index], _Rows(self._text))

    def span(self, index: int) -> tuple[int, int]:
        """Where the text of a statement begins and ends in the script."""
        span = Span(*self._spans[4 * index : 4 * index + 4])
        return span.first, span.stop

    def _statement(self, index: int, rows: "_Rows") -> ScriptStatement:
        span = Span(*self._spans[4 * index : 4 * index + 4])
        before = rows.position(span.after) if span.after != NOWHERE else None
        first = rows.position(span.first)
        same_row = before is not None and before.row == first.row
        start = Position(first.row, before.column if before is not None and same_row else 0)
        return ScriptStatement(self._text[span.first : span.stop], start, self._end(index, span, rows))

    def _end(self, index: int, span: Span, rows: "_Rows") -> Position:
        if index < len(self) - 1:
            return rows.position(span.terminated)
        end = rows.position(span.stop)
        return Position(end.row, end.column - 1) if len(self) == 1 else end


class _Rows:
    """Rows and columns of offsets that are asked for in rising order: every character is looked at once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._has_returns = "\r" in text
        self._offset = self._row = self._row_start = 0

    def position(self, offset: int) -> Position:
        if breaks := self._line_ends(self._offset, offset):
            self._row += breaks
            self._row_start = 1 + self._text.rfind("\n", self._offset, offset)
            if self._has_returns:
                self._row_start = max(self._row_start, 1 + self._text.rfind("\r", self._offset, offset))
        self._offset = offset
        return Position(self._row, offset - self._row_start)

    def _line_ends(self, start: int, end: int) -> int:
        # No offset of a statement lies between \r and \n, so counting by parts is exact.
        feeds = self._text.count("\n", start, end)
        if not self._has_returns:
            return feeds
        return feeds + self._text.count("\r", start, end) - self._text.count("\r\n", start, end)


def split(script: str, dialect: str) -> tuple[ScriptStatement, ...]:
    """All statements of the script; empty when it holds nothing but blanks and comments.

    Linear in the script's length, at most about a second per 10 MB of ordinary SQL: run it in a thread above 50 kB.
    `Script` gives the same without holding all texts.
    """
    return tuple(Script(script, dialect))


def statement_hash(text: str) -> str:
    """SHA-224 of the UTF-8 bytes, lower-case hex (`previous_statement_hash`)."""
    return hashlib.sha224(text.encode()).hexdigest()


def next_statement(
    statements: Sequence[ScriptStatement], previous: PreviousStatement | None, *, full_form: bool
) -> int:
    """Index of the statement that runs now; `statements` holds at least one. Contract editor 5.3.

    `previous` is None when no handle came or it has none of the members. A previous text that differs from the one
    at its place was edited, and its place runs again. Raises NoMoreStatements at the end, in the short form only.
    """
    if previous is None:
        return 0
    last = len(statements) - 1
    index = min(max(previous.statement_id, 0), last)
    edited = previous.statement_hash not in ("", statement_hash(statements[index].text))
    if edited:
        return index
    if previous.has_more_statements:
        return min(index + 1, last)
    if full_form:
        return 0
    raise NoMoreStatements


@dataclass(frozen=True, slots=True)
class Choice:
    """The statement `index` of `count`: characters [first, stop) of the script."""

    index: int
    count: int
    first: int
    stop: int
    start: Position
    end: Position
    hash: str
    """As `statement_hash` gives it."""
    has_result_set: bool
    is_over: bool
    """The statement before was the last one: no statement is left to run."""
    own_limit: int | None = None
    """The literal row limit that the statement itself ends with."""

    def statement(self, script: str) -> ScriptStatement:
        """The statement with its text."""
        return ScriptStatement(script[self.first : self.stop], self.start, self.end)


@dataclass(frozen=True, slots=True)
class Steering:
    """What decides about the choice: the statement before, and whether a full handle came."""

    previous: PreviousStatement | None = None
    full_form: bool = True


def choose(script: str, dialect: str, steering: Steering) -> Choice | None:
    """The statement that runs next; None: the script has no statements."""
    statements = Script(script, dialect)
    if not statements:
        return None
    index, is_over = len(statements) - 1, False
    try:
        index = next_statement(statements, steering.previous, full_form=steering.full_form)
    except NoMoreStatements:
        is_over = True
    chosen = statements[index]
    first, stop = statements.span(index)
    return Choice(
        index=index,
        count=len(statements),
        first=first,
        stop=stop,
        start=chosen.start,
        end=chosen.end,
        hash=statement_hash(chosen.text),
        has_result_set=expects_result_set(chosen.text, dialect),
        is_over=is_over,
        own_limit=own_limit(chosen.text, dialect),
    )
