"""Executes imports. The statement runner uses each import in place of an engine session (Contract importer 13.2 to
13.4).

The whole file is converted and its bad rows are counted before anything is loaded. Meanwhile, the converted rows are
kept in a scratch file. If they do not fit, the file is read and converted a second time.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import BinaryIO, TypeVar

import pyarrow as pa
import structlog

from queryserver.engines import protocol
from queryserver.errors.statements import EngineError, StatementRejected, rejected_by_rule
from queryserver.formats.arrow import Column, ResultType, split_batch
from queryserver.formats.conversion import BadRow, ConvertedRows, RowConverter
from queryserver.formats.delimited.records import Block, BlockReader
from queryserver.formats.table_files import FileType, TypedText
from queryserver.identity.model import User
from queryserver.imports.model import Origin
from queryserver.imports.plans import ImportPlan, read_plan
from queryserver.imports.repository import StatementLedger, UnfinishedTables
from queryserver.imports.uploads import ImportFile, ImportSources
from queryserver.platform.threads import renewed
from queryserver.sql.markers import BoundStatement
from queryserver.statements.job_session import JobReport, JobSession
from queryserver.statements.model import Assignment
from queryserver.workbooks.reader import ProcessWorkbooks

T = TypeVar("T")

log = structlog.get_logger(__name__)

MAX_BYTES = 1024 * 1024 * 1024
"""Maximum size of the scratch file with the converted rows of one import."""
MAX_EXPLAINED_ROWS = 100
"""Maximum number of bad rows that the log explains."""

MAX_EXPLAINED_COLUMNS = 100
"""Maximum number of columns whose NULL words are listed in the log."""

_MAX_EXPLAINED_WORDS = 10
_MAX_EXPLAINED_IN_MESSAGE = 3
_COUNTING_PROGRESS = 40
_KEEP_ALIVE_EVERY_S = 10.0  # short enough even if uploads are configured to expire after a minute
_BATCH_BYTES = 4 * 1024 * 1024  # loaders receive batches of about this size (engines/protocol.py)

COLUMNS = (
    Column("rows_read", ResultType.BIGINT, "BIGINT"),
    Column("rows_loaded", ResultType.BIGINT, "BIGINT"),
    Column("rows_bad", ResultType.BIGINT, "BIGINT"),
    Column("table", ResultType.STRING, "STRING"),
)


def default_bad_row_limit(rows: int) -> int:
    """Return how many bad rows the limit `few` allows in a file: 1 %, or up to 10 in small files, but at most 100."""
    return min(MAX_EXPLAINED_ROWS, max(rows // 100, min(10, rows // 10)))


@dataclass(frozen=True, slots=True)
class ImportResult:
    rows_read: int
    rows_loaded: int
    rows_bad: int
    table: str

    @property
    def summary(self) -> pa.RecordBatch:
        """The one row of the import's result."""
        counts = [pa.array([count], pa.int64()) for count in (self.rows_read, self.rows_loaded, self.rows_bad)]
        arrays = [*counts, pa.array([self.table], pa.string())]
        return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in COLUMNS])


