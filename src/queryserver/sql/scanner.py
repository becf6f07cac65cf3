"""Finds the offsets of a script's statements, in linear time."""

import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, cast

PARAMETER_MARKS = "?:"

# (script, start[, limit]) -> the match at `start`, which may be empty.
MatchFunction = Callable[..., re.Match[str]]

_WORD_START = r"[^\x00-@\[-^`{-\x7f]"  # letters, `_` and all non-ASCII characters, as in PostgreSQL and SQLite
_WORD_REST = r"[^\x00-#%-/:-@\[-^`{-\x7f]"  # the same characters, digits and `$`
_TAG_REST = r"[^\x00-/:-@\[-^`{-\x7f]"
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"

_WORD = re.compile(_WORD_START + _WORD_REST + "*+")
_DOLLAR_TAG = re.compile(rf"\$(?:{_WORD_START}{_TAG_REST}*+)?\$")
# Start of a raw literal, without backslash escapes (Spark); `1r` is a name in Spark.
_RAW_STRING = r"(?<![0-9])(?=[rR]['\"])"
_RAW = re.compile(_RAW_STRING)
# Start of an Oracle literal that ends with the same sign or the closing bracket plus a quote: q'[it's]'.
_Q_QUOTE = r"(?<![0-9])(?=[nN]?[qQ]'[^ \t\r\n])"
_Q_OPENING = re.compile(_Q_QUOTE + "[nN]?[qQ]'(.)", re.DOTALL)
_Q_CLOSING = {"[": "]", "{": "}", "(": ")", "<": ">"}
_LINE_END = re.compile(r"[\r\n]")
_COMMENT_EDGE = re.compile(r"/\*|\*/")


@dataclass(frozen=True, slots=True)
class LexicalRules:
    """The lexical rules of a dialect. The defaults are the rules marked "all" in Contract editor 5.1."""

    backslash: bool = False
    e_strings: bool = False
    raw_strings: bool = False
    q_quotes: bool = False
    back_ticks: bool = False
    brackets: bool = False
    dollar_quotes: bool = False
    dashes_need_blank: bool = False
    hash_comments: bool = False
    slash_comments: bool = False
    nested_comments: bool = False
    executable_comments: bool = False
    delimiter_lines: bool = False
    triggers: bool = False
    atomic_bodies: bool = False
    parentheses: bool = False
    one_statement: bool = False


_HIVE = LexicalRules(backslash=True, back_ticks=True)
_SPARKSQL = LexicalRules(backslash=True, raw_strings=True, back_ticks=True, nested_comments=True)
_MYSQL = LexicalRules(
    backslash=True,
    back_ticks=True,
    dashes_need_blank=True,
    hash_comments=True,
    executable_comments=True,
    delimiter_lines=True,
)
_STANDARD = LexicalRules()
_RULES = {
    "hive": _HIVE,
    "impala": _HIVE,
    "sparksql": _SPARKSQL,
    "mysql": _MYSQL,
    "phoenix": LexicalRules(backslash=True, slash_comments=True),
    "sqlite": LexicalRules(back_ticks=True, brackets=True, triggers=True),
    "postgresql": LexicalRules(
        e_strings=True, dollar_quotes=True, nested_comments=True, atomic_bodies=True, parentheses=True
    ),
    "duckdb": LexicalRules(e_strings=True, back_ticks=True, dollar_quotes=True, nested_comments=True),
    "hplsql": LexicalRules(one_statement=True),
    "trino": _STANDARD,
    "presto": _STANDARD,
    # Dialects of other drivers, which the contract leaves open (docs/clients.md).
    "athena": _STANDARD,
    "oracle": LexicalRules(q_quotes=True),
    "druid": _STANDARD,
    "mariadb": _MYSQL,
    "databricks": _SPARKSQL,
    "clickhouse": LexicalRules(backslash=True, back_ticks=True, dollar_quotes=True, hash_comments=True),
    "bigquery": LexicalRules(backslash=True, back_ticks=True, hash_comments=True),
    "snowflake": LexicalRules(backslash=True, dollar_quotes=True, slash_comments=True),
}
_UNKNOWN_QUOTES = re.compile(r"\\['\"`]")
_UNCLEAR_QUOTES = {"bigquery": re.compile("'''|\"\"\""), "snowflake": re.compile(r'\\"')}
"""Quotes that the dialect's rules may misinterpret."""


