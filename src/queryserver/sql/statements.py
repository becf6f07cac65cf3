"""Splits scripts into statements and chooses the next statement to run (Contract editor 5)."""

import asyncio
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from queryserver.errors.base import InvalidParameter
from queryserver.errors.statements import NoMoreStatements
from queryserver.platform.computation import ComputationExecutor, Task
from queryserver.sql.classification import MAX_TOKENIZED_CHARACTERS
from queryserver.sql.formatter import tokens
from queryserver.sql.markers import NO_MARKERS, BoundStatement, ScriptMarkers, StatementParameters, count_markers
from queryserver.sql.scanner import (
    NOWHERE,
    Span,
    content_start,
    dialect_patterns,
    expects_result_set,
    first_keyword,
    scan,
)

INLINE_CHARACTERS = 20_000
"""Shorter scripts take at most 10 ms, usually less than sending them to a worker process."""
_STATEMENT_COST_CHARACTERS = 10
"""The fixed cost of a statement, expressed in characters."""


_QUERY_KEYWORDS = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "FROM"})
_EDGE_CHARACTERS = 400
"""Texts that have no limit keyword this close to their end or start need not be tokenized."""
_TAIL_TOKENS = 12

_NUMBER = r"([0-9]+(?:_[0-9]+)*)"
_OFFSET = rf"OFFSET {_NUMBER}(?: ROWS?)?"
_FINAL_LIMITS = tuple(
    re.compile(rf"(?:^| ){form}$")
    for form in (
        rf"LIMIT (?P<limit>{_NUMBER})(?: {_OFFSET})?",
        rf"LIMIT {_NUMBER} , (?P<limit>{_NUMBER})",
        rf"FETCH (?:FIRST|NEXT) (?P<limit>{_NUMBER}) ROWS? ONLY(?: {_OFFSET})?",
    )
)
_INITIAL_LIMIT = re.compile(rf"^SELECT (?:(?:ALL|DISTINCT) )?TOP (?:\( )?(?P<limit>{_NUMBER})(?: \))? (?!PERCENT\b)")
_MAX_DIGITS = 18


def literal_limit(text: str, dialect: str) -> int | None:
    """Return the row limit: a final `LIMIT n`, `LIMIT m, n` or `FETCH FIRST n ROWS ONLY`, or an initial `SELECT TOP n`.

    Recognizes only literal numbers in the outermost query. A limit in a subquery is never final, because a closing
    bracket follows it. Returns None if there is no limit or the limit is uncertain.
    """
    end = text[-_EDGE_CHARACTERS:].lower()
    may_have_limit = "limit" in end or "fetch" in end or "top" in text[:_EDGE_CHARACTERS].lower()
    if (
        len(text) > MAX_TOKENIZED_CHARACTERS
        or not may_have_limit
        or first_keyword(text, dialect) not in _QUERY_KEYWORDS
    ):
        return None
    is_comment = re.compile(r"--|/\*|#.").match
    significant = [token for token in tokens(text, dialect) if token and not is_comment(token)]
    while significant and significant[-1] == ";":
        significant.pop()
    tail = " ".join(significant[-_TAIL_TOKENS:]).upper()
    for form in _FINAL_LIMITS:
        if match := form.search(tail):
            return _number(match["limit"])
    match = _INITIAL_LIMIT.search(" ".join(significant[:_TAIL_TOKENS]).upper() + " ")
    return _number(match["limit"]) if match else None


def _number(digits: str) -> int:
    digits = digits.replace("_", "").lstrip("0") or "0"
    return int(digits) if len(digits) <= _MAX_DIGITS else 10**_MAX_DIGITS


