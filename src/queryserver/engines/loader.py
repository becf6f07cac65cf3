"""Shared code for table loaders: target checks, staging tables, read-ahead, values as text, and loads by SQL
statements.
"""

import asyncio
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute

from queryserver.engines.catalog_queries import identifier
from queryserver.engines.protocol import EngineSession, LoadColumn, LoadLedger, TableLoad, TableName
from queryserver.engines.sessions import ended
from queryserver.errors.statements import EngineError, EngineTimeout, OutcomeUnknown, StatementDenied, StatementRejected
from queryserver.formats.download.encoder import duration_text
from queryserver.formats.text_forms import without_zero_fraction

_BATCHES_AHEAD = 2
_CLEAR_S = 30.0
_STOP_S = 10.0
_UNDO_S = 30.0
_SWAP_S = 120.0
_SHOWN_CHARACTERS = 40

ResultT = TypeVar("ResultT")
ConvertedT = TypeVar("ConvertedT")


def column_definitions(columns: Sequence[LoadColumn], quoted: Callable[[str], str]) -> str:
    """Return the column list for CREATE TABLE, without parentheses."""
    return ", ".join(
        [f"{quoted(column.name)} {column.declared}{'' if column.nullable else ' NOT NULL'}" for column in columns]
    )


def refuse_target(load: TableLoad, *, exists: bool) -> None:
    """Raise StatementRejected if a new table already exists, or if a table to append to does not exist."""
    if exists and not load.append and not load.replace:
        raise StatementRejected(f'Table "{load.target.name}" already exists.')
    if load.append and not exists:
        raise StatementRejected(f'Table "{load.target.name}" does not exist.')


def publishing_steps(load: TableLoad, staging: str, target: str) -> tuple[str, ...]:
    """Return the statements that publish the rows of the table `staging`. They must run in one transaction.

    `staging` and `target` are quoted names. If the target to be replaced is a view, the engine's DROP TABLE fails.
    """
    if load.append:
        names = ", ".join(identifier(column.name) for column in load.columns)
        return f"INSERT INTO {target} ({names}) SELECT {names} FROM {staging}", f"DROP TABLE {staging}"
    renaming = f"ALTER TABLE {staging} RENAME TO {identifier(load.target.name)}"
    return (f"DROP TABLE IF EXISTS {target}", renaming) if load.replace else (renaming,)


def not_plain_table_error(table: TableName) -> StatementRejected:
    """Return the error for a target that cannot be replaced because it is not a plain table."""
    return StatementRejected(f'"{table.name}" cannot be replaced, because it is not a plain table.')


def require_writable(*, read_only: bool) -> None:
    """Raise StatementDenied if the connector is read-only."""
    if read_only:
        raise StatementDenied("This connector is read-only: tables cannot be created or dropped.")


def session_database_error(database: str) -> StatementRejected:
    """Return the error for a target database whose tables are dropped when their session ends."""
    return StatementRejected(
        f'Tables in "{database}" are dropped when their session ends, so the imported table would be lost.'
    )


def refuse_long_names(names: Sequence[str], *, max_size: int, unit: str, size: Callable[[str], int]) -> None:
    """Raise StatementRejected for a name that is too long for the engine.

    The engine itself would truncate the name, or reject it without reporting which name it was.
    """
    for name in names:
        if size(name) > max_size:
            shown = name[:_SHOWN_CHARACTERS]
            length = f"{size(name)} {unit}; the engine allows at most {max_size}"
            raise StatementRejected(f'The name "{shown}..." has {length}.')


class Staging:
    """A staging table. `is_gone` is set once the table has been renamed or has disappeared with its transaction."""

    def __init__(self, table: TableName, ledger: LoadLedger, drop: Callable[[], Awaitable[None]]) -> None:
        self.is_gone = False
        self.is_cleared = False
        self._table = table
        self._ledger = ledger
        self._drop = drop

    async def publish(self, last_step: Awaitable[object], *, consumes_table: bool = True) -> None:
        """Run the step that publishes the rows, then drop the staging table unless that step consumes it.

        Always runs to completion: a cancellation in the meantime is delivered to the caller only afterward.
        """

        async def publish() -> None:
            await last_step
            self.is_gone = consumes_table
            await self.clear()

        await run_to_completion(publish())

    async def clear(self) -> None:
        """Drop the table and remove it from the ledger.

        If the drop fails, the table stays in the ledger, so that it is dropped later.
        """
        self.is_cleared = True
        if not self.is_gone:
            try:
                async with asyncio.timeout(_CLEAR_S):
                    await self._drop()
            except (EngineError, TimeoutError):
                return
        await self._ledger.remove(self._table)


