"""How many rows to ask an engine for at once, when their width is not known beforehand."""

from collections.abc import Iterator

import pyarrow as pa

from queryserver.formats.cell_sizes import parts

BATCH_BYTES = 4 * 1024 * 1024
"""What a batch should weigh at most; one row may be heavier."""

_FIRST_ROWS = 256
_GROWTH = 8
_MOST_ROWS = 10_000


class ChunkSize:
    """Rows of the next chunk: few at first, then as many as weigh `BATCH_BYTES` by the widths seen so far."""

    def __init__(self) -> None:
        self.rows = _FIRST_ROWS

    def learn(self, batch: pa.RecordBatch) -> None:
        """Grow or shrink by the width of the rows in `batch`."""
        row_bytes = max(batch.nbytes // max(batch.num_rows, 1), 1)
        fitting = BATCH_BYTES // row_bytes
        self.rows = max(min(fitting, self.rows * _GROWTH, _MOST_ROWS), 1)


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in order, cut (without copying) into parts of at most `BATCH_BYTES`, or of one row."""
    return parts(batch, BATCH_BYTES) if batch.num_rows else iter(())
