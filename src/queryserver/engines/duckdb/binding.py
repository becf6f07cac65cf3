"""Values of parameters that DuckDB binds (ADR 61).

The guard reads the text with the values as literals. What runs is the same text with `$1`, `$2`, … in the places, and
only if DuckDB reads both alike: the same tokens outside of the places, and each mark as a parameter. Where DuckDB's
grammar has no parameter, such as behind DATE, the text with the literals runs, which the guard has seen.
"""

import datetime as dt
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import duckdb

from queryserver import errors
from queryserver.engines.duckdb.guard import Token, kind_of, tokens_of
from queryserver.sql.literals import DUCKDB
from queryserver.sql.parameters import Parameter, ParameterType, digits_of
from queryserver.sql.places import Bound

Native: TypeAlias = bool | int | float | str | bytes | dt.date | dt.time | list["Native | None"]

BINDING_KINDS = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE_INTO"})
"""Kinds of statements whose values are bound. Of the others DuckDB refuses parameters in most."""

_UNSEEN = frozenset({"query", "nextval"})
"""Functions with which values are never bound: the text of query() may have `$1` in it, which would be bound too,
unseen by the guard; a query with nextval() runs in the call that plans it, so it could not be planned again."""
_NUMBERS_OR_NOTHING = frozenset({"returning", "group", "order", "distinct"})
"""Keywords behind which DuckDB has no parameters, or takes two equal ones for different expressions. A query that it
refuses is planned again; a change of rows runs as it is planned, so it has literals from the beginning."""

_NO_CALLS = frozenset(
    {"values", "in", "and", "or", "not", "where", "set", "on", "then", "else", "when", "do", "conflict"}
)
"""Keywords before a bracket that begins no arguments."""

_INT = 2**31
_PLAIN_ELEMENTS = {ParameterType.BOOLEAN, ParameterType.BIGINT, ParameterType.VARCHAR, ParameterType.ARRAY}


@dataclass(frozen=True, slots=True)
class MarkedStatement:
    """What DuckDB runs: `text` with marks, parsed, and the values of the marks `$1`, `$2`, …"""

    text: str
    statement: duckdb.Statement
    values: list[Any]


class _Marks:
    """Writes marks, and keeps their values in order. A type stands where it stands in the literal."""

    def __init__(self) -> None:
        self.values: list[Native] = []
        self._written: dict[int, str] = {}

    def write(self, number: int, one: Parameter) -> str:
        if number not in self._written:
            self._written[number] = self._value(one)
        return self._written[number]

    def begin_row(self) -> None:
        """The values of the next row have marks of their own."""
        self._written.clear()

    def _value(self, one: Parameter) -> str:
        value = one.value
        match value:
            case None:
                return DUCKDB.write(0, one)
            case tuple():
                if not value:
                    return DUCKDB.write(0, one)
                if all(map(_is_plain, value)):
                    return self._mark(list(map(_native, value)))
                return DUCKDB.array.format(", ".join(map(self._value, value)))
            case Decimal():
                precision, scale = digits_of(value)
                return f"CAST({self._mark(format(value, 'f'))} AS DECIMAL({precision},{scale}))"
            case dt.datetime() if value.tzinfo is not None:
                return self._mark(value.astimezone(dt.UTC))
            case int() if not isinstance(value, bool) and not _is_plain(one):
                return f"CAST({self._mark(value)} AS BIGINT)"
            case _:
                return self._mark(value)

    def _mark(self, value: Native) -> str:
        self.values.append(value)
        return f"${len(self.values)}"


def _is_plain(one: Parameter) -> bool:
    """Whether DuckDB gives the bound value the type that it gives to the literal in the text."""
    if isinstance(one.value, int) and not isinstance(one.value, bool):
        return one.is_plain and -_INT <= one.value < _INT
    if one.value is None:
        return one.type is None
    return one.type in _PLAIN_ELEMENTS and (one.value != ()) and all(map(_is_plain, one.elements))


def _native(one: Parameter) -> "Native | None":
    value = one.value
    if isinstance(value, tuple):
        return list(map(_native, value))
    if isinstance(value, Decimal):  # `_is_plain` is False of it
        raise TypeError
    return value


def marks_of(bound: Bound) -> tuple[str, list[Any]]:
    """The text with marks, and their values."""
    marks = _Marks()
    return bound.written(marks.write), marks.values