@dataclass(frozen=True, slots=True, eq=False)
class Imports:
    """Runs import statements.

    `open_scratch` creates an unnamed file for the converted rows. `require_room` raises InsufficientStorage if the
    given number of additional bytes does not fit on the file's disk. It blocks, so it is called in a thread.
    """

    sources: ImportSources
    workbooks: ProcessWorkbooks
    threads: Executor
    unfinished: UnfinishedTables
    open_scratch: Callable[[], BinaryIO]
    scratch_bytes: int = MAX_BYTES
    require_room: Callable[[int], object] = lambda _: None

    def session(
        self, assignment: Assignment, user: User, engine: protocol.Engine, options: protocol.SessionOptions
    ) -> AbstractAsyncContextManager[protocol.EngineSession]:
        """Open the session that runs a statement with an import plan, in place of an engine session."""
        return JobSession.opened(COLUMNS, partial(self._import, assignment, user, engine, options))

    async def _import(
        self,
        assignment: Assignment,
        user: User,
        engine: protocol.Engine,
        options: protocol.SessionOptions,
        _statement: str | BoundStatement,  # only describes the import
        context: protocol.StatementContext,
        report: JobReport,
    ) -> None:
        plan = read_plan(assignment.import_plan or {})
        is_text = plan.reading.is_text
        if not isinstance(engine, protocol.LoadingEngine):
            raise rejected_by_rule("Tables cannot be created from files on this connector.")
        find = partial(self.sources.find, user, plan.reading.origin, plan.reading.file_path)
        file = await find()

        async def keep_alive() -> bool:
            await find()
            return True

        is_upload = plan.reading.origin is not Origin.REMOTE
        rows = ScratchRows.opened(
            self.open_scratch, self.threads, max_bytes=self.scratch_bytes, require_room=self.require_room
        )
        statement_id = assignment.claim.statement_id
        ledger = StatementLedger(self.unfinished, statement_id, assignment.user_id, assignment.connector)
        async with (
            renewed(keep_alive, every_s=_KEEP_ALIVE_EVERY_S) if is_upload else nullcontext(),
            engine.loader(user, options) as loader,
            rows as scratch,
        ):
            text_bytes = file.size_bytes if is_text else None
            running = _Import(self.workbooks, self.threads, plan, file, text_bytes, report, scratch, ledger, context)
            await running.load_into(loader)


