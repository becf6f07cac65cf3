"""What loaders share: refusals, staging tables, reading ahead, values as texts, and loads by plain statements."""

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
from queryserver.formats.download.texts import duration_text
from queryserver.formats.text_forms import without_zero_fraction

_BATCHES_AHEAD = 2
_CLEAR_S = 30.0
_STOP_S = 10.0
_TAKE_BACK_S = 30.0
_SWAP_S = 120.0
_SHOWN_CHARACTERS = 40

Answered = TypeVar("Answered")
Converted = TypeVar("Converted")


def column_definitions(columns: Sequence[LoadColumn], quoted: Callable[[str], str]) -> str:
    """What stands between the brackets of CREATE TABLE."""
    return ", ".join(
        [f"{quoted(column.name)} {column.declared}{'' if column.nullable else ' NOT NULL'}" for column in columns]
    )


def refuse_target(load: TableLoad, *, exists: bool) -> None:
    """Raises StatementRejected for a new table that exists already, and for one to append to that does not."""
    if exists and not load.append and not load.replace:
        raise StatementRejected(f'Table "{load.target.name}" already exists.')
    if load.append and not exists:
        raise StatementRejected(f'Table "{load.target.name}" does not exist.')


def publishing_steps(load: TableLoad, staging: str, target: str) -> tuple[str, ...]:
    """What makes the rows of the quoted table `staging` visible, in one transaction, in double quotes' SQL.

    Where a table is replaced, DROP TABLE refuses a view.
    """
    if load.append:
        names = ", ".join(identifier(column.name) for column in load.columns)
        return f"INSERT INTO {target} ({names}) SELECT {names} FROM {staging}", f"DROP TABLE {staging}"
    renaming = f"ALTER TABLE {staging} RENAME TO {identifier(load.target.name)}"
    return (f"DROP TABLE IF EXISTS {target}", renaming) if load.replace else (renaming,)


def no_table(table: TableName) -> StatementRejected:
    """Why something is not replaced."""
    return StatementRejected(f'"{table.name}" is a view, a partition or the like: only a plain table is replaced.')


def refuse_changes(*, read_only: bool) -> None:
    """Raises StatementDenied where the connector may only read."""
    if read_only:
        raise StatementDenied("This connector only reads: no table can be made or dropped in it.")


def passing(database: str) -> StatementRejected:
    """Why no table is made in a database that ends with the session."""
    return StatementRejected(f'Tables of "{database}" go with their session: nobody would see this one.')


def refuse_long_names(names: Sequence[str], *, longest: int, unit: str, size: Callable[[str], int]) -> None:
    """Raises StatementRejected for a name that the engine would cut, or refuse with a text that names nothing."""
    for name in names:
        if size(name) > longest:
            shown = name[:_SHOWN_CHARACTERS]
            length = f"{size(name)} {unit}; the engine knows at most {longest}"
            raise StatementRejected(f'The name "{shown}..." has {length}.')


class Staging:
    """A staging table. `is_gone` is set once it has another name, or went with its transaction."""

    def __init__(self, table: TableName, ledger: LoadLedger, drop: Callable[[], Awaitable[None]]) -> None:
        self.is_gone = False
        self.is_cleared = False
        self._table = table
        self._ledger = ledger
        self._drop = drop

    async def publish(self, last_step: Awaitable[object], *, takes_it: bool = True) -> None:
        """Take the step that makes the rows visible; the staging table goes with it if it `takes_it`, else is dropped.

        This is not broken off: a cancel that comes meanwhile is too late, and reaches the caller after the load.
        """

        async def publish() -> None:
            await last_step
            self.is_gone = takes_it
            await self.clear()

        await to_the_end(publish())

    async def clear(self) -> None:
        """Drop the table and settle it in the ledger. One that cannot be dropped now stays there."""
        self.is_cleared = True
        if not self.is_gone:
            try:
                async with asyncio.timeout(_CLEAR_S):
                    await self._drop()
            except (EngineError, TimeoutError):
                return
        await self._ledger.settled(self._table)


