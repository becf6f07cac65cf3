"""Conversion of rows to record batches of limited size: column readers, chunk sizes, and dates of any year as text."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa

from queryserver.errors.statements import StatementRejected
from queryserver.formats.arrow import Column, split_batch

Rows = Sequence[Sequence[Any]]
Values = Sequence[Any]


@dataclass(frozen=True, slots=True)
class DeclaredColumn:
    """A column and the intended Arrow type of its values. `ColumnReader` handles values that do not fit the type."""

    column: Column
    arrow: pa.DataType


class ColumnReader:
    """Converts one column chunk by chunk. If a value in the first chunk does not fit the type, the column becomes text.

    `read` builds an array of a given type from values in the engine's form, and raises one of `misfits` for a value
    that does not fit. `refusal` is the error message if this happens in a later chunk. `text_refusal` is the error
    message for a value that cannot be converted to text either.
    """

    def __init__(
        self,
        arrow: pa.DataType,
        read: Callable[[pa.DataType, Any], pa.Array],
        refusal: str,
        *,
        text_refusal: str = "",
        misfits: tuple[type[Exception], ...] = (pa.ArrowInvalid,),
        may_be_text: bool = True,
    ) -> None:
        self._arrow = arrow
        self._read = read
        self._refusal = refusal
        self._text_refusal = text_refusal or refusal
        self._misfits = misfits
        self._may_be_text = may_be_text and arrow != pa.string()

    def read(self, values: Any) -> pa.Array:
        """Convert the next values.

        Raises StatementRejected if a value does not fit the type fixed by the first chunk.
        """
        try:
            array = self._read(self._arrow, values)
        except self._misfits as error:
            if not self._may_be_text:
                raise StatementRejected(self._text_refusal if self._arrow == pa.string() else self._refusal) from error
            self._arrow, self._may_be_text = pa.string(), False
            return self.read(values)
        self._may_be_text = False
        return array


def record_batch(rows: Rows, names: Sequence[str], readers: Sequence[Callable[[Values], pa.Array]]) -> pa.RecordBatch:
    """Convert rows to an Arrow batch with one reader per column. No rows result in an empty batch."""
    by_column = list(zip(*rows, strict=True)) or [()] * len(names)
    arrays = [read(values) for read, values in zip(readers, by_column, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def offsets(values: Values) -> pa.Array:
    """Return Arrow list offsets: the start of each list in the flattened items, then the end of the last list."""
    ends = itertools.accumulate((0 if value is None else len(value) for value in values), initial=0)
    return pa.array(ends, pa.int32())


def nulls(values: Values) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())


_DAYS_OF_400_YEARS = 146_097
"""The number of days after which the Gregorian calendar repeats."""


def calendar_date(days: int) -> tuple[str, bool]:
    """Return the ISO date for days since 1970-01-01, for any year, and whether the year is BC."""
    cycles, rest = divmod(days + date(1970, 1, 1).toordinal() - 1, _DAYS_OF_400_YEARS)
    within = date.fromordinal(rest + 1)
    year = within.year + 400 * cycles
    return f"{year if year > 0 else 1 - year:04}-{within:%m-%d}", year <= 0


def clock_text(seconds: int) -> str:
    """Format seconds since midnight as `10:20:30`."""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


BATCH_BYTES = 4 * 1024 * 1024
"""Target batch size. A single row that exceeds it still forms a batch."""

_FIRST_ROWS = 256
_GROWTH = 8
_MAX_ROWS = 10_000


class ChunkSize:
    """The row count of the next chunk.

    It is small at first. Later chunks contain as many rows as fit in `BATCH_BYTES` at the previous batch's row width,
    up to a maximum number of rows.
    """

    rows = _FIRST_ROWS

    def adapt(self, batch: pa.RecordBatch) -> None:
        """Adapt to the average row width of `batch`."""
        row_bytes = max(batch.nbytes // max(batch.num_rows, 1), 1)
        fitting = BATCH_BYTES // row_bytes
        self.rows = max(min(fitting, self.rows * _GROWTH, _MAX_ROWS), 1)


def slice_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slice a batch in order, without copying, into batches of at most `BATCH_BYTES` or of a single larger row.

    An empty batch yields nothing.
    """
    return split_batch(batch, BATCH_BYTES) if batch.num_rows else iter(())
