"""The import itself, behind the session that the runner follows (Contract importer 13.2 to 13.4).

The file is converted and counted as a whole before anything is loaded. The converted rows are kept on disk meanwhile;
where they do not fit, the file is read and converted a second time.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, TypeVar

import pyarrow as pa
import structlog

from queryserver.engines import protocol
from queryserver.engines.protocol import OperationState, OperationStatus
from queryserver.errors.base import QueryServerError
from queryserver.errors.files import InsufficientStorage
from queryserver.errors.statements import EngineError, StatementRejected, disk_below_floor, rejected_by_rule
from queryserver.formats.columns import Column, ResultType
from queryserver.formats.conversion import BadRow, Portion, RowConverter
from queryserver.formats.delimited.records import Block, BlockReader
from queryserver.formats.table_files import FileType, TypedText
from queryserver.formats.value_sizes import parts
from queryserver.identity.model import User
from queryserver.imports.model import Origin
from queryserver.imports.plans import ImportPlan, read_plan
from queryserver.imports.repository import StatementLedger, UnfinishedTables
from queryserver.imports.uploads import ImportFile, ImportSources
from queryserver.platform.threads import renewed
from queryserver.sql.markers import BoundStatement
from queryserver.statements.assignments import Assignment
from queryserver.workbooks.reader import ProcessWorkbooks

T = TypeVar("T")

log = structlog.get_logger(__name__)

MAX_BYTES = 1024 * 1024 * 1024
"""What one import may keep on disk."""
EXPLAINED_ROWS = 100
"""So many bad rows at most are in the log."""

EXPLAINED_COLUMNS = 100
"""Of so many columns at most the log says which words mean NULL."""

_EXPLAINED_WORDS = 10
_EXPLAINED_IN_MESSAGE = 3
_PROGRESS_OF_COUNTING = 40
_KEEP_ALIVE_EVERY_S = 10.0  # short enough for uploads that are kept for a minute only
_BATCH_BYTES = 4 * 1024 * 1024  # no batch for a loader is much larger (engines/protocol.py)
_STOP_WAIT_S = 5.0
_CLEAN_UP_WAIT_S = 60.0
"""How long a loader may take to stop and to clean up; after that its task is cancelled once more."""

COLUMNS = (
    Column("rows_read", ResultType.BIGINT, "BIGINT"),
    Column("rows_loaded", ResultType.BIGINT, "BIGINT"),
    Column("rows_bad", ResultType.BIGINT, "BIGINT"),
    Column("table", ResultType.STRING, "STRING"),
)


def few_bad_rows(rows: int) -> int:
    """How many rows of a file may be bad where the call does not say it: never more than the log lists."""
    return min(EXPLAINED_ROWS, max(rows // 100, min(10, rows // 10)))


@dataclass(frozen=True, slots=True)
class Imported:
    rows_read: int
    rows_loaded: int
    rows_bad: int
    table: str


@dataclass(slots=True)
class ImportReport:
    progress: int = 0
    lines: list[str] = field(default_factory=list[str])
    done: Imported | None = None
    """Set once the table is there: whatever comes after that does not undo it, not even a cancel."""


@dataclass(frozen=True, slots=True, eq=False)
class Imports:
    """Runs statements that are imports.

    `open_scratch` gives a new file for converted rows, which no other process can open. `require_room` raises
    InsufficientStorage when so many bytes more must not be kept there; it blocks, so it is called in threads.
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
        """In place of a session with the engine, for a statement with an import plan."""
        return ImportSession.opened(partial(self._import, assignment, user, engine, options))

    async def _import(
        self,
        assignment: Assignment,
        user: User,
        engine: protocol.Engine,
        options: protocol.SessionOptions,
        report: ImportReport,
    ) -> Imported:
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
        statement_id = assignment.lease.statement_id
        ledger = StatementLedger(self.unfinished, statement_id, assignment.user_id, assignment.connector)
        async with (
            renewed(keep_alive, every_s=_KEEP_ALIVE_EVERY_S) if is_upload else nullcontext(),
            engine.loader(user, options) as loader,
            rows as kept,
        ):
            text_bytes = file.size_bytes if is_text else None
            running = _Import(self.workbooks, self.threads, plan, file, text_bytes, report, kept, ledger)
            return await running.load_into(loader)


