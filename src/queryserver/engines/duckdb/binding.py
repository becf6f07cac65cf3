"""Binds statement parameters in DuckDB (ADR 61).

The guard checks the statement with its values inlined as literals. DuckDB then runs the same statement with the markers
`$1`, `$2`, … in place of the literals, provided that it parses both texts alike: the tokens outside the literals must
be the same, and each marker must be a parameter. Where DuckDB's grammar allows no parameter, such as after DATE, the
checked text with literals runs instead.
"""

import datetime as dt
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import duckdb

from queryserver import errors
from queryserver.engines.duckdb.guard import Token, statement_kind, tokenize
from queryserver.sql.literals import DUCKDB
from queryserver.sql.markers import BoundStatement
from queryserver.sql.parameters import Parameter, ParameterType, precision_and_scale

Native: TypeAlias = bool | int | float | str | bytes | dt.date | dt.time | list["Native | None"]

BINDING_KINDS = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE_INTO"})
"""Kinds of statements whose parameter values are bound. DuckDB refuses parameters in most other kinds."""

_UNBINDABLE_FUNCTIONS = frozenset({"query", "nextval"})
"""Functions that rule out binding.

The string passed to query() may contain `$1`, which DuckDB would also bind although the guard has not checked it. A
query with nextval() executes while it is planned, so it cannot be planned a second time.
"""
_KEYWORDS_WITHOUT_PARAMETERS = frozenset({"returning", "group", "order", "distinct"})
"""Keywords after which DuckDB allows no parameters, or treats two equal parameters as different expressions.

A query that is refused for this reason is planned again with literals. A statement that changes rows already executes
while it is planned, so it uses literals from the start.
"""

_NON_CALL_KEYWORDS = frozenset(
    {"values", "in", "and", "or", "not", "where", "set", "on", "then", "else", "when", "do", "conflict"}
)
"""Keywords after which a parenthesis does not open an argument list."""

_INT = 2**31
_PLAIN_ELEMENTS = {ParameterType.BOOLEAN, ParameterType.BIGINT, ParameterType.VARCHAR, ParameterType.ARRAY}


@dataclass(frozen=True, slots=True)
class ParameterizedStatement:
    """A statement that DuckDB runs: its text with markers, its parsed form, and the markers' values in order."""

    text: str
    statement: duckdb.Statement
    values: list[Any]


class _MarkerWriter:
    """Writes markers and collects their values in order.

    A marker is wrapped in a CAST if the bound value alone would not have the literal's type.
    """

    def __init__(self) -> None:
        self.values: list[Native] = []
        self._written: dict[int, str] = {}

    def write(self, number: int, one: Parameter) -> str:
        if number not in self._written:
            self._written[number] = self._value(one)
        return self._written[number]

    def begin_row(self) -> None:
        """Start the next row, whose values get new markers."""
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
                    return self._mark(list(map(_native_value, value)))
                return DUCKDB.array.format(", ".join(map(self._value, value)))
            case Decimal():
                precision, scale = precision_and_scale(value)
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
    """Return whether DuckDB gives the bound value the same type as the literal."""
    if isinstance(one.value, int) and not isinstance(one.value, bool):
        return one.is_plain and -_INT <= one.value < _INT
    if one.value is None:
        return one.type is None
    return one.type in _PLAIN_ELEMENTS and (one.value != ()) and all(map(_is_plain, one.elements))


def _native_value(one: Parameter) -> "Native | None":
    value = one.value
    if isinstance(value, tuple):
        return list(map(_native_value, value))
    if isinstance(value, Decimal):  # not reached: `_is_plain` is False for a Decimal
        raise TypeError
    return value


def text_with_markers(bound: BoundStatement) -> tuple[str, list[Any]]:
    """Return the statement text with markers, and the values of the markers."""
    marks = _MarkerWriter()
    return bound.render(marks.write), marks.values


