"""What the first words of a statement say: its kind, its own row limit, whether it can be explained."""

import re

from queryserver.errors.base import InvalidParameter
from queryserver.sql.splitter_rules import lexis_of
from queryserver.sql.splitter_scan import UNKNOWN, content_start, first_keyword
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
