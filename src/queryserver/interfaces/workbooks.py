"""What reads workbooks (Contract importer 12.2, 14.4). The work is done by worker processes with limits.

Every call may raise FileCorrupt, file_encrypted, FileTooComplex (a limit of section 14.4, of memory or of time),
UnsupportedFormat (no workbook).
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from queryserver.domain.importing import FileType, TypedText


@dataclass(frozen=True, slots=True)
class SheetRows:
    """The first rows of a worksheet. `is_whole`: there are no more."""

    rows: Sequence[Sequence[TypedText]]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class RecordPortion:
    """Some rows of a file of records, one column for each of the file.

    Values are of the type that the preview gives, or texts of such values. `strange`: rows that cannot be read, from 0
    in the portion, and why.
    """

    rows: pa.RecordBatch
    strange: Sequence[tuple[int, str]] = ()


class WorkbookReader(Protocol):
    """Reads workbooks and files of records. They lie on the local disk; nothing but cells reaches this process."""

    async def sheet_names(self, path: Path) -> Sequence[str]:
        """Worksheets in the order of the workbook, hidden ones included, chart sheets left out."""
        ...

    async def first_rows(self, path: Path, sheet: str, *, limit: int) -> SheetRows:
        """The used range from its first row on, at most `limit` rows, all of one width. Raises sheet_not_found."""
        ...

    def rows(self, path: Path, sheet: str) -> AsyncGenerator[Sequence[Sequence[TypedText]]]:
        """All rows in portions of a few hundred, in bounded memory. Raises sheet_not_found."""
        ...

    async def record_preview(self, path: Path, kind: FileType) -> Mapping[str, Any]:
        """The columns and first rows of a file of records, as JSON that `computed.analysis_of` reads.

        This call and the next raise format_mismatch, file_empty, too_many_columns and record_too_long, too.
        """
        ...

    def record_batches(self, path: Path, kind: FileType, fields: Sequence[str]) -> AsyncGenerator[RecordPortion]:
        """All rows of a file of records that has these columns, in bounded memory."""
        ...


class AvroReader(Protocol):
    """Shows Avro files, wherever they lie."""

    def avro_lines(self, pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
        """The records of a file, given in pieces, as JSON Lines in pieces of some 64 KiB.

        Raises what `pieces` raise, DecompressionFailed, CodecNotAvailable, FileTooComplex and TooManyRequests.
        """
        ...