@asynccontextmanager
async def staged(table: TableName, ledger: LoadLedger, drop: Callable[[], Awaitable[None]]) -> AsyncGenerator[Staging]:
    """Around the life of a staging table, which is made inside: at the end it is dropped, whatever happened.

    It is entered in the ledger before, and settled after. What the batches inside raised comes out as it was.
    """
    # Not broken off: it would not be known then whether the table is in the ledger.
    await to_the_end(ledger.made(table))
    staging = Staging(table, ledger, drop)
    try:
        yield staging
    except RowsFailed as error:
        raise error.reason from error.reason.__cause__
    finally:
        if not staging.is_cleared:
            await asyncio.shield(staging.clear())


async def to_the_end(work: Coroutine[Any, Any, Answered]) -> Answered:
    """What work gives that must not be broken off. A cancel that comes meanwhile is delivered at the next wait.

    When the work fails, the cancel comes in the place of its error. The work limits its own time.
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
    """Deliver a cancel that was held back: now where the work failed, else when the task waits next."""
    if failure is not None:
        raise asyncio.CancelledError from failure
    if (task := asyncio.current_task()) is not None:
        task.uncancel()
        task.cancel()


class RowsFailed(Exception):
    """The batches of a load failed, not the engine. Passes through drivers and their error handling unharmed."""

    def __init__(self, reason: BaseException) -> None:
        super().__init__("the rows could not be read")
        self.reason = reason


@asynccontextmanager
async def read_ahead(
    batches: AsyncIterator[pa.RecordBatch], convert: Callable[[pa.RecordBatch], Converted], executor: Executor
) -> AsyncGenerator[AsyncGenerator[Converted]]:
    """The converted batches; the next ones are read and converted while the engine works on one.

    At most two are ready or under way. What the batches or `convert` raise comes out as RowsFailed. One task reads all
    batches, and has ended when the block is left.
    """
    ready: asyncio.Queue[Converted | None] = asyncio.Queue()
    room = asyncio.Semaphore(_BATCHES_AHEAD)

    async def read() -> None:
        loop = asyncio.get_running_loop()
        await room.acquire()
        async for batch in batches:
            ready.put_nowait(await loop.run_in_executor(executor, convert, batch))
            await room.acquire()

    async def take() -> AsyncGenerator[Converted]:
        while (converted := await ready.get()) is not None:
            yield converted
            room.release()
        if (reason := reading.exception()) is not None:
            raise RowsFailed(reason)

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


# The kernels are made when the package is loaded, so its stubs know only some of them.
_kernels: Any = pyarrow.compute


def cell_texts(values: pa.Array) -> pa.Array:
    """Values of any imported type as texts that a cast reads back: `true`, `1.5e-07`, `NaN`, `2024-01-31 10:20:30`.

    Those of bytes are base64, which an engine has a function for.
    """
    kind = values.type
    if pa.types.is_string(kind):
        return values
    if pa.types.is_duration(kind):
        return duration_text(values)
    if pa.types.is_binary(kind):
        found = (None if value is None else b64encode(value).decode() for value in values.to_pylist())
        return pa.array(found, pa.string())
    if pa.types.is_decimal(kind):
        return plain_decimals(values)
    texts = values.cast(pa.string())
    if pa.types.is_floating(kind):
        # As Java reads them.
        for arrow, java in (("nan", "NaN"), ("-nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
            texts = _kernels.if_else(_kernels.equal(texts, arrow), java, texts)
    is_clock = pa.types.is_time(kind) or pa.types.is_timestamp(kind)
    return without_zero_fraction(texts) if is_clock else texts


def hex_texts(values: pa.Array, before: str = "", behind: str = "") -> pa.Array:
    """Bytes in hexadecimal digits, between two texts."""
    found = (None if value is None else f"{before}{value.hex()}{behind}" for value in values.to_pylist())
    return pa.array(found, pa.string())


def plain_decimals(decimals: pa.Array) -> pa.Array:
    """Decimal numbers with all their digits and without an exponent, which Arrow writes for the smallest."""
    texts = decimals.cast(pa.string())
    if not _kernels.any(_kernels.match_substring(texts, "E")).as_py():
        return texts
    return pa.array([None if value is None else f"{value:f}" for value in decimals.to_pylist()], pa.string())


Written = Sequence[bytes]
"""Rows of values as the engine's SQL has them, each without the commas and brackets around it."""

