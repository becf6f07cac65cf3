"""The import itself: everything is converted and counted, then loaded (Contract importer 13.2 to 13.4).

What was converted is kept on disk meanwhile. Where it does not fit, the file is read and converted a second time.
"""

from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO
from uuid import UUID

import pyarrow as pa

from queryserver.db.imports import ImportLeftovers
from queryserver.domain.errors.statements import EngineError, StatementRejected, rejected_by_rule
from queryserver.domain.importing import Origin
from queryserver.domain.statement import Assignment
from queryserver.domain.user import User
from queryserver.interfaces.engine import Engine, EngineSession, SessionOptions
from queryserver.interfaces.import_leftovers import ImportLeftover
from queryserver.interfaces.loading import LoadingEngine, TableLoader, TableName
from queryserver.interfaces.workbooks import WorkbookReader
from queryserver.services.importing.conversion import Conversion, Counted, ahead, pieces
from queryserver.services.importing.files import ImportFile
from queryserver.services.importing.import_session import Imported, ImportReport, ImportSession
from queryserver.services.importing.kept_rows import MAX_BYTES, KeptRows
from queryserver.services.importing.plans import ImportPlan, read_plan
from queryserver.services.importing.sources import ImportSources
from queryserver.services.storage.claims import renewed

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
    """`interfaces.loading.LoadLedger` of one import."""

    leftovers: ImportLeftovers
    statement_id: UUID
    user_id: int
    connector: str

    async def made(self, table: TableName) -> None:
        """See the Protocol."""
        await self.leftovers.made(ImportLeftover(self.statement_id, self.user_id, self.connector, table))

    async def settled(self, table: TableName) -> None:
        """See the Protocol."""
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
