"""A file as portions of rows for a table, in bounded memory (Contract importer 13.2)."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa

from queryserver.domain.importing import FileType, TypedText
from queryserver.formats.converting.rows import BadRow, Portion, RowConverter
from queryserver.formats.delimited.blocks import Block, BlockReader
from queryserver.interfaces.workbooks import WorkbookReader
from queryserver.services.importing.files import ImportFile
from queryserver.services.importing.kept_rows import KeptRows
from queryserver.services.importing.plans import ImportPlan

T = TypeVar("T")

_BATCH_BYTES = 4 * 1024 * 1024
"""No batch for a loader is much larger (interfaces.loading)."""


@dataclass(slots=True)
class Counted:
    """What one pass over a file has seen so far."""

    rows: int = 0
    bad: int = 0
    undecodable: int = 0
    """Characters."""
    explained: list[BadRow] = field(default_factory=list[BadRow])

    def add(self, portion: Portion) -> None:
        """Count a portion."""
        self.rows += portion.rows
        self.bad += portion.bad
        self.explained.extend(portion.explained)

    def agrees_with(self, other: "Counted") -> bool:
        """Whether another pass saw the same, as far as counts tell."""
        return (self.rows, self.bad, self.undecodable) == (other.rows, other.bad, other.undecodable)


@dataclass(frozen=True, slots=True)
class Conversion:
    """How one file becomes rows. `seen` is told of bytes of text, or of rows of a workbook, that were read."""

    plan: ImportPlan
    file: ImportFile
    workbooks: WorkbookReader
    threads: Executor
    seen: Callable[[int], None]

    async def count(self, *, explain: int, kept: KeptRows | None = None) -> Counted:
        """Convert everything: counts, reasons of the first bad rows, and the good rows, as far as `kept` takes them."""
        counted = Counted()
        # Where nothing is kept, columns that take any text need not be converted.
        columns = [column for column in self.plan.columns if kept is not None or not column.takes_all]
        portions = self._portions(RowConverter(columns, explain=explain), counted)
        async with aclosing(portions), aclosing(ahead(portions)) as coming:
            async for portion in coming:
                counted.add(portion)
                if kept is not None:
                    await kept.add(portion.batch)
        return counted

    async def batches(self, counted: Counted) -> AsyncGenerator[pa.RecordBatch]:
        """The good rows, in batches of a few MiB. The next ones are made while somebody works on the last."""
        portions = self._portions(RowConverter(self.plan.columns, explain=0), counted)
        async with aclosing(portions), aclosing(ahead(portions)) as coming:
            async for portion in coming:
                counted.add(portion)
                for batch in pieces(portion.batch):
                    yield batch

    def _portions(self, converter: RowConverter, counted: Counted) -> AsyncGenerator[Portion]:
        reading = self.plan.reading
        if reading.records is not None:
            return self._of_records(converter, reading.records)
        return (
            self._of_text(converter, counted) if reading.sheet is None else self._of_workbook(converter, reading.sheet)
        )

    async def _of_records(self, converter: RowConverter, kind: FileType) -> AsyncGenerator[Portion]:
        run, record = asyncio.get_running_loop().run_in_executor, 1
        async with (
            self.file.on_disk() as path,
            aclosing(self.workbooks.record_batches(path, kind, self.plan.reading.fields)) as portions,
            aclosing(ahead(portions)) as coming,
        ):
            async for portion in coming:
                yield await run(self.threads, converter.records, portion.rows, portion.strange, record)
                record += portion.rows.num_rows
                self.seen(portion.rows.num_rows)

    async def _of_text(self, converter: RowConverter, counted: Counted) -> AsyncGenerator[Portion]:
        run, has_header = asyncio.get_running_loop().run_in_executor, self.plan.reading.has_header
        blocks = self._blocks(counted)
        async with aclosing(blocks), aclosing(ahead(blocks)) as coming:
            async for block in coming:
                yield await run(self.threads, lambda block=block: converter.block(block, has_header=has_header))

    async def _blocks(self, counted: Counted) -> AsyncGenerator[Block]:
        reading = self.plan.reading
        reader = BlockReader(reading.delimiters, reading.encoding, reading.width)
        run = asyncio.get_running_loop().run_in_executor
        async with aclosing(self.file.read()) as pieces:
            async for piece in pieces:
                for block in await run(self.threads, list[Block], reader.feed(piece)):
                    yield block
                self.seen(len(piece))
        for block in await run(self.threads, list[Block], reader.finish()):
            yield block
        counted.undecodable = reader.decoder.undecodable

    async def _of_workbook(self, converter: RowConverter, sheet: str) -> AsyncGenerator[Portion]:
        run = asyncio.get_running_loop().run_in_executor
        record = 1
        async with self.file.on_disk() as path, aclosing(self.workbooks.rows(path, sheet)) as portions:
            async for rows in portions:
                data: Sequence[Sequence[TypedText]] = rows
                if record == 1 and self.plan.reading.has_header:
                    record, data = 2, rows[1:]
                if data:
                    yield await run(self.threads, converter.cells, data, record)
                record += len(data)
                self.seen(len(data))


async def ahead(items: AsyncGenerator[T]) -> AsyncGenerator[T]:
    """The same; while one is worked on, the next is being made."""

    async def following() -> T | None:
        return await anext(items, None)

    coming = asyncio.create_task(following())
    try:
        while (item := await coming) is not None:
            coming = asyncio.create_task(following())
            yield item
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in batches that are not too large, if they are of about one size."""
    rows = max(1, batch.num_rows * _BATCH_BYTES // max(batch.nbytes, 1))
    return (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))
