"""Parquet and both forms of Arrow IPC: files with types (Contract editor 8.2)."""

import pyarrow as pa
import pyarrow.parquet as pq

from queryserver.domain.result import Column
from queryserver.formats.download.encoder import Drain
from queryserver.formats.download.schema import fitted

_ROW_GROUP_BYTES = 16 * 1024 * 1024
_ROW_GROUP_ROWS = 1024 * 1024


class ArrowEncoder:
    """An IPC stream or file, its buffers not compressed: several readers cannot undo that.

    The file form (Feather, version 2) is the stream between a magic number and a footer, which names the place of each
    batch: some 24 bytes a batch are kept in memory.
    """

    def __init__(self, columns: tuple[Column, ...], schema: pa.Schema, *, is_file: bool) -> None:
        self._columns = columns
        self._schema = schema
        self._sink = Drain()
        begin = pa.ipc.new_file if is_file else pa.ipc.new_stream
        self._writer = begin(pa.PythonFile(self._sink, mode="w"), schema)

    def start(self) -> bytes:
        """The schema."""
        return self._sink.take()

    def rows(self, batch: pa.RecordBatch) -> bytes:
        """One record batch."""
        self._writer.write_batch(fitted(batch, self._columns, self._schema))
        return self._sink.take()

    def end(self) -> bytes:
        """The mark of the end, and the footer."""
        self._writer.close()
        return self._sink.take()

    def close(self) -> None:
        """End the writer; what it still writes is dropped."""
        self._writer.close()


class ParquetEncoder:
    """Row groups of some 16 MiB: readers want them large, and one is held in memory."""

    def __init__(self, columns: tuple[Column, ...], schema: pa.Schema) -> None:
        self._columns = columns
        self._schema = schema
        self._sink = Drain()
        self._writer = pq.ParquetWriter(pa.PythonFile(self._sink, mode="w"), schema)
        self._collected: list[pa.RecordBatch] = []
        self._collected_bytes = self._collected_rows = 0

    def start(self) -> bytes:
        """The magic number."""
        return self._sink.take()

    def rows(self, batch: pa.RecordBatch) -> bytes:
        """A row group, when enough rows for one have come."""
        batch = fitted(batch, self._columns, self._schema)
        self._collected.append(batch)
        self._collected_bytes += batch.nbytes
        self._collected_rows += batch.num_rows
        if self._collected_bytes >= _ROW_GROUP_BYTES or self._collected_rows >= _ROW_GROUP_ROWS:
            self._write_row_group()
        return self._sink.take()

    def end(self) -> bytes:
        """The last row group and the footer."""
        if self._collected_rows:
            self._write_row_group()
        self._writer.close()
        return self._sink.take()

    def close(self) -> None:
        """End the writer; what it still writes is dropped."""
        self._writer.close()

    def _write_row_group(self) -> None:
        table = pa.Table.from_batches(self._collected)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._collected.clear()
        self._collected_bytes = self._collected_rows = 0
