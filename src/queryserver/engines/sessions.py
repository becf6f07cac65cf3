"""Sessions on asyncio connections that stream one statement at a time, and `run`, which reads a small result."""

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence, Sized
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import pyarrow as pa

from queryserver import errors
from queryserver.engines import protocol
from queryserver.engines.connections import ConnectionPool, ConnectionT, DatabaseLogin
from queryserver.engines.record_batches import BATCH_BYTES, ChunkSize
from queryserver.formats.arrow import Column, split_batch
from queryserver.platform.addresses import AddressRules
from queryserver.sql.markers import BoundStatement

MAX_LOG_LINES = 10_000

CANCEL_INTERVAL_S = 0.5
_END_S = 5.0
_CALL_S = 5.0
_INTERRUPT_S = 5.0
_PREPARE_S = 30.0
_POLL_S = 1.0
_CONVERTER_THREADS = 2
_MAX_IDLE, _MAX_SPARE = 8, 16
"""Together, as many connections as the statements and lookups of one connector use at the same time.

With 24 users and only 8 idle connections, one statement in eight opened a new connection.
"""
_MAX_INLINE_CELLS = 2_000
"""Maximum number of cells that are converted to Arrow on the event loop. More cells are converted in a thread."""
_MAX_INLINE_BYTES = 256 * 1024
_MAX_BYTES = 16 * 1024 * 1024


class Stopped(errors.StatementRejected):
    """Raised if the statement was canceled before its next request was sent."""

    def __init__(self) -> None:
        super().__init__("canceling statement due to user request")


class DriverStatement(Protocol):
    """One statement on a driver's connection. Serves as a base class. Methods raise domain errors."""

    columns: tuple[Column, ...] = ()
    """The result columns, known after `execute`; empty if there is no result set."""
    modified_rows: int | None = None
    """The number of changed rows; None until the server reports it."""
    log_lines: Sequence[str] = ()
    """The server's notices for the statement."""
    is_open: bool = False
    """Whether the server still has rows to send, or holds a transaction open in order to send them."""

    async def execute(self, raise_if_stopped: Callable[[], None]) -> None:
        """Run the statement until its first rows can be fetched or it has completed.

        Implementations call `raise_if_stopped` before each further request. This call raises if the statement must
        stop.
        """
        ...

    async def fetch(self, count: int) -> Sized:
        """Return up to `count` more rows in a form that only `read` knows; empty after the last row."""
        ...

    def size_bytes(self, rows: Any) -> int:
        """Return the size of fetched rows."""
        ...

    def read(self, rows: Any) -> pa.RecordBatch:
        """Convert rows to Arrow. May be called from another thread, but never concurrently."""
        ...

    async def interrupt(self) -> None:
        """Send a cancel request over another connection. Never raises. The request may be lost."""
        ...

    def was_interrupted(self, error: errors.EngineError) -> bool:
        """Return whether `error` is the server's response to a cancel request."""
        ...

    async def end(self, *, keep: bool) -> None:
        """Discard the remaining rows. Commit the changes if `keep` is set; otherwise roll back if possible.

        Idempotent.
        """
        ...


