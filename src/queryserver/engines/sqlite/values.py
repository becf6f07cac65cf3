"""Rows of SQLite as Arrow: each value keeps its own storage class, whatever its column declares."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from queryserver.domain.result import Column, ResultType
from queryserver.engines.sqlite.types import Cell

_ARROW: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
}
_WHEN_EMPTY: dict[ResultType, pa.DataType] = {
    ResultType.BOOLEAN: pa.bool_(),
    ResultType.BIGINT: pa.int64(),
    ResultType.DOUBLE: pa.float64(),
    ResultType.BINARY: pa.binary(),
}


def batch_of(rows: Sequence[Sequence[Cell]], columns: Sequence[Column]) -> pa.RecordBatch:
    """One batch. A column whose values are of one class has its plain type, a mixed one is a dense union."""
    by_column = zip(*rows, strict=True) if rows else [()] * len(columns)
    arrays = [_array(values, column.type) for values, column in zip(by_column, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


def _array(values: Sequence[Cell], declared: ResultType) -> pa.Array:
    if declared is ResultType.BOOLEAN:
        values = [bool(value) if type(value) is int and value in (0, 1) else value for value in values]
    classes = set(map(type, values)) - {type(None)}
    if len(classes) > 1:
        return _mixed(values, sorted(classes, key=list(_ARROW).index))
    plain = _ARROW[classes.pop()] if classes else _WHEN_EMPTY.get(declared, pa.string())
    return pa.array(values, plain)


def _mixed(values: Sequence[Cell], classes: list[type]) -> pa.Array:
    """A dense union with one member per class; NULL is a NULL of the first."""
    members: list[list[Any]] = [[] for _ in classes]
    number = {kind: place for place, kind in enumerate(classes)} | {type(None): 0}
    codes, offsets = list[int](), list[int]()
    for value in values:
        code = number[type(value)]
        codes.append(code)
        offsets.append(len(members[code]))
        members[code].append(value)
    children = [pa.array(member, _ARROW[kind]) for member, kind in zip(members, classes, strict=True)]
    names = [kind.__name__ for kind in classes]
    return pa.UnionArray.from_dense(pa.array(codes, pa.int8()), pa.array(offsets, pa.int32()), children, names)