@dataclass(slots=True)
class _Import:
    workbooks: ProcessWorkbooks
    threads: Executor
    plan: ImportPlan
    file: ImportFile
    text_bytes: int | None
    """Size of a text file, from which the progress is computed. None for other files, whose number of rows is known
    only at the end.
    """
    report: JobReport
    scratch: "ScratchRows"
    ledger: StatementLedger
    context: protocol.StatementContext
    _amount_read: int = 0

    async def load_into(self, loader: protocol.TableLoader) -> ImportResult:
        # For a new table, create_table has checked that the name is free, and `load` checks it again.
        append = self.plan.append and await loader.exists(self.plan.target)
        counts = await self._count()
        try:
            return await self._load(loader, counts, append=append)
        except StatementRejected:
            if append or not self.plan.append:
                raise
            try:
                # Another client may have created the table in the meantime.
                exists_now = await loader.exists(self.plan.target)
            except EngineError:
                exists_now = False
            if not exists_now:
                raise
        return await self._load(loader, counts, append=True)

    async def _count(self) -> "ImportCounts":
        """Convert the whole file and count its rows (the first pass). Raises rejected_by_rule if too many rows are
        bad.
        """
        conversion = Conversion(self.plan, self.file, self.workbooks, self.threads, self._report_counting)
        counts = await conversion.count(max_explanations=MAX_EXPLAINED_ROWS, scratch=self.scratch)
        lines = self.report.lines
        if first := self.plan.reading.skipped.first:
            unit = "line" if self.plan.reading.is_text else "row"
            lines.append(f"Skipped the first {first} {unit}{'' if first == 1 else 's'}.")
        if counts.comments:
            unit, mark = "line" if counts.comments == 1 else "lines", self.plan.reading.skipped.comment
            lines.append(f"Left out {counts.comments} comment {unit}: {mark}")
        lines.append(f"Read {counts.rows} rows from {self.plan.shown}, {counts.bad} of them bad.")
        lines.extend(f"Bad row: {row}" for row in counts.explanations)
        if counts.bad > len(counts.explanations):
            lines.append(f"{counts.bad - len(counts.explanations)} more bad rows are not listed.")
        lines.extend(self._null_lines(counts))
        if counts.undecodable:
            lines.append(f"{counts.undecodable} characters could not be decoded and were replaced with U+FFFD.")
        max_bad_rows = self.plan.max_bad_rows
        if max_bad_rows == "few":
            max_bad_rows = default_bad_row_limit(counts.rows)
        if max_bad_rows is not None and counts.bad > max_bad_rows:
            first = "; ".join(str(row) for row in counts.explanations[:_MAX_EXPLAINED_IN_MESSAGE])
            raise rejected_by_rule(
                f"{counts.bad} of {counts.rows} rows are bad; at most {max_bad_rows} are allowed: {first}."
            )
        return counts

    def _null_lines(self, counts: "ImportCounts") -> Iterator[str]:
        """Yield log lines about words that were stored as NULL, so that no value is lost silently."""
        columns = [column for column in self.plan.columns if counts.nulls[column.name]]
        for column in columns[:MAX_EXPLAINED_COLUMNS]:
            cells, words = counts.nulls[column.name], ", ".join(map(repr, column.null_words[:_MAX_EXPLAINED_WORDS]))
            more = ", …" if len(column.null_words) > _MAX_EXPLAINED_WORDS else ""
            yield f'Read {cells} cell{"" if cells == 1 else "s"} of column "{column.name}" as NULL: {words}{more}.'
        if len(columns) > MAX_EXPLAINED_COLUMNS:
            yield f"{len(columns) - MAX_EXPLAINED_COLUMNS} more columns with values read as NULL are not listed."

    async def _load(self, loader: protocol.TableLoader, counts: "ImportCounts", *, append: bool) -> ImportResult:
        load, target_name = self.plan.load(self.ledger.statement_id, append=append), self.plan.target_name
        load = replace(load, context=self.context)
        good_rows = self._scratch_batches(counts) if self.scratch.is_whole else self._convert_again(counts)
        async with aclosing(good_rows):
            loaded = await loader.load(load, good_rows, self.ledger)
            result = ImportResult(counts.rows, loaded, counts.bad, target_name)
            self.report.summary = result.summary
        self.report.lines.append(f"Loaded {loaded} rows into {target_name}.")
        return result

    async def _scratch_batches(self, counts: "ImportCounts") -> AsyncGenerator[pa.RecordBatch]:
        loaded = 0
        async with aclosing(self.scratch.batches()) as batches:
            async for batch in batches:
                for piece in split_batch(batch, _BATCH_BYTES):
                    yield piece
                loaded += batch.num_rows
                self._report_loading(loaded, counts.rows - counts.bad)

    async def _convert_again(self, counts: "ImportCounts") -> AsyncGenerator[pa.RecordBatch]:
        """Convert the file again (the second pass). Raises rejected_by_rule if the counts differ from those of the
        first pass.
        """
        again = ImportCounts()
        self._amount_read, total = 0, counts.rows if self.text_bytes is None else self.text_bytes

        def note_read(amount: int) -> None:
            self._amount_read += amount
            self._report_loading(self._amount_read, total)

        conversion = Conversion(self.plan, self.file, self.workbooks, self.threads, note_read)
        async with aclosing(conversion.batches(again)) as batches:
            async for batch in batches:
                yield batch
        if not again.agrees_with(counts):
            raise rejected_by_rule("The file changed while it was being read; no table was created.")

    def _report_counting(self, amount: int) -> None:
        """Report the progress of the first pass as 0 to 40 %. A file with an unknown number of rows stays at 20 %."""
        self._amount_read += amount
        share = 0.5 if self.text_bytes is None else self._amount_read / max(self.text_bytes, 1)
        self.report.progress = int(_COUNTING_PROGRESS * min(share, 1))

    def _report_loading(self, done: int, total: int) -> None:
        share = min(done / max(total, 1), 1)
        self.report.progress = _COUNTING_PROGRESS + int((99 - _COUNTING_PROGRESS) * share)


