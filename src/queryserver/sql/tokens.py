"""A text of SQL as a sequence of tokens, blanks left out (Contract editor 5.1). Made for texts of some kilobytes."""

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import sqlparse
from sqlparse.exceptions import SQLParseError

from queryserver.sql.splitter_scan import COMMENT_EDGE, Rules, lexis_of, scan

_FREE = frozenset("(),;")
_COMMENTS = ("--", "/*", "#")
_WORD = r"[^\W]+(?:\$\w*)*"


def token_spans(text: str, dialect: str) -> Iterator[tuple[int, int]]:
    """Offsets of words, signs (each alone), quoted pieces and comments, in order.

    A quoted piece or comment without end reaches to the end of the text.
    """
    rules = lexis_of(dialect).rules
    pattern, at = _pattern(rules), 0
    while found := pattern.search(text, at):
        start, stop = found.span()
        if rules.nested_comments and text.startswith("/*", start):
            stop = _comment_end(text, start)
        yield start, stop
        at = stop


def tokens(text: str, dialect: str) -> list[str]:
    """The tokens as they are written, with an empty text wherever a blank parts two of them that it may not join.

    A blank next to a bracket, a comma, a semicolon or a comment means nothing; `X'00'`, `1.5` and `<=` it would break.
    """
    found, before = list[str](), 0
    for start, stop in token_spans(text, dialect):
        token = text[start:stop]
        if found and start > before and not (_is_free(token) or _is_free(found[-1])):
            found.append("")
        found.append(token)
        before = stop
    return found


def _is_free(token: str) -> bool:
    return token in _FREE or token.startswith(_COMMENTS)


@cache
def _pattern(rules: Rules) -> re.Pattern[str]:
    kinds = [r"--(?=[\x00-\x20\x7f]|\Z)[^\r\n]*" if rules.dashes_need_blank else r"--[^\r\n]*"]
    if rules.hash_comments:
        kinds.append(r"#[^\r\n]*")
    kinds.append(r"/\*.*?(?:\*/|\Z)")
    if rules.e_strings:
        kinds.append(r"[eE]'(?:[^'\\]|\\.|'')*(?:'|\Z)")
    inside = r"(?:[^{0}\\]|\\.|{0}{0})*" if rules.backslash else r"(?:[^{0}]|{0}{0})*"
    kinds += [f"{quote}{inside.format(quote)}(?:{quote}|\\Z)" for quote in "'\""]
    if rules.back_ticks:
        kinds.append(r"`[^`]*(?:`|\Z)")
    if rules.brackets:
        kinds.append(r"\[[^\]]*(?:\]|\Z)")
    if rules.dollar_quotes:
        kinds.append(r"(?P<tag>\$(?:[^\W\d]\w*)?\$).*?(?:(?P=tag)|\Z)")
    return re.compile("|".join([*kinds, _WORD, r"\S"]), re.DOTALL)


