"""Values of exports: where rows go, and what an export reports."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from queryserver.formats.arrow import Column, ResultType
from queryserver.statements.job_session import JobReport

SUMMARY_COLUMNS = (
    Column("rows", ResultType.BIGINT, "BIGINT"),
    Column("bytes", ResultType.BIGINT, "BIGINT"),
    Column("files", ResultType.BIGINT, "BIGINT"),
    Column("path", ResultType.STRING, "STRING"),
    Column("table", ResultType.STRING, "STRING"),
    Column("schema", ResultType.STRING, "STRING"),
)
_ARROW_TYPES = (pa.int64(), pa.int64(), pa.int64(), pa.string(), pa.string(), pa.string())


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """What an export has written: files (`bytes`, `files`, `path`) or a table (`table`)."""

    rows: int
    schema: str
    """JSON array with an object of `name` and `type` for each column."""
    bytes: int | None = None
    files: int | None = None
    path: str | None = None
    table: str | None = None

    @property
    def batch(self) -> pa.RecordBatch:
        """The one row that becomes the result of the statement."""
        values = (self.rows, self.bytes, self.files, self.path, self.table, self.schema)
        arrays = [pa.array([value], kind) for value, kind in zip(values, _ARROW_TYPES, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in SUMMARY_COLUMNS])


class RowSink(Protocol):
    """Writes all rows of one export."""

    async def write(
        self, columns: Sequence[Column], batches: AsyncIterator[pa.RecordBatch], report: JobReport
    ) -> ExportSummary:
        """Write all rows, or nothing that others can see.

        The schemas of the batches may differ (Contract editor 6.3). Sets the progress and adds log lines to `report`,
        but not the summary. Raises QueryServerError and the errors of `batches`.
        """
        ...