_EXPLAINABLE_KEYWORDS = frozenset(
    {"SELECT", "WITH", "VALUES", "TABLE", "FROM", "INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE", "UPSERT", "CREATE"}
)
_PARENTHESIZED_KEYWORDS = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "FROM"})
# After EXPLAIN these are options rather than statements, and some of them execute the statement that follows.
_EXPLAIN_OPTIONS = frozenset(
    "EXPLAIN ANALYZE ANALYSE VERBOSE FORMAT EXTENDED FORMATTED CBO COST JOINCOST AST LOCKS VECTORIZATION DEPENDENCY "  # noqa: SIM905
    "AUTHORIZATION DETAIL DDL CODEGEN REOPTIMIZATION LOGICAL PARTITIONS QUERY PLAN PIPELINE SYNTAX ESTIMATE FOR "
    "OPTIONS TYPE".split()
)
_EXECUTING_OPTION = re.compile(r"(?i)analy[sz]e|reoptimi[sz]ation")


def explainable(statement: str, dialect: str) -> str:
    """Return the statement in the form that may follow EXPLAIN: without leading comments, which could hide options.

    A statement with an unknown first word passes if nothing in the text could execute it, because the engine describes
    the error best. Raises InvalidParameter.
    """
    start = content_start(statement, dialect_patterns(dialect))
    text, keyword = statement[start:], first_keyword(statement, dialect)
    if keyword == "EXPLAIN":
        raise InvalidParameter("statement: must not begin with EXPLAIN, which is added automatically.")
    # Either a plain first word, or parentheses around a query. Anything before it may be an executable comment.
    is_plain = text[: len(keyword)].upper() == keyword != ""
    is_wrapped = text.startswith("(") and keyword in _PARENTHESIZED_KEYWORDS
    is_known = keyword in _EXPLAINABLE_KEYWORDS or (
        keyword not in _EXPLAIN_OPTIONS and not _EXECUTING_OPTION.search(text)
    )
    if not (is_wrapped or (is_plain and is_known)):
        raise InvalidParameter("statement: only queries and data modification statements can be explained.")
    return text


@dataclass(frozen=True, slots=True)
class ScriptPosition:
    """A position in the script as sent, 0-based. Columns count Unicode code points."""

    row: int
    column: int


@dataclass(frozen=True, slots=True)
class ScriptStatement:
    """A statement: its text as sent to the engine, and its position in the script (Contract editor 5.2)."""

    text: str
    start: ScriptPosition
    end: ScriptPosition


@dataclass(frozen=True, slots=True)
class PreviousStatement:
    """The handle members about the previous statement. Absent members have their defaults."""

    statement_id: int = 0
    has_more_statements: bool = False
    statement_hash: str = ""


class Script:
    """The statements of a script, stored as four offsets each. Iterating and indexing take linear time."""

    def __init__(self, text: str, dialect: str) -> None:
        self._text = text
        self._spans = scan(text, dialect_patterns(dialect))

    def __len__(self) -> int:
        return len(self._spans) // 4

    def __iter__(self) -> Iterator[ScriptStatement]:
        rows = _Rows(self._text)
        for index in range(len(self)):
            yield self._statement(index, rows)

    def __getitem__(self, index: int) -> ScriptStatement:
        return self._statement(range(len(self))[index], _Rows(self._text))

    def span(self, index: int) -> tuple[int, int]:
        span = Span(*self._spans[4 * index : 4 * index + 4])
        return span.first, span.stop

    def _statement(self, index: int, rows: "_Rows") -> ScriptStatement:
        span = Span(*self._spans[4 * index : 4 * index + 4])
        before = rows.position(span.after) if span.after != NOWHERE else None
        first = rows.position(span.first)
        same_row = before is not None and before.row == first.row
        start = ScriptPosition(first.row, before.column if before is not None and same_row else 0)
        if index < len(self) - 1:
            end = rows.position(span.terminated)
        else:
            end = rows.position(span.stop)
            if len(self) == 1:
                end = ScriptPosition(end.row, end.column - 1)
        return ScriptStatement(self._text[span.first : span.stop], start, end)


