"""SQL laid out for people: keywords in upper case, clauses on lines of their own (Contract editor 8.4).

`sqlparse` chooses where lines break. It knows no dialect, so its answer is taken only when by the quoting rules of the
dialect nothing but blanks has changed. Its time grows faster than a text (a list of 3,000 values takes seconds): what
is longer than the limits comes back unchanged, and a script above `SCANNED_CHARACTERS` without being scanned.
"""

from collections.abc import Iterator
from itertools import pairwise

import sqlparse
from sqlparse.exceptions import SQLParseError

from queryserver.domain.splitter_rules import lexis_of
from queryserver.domain.splitter_scan import scan
from queryserver.domain.sql_tokens import token_spans, tokens

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
    """.split()  # noqa: SIM905 as above
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
