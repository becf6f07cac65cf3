"""A script cut into its statements, and which of them runs next (Contract editor 5)."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from queryserver.errors.base import InvalidParameter
from queryserver.errors.statements import NoMoreStatements
from queryserver.sql.splitter_scan import (
    NOWHERE,
    UNKNOWN,
    Span,
    content_start,
    expects_result_set,
    first_keyword,
    lexis_of,
    scan,
)
from queryserver.sql.tokens import tokens

_READING = frozenset(
    {"SELECT", "VALUES", "TABLE", "FROM", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "PRAGMA", "SUMMARIZE", "WITH", ""}
)
_SEARCHED = frozenset({"WITH", "EXPLAIN"})
_LONG = 1_000_000  # looking through longer texts would hold the event loop up: one of this length takes some 10 ms
_CHANGING_WORD = re.compile(rb"\b(?:insert|update|delete|merge|replace)\b")


def changes_data(text: str, dialect: str) -> bool:
    """Whether the statement may change data: then it is read to its end even when its result is cut.

    In doubt yes: a WITH or EXPLAIN that mentions a changing word anywhere counts as changing, and so does a long one.
    """
    keyword = first_keyword(text, dialect)
    if keyword not in _READING:
        return True
    return keyword in _SEARCHED and (len(text) > _LONG or _mentions(text, _CHANGING_WORD))


def refusal_where_read_only(text: str, dialect: str) -> str | None:
    """Why a connector that is read-only does not run the statement; None: it may run there."""
    if not changes_data(text, dialect):
        return None
    keyword = first_keyword(text, dialect)
    if keyword == UNKNOWN or (keyword in _SEARCHED and len(text) > _LONG):
        return "This connector is read-only, and the statement is too long to be sure that it changes nothing."
    return "This connector is read-only."


_KEEPING = _READING | {
    "INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE", "UPSERT", "SET", "RESET", "USE", "BEGIN", "START", "PIVOT",
    "UNPIVOT", "FETCH", "HELP", "LIST", "CHECK", "CHECKSUM", "COPY", "DECLARE", "CLOSE", "SAVEPOINT", "RELEASE",
}  # fmt: skip
_MAKING_WORDS = {
    **dict.fromkeys(("SELECT", "WITH", "FROM", "VALUES", "TABLE"), re.compile(rb"\binto\b")),
    "EXPLAIN": re.compile(rb"\b(?:analy[sz]e|reoptimization)\b"),
    "UPDATE": re.compile(rb"\bstatistics\b"),
}


def changes_objects(text: str, dialect: str) -> bool:
    """Whether the statement may change databases, tables, functions or their statistics, so that metadata are stale.

    In doubt yes: it only costs another look. The end of a transaction counts, for what was done in it shows then.
    """
    keyword = first_keyword(text, dialect)
    if keyword not in _KEEPING:
        return True
    making = _MAKING_WORDS.get(keyword)
    return making is not None and (len(text) > _LONG or _mentions(text, making))


def _mentions(text: str, words: re.Pattern[bytes]) -> bool:
    """Whether one of the words, in any case, stands in the text. Bytes are searched several times as fast as `str`."""
    return words.search(text.encode(errors="surrogatepass").lower()) is not None


_QUERIES = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "FROM"})
_EDGE_CHARACTERS = 400
"""Texts without one of the words so near to their end, or to their start, need not be cut into tokens."""
_LONGEST_TEXT = 100_000
"""Longer texts have no limit that is seen: their tokens would take more than 50 ms."""
_TAIL_TOKENS = 12

_NUMBER = r"([0-9]+(?:_[0-9]+)*)"
_OFFSET = rf"OFFSET {_NUMBER}(?: ROWS?)?"
_TAILS = tuple(
    re.compile(rf"(?:^| ){form}$")
    for form in (
        rf"LIMIT (?P<limit>{_NUMBER})(?: {_OFFSET})?",
        rf"LIMIT {_NUMBER} , (?P<limit>{_NUMBER})",
        rf"FETCH (?:FIRST|NEXT) (?P<limit>{_NUMBER}) ROWS? ONLY(?: {_OFFSET})?",
    )
)
_TOP = re.compile(rf"^SELECT (?:(?:ALL|DISTINCT) )?TOP (?:\( )?(?P<limit>{_NUMBER})(?: \))? (?!PERCENT\b)")
_MANY_DIGITS = 18


def own_limit(text: str, dialect: str) -> int | None:
    """The number in `LIMIT n`, `LIMIT m, n`, `FETCH FIRST n ROWS ONLY` at the end, or in `SELECT TOP n` at the start.

    Only a literal number of the outermost query is seen: what stands in brackets ends before their end. None: there is
    no such limit, or none that can be read with certainty.
    """
    if len(text) > _LONGEST_TEXT or not _may_have_limit(text):
        return None
    if first_keyword(text, dialect) not in _QUERIES:
        return None
    found = [token for token in tokens(text, dialect) if token and not _is_comment(token)]
    while found and found[-1] == ";":
        found.pop()
    tail = " ".join(found[-_TAIL_TOKENS:]).upper()
    for form in _TAILS:
        if seen := form.search(tail):
            return _number(seen["limit"])
    seen = _TOP.search(" ".join(found[:_TAIL_TOKENS]).upper() + " ")
    return _number(seen["limit"]) if seen else None


def _may_have_limit(text: str) -> bool:
    end = text[-_EDGE_CHARACTERS:].lower()
    return "limit" in end or "fetch" in end or "top" in text[:_EDGE_CHARACTERS].lower()


def _is_comment(token: str) -> bool:
    return token.startswith(("--", "/*")) or (token.startswith("#") and len(token) > 1)


def _number(digits: str) -> int:
    digits = digits.replace("_", "").lstrip("0") or "0"
    return int(digits) if len(digits) <= _MANY_DIGITS else 10**_MANY_DIGITS


_PLANNED = frozenset(
    {"SELECT", "WITH", "VALUES", "TABLE", "FROM", "INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE", "UPSERT", "CREATE"}
)
_IN_PARENTHESES = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "FROM"})
# Behind EXPLAIN these are no statements but options, and some of them run what follows.
_OPTIONS = frozenset(
    "EXPLAIN ANALYZE ANALYSE VERBOSE FORMAT EXTENDED FORMATTED CBO COST JOINCOST AST LOCKS VECTORIZATION DEPENDENCY "  # noqa: SIM905
    "AUTHORIZATION DETAIL DDL CODEGEN REOPTIMIZATION LOGICAL PARTITIONS QUERY PLAN PIPELINE SYNTAX ESTIMATE FOR "
    "OPTIONS TYPE".split()
)
_RUNNING_WORD = re.compile(r"(?i)analy[sz]e|reoptimi[sz]ation")


def explainable(statement: str, dialect: str) -> str:
    """The statement as it may be put behind EXPLAIN: without comments before it, where options could hide.

    A first word that is no statement of any engine passes if nothing in the text could run it: the engine says best
    what is wrong with it. Raises InvalidParameter.
    """
    start = content_start(statement, lexis_of(dialect))
    text, keyword = statement[start:], first_keyword(statement, dialect)
    if keyword == "EXPLAIN":
        raise InvalidParameter("statement: must not begin with EXPLAIN, which is put before it.")
    # A word of its own first, or parentheses around a query: what stands between may be an executable comment.
    is_plain = text[: len(keyword)].upper() == keyword != ""
    is_wrapped = text.startswith("(") and keyword in _IN_PARENTHESES
    is_known = keyword in _PLANNED or (keyword not in _OPTIONS and not _RUNNING_WORD.search(text))
    if not (is_wrapped or (is_plain and is_known)):
        raise InvalidParameter("statement: queries and changes of data can be explained, nothing else.")
    return text


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
