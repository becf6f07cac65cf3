"""What a statement's first keyword tells about it."""

import re

from queryserver.domain.splitter_rules import Lexis, lexis_of
from queryserver.domain.splitter_scan import content_start

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
