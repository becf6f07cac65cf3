"""Statements whose values the server binds (COM_STMT_EXECUTE): which may be, what is written in the places and sent."""

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal

from asyncmy.protocol import pack_binary_params

from queryserver.sql.literals import MYSQL
from queryserver.sql.parameters import Parameter, digits_of
from queryserver.sql.places import Bound

COM_STMT_EXECUTE = 0x17

PLAIN = frozenset({"SELECT", "WITH", "INSERT", "REPLACE", "UPDATE", "DELETE", "EXPLAIN", "DESCRIBE", "DESC"})
"""The first words of what is prepared. None of them changes how the session reads texts.

MariaDB prepares others, too: it keeps a trigger with the marks of values in its text, and gives the OUT parameters of
a procedure as rows.
"""
_VALUES = re.compile(r"\bVALUES\b", re.IGNORECASE)
_ROWS = re.compile(r"\b(?:INSERT|REPLACE)\b[^()'\"]*(?:\([^()]*\))?\s*VALUES?\s*\((.*)", re.IGNORECASE | re.DOTALL)
_VALUE_OF_COLUMN = re.compile(r"\bVALUES\s*\(\s*[\w`$.]+\s*\)", re.IGNORECASE)
_QUERY = re.compile(r"\b(?:SELECT|WITH)\b", re.IGNORECASE)
_UNLIKE_LITERALS = re.compile(
    r"/\*M?!"  # executed comments, of which nothing is known
    r"|\bTIME(?:STAMP)?\s*\("  # have no fraction where they do not know the value yet
    r"|\b(?:ROW_COUNT|FOUND_ROWS)\s*\(",  # are lost by what is sent before the statement
    re.IGNORECASE,
)
_BEFORE_MARK = re.compile(r"(\w+|[`\"])\s+\(\?\)")
_BEFORE_EXPRESSION = re.compile(
    "SELECT|DISTINCT|ALL|WHERE|HAVING|ON|AND|OR|XOR|NOT|IS|LIKE|RLIKE|REGEXP|BETWEEN|CASE|WHEN|THEN|ELSE|DIV|MOD|BINARY"
    "|INTERVAL|ESCAPE|BY|LIMIT|OFFSET|FROM|FOR|LEADING|TRAILING|BOTH|RETURNING",
    re.IGNORECASE,
)
"""`DATE ?` and `MD5 ?` are no syntax, but `DATE (?)` and `MD5 (?)` are calls."""
_MOST_SCALE = 30
"""Of a decimal of MySQL; MariaDB has 38."""


def may_be_prepared(statement: Bound, keyword: str) -> bool:
    """Whether marks mean the same as values in this statement, which begins with `keyword`.

    A table of `VALUES` that is no list of rows to insert has, on MariaDB, the types that it has without the values:
    `VALUES (?), (2)` makes 0 of a text. In doubt, such as for a word in quotes, the answer is False.
    """
    text = statement.statement
    if keyword not in PLAIN or _UNLIKE_LITERALS.search(text) or not any(map(is_bound, statement.values)):
        return False
    if _VALUES.search(text):
        rows = None if _QUERY.search(text) else _ROWS.search(text)
        if rows is None or _VALUES.search(_VALUE_OF_COLUMN.sub("", rows[1])):
            return False
    return all(map(_BEFORE_EXPRESSION.fullmatch, _BEFORE_MARK.findall(statement.written(mark))))


def is_bound(one: Parameter) -> bool:
    """Whole numbers, TRUE, FALSE and NULL are written.

    Bound they are wider and no Booleans, and MariaDB takes a LIMIT of -1 as none.
    """
    is_whole = isinstance(one.value, Decimal) and digits_of(one.value)[1] == 0
    return not (is_whole or isinstance(one.value, int | None))


def mark(number: int, one: Parameter) -> str:
    """What stands in the place of a value, with the type that its literal has.

    The brackets are for MariaDB: `LIMIT ?` takes a text, `LIMIT (?)` is no syntax, as with the literal.
    """
    if not is_bound(one):
        return MYSQL.write(number, one)
    match one.value:
        case datetime(tzinfo=None) as value:
            return f"CAST(? AS DATETIME({_fraction(value)}))"
        case datetime() as value:  # only newer servers take an offset
            return f"CONVERT_TZ(CAST(? AS DATETIME({_fraction(value)})), '+00:00', @@session.time_zone)"
        case time() as value:
            return f"CAST(? AS TIME({_fraction(value)}))"
        case date():
            return "CAST(? AS DATE)"  # else a variable has its bytes
        case bytes():
            return "CAST(? AS BINARY)"
        case Decimal() as value:
            precision, scale = digits_of(value)
            return f"CAST(? AS DECIMAL({max(precision, scale + 1)},{scale}))" if scale <= _MOST_SCALE else "(?)"
        case _:
            return "(?)"


def _fraction(value: datetime | time) -> int:
    return len(f"{value.microsecond:06}".rstrip("0"))


def packed(values: Sequence[Parameter]) -> bytes:
    """Those of the values that are bound, as the body of COM_STMT_EXECUTE has them."""
    return pack_binary_params(tuple(_sent(one) for one in values if is_bound(one)), "utf8")


def _sent(one: Parameter) -> object:
    if isinstance(one.value, datetime) and one.value.tzinfo is not None:
        return one.value.astimezone(UTC).replace(tzinfo=None)
    return one.value