@dataclass(frozen=True, slots=True)
class DialectPatterns:
    """The patterns of a dialect.

    `gap` matches blanks and comments, `text` matches statement text up to a character in `stops`, and
    `text_and_semicolons` also matches `;`. `block_head` also stops before the word BEGIN, `block_body` before CASE and
    END, but not at `;`. `marks` stops at parameter marks. `quoted` matches the inside of a literal with backslash
    escapes.
    """

    rules: LexicalRules
    stops: str
    gap: MatchFunction
    text: MatchFunction
    text_and_semicolons: MatchFunction
    block_head: MatchFunction
    block_body: MatchFunction
    marks: MatchFunction
    quoted: dict[str, MatchFunction]
    line_comment: re.Pattern[str]
    block_comment: re.Pattern[str]


@cache
def _dialect_patterns(rules: LexicalRules) -> DialectPatterns:
    stops = ";()" if rules.parentheses else ";"
    text = _text(rules, stops=stops)
    if rules.parentheses:  # parentheses without nested ones are matched as a whole
        text.append(rf"\((?:{'|'.join(text)}){{0,64}}+\)")
    return DialectPatterns(
        rules=rules,
        stops=stops,
        gap=_pieces([r"\s{1,4096}+", *_comments(rules)]),
        text=_pieces(text),
        text_and_semicolons=_pieces(_text(rules, stops="")),
        block_head=_pieces(_text(rules, stops=";", words="BEGIN")),
        block_body=_pieces(_text(rules, stops="", words="CASE|END")),
        marks=_pieces(_text(rules, stops=PARAMETER_MARKS)),
        line_comment=re.compile(_line_comment_start(rules)),
        block_comment=re.compile(_block_comment_start(rules)),
        quoted={quote: match_function(rf"(?:[^{quote}\\]{{1,4096}}+|\\.){{0,4096}}+") for quote in "'\""},
    )


def dialect_patterns(dialect: str) -> DialectPatterns:
    """Return the patterns for `dialect`. Unknown dialects follow the rules marked "all" in Contract editor 5.1."""
    return _dialect_patterns(_RULES.get(dialect.lower(), LexicalRules()))


def is_known_dialect(dialect: str) -> bool:
    return dialect.lower() in _RULES


def has_unclear_quotes(text: str, dialect: str) -> bool:
    """Return whether the rules may misjudge where a quote ends, for example after a backslash in an unknown dialect."""
    unclear = _UNCLEAR_QUOTES.get(dialect.lower()) if is_known_dialect(dialect) else _UNKNOWN_QUOTES
    return unclear is not None and unclear.search(text) is not None


def match_function(pattern: str) -> MatchFunction:
    """Compile the pattern and return its `match` method.

    The pattern must match the empty string, so that the method always returns a match.
    """
    return cast("MatchFunction", re.compile(pattern, re.DOTALL).match)


def _pieces(alternatives: list[str]) -> MatchFunction:
    # The quantifiers are possessive, so that matches keep no backtracking stack.
    return match_function(rf"(?:{'|'.join(alternatives)}){{0,512}}+")


def _text(rules: LexicalRules, *, stops: str, words: str = "") -> list[str]:
    """Return the alternatives for one token of statement text. `words` are keywords to stop at."""
    special = stops + "'\"-/"
    special += "`" * rules.back_ticks + "[" * rules.brackets + "$" * rules.dollar_quotes + "#" * rules.hash_comments
    tokens = _short_literals(rules) + _comments(rules)
    # Characters that start a token only in combination with the characters after them.
    tokens += [
        rf"-(?!{_line_comment_start(rules)[1:]})",
        rf"/(?!{_block_comment_start(rules)[1:]}{'|/' * rules.slash_comments})",
    ]
    if rules.slash_comments:
        tokens.append("(?<=:)//")  # `PUT file:///tmp/a.csv @stage` in Snowflake
    if rules.dollar_quotes:
        tokens.append(rf"(?!{_DOLLAR_TAG.pattern})\$")
    if not (words or rules.dollar_quotes or rules.raw_strings or rules.q_quotes):
        return [rf"[^{re.escape(special)}]{{1,4096}}+", *tokens]
    # `a$b$` is a name rather than a dollar quote, and `eq'` does not open an Oracle literal, so names match as a whole.
    plain = "".join(chr(code) for code in range(128) if chr(code) not in special + _LETTERS)
    prefixed = "(?![eE]')" * rules.e_strings + f"(?!{_RAW_STRING})" * rules.raw_strings
    prefixed += f"(?!{_Q_QUOTE})" * rules.q_quotes
    word = prefixed + _WORD_START + _WORD_REST + "*+"
    if words:
        # After AS and dots, keywords are names: SELECT 1 AS end, t.end.
        names = rf"(?:(?i:AS)\s{{1,256}}+|\.\s{{0,256}}+){word}"
        tokens = [*tokens, names, rf"(?!(?i:{words})(?!{_WORD_REST}))" + word]
        plain = plain.replace(".", "")
        return [rf"[{re.escape(plain)}]{{1,4096}}+", *tokens, r"\."]
    return [rf"[{re.escape(plain)}]{{1,4096}}+", *tokens, word]