def row_start(tokens: Sequence[Token], text: str) -> int | None:
    """Where in `text` the one row of `INSERT INTO … VALUES (…)` begins; None where more rows cannot follow it."""
    if [token.name for token in tokens[:2]] != ["insert", "into"]:
        return None
    places = [place for place, token in enumerate(tokens) if token.kind == "keyword" and token.name == "values"]
    signs = [token.text for token in tokens[places[0] + 1 :]] if len(places) == 1 else []
    if not signs or not signs[0].startswith("(") or tokens[-1].end != len(text.rstrip().encode()):
        return None
    depth = 0
    for place, sign in enumerate(signs):
        depth += sign.count("(") - sign.count(")") if tokens[places[0] + 1 + place].kind == "operator" else 0
        if depth == 0 and place < len(signs) - 1:
            return None
    return len(text.encode()[: tokens[places[0] + 1].start].decode()) if depth == 0 else None


def alike(text: str, values: Sequence[Native]) -> Hashable:
    """Equal for rows that DuckDB reads alike when they stand in one statement: with values of the same types."""
    zones = (isinstance(value, dt.datetime) and value.tzinfo is not None for value in values)
    return text, tuple(map(type, values)), tuple(zones)


def joined(row: Bound, start: int, rows: int) -> str:
    """The text with marks for so many rows like this one. `start` as `row_start` gives it."""
    marks, texts = _Marks(), list[str]()
    for _ in range(rows):
        text = row.written(marks.write)
        texts.append(text[start:] if texts else text)
        marks.begin_row()
    return ", ".join(texts)


def marked(
    connection: duckdb.DuckDBPyConnection, bound: Bound, literal: duckdb.Statement, tokens: Sequence[Token]
) -> MarkedStatement | None:
    """What runs in place of `literal`, whose text is the one that `bound` wrote last, and has these tokens.

    None: the literals must run; they are then written last again. Raises StatementRejected where DuckDB reads a place
    otherwise than the places were found.
    """
    if kind_of(literal) not in BINDING_KINDS or literal.named_parameters:
        return None
    if any(token.is_name and token.name in _UNSEEN for token in tokens):
        return None
    if kind_of(literal) != "SELECT" and any(
        token.kind == "keyword" and token.name in _NUMBERS_OR_NOTHING for token in tokens
    ):
        return None
    seen = _outside(tokens, bound)
    text, values = marks_of(bound)
    try:
        statements = connection.extract_statements(text)
        outside = _outside(tokens_of(text), bound)
    except duckdb.Error:  # no place for a parameter
        bound.written(DUCKDB.write)
        return None
    names = {str(number) for number in range(1, len(values) + 1)}
    if (
        len(statements) != 1
        or kind_of(statements[0]) != kind_of(literal)
        or statements[0].named_parameters != names
        or outside != seen
    ):
        raise errors.StatementRejected("Parser Error: a place of the parameters cannot be found with certainty.")
    return MarkedStatement(text, statements[0], values)


def only_stores_values(tokens: Sequence[Token], bound: Bound) -> bool:
    """Whether the values of the places can reach nothing but columns: then the guard has no need to read each row's.

    Nothing but the table of an INSERT, VALUES, IN and conditions stands before a bracket: there is no call.
    """
    before, is_target = "", False
    for kind, text in _outside(tokens, bound):
        word = text.lower()
        if kind == "keyword" and word == "for":  # a list comprehension is a call
            return False
        if word == "(" and before and before not in _NO_CALLS and not is_target:
            return False
        if word == "into" and before in {"insert", "ignore", "replace"}:
            is_target = True
        elif word == "(" or kind == "keyword":
            is_target = False
        before = word if kind in {"identifier", "keyword", "string_const"} or word == ")" else ""
    return True


def _outside(tokens: Sequence[Token], bound: Bound) -> list[tuple[str, str]]:
    """Kind and text of the tokens that do not begin in a value of the text that was written last."""
    found, spans, at = list[tuple[str, str]](), bound.spans(), 0
    for token in tokens:
        while at < len(spans) and spans[at][1] <= token.start:
            at += 1
        if at == len(spans) or token.start < spans[at][0]:
            found.append((token.kind, token.text))
    return found