class _Rows:
    """Converts ascending offsets to rows and columns. Reads every character once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._has_returns = "\r" in text
        self._offset = self._row = self._row_start = 0

    def position(self, offset: int) -> ScriptPosition:
        text, start = self._text, self._offset
        breaks = text.count("\n", start, offset)
        if self._has_returns:
            # Statement offsets are never between \r and \n, so counting in parts is exact.
            breaks += text.count("\r", start, offset) - text.count("\r\n", start, offset)
        if breaks:
            self._row += breaks
            self._row_start = 1 + text.rfind("\n", start, offset)
            if self._has_returns:
                self._row_start = max(self._row_start, 1 + text.rfind("\r", start, offset))
        self._offset = offset
        return ScriptPosition(self._row, offset - self._row_start)


def statement_hash(text: str) -> str:
    """Return the SHA-224 hash of the UTF-8 bytes in lower-case hex (`previous_statement_hash`)."""
    return hashlib.sha224(text.encode()).hexdigest()


def next_statement(statements: Script, previous: PreviousStatement | None, *, full_form: bool) -> int:
    """Return the index of the next statement to run (Contract editor 5.3). `statements` must not be empty.

    `previous` is None if there is no handle or the handle has none of the members. If the previous statement was
    edited, it runs again. Raises NoMoreStatements at the end, but only in the short form.
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
class LastStatement:
    """The fields about a script's last statement, reported by the operation that runs the whole script."""

    end: ScriptPosition
    hash: str
    has_result_set: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen statement: number `index` of `count`, at the characters [first, stop) of the script."""

    index: int
    count: int
    first: int
    stop: int
    start: ScriptPosition
    end: ScriptPosition
    hash: str
    """The result of `statement_hash` for the statement."""
    has_result_set: bool
    is_over: bool
    """Whether the previous statement was the last one, so that none is left to run."""
    literal_limit: int | None = None
    """The literal row limit written in the statement."""
    markers: ScriptMarkers = NO_MARKERS
    """Markers of the whole script. Set only for a call with parameters."""
    last: LastStatement | None = None
    """Set only if the call runs all statements."""


def choose(
    script: str,
    dialect: str,
    previous: PreviousStatement | None,
    *,
    full_form: bool,
    named: bool | None = None,
    to_end: bool = False,
) -> Choice | None:
    """Return the next statement to run by the rules of `next_statement`, or None if the script has no statements.

    `named` selects named or positional parameter markers, and is None if there are no parameters. If `to_end` is set,
    all later statements run as well, so the choice includes the last statement.
    """
    statements = Script(script, dialect)
    if not statements:
        return None
    index, is_over = len(statements) - 1, False
    try:
        index = next_statement(statements, previous, full_form=full_form)
    except NoMoreStatements:
        is_over = True
    statement = statements[index]
    first, stop = statements.span(index)
    return Choice(
        index=index,
        count=len(statements),
        first=first,
        stop=stop,
        start=statement.start,
        end=statement.end,
        hash=statement_hash(statement.text),
        is_over=is_over,
        literal_limit=literal_limit(statement.text, dialect),
        has_result_set=expects_result_set(statement.text, dialect),
        markers=NO_MARKERS if named is None else _count_markers(statements, dialect, index, named=named),
        last=_last(statements, dialect) if to_end else None,
    )


def _last(statements: Script, dialect: str) -> LastStatement:
    last = statements[-1]
    return LastStatement(last.end, statement_hash(last.text), expects_result_set(last.text, dialect))


def _count_markers(statements: Script, dialect: str, index: int, *, named: bool) -> ScriptMarkers:
    return count_markers([statement.text for statement in statements], dialect, index, named=named)


class StatementChooser:
    """Chooses statements in scripts, using a worker process for large scripts. Raises TooComplex, TooManyRequests."""

    def __init__(self, computations: ComputationExecutor) -> None:
        self._computations = computations

    async def next(
        self,
        user_id: int,
        script: str,
        dialect: str,
        previous: PreviousStatement | None = None,
        *,
        full_form: bool,
        named: bool | None = None,
        to_end: bool = False,
    ) -> Choice | None:
        if is_short(script):
            return choose(script, dialect, previous, full_form=full_form, named=named, to_end=to_end)
        options = {
            "dialect": dialect,
            "previous": previous and asdict(previous),
            "full_form": full_form,
            "named": named,
            "to_end": to_end,
        }
        content = script.encode(errors="surrogatepass")
        choice = await self._computations.run(user_id, Task.CHOOSE_STATEMENT, options, content)
        if choice is None:
            return None
        start, end = ScriptPosition(**choice["start"]), ScriptPosition(**choice["end"])
        last = None
        if (members := choice["last"]) is not None:
            last = LastStatement(ScriptPosition(**members["end"]), members["hash"], members["has_result_set"])
        return replace(Choice(**choice), start=start, end=end, markers=_markers_of(choice["markers"]), last=last)

    async def first_to_explain(
        self, user_id: int, script: str, dialect: str, *, named: bool | None = None
    ) -> tuple[str, str, ScriptMarkers] | None:
        """Return the first statement, its text for EXPLAIN, and the markers of all statements.

        Returns None if the script has no statements. Raises InvalidParameter.
        """
        if is_short(script):
            return _first(script, dialect, named)
        content = script.encode(errors="surrogatepass")
        options = {"dialect": dialect, "named": named}
        result = await self._computations.run(user_id, Task.FIRST_TO_EXPLAIN, options, content)
        if result is None:
            return None
        first, stop, start, markers = result
        return script[first:stop], script[start:stop], _markers_of(markers)


def _markers_of(stored: Mapping[str, Any]) -> ScriptMarkers:
    members: dict[str, Any] = {**stored, "names": tuple(stored["names"]), "occurrences": tuple(stored["occurrences"])}
    return ScriptMarkers(**members)


def choose_statement(options: Mapping[str, Any], content: bytes) -> object:
    """Run `Task.CHOOSE_STATEMENT`: return a Choice as JSON, or None."""
    previous = options["previous"]
    choice = choose(
        content.decode(errors="surrogatepass"),
        options["dialect"],
        previous and PreviousStatement(**previous),
        full_form=options["full_form"],
        named=options.get("named"),
        to_end=options.get("to_end", False),
    )
    return None if choice is None else asdict(choice)


def first_to_explain(options: Mapping[str, Any], content: bytes) -> object:
    """Run `Task.FIRST_TO_EXPLAIN`: return the first statement's bounds, the start of its text for EXPLAIN, and the
    markers.
    """
    script = content.decode(errors="surrogatepass")
    result = _first(script, options["dialect"], options.get("named"))
    if result is None:
        return None
    first, stop = Script(script, options["dialect"]).span(0)
    return first, stop, stop - len(result[1]), asdict(result[2])


def _first(script: str, dialect: str, named: bool | None) -> tuple[str, str, ScriptMarkers] | None:
    statements = Script(script, dialect)
    if not statements:
        return None
    text = statements[0].text
    return (
        text,
        explainable(text, dialect),
        NO_MARKERS if named is None else _count_markers(statements, dialect, 0, named=named),
    )


async def bind(statement: str, dialect: str, parameters: StatementParameters) -> BoundStatement:
    """Bind the values to the statement.

    Long statements are bound in a thread, because finding their markers takes seconds. Rows of values are also bound in
    a thread, because 10,000 rows take 0.3 s.
    """
    if is_short(statement) and not parameters.values.rows:
        return BoundStatement(statement, dialect, parameters)
    return await asyncio.to_thread(BoundStatement, statement, dialect, parameters)


def is_short(script: str) -> bool:
    if len(script) > INLINE_CHARACTERS:
        return False
    return len(script) + _STATEMENT_COST_CHARACTERS * script.count(";") <= INLINE_CHARACTERS
