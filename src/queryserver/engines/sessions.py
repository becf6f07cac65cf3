"""Sessions over asyncio connections: one streamed statement at a time; and `run`, a statement from start to end."""

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import pyarrow as pa

from queryserver import errors
from queryserver.engines import protocol
from queryserver.engines.connections import ConnectionPool, ConnectionT, DatabaseLogin
from queryserver.engines.statement_texts import BATCH_BYTES, ChunkSize
from queryserver.engines.values import Rows
from queryserver.formats.columns import Column, parts
from queryserver.platform.addresses import AddressRules
from queryserver.sql.places import Bound

MAX_LOG_LINES = 10_000

_CANCEL_AGAIN_S = 0.5
_END_S = 5.0
_CALL_S = 5.0
_INTERRUPT_S = 5.0
_PREPARE_S = 30.0
_POLL_S = 1.0
_CONVERTER_THREADS = 2
_MAX_IDLE = 8
_FEW_CELLS = 2_000
"""So many are turned into Arrow without a thread."""
_MOST_BYTES = 16 * 1024 * 1024


class Stopped(errors.StatementRejected):
    """The statement was canceled before its next step was sent."""

    def __init__(self) -> None:
        super().__init__("canceling statement due to user request")


class StatementSource(Protocol):
    """One statement on one connection in the driver's terms, to be inherited. Its errors are domain errors."""

    columns: tuple[Column, ...] = ()
    """Known after `execute`; none without a result set."""
    modified_rows: int | None = None
    """None while, or where, the server does not say."""
    log_lines: Sequence[str] = ()
    """The server's notices about the statement."""
    is_open: bool = False
    """The server still holds rows, or a transaction around them."""

    async def execute(self, go_on: Callable[[], None]) -> None:
        """Run the statement up to its first rows; `go_on` is called before each later step, and raises to stop it."""
        ...

    async def fetch(self, count: int) -> Rows:
        """The next rows, at most `count`; none at the end."""
        ...

    def read(self, rows: Rows) -> pa.RecordBatch:
        """Rows as Arrow; called from another thread, never twice at once."""
        ...

    async def interrupt(self) -> None:
        """Send the stop signal past the connection. Raises nothing; it may be lost."""
        ...

    def was_interrupted(self, error: errors.EngineError) -> bool:
        """Whether `error` is the server's answer to a stop signal."""
        ...

    async def end(self, *, keep: bool) -> None:
        """Give up the remaining rows; what the statement did is kept or, where that is possible, undone. Idempotent."""
        ...


