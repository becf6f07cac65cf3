"""Values of parameters for PostgreSQL: `$1`, each sent as text, with a cast to the type that it has.

So the server reads them as it reads a quoted literal with a cast. A text without a type is bare at first: the server
says which type its place wants. A plain null is the word NULL, which may stand where a parameter without type may not.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from types import MappingProxyType

from asyncpg.types import Type

from queryserver.sql.parameters import Parameter, ParameterSupport, ParameterType
from queryserver.sql.places import Bound, written

T = ParameterType
PARAMETERS = ParameterSupport(
    frozenset(T), not_finite=True, not_finite_decimals=True, decimal_digits=1000, even_arrays=True
)

_TEXTS = frozenset({18, 19, 25, 1042, 1043})
"""char, name, text, bpchar, varchar: what a text may be bound to as it is."""
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
    """The values of one statement: its text with their numbers, and the texts to be sent. NULLs have no number."""

    def __init__(self, statement: Bound) -> None:
        self._statement = statement
        values = statement.values
        self._sent = [number for number, one in enumerate(values) if one.value is not None]
        self.texts: Sequence[str] = tuple(_text(values[number]) for number in self._sent)

    def sql(self, wanted: Sequence[str] = ()) -> str:
        """`wanted`: the names of the types that the server found for the numbers, in their order."""
        places = {number: place for place, number in enumerate(self._sent)}

        def write(number: int, one: Parameter) -> str:
            if one.type is None:
                return "NULL"
            if one.value is None:
                return f"CAST(NULL AS {type_name(one)})"
            place = places[number]
            name = type_name(one)
            if one.type is T.VARCHAR and one.is_plain:
                if not wanted:
                    return f"${place + 1}"
                name = wanted[place]
            return f"CAST(${place + 1}::text AS {name})"

        return written(self._statement, write)

    def has_other_types(self, wanted: Sequence[Type]) -> bool:
        """Whether a bare text stands where the server wants no text."""
        return len(wanted) == len(self.texts) and any(one.oid not in _TEXTS for one in wanted)


def type_name(one: Parameter) -> str:
    """The type of a value. An integer without one has that of the same digits in a statement."""
    if one.type is T.ARRAY:
        return f"{_element_name(one)}[]"
    if one.type is T.BIGINT and one.is_plain and isinstance(one.value, int) and -_INT <= one.value < _INT:
        return "integer"
    return "text" if one.type is None else _TYPES[one.type]


def _element_name(one: Parameter) -> str:
    kinds = {leaf.type for leaf in one.leaves}
    if len(kinds) > 1:  # numbers of several types
        return "double precision" if T.DOUBLE in kinds else "numeric"
    names = {type_name(leaf) for leaf in one.leaves}
    # Integers alone have two names.
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
    """In an array, where only NULL and inner arrays stand without quotes."""
    if one.value is None:
        return "NULL"
    text = _text(one)
    if one.type is T.ARRAY:
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
