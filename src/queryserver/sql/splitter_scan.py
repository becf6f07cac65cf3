"""Where the statements of a script begin and end, as offsets. Linear in the length of the script."""

import re
from array import array
from typing import NamedTuple

from queryserver.sql.splitter_rules import COMMENT_EDGE, DOLLAR_TAG, LINE_END, WORD, Lexis, Take, lexis_of, take

NOWHERE = -1

# The mysql client takes up to 15 characters; a limit also keeps the search for a terminator linear.
_DELIMITER_LINE = re.compile(r"(?i:DELIMITER)[ \t]+(\S{1,15})(?!\S)[^\r\n]*")
_TRIGGER = re.compile(r"(?:EXPLAIN (?:QUERY PLAN )?)?CREATE (?:TEMP |TEMPORARY )?TRIGGER(?: |$)")
_ROUTINE = re.compile(r"CREATE (?:OR REPLACE )?(?:FUNCTION|PROCEDURE)(?: |$)")
_LONGEST_HEAD = 6
# PostgreSQL: two literals with a line end between them are one literal, escapes included.
_NEXT_PART = re.compile(r"(?:[ \t\f\v]++|--[^\r\n]*+){0,1024}+[\r\n](?:\s++|--[^\r\n]*+[\r\n]){0,1024}+'")
_RUN = 65536
_BLANKS = take(rf"\s{{0,{_RUN}}}+")
_BLANKS_AND_SEMICOLONS = take(rf"[\s;]{{0,{_RUN}}}+")


class Span(NamedTuple):
    """Offsets of one statement: `after` is the end of the terminator before it, `terminated` that of its own one.

    Both are NOWHERE when there is no such terminator.
    """

    after: int
    first: int
    stop: int
    terminated: int


def scan(script: str, lexis: Lexis) -> "array[int]":
    """The statements' spans, flat, four offsets each: 10 MB may hold five million statements.

    Scripts are shorter than 2 GiB.
    """
    if lexis.rules.one_statement:
        return _whole(script, lexis)
    return _Scanner(script, lexis).run()


def content_start(script: str, lexis: Lexis, start: int = 0) -> int:
    """The offset of the first character from `start` on that is neither blank nor in a comment."""
    return _Scanner(script, lexis).skip_gap(start)


def _whole(script: str, lexis: Lexis) -> "array[int]":
    spans = array("i")
    if content_start(script, lexis) < len(script):
        spans.extend((NOWHERE, len(script) - len(script.lstrip()), len(script.rstrip()), NOWHERE))
    return spans