class StreamedOperation:
    """A running or finished statement. Its connection serves no other statement until `close`.

    `cancel` repeats the cancel request for up to `cancel_s` seconds.
    """

    def __init__(self, source: DriverStatement, executor: Executor, *, cancel_s: float = 10.0) -> None:
        self.source = source
        self._cancel_s = cancel_s
        self._executor = executor
        self._chunk = ChunkSize()
        self._first: Sized = ()
        self._ahead: asyncio.Task[Sized] | None = None
        self._error: errors.EngineError | None = None
        self._cancel_requested = False
        self._canceled = False
        self._abandoned = False
        self._ignores_signals = False
        self._start = asyncio.create_task(self._run(), name="statement")

    @property
    def is_running(self) -> bool:
        """Whether the server is working on this statement."""
        return bool(self._unfinished())

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.source.columns

    async def logs(self, start: int) -> Sequence[str]:
        return self.source.log_lines[start:]

    @property
    def is_in_doubt(self) -> bool:
        """Whether the connection must not be reused, because a cancel request or a response may still arrive."""
        return self._cancel_requested or self._abandoned or self.is_running

    async def status(self, wait_s: float) -> protocol.OperationStatus:
        """Wait up to `wait_s` for a terminal status and return the current status."""
        if wait_s > 0 and not self._start.done():
            await asyncio.wait({self._start}, timeout=wait_s)
        if not self._start.done():
            return protocol.OperationStatus(protocol.OperationState.RUNNING)
        if self._start.cancelled():
            unknown = errors.OutcomeUnknown("The engine did not cancel the statement in time; it may still be running.")
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
        """Yield the rows. The next chunk is fetched while the current one is converted to Arrow.

        If rows are so wide that a chunk holds only one, the next chunk is fetched after the conversion.
        """
        rows, self._first = self._first, ()
        while rows:
            # If the source is no longer open, these are its last rows.
            is_ahead = self.source.is_open and self._chunk.rows > 1
            has_few_cells = len(rows) * len(self.source.columns) <= _MAX_INLINE_CELLS
            is_wide = has_few_cells and self.source.size_bytes(rows) > _MAX_INLINE_BYTES
            if is_ahead and not is_wide:
                self._ahead = asyncio.create_task(self._fetch(), name="rows")
            if has_few_cells and not is_wide:
                batch = self.source.read(rows)
            else:
                batch = await asyncio.get_running_loop().run_in_executor(self._executor, self.source.read, rows)
            rows = ()
            if self.source.is_open:
                self._chunk.adapt(batch)
            if is_ahead and is_wide:  # not before `adapt`, because as many rows again might be too many
                self._ahead = asyncio.create_task(self._fetch(), name="rows")
            for piece in (batch,) if batch.nbytes <= BATCH_BYTES else split_batch(batch, BATCH_BYTES):
                yield piece
            del batch
            if not is_ahead:
                self._ahead = asyncio.create_task(self._fetch(), name="rows") if self.source.is_open else None
            rows = await self._ahead if self._ahead is not None else ()
            self._ahead = None  # so that the rows can be freed once they are converted
        if self._error is not None:
            raise self._error
        if self._canceled:
            raise Stopped

    async def cancel(self) -> None:
        """Cancel the statement on the server. Does nothing once the statement has ended there."""
        if not self.is_running and not self.source.is_open:
            return
        self._cancel_requested = True
        try:
            async with asyncio.timeout(self._cancel_s):
                while tasks := self._unfinished():
                    # The request is repeated, because it is lost if it arrives between two messages of a statement.
                    await self.source.interrupt()
                    await asyncio.wait(tasks, timeout=CANCEL_INTERVAL_S)
                if self.source.is_open:
                    self._canceled = True
                    await self._end(keep=False)
        except TimeoutError:
            self._ignores_signals = True

    async def close(self) -> None:
        """Free the statement's resources on the server.

        A running statement is canceled first, unless an earlier attempt to cancel it timed out.
        """
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
            self._ahead = None
        self._first = ()

    async def _run(self) -> None:
        try:
            self._raise_if_stopped()
            await self.source.execute(self._raise_if_stopped)
            self._first = await self._fetch()
        except errors.EngineError as error:
            self._error = error
            was_stopped = self._cancel_requested and self.source.was_interrupted(error)
            self._canceled = was_stopped or isinstance(error, Stopped)
            await self._end(keep=False)

    async def _fetch(self) -> Sized:
        if self.source.is_open:
            self._raise_if_stopped()
        return await self.source.fetch(self._chunk.rows)

    def _raise_if_stopped(self) -> None:
        if self._cancel_requested:
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
    """An engine's running or finished statement. Its methods correspond to those of `EngineSession`."""

    @property
    def is_running(self) -> bool:
        """Whether the engine is executing the statement and no rows can be read yet."""
        ...

    @property
    def columns(self) -> tuple[Column, ...]: ...

    async def status(self, wait_s: float) -> protocol.OperationStatus: ...

    def batches(self) -> AsyncIterator[pa.RecordBatch]: ...

    async def logs(self, start: int) -> Sequence[str]: ...

    async def cancel(self) -> None: ...

    async def close(self) -> None: ...


OperationT = TypeVar("OperationT", bound=Operation)
UseT = TypeVar("UseT")


class OperationSession(ABC, Generic[OperationT]):
    """Base class for EngineSessions that track only their latest statement. Closing an earlier handle does nothing."""

    gone = "The session no longer exists; the statement was not started."
    unknown = "The statement no longer exists on the engine."

    def __init__(self) -> None:
        self._operation: OperationT | None = None
        self._handle: protocol.OperationHandle | None = None
        self._left = False

    @abstractmethod
    async def _start(self, statement: str | BoundStatement, context: protocol.StatementContext) -> OperationT:
        """Start the statement. Raises the same errors as `submit`."""
        ...

    @abstractmethod
    def _token(self, operation: OperationT) -> str:
        """Return the token for the statement's handle."""
        ...

    @abstractmethod
    def _is_connected(self) -> bool: ...

    async def submit(
        self, statement: str | BoundStatement, context: protocol.StatementContext = protocol.NO_CONTEXT
    ) -> protocol.OperationHandle:
        await self._close_operation()
        if not await self.is_alive():
            raise errors.SessionLost(self.gone)
        return self.follow(await self._start(statement, context))

    def follow(self, operation: OperationT) -> protocol.OperationHandle:
        """Make `operation` the session's current statement and return its handle."""
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


