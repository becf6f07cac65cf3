"""Texts that show in an engine's own views who runs a statement and which operation it is.

Values come from users and clients. They are encoded so that they can neither end a comment or a quoted string nor
contain control characters, and cut so that a tag never makes a statement much longer.
"""

import re
from urllib.parse import quote

from queryserver.engines.protocol import StatementContext
from queryserver.sql.scanner import first_keyword

MAX_TAG_BYTES = 200
"""The length of a tag for engines that set no limit."""
_MAX_VALUE_BYTES = 120
"""The longest value in a comment, before its encoding. A `traceparent` has 55 bytes, an operation id has 36."""
_COMMENTED_KEYWORDS = frozenset(
    {"SELECT", "WITH", "VALUES", "TABLE", "FROM", "INSERT", "CREATE", "UPDATE", "DELETE", "MERGE"}
)
_UNSAFE = re.compile(r"[^\w.@+/:-]", re.ASCII)
"""Characters of a short tag that are replaced. Several of them have a meaning in SQL, in logs or in filters."""


def leading_comment(context: StatementContext) -> str:
    """Return a comment and a space to put before a statement; empty if the context names nothing.

    The form is that of sqlcommenter: `/*connector='shop',operation_id='…',traceparent='…',user='ana'*/ `, with keys in
    order and percent-encoded values. The text is ASCII without line breaks, question marks or colons, so it does not
    shift the lines of errors and contains no parameter markers.
    """
    return comment_of(
        connector=context.connector,
        operation_id=context.operation_id,
        traceparent=context.traceparent,
        user=context.user,
    )


def trailing_comment(text: str, dialect: str, context: StatementContext) -> str:
    """Return the comment of `leading_comment` in the form that may follow the text, or an empty text.

    After the text, a comment moves no error position and no hint. Commands such as SET and ADD JAR get none, because
    it would become part of their values.
    """
    comment = leading_comment(context).rstrip()
    if not comment or first_keyword(text, dialect) not in _COMMENTED_KEYWORDS:
        return ""
    return ("\n" if "--" in text.rpartition("\n")[2] else " ") + comment


def trace_comment(context: StatementContext) -> str:
    """Return a comment like that of `leading_comment`, with nothing but the caller's trace; empty if there is none."""
    return comment_of(traceparent=context.traceparent)


def comment_of(**values: str) -> str:
    """Return a comment with these keys and values in the form of `leading_comment`, without the empty values."""
    parts = [
        f"{key}='{quote(_cut(value, _MAX_VALUE_BYTES), safe='')}'" for key, value in sorted(values.items()) if value
    ]
    return f"/*{','.join(parts)}*/ " if parts else ""


def short_tag(context: StatementContext, max_bytes: int) -> str:
    """Return `op=… user=… connector=…` in at most `max_bytes` of ASCII; empty if the context names nothing.

    The operation id is first, because it leads to all other facts. It is never cut: if it does not fit, the result is
    empty. Later parts are cut or left out. Characters other than letters, digits and `.@+/:-_` are written as `_`.
    """
    tag = ""
    for key, value in (("op", context.operation_id), ("user", context.user), ("connector", context.connector)):
        if not value:
            continue
        part = f"{' ' if tag else ''}{key}="
        room = max_bytes - len(tag) - len(part)
        if room <= 0 or (key == "op" and room < len(value)):
            break
        tag += part + _UNSAFE.sub("_", value)[:room]
    return tag


def _cut(value: str, max_bytes: int) -> str:
    """Return the longest start of `value` that has at most `max_bytes` in UTF-8."""
    return value.encode(errors="replace")[:max_bytes].decode(errors="ignore")