def _short_literals(rules: LexicalRules) -> list[str]:
    if rules.backslash:
        literals = [rf"{quote}(?:[^{quote}\\]{{1,1024}}+|\\.){{0,64}}+{quote}" for quote in "'\""]
    else:
        literals = ["'[^']{0,4096}+'", '"[^"]{0,4096}+"']
    if rules.back_ticks:
        literals.append("`[^`]{0,4096}+`")
    if rules.brackets:
        literals.append(r"\[[^\]]{0,4096}+\]")
    if rules.e_strings:
        # A literal may continue on the next line (see _NEXT_PART), which this pattern leaves out.
        literals.append(r"[eE]'(?:[^'\\]{1,1024}+|\\.|''){0,64}+'(?!\s*+['-])")
    if rules.raw_strings:
        literals += [rf"{_RAW_STRING}[rR]{quote}[^{quote}]{{0,4096}}+{quote}" for quote in "'\""]
    return literals


def _line_comment_start(rules: LexicalRules) -> str:
    # MySQL: "--" is a comment only before a blank or a control character; `5--3` is 8.
    return r"--(?=[\x00-\x20\x7f]|\Z)" if rules.dashes_need_blank else "--"


def _block_comment_start(rules: LexicalRules) -> str:
    return r"/\*(?!!)" if rules.executable_comments else r"/\*"


def _comments(rules: LexicalRules) -> list[str]:
    """Return patterns for short comments.

    The line ending must match, because the searched part may end within a line.
    """
    inside = r"[^*/]{1,1024}+|\*(?!/)|/(?!\*)" if rules.nested_comments else r"[^*]{1,1024}+|\*(?!/)"
    comments = [
        _line_comment_start(rules) + r"[^\r\n]{0,4096}+(?=[\r\n])",
        rf"{_block_comment_start(rules)}(?:{inside}){{0,256}}+\*/",
    ]
    if rules.hash_comments:
        comments.append(r"#[^\r\n]{0,4096}+(?=[\r\n])")
    if rules.slash_comments:
        comments.append(r"(?<!:)//[^\r\n]{0,4096}+(?=[\r\n])")
    return comments


NOWHERE = -1

_SLASH_COMMENT = re.compile("(?<!:)//")
# The mysql client accepts up to 15 characters. A limit also keeps the search for a terminator linear.
_DELIMITER_LINE = re.compile(r"(?i:DELIMITER)[ \t]+(\S{1,15})(?!\S)[^\r\n]*")
_TRIGGER = re.compile(r"(?:EXPLAIN (?:QUERY PLAN )?)?CREATE (?:TEMP |TEMPORARY )?TRIGGER(?: |$)")
_ROUTINE = re.compile(r"CREATE (?:OR REPLACE )?(?:FUNCTION|PROCEDURE)(?: |$)")
_MAX_HEAD_WORDS = 6
_WORD_CHARACTERS = 16
# PostgreSQL: two literals separated by a line ending are one literal, with the same escapes.
_NEXT_PART = re.compile(r"(?:[ \t\f\v]++|--[^\r\n]*+){0,1024}+[\r\n](?:\s++|--[^\r\n]*+[\r\n]){0,1024}+'")
_RUN = 65536
_BLANKS = match_function(rf"\s{{0,{_RUN}}}+")
_BLANKS_AND_SEMICOLONS = match_function(rf"[\s;]{{0,{_RUN}}}+")