def _comment_end(text: str, start: int) -> int:
    depth = 0
    for edge in COMMENT_EDGE.finditer(text, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(text)


STATEMENT_CHARACTERS = 4_000
SCRIPT_CHARACTERS = 12_000
"""Formatted at most in one call; the statements behind that stay as they are."""
SCANNED_CHARACTERS = 48_000
"""A longer script is not even scanned: it comes back unchanged."""

# What is right in any dialect is right when none is named.
_MANY_QUOTES = "sqlite"
_ALL_RULES = ("", "mysql", "postgresql", "sqlite", "sparksql", "phoenix")

# None of these can be a name without quotes, in any dialect.
_RESERVED = frozenset(
    """
    SELECT FROM WHERE GROUP BY HAVING ORDER UNION ALL DISTINCT AS ON USING JOIN INNER LEFT RIGHT OUTER CROSS NATURAL AND
    OR NOT IN IS NULL LIKE BETWEEN EXISTS CASE WHEN THEN ELSE LIMIT INSERT INTO VALUES UPDATE SET DELETE CREATE TABLE
    DROP ALTER INTERSECT EXCEPT WITH ASC DESC PRIMARY FOREIGN REFERENCES GRANT REVOKE
    """.split()  # noqa: SIM905 sixty lines otherwise
)
# These can be names too, but not where they stand behind the end of something else.
_NOT_RESERVED = frozenset({"CAST", "END", "FULL", "KEY", "MERGE", "OFFSET", "UPSERT", "VIEW"})
_KEYWORDS = _RESERVED | _NOT_RESERVED
_BEFORE_NAMES = frozenset(
    """
    SELECT DISTINCT FROM JOIN INTO UPDATE TABLE AS BY WHERE HAVING AND OR NOT ON IN WHEN THEN ELSE SET , ( = < >
    """.split()  # noqa: SIM905 sixty lines otherwise
)
_JOINS_NAMES = frozenset({".", "@", ":", "$"})


def formatted(script: str, dialect: str | None) -> str:
    """The script with its statements formatted; unchanged wherever that cannot be done for sure."""
    if len(script) > SCANNED_CHARACTERS:
        return script
    known = dialect or ""
    pieces, left, size = list[str](), SCRIPT_CHARACTERS, 0
    for text, is_statement in _pieces(script, known):
        size += len(text)
        if not is_statement:
            pieces.append(_between(text) if size < len(script) else text)
        elif len(text) <= min(STATEMENT_CHARACTERS, left):
            left -= len(text)
            pieces.append(_statement(text, dialect))
        else:
            pieces.append(text)
    whole = "".join(pieces)
    if whole == script:
        return script
    is_same = _count(whole, known) == _count(script, known) and _says_the_same(script, whole, dialect)
    return whole if is_same else script


def _pieces(script: str, dialect: str) -> Iterator[tuple[str, bool]]:
    """Statements, and what stands before, between and behind them."""
    spans = scan(script, lexis_of(dialect))
    stops = [0]
    for first, stop in zip(spans[1::4], spans[2::4], strict=True):
        stops += [first, stop]
    for number, (start, stop) in enumerate(pairwise([*stops, len(script)])):
        yield script[start:stop], number % 2 == 1


def _between(text: str) -> str:
    """A terminator ends its line."""
    return ";\n" if text.strip() == ";" and "\n" not in text else text


def _statement(text: str, dialect: str | None) -> str:
    try:
        laid_out = sqlparse.format(text, reindent=True, strip_whitespace=False).strip()
    except (SQLParseError, RecursionError):
        return text
    changed = _in_upper_case(laid_out, _MANY_QUOTES if dialect is None else dialect)
    return changed if _says_the_same(text, changed, dialect) else text


def _in_upper_case(text: str, dialect: str) -> str:
    spans = list(token_spans(text, dialect))
    words = [text[start:stop] for start, stop in spans]
    pieces, at = list[str](), 0
    for number, (start, stop) in enumerate(spans):
        before = words[number - 1] if number else ";"
        after = words[number + 1] if number + 1 < len(words) else ";"
        pieces += [text[at:start], _cased(words[number], before.upper(), after)]
        at = stop
    return "".join([*pieces, text[at:]])


def _cased(word: str, before: str, after: str) -> str:
    """In upper case when it is a keyword between those two; part of a name with a dot it is none."""
    upper = word.upper()
    if upper not in _KEYWORDS or before in _JOINS_NAMES or after in _JOINS_NAMES:
        return word
    if upper == "CAST":
        return upper if after == "(" else word
    return word if upper in _NOT_RESERVED and before in _BEFORE_NAMES else upper


def _says_the_same(before: str, after: str, dialect: str | None) -> bool:
    """Whether only blanks and the case of keywords differ."""
    for rules in _ALL_RULES if dialect is None else (dialect,):
        old, new = tokens(before, rules), tokens(after, rules)
        if len(old) != len(new):
            return False
        if any(a != b and (a.upper() != b or b not in _KEYWORDS) for a, b in zip(old, new, strict=True)):
            return False
    return True


def _count(script: str, dialect: str) -> int:
    return len(scan(script, lexis_of(dialect))) // 4
