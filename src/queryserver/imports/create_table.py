"""create_table: everything that is checked before the answer (Contract importer 13, 13.1)."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa
import structlog

from queryserver.catalog.forwarding import Forwarding
from queryserver.catalog.lookups import Lookups
from queryserver.connectors.engines import Connectors
from queryserver.connectors.model import Connector
from queryserver.engines.protocol import LoadingEngine, OperationHandle, OperationState, OperationStatus, TableName
from queryserver.errors.base import NotSupported, QueryServerError
from queryserver.errors.files import (
    InsufficientStorage,
    import_connector_not_found,
    import_target_denied,
    invalid_dialect,
    replacing_not_supported,
    table_exists,
)
from queryserver.errors.statements import EngineError, UnknownDialect, disk_below_floor, rejected_by_rule
from queryserver.formats.columns import Column, ResultType
from queryserver.identity.model import User
from queryserver.imports.computed import ReadingOptions
from queryserver.imports.model import (
    RECORD_TYPES,
    REPLACING_DIALECTS,
    SAMPLE_BYTES,
    TABLE_DIALECTS,
    Delimiters,
    Origin,
    declared_type,
)
from queryserver.imports.plans import AskedColumn, FileReading, ImportPlan, history_text, stored, target_columns
from queryserver.imports.preview import Previews, first_bytes, of_a_file
from queryserver.imports.uploads import ImportFile, ImportSources
from queryserver.platform.computing_protocol import Computing, Task
from queryserver.statements.model import Recorded
from queryserver.statements.session_repository import CredentialBook
from queryserver.statements.submission import NewImport, Submissions

log = structlog.get_logger(__name__)

_TABLE_EXISTS = "import_table_exists"
_LONGEST_LOOK = timedelta(seconds=20)


@dataclass(frozen=True, slots=True)
class AskedTable:
    """What a caller asks for. `columns` None: all, as in the preview. `max_bad_rows` None: no limit."""

    origin: Origin
    file_path: str
    reading: ReadingOptions
    has_header: bool
    connector: str
    database: str | None
    table: str
    columns: Sequence[AskedColumn] | None = None
    append: bool = False
    replace: bool = False
    max_bad_rows: int | None = 0
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Created:
    """An import that is recorded; `table` as answers name it."""

    recorded: Recorded
    table: str


@dataclass(frozen=True, slots=True)
class TableCreationParts:
    """What it works with."""

    sources: ImportSources
    previews: Previews
    connectors: Connectors
    credentials: CredentialBook
    submissions: Submissions
    lookups: Lookups
    computing: Computing


class TableCreations:
    """Takes tables to be made of files."""

    def __init__(self, parts: TableCreationParts, forwarding: Forwarding) -> None:
        self._parts = parts
        forwarding.serve(_TABLE_EXISTS, self._exists_here)

    async def create(self, user: User, asked: AskedTable) -> Created:
        """Check everything that can be checked now, and record the import.

        Raises import_connector_not_found, invalid_dialect, import_target_denied, invalid_columns, table_exists; what
        reading the file raises (see Previews and ImportSources); what recording raises (see Submissions).
        """
        connector = await self._connector(user, asked.connector)
        if asked.replace and connector.dialect not in REPLACING_DIALECTS:
            raise replacing_not_supported(
                f"Tables of {connector.dialect} cannot be replaced, for they cannot be renamed: drop the old one first."
            )
        asked.reading.require_separator()
        async with self._parts.sources.opened(user, asked.origin, asked.file_path) as file:
            plan = await self._plan(user, asked, file, connector.dialect)
        new = NewImport(history_text(plan, connector.dialect), plan.database, stored(plan), asked.idempotency_key)
        recorded = await self._parts.submissions.import_replay(user, connector, new)
        if recorded is None:
            if not plan.append and not plan.replace and await self._exists(user, connector, plan.target):
                raise table_exists(f"The table {plan.shown_target} exists already.")
            recorded = await self._parts.submissions.submit_import(user, connector, new)
        return Created(recorded, plan.shown_target)

    async def _connector(self, user: User, name: str) -> Connector:
        try:
            connector = self._parts.connectors.resolve(user, name)
        except UnknownDialect:
            raise import_connector_not_found(name) from None
        self._parts.credentials.require_token(user, connector)
        engine = self._parts.connectors.engine(connector)
        if connector.dialect not in TABLE_DIALECTS or not isinstance(engine, LoadingEngine):
            raise invalid_dialect(
                f"Tables cannot be created from files in {connector.dialect} by {connector.nice_name}."
                f" They can in {', '.join(sorted(TABLE_DIALECTS))}."
            )
        if connector.read_only:
            raise import_target_denied("This connector is read-only.")
        if await self._parts.credentials.are_missing(user, connector):
            raise import_target_denied("The data source wants credentials: call create_session with user and password.")
        return connector

    async def _plan(self, user: User, asked: AskedTable, file: ImportFile, dialect: str) -> ImportPlan:
        analysis = await self._parts.previews.analysis(user.id, file, asked.reading, has_header=asked.has_header)
        columns = target_columns(analysis.columns, asked.columns, dialect)
        return ImportPlan(
            shown=file.shown,
            reading=FileReading(
                origin=asked.origin,
                file_path=asked.file_path,
                has_header=asked.has_header,
                width=len(analysis.columns),
                sheet=asked.reading.sheet_name,
                delimiters=asked.reading.delimiters or Delimiters(),
                encoding=asked.reading.encoding or await self._encoding(user, file, asked.reading),
                records=asked.reading.file_type if asked.reading.file_type in RECORD_TYPES else None,
                fields=tuple(analysis.fields),
            ),
            columns=columns,
            declared=tuple(declared_type(column.type, dialect) for column in columns),
            database=asked.database,
            table=asked.table,
            append=asked.append,
            max_bad_rows=asked.max_bad_rows,
            replace=asked.replace,
        )

    async def _encoding(self, user: User, file: ImportFile, reading: ReadingOptions) -> str:
        """As the preview of the file takes it."""
        if reading.sheet_name is not None or reading.file_type in RECORD_TYPES:
            return "utf-8"
        async with aclosing(file.read(length=SAMPLE_BYTES)) as pieces:
            head = await first_bytes(pieces)
        options = {"is_whole": file.size_bytes <= len(head)}
        with of_a_file():
            return await self._parts.computing.run(user.id, Task.DETECT_ENCODING, options, head)

    async def _exists(self, user: User, connector: Connector, table: TableName) -> bool:
        """Whether the engine says so now. One that cannot be asked is asked again by the import, and fails that."""
        budget = min(connector.limits.metadata_timeout, _LONGEST_LOOK)
        try:
            found = await self._parts.lookups.anywhere(
                user, connector, _TABLE_EXISTS, [table.database, table.name], budget=budget
            )
        except (EngineError, NotSupported) as error:
            log.info("existence of a table not known", connector=connector.key, code=error.code)
            return False
        return json.loads(found)

    async def _exists_here(self, user: User, connector: Connector, arguments: Sequence[Any]) -> bytes:
        database, name = arguments
        async with self._parts.lookups.loader(user, connector) as loader:
            return json.dumps(await loader.exists(TableName(database, name))).encode()


_STOP_WAIT_S = 5.0
_CLEAN_UP_WAIT_S = 60.0
"""How long a loader may take to stop and to clean up; after that its work is taken away from it."""

COLUMNS = (
    Column("rows_read", ResultType.BIGINT, "BIGINT"),
    Column("rows_loaded", ResultType.BIGINT, "BIGINT"),
    Column("rows_bad", ResultType.BIGINT, "BIGINT"),
    Column("table", ResultType.STRING, "STRING"),
)


@dataclass(frozen=True, slots=True)
class Imported:
    """The one row of the result."""

    rows_read: int
    rows_loaded: int
    rows_bad: int
    table: str


@dataclass(slots=True)
class ImportReport:
    """What an import tells while it works."""

    progress: int = 0
    lines: list[str] = field(default_factory=list[str])
    done: Imported | None = None
    """Set once the table is there: whatever comes after that does not undo it, not even a cancel."""


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
        """A session whose `submit` does the work."""
        session = cls(work)
        try:
            yield session
        finally:
            await session.end()

    async def submit(self, statement: str) -> OperationHandle:
        """Start the work. The statement is for people only."""
        del statement
        self._task = asyncio.create_task(self._run(), name="import")
        return OperationHandle("import")

    async def poll(self, handle: OperationHandle, *, wait_s: float = 0) -> OperationStatus:
        del handle
        task = self._task
        if task is None:
            return OperationStatus(OperationState.PENDING, has_result_set=True)
        await asyncio.wait({task}, timeout=wait_s)
        if not task.done():
            return OperationStatus(OperationState.RUNNING, has_result_set=True, progress=self._report.progress)
        if self._report.done is not None:
            return OperationStatus(OperationState.FINISHED, has_result_set=True, progress=100)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return OperationStatus(OperationState.CANCELED)
        return OperationStatus(OperationState.FAILED, error=error if isinstance(error, EngineError) else _own(error))

    async def columns(self, handle: OperationHandle) -> tuple[Column, ...]:
        del handle
        return COLUMNS

    async def batches(self, handle: OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        """One row."""
        del handle
        if (done := self._report.done) is None:
            return
        counts = [pa.array([count], pa.int64()) for count in (done.rows_read, done.rows_loaded, done.rows_bad)]
        arrays = [*counts, pa.array([done.table], pa.string())]
        yield pa.RecordBatch.from_arrays(arrays, names=[column.name for column in COLUMNS])

    async def logs(self, handle: OperationHandle, *, start: int) -> Sequence[str]:
        del handle
        return self._report.lines[start:]

    async def cancel(self, handle: OperationHandle) -> None:
        """Stop the work; waits a moment until everything is cleaned up."""
        del handle
        if (task := self._stopped()) is not None:
            await asyncio.wait({task}, timeout=_STOP_WAIT_S)

    async def close(self, handle: OperationHandle) -> None:
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
        end = asyncio.get_running_loop().time() + _CLEAN_UP_WAIT_S
        was_canceled = False
        while not task.done():
            left_s = end - asyncio.get_running_loop().time()
            if left_s <= 0:
                task.cancel()
            try:
                await asyncio.wait({task}, timeout=max(left_s, 1.0))
            except asyncio.CancelledError:
                # What the loader has made must go before anybody is told that the import has ended.
                was_canceled = True
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("import ended", code=getattr(error, "code", ""))
        if was_canceled:
            raise asyncio.CancelledError

    def _stopped(self) -> "asyncio.Task[Imported] | None":
        """The work, told to stop once: a second word would stop its clean-up."""
        task = self._task
        if task is not None and not self._is_stopped:
            self._is_stopped = True
            task.cancel()
        return task

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


def _own(error: BaseException) -> EngineError:
    """What is wrong with the file, or with this service, as the outcome of a statement that no engine refused."""
    if isinstance(error, InsufficientStorage):
        return disk_below_floor(error.message)
    return rejected_by_rule(error.message if isinstance(error, QueryServerError) else "Internal error.")