class Span(NamedTuple):
    """Offsets of a statement.

    `after` and `terminated` are the ends of the terminators before and after it, or NOWHERE.
    """

    after: int
    first: int
    stop: int
    terminated: int


def scan(script: str, patterns: DialectPatterns) -> "array[int]":
    """Return the spans of the statements as a flat array of four offsets each.

    The array is flat, because 10 MB may contain five million statements. Scripts are shorter than 2 GiB.
    """
    if not patterns.rules.one_statement:
        return _Scanner(script, patterns).run()
    if content_start(script, patterns) == len(script):
        return array("i")
    return array("i", (NOWHERE, len(script) - len(script.lstrip()), len(script.rstrip()), NOWHERE))


def content_start(script: str, patterns: DialectPatterns, start: int = 0) -> int:
    """Return the offset of the first character at or after `start` that is neither whitespace nor in a comment."""
    return _Scanner(script, patterns).skip_gap(start)


def parameter_marks(statement: str, patterns: DialectPatterns) -> Iterator[int]:
    """Yield the offsets of `?` and `:` outside quotes and comments."""
    return _Scanner(statement, patterns).marks()


def nested_comment_end(text: str, start: int) -> int:
    """Return the end of the possibly nested comment at `start`, or the end of the text if it is unclosed."""
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(text)