@dataclass(slots=True)
class _Import:
    workbooks: ProcessWorkbooks
    threads: Executor
    plan: ImportPlan
    file: ImportFile
    text_bytes: int | None
    """None: no text, and its length in rows is not known before its end."""
    report: ImportReport
    kept: "ScratchRows"
    ledger: StatementLedger
    _seen: int = 0

    async def load_into(self, loader: protocol.TableLoader) -> Imported:
        # Whether a new table may have the name was checked by the call, and `load` checks it again before it begins.
        append = self.plan.append and await loader.exists(self.plan.target)
        counted = await self._count()
        try:
            return await self._load(loader, counted, append=append)
        except StatementRejected:
            if append or not self.plan.append:
                raise
            try:
                # Another client may have created the table meanwhile.
                exists_now = await loader.exists(self.plan.target)
            except EngineError:
                exists_now = False
            if not exists_now:
                raise
        return await self._load(loader, counted, append=True)

    async def _count(self) -> "Counted":
        """The first pass. Raises rejected_by_rule when too many rows are bad."""
        conversion = Conversion(self.plan, self.file, self.workbooks, self.threads, self._counting)
        counted = await conversion.count(explain=EXPLAINED_ROWS, kept=self.kept)
        lines = self.report.lines
        if first := self.plan.reading.skipped.first:
            unit = "line" if self.plan.reading.is_text else "row"
            lines.append(f"Skipped the first {first} {unit}{'' if first == 1 else 's'}.")
        if counted.comments:
            unit, mark = "line" if counted.comments == 1 else "lines", self.plan.reading.skipped.comment
            lines.append(f"Left out {counted.comments} comment {unit}: {mark}")
        lines.append(f"Read {counted.rows} rows of {self.plan.shown}, {counted.bad} of them bad.")
        lines.extend(f"Bad row: {row}" for row in counted.explained)
        if counted.bad > len(counted.explained):
            lines.append(f"{counted.bad - len(counted.explained)} more bad rows are not listed.")
        lines.extend(self._nulls(counted))
        if counted.undecodable:
            lines.append(f"{counted.undecodable} characters could not be decoded and became U+FFFD.")
        most = self.plan.max_bad_rows
        if most == "few":
            most = few_bad_rows(counted.rows)
        if most is not None and counted.bad > most:
            first = "; ".join(str(row) for row in counted.explained[:_EXPLAINED_IN_MESSAGE])
            raise rejected_by_rule(f"{counted.bad} of {counted.rows} rows are bad, {most} may be: {first}.")
        return counted

    def _nulls(self, counted: "Counted") -> Iterator[str]:
        """What is said of the words that mean NULL, so that no value is lost unseen."""
        found = [column for column in self.plan.columns if counted.nulls[column.name]]
        for column in found[:EXPLAINED_COLUMNS]:
            cells, words = counted.nulls[column.name], ", ".join(map(repr, column.null_words[:_EXPLAINED_WORDS]))
            more = ", …" if len(column.null_words) > _EXPLAINED_WORDS else ""
            yield f'Read {cells} cell{"" if cells == 1 else "s"} of column "{column.name}" as NULL: {words}{more}.'
        if len(found) > EXPLAINED_COLUMNS:
            yield f"{len(found) - EXPLAINED_COLUMNS} more columns with words that mean NULL are not listed."

    async def _load(self, loader: protocol.TableLoader, counted: "Counted", *, append: bool) -> Imported:
        load, shown = self.plan.load(self.ledger.statement_id, append=append), self.plan.shown_target
        good_rows = self._kept_batches(counted) if self.kept.is_whole else self._converted_again(counted)
        async with aclosing(good_rows):
            loaded = await loader.load(load, good_rows, self.ledger)
            done = self.report.done = Imported(counted.rows, loaded, counted.bad, shown)
        self.report.lines.append(f"Loaded {loaded} rows into {shown}.")
        return done

    async def _kept_batches(self, counted: "Counted") -> AsyncGenerator[pa.RecordBatch]:
        loaded = 0
        async with aclosing(self.kept.batches()) as batches:
            async for batch in batches:
                for piece in parts(batch, _BATCH_BYTES):
                    yield piece
                loaded += batch.num_rows
                self._loading(loaded, counted.rows - counted.bad)

    async def _converted_again(self, counted: "Counted") -> AsyncGenerator[pa.RecordBatch]:
        """A second pass over the file. Raises rejected_by_rule before its end if the file has changed."""
        again = Counted()
        self._seen, total = 0, counted.rows if self.text_bytes is None else self.text_bytes

        def seen(amount: int) -> None:
            self._seen += amount
            self._loading(self._seen, total)

        conversion = Conversion(self.plan, self.file, self.workbooks, self.threads, seen)
        async with aclosing(conversion.batches(again)) as batches:
            async for batch in batches:
                yield batch
        if not again.agrees_with(counted):
            raise rejected_by_rule("The file has changed while it was read; nothing was created.")

    def _counting(self, amount: int) -> None:
        """The first pass is the shorter one."""
        self._seen += amount
        share = 0.5 if self.text_bytes is None else self._seen / max(self.text_bytes, 1)
        self.report.progress = int(_PROGRESS_OF_COUNTING * min(share, 1))

    def _loading(self, done: int, total: int) -> None:
        share = min(done / max(total, 1), 1)
        self.report.progress = _PROGRESS_OF_COUNTING + int((99 - _PROGRESS_OF_COUNTING) * share)


