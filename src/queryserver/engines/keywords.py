"""The first word of a statement, where the kind of statement decides how it is run."""

import re

_COMMENT_MARKS = re.compile(r"/\*|\*/")
_WORD = re.compile(r"\w*")


def first_keyword(sql: str, *, line_comments: tuple[str, ...] = ("--",)) -> str:
    """The first word in upper case, behind blanks, brackets and comments (those between `/*` and `*/` may nest)."""
    position = 0
    while position < len(sql):
        if sql[position].isspace() or sql[position] == "(":
            position += 1
        elif sql.startswith(line_comments, position):
            position = (sql.find("\n", position) + 1) or len(sql)
        elif sql.startswith("/*", position):
            position = _behind_comment(sql, position)
        else:
            break
    word = _WORD.match(sql, position)
    return word[0].upper() if word else ""


def _behind_comment(sql: str, position: int) -> int:
    depth = 0
    for mark in _COMMENT_MARKS.finditer(sql, position):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(sql)