@asynccontextmanager
async def staging_table(
    table: TableName, ledger: LoadLedger, drop: Callable[[], Awaitable[None]]
) -> AsyncGenerator[Staging]:
    """Manage a staging table that the block creates. Drop the table on exit unless the block has published it.

    The ledger contains the table from before the block until the table is gone. If the block raises BatchesFailed, the
    original error is raised instead.
    """
    # This runs to completion, because after an interruption it would be unknown whether the ledger contains the table.
    await run_to_completion(ledger.add(table))
    staging = Staging(table, ledger, drop)
    try:
        yield staging
    except BatchesFailed as error:
        raise error.reason from error.reason.__cause__
    finally:
        if not staging.is_cleared:
            await asyncio.shield(staging.clear())


async def run_to_completion(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run `work` to completion and return its result, even if the task is canceled in the meantime.

    The cancellation is delivered at the task's next await. If the work fails, the cancellation is raised instead of the
    work's error. `work` must limit its own duration.
    """
    running = asyncio.ensure_future(work)
    is_canceled = False
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            is_canceled = True
    if is_canceled:
        deliver_cancel(running.exception())
    return running.result()


def deliver_cancel(failure: BaseException | None) -> None:
    """Deliver a postponed cancellation: immediately if the work failed, otherwise at the task's next await."""
    if failure is not None:
        raise asyncio.CancelledError from failure
    if (task := asyncio.current_task()) is not None:
        task.uncancel()
        task.cancel()


class BatchesFailed(Exception):
    """Raised if reading a load's batches fails, as opposed to an engine call.

    The translation of driver errors leaves this exception unchanged.
    """

    def __init__(self, reason: BaseException) -> None:
        super().__init__("the rows could not be read")
        self.reason = reason


@asynccontextmanager
async def read_ahead(
    batches: AsyncIterator[pa.RecordBatch], convert: Callable[[pa.RecordBatch], ConvertedT], executor: Executor
) -> AsyncGenerator[AsyncGenerator[ConvertedT]]:
    """Read and convert upcoming batches while the engine processes the current one.

    At most two batches are ready or in progress. Exceptions from the batches and from `convert` are raised as
    BatchesFailed. One task reads all batches and has ended when the block is left.
    """
    ready: asyncio.Queue[ConvertedT | None] = asyncio.Queue()
    room = asyncio.Semaphore(_BATCHES_AHEAD)

    async def read() -> None:
        loop = asyncio.get_running_loop()
        await room.acquire()
        async for batch in batches:
            ready.put_nowait(await loop.run_in_executor(executor, convert, batch))
            await room.acquire()

    async def take() -> AsyncGenerator[ConvertedT]:
        while (converted := await ready.get()) is not None:
            yield converted
            room.release()
        if (reason := reading.exception()) is not None:
            raise BatchesFailed(reason)

    reading = asyncio.create_task(read(), name="rows of a load")
    reading.add_done_callback(lambda _: ready.put_nowait(None))
    taken = take()
    try:
        yield taken
    finally:
        await taken.aclose()
        if not reading.done():
            reading.cancel()
            await asyncio.wait({reading})
        if not reading.cancelled():
            reading.exception()


# pyarrow generates these functions at import, so its stubs declare only some of them.
_kernels: Any = pyarrow.compute


def cell_texts(values: pa.Array) -> pa.Array:
    """Convert values of any importable type to strings that CAST accepts.

    Examples are `true`, `1.5e-07`, `NaN` and `2024-01-31 10:20:30`. Bytes become base64, which engines can decode with
    a function.
    """
    kind = values.type
    if pa.types.is_string(kind):
        return values
    if pa.types.is_duration(kind):
        return duration_text(values)
    if pa.types.is_binary(kind):
        encoded = (None if value is None else b64encode(value).decode() for value in values.to_pylist())
        return pa.array(encoded, pa.string())
    if pa.types.is_decimal(kind):
        return plain_decimals(values)
    texts = values.cast(pa.string())
    if pa.types.is_floating(kind):
        # Use the spellings that Java parses.
        for arrow, java in (("nan", "NaN"), ("-nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
            texts = _kernels.if_else(_kernels.equal(texts, arrow), java, texts)
    is_clock = pa.types.is_time(kind) or pa.types.is_timestamp(kind)
    return without_zero_fraction(texts) if is_clock else texts


def hex_texts(values: pa.Array, prefix: str = "", suffix: str = "") -> pa.Array:
    """Convert bytes to hexadecimal strings, each enclosed in `prefix` and `suffix`."""
    literals = (None if value is None else f"{prefix}{value.hex()}{suffix}" for value in values.to_pylist())
    return pa.array(literals, pa.string())


def plain_decimals(decimals: pa.Array) -> pa.Array:
    """Format decimals with all digits, without the exponent that Arrow uses for very small numbers."""
    texts = decimals.cast(pa.string())
    if not _kernels.any(_kernels.match_substring(texts, "E")).as_py():
        return texts
    return pa.array([None if value is None else f"{value:f}" for value in decimals.to_pylist()], pa.string())


WrittenRows = Sequence[bytes]
"""Rows formatted as SQL text, which a loader's `insert` joins into a statement."""

RowsWriter = Callable[[pa.RecordBatch], WrittenRows]


async def execute(session: EngineSession, statement: str) -> None:
    """Run a statement to completion. Cancel it on the engine if the caller is canceled. Raises EngineError."""
    submitting = asyncio.create_task(session.submit(statement), name="submit")

    async def end() -> None:
        # Cancel and close the statement if it was started. The session limits the duration of both calls.
        await asyncio.wait({submitting}, timeout=_STOP_S)
        if not submitting.done():
            submitting.cancel()
            await asyncio.wait({submitting})
        with suppress(EngineError, asyncio.CancelledError):
            handle = submitting.result()
            await session.cancel(handle)
            await session.close(handle)

    try:
        # Shielded: if `submit` were canceled, there would be no handle with which to cancel the statement.
        handle = await asyncio.shield(submitting)
        await ended(session, handle)
    finally:
        await asyncio.shield(end())


@asynccontextmanager
async def created_table(
    table: TableName,
    create: Callable[[], Coroutine[object, object, object]],
    ledger: LoadLedger,
    drop: Callable[[], Awaitable[None]],
) -> AsyncGenerator[Staging]:
    """Create a table under its final name for the block to fill. Drop it on exit unless `is_gone` is set.

    Only a table that `create` has created is dropped or recorded, never a table of that name from another client.
    """
    creating = asyncio.create_task(create(), name="create table")

    async def undo() -> None:
        await asyncio.wait({creating}, timeout=_UNDO_S)
        if not creating.done():
            creating.cancel()
        elif not creating.cancelled() and creating.exception() is None:
            with suppress(EngineError, TimeoutError):
                async with asyncio.timeout(_UNDO_S):
                    await drop()

    async with AsyncExitStack() as stack:
        try:
            # Shielded: if `create` were canceled, it would be unknown whether this call or another client created the
            # table.
            await asyncio.shield(creating)
            filled = await stack.enter_async_context(staging_table(table, ledger, drop))
        except BaseException:  # includes cancellation: the table must not remain
            await asyncio.shield(undo())
            raise
        yield filled


class StatementLoader(ABC):
    """Implements `TableLoader` with plain SQL statements, which subclasses write for each engine.

    To publish a new table, the staging table is renamed. If the engine cannot rename tables, the new table is created,
    filled by one INSERT ... SELECT, and dropped if that fails.
    """

    max_statement_bytes: int
    mark = '"'
    """The quote character for names."""

    def __init__(self, session: EngineSession, executor: Executor, *, read_only: bool) -> None:
        self._session = session
        self._executor = executor
        self._read_only = read_only

    @abstractmethod
    async def exists(self, table: TableName) -> bool: ...

    async def load(self, load: TableLoad, batches: AsyncIterator[pa.RecordBatch], ledger: LoadLedger) -> int:
        require_writable(read_only=self._read_only)
        self.check_names(load)
        exists = await self.exists(load.target)
        refuse_target(load, exists=exists)
        if exists:
            await self.refuse_existing(load)
        async with staging_table(load.staging, ledger, partial(self.drop, load.staging)) as staging:
            types = await self.create(load.staging, load.columns)
            rows = await self._fill(load, types, batches)
            if load.append:
                await self._append(load, staging)
            elif load.replace and await self.exists(load.target):
                await staging.publish(self._swap(load, ledger))
            else:
                await self._publish(load, staging, ledger)
        return rows

    async def drop(self, table: TableName) -> None:
        require_writable(read_only=self._read_only)
        await execute(self._session, f"DROP TABLE IF EXISTS {self.qualified_name(table)}")

    @abstractmethod
    async def is_view(self, table: TableName) -> bool:
        """Return whether the object with that name is something other than a table. Raises EngineError."""
        ...

    async def refuse_existing(self, load: TableLoad) -> None:
        """Raise StatementRejected if the existing table cannot be the target of the load."""
        if load.replace and await self.is_view(load.target):
            raise not_plain_table_error(load.target)

    @abstractmethod
    def check_names(self, load: TableLoad) -> None:
        """Raise StatementRejected for a table or column name that the engine cannot store exactly as written."""
        ...

    @abstractmethod
    def qualified_name(self, table: TableName) -> str:
        """Return the quoted, qualified name of the table."""
        ...

    @abstractmethod
    async def create(self, table: TableName, columns: Sequence[LoadColumn]) -> Sequence[str]:
        """Create an empty table and return its column types. Raises EngineError."""
        ...

    @abstractmethod
    def writer(self, columns: Sequence[LoadColumn], types: Sequence[str]) -> RowsWriter:
        """Return the function that formats rows as SQL. It is called in a thread.

        The function raises StatementRejected for out-of-range values.
        """
        ...

    @abstractmethod
    def insert(self, load: TableLoad, types: Sequence[str], rows: Sequence[bytes]) -> str:
        """Return the statement that inserts formatted rows into the staging table."""
        ...

    @abstractmethod
    async def rename(self, table: TableName, name: TableName) -> bool:
        """Rename a table unless `name` is taken. Return False if the engine cannot rename tables.

        Raises EngineError.
        """
        ...

    async def _fill(self, load: TableLoad, types: Sequence[str], batches: AsyncIterator[pa.RecordBatch]) -> int:
        total = 0
        async with read_ahead(batches, self.writer(load.columns, types), self._executor) as written:
            async for rows in group_rows(written, self.max_statement_bytes):
                await execute(self._session, self.insert(load, types, rows))
                total += len(rows)
        return total

    async def _append(self, load: TableLoad, staging: Staging) -> None:  # noqa: ARG002 for engines with transactions
        await execute(self._session, self._copy(load))

    def _copy(self, load: TableLoad) -> str:
        names = ", ".join(identifier(column.name, mark=self.mark) for column in load.columns)
        target, staging = self.qualified_name(load.target), self.qualified_name(load.staging)
        return f"INSERT INTO {target} ({names}) SELECT {names} FROM {staging}"

    async def _swap(self, load: TableLoad, ledger: LoadLedger) -> None:
        """Replace the existing table with the new table, then drop the old table.

        This takes two renames, and between them no table has the target's name. The ledger records the old table only
        after both renames. If the server dies between them, the old table therefore remains as `qs_import_<id>_old`.
        """
        old = TableName(load.staging.database, f"{load.staging.name.lstrip('_')}_old")
        try:
            async with asyncio.timeout(_SWAP_S):
                for table, name in ((load.target, old), (load.staging, load.target)):
                    if not await self.rename(table, name):
                        raise StatementRejected(
                            "Tables in this database cannot be renamed and therefore cannot be replaced."
                        )
        except (EngineError, TimeoutError) as error:
            if not await self._is_swapped(load, old):
                if isinstance(error, TimeoutError):
                    raise EngineTimeout("The tables were not renamed in time.") from None
                raise
        async with staging_table(old, ledger, partial(self.drop, old)):
            """Leaving the block drops the old table, or else keeps it in the ledger."""

    async def _is_swapped(self, load: TableLoad, old: TableName) -> bool:
        """Return whether the swap took effect although a rename failed. If it did not, restore the old table's name.

        Raises OutcomeUnknown if the state of the tables is unclear.
        """
        try:
            async with asyncio.timeout(_UNDO_S):
                if not await self.exists(old):
                    return False
                if not await self.exists(load.target):
                    await self.rename(old, load.target)
                    return False
                if not await self.exists(load.staging):
                    return True
        except (EngineError, TimeoutError):
            message = f'The table was not replaced, and "{load.target.name}" may now be named "{old.name}".'
            raise OutcomeUnknown(message) from None
        raise OutcomeUnknown(
            f'Another table "{load.target.name}" was created meanwhile; the old one is now named "{old.name}".'
        )

    async def _publish(self, load: TableLoad, staging: Staging, ledger: LoadLedger) -> None:
        renaming = asyncio.create_task(self.rename(load.staging, load.target), name="rename")
        try:
            is_renamed = await asyncio.shield(renaming)
        except (asyncio.CancelledError, OutcomeUnknown):
            await asyncio.shield(self._undo_rename(load, renaming, ledger))
            raise
        if is_renamed:
            staging.is_gone = True
            return
        create = partial(self.create, load.target, load.columns)
        async with created_table(load.target, create, ledger, partial(self.drop, load.target)) as filled:
            await execute(self._session, self._copy(load))
            filled.is_gone = True

    async def _undo_rename(self, load: TableLoad, renaming: asyncio.Task[bool], ledger: LoadLedger) -> None:
        """Drop the target if the rename took effect, that is, if the staging table no longer exists."""
        await asyncio.wait({renaming}, timeout=_UNDO_S)
        renaming.cancel()
        with suppress(EngineError, TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(_UNDO_S):
                if not await self.exists(load.staging):
                    await ledger.add(load.target)
                    await self.drop(load.target)
                    await ledger.remove(load.target)


async def group_rows(written: AsyncGenerator[WrittenRows], max_bytes: int) -> AsyncGenerator[Sequence[bytes]]:
    """Group rows into batches of at most `max_bytes`, one per statement. Each batch contains at least one row."""
    rows, size = list[bytes](), 0
    async for more in written:
        for row in more:
            if rows and size + len(row) > max_bytes:
                yield rows
                rows, size = [], 0
            rows.append(row)
            size += len(row) + 2
    if rows:
        yield rows
