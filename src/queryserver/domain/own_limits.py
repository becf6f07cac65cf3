"""The row limit that a statement itself has, as far as its last or first words show it (Contract editor 6.4)."""

import re

from queryserver.domain.splitter_keywords import first_keyword
from queryserver.domain.sql_tokens import tokens

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
