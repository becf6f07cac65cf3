"""The tokens of a statement, by DuckDB's own scanner, and their bounds.

DuckDB's parser and planner cannot be interrupted, and their memory is not part of `memory_limit`: 1,500 opening
brackets take 370 MB and more than a second, 50,000 take 10 GB; 100,000 constants take 250 MB. So a text is measured
before it is parsed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from queryserver.domain.errors.statements import StatementRejected

MOST_TOKENS = 75_000
"""Words and signs of one statement; 190 MB of parser and planner at most."""

MOST_BRACKETS = 400
"""Brackets inside each other; 30 MB and 80 ms."""

MOST_SET_OPERATIONS = 1_000
"""UNION, INTERSECT and EXCEPT in one statement: the planner takes time by their square, 0.2 s for these."""

_FIRST_SCAN_BYTES = 64 * 1024
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_SET_OPERATIONS = frozenset({"union", "intersect", "except"})


@dataclass(frozen=True, slots=True)
class Token:
    """One word or sign. `kind` is DuckDB's: keyword, identifier, operator, numeric_const, string_const."""

    kind: str
    text: str

    @property
    def name(self) -> str:
        """The text in lower case, without the quotes of an identifier or of a plain string."""
        text = self.text
        for quote in ('"', "'"):
            if len(text) > 1 and text[0] == quote == text[-1]:
                return text[1:-1].replace(quote * 2, quote).lower()
        return text.lower()

    @property
    def is_name(self) -> bool:
        """Whether it may name an object: a keyword that is not reserved may, too."""
        return self.kind in {"identifier", "keyword"}

    @property
    def string(self) -> str | None:
        """The value of a string; None for other tokens and for strings with escapes."""
        if self.kind != "string_const":
            return None
        if self.text.startswith("'"):
            return self.text[1:-1].replace("''", "'")
        if self.text.startswith("$"):
            mark = self.text[: self.text.index("$", 1) + 1]
            return self.text[len(mark) : -len(mark)]
        return None


def tokens_of(statement: str) -> tuple[Token, ...]:
    """The tokens without comments. Raises StatementRejected for a statement above a bound."""
    encoded = statement.encode()  # the places of tokens count bytes
    found = _scanned(encoded)
    if not found:
        return ()
    ends = [place for place, _ in found[1:]] + [len(encoded)]
    tokens = tuple(
        Token(kind.name, encoded[place:end].decode(errors="replace").strip())
        for (place, kind), end in zip(found, ends, strict=True)
        if kind.name != "comment"
    )
    _require_shallow(tokens)
    if sum(token.kind == "keyword" and token.name in _SET_OPERATIONS for token in tokens) > MOST_SET_OPERATIONS:
        raise StatementRejected(f"Parser Error: more than {MOST_SET_OPERATIONS} set operations in one statement.")
    return tokens


def _scanned(encoded: bytes) -> list[tuple[int, duckdb.token_type]]:
    """The scanner holds the interpreter, so a long text is scanned whole only when its beginning is within bounds."""
    size = _FIRST_SCAN_BYTES
    while True:
        found = duckdb.tokenize(encoded[:size].decode(errors="ignore"))
        if len(found) > MOST_TOKENS:
            raise StatementRejected(
                f"Parser Error: the statement has more than {MOST_TOKENS} words and signs; divide it."
            )
        if size >= len(encoded):
            return found
        size *= 2


def _require_shallow(tokens: Sequence[Token]) -> None:
    depth = 0
    for token in tokens:
        if token.kind != "operator":
            continue
        for sign in token.text:
            depth += (sign in _OPENING) - (sign in _CLOSING)
            if depth > MOST_BRACKETS:
                raise StatementRejected(
                    f"Parser Error: the statement has more than {MOST_BRACKETS} brackets inside each other."
                )