class _Scanner:
    """A single pass over a script."""

    def __init__(self, script: str, patterns: DialectPatterns) -> None:
        self._script = script
        self._size = len(script)
        self._dialect_patterns = patterns
        self._rules = patterns.rules
        self._terminator = ";"

    def run(self) -> "array[int]":
        script, size, spans = self._script, self._size, array("i")
        delimiter_lines = self._rules.delimiter_lines
        has_blocks = self._rules.triggers or self._rules.atomic_bodies
        position, after = 0, NOWHERE
        while True:
            first, after = self._skip_empty(position, after)
            content = self.skip_gap(first)
            if content >= size:
                return spans
            if script.startswith(self._terminator, content):
                position = after = content + len(self._terminator)
                continue
            if delimiter_lines and (line := _DELIMITER_LINE.match(script, content)):
                self._terminator = line[1]
                position = line.end()
                continue
            end = self._block_end(content) if has_blocks else self._plain_end(content)
            position = end + len(self._terminator) if end < size else NOWHERE
            spans.extend((after, first, first + len(script[first:end].rstrip()), position))
            if position == NOWHERE:
                return spans
            after = position

    def marks(self) -> Iterator[int]:
        position = 0
        while (
            position := self._advance(position, self._dialect_patterns.marks, self._size, PARAMETER_MARKS)
        ) < self._size:
            if self._script[position] in PARAMETER_MARKS:
                yield position
            position += 1

    def _skip_empty(self, position: int, after: int) -> tuple[int, int]:
        """Skip whitespace and terminators. Also return the end of the last terminator skipped."""
        passes_terminators = self._terminator == ";"
        match = _BLANKS_AND_SEMICOLONS if passes_terminators else _BLANKS
        while (end := match(self._script, position).end()) > position:
            terminator = self._script.rfind(";", position, end) if passes_terminators else NOWHERE
            after = terminator + 1 if terminator != NOWHERE else after
            position, skipped = end, end - position
            if skipped < _RUN:
                break
        return position, after

    def skip_gap(self, position: int) -> int:
        """Skip whitespace and comments."""
        while True:
            end = self._dialect_patterns.gap(self._script, position).end()
            comment = self._comment_end(end) if end < self._size and self._script[end] in "-/#" else NOWHERE
            if comment == NOWHERE and end == position:
                return end
            position = max(end, comment)

    def _plain_end(self, position: int) -> int:
        """Return the offset of the statement's terminator, or the end of the script."""
        if self._terminator != ";":
            return self._delimiter(position)
        stops, depth = self._dialect_patterns.stops, 0
        while (position := self._advance(position, self._dialect_patterns.text, self._size, stops)) < self._size:
            mark = self._script[position]
            if mark == ";" and depth == 0:
                break
            if mark != ";":
                depth = depth + 1 if mark == "(" else max(depth - 1, 0)  # as psql counts
            position += 1
        return position

    def _delimiter(self, position: int) -> int:
        size, offset = self._size, NOWHERE
        while position < size:
            if offset < position:
                offset = self._script.find(self._terminator, position)
                offset = size if offset == NOWHERE else offset
            position = self._advance(position, self._dialect_patterns.text_and_semicolons, offset, "")
            if position == offset:
                return offset
            if position < offset:
                position += 1
        return size

    def _advance(self, position: int, match: MatchFunction, limit: int, stop: str) -> int:
        """Advance to a character in `stop`, a stop word, or `limit`. A long token may extend beyond `limit`."""
        script = self._script
        while position < limit:
            end = match(script, position, limit).end()
            if end >= limit or script[end] in stop:
                return end
            token = self._token_end(end)
            if token == NOWHERE and end == position:
                return end
            position = max(end, token)
        return position

    def _block_end(self, position: int) -> int:
        script = self._script
        if script[position] in "cCeE":
            words, at = list[str](), position
            while len(words) < _MAX_HEAD_WORDS and (word := _WORD.match(script, at)):
                words.append(script[at : min(word.end(), at + _WORD_CHARACTERS)].upper())
                at = self.skip_gap(word.end())
            head = " ".join(words)
            if self._rules.triggers and _TRIGGER.match(head):
                return self._trigger_end(position)
            if self._rules.atomic_bodies and _ROUTINE.match(head):
                return self._routine_end(position)
        return self._plain_end(position)

    def _word_at(self, position: int) -> str:
        word = _WORD.match(self._script, position)
        return self._script[position : min(word.end(), position + _WORD_CHARACTERS)].upper() if word else ""

    def _trigger_end(self, position: int) -> int:
        """Return the end of a trigger, whose body ends at an END between two `;`, as in sqlite3_complete()."""
        position = self._advance(position, self._dialect_patterns.block_head, self._size, ";")
        if position >= self._size or self._script[position] == ";":
            return position
        while (position := self._plain_end(position)) < self._size:
            position += 1
            while (end := self.skip_gap(self._skip_empty(position, NOWHERE)[0])) > position:
                position = end
            if self._word_at(position) == "END":
                position = self.skip_gap(position + len("END"))
                if position >= self._size or self._script[position] == ";":
                    return position
        return position

    def _routine_end(self, position: int) -> int:
        """Return the offset of the first `;` outside BEGIN ATOMIC … END, which may contain CASE … END."""
        while True:
            position = self._advance(position, self._dialect_patterns.block_head, self._size, ";")
            if position >= self._size or self._script[position] == ";":
                return position
            position = self.skip_gap(position + len("BEGIN"))
            if self._word_at(position) != "ATOMIC":
                continue
            position, depth = position + len("ATOMIC"), 1
            while (
                depth
                and (position := self._advance(position, self._dialect_patterns.block_body, self._size, ""))
                < self._size
            ):
                word = self._word_at(position)
                depth += 1 if word == "CASE" else -1
                position += len(word)

    def _comment_end(self, position: int) -> int:
        """Return the end of the comment at `position`, or NOWHERE if there is none."""
        mark = self._script[position]
        if mark == "#" and self._rules.hash_comments:
            return self._line_end(position)
        if mark == "-" and self._dialect_patterns.line_comment.match(self._script, position):
            return self._line_end(position)
        if mark == "/" and self._rules.slash_comments and _SLASH_COMMENT.match(self._script, position):
            return self._line_end(position)
        if mark == "/" and self._dialect_patterns.block_comment.match(self._script, position):
            nested = self._rules.nested_comments
            return nested_comment_end(self._script, position) if nested else self._find("*/", position + 2)
        return NOWHERE

    def _line_end(self, position: int) -> int:
        match = _LINE_END.search(self._script, position)
        return match.start() if match else self._size

    def _token_end(self, position: int) -> int:
        """Return the end of the quote or comment at `position`, or NOWHERE if there is none."""
        mark = self._script[position]
        if mark in "-/#":
            return self._comment_end(position)
        if mark in "'\"":
            return self._escaped_end(mark, position + 1) if self._rules.backslash else self._find(mark, position + 1)
        if mark == "`" and self._rules.back_ticks:
            return self._find("`", position + 1)
        if mark == "[" and self._rules.brackets:
            return self._find("]", position + 1)
        if mark == "$" and self._rules.dollar_quotes and (tag := _DOLLAR_TAG.match(self._script, position)):
            return self._find(tag[0], tag.end())
        if mark in "eE" and self._rules.e_strings and self._script.startswith("'", position + 1):
            return self._escape_string_end(position + 2)
        if mark in "rR" and self._rules.raw_strings and _RAW.match(self._script, position):
            return self._find(self._script[position + 1], position + 2)
        if mark in "nNqQ" and self._rules.q_quotes and (opening := _Q_OPENING.match(self._script, position)):
            return self._find(_Q_CLOSING.get(opening[1], opening[1]) + "'", opening.end())
        return NOWHERE

    def _find(self, closing: str, start: int) -> int:
        """Return the offset after the next `closing`. Unclosed quotes extend to the end of the script."""
        offset = self._script.find(closing, start)
        return self._size if offset == NOWHERE else offset + len(closing)

    def _escaped_end(self, quote: str, position: int) -> int:
        script, match = self._script, self._dialect_patterns.quoted[quote]
        while (end := match(script, position).end()) > position:
            position = end
        return position + 1 if script.startswith(quote, position) else self._size

    def _escape_string_end(self, position: int) -> int:
        position = self._escaped_end("'", position)
        while position < self._size:
            if self._script.startswith("'", position):
                position += 1
            elif part := _NEXT_PART.match(self._script, position):
                position = part.end()
            else:
                break
            position = self._escaped_end("'", position)
        return position


