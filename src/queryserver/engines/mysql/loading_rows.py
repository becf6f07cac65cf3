"""Arrow batches as the rows of INSERT statements, escaped by the driver."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute

from queryserver.domain.errors.statements import StatementRejected
from queryserver.engines.loading_texts import duration_text, hex_texts

_kernels: Any = pyarrow.compute

_STATEMENT_BYTES = 1024 * 1024
_ROOM_FOR_THE_REST = 64 * 1024
"""For what stands around the rows of a statement."""


@dataclass(frozen=True, slots=True)
class RowWriter:
    """Writes batches as lists of `(…), (…)` that each fit into one statement.

    `escape` gives a text between quotes, safe in the session it is for. Raises StatementRejected for what MySQL cannot
    hold: NaN, infinity, a row larger than the server takes.
    """

    escape: Callable[[str], str]
    largest_bytes: int

    def write(self, batch: pa.RecordBatch) -> list[str]:
        """The rows in order. Numbers and times are between quotes too: the server reads them by the column's type."""
        literals = [
            self._literals(name, column) for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        rows = _kernels.binary_join_element_wise(*literals, ",")
        sizes = _kernels.binary_length(rows).to_pylist()
        return list(self._lists(rows.to_pylist(), sizes))

    def _lists(self, rows: Sequence[str], sizes: Sequence[int]) -> Iterator[str]:
        largest = self.largest_bytes - _ROOM_FOR_THE_REST
        start, weight = 0, 0
        for place, size in enumerate(sizes):
            if size > largest:
                raise StatementRejected(
                    f"A row of {size} bytes is more than the server takes: its max_allowed_packet is"
                    f" {self.largest_bytes} bytes."
                )
            if place > start and weight + size > min(largest, _STATEMENT_BYTES):
                yield _list(rows[start:place])
                start, weight = place, 0
            weight += size
        if start < len(rows):
            yield _list(rows[start:])

    def _literals(self, name: str, column: pa.Array) -> pa.Array:
        kind = column.type
        if pa.types.is_string(kind):
            escaped = [None if text is None else self.escape(text) for text in column.to_pylist()]
            return _kernels.fill_null(pa.array(escaped, pa.string()), "NULL")
        if pa.types.is_binary(kind):
            return _kernels.fill_null(hex_texts(column, before="X'", behind="'"), "NULL")
        if pa.types.is_floating(kind) and not _kernels.all(_kernels.is_finite(column)).as_py():
            raise StatementRejected(f'Column "{name}": MySQL has neither NaN nor infinity.')
        if pa.types.is_boolean(kind):
            column = column.cast(pa.int8())
        text = duration_text(column) if pa.types.is_duration(kind) else column.cast(pa.string())
        return _kernels.fill_null(_kernels.binary_join_element_wise("'", text, "'", ""), "NULL")


def _list(rows: Sequence[str]) -> str:
    return f"({'),('.join(rows)})"
