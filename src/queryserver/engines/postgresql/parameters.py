"""Renders parameters as PostgreSQL markers (`$1`, …), and sends each value as text with a cast to its type.

The server therefore treats parameters like quoted literals with a cast. A string without a declared type is first sent
without a cast, and the server reports the type that it expects. An untyped null is written as NULL, which is valid even
where an untyped parameter is not.
"""

import math
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import date, datetime, time
from decimal import Decimal
from itertools import groupby
from types import MappingProxyType
from typing import Protocol

from asyncpg.prepared_stmt import PreparedStatement
from asyncpg.types import Type

from queryserver.engines.postgresql.wire import CompletionTap, Field
from queryserver.sql.markers import BoundStatement, sql_text
from queryserver.sql.parameters import Parameter, ParameterSupport, ParameterType

T = ParameterType
PARAMETERS = ParameterSupport(
    frozenset(T), not_finite=True, not_finite_decimals=True, decimal_digits=1000, even_arrays=True
)

_TEXTS = frozenset({18, 19, 25, 1042, 1043})
"""Types to which a string can be bound directly: char, name, text, bpchar and varchar."""
_INT = 2**31
_TYPES: Mapping[ParameterType, str] = MappingProxyType({
    T.BOOLEAN: "boolean",
    T.BIGINT: "bigint",
    T.DOUBLE: "double precision",
    T.DECIMAL: "numeric",
    T.VARCHAR: "text",
    T.DATE: "date",
    T.TIME: "time",
    T.TIMESTAMP: "timestamp",
    T.TIMESTAMP_TZ: "timestamptz",
    T.BINARY: "bytea",
})  # fmt: skip


class PostgresqlValues:
    """One statement's parameters: the statement text with markers, and the values to send. NULLs have no marker."""

    def __init__(self, statement: BoundStatement) -> None:
        self._statement = statement
        values = statement.values
        self._sent = [number for number, one in enumerate(values) if one.value is not None]
        self.texts: Sequence[str] = tuple(_text(values[number]) for number in self._sent)

    def sql(self, wanted: Sequence[str] = ()) -> str:
        """Return the text with markers. `wanted` contains the type names that the server inferred, in marker order."""
        markers = {number: marker for marker, number in enumerate(self._sent, start=1)}

        def write(number: int, one: Parameter) -> str:
            if one.type is None:
                return "NULL"
            if one.value is None:
                return f"CAST(NULL AS {type_name(one)})"
            marker = markers[number]
            name = type_name(one)
            if one.type is T.VARCHAR and one.is_plain:
                if not wanted:
                    return f"${marker}"
                name = wanted[marker - 1]
            return f"CAST(${marker}::text AS {name})"

        return sql_text(self._statement, write)

    def has_other_types(self, wanted: Sequence[Type]) -> bool:
        """Return whether the server expects a type other than text for any of the strings sent without a cast."""
        return len(wanted) == len(self.texts) and any(one.oid not in _TEXTS for one in wanted)


def type_name(one: Parameter) -> str:
    """Return PostgreSQL's name for the type of a value.

    An untyped integer gets the type that a literal with the same digits would have.
    """
    if one.type is T.ARRAY:
        return f"{_element_name(one)}[]"
    if one.type is T.BIGINT and one.is_plain and isinstance(one.value, int) and -_INT <= one.value < _INT:
        return "integer"
    return "text" if one.type is None else _TYPES[one.type]


def _element_name(one: Parameter) -> str:
    kinds = {leaf.type for leaf in one.leaves}
    if len(kinds) > 1:  # mixed numeric types
        return "double precision" if T.DOUBLE in kinds else "numeric"
    names = {type_name(leaf) for leaf in one.leaves}
    # Only integers can have two type names.
    return names.pop() if len(names) == 1 else _TYPES[T.BIGINT] if names else "text"


def _text(one: Parameter) -> str:
    match one.value:
        case bool():
            return "true" if one.value else "false"
        case float() if not math.isfinite(one.value):
            return "NaN" if math.isnan(one.value) else "Infinity" if one.value > 0 else "-Infinity"
        case Decimal():
            return format(one.value, "f")
        case datetime():
            return one.value.isoformat(" ")
        case date() | time():
            return one.value.isoformat()
        case bytes():
            return f"\\x{one.value.hex()}"
        case tuple():
            return "{" + ",".join(map(_element, one.value)) + "}"
        case _:
            return str(one.value)


def _element(one: Parameter) -> str:
    """Format an array element. All elements are quoted except NULL and inner arrays."""
    if one.value is None:
        return "NULL"
    text = _text(one)
    if one.type is T.ARRAY:
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


_MAX_PREPARED = 50
Prepare = Callable[[str, PostgresqlValues | None], Awaitable[tuple[PreparedStatement, tuple[Field, ...]]]]


class CountingConnection(Protocol):
    """The connection methods that this module needs."""

    def is_in_transaction(self) -> bool: ...

    async def execute(self, query: str) -> str: ...

    async def end_transaction(self) -> bool: ...

    def counted(self) -> AbstractContextManager[CompletionTap]: ...


async def run_rows(connection: CountingConnection, statement: BoundStatement, prepare: Prepare) -> int:
    """Run the statement once per parameter row, and return the number of changed rows.

    Uses the open transaction or, if there is none, a new one. Rows from RETURNING are discarded. Adjacent rows with the
    same types and NULLs are sent together. Raises asyncpg's errors, after setting `statement.row` to the number of the
    failed row.
    """
    is_own = not connection.is_in_transaction()
    if is_own:
        await connection.execute("BEGIN")
    try:
        changed = await _run(connection, statement, prepare)
        if is_own:
            await connection.execute("COMMIT")
    except BaseException:
        if is_own:
            await connection.end_transaction()
        raise
    return changed


async def _run(connection: CountingConnection, statement: BoundStatement, prepare: Prepare) -> int:
    prepared, done, changed = dict[str, PreparedStatement](), 0, 0
    for sql, rows in groupby(map(PostgresqlValues, statement.rows), PostgresqlValues.sql):
        alike, statement.row = list(rows), done
        if sql not in prepared:
            if len(prepared) >= _MAX_PREPARED:
                prepared.clear()
            prepared[sql], _ = await prepare(sql, alike[0])
        with _numbered(connection, statement, done) as counts:
            await prepared[sql].executemany([one.texts for one in alike])
        done += len(alike)
        changed += counts.changed_rows
    return changed


@contextmanager
def _numbered(connection: CountingConnection, statement: BoundStatement, done: int) -> Generator[CompletionTap]:
    with connection.counted() as counts:
        try:
            yield counts
        except BaseException:
            statement.row = min(done + counts.commands, len(statement.rows) - 1)
            raise
