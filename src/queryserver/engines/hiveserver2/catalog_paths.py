"""Where the values of a nested path are found: Hive and Spark explode, Impala joins a table with its own column."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from queryserver.domain.catalog import TableColumn
from queryserver.domain.errors import NotSupported
from queryserver.engines.hiveserver2.catalog_quoting import quoted
from queryserver.engines.hiveserver2.catalog_types import NestedType, parse_type


@dataclass(frozen=True, slots=True)
class Place:
    """A FROM clause in which `expression` has the values; `type` is their type text, `name` the last segment."""

    source: str
    expression: str
    type: str
    name: str

    @property
    def kind(self) -> NestedType:
        """The type taken apart."""
        return parse_type(self.type)


def exploded(table: str, column: TableColumn, nested: Sequence[str]) -> Place:
    """With LATERAL VIEW explode. Raises NotSupported for a path that the type does not have."""
    return _walk(table, column, nested, _explode)


def joined(table: str, column: TableColumn, nested: Sequence[str]) -> Place:
    """With Impala's joins of collections. Raises NotSupported for a path that the type does not have."""
    return _walk(table, column, nested, _join)


def _walk(
    table: str, column: TableColumn, nested: Sequence[str], enter: Callable[[Place, int, str], tuple[str, str]]
) -> Place:
    place = Place(f"{table} t", f"t.{quoted(column.name)}", column.type, column.name)
    for number, segment in enumerate(nested, start=1):
        kind = place.kind
        part = kind.part(segment)
        if part is None:
            raise NotSupported(f"Below {place.name} there is no {segment}.")
        name, text = part
        if kind.base == "struct":
            place = Place(place.source, f"{place.expression}.{quoted(name)}", text, name)
        else:
            source, expression = enter(place, number, name)
            place = Place(source, expression, text, name)
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
