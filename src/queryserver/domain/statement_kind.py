"""What kind of statement a text is, as far as its first words tell."""

import re

from queryserver.domain.splitter_keywords import first_keyword

_READING = frozenset(
    {"SELECT", "VALUES", "TABLE", "FROM", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "PRAGMA", "SUMMARIZE", "WITH", ""}
)
_CHANGING_WORD = re.compile(r"(?i)\b(?:insert|update|delete|merge|replace)\b")


def changes_data(text: str, dialect: str) -> bool:
    """Whether the statement may change data: then it is read to its end even when its result is cut.

    In doubt yes: a WITH or EXPLAIN that mentions a changing word anywhere counts as changing.
    """
    keyword = first_keyword(text, dialect)
    if keyword not in _READING:
        return True
    return keyword in {"WITH", "EXPLAIN"} and _CHANGING_WORD.search(text) is not None


_KEEPING = _READING | {
    "INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE", "UPSERT", "SET", "RESET", "USE", "BEGIN", "START", "PIVOT",
    "UNPIVOT", "FETCH", "HELP", "LIST", "CHECK", "CHECKSUM", "COPY", "DECLARE", "CLOSE", "SAVEPOINT", "RELEASE",
}  # fmt: skip
_LONG = 100_000  # looking through longer texts would hold the event loop up
_MAKING_WORDS = {
    **dict.fromkeys(("SELECT", "WITH", "FROM", "VALUES", "TABLE"), re.compile(r"(?i)\binto\b")),
    "EXPLAIN": re.compile(r"(?i)\b(?:analy[sz]e|reoptimization)\b"),
    "UPDATE": re.compile(r"(?i)\bstatistics\b"),
}


def changes_objects(text: str, dialect: str) -> bool:
    """Whether the statement may change databases, tables, functions or their statistics, so that metadata are stale.

    In doubt yes: it only costs another look. The end of a transaction counts, for what was done in it shows then.
    """
    keyword = first_keyword(text, dialect)
    if keyword not in _KEEPING:
        return True
    making = _MAKING_WORDS.get(keyword)
    return making is not None and (len(text) > _LONG or making.search(text) is not None)
