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