class _Scanner:
    """One pass over one script."""

    def __init__(self, script: str, lexis: Lexis) -> None:
        self._script = script
        self._size = len(script)
        self._lexis = lexis
        self._rules = lexis.rules
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

    def _skip_empty(self, position: int, after: int) -> tuple[int, int]:
        """Past blanks and terminators; returns also where the last terminator passed ends."""
        passes_terminators = self._terminator == ";"
        match = _BLANKS_AND_SEMICOLONS if passes_terminators else _BLANKS
        while (end := match(self._script, position).end()) > position:
            terminator = self._script.rfind(";", position, end) if passes_terminators else NOWHERE
            after = terminator + 1 if terminator != NOWHERE else after
            position, taken = end, end - position
            if taken < _RUN:
                break
        return position, after

    def skip_gap(self, position: int) -> int:
        """Past blanks and comments."""
        while True:
            end = self._lexis.gap(self._script, position).end()
            comment = self._comment_end(end) if end < self._size and self._script[end] in "-/#" else NOWHERE
            if comment == NOWHERE and end == position:
                return end
            position = max(end, comment)

    def _plain_end(self, position: int) -> int:
        """Where the terminator of the statement stands, or the end of the script."""
        if self._terminator == ";":
            return self._advance(position, self._lexis.text, self._size, ";")
        return self._delimiter(position)

    def _delimiter(self, position: int) -> int:
        size, found = self._size, NOWHERE
        while position < size:
            if found < position:
                found = self._script.find(self._terminator, position)
                found = size if found == NOWHERE else found
            position = self._advance(position, self._lexis.text_and_semicolons, found, "")
            if position == found:
                return found
            if position < found:
                position += 1
        return size

    def _advance(self, position: int, match: Take, limit: int, stop: str) -> int:
        """To the first place where `match` stops: `stop`, a stop word, or `limit` (a long token may end behind it)."""
        script = self._script
        while position < limit:
            end = match(script, position, limit).end()
            if end >= limit or script[end] == stop:
                return end
            token = self._token_end(end)
            if token == NOWHERE and end == position:
                return end
            position = max(end, token)
        return position

    def _block_end(self, position: int) -> int:
        if self._script[position] not in "cCeE":
            return self._plain_end(position)
        head = self._head(position)
        if self._rules.triggers and _TRIGGER.match(head):
            return self._trigger_end(position)
        if self._rules.atomic_bodies and _ROUTINE.match(head):
            return self._routine_end(position)
        return self._plain_end(position)

    def _head(self, position: int) -> str:
        words: list[str] = []
        while len(words) < _LONGEST_HEAD and (word := WORD.match(self._script, position)):
            words.append(self._script[position : min(word.end(), position + 16)].upper())
            position = self.skip_gap(word.end())
        return " ".join(words)

    def _word_at(self, position: int) -> str:
        word = WORD.match(self._script, position)
        return self._script[position : min(word.end(), position + 16)].upper() if word else ""

    def _trigger_end(self, position: int) -> int:
        """A trigger's body is over at an END that follows a `;` and precedes one, as sqlite3_complete() has it."""
        position = self._advance(position, self._lexis.block_head, self._size, ";")
        if position >= self._size or self._script[position] == ";":
            return position
        while (position := self._plain_end(position)) < self._size:
            position = self._next_in_body(position + 1)
            if self._word_at(position) == "END":
                position = self.skip_gap(position + len("END"))
                if position >= self._size or self._script[position] == ";":
                    return position
        return position

    def _next_in_body(self, position: int) -> int:
        while True:
            end = self.skip_gap(self._skip_empty(position, NOWHERE)[0])
            if end == position:
                return end
            position = end

    def _routine_end(self, position: int) -> int:
        """The first `;` outside BEGIN ATOMIC … END, within which CASE … END nests."""
        while True:
            position = self._advance(position, self._lexis.block_head, self._size, ";")
            if position >= self._size or self._script[position] == ";":
                return position
            position = self.skip_gap(position + len("BEGIN"))
            if self._word_at(position) == "ATOMIC":
                position = self._body_end(position + len("ATOMIC"))

    def _body_end(self, position: int) -> int:
        depth = 1
        while depth and (position := self._advance(position, self._lexis.block_body, self._size, "")) < self._size:
            word = self._word_at(position)
            depth += 1 if word == "CASE" else -1
            position += len(word)
        return position

    def _comment_end(self, position: int) -> int:
        """The end of the comment that begins at `position`, NOWHERE if none does."""
        mark = self._script[position]
        if mark == "#" and self._rules.hash_comments:
            return self._line_end(position)
        if mark == "-" and self._lexis.line_comment.match(self._script, position):
            return self._line_end(position)
        if mark == "/" and self._lexis.block_comment.match(self._script, position):
            return self._nested_end(position) if self._rules.nested_comments else self._find("*/", position + 2)
        return NOWHERE

    def _line_end(self, position: int) -> int:
        found = LINE_END.search(self._script, position)
        return found.start() if found else self._size

    def _nested_end(self, position: int) -> int:
        depth = 0
        for edge in COMMENT_EDGE.finditer(self._script, position):
            depth += 1 if edge[0] == "/*" else -1
            if depth == 0:
                return edge.end()
        return self._size

    def _token_end(self, position: int) -> int:
        """The end of the quote or comment that begins at `position`, NOWHERE if none does."""
        mark = self._script[position]
        if mark in "-/#":
            return self._comment_end(position)
        if mark in "'\"":
            return self._escaped_end(mark, position + 1) if self._rules.backslash else self._find(mark, position + 1)
        if mark == "`" and self._rules.back_ticks:
            return self._find("`", position + 1)
        if mark == "[" and self._rules.brackets:
            return self._find("]", position + 1)
        if mark == "$" and self._rules.dollar_quotes and (tag := DOLLAR_TAG.match(self._script, position)):
            return self._find(tag[0], tag.end())
        if mark in "eE" and self._rules.e_strings and self._script.startswith("'", position + 1):
            return self._escape_string_end(position + 2)
        return NOWHERE

    def _find(self, closing: str, start: int) -> int:
        """Just behind the next `closing`. An unclosed quote reaches to the end of the script."""
        found = self._script.find(closing, start)
        return self._size if found == NOWHERE else found + len(closing)

    def _escaped_end(self, quote: str, position: int) -> int:
        script, match = self._script, self._lexis.quoted[quote]
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


_KEYWORD = re.compile(r"[A-Za-z_]{1,64}")
_EXECUTABLE_COMMENT = re.compile(r"/\*!\d{0,6}")
_OPENING = re.compile(r"[(\s]++")

HEAD_CHARACTERS = 65_536
"""A first word behind more comments and parentheses than that is not looked for: callers are on the event loop."""
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
    """The first word of a statement in upper case, past comments and opening parentheses; "" if there is none.

    UNKNOWN if the text is longer than `HEAD_CHARACTERS` and its first word does not end within them.
    """
    head = text[:HEAD_CHARACTERS]
    lexis = lexis_of(dialect)
    word = _KEYWORD.match(head, _word_start(head, lexis))
    if len(head) < len(text) and (word is None or word.end() == len(head)):
        return UNKNOWN
    return word[0].upper() if word else ""


def _word_start(text: str, lexis: Lexis) -> int:
    position = content_start(text, lexis)
    while position < len(text):
        if opening := _OPENING.match(text, position):
            position = opening.end()
        elif lexis.rules.executable_comments and (comment := _EXECUTABLE_COMMENT.match(text, position)):
            position = comment.end()
        else:
            break
        position = content_start(text, lexis, position)
    return position


def expects_result_set(text: str, dialect: str) -> bool:
    """`has_result_set` of a handle, until the engine tells the truth (Contract editor 2.1)."""
    keyword = first_keyword(text, dialect)
    return keyword in _QUERIES or keyword in _MORE_QUERIES.get(dialect.lower(), ())