def row_offset(tokens: Sequence[Token], text: str) -> int | None:
    """Return the offset of the row in an `INSERT INTO … VALUES (…)`; None if further rows cannot be appended."""
    if [token.name for token in tokens[:2]] != ["insert", "into"]:
        return None
    positions = [at for at, token in enumerate(tokens) if token.kind == "keyword" and token.name == "values"]
    signs = [token.text for token in tokens[positions[0] + 1 :]] if len(positions) == 1 else []
    if not signs or not signs[0].startswith("(") or tokens[-1].end != len(text.rstrip().encode()):
        return None
    depth = 0
    for at, sign in enumerate(signs):
        depth += sign.count("(") - sign.count(")") if tokens[positions[0] + 1 + at].kind == "operator" else 0
        if depth == 0 and at < len(signs) - 1:
            return None
    return len(text.encode()[: tokens[positions[0] + 1].start].decode()) if depth == 0 else None


def type_key(text: str, values: Sequence[Native]) -> Hashable:
    """Return a key for the types of a row's values. Rows with equal keys can share a statement."""
    zones = (isinstance(value, dt.datetime) and value.tzinfo is not None for value in values)
    return text, tuple(map(type, values)), tuple(zones)


def multi_row_text(row: BoundStatement, start: int, rows: int) -> str:
    """Return the text with markers for `rows` rows of the same form as `row`. `start` comes from `row_offset`."""
    marks, texts = _MarkerWriter(), list[str]()
    for _ in range(rows):
        text = row.render(marks.write)
        texts.append(text[start:] if texts else text)
        marks.begin_row()
    return ", ".join(texts)


def bind_markers(
    connection: duckdb.DuckDBPyConnection, bound: BoundStatement, literal: duckdb.Statement, tokens: Sequence[Token]
) -> ParameterizedStatement | None:
    """Return the statement to run instead of `literal`; None if the text with literals must run.

    `literal` and `tokens` come from the text that `bound` rendered last. If None is returned, that text is still, or
    again, the text rendered last. Raises StatementRejected if DuckDB parses the text with markers differently or finds
    other parameters in it.
    """
    if statement_kind(literal) not in BINDING_KINDS or literal.named_parameters:
        return None
    if any(token.is_name and token.name in _UNBINDABLE_FUNCTIONS for token in tokens):
        return None
    if statement_kind(literal) != "SELECT" and any(
        token.kind == "keyword" and token.name in _KEYWORDS_WITHOUT_PARAMETERS for token in tokens
    ):
        return None
    seen = _tokens_outside_values(tokens, bound)
    text, values = text_with_markers(bound)
    try:
        statements = connection.extract_statements(text)
        outside = _tokens_outside_values(tokenize(text), bound)
    except duckdb.Error:  # the grammar allows no parameter there
        bound.render(DUCKDB.write)
        return None
    names = {str(number) for number in range(1, len(values) + 1)}
    if (
        len(statements) != 1
        or statement_kind(statements[0]) != statement_kind(literal)
        or statements[0].named_parameters != names
        or outside != seen
    ):
        raise errors.StatementRejected("Parser Error: the position of a parameter is ambiguous.")
    return ParameterizedStatement(text, statements[0], values)


def only_stores_values(tokens: Sequence[Token], bound: BoundStatement) -> bool:
    """Return whether the parameters can only become column values, so that the guard need not check every row.

    This holds if the statement calls no function: parentheses only follow keywords such as VALUES and IN, or the target
    table of an INSERT.
    """
    before, is_target = "", False
    for kind, text in _tokens_outside_values(tokens, bound):
        word = text.lower()
        if kind == "keyword" and word == "for":  # a list comprehension is a call
            return False
        if word == "(" and before and before not in _NON_CALL_KEYWORDS and not is_target:
            return False
        if word == "into" and before in {"insert", "ignore", "replace"}:
            is_target = True
        elif word == "(" or kind == "keyword":
            is_target = False
        before = word if kind in {"identifier", "keyword", "string_const"} or word == ")" else ""
    return True


def _tokens_outside_values(tokens: Sequence[Token], bound: BoundStatement) -> list[tuple[str, str]]:
    """Return the kind and text of each token that does not start inside a value.

    `tokens` come from the text that `bound` rendered last.
    """
    outside, spans, at = list[tuple[str, str]](), bound.value_spans(), 0
    for token in tokens:
        while at < len(spans) and spans[at][1] <= token.start:
            at += 1
        if at == len(spans) or token.start < spans[at][0]:
            outside.append((token.kind, token.text))
    return outside
