"""The import itself: everything is converted and counted, then loaded (Contract importer 13.2 to 13.4).

What was converted is kept on disk meanwhile. Where it does not fit, the file is read and converted a second time.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, TypeVar
from uuid import UUID

import pyarrow as pa
import structlog

from queryserver.engines.protocol import Engine, EngineSession, LoadingEngine, SessionOptions, TableLoader, TableName
from queryserver.errors.statements import EngineError, StatementRejected, rejected_by_rule
from queryserver.files.upload_repository import renewed
from queryserver.formats.delimited.records import Block, BlockReader
from queryserver.formats.row_conversion import BadRow, Portion, RowConverter
from queryserver.identity.model import User
from queryserver.imports.create_table import Imported, ImportReport, ImportSession
from queryserver.imports.model import FileType, Origin, TypedText
from queryserver.imports.plans import ImportPlan, read_plan
from queryserver.imports.repository import ImportLeftover, ImportLeftovers
from queryserver.imports.uploads import ImportFile, ImportSources
from queryserver.statements.model import Assignment
from queryserver.workbooks.reader import WorkbookReader

T = TypeVar("T")

log = structlog.get_logger(__name__)

MAX_BYTES = 1024 * 1024 * 1024
"""What one import may keep on disk."""


class KeptRows:
    """Batches in a file without a name, which goes with the process whatever happens. Use `opened`.

    Where they do not fit, nothing is kept: then `is_whole` is False, and the file has to be read again.
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
    ) -> "AsyncGenerator[KeptRows]":
        """An empty file of `open_file`, closed at the end.

        `require_room` is called in a thread before bytes are written; what it raises is raised (InsufficientStorage).
        """
        await _run(threads, lambda: require_room(0))
        file = await _opened(open_file, threads)
        try:
            yield cls(file, threads, max_bytes, require_room)
        finally:
            # Behind what is still being written. Nobody waits for the disk to give the room back.
            threads.submit(file.close)

    async def add(self, batch: pa.RecordBatch) -> None:
        """Keep a batch behind the others; all have one schema."""
        if self.is_whole:
            await _run(self._threads, lambda: self._write(batch))

    async def batches(self) -> AsyncGenerator[pa.RecordBatch]:
        """All that was kept, in its order; may be asked for again. Only if `is_whole`."""
        if self._batches == 0:
            return
        reader = await _run(self._threads, self._read)
        for _ in range(self._batches):
            yield await _run(self._threads, reader.read_next_batch)

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
            log.info("rows of an import not kept", reason=error.strerror)
            self._give_up()

    def _give_up(self) -> None:
        self.is_whole, self._writer = False, None
        self._file.truncate(0)

    def _read(self) -> pa.RecordBatchStreamReader:
        self._file.flush()
        self._file.seek(0)
        return pa.ipc.open_stream(pa.PythonFile(self._file, "r"))


async def _opened(open_file: Callable[[], BinaryIO], threads: Executor) -> BinaryIO:
    """The file; one that comes too late for its caller is closed."""
    opening = threads.submit(open_file)
    try:
        return await asyncio.wrap_future(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close)
        raise


