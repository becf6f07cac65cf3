"""Loading by nothing but SQL statements: rows go to a staging table, which is then renamed."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

import pyarrow as pa

from queryserver.engines.loading import (
    Staging,
    ended,
    no_table,
    read_ahead,
    refuse_changes,
    refuse_target,
    rows_failures,
    staged,
)
from queryserver.engines.protocol import EngineSession, LoadColumn, LoadLedger, TableLoad, TableName
from queryserver.errors.statements import EngineError, EngineTimeout, OutcomeUnknown, StatementRejected

_STOP_S = 10.0
_TAKE_BACK_S = 30.0
_SWAP_S = 120.0

Written = Sequence[bytes]
"""Rows of values as the engine's SQL has them, each without the commas and brackets around it."""


async def execute(session: EngineSession, statement: str) -> None:
    """Run a statement to its end. It is stopped at the engine when the caller is cancelled. Raises EngineError."""
    submitting = asyncio.create_task(session.submit(statement), name="submit")
    try:
        # Whoever gave up in the middle of it would not know what to stop.
        handle = await asyncio.shield(submitting)
        await ended(session, handle)
    finally:
        await asyncio.shield(_end(session, submitting))


async def _end(session: EngineSession, submitting: asyncio.Task[object]) -> None:
    """Stop and free the statement, if there is one. The adapter limits both calls in time."""
    await asyncio.wait({submitting}, timeout=_STOP_S)
    if not submitting.done():
        submitting.cancel()
        await asyncio.wait({submitting})
    with suppress(EngineError, asyncio.CancelledError):
        handle = submitting.result()
        await session.cancel(handle)  # type: ignore[arg-type]
        await session.close(handle)  # type: ignore[arg-type]


@asynccontextmanager
async def made(
    table: TableName,
    create: Callable[[], Coroutine[object, object, object]],
    ledger: LoadLedger,
    drop: Callable[[], Awaitable[None]],
) -> AsyncGenerator[Staging]:
    """Around the filling of a table that was made under its own name; dropped at the end unless `is_gone` is set.

    Only what `create` has made is dropped or told to the ledger: not a table that somebody else made meanwhile.
    """
    creating = asyncio.create_task(create(), name="create table")
    async with AsyncExitStack() as stack:
        try:
            # Who gave up in the middle of it would not know whose table it is.
            await asyncio.shield(creating)
            filled = await stack.enter_async_context(staged(table, ledger, drop))
        except BaseException:  # a cancel too: the table must not stay
            await asyncio.shield(_undo(creating, drop))
            raise
        yield filled


async def _undo(creating: asyncio.Task[object], drop: Callable[[], Awaitable[None]]) -> None:
    await asyncio.wait({creating}, timeout=_TAKE_BACK_S)
    if not creating.done():
        creating.cancel()
    elif not creating.cancelled() and creating.exception() is None:
        with suppress(EngineError, TimeoutError):
            async with asyncio.timeout(_TAKE_BACK_S):
                await drop()


