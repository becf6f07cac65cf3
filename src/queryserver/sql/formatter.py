"""Tokenizes SQL and formats scripts (Contract editor 5.1, 8.4). Intended for texts of a few kilobytes."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

import structlog

from queryserver.errors.base import MissingParameter, PayloadTooLarge, TooComplex
from queryserver.platform.computation import ComputationExecutor, Task
from queryserver.sql.scanner import LexicalRules, dialect_patterns, nested_comment_end, scan

log = structlog.get_logger(__name__)

STATEMENT_CHARACTERS = 4_000
SCRIPT_CHARACTERS = 12_000
"""Maximum number of characters formatted per call. Later statements are left unchanged."""
SCANNED_CHARACTERS = 48_000
"""Longer scripts are returned unchanged without being scanned."""

_TOKENS_WITHOUT_BLANKS = frozenset("(),;")
_COMMENTS = ("--", "/*", "#", "//")
_WORD = r"[^\W]+(?:\$\w*)*"

# If no dialect is given, scripts are formatted only where the rules of all dialects agree.
_DIALECT_WITH_MOST_QUOTES = "sqlite"
_ALL_RULES = ("", "mysql", "postgresql", "sqlite", "sparksql", "phoenix")

# None of these can be an unquoted name in any dialect.
_RESERVED = frozenset(
    """
    SELECT FROM WHERE GROUP BY HAVING ORDER UNION ALL DISTINCT AS ON USING JOIN INNER LEFT RIGHT OUTER CROSS NATURAL AND
    OR NOT IN IS NULL LIKE BETWEEN EXISTS CASE WHEN THEN ELSE LIMIT INSERT INTO VALUES UPDATE SET DELETE CREATE TABLE
    DROP ALTER INTERSECT EXCEPT WITH ASC DESC PRIMARY FOREIGN REFERENCES GRANT REVOKE
    """.split()  # noqa: SIM905 sixty lines otherwise
)
# These can also be names, but not after the end of an expression.
_NOT_RESERVED = frozenset({"CAST", "END", "FULL", "KEY", "MERGE", "OFFSET", "UPSERT", "VIEW"})
_KEYWORDS = _RESERVED | _NOT_RESERVED
_BEFORE_NAMES = frozenset(
    """
    SELECT DISTINCT FROM JOIN INTO UPDATE TABLE AS BY WHERE HAVING AND OR NOT ON IN WHEN THEN ELSE SET , ( = < >
    """.split()  # noqa: SIM905 sixty lines otherwise
)
_JOINS_NAMES = frozenset({".", "@", ":", "$"})


class ScriptFormatter:
    """Formats scripts in worker processes, because the formatter takes superlinear time."""

    def __init__(self, computations: ComputationExecutor, *, max_bytes: int) -> None:
        self._computations = computations
        self._max_bytes = max_bytes

    async def format_script(self, user_id: int, script: str | None, dialect: str | None) -> str:
        """Format a script by the rules of `dialect`, or by the common rules of all dialects if it is None.

        Statements that cannot be formatted safely, and scripts that take too long, are left unchanged. Raises
        MissingParameter, PayloadTooLarge, TooManyRequests.
        """
        if script is None:
            raise MissingParameter("statements is required and must not be blank.")
        content = script.encode(errors="surrogatepass")
        if len(content) > self._max_bytes:
            raise PayloadTooLarge(
                f"statements: above the limit of {self._max_bytes} bytes (`editor.statement_max_bytes`)."
            )
        if len(script) > SCANNED_CHARACTERS:
            return script
        try:
            result = await self._computations.run(user_id, Task.FORMAT, {"dialect": dialect}, content)
        except TooComplex:
            log.info("script not formatted: time limit exceeded", characters=len(script))
            return script
        return script if result is None else result


def format_text(options: Mapping[str, Any], content: bytes) -> object:
    """Run `Task.FORMAT`: return the formatted script, or None if it is unchanged."""
    script = content.decode(errors="surrogatepass")
    result = format_statements(script, options["dialect"])
    return None if result == script else result


def format_statements(script: str, dialect: str | None) -> str:
    """Format the statements of a script. Statements that cannot be formatted safely are left unchanged."""
    if len(script) > SCANNED_CHARACTERS:
        return script
    patterns = dialect_patterns(dialect or "")
    spans = scan(script, patterns)
    stops = [0]
    for first, stop in zip(spans[1::4], spans[2::4], strict=True):
        stops += [first, stop]
    pieces, budget = list[str](), SCRIPT_CHARACTERS
    for number, (start, stop) in enumerate(pairwise([*stops, len(script)])):
        text = script[start:stop]
        if number % 2 == 0:  # before, between or after the statements
            ends_line = text.strip() == ";" and "\n" not in text and stop < len(script)
            pieces.append(";\n" if ends_line else text)
        elif len(text) <= min(STATEMENT_CHARACTERS, budget):
            budget -= len(text)
            pieces.append(_format_statement(text, dialect))
        else:
            pieces.append(text)
    whole = "".join(pieces)
    if whole == script:
        return script
    is_same = len(scan(whole, patterns)) == len(spans) and _is_equivalent(script, whole, dialect)
    return whole if is_same else script


def _format_statement(text: str, dialect: str | None) -> str:
    import sqlparse  # noqa: PLC0415 only workers format
    from sqlparse.exceptions import SQLParseError  # noqa: PLC0415 as above

    try:
        laid_out = sqlparse.format(text, reindent=True, strip_whitespace=False).strip()
    except (SQLParseError, RecursionError):
        return text
    spans = list(token_spans(laid_out, _DIALECT_WITH_MOST_QUOTES if dialect is None else dialect))
    words = [laid_out[start:stop] for start, stop in spans]
    pieces, at = list[str](), 0
    for (start, stop), before, word, after in zip(spans, [";", *words], words, [*words[1:], ";"], strict=False):
        pieces += [laid_out[at:start], _with_keyword_case(word, before.upper(), after)]
        at = stop
    formatted = "".join([*pieces, laid_out[at:]])
    return formatted if _is_equivalent(text, formatted, dialect) else text


def _with_keyword_case(word: str, before: str, after: str) -> str:
    """Convert the word to upper case if it is a keyword in this context. Parts of dotted names are not keywords."""
    upper = word.upper()
    if upper not in _KEYWORDS or before in _JOINS_NAMES or after in _JOINS_NAMES:
        return word
    if upper == "CAST":
        return upper if after == "(" else word
    return word if upper in _NOT_RESERVED and before in _BEFORE_NAMES else upper


def _is_equivalent(before: str, after: str, dialect: str | None) -> bool:
    """Return whether the texts differ only in whitespace and the case of keywords."""
    for rules in _ALL_RULES if dialect is None else (dialect,):
        old, new = tokens(before, rules), tokens(after, rules)
        if len(old) != len(new):
            return False
        if any(a != b and (a.upper() != b or b not in _KEYWORDS) for a, b in zip(old, new, strict=True)):
            return False
    return True


def token_spans(text: str, dialect: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of words, single characters, quotes and comments.

    Unclosed quotes and comments extend to the end of the text.
    """
    rules = dialect_patterns(dialect).rules
    pattern, at = _pattern(rules), 0
    while match := pattern.search(text, at):
        start, stop = match.span()
        if rules.nested_comments and text.startswith("/*", start):
            stop = nested_comment_end(text, start)
        yield start, stop
        at = stop


def tokens(text: str, dialect: str) -> list[str]:
    """Return the tokens as written, with an empty string for each significant whitespace.

    Whitespace next to brackets, commas, semicolons and comments is insignificant. All other whitespace is significant,
    as in `X '00'`, `1. 5`, `< =`.
    """
    written, before, was_free = list[str](), 0, True
    for start, stop in token_spans(text, dialect):
        token = text[start:stop]
        is_free = token in _TOKENS_WITHOUT_BLANKS or token.startswith(_COMMENTS)
        if start > before and not (is_free or was_free):
            written.append("")
        written.append(token)
        before, was_free = stop, is_free
    return written


@cache
def _pattern(rules: LexicalRules) -> re.Pattern[str]:
    kinds = [r"--(?=[\x00-\x20\x7f]|\Z)[^\r\n]*" if rules.dashes_need_blank else r"--[^\r\n]*"]
    if rules.hash_comments:
        kinds.append(r"#[^\r\n]*")
    if rules.slash_comments:
        kinds.append(r"(?<!:)//[^\r\n]*")
    kinds.append(r"/\*.*?(?:\*/|\Z)")
    if rules.e_strings:
        kinds.append(r"[eE]'(?:[^'\\]|\\.|'')*(?:'|\Z)")
    if rules.raw_strings:
        kinds += [rf"\b[rR]{quote}[^{quote}]*(?:{quote}|\Z)" for quote in "'\""]
    if rules.q_quotes:
        pairs = "|".join(rf"{re.escape(a)}.*?(?:{re.escape(b)}'|\Z)" for a, b in ("[]", "{}", "()", "<>"))
        kinds.append(rf"\b[nN]?[qQ]'(?:{pairs}|(?P<sign>[^ \t\r\n]).*?(?:(?P=sign)'|\Z))")
    inside = r"(?:[^{0}\\]|\\.|{0}{0})*" if rules.backslash else r"(?:[^{0}]|{0}{0})*"
    kinds += [f"{quote}{inside.format(quote)}(?:{quote}|\\Z)" for quote in "'\""]
    if rules.back_ticks:
        kinds.append(r"`[^`]*(?:`|\Z)")
    if rules.brackets:
        kinds.append(r"\[[^\]]*(?:\]|\Z)")
    if rules.dollar_quotes:
        kinds.append(r"(?P<tag>\$(?:[^\W\d]\w*)?\$).*?(?:(?P=tag)|\Z)")
    return re.compile("|".join([*kinds, _WORD, r"\S"]), re.DOTALL)