def _close(opening: "Future[BinaryIO]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


async def _run(threads: Executor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, work)


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


EXPLAINED_ROWS = 100
"""So many bad rows at most are in the log."""

_EXPLAINED_IN_MESSAGE = 3
_PROGRESS_OF_COUNTING = 40
_KEEP_ALIVE_EVERY_S = 10.0
"""Short enough for uploads that are kept for a minute only."""


def _any_size(_size_bytes: int) -> None:
    """Refuse nothing."""


@dataclass(frozen=True, slots=True)
class ImportParts:
    """What imports work with."""

    sources: ImportSources
    workbooks: WorkbookReader
    threads: Executor
    leftovers: ImportLeftovers
    open_scratch: Callable[[], BinaryIO]
    """A new file for rows on their way, which nobody else can open."""
    scratch_bytes: int = MAX_BYTES
    require_room: Callable[[int], object] = _any_size
    """Raises InsufficientStorage: so many bytes more must not be kept there. Blocks, so it is called in threads."""


@dataclass(frozen=True, slots=True)
class StatementLedger:
    """`engines.protocol.LoadLedger` of one import."""

    leftovers: ImportLeftovers
    statement_id: UUID
    user_id: int
    connector: str

    async def made(self, table: TableName) -> None:
        await self.leftovers.made(ImportLeftover(self.statement_id, self.user_id, self.connector, table))

    async def settled(self, table: TableName) -> None:
        await self.leftovers.settled(self.statement_id, table)


class Imports:
    """Runs statements that are imports."""

    def __init__(self, parts: ImportParts) -> None:
        self._parts = parts

    def session(
        self, assignment: Assignment, user: User, engine: Engine, options: SessionOptions
    ) -> AbstractAsyncContextManager[EngineSession]:
        """In place of a session with the engine, for a statement with an import plan."""
        return ImportSession.opened(partial(self._imported, assignment, user, engine, options))

    async def _imported(
        self, assignment: Assignment, user: User, engine: Engine, options: SessionOptions, report: ImportReport
    ) -> Imported:
        plan = read_plan(assignment.import_plan or {})
        if not isinstance(engine, LoadingEngine):
            raise rejected_by_rule("Tables cannot be created from files on this connector.")
        reading = plan.reading
        opened = self._parts.sources.opened(user, reading.origin, reading.file_path)
        parts = self._parts
        rows = KeptRows.opened(
            parts.open_scratch, parts.threads, max_bytes=parts.scratch_bytes, require_room=parts.require_room
        )
        async with (
            opened as file,
            self._kept_alive(user, plan),
            engine.loader(user, options) as loader,
            rows as kept,
        ):
            return await _Import(self._parts, assignment, plan, file, report, kept).into(loader)

    def _kept_alive(self, user: User, plan: ImportPlan) -> AbstractAsyncContextManager[None]:
        """Finding an upload prolongs its life. Files of stores live as long as their owners want."""
        if plan.reading.origin is Origin.REMOTE:
            return nullcontext()

        async def renew() -> bool:
            async with self._parts.sources.opened(user, plan.reading.origin, plan.reading.file_path):
                return True

        return renewed(renew, every_s=_KEEP_ALIVE_EVERY_S)


@dataclass(slots=True)
class _Import:
    parts: ImportParts
    assignment: Assignment
    plan: ImportPlan
    file: ImportFile
    report: ImportReport
    kept: KeptRows
    _seen: int = 0

    async def into(self, loader: TableLoader) -> Imported:
        # Whether a new table may have the name, the call has found out before, and `load` does before it begins.
        append = self.plan.append and await loader.exists(self.plan.target)
        counted = await self._counted()
        try:
            return await self._loaded(loader, counted, append=append)
        except StatementRejected:
            if append or not self.plan.append or not await self._is_there_now(loader):
                raise
        return await self._loaded(loader, counted, append=True)

    async def _is_there_now(self, loader: TableLoader) -> bool:
        """Whether somebody else has made the table meanwhile. An engine that cannot tell has told of a failure."""
        try:
            return await loader.exists(self.plan.target)
        except EngineError:
            return False

    async def _loaded(self, loader: TableLoader, counted: Counted, *, append: bool) -> Imported:
        statement_id = self.assignment.lease.statement_id
        ledger = StatementLedger(self.parts.leftovers, statement_id, self.assignment.user_id, self.assignment.connector)
        async with aclosing(self._batches(counted)) as batches:
            loaded = await loader.load(self.plan.load(statement_id, append=append), batches, ledger)
            done = self.report.done = Imported(counted.rows, loaded, counted.bad, self.plan.shown_target)
        self.report.lines.append(f"Loaded {loaded} rows into {self.plan.shown_target}.")
        return done

    async def _counted(self) -> Counted:
        """The first pass. Raises rejected_by_rule when too many rows are bad."""
        counted = await self._conversion(self._saw_first).count(explain=EXPLAINED_ROWS, kept=self.kept)
        lines = self.report.lines
        lines.append(f"Read {counted.rows} rows of {self.plan.shown}, {counted.bad} of them bad.")
        lines.extend(f"Bad row: {row}" for row in counted.explained)
        if counted.bad > len(counted.explained):
            lines.append(f"{counted.bad - len(counted.explained)} more bad rows are not listed.")
        if counted.undecodable:
            lines.append(f"{counted.undecodable} characters could not be decoded and became U+FFFD.")
        if (most := self.plan.max_bad_rows) is not None and counted.bad > most:
            first = "; ".join(str(row) for row in counted.explained[:_EXPLAINED_IN_MESSAGE])
            raise rejected_by_rule(f"{counted.bad} of {counted.rows} rows are bad, {most} may be: {first}.")
        return counted

    def _batches(self, counted: Counted) -> AsyncGenerator[pa.RecordBatch]:
        """The good rows."""
        return self._kept_batches(counted) if self.kept.is_whole else self._checked_batches(counted)

    async def _kept_batches(self, counted: Counted) -> AsyncGenerator[pa.RecordBatch]:
        loaded = 0
        kept = self.kept.batches()
        async with aclosing(kept), aclosing(ahead(kept)) as coming:
            async for batch in coming:
                for piece in pieces(batch):
                    yield piece
                loaded += batch.num_rows
                self._tell_of_loading(loaded, counted.rows - counted.bad)

    async def _checked_batches(self, counted: Counted) -> AsyncGenerator[pa.RecordBatch]:
        """A second pass over the file. Raises rejected_by_rule before its end if the file is not what it was."""
        again = Counted()
        self._seen = 0
        async with aclosing(self._conversion(partial(self._saw_again, counted)).batches(again)) as batches:
            async for batch in batches:
                yield batch
        if not again.agrees_with(counted):
            raise rejected_by_rule("The file has changed while it was read; nothing was created.")

    def _conversion(self, seen: Callable[[int], None]) -> Conversion:
        return Conversion(self.plan, self.file, self.parts.workbooks, self.parts.threads, seen)

    def _saw_first(self, amount: int) -> None:
        """The first pass is the shorter one; how long that over a workbook is, nobody knows before."""
        self._seen += amount
        share = self._seen / max(self.file.size_bytes, 1) if self.plan.reading.is_text else 0.5
        self.report.progress = int(_PROGRESS_OF_COUNTING * min(share, 1))

    def _saw_again(self, counted: Counted, amount: int) -> None:
        self._seen += amount
        self._tell_of_loading(self._seen, self.file.size_bytes if self.plan.reading.is_text else counted.rows)

    def _tell_of_loading(self, done: int, total: int) -> None:
        share = min(done / max(total, 1), 1)
        self.report.progress = _PROGRESS_OF_COUNTING + int((99 - _PROGRESS_OF_COUNTING) * share)
