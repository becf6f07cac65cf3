"""In-memory files and workbooks, for tests of the code that reads files for import."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from queryserver.errors.files import sheet_not_found
from queryserver.formats.table_files import TypedText
from queryserver.workbooks.reader import SheetRows


@dataclass
class MemoryFile:
    """An ImportFile in memory, which counts the bytes that are read."""

    content: bytes
    fixed_identity: str | None = None
    piece_bytes: int = 1024 * 1024
    readings: int = 0
    read_bytes: int = 0
    copies: int = 0

    @property
    def display_name(self) -> str:
        return "memory.csv"

    @property
    def size_bytes(self) -> int:
        return len(self.content)

    async def read(self, *, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes]:
        self.readings += 1
        end = len(self.content) if length is None else min(offset + length, len(self.content))
        for start in range(offset, end, self.piece_bytes):
            piece = self.content[start : min(start + self.piece_bytes, end)]
            self.read_bytes += len(piece)
            yield piece

    @asynccontextmanager
    async def on_disk(self) -> AsyncGenerator[Path]:
        self.copies += 1
        yield Path("memory.xlsx")


@dataclass
class MemoryWorkbooks:
    """Replaces ProcessWorkbooks. It returns the sheets of one workbook for any file."""

    sheets: Mapping[str, Sequence[Sequence[TypedText]]] = field(default_factory=dict)
    looks: int = 0

    async def sheet_names(self, path: Path) -> Sequence[str]:
        del path
        self.looks += 1
        return list(self.sheets)

    async def first_rows(self, path: Path, sheet: str, *, limit: int, skip: int = 0) -> SheetRows:
        del path
        self.looks += 1
        rows = self._rows(sheet)
        return SheetRows(rows[:limit], is_whole=len(rows) <= limit)

    async def rows(self, path: Path, sheet: str) -> AsyncGenerator[Sequence[Sequence[TypedText]]]:
        del path
        yield self._rows(sheet)

    def _rows(self, sheet: str) -> Sequence[Sequence[TypedText]]:
        if sheet not in self.sheets:
            raise sheet_not_found(f"There is no sheet {sheet}.")
        return self.sheets[sheet]
