"""Queries for the values of a column, or of a path below it."""

from collections.abc import Sequence

from queryserver.domain.catalog import SAMPLE_ROWS, SampleKind
from queryserver.domain.errors.base import NotSupported
from queryserver.domain.sql_types import SqlType, parse_type
from queryserver.engines.quoting import identifier

_WITHOUT_ORDER = ("map(", "json")


def sample_of_column(source: str, column: str, type_text: str, path: Sequence[str], kind: SampleKind) -> str:
    """Distinct values of `source`, a quoted name, in order, or the row of the largest or smallest.

    Raises NotSupported for a path not there.
    """
    value, found, joins = _descend(identifier(column), parse_type(type_text), path)
    values = f"SELECT {value} AS {identifier(path[-1] if path else column)} FROM {source} AS t{joins}"
    name = identifier(path[-1] if path else column)
    order = f"json_format(CAST({name} AS json))" if _is_unordered(found) else name
    if kind in (SampleKind.MAX, SampleKind.MIN):
        direction = "DESC" if kind is SampleKind.MAX else "ASC"
        return f"SELECT {name} FROM ({values}) ORDER BY {order} {direction} NULLS LAST LIMIT 1"
    return (
        f"SELECT {name} FROM (SELECT DISTINCT {name} FROM ({values})) ORDER BY {order} NULLS LAST LIMIT {SAMPLE_ROWS}"
    )


def _descend(value: str, kind: SqlType, path: Sequence[str]) -> tuple[str, SqlType, str]:
    """The expression of the values at the path, their type, and the joins that it needs."""
    joins = ""
    for number, segment in enumerate(path):
        part = kind.part(segment)
        if part is None:
            raise NotSupported(f"Values of type {kind.text[:100]} have no part {segment[:100]}.")
        if kind.fields:
            # Fields are named without regard to case; those without name have their number only.
            place = next(n for n, field in enumerate(kind.fields, 1) if field.type is part)
            value = f"{value}[{place}]"
        else:
            array = _elements(value, kind, segment)
            # An array of rows would become a column per field, were each element not a row of one itself.
            joins += f" CROSS JOIN UNNEST(transform({array}, x -> ROW(x))) AS u{number}(v)"
            value = f"u{number}.v"
        kind = part
    return value, kind, joins


def _elements(value: str, kind: SqlType, segment: str) -> str:
    if kind.item is not None:
        return value
    return f"map_keys({value})" if segment == "key" else f"map_values({value})"


def _is_unordered(kind: SqlType) -> bool:
    text = kind.text.lower()
    return any(word in text for word in _WITHOUT_ORDER)
