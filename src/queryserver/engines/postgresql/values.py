"""Rows of asyncpg to record batches with one Arrow type per column for the whole result.

The Arrow type follows from the declared type. Some values have no place in it: a numeric NaN, dates out of the
calendar (`infinity`, BC, after 9999), arrays of another dimension. When one stands in the first chunk, the column is
text in the server's form for the whole result. When the first one comes later, rows of the other type are already out,
and the statement fails with a message that names the column and the cure.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from queryserver.domain.errors.statements import StatementRejected
from queryserver.engines.postgresql.declared import DeclaredType, Kind
from queryserver.engines.postgresql.leaves import Unfit, native_as_text, read_native
from queryserver.engines.postgresql.nested import NESTED, dimensions_of, read_nested, with_fields

Values = Sequence[Any]


class ColumnReader:
    """Reads one column, chunk by chunk."""

    def __init__(self, name: str, declared: DeclaredType) -> None:
        self._name = name
        self._declared = declared
        self._read: Callable[[Values], pa.Array] | None = None

    def read(self, values: Values) -> pa.Array:
        """The next values. Raises StatementRejected for one that does not fit what the first chunk decided."""
        try:
            if self._read is None:
                self._read = _reader_for(self._declared, values)
            return self._read(values)
        except Unfit as error:
            message = (
                f'column "{self._name}" holds a value that type {self._declared.name} cannot carry'
                f" (infinity, NaN, BC, another array dimension) after rows that could: cast the column to text"
            )
            raise StatementRejected(message) from error


def _reader_for(declared: DeclaredType, first: Values) -> Callable[[Values], pa.Array]:
    try:
        read = _typed_reader(declared, first)
        read(first)
    except Unfit:
        return partial(native_as_text, declared)
    return read


def _typed_reader(declared: DeclaredType, first: Values) -> Callable[[Values], pa.Array]:
    if declared.kind is Kind.RECORD:
        declared = with_fields(declared, first)
    if declared.kind not in NESTED:
        return partial(read_native, declared)
    dimensions = dimensions_of(declared, first) if declared.kind is Kind.ARRAY else 1
    return partial(read_nested, declared, dimensions=max(dimensions, 1))


class RowReader:
    """Reads the rows of one result."""

    def __init__(self, names: Sequence[str], declared: Sequence[DeclaredType]) -> None:
        self._names = list(names)
        self._readers = [ColumnReader(name, kind) for name, kind in zip(names, declared, strict=True)]

    def read(self, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        """The next rows as one batch."""
        by_column: Sequence[Values] = list(zip(*rows, strict=True)) or [()] * len(self._readers)
        arrays = [reader.read(values) for reader, values in zip(self._readers, by_column, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=self._names)