class StreamedSession(OperationSession[StreamedOperation]):
    """A session on one connection. `is_connected` checks that connection, and `executor` converts rows to Arrow."""

    def __init__(
        self,
        new_statement: Callable[[str | BoundStatement, protocol.StatementContext], DriverStatement],
        *,
        is_connected: Callable[[], bool],
        executor: Executor,
        takes_rows: bool = False,
    ) -> None:
        super().__init__()
        self.takes_rows = takes_rows
        self._new_source = new_statement
        self._connected = is_connected
        self._executor = executor
        self._count = itertools.count(1)
        self._in_doubt = False

    @property
    def is_reusable(self) -> bool:
        """Whether another session may use the connection."""
        return not self._in_doubt and self._connected()

    async def leave(self) -> None:
        """Cancel and close the statement. The session must not use its connection afterward. Limited in time."""
        self._left = True
        await self._close_operation()

    async def _start(self, statement: str | BoundStatement, context: protocol.StatementContext) -> StreamedOperation:
        return StreamedOperation(self._new_source(statement, context), self._executor)

    def _token(self, operation: StreamedOperation) -> str:  # noqa: ARG002 no other process continues it
        return str(next(self._count))

    def _is_connected(self) -> bool:
        return self._connected()

    async def _close_operation(self) -> None:
        await super()._close_operation()
        self._in_doubt = self._in_doubt or (self._operation is not None and self._operation.is_in_doubt)


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """A database server, its default database, and the login for sessions without their own credentials."""

    product: ClassVar[str]
    host: str
    port: int
    database: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    connect_timeout_s: int = 10
    idle_s: float = 60.0
    """How long an idle connection is kept in the pool."""
    cell_max_bytes: int | None = None
    """Maximum size of a result value. A row with a larger value is rejected before it is loaded into memory."""
    rules: AddressRules = field(default_factory=AddressRules)

    def login(self, credentials: protocol.Credentials | None) -> DatabaseLogin:
        """Return the login for a session: its own credentials, or else the configured ones.

        Raises CredentialsRequired if there are neither.
        """
        if credentials is not None:
            return DatabaseLogin(credentials.username, credentials.password)
        if self.user is None:
            raise errors.CredentialsRequired(f"{self.product} requires a username and password.")
        return DatabaseLogin(self.user, self.password or "")


class PooledSessions(Generic[ConnectionT]):
    """One engine's sessions. Owns the engine's connections and the threads that convert rows to and from Arrow.

    `connect_errors` translates driver errors to EngineUnavailable, CredentialsRequired or StatementRejected.
    """

    def __init__(
        self,
        dialect: str,
        connect: Callable[[DatabaseLogin], Awaitable[ConnectionT]],
        connect_errors: Callable[[], AbstractContextManager[None]],
        *,
        idle_s: float,
    ) -> None:
        self._pool = ConnectionPool(connect, max_idle=_MAX_IDLE, max_spare=_MAX_SPARE, idle_s=idle_s)
        self._connect_errors = connect_errors
        self.executor = ThreadPoolExecutor(_CONVERTER_THREADS, thread_name_prefix=dialect)
        """Threads that convert rows to and from Arrow."""

    @asynccontextmanager
    async def session(
        self,
        login: DatabaseLogin,
        new_statement: Callable[[ConnectionT, str | BoundStatement, protocol.StatementContext], DriverStatement],
        prepare: Callable[[ConnectionT], Awaitable[None]],
        new_session: Callable[[ConnectionT], Callable[..., StreamedSession]] = lambda _: StreamedSession,
    ) -> AsyncGenerator[StreamedSession]:
        """Open a session on a clean connection initialized by `prepare`.

        `new_session` returns the class to use, or a function with the same arguments. Leaving the context cancels a
        running statement.
        """
        connection = await self._pool.take(login)
        session = new_session(connection)(
            partial(new_statement, connection),
            is_connected=lambda: not connection.is_closed(),
            executor=self.executor,
            takes_rows=True,
        )
        try:
            await self._limited(prepare(connection), _PREPARE_S)
            yield session
        finally:
            await asyncio.shield(self._release(login, connection, session))

    @asynccontextmanager
    async def use_connection(
        self,
        login: DatabaseLogin,
        prepare: Callable[[ConnectionT], Awaitable[None]],
        make: Callable[[ConnectionT, Executor], UseT],
    ) -> AsyncGenerator[UseT]:
        """Yield the object that `make` builds on a clean connection initialized by `prepare`.

        `make` also receives the converter threads. If the block raises, the connection is closed instead of reused.
        """
        async with self._pool.borrowed(login) as connection:
            await self._limited(prepare(connection), _PREPARE_S)
            yield make(connection, self.executor)

    async def call(self, login: DatabaseLogin, work: Callable[[ConnectionT], Awaitable[object]]) -> None:
        """Run a short call on a connection that no session uses. Driver errors are translated by `connect_errors`."""
        async with self._pool.borrowed(login) as connection:
            await self._limited(work(connection), _CALL_S)

    async def interrupt(self, login: DatabaseLogin, signal: Callable[[ConnectionT], Awaitable[object]]) -> None:
        """Send a cancel request over a second connection. Failures are ignored, because the caller retries."""
        with suppress(errors.EngineError, TimeoutError):
            async with asyncio.timeout(_INTERRUPT_S):
                await self.call(login, signal)

    async def close(self) -> None:
        """Close idle connections. Connections in use are closed when their sessions end. Idempotent."""
        await self._pool.close()
        self.executor.shutdown(wait=False, cancel_futures=True)

    async def _limited(self, work: Awaitable[object], for_s: float) -> None:
        with self._connect_errors():
            async with asyncio.timeout(for_s):
                await work

    async def _release(self, login: DatabaseLogin, connection: ConnectionT, session: StreamedSession) -> None:
        await session.leave()
        if session.is_reusable:
            await self._pool.give_back(login, connection)
        else:
            await connection.disconnect()


