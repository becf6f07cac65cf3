"""What reads workbooks (Contract importer 12.2, 14.4). The work is done by worker processes with limits.

Every call may raise FileCorrupt, FileEncrypted, FileTooComplex (a limit of section 14.4, of memory or of time),
UnsupportedFormat (no workbook).
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from queryserver.domain.importing import TypedText


@dataclass(frozen=True, slots=True)
class SheetRows:
    """The first rows of a worksheet. `is_whole`: there are no more."""

    rows: Sequence[Sequence[TypedText]]
    is_whole: bool


class WorkbookReader(Protocol):
    """Reads files of the local disk; nothing of them reaches this process but text of cells."""

    async def sheet_names(self, path: Path) -> Sequence[str]:
        """Worksheets in the order of the workbook, hidden ones included, chart sheets left out."""
        ...

    async def first_rows(self, path: Path, sheet: str, *, limit: int) -> SheetRows:
        """The used range from its first row on, at most `limit` rows, all of one width. Raises SheetNotFound."""
        ...

    def rows(self, path: Path, sheet: str) -> AsyncGenerator[Sequence[Sequence[TypedText]]]:
        """All rows in portions of a few hundred, in bounded memory. Raises SheetNotFound."""
        ...