_FIRST_WORD = re.compile(r"\w*")
_KEYWORD = re.compile(r"[A-Za-z_]{1,64}")
_EXECUTABLE_COMMENT = re.compile(r"/\*!\d{0,6}")
_OPENING = re.compile(r"[(\s]++")

HEAD_CHARACTERS = 65_536
"""Longer comments and parentheses before the first word are not skipped, because callers run on the event loop."""
UNKNOWN = "?"

_QUERIES = frozenset({"SELECT", "WITH", "VALUES", "SHOW", "DESCRIBE", "DESC", "EXPLAIN"})
_MORE_QUERIES = {
    "duckdb": {"TABLE", "FROM", "PRAGMA", "SUMMARIZE", "PIVOT", "UNPIVOT", "CALL"},
    "hive": {"FROM"},
    "mysql": {"TABLE", "CHECK", "CHECKSUM", "ANALYZE", "OPTIMIZE", "REPAIR", "HELP"},
    "postgresql": {"TABLE", "FETCH"},
    "sparksql": {"TABLE", "FROM", "LIST"},
    "sqlite": {"PRAGMA"},
    "trino": {"TABLE"},
}


def first_keyword(text: str, dialect: str) -> str:
    """Return the first word of a statement, in upper case, after comments and opening parentheses.

    Returns "" if there is no such word, and UNKNOWN if the text is longer than `HEAD_CHARACTERS` and its first word
    does not end within that length.
    """
    head = text[:HEAD_CHARACTERS]
    patterns = dialect_patterns(dialect)
    word = _KEYWORD.match(head, _word_start(head, patterns))
    if len(head) < len(text) and (word is None or word.end() == len(head)):
        return UNKNOWN
    return word[0].upper() if word else ""


def first_word(sql: str, *, line_comments: tuple[str, ...] = ("--",)) -> str:
    """Return the first word in upper case, by rules common to all engines. Used to classify statements that have run.

    Skips any amount of whitespace, brackets and comments. `/* … */` may nest.
    """
    position = 0
    while position < len(sql):
        if sql[position].isspace() or sql[position] == "(":
            position += 1
        elif sql.startswith(line_comments, position):
            position = (sql.find("\n", position) + 1) or len(sql)
        elif sql.startswith("/*", position):
            position = nested_comment_end(sql, position)
        else:
            break
    word = _FIRST_WORD.match(sql, position)
    return word[0].upper() if word else ""


def _word_start(text: str, patterns: DialectPatterns) -> int:
    position = content_start(text, patterns)
    while position < len(text):
        if opening := _OPENING.match(text, position):
            position = opening.end()
        elif patterns.rules.executable_comments and (comment := _EXECUTABLE_COMMENT.match(text, position)):
            position = comment.end()
        else:
            break
        position = content_start(text, patterns, position)
    return position


def expects_result_set(text: str, dialect: str) -> bool:
    """Return the `has_result_set` value of handles until the engine has responded (Contract editor 2.1)."""
    keyword = first_keyword(text, dialect)
    return keyword in _QUERIES or keyword in _MORE_QUERIES.get(dialect.lower(), ())
