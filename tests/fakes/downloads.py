"""A finished in-memory result for download tests."""

from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial

import pyarrow as pa

from queryserver.errors.files import StorageError
from queryserver.formats.arrow import Column, ResultType
from queryserver.formats.download.encoder import ContentCoding, DownloadFormat, FileForm, PackedRows
from queryserver.formats.download.stream import download
from queryserver.results.segments import encode, head_length


class StoredTables:
    """Implements `ResultSource` over in-memory tables.

    If `fails_after` is set, `tables` fails after yielding that many tables.
    """

    def __init__(
        self, columns: Sequence[Column], tables: Sequence[pa.Table], *, fails_after: int | None = None
    ) -> None:
        self.columns = tuple(columns)
        self.rows = sum(table.num_rows for table in tables)
        self.open_reads = 0
        self._tables = tables
        self._fails_after = fails_after

    async def tables(self) -> AsyncGenerator[pa.Table]:
        self.open_reads += 1
        try:
            for number, table in enumerate(self._tables):
                if number == self._fails_after:
                    raise StorageError("The segment cannot be read.")
                yield table
        finally:
            self.open_reads -= 1

    async def schemas(self) -> AsyncGenerator[pa.Schema]:
        for table in self._tables:
            yield table.schema

    async def packed(self) -> AsyncGenerator[PackedRows]:
        for table in self._tables:
            stored = encode(table)
            yield PackedRows(stored[: head_length(stored)], len(stored), partial(self._part, stored))

    async def _part(self, stored: bytes, start: int, stop: int) -> bytes:
        return stored[start:stop]


def column(name: str, kind: ResultType) -> Column:
    return Column(name, kind, "")


def one_column(array: pa.Array, kind: ResultType, name: str = "c") -> StoredTables:
    """Return a result with one column that contains the values of `array`."""
    return StoredTables([column(name, kind)], [pa.table([array], names=[name])])


async def downloaded(
    source: StoredTables, wanted: DownloadFormat, *, guard: bool = False, coding: ContentCoding = ContentCoding.IDENTITY
) -> bytes:
    """Return the content of a complete download."""
    with ThreadPoolExecutor(2) as threads:
        async with aclosing(download(source, FileForm(wanted, guard, coding), threads=threads)) as pieces:
            return b"".join([piece async for piece in pieces])
