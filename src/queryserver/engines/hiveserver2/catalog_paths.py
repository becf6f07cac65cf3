"""Where the values of a nested path are found: Hive and Spark explode, Impala joins a table with its own column."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from queryserver.domain.catalog import TableColumn
from queryserver.domain.errors.base import NotSupported
from queryserver.domain.sql_types import SqlType, parse_type
from queryserver.engines.hiveserver2.catalog_quoting import quoted


@dataclass(frozen=True, slots=True)
class Place:
    """A FROM clause in which `expression` has the values; `name` is the last segment of their path."""

    source: str
    expression: str
    type: SqlType
    name: str


def exploded(table: str, column: TableColumn, nested: Sequence[str]) -> Place:
    """With LATERAL VIEW explode. Raises NotSupported for a path that the type does not have."""
    return _walk(table, column, nested, _explode)


def joined(table: str, column: TableColumn, nested: Sequence[str]) -> Place:
    """With Impala's joins of collections. Raises NotSupported for a path that the type does not have."""
    return _walk(table, column, nested, _join)


def _walk(
    table: str, column: TableColumn, nested: Sequence[str], enter: Callable[[Place, int, str], tuple[str, str]]
) -> Place:
    place = Place(f"{table} t", f"t.{quoted(column.name)}", parse_type(column.type), column.name)
    for number, segment in enumerate(nested, start=1):
        part = place.type.part(segment)
        if part is None:
            raise NotSupported(f"Below {place.name} there is no {segment}.")
        if place.type.fields:
            place = Place(place.source, f"{place.expression}.{quoted(segment)}", part, segment)
        else:
            source, expression = enter(place, number, segment)
            place = Place(source, expression, part, segment)
    return place


def _explode(place: Place, number: int, part: str) -> tuple[str, str]:
    """Aliases stand behind that of their view: no column of the table can be taken for one of them."""
    columns = "item" if part == "item" else "k, v"
    view = f"x{number}"
    source = f"{place.source} LATERAL VIEW explode({place.expression}) {view} AS {columns}"
    return source, f"{view}.{ {'item': 'item', 'key': 'k', 'value': 'v'}[part] }"


def _join(place: Place, number: int, part: str) -> tuple[str, str]:
    alias = f"x{number}"
    return f"{place.source}, {place.expression} {alias}", f"{alias}.{part}"
