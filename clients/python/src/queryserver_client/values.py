"""Decodes rows of typed JSON to rows of Python values (Contract editor 6.3).

Decimals, dates, times, timestamps and bytes get the corresponding Python types, also within arrays, maps and structs if
the engine's type name contains the element types (`nested.py`). Intervals, UUIDs and JSON are strings, as are values
that no Python type can represent (`scalars.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from queryserver_client import scalars
from queryserver_client.nested import nested_decoder
from queryserver_client.scalars import Cell

if TYPE_CHECKING:
    from queryserver_client.generated import ColumnMeta

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Column:
    """A result column."""

    name: str
    type: str
    """Engine-independent type name: INT_TYPE, STRING_TYPE, …"""
    native_type: str
    """Type name of the engine, such as `varchar(20)` or `DECIMAL(10,2)[]`."""
    comment: str = ""


def columns_of(meta: "Sequence[ColumnMeta]") -> tuple[Column, ...]:
    """Return the columns that `meta` of a response describes."""
    return tuple(Column(item["name"], item["type"], item["native_type"], item["comment"]) for item in meta)


def decode_rows(data: Sequence[Sequence[Any]], columns: Sequence[Column]) -> list[Row]:
    """Return the decoded rows of a response."""
    decoders = {index: cell for index, column in enumerate(columns) if (cell := decoder(column)) is not None}
    if not decoders:
        return [tuple(row) for row in data]
    rows: list[Row] = []
    for row in data:
        cells = list(row)
        for index, decode in decoders.items():
            if cells[index] is not None:
                cells[index] = decode(cells[index])
        rows.append(tuple(cells))
    return rows


def decoder(column: Column) -> Cell | None:
    """Return the function that decodes the non-NULL cells of a column; None if they need no decoding."""
    native = column.native_type.strip().lower()
    if column.type in _NESTED:
        return nested_decoder(column.native_type)
    if column.type == "DECIMAL_TYPE":
        return scalars.wide_integer if native in _WIDE_INTEGERS else scalars.decimal
    if column.type == "STRING_TYPE":
        # Other types with the name STRING_TYPE stay strings, such as a time with a zone.
        return scalars.time if native.partition("(")[0].strip() in _TIMES else None
    return _BY_TYPE.get(column.type)


_BY_TYPE: Mapping[str, Cell] = {
    "FLOAT_TYPE": scalars.double,
    "DOUBLE_TYPE": scalars.double,
    "DATE_TYPE": scalars.date,
    "TIMESTAMP_TYPE": scalars.timestamp,
    "TIMESTAMPLOCALTZ_TYPE": scalars.timestamp,
    "BINARY_TYPE": scalars.binary,
}
_NESTED = frozenset({"ARRAY_TYPE", "MAP_TYPE", "STRUCT_TYPE"})
_WIDE_INTEGERS = frozenset({"hugeint", "uhugeint"})
_TIMES = frozenset({"time", "time without time zone"})
