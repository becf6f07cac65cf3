"""Decides which statements the server prepares (COM_STMT_EXECUTE), and writes their markers and values."""

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal

from asyncmy.protocol import pack_binary_params

from queryserver.sql.literals import MYSQL
from queryserver.sql.markers import BoundStatement
from queryserver.sql.parameters import Parameter, precision_and_scale

PREPARABLE_KEYWORDS = frozenset(
    {"SELECT", "WITH", "INSERT", "REPLACE", "UPDATE", "DELETE", "EXPLAIN", "DESCRIBE", "DESC"}
)
"""First keywords of statements that may be prepared. None of them changes how the session interprets strings.

MariaDB would prepare other statements with wrong effects: it stores a trigger with the parameter markers in its text,
and returns a procedure's OUT parameters as rows.
"""
_VALUES = re.compile(r"\bVALUES\b", re.IGNORECASE)
_ROWS = re.compile(r"\b(?:INSERT|REPLACE)\b[^()'\"]*(?:\([^()]*\))?\s*VALUES?\s*\((.*)", re.IGNORECASE | re.DOTALL)
_VALUE_OF_COLUMN = re.compile(r"\bVALUES\s*\(\s*[\w`$.]+\s*\)", re.IGNORECASE)
_QUERY = re.compile(r"\b(?:SELECT|WITH)\b", re.IGNORECASE)
_UNLIKE_LITERALS_PATTERN = re.compile(
    r"/\*M?!"  # executable comments, whose content is not parsed
    r"|\bTIME(?:STAMP)?\s*\("  # these lose fractional seconds if the value is unknown during preparation
    r"|\b(?:ROW_COUNT|FOUND_ROWS)\s*\(",  # these are reset by statements sent before this one
    re.IGNORECASE,
)
_BEFORE_MARK = re.compile(r"(\w+|[`\"])\s+\(\?\)")
_BEFORE_EXPRESSION = re.compile(
    "SELECT|DISTINCT|ALL|WHERE|HAVING|ON|AND|OR|XOR|NOT|IS|LIKE|RLIKE|REGEXP|BETWEEN|CASE|WHEN|THEN|ELSE|DIV|MOD|BINARY"
    "|INTERVAL|ESCAPE|BY|LIMIT|OFFSET|FROM|FOR|LEADING|TRAILING|BOTH|RETURNING",
    re.IGNORECASE,
)
"""Keywords allowed before a marker in parentheses.

After any other word, `(?)` would be a call: `DATE (?)`, `MD5 (?)`.
"""
_MAX_SCALE = 30
"""Maximum scale of a decimal in MySQL; MariaDB allows 38."""


def may_be_prepared(statement: BoundStatement, keyword: str) -> bool:
    """Return whether markers would mean the same as literals in this statement, which starts with `keyword`.

    For a `VALUES` table that is not the row list of an INSERT, MariaDB chooses the types regardless of the parameters:
    `VALUES (?), (2)` converts a string to 0. The result is False in case of doubt, for example for a quoted word.
    """
    text = statement.statement
    if (
        keyword not in PREPARABLE_KEYWORDS
        or _UNLIKE_LITERALS_PATTERN.search(text)
        or not any(map(is_bound, statement.values))
    ):
        return False
    if _VALUES.search(text):
        rows = None if _QUERY.search(text) else _ROWS.search(text)
        if rows is None or _VALUES.search(_VALUE_OF_COLUMN.sub("", rows[1])):
            return False
    return all(map(_BEFORE_EXPRESSION.fullmatch, _BEFORE_MARK.findall(statement.render(mark))))


def is_bound(one: Parameter) -> bool:
    """Return whether a value is bound. Integers, TRUE, FALSE and NULL are written as literals instead.

    If they were bound, integers would have wider types, Boolean values would lose their type, and MariaDB would read
    LIMIT -1 as no limit.
    """
    is_whole = isinstance(one.value, Decimal) and precision_and_scale(one.value)[1] == 0
    return not (is_whole or isinstance(one.value, int | None))


def mark(number: int, one: Parameter) -> str:
    """Return the marker for a value, cast to the type that its literal would have.

    The parentheses matter for MariaDB: it accepts a string in `LIMIT ?`, but rejects `LIMIT (?)` as a syntax error, as
    it does for a literal.
    """
    if not is_bound(one):
        return MYSQL.write(number, one)
    match one.value:
        case datetime(tzinfo=None) as value:
            return f"CAST(? AS DATETIME({_fraction(value)}))"
        case datetime() as value:  # only newer servers accept an offset
            return f"CONVERT_TZ(CAST(? AS DATETIME({_fraction(value)})), '+00:00', @@session.time_zone)"
        case time() as value:
            return f"CAST(? AS TIME({_fraction(value)}))"
        case date():
            return "CAST(? AS DATE)"  # without the cast, a variable would get the raw bytes
        case bytes():
            return "CAST(? AS BINARY)"
        case Decimal() as value:
            precision, scale = precision_and_scale(value)
            return f"CAST(? AS DECIMAL({max(precision, scale + 1)},{scale}))" if scale <= _MAX_SCALE else "(?)"
        case _:
            return "(?)"


def _fraction(value: datetime | time) -> int:
    return len(f"{value.microsecond:06}".rstrip("0"))


def encode_values(values: Sequence[Parameter]) -> bytes:
    """Encode the bound values for the COM_STMT_EXECUTE packet."""
    return pack_binary_params(tuple(_driver_value(one) for one in values if is_bound(one)), "utf8")


def _driver_value(one: Parameter) -> object:
    if isinstance(one.value, datetime) and one.value.tzinfo is not None:
        return one.value.astimezone(UTC).replace(tzinfo=None)
    return one.value