@dataclass(frozen=True, slots=True)
class Answer:
    """The columns and rows of a result, in the batches that the engine returned."""

    columns: tuple[Column, ...] = ()
    rows: tuple[pa.RecordBatch, ...] = ()


async def run(
    session: protocol.EngineSession,
    statement: str | BoundStatement,
    *,
    max_rows: int,
    max_bytes: int = _MAX_BYTES,
    context: protocol.StatementContext = protocol.NO_CONTEXT,
) -> Answer:
    """Run a statement, read its first rows up to about `max_bytes`, and close the statement.

    Raises EngineError if the engine refuses or cancels the statement.
    """
    handle = await session.submit(statement, context)
    return await answer(session, handle, max_rows=max_rows, max_bytes=max_bytes)


async def answer(
    session: protocol.EngineSession, handle: protocol.OperationHandle, *, max_rows: int, max_bytes: int = _MAX_BYTES
) -> Answer:
    """Read the first rows of a submitted statement up to about `max_bytes`, and close the statement, as `run` does."""
    async with submitted(session, handle):
        status = await final_status(session, handle)
        if status.state is not protocol.OperationState.FINISHED:
            raise errors.EngineUnavailable("The statement was canceled on the engine.")
        if not status.has_result_set:
            return Answer()
        columns, batches = await session.columns(handle), list[pa.RecordBatch]()
        async for batch in session.batches(handle):
            batches.append(batch.slice(0, max_rows))
            max_rows -= batch.num_rows
            max_bytes -= batch.nbytes
            if max_rows <= 0 or max_bytes <= 0:
                break
        return Answer(columns, tuple(batches))


async def final_status(session: protocol.EngineSession, handle: protocol.OperationHandle) -> protocol.OperationStatus:
    """Wait for the final status, FINISHED or CANCELED, and return it. Raises the statement's error if it failed."""
    status = await session.poll(handle, wait_s=_POLL_S)
    while not status.state.is_terminal:
        status = await session.poll(handle, wait_s=_POLL_S)
    if status.error is not None:
        raise status.error
    return status


async def ended(session: protocol.EngineSession, handle: protocol.OperationHandle) -> protocol.OperationStatus:
    """Wait until the statement has finished and return its status.

    Raises the statement's error, or StatementRejected if the statement was canceled on the engine.
    """
    status = await final_status(session, handle)
    if status.state is protocol.OperationState.CANCELED:
        raise errors.StatementRejected("The statement was canceled on the engine.")
    return status


@asynccontextmanager
async def submitted(session: protocol.EngineSession, handle: protocol.OperationHandle) -> AsyncGenerator[None]:
    """Close the statement when the block is left. If the block raises, cancel the statement first.

    The session limits the duration of both calls.
    """
    try:
        yield
    except BaseException:  # includes cancellation: the engine must not continue
        # A failure to cancel must not replace the original exception.
        with suppress(errors.EngineError):
            await asyncio.shield(session.cancel(handle))
        raise
    finally:
        await asyncio.shield(session.close(handle))