@dataclass(slots=True)
class ImportCounts:
    rows: int = 0
    bad: int = 0
    undecodable: int = 0
    """Number of undecodable characters."""
    comments: int = 0
    """Number of skipped comment lines."""
    explanations: list[BadRow] = field(default_factory=list[BadRow])
    nulls: Counter[str] = field(default_factory=Counter[str])
    """Number of cells that contain a NULL word, by column name."""

    def add(self, portion: ConvertedRows) -> None:
        self.nulls.update(portion.nulls)
        self.rows += portion.rows
        self.bad += portion.bad
        self.explanations.extend(portion.explanations)

    def agrees_with(self, other: "ImportCounts") -> bool:
        return (self.rows, self.bad, self.undecodable) == (other.rows, other.bad, other.undecodable)


@dataclass(frozen=True, slots=True)
class Conversion:
    """Converts one file to rows. `on_read` receives the number of bytes (text files) or rows (other files) just
    read.
    """

    plan: ImportPlan
    file: ImportFile
    workbooks: ProcessWorkbooks
    threads: Executor
    on_read: Callable[[int], None]

    async def count(self, *, max_explanations: int, scratch: "ScratchRows | None" = None) -> ImportCounts:
        """Convert the file and add its good rows to `scratch`. Return the counts, with explanations of the first bad
        rows.
        """
        counts = ImportCounts()
        # If the rows are only counted, columns that accept any cell need not be converted.
        columns = [column for column in self.plan.columns if scratch is not None or not column.accepts_any_cell]
        async with aclosing(
            read_ahead(self._portions(RowConverter(columns, max_explanations=max_explanations), counts))
        ) as portions:
            async for portion in portions:
                counts.add(portion)
                if scratch is not None:
                    await scratch.add(portion.batch)
        return counts

    async def batches(self, counts: ImportCounts) -> AsyncGenerator[pa.RecordBatch]:
        """Yield the good rows in batches of about 4 MiB, and add to `counts`."""
        converter = RowConverter(self.plan.columns, max_explanations=0)
        async with aclosing(self._portions(converter, counts)) as portions:
            async for portion in portions:
                counts.add(portion)
                if portion.batch.num_rows:
                    for batch in split_batch(portion.batch, _BATCH_BYTES):
                        yield batch

    def _portions(self, converter: RowConverter, counts: ImportCounts) -> AsyncGenerator[ConvertedRows]:
        reading = self.plan.reading
        if reading.records is not None:
            return self._record_portions(converter, reading.records)
        if reading.sheet is not None:
            return self._workbook_portions(converter, reading.sheet)
        return self._text_portions(converter, counts)

    async def _record_portions(self, converter: RowConverter, kind: FileType) -> AsyncGenerator[ConvertedRows]:
        run, record = asyncio.get_running_loop().run_in_executor, 1
        async with (
            self.file.on_disk() as path,
            aclosing(read_ahead(self.workbooks.record_batches(path, kind, self.plan.reading.fields))) as portions,
        ):
            async for portion in portions:
                yield await run(self.threads, converter.records, portion.rows, portion.unreadable, record)
                record += portion.rows.num_rows
                self.on_read(portion.rows.num_rows)

    async def _workbook_portions(self, converter: RowConverter, sheet: str) -> AsyncGenerator[ConvertedRows]:
        run, record = asyncio.get_running_loop().run_in_executor, 1
        read = partial(self.workbooks.rows, skip=self.plan.reading.skipped.first)
        async with self.file.on_disk() as path, aclosing(read(path, sheet)) as portions:
            async for rows in portions:
                data: Sequence[Sequence[TypedText]] = rows
                if record == 1 and self.plan.reading.has_header:
                    record, data = 2, rows[1:]
                if data:
                    yield await run(self.threads, converter.cells, data, record)
                record += len(data)
                self.on_read(len(data))

    async def _text_portions(self, converter: RowConverter, counts: ImportCounts) -> AsyncGenerator[ConvertedRows]:
        run, has_header = asyncio.get_running_loop().run_in_executor, self.plan.reading.has_header
        async with aclosing(read_ahead(self._blocks(counts))) as blocks:
            async for block in blocks:
                yield await run(self.threads, partial(converter.block, block, has_header=has_header))

    async def _blocks(self, counts: ImportCounts) -> AsyncGenerator[Block]:
        reading = self.plan.reading
        reader = BlockReader(reading.delimiters, reading.encoding, reading.width, skipped=reading.skipped)
        run = asyncio.get_running_loop().run_in_executor
        async with aclosing(self.file.read()) as content:
            async for piece in content:
                for block in await run(self.threads, list[Block], reader.feed(piece)):
                    yield block
                self.on_read(len(piece))
        for block in await run(self.threads, list[Block], reader.finish()):
            yield block
        counts.undecodable, counts.comments = reader.decoder.undecodable, reader.comments


