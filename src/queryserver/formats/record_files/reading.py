"""What the readers of files of records have in common."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from queryserver.domain.importing import ColumnType


@dataclass(frozen=True, slots=True)
class RecordColumn:
    """A column, as the file names and types it."""

    name: str
    type: ColumnType


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Some rows: one column for each of the file, named by its position.

    Values are of the type of their column, or texts of such values. `strange`: rows that cannot be read, from 0, and
    why; all their values are null.
    """

    rows: pa.RecordBatch
    strange: Sequence[tuple[int, str]] = field(default=())


class RecordFile(Protocol):
    """A file of records that is open."""

    columns: Sequence[RecordColumn]

    def batches(self) -> Iterator[RecordBatch]:
        """All rows, in bounded memory."""
        ...