RowsWriter = Callable[[pa.RecordBatch], Written]


async def execute(session: EngineSession, statement: str) -> None:
    """Run a statement to its end. It is stopped at the engine when the caller is cancelled. Raises EngineError."""
    submitting = asyncio.create_task(session.submit(statement), name="submit")

    async def end() -> None:
        # Stop and free the statement, if there is one. The adapter limits both calls in time.
        await asyncio.wait({submitting}, timeout=_STOP_S)
        if not submitting.done():
            submitting.cancel()
            await asyncio.wait({submitting})
        with suppress(EngineError, asyncio.CancelledError):
            handle = submitting.result()
            await session.cancel(handle)
            await session.close(handle)

    try:
        # A cancel in the middle of it would leave nothing to stop the statement by.
        handle = await asyncio.shield(submitting)
        await ended(session, handle)
    finally:
        await asyncio.shield(end())


@asynccontextmanager
async def made(
    table: TableName,
    create: Callable[[], Coroutine[object, object, object]],
    ledger: LoadLedger,
    drop: Callable[[], Awaitable[None]],
) -> AsyncGenerator[Staging]:
    """Around the filling of a table that was made under its own name; dropped at the end unless `is_gone` is set.

    Only what `create` has made is dropped or entered in the ledger: not a table that another client made meanwhile.
    """
    creating = asyncio.create_task(create(), name="create table")

    async def undo() -> None:
        await asyncio.wait({creating}, timeout=_TAKE_BACK_S)
        if not creating.done():
            creating.cancel()
        elif not creating.cancelled() and creating.exception() is None:
            with suppress(EngineError, TimeoutError):
                async with asyncio.timeout(_TAKE_BACK_S):
                    await drop()

    async with AsyncExitStack() as stack:
        try:
            # A cancel in the middle of it would leave open who made the table.
            await asyncio.shield(creating)
            filled = await stack.enter_async_context(staged(table, ledger, drop))
        except BaseException:  # a cancel too: the table must not stay
            await asyncio.shield(undo())
            raise
        yield filled


class StatementLoader(ABC):
    """A TableLoader. A subclass per engine writes its SQL.

    A new table is the staging table under another name; where the engine cannot rename, it is filled by one
    INSERT ... SELECT, and dropped when that fails.
    """

    max_statement_bytes: int
    mark = '"'
    """Around names."""

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
        if exists:
            await self.refuse_existing(load)
        async with staged(load.staging, ledger, partial(self.drop, load.staging)) as staging:
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
        refuse_changes(read_only=self._read_only)
        await execute(self._session, f"DROP TABLE IF EXISTS {self.place(table)}")

    @abstractmethod
    async def is_view(self, table: TableName) -> bool:
        """Whether what is there by that name is no table. Raises EngineError."""
        ...

    async def refuse_existing(self, load: TableLoad) -> None:
        """Raises StatementRejected where the table that is there can be no target of the load."""
        if load.replace and await self.is_view(load.target):
            raise no_table(load.target)

    @abstractmethod
    def check_names(self, load: TableLoad) -> None:
        """Raises StatementRejected for names that the engine would take for something else."""
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
    def writer(self, columns: Sequence[LoadColumn], types: Sequence[str]) -> RowsWriter:
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

    async def _append(self, load: TableLoad, staging: Staging) -> None:  # noqa: ARG002 for engines with transactions
        await execute(self._session, self._copy(load))

    def _copy(self, load: TableLoad) -> str:
        names = ", ".join(identifier(column.name, mark=self.mark) for column in load.columns)
        return f"INSERT INTO {self.place(load.target)} ({names}) SELECT {names} FROM {self.place(load.staging)}"

    async def _swap(self, load: TableLoad, ledger: LoadLedger) -> None:
        """Give the new table the name of the old one, which is dropped.

        These are two renamings. The old table is entered in the ledger after them only, for between them it is the only
        one: what a server that dies there leaves of it has the name `qs_import_<id>_old`.
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
            """Drops it, or leaves it in the ledger."""

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
            return
        create = partial(self.create, load.target, load.columns)
        async with made(load.target, create, ledger, partial(self.drop, load.target)) as filled:
            await execute(self._session, self._copy(load))
            filled.is_gone = True

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