class StatementLoader(ABC):
    """A TableLoader. A subclass per engine writes its SQL.

    A new table is the staging table under another name; where the engine cannot rename, it is filled by one
    INSERT ... SELECT, and dropped when that fails.
    """

    max_statement_bytes: int

    def __init__(self, session: EngineSession, executor: Executor, *, read_only: bool) -> None:
        self._session = session
        self._executor = executor
        self._read_only = read_only

    @abstractmethod
    async def exists(self, table: TableName) -> bool: ...

    async def load(self, load: TableLoad, batches: AsyncIterator[pa.RecordBatch], ledger: LoadLedger) -> int:
        refuse_changes(read_only=self._read_only)
        self.check_names(load)
        exists = await self.exists(load.target)
        refuse_target(load, exists=exists)
        if load.replace and exists and await self.is_view(load.target):
            raise no_table(load.target)
        with rows_failures():
            async with staged(load.staging, ledger, partial(self.drop, load.staging)) as staging:
                types = await self.create(load.staging, load.columns)
                rows = await self._fill(load, types, batches)
                if load.append:
                    await execute(self._session, self._copy(load))
                elif load.replace and await self.exists(load.target):
                    await staging.publish(self._swap(load, ledger))
                else:
                    await self._publish(load, staging, ledger)
        return rows

    async def drop(self, table: TableName) -> None:
        refuse_changes(read_only=self._read_only)
        await execute(self._session, f"DROP TABLE IF EXISTS {self.place(table)}")

    @abstractmethod
    async def is_view(self, table: TableName) -> bool:
        """Whether what is there by that name is no table. Raises EngineError."""
        ...

    @abstractmethod
    def check_names(self, load: TableLoad) -> None:
        """Raises StatementRejected for names that the engine would take for something else."""
        ...

    @abstractmethod
    def quoted(self, name: str) -> str:
        """A name of a column."""
        ...

    @abstractmethod
    def place(self, table: TableName) -> str:
        """The table in SQL."""
        ...

    @abstractmethod
    async def create(self, table: TableName, columns: Sequence[LoadColumn]) -> Sequence[str]:
        """Make an empty table; the types that its columns have got. Raises EngineError."""
        ...

    @abstractmethod
    def writer(self, columns: Sequence[LoadColumn], types: Sequence[str]) -> Callable[[pa.RecordBatch], Written]:
        """What writes rows, in a thread. Raises StatementRejected for values that the types cannot hold."""
        ...

    @abstractmethod
    def insert(self, load: TableLoad, types: Sequence[str], rows: Sequence[bytes]) -> str:
        """The statement that adds written rows to the staging table."""
        ...

    @abstractmethod
    async def rename(self, table: TableName, name: TableName) -> bool:
        """Give a table its name, unless another has it; False where the engine cannot. Raises EngineError."""
        ...

    async def _fill(self, load: TableLoad, types: Sequence[str], batches: AsyncIterator[pa.RecordBatch]) -> int:
        total = 0
        async with read_ahead(batches, self.writer(load.columns, types), self._executor) as written:
            async for rows in statements_of(written, self.max_statement_bytes):
                await execute(self._session, self.insert(load, types, rows))
                total += len(rows)
        return total

    def _copy(self, load: TableLoad) -> str:
        names = ", ".join(self.quoted(column.name) for column in load.columns)
        return f"INSERT INTO {self.place(load.target)} ({names}) SELECT {names} FROM {self.place(load.staging)}"

    async def _swap(self, load: TableLoad, ledger: LoadLedger) -> None:
        """Give the new table the name of the old one, which is dropped.

        These are two renamings. The ledger is told of the old table behind them, for it is the only one between them:
        what a server that dies there leaves of it has the name `qs_import_<id>_old`.
        """
        old = TableName(load.staging.database, f"{load.staging.name.lstrip('_')}_old")
        try:
            async with asyncio.timeout(_SWAP_S):
                for table, name in ((load.target, old), (load.staging, load.target)):
                    if not await self.rename(table, name):
                        raise StatementRejected("Tables cannot be renamed there, so none can be replaced.")
        except (EngineError, TimeoutError) as error:
            if not await self._is_swapped(load, old):
                if isinstance(error, TimeoutError):
                    raise EngineTimeout("The tables were not renamed in time.") from None
                raise
        async with staged(old, ledger, partial(self.drop, old)):
            """It is dropped when this is left; a failure stays in the ledger."""

    async def _is_swapped(self, load: TableLoad, old: TableName) -> bool:
        """Whether a renaming that failed took place; if not, the old table has its name again."""
        try:
            async with asyncio.timeout(_TAKE_BACK_S):
                if not await self.exists(old):
                    return False
                if not await self.exists(load.target):
                    await self.rename(old, load.target)
                    return False
                if not await self.exists(load.staging):
                    return True
        except (EngineError, TimeoutError):
            message = f'The table was not replaced, and "{load.target.name}" may now be called "{old.name}".'
            raise OutcomeUnknown(message) from None
        raise OutcomeUnknown(f'Another table "{load.target.name}" was made meanwhile; the old one is now "{old.name}".')

    async def _publish(self, load: TableLoad, staging: Staging, ledger: LoadLedger) -> None:
        renaming = asyncio.create_task(self.rename(load.staging, load.target), name="rename")
        try:
            is_renamed = await asyncio.shield(renaming)
        except (asyncio.CancelledError, OutcomeUnknown):
            await asyncio.shield(self._take_back(load, renaming, ledger))
            raise
        if is_renamed:
            staging.is_gone = True
        else:
            await self._fill_target(load, ledger)

    async def _take_back(self, load: TableLoad, renaming: asyncio.Task[bool], ledger: LoadLedger) -> None:
        """The staging table can only have gone by taking the target's name: then the target is ours, and goes."""
        await asyncio.wait({renaming}, timeout=_TAKE_BACK_S)
        renaming.cancel()
        with suppress(EngineError, TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(_TAKE_BACK_S):
                if not await self.exists(load.staging):
                    await ledger.made(load.target)
                    await self.drop(load.target)
                    await ledger.settled(load.target)

    async def _fill_target(self, load: TableLoad, ledger: LoadLedger) -> None:
        create = partial(self.create, load.target, load.columns)
        async with made(load.target, create, ledger, partial(self.drop, load.target)) as filled:
            await execute(self._session, self._copy(load))
            filled.is_gone = True


async def statements_of(written: AsyncGenerator[Written], most_bytes: int) -> AsyncGenerator[Sequence[bytes]]:
    """Rows by the statement: as many as fit, one at least."""
    rows, size = list[bytes](), 0
    async for more in written:
        for row in more:
            if rows and size + len(row) > most_bytes:
                yield rows
                rows, size = [], 0
            rows.append(row)
            size += len(row) + 2
    if rows:
        yield rows
