"""Rows of asyncmy, which hold the server's bytes, to record batches with one Arrow type per column.

A date out of the calendar (`0000-00-00`, `2024-02-00`) has no place in Arrow's date types. When one stands in the first
chunk, the column is text in the server's form for the whole result. When the first one comes later, rows of the other
type are already out, and the statement fails with a message that names the column and the cure.
"""

from collections.abc import Sequence

import pyarrow as pa

from queryserver.domain.errors.statements import StatementRejected
from queryserver.engines.mysql.declared import DeclaredColumn

Values = Sequence[bytes | None]


class ColumnReader:
    """Reads one column, chunk by chunk."""

    def __init__(self, declared: DeclaredColumn) -> None:
        self._declared = declared
        self._arrow = declared.arrow
        self._is_decided = False

    def read(self, values: Values) -> pa.Array:
        """The next values. Raises StatementRejected for one that does not fit what the first chunk decided."""
        try:
            array = _read(self._arrow, values)
        except pa.ArrowInvalid as error:
            if self._is_decided or self._arrow == pa.string():
                raise StatementRejected(self._misfit()) from error
            self._arrow = pa.string()
            array = self._read_as_text(values)
        self._is_decided = True
        return array

    def _read_as_text(self, values: Values) -> pa.Array:
        try:
            return _read(self._arrow, values)
        except pa.ArrowInvalid as error:
            raise StatementRejected(self._misfit()) from error

    def _misfit(self) -> str:
        name, native = self._declared.name, self._declared.native_type
        if self._arrow == pa.string():
            return f"column `{name}` holds text that is not UTF-8"
        return (
            f"column `{name}` holds a value that type {native} cannot carry (a date out of the calendar)"
            " after rows that could: cast the column to char"
        )


def _read(wanted: pa.DataType, values: Values) -> pa.Array:
    """Raises pa.ArrowInvalid."""
    if wanted == pa.binary():
        return pa.array(values, wanted)
    if wanted == pa.bool_():
        return pa.array([None if value is None else value != b"\0" for value in values], wanted)
    if wanted == pa.null():
        return pa.nulls(len(values))
    return pa.array(values, pa.string()).cast(wanted)


class RowReader:
    """Reads the rows of one result."""

    def __init__(self, declared: Sequence[DeclaredColumn]) -> None:
        self._names = [column.name for column in declared]
        self._readers = [ColumnReader(column) for column in declared]

    def read(self, rows: Sequence[Sequence[bytes | None]]) -> pa.RecordBatch:
        """The next rows as one batch."""
        by_column: Sequence[Values] = list(zip(*rows, strict=True)) or [()] * len(self._readers)
        arrays = [reader.read(values) for reader, values in zip(self._readers, by_column, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=self._names)