class StreamedOperation:
    """A statement that runs, or ran; its connection serves nothing else until `close`.

    `cancel_s` is how long a cancel goes on sending stop signals.
    """

    def __init__(self, source: StatementSource, executor: Executor, *, cancel_s: float = 10.0) -> None:
        self.source = source
        self._cancel_s = cancel_s
        self._executor = executor
        self._chunk = ChunkSize()
        self._first: Rows = ()
        self._ahead: asyncio.Task[Rows] | None = None
        self._error: errors.EngineError | None = None
        self._cancel_asked = False
        self._canceled = False
        self._abandoned = False
        self._ignores_signals = False
        self._start = asyncio.create_task(self._run(), name="statement")

    @property
    def is_running(self) -> bool:
        """The server is at work for this statement."""
        return bool(self._unfinished())

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.source.columns

    async def logs(self, start: int) -> Sequence[str]:
        return self.source.log_lines[start:]

    @property
    def in_doubt(self) -> bool:
        """The connection must not serve another session: a stop signal or an answer may still be on its way to it."""
        return self._cancel_asked or self._abandoned or self.is_running

    async def status(self, wait_s: float) -> protocol.OperationStatus:
        """The present status, the terminal one if it comes within `wait_s`."""
        if wait_s > 0 and not self._start.done():
            await asyncio.wait({self._start}, timeout=wait_s)
        if not self._start.done():
            return protocol.OperationStatus(protocol.OperationState.RUNNING)
        if self._start.cancelled():
            unknown = errors.OutcomeUnknown("The engine did not stop in time; the statement was left to itself.")
            return protocol.OperationStatus(protocol.OperationState.FAILED, error=unknown)
        self._start.result()
        if self._canceled:
            return protocol.OperationStatus(protocol.OperationState.CANCELED)
        if self._error is not None:
            return protocol.OperationStatus(protocol.OperationState.FAILED, error=self._error)
        source = self.source
        return protocol.OperationStatus(
            protocol.OperationState.FINISHED, has_result_set=bool(source.columns), modified_rows=source.modified_rows
        )

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The rows. The next chunk is on its way while one is turned into Arrow, unless it would be one wide row."""
        rows, self._first = self._first, ()
        while rows:
            # What is not open has given its last rows.
            if is_ahead := self.source.is_open and self._chunk.rows > 1:
                self._ahead = asyncio.create_task(self._fetch(), name="rows")
            if len(rows) * len(self.source.columns) <= _FEW_CELLS:
                batch = self.source.read(rows)
            else:
                batch = await asyncio.get_running_loop().run_in_executor(self._executor, self.source.read, rows)
            rows = ()
            if self.source.is_open:
                self._chunk.learn(batch)
            for piece in (batch,) if batch.nbytes <= BATCH_BYTES else parts(batch, BATCH_BYTES):
                yield piece
            del batch
            if not is_ahead:
                self._ahead = asyncio.create_task(self._fetch(), name="rows") if self.source.is_open else None
            rows = await self._ahead if self._ahead is not None else ()
        if self._error is not None:
            raise self._error
        if self._canceled:
            raise Stopped

    async def cancel(self) -> None:
        """Stop the statement at the server; nothing happens once it has ended there."""
        if not self.is_running and not self.source.is_open:
            return
        self._cancel_asked = True
        try:
            async with asyncio.timeout(self._cancel_s):
                while tasks := self._unfinished():
                    # A signal that meets the server between two messages of a statement is lost: hence again.
                    await self.source.interrupt()
                    await asyncio.wait(tasks, timeout=_CANCEL_AGAIN_S)
                if self.source.is_open:
                    self._canceled = True
                    await self._end(keep=False)
        except TimeoutError:
            self._ignores_signals = True

    async def close(self) -> None:
        """Free what the server holds for the statement; one that still runs is stopped, unless that was in vain."""
        if not self._start.done() and not self._ignores_signals:
            await self.cancel()
        tasks = self._unfinished()
        for task in tasks:
            task.cancel()
        if tasks:
            self._abandoned = True
            await asyncio.wait(tasks, timeout=_END_S)
        await self._end(keep=self._error is None)
        if self._ahead is not None and self._ahead.done() and not self._ahead.cancelled():
            self._ahead.exception()
        self._first = ()

    async def _run(self) -> None:
        try:
            self._go_on()
            await self.source.execute(self._go_on)
            self._first = await self._fetch()
        except errors.EngineError as error:
            self._error = error
            was_stopped = self._cancel_asked and self.source.was_interrupted(error)
            self._canceled = was_stopped or isinstance(error, Stopped)
            await self._end(keep=False)

    async def _fetch(self) -> Rows:
        if self.source.is_open:
            self._go_on()
        return await self.source.fetch(self._chunk.rows)

    def _go_on(self) -> None:
        if self._cancel_asked:
            raise Stopped

    async def _end(self, *, keep: bool) -> None:
        if not self.source.is_open:
            return
        try:
            async with asyncio.timeout(_END_S):
                await self.source.end(keep=keep)
        except (errors.EngineError, TimeoutError):
            self._abandoned = True

    def _unfinished(self) -> set[asyncio.Task[Any]]:
        return {task for task in (self._start, self._ahead) if task is not None and not task.done()}


class Operation(Protocol):
    """A statement that runs, or ran, in the engine's terms. The methods are those of EngineSession."""

    @property
    def is_running(self) -> bool:
        """The engine is at work for it, and no row can be read yet."""
        ...

    @property
    def columns(self) -> tuple[Column, ...]: ...

    async def status(self, wait_s: float) -> protocol.OperationStatus: ...

    def batches(self) -> AsyncIterator[pa.RecordBatch]: ...

    async def logs(self, start: int) -> Sequence[str]: ...

    async def cancel(self) -> None: ...

    async def close(self) -> None: ...


OperationT = TypeVar("OperationT", bound=Operation)
Lent = TypeVar("Lent")