@dataclass(slots=True)
class Counted:
    rows: int = 0
    bad: int = 0
    undecodable: int = 0
    """Characters."""
    comments: int = 0
    """Comment lines that were left out."""
    explained: list[BadRow] = field(default_factory=list[BadRow])
    nulls: Counter[str] = field(default_factory=Counter[str])
    """Cells that are words for NULL, by the name of the column."""

    def add(self, portion: Portion) -> None:
        self.nulls.update(portion.nulls)
        self.rows += portion.rows
        self.bad += portion.bad
        self.explained.extend(portion.explained)

    def agrees_with(self, other: "Counted") -> bool:
        return (self.rows, self.bad, self.undecodable) == (other.rows, other.bad, other.undecodable)


@dataclass(frozen=True, slots=True)
class Conversion:
    """How one file becomes rows. `seen` is called with the bytes of text, or rows of a workbook, just read."""

    plan: ImportPlan
    file: ImportFile
    workbooks: ProcessWorkbooks
    threads: Executor
    seen: Callable[[int], None]

    async def count(self, *, explain: int, kept: "ScratchRows | None" = None) -> Counted:
        """Convert everything: counts, reasons of the first bad rows, and the good rows, as far as `kept` takes them."""
        counted = Counted()
        # Where nothing is kept, columns that take any text need not be converted.
        columns = [column for column in self.plan.columns if kept is not None or not column.takes_all]
        async with aclosing(ahead(self._portions(RowConverter(columns, explain=explain), counted))) as portions:
            async for portion in portions:
                counted.add(portion)
                if kept is not None:
                    await kept.add(portion.batch)
        return counted

    async def batches(self, counted: Counted) -> AsyncGenerator[pa.RecordBatch]:
        """The good rows, in batches of a few MiB."""
        converter = RowConverter(self.plan.columns, explain=0)
        async with aclosing(self._portions(converter, counted)) as portions:
            async for portion in portions:
                counted.add(portion)
                if portion.batch.num_rows:
                    for batch in parts(portion.batch, _BATCH_BYTES):
                        yield batch

    def _portions(self, converter: RowConverter, counted: Counted) -> AsyncGenerator[Portion]:
        reading = self.plan.reading
        if reading.records is not None:
            return self._of_records(converter, reading.records)
        if reading.sheet is not None:
            return self._of_workbook(converter, reading.sheet)
        return self._of_text(converter, counted)

    async def _of_records(self, converter: RowConverter, kind: FileType) -> AsyncGenerator[Portion]:
        run, record = asyncio.get_running_loop().run_in_executor, 1
        async with (
            self.file.on_disk() as path,
            aclosing(ahead(self.workbooks.record_batches(path, kind, self.plan.reading.fields))) as portions,
        ):
            async for portion in portions:
                yield await run(self.threads, converter.records, portion.rows, portion.strange, record)
                record += portion.rows.num_rows
                self.seen(portion.rows.num_rows)

    async def _of_workbook(self, converter: RowConverter, sheet: str) -> AsyncGenerator[Portion]:
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
                self.seen(len(data))

    async def _of_text(self, converter: RowConverter, counted: Counted) -> AsyncGenerator[Portion]:
        run, has_header = asyncio.get_running_loop().run_in_executor, self.plan.reading.has_header
        async with aclosing(ahead(self._blocks(counted))) as blocks:
            async for block in blocks:
                yield await run(self.threads, partial(converter.block, block, has_header=has_header))

    async def _blocks(self, counted: Counted) -> AsyncGenerator[Block]:
        reading = self.plan.reading
        reader = BlockReader(reading.delimiters, reading.encoding, reading.width, skipped=reading.skipped)
        run = asyncio.get_running_loop().run_in_executor
        async with aclosing(self.file.read()) as content:
            async for piece in content:
                for block in await run(self.threads, list[Block], reader.feed(piece)):
                    yield block
                self.seen(len(piece))
        for block in await run(self.threads, list[Block], reader.finish()):
            yield block
        counted.undecodable, counted.comments = reader.decoder.undecodable, reader.comments