async def read_ahead(items: AsyncGenerator[T]) -> AsyncGenerator[T]:
    """Yield the items. The next item is produced while the caller processes the current one. Closes `items` at the
    end.
    """

    async def next_item() -> T | None:
        return await anext(items, None)

    next_task = asyncio.create_task(next_item())
    try:
        while (item := await next_task) is not None:
            next_task = asyncio.create_task(next_item())
            yield item
    finally:
        next_task.cancel()
        await asyncio.gather(next_task, return_exceptions=True)
        await items.aclose()


class ScratchRows:
    """Stores batches in an unnamed file, which disappears when the process ends. Create instances with `opened`.

    If the batches do not fit, all of them are discarded and `is_whole` becomes False. The imported file must then be
    read again.
    """

    def __init__(
        self, file: BinaryIO, threads: Executor, max_bytes: int, require_room: Callable[[int], object]
    ) -> None:
        self._file = file
        self._threads = threads
        self._max_bytes = max_bytes
        self._require_room = require_room
        self._writer: pa.RecordBatchStreamWriter | None = None
        self._batches = 0
        self.is_whole = True

    @classmethod
    @asynccontextmanager
    async def opened(
        cls,
        open_file: Callable[[], BinaryIO],
        threads: Executor,
        *,
        max_bytes: int = MAX_BYTES,
        require_room: Callable[[int], object] = lambda _: None,
    ) -> "AsyncGenerator[ScratchRows]":
        """Open an empty file with `open_file`, and close it on exit.

        `require_room` is called in a thread before each batch is written. It may raise InsufficientStorage.
        """
        opening = threads.submit(open_file)
        try:
            file = await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)
            raise
        try:
            yield cls(file, threads, max_bytes, require_room)
        finally:
            # Runs after pending writes. The caller need not wait until the disk space has been freed.
            threads.submit(file.close)

    async def add(self, batch: pa.RecordBatch) -> None:
        """Append a batch. All batches must have the same schema. Raises InsufficientStorage."""
        if self.is_whole:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._write, batch)

    async def batches(self) -> AsyncGenerator[pa.RecordBatch]:
        """Yield all batches in order. May be called repeatedly, but only if `is_whole` is set."""
        run, batches = asyncio.get_running_loop().run_in_executor, self._read()
        for _ in range(self._batches):
            yield await run(self._threads, next, batches)

    def _write(self, batch: pa.RecordBatch) -> None:
        self._require_room(batch.nbytes)
        try:
            if self._writer is None:
                self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, "w"), batch.schema)
            self._writer.write_batch(batch)
            self._batches += 1
            if self._file.tell() > self._max_bytes:
                self._give_up()
        except OSError as error:
            log.info("converted rows of an import not stored", reason=error.strerror)
            self._give_up()

    def _give_up(self) -> None:
        self.is_whole, self._writer = False, None
        self._file.truncate(0)

    def _read(self) -> Iterator[pa.RecordBatch]:
        self._file.flush()
        self._file.seek(0)
        yield from pa.ipc.open_stream(pa.PythonFile(self._file, "r"))


def _close_opened(opening: "Future[BinaryIO]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
