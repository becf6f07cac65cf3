"""What kind of statement a text is, as far as its first words tell."""

import re

from queryserver.domain.splitter_keywords import UNKNOWN, first_keyword

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