async def ahead(items: AsyncGenerator[T]) -> AsyncGenerator[T]:
    """The same items; while one is worked on, the next is being made. Closes `items` at the end."""

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
        await items.aclose()


class ScratchRows:
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
    ) -> "AsyncGenerator[ScratchRows]":
        """An empty file of `open_file`, closed at the end.

        `require_room` is called in a thread before bytes are written; what it raises is raised (InsufficientStorage).
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
            # Runs behind what is still being written. No caller waits for the disk to give the room back.
            threads.submit(file.close)

    async def add(self, batch: pa.RecordBatch) -> None:
        """Keep a batch behind the others; all have one schema."""
        if self.is_whole:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._write, batch)

    async def batches(self) -> AsyncGenerator[pa.RecordBatch]:
        """All that was kept, in its order; may be called again. Only if `is_whole`."""
        run, kept = asyncio.get_running_loop().run_in_executor, self._read()
        for _ in range(self._batches):
            yield await run(self._threads, next, kept)

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

    def _read(self) -> Iterator[pa.RecordBatch]:
        self._file.flush()
        self._file.seek(0)
        yield from pa.ipc.open_stream(pa.PythonFile(self._file, "r"))


def _close_opened(opening: "Future[BinaryIO]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


class ImportSession:
    """`engines.protocol.EngineSession` for one import. Use `opened`: what is not finished at the end is stopped."""

    def __init__(self, work: Callable[[ImportReport], Awaitable[Imported]]) -> None:
        self._work = work
        self._report = ImportReport()
        self._task: asyncio.Task[Imported] | None = None
        self._is_stopped = False

    @classmethod
    @asynccontextmanager
    async def opened(cls, work: Callable[[ImportReport], Awaitable[Imported]]) -> "AsyncGenerator[ImportSession]":
        session = cls(work)
        try:
            yield session
        finally:
            await session.end()

    async def submit(self, statement: str | BoundStatement) -> protocol.OperationHandle:
        """Start the work. The statement is for people only."""
        del statement
        self._task = asyncio.create_task(self._run(), name="import")
        return protocol.OperationHandle("import")

    async def poll(self, handle: protocol.OperationHandle, *, wait_s: float = 0) -> OperationStatus:
        del handle
        task = self._task
        if task is None:
            return OperationStatus(OperationState.PENDING, has_result_set=True)
        if not task.done():
            await asyncio.wait({task}, timeout=wait_s)
        if not task.done():
            return OperationStatus(protocol.OperationState.RUNNING, has_result_set=True, progress=self._report.progress)
        if self._report.done is not None:
            return OperationStatus(OperationState.FINISHED, has_result_set=True, progress=100)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return OperationStatus(OperationState.CANCELED)
        return OperationStatus(OperationState.FAILED, error=_engine_error(error))

    async def columns(self, handle: protocol.OperationHandle) -> tuple[Column, ...]:
        del handle
        return COLUMNS

    async def batches(self, handle: protocol.OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        del handle
        if (done := self._report.done) is None:
            return
        counts = [pa.array([count], pa.int64()) for count in (done.rows_read, done.rows_loaded, done.rows_bad)]
        arrays = [*counts, pa.array([done.table], pa.string())]
        yield pa.RecordBatch.from_arrays(arrays, names=[column.name for column in COLUMNS])

    async def logs(self, handle: protocol.OperationHandle, *, start: int) -> Sequence[str]:
        del handle
        return self._report.lines[start:]

    async def cancel(self, handle: protocol.OperationHandle) -> None:
        """Stop the work; waits a moment until everything is cleaned up."""
        del handle
        if (task := self._stopped()) is not None:
            await asyncio.wait({task}, timeout=_STOP_WAIT_S)

    async def close(self, handle: protocol.OperationHandle) -> None:
        """Nothing is held for a statement that the end of the session does not free."""
        del handle

    async def is_alive(self) -> bool:
        """Whether nothing was submitted yet: a session is for one import."""
        return self._task is None

    async def end(self) -> None:
        """Returns when the work has ended and is cleaned up, however often the caller is canceled meanwhile."""
        task = self._stopped()
        if task is None:
            return
        clock = asyncio.get_running_loop().time
        end, was_canceled = clock() + _CLEAN_UP_WAIT_S, False
        while not task.done():
            left_s = end - clock()
            if left_s <= 0:
                task.cancel()
            try:
                await asyncio.wait({task}, timeout=max(left_s, 1.0))
            except asyncio.CancelledError:
                # What the loader has made must go before the end of the import is reported.
                was_canceled = True
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("import ended", code=getattr(error, "code", ""))
        if was_canceled:
            raise asyncio.CancelledError

    def _stopped(self) -> "asyncio.Task[Imported] | None":
        """The work, cancelled once: a second cancel would stop its clean-up."""
        if self._task is not None and not self._is_stopped:
            self._is_stopped = True
            self._task.cancel()
        return self._task

    async def _run(self) -> Imported:
        try:
            done = self._report.done = await self._work(self._report)
        except QueryServerError:
            raise
        except Exception as error:  # the outer wall of a task
            log.exception("import failed inside the service")
            message = "Internal error."
            raise EngineError(message) from error
        return done


def _engine_error(error: BaseException) -> EngineError:
    """A fault of the file, or of this service, as the outcome of a statement."""
    if isinstance(error, EngineError):
        return error
    if isinstance(error, InsufficientStorage):
        return disk_below_floor(error.message)
    return rejected_by_rule(error.message if isinstance(error, QueryServerError) else "Internal error.")