class FollowingSession(ABC, Generic[OperationT]):
    """An EngineSession. It knows its last statement only: handles of earlier ones may be canceled and closed again."""

    gone = "The session is gone; the statement was not started."
    unknown = "The engine no longer knows this statement."

    def __init__(self) -> None:
        self._operation: OperationT | None = None
        self._handle: protocol.OperationHandle | None = None
        self._left = False

    @abstractmethod
    async def _start(self, statement: str | Bound) -> OperationT:
        """Send a statement. Raises as `submit`."""
        ...

    @abstractmethod
    def _token(self, operation: OperationT) -> str:
        """The token of the statement's handle."""
        ...

    @abstractmethod
    def _is_connected(self) -> bool: ...

    async def submit(self, statement: str | Bound) -> protocol.OperationHandle:
        await self._close_operation()
        if not await self.is_alive():
            raise errors.SessionLost(self.gone)
        return self.follow(await self._start(statement))

    def follow(self, operation: OperationT) -> protocol.OperationHandle:
        """The handle of a statement that has just become the session's."""
        self._operation, self._handle = operation, protocol.OperationHandle(self._token(operation))
        return self._handle

    async def poll(self, handle: protocol.OperationHandle, *, wait_s: float = 0) -> protocol.OperationStatus:
        return await self._find(handle).status(wait_s)

    async def columns(self, handle: protocol.OperationHandle) -> tuple[Column, ...]:
        return self._find(handle).columns

    def batches(self, handle: protocol.OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        return self._find(handle).batches()

    async def logs(self, handle: protocol.OperationHandle, *, start: int) -> Sequence[str]:
        return await self._find(handle).logs(start)

    async def cancel(self, handle: protocol.OperationHandle) -> None:
        if self._operation is not None and handle == self._handle:
            await self._operation.cancel()

    async def close(self, handle: protocol.OperationHandle) -> None:
        if handle == self._handle:
            await self._close_operation()

    async def is_alive(self) -> bool:
        is_free = self._operation is None or not self._operation.is_running
        return is_free and not self._left and self._is_connected()

    async def _close_operation(self) -> None:
        if self._operation is not None:
            await self._operation.close()

    def _find(self, handle: protocol.OperationHandle) -> OperationT:
        if self._operation is None or handle != self._handle:
            raise errors.OutcomeUnknown(self.unknown)
        return self._operation


class StreamedSession(FollowingSession[StreamedOperation]):
    """`is_connected` says whether the connection is still there; `executor` turns rows into Arrow."""

    def __init__(
        self,
        new_source: Callable[[str | Bound], StatementSource],
        *,
        is_connected: Callable[[], bool],
        executor: Executor,
        takes_rows: bool = False,
    ) -> None:
        super().__init__()
        self.takes_rows = takes_rows
        self._new_source = new_source
        self._connected = is_connected
        self._executor = executor
        self._count = itertools.count(1)
        self._in_doubt = False

    @property
    def is_reusable(self) -> bool:
        """Whether another session may have the connection."""
        return not self._in_doubt and self._connected()

    async def leave(self) -> None:
        """Stop and free everything; the session must not use its connection any more. Limited in time."""
        self._left = True
        await self._close_operation()

    async def _start(self, statement: str | Bound) -> StreamedOperation:
        return StreamedOperation(self._new_source(statement), self._executor)

    def _token(self, operation: StreamedOperation) -> str:  # noqa: ARG002 no other process continues it
        return str(next(self._count))

    def _is_connected(self) -> bool:
        return self._connected()

    async def _close_operation(self) -> None:
        await super()._close_operation()
        self._in_doubt = self._in_doubt or (self._operation is not None and self._operation.in_doubt)


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """A database server, its default database, and the login used when a session brings none."""

    product: ClassVar[str]
    host: str
    port: int
    database: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    connect_timeout_s: int = 10
    idle_s: float = 60.0
    """How long an idle connection is kept."""
    cell_max_bytes: int | None = None
    """Largest value of a result; a row with a larger one is refused before it is in memory."""
    rules: AddressRules = field(default_factory=AddressRules)

    def login(self, credentials: protocol.Credentials | None) -> DatabaseLogin:
        """The login of a session: its own credentials, else those of the address. Raises CredentialsRequired."""
        if credentials is not None:
            return DatabaseLogin(credentials.username, credentials.password)
        if self.user is None:
            raise errors.CredentialsRequired(f"{self.product} needs a user and a password.")
        return DatabaseLogin(self.user, self.password or "")


class PooledSessions(Generic[ConnectionT]):
    """The sessions of one engine; owns its connections, and the threads that turn rows into Arrow.

    Inside `connect_errors` the driver's errors become EngineUnavailable, CredentialsRequired or StatementRejected.
    """

    def __init__(
        self,
        dialect: str,
        connect: Callable[[DatabaseLogin], Awaitable[ConnectionT]],
        connect_errors: Callable[[], AbstractContextManager[None]],
        *,
        idle_s: float,
    ) -> None:
        self._pool = ConnectionPool(connect, max_idle=_MAX_IDLE, idle_s=idle_s)
        self._connect_errors = connect_errors
        self.executor = ThreadPoolExecutor(_CONVERTER_THREADS, thread_name_prefix=dialect)
        """For what turns rows into Arrow, and back."""

    @asynccontextmanager
    async def session(
        self,
        login: DatabaseLogin,
        new_source: Callable[[ConnectionT, str | Bound], StatementSource],
        prepare: Callable[[ConnectionT], Awaitable[None]],
    ) -> AsyncGenerator[StreamedSession]:
        """A session on a clean connection, made ready by `prepare`; leaving it stops what still runs in it."""
        connection = await self._pool.take(login)
        session = StreamedSession(
            partial(new_source, connection),
            is_connected=lambda: not connection.is_closed(),
            executor=self.executor,
            takes_rows=True,
        )
        try:
            await self._limited(prepare(connection), _PREPARE_S)
            yield session
        finally:
            await asyncio.shield(self._leave(login, connection, session))

    @asynccontextmanager
    async def lent(
        self,
        login: DatabaseLogin,
        prepare: Callable[[ConnectionT], Awaitable[None]],
        make: Callable[[ConnectionT, Executor], Lent],
    ) -> AsyncGenerator[Lent]:
        """What `make` makes of threads and of a clean connection that `prepare` made ready.

        What raises out of the block puts the connection in doubt.
        """
        async with self._pool.borrowed(login) as connection:
            await self._limited(prepare(connection), _PREPARE_S)
            yield make(connection, self.executor)

    async def call(self, login: DatabaseLogin, work: Callable[[ConnectionT], Awaitable[object]]) -> None:
        """A short call on a connection that no session has. Raises what `connect_errors` makes of a failure."""
        async with self._pool.borrowed(login) as connection:
            await self._limited(work(connection), _CALL_S)

    async def interrupt(self, login: DatabaseLogin, signal: Callable[[ConnectionT], Awaitable[object]]) -> None:
        """Send the stop signal from a second connection. A failure is ignored: the caller tries again."""
        with suppress(errors.EngineError, TimeoutError):
            async with asyncio.timeout(_INTERRUPT_S):
                await self.call(login, signal)

    async def close(self) -> None:
        """Close what is idle; connections in use are closed when their sessions end. Idempotent."""
        await self._pool.close()
        self.executor.shutdown(wait=False, cancel_futures=True)

    async def _limited(self, work: Awaitable[object], for_s: float) -> None:
        with self._connect_errors():
            async with asyncio.timeout(for_s):
                await work

    async def _leave(self, login: DatabaseLogin, connection: ConnectionT, session: StreamedSession) -> None:
        await session.leave()
        if session.is_reusable:
            await self._pool.give_back(login, connection)
        else:
            await connection.shut()


@dataclass(frozen=True, slots=True)
class Answer:
    """Columns and rows, in as few batches as the engine gave."""

    columns: tuple[Column, ...] = ()
    rows: tuple[pa.RecordBatch, ...] = ()


async def run(
    session: protocol.EngineSession, statement: str | Bound, *, max_rows: int, max_bytes: int = _MOST_BYTES
) -> Answer:
    """Run a statement and read its first rows, until they take `max_bytes`; nothing is left at the engine.

    Raises EngineError: the engine's refusal, or that it was stopped there.
    """
    handle = await session.submit(statement)
    async with submitted(session, handle):
        status = await final_status(session, handle)
        if status.state is not protocol.OperationState.FINISHED:
            raise errors.EngineUnavailable("The statement was stopped at the engine.")
        if not status.has_result_set:
            return Answer()
        columns, kept = await session.columns(handle), list[pa.RecordBatch]()
        async for batch in session.batches(handle):
            kept.append(batch.slice(0, max_rows))
            max_rows -= batch.num_rows
            max_bytes -= batch.nbytes
            if max_rows <= 0 or max_bytes <= 0:
                break
        return Answer(columns, tuple(kept))


async def final_status(session: protocol.EngineSession, handle: protocol.OperationHandle) -> protocol.OperationStatus:
    """The status at the end: FINISHED or CANCELED. Raises the statement's failure."""
    status = await session.poll(handle, wait_s=_POLL_S)
    while not status.state.is_terminal:
        status = await session.poll(handle, wait_s=_POLL_S)
    if status.error is not None:
        raise status.error
    return status


async def ended(session: protocol.EngineSession, handle: protocol.OperationHandle) -> protocol.OperationStatus:
    """The status FINISHED. Raises the statement's failure, StatementRejected when it was stopped at the engine."""
    status = await final_status(session, handle)
    if status.state is protocol.OperationState.CANCELED:
        raise errors.StatementRejected("The statement was canceled at the engine.")
    return status


@asynccontextmanager
async def submitted(session: protocol.EngineSession, handle: protocol.OperationHandle) -> AsyncGenerator[None]:
    """Around the use of a statement: at the end it is closed, after an exception stopped first.

    The adapter limits the time of both calls.
    """
    try:
        yield
    except BaseException:  # includes CancelledError: the engine must not go on with it
        # What ended the work is worth more than an engine that cannot be reached.
        with suppress(errors.EngineError):
            await asyncio.shield(session.cancel(handle))
        raise
    finally:
        await asyncio.shield(session.close(handle))
