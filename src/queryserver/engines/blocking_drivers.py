"""Interfaces for blocking drivers, and sessions that run driver calls in a limited number of threads."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Protocol, TypeVar
from uuid import uuid4

import pyarrow as pa

from queryserver.engines.estimates import CostEstimate
from queryserver.engines.protocol import (
    NO_CONTEXT,
    OperationState,
    OperationStatus,
    StatementContext,
    TableLoad,
    TableName,
)
from queryserver.engines.sessions import OperationSession
from queryserver.errors.statements import EngineError, EngineUnavailable, OutcomeUnknown, StatementRejected
from queryserver.formats.arrow import Column
from queryserver.platform.fair_queue import FairSemaphore
from queryserver.sql.markers import BoundStatement

ResultT = TypeVar("ResultT")

NO_USER = 0
"""The user ID for driver calls that the server makes on its own behalf, such as pings."""

STATEMENT_THREADS = 24
"""Number of threads per connector. A process runs at most 16 statements and 8 metadata queries on a connector at once.
"""

STOP_S = 5.0
"""How long a running driver call may take to stop before the session is abandoned."""

_CONTROL_THREADS = 2
_MIN_SHARE = 2
"""Minimum value of the per-user thread limit."""
_INTERRUPT_INTERVAL_S = 0.05


class DriverThreads:
    """One engine's threads: `max_statements` for statements, and a few for short control calls.

    Control calls, such as opening and closing connections, therefore never wait for statements. One user's statements
    occupy at most half of the statement threads, and a free thread goes to the waiting user with the fewest threads. A
    thread counts against its user until the driver call returns, even if the session has ended. The owner must call
    `close`.
    """

    def __init__(self, name: str, *, max_statements: int) -> None:
        # The threads keep the event loop's priority: a thread with lower priority could be descheduled while it holds
        # the interpreter lock, and stall the loop (by up to 0.5 s, measured on two busy cores).
        self._statements = ThreadPoolExecutor(max_statements, thread_name_prefix=f"{name}-statement")
        share = max(max_statements // 2, min(max_statements, _MIN_SHARE))
        self._slots = FairSemaphore(max_statements, per_user=share, max_waiting=None, wait_s=None)
        self._waiting = set[asyncio.Task[None]]()
        self._control = ThreadPoolExecutor(_CONTROL_THREADS, thread_name_prefix=f"{name}-control")
        self.busy = 0
        """Number of driver calls in progress for statements."""
        self._closed = False

    def start(self, call: Callable[[], ResultT], *, user_id: int) -> Future[ResultT]:
        """Schedule a driver call for a user's statement and return the call's future.

        The call runs once a thread is free for that user. Raises EngineUnavailable after `close`.
        """
        self._check_open()
        outcome, loop = Future[ResultT](), asyncio.get_running_loop()

        def give_back() -> None:
            self.busy -= 1
            self._slots.release(user_id)

        def ended(running: Future[ResultT]) -> None:  # runs in the call's thread
            with suppress(RuntimeError):  # the loop is closed, so no task is waiting for a slot
                loop.call_soon_threadsafe(give_back)
            if running.cancelled():
                outcome.set_exception(EngineUnavailable("The engine is closed."))
            elif (error := running.exception()) is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(running.result())

        async def wait_for_slot() -> None:
            await self._slots.acquire(user_id)
            self.busy += 1
            if self._closed or not outcome.set_running_or_notify_cancel():
                give_back()
                outcome.cancel()
            else:
                self._statements.submit(call).add_done_callback(ended)

        def start_or_cancel(task: asyncio.Task[None]) -> None:
            self._waiting.discard(task)
            if task.cancelled():  # possibly before it started to run
                outcome.cancel()

        waiting = asyncio.create_task(wait_for_slot(), name="statement waits for a thread")
        self._waiting.add(waiting)
        waiting.add_done_callback(start_or_cancel)
        outcome.add_done_callback(lambda done: waiting.cancel() if done.cancelled() else None)
        return outcome

    async def control(self, call: Callable[[], ResultT], *, undo: Callable[[ResultT], object] | None = None) -> ResultT:
        """Run a short call in a control thread and return its result.

        If the caller is canceled, the call still completes, and `undo` receives its result.
        """
        self._check_open()
        running = self._control.submit(call)
        waiting = asyncio.wrap_future(running)

        def undo_result(ended: Future[ResultT]) -> None:
            if undo is not None and not ended.cancelled() and ended.exception() is None:
                undo(ended.result())

        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            waiting.add_done_callback(_mark_retrieved)
            running.add_done_callback(undo_result)
            raise

    async def close(self) -> None:
        """Cancel waiting calls, wait for calls in progress, and end the threads. Idempotent."""
        self._closed = True
        for waiting in list(self._waiting):
            waiting.cancel()
        for pool in (self._statements, self._control):
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)

    def _check_open(self) -> None:
        if self._closed:
            raise EngineUnavailable("The engine is closed.")


async def stop_call(call: Future[ResultT], interrupt: Callable[[], None]) -> None:
    """Interrupt the driver repeatedly until the call returns or `STOP_S` has passed.

    A single interrupt might have no effect, because it may arrive just before the call begins.
    """
    deadline = asyncio.get_running_loop().time() + STOP_S
    ended = asyncio.wrap_future(call)
    ended.add_done_callback(_mark_retrieved)
    while not call.done() and asyncio.get_running_loop().time() < deadline:
        interrupt()
        await asyncio.wait({ended}, timeout=_INTERRUPT_INTERVAL_S)


def _mark_retrieved(ended: asyncio.Future[ResultT]) -> None:
    """Mark a future's exception as retrieved, so that asyncio logs no warning. The call itself reports the error."""
    if not ended.cancelled():
        ended.exception()


class Interrupted(StatementRejected):
    """Raised when the driver ends a call because `interrupt` was called."""

    def __init__(self) -> None:
        super().__init__("The statement was stopped.")


class DriverAnswer(Protocol):
    """The outcome of a statement. Serves as a base class.

    Methods are called in a thread, one at a time, and raise only EngineError.
    """

    columns: tuple[Column, ...] | None = None
    """The columns of the result set; None if there is no result set."""
    modified_rows: int | None = None
    """The number of changed rows; final once all batches have been read."""

    def next_batches(self) -> Sequence[pa.RecordBatch]:
        """Return the next rows, at most a few MiB. Returns an empty sequence after the last row."""
        ...

    def close(self) -> None:
        """Free the driver's result objects. Idempotent."""
        ...


class DriverConnection(Protocol):
    """A driver connection. Serves as a base class.

    `run` is called in a thread, one call at a time, and raises only EngineError.
    """

    takes_rows: bool = False
    """Whether `run` accepts statements with several parameter rows."""

    def run(self, statement: str | BoundStatement, context: StatementContext = NO_CONTEXT) -> DriverAnswer:
        """Run a statement until its first rows are available or it has completed."""
        ...

    def estimate(self, statement: str | BoundStatement) -> CostEstimate | None:  # noqa: ARG002 for engines that can
        """Return what the statement would read, or None if this is unknown. Runs in a thread, like `run`."""
        return None

    def interrupt(self) -> None:
        """Stop the call in progress, if any. Callable from any thread at any time. Returns immediately."""
        ...

    def progress(self) -> int | None:
        """Return the current call's progress (0 to 100, or None if unknown) without blocking.

        Callable from any thread.
        """
        return None

    @property
    def is_usable(self) -> bool:
        """Whether the connection can accept another statement."""
        ...

    def close(self) -> None:
        """Close the connection. Called when no call is in progress. Idempotent."""
        ...


class ThreadedOperation:
    """A statement of a session. Its driver calls run in threads that count against the user's limit."""

    def __init__(
        self, connection: DriverConnection, threads: DriverThreads, statement: str | BoundStatement, *, user_id: int
    ) -> None:
        self._connection = connection
        self._threads = threads
        self._user_id = user_id
        self._has_begun = False
        self._stop_requested = False
        self._read_to_end = False
        self._answer: DriverAnswer | None = None
        self._error: EngineError | None = None
        self._settled = asyncio.Event()

        def run() -> None:
            self._answer = connection.run(statement)

        self.call = self._start(run, self._settled.set)

    @property
    def is_running(self) -> bool:
        """Whether a driver call is in progress or waits for a thread."""
        return not self.call.done()

    @property
    def columns(self) -> tuple[Column, ...]:
        return (self._answer.columns if self._answer is not None else None) or ()

    async def status(self, wait_s: float) -> OperationStatus:
        if wait_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._settled.wait()
        if self._error is not None:
            if self._stop_requested and isinstance(self._error, Interrupted):
                return OperationStatus(OperationState.CANCELED)
            return OperationStatus(OperationState.FAILED, error=self._error)
        if not self._settled.is_set():
            state = OperationState.RUNNING if self._has_begun else OperationState.PENDING
            return OperationStatus(state, progress=self._connection.progress() if self._has_begun else None)
        if (answer := self._answer) is None:
            self.call.result()  # raises any error other than EngineError, which is a bug in the driver code
            message = "the statement finished without a result"
            raise AssertionError(message)
        return OperationStatus(
            OperationState.FINISHED, has_result_set=answer.columns is not None, modified_rows=answer.modified_rows
        )

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        while not self._read_to_end:
            for batch in await self._read():
                yield batch

    async def logs(self, start: int) -> Sequence[str]:  # noqa: ARG002 blocking drivers have no logs
        return ()

    async def cancel(self) -> None:
        """Cancel the statement.

        Waits up to `STOP_S` for the driver call to return, so that the interrupt is not lost.
        """
        has_rows_left = self._answer is not None and self._answer.columns is not None and not self._read_to_end
        if self.is_running or (self._error is None and has_rows_left):
            await self._stop()

    async def close(self) -> None:
        """Close the statement. If `is_running` is still true afterward, the driver call did not return in time."""
        if self.is_running:
            await self._stop()
        if not self.is_running:
            self._read_to_end = True
            if self._answer is not None:
                await self._threads.control(self._answer.close)

    def _start(self, work: Callable[[], None], ended: Callable[[], None]) -> Future[None]:
        """Run `work` in a thread, then call `ended` on the event loop."""

        def call() -> None:
            self._has_begun = True
            try:
                if self._stop_requested:
                    raise Interrupted
                work()
            except EngineError as error:
                self._error = error

        loop = asyncio.get_running_loop()
        started = self._threads.start(call, user_id=self._user_id)
        started.add_done_callback(lambda _: loop.call_soon_threadsafe(ended))
        return started

    async def _read(self) -> Sequence[pa.RecordBatch]:
        answer, batches, ended = self._answer, list[pa.RecordBatch](), asyncio.Event()
        if answer is None:
            raise OutcomeUnknown("Results have expired: the statement has no rows to read.")
        if self._stop_requested:
            self._error = self._error or Interrupted()
            raise self._error
        self.call = self._start(lambda: batches.extend(answer.next_batches()), ended.set)
        await ended.wait()  # this wait is bounded, because `cancel` and `close` make the driver call return
        if self._error is not None:
            raise self._error
        self.call.result()
        self._read_to_end = not batches
        return batches

    async def _stop(self) -> None:
        self._stop_requested = True
        if self.call.cancel():
            self._error = self._error or Interrupted()
        else:
            await stop_call(self.call, self._connection.interrupt)


class ThreadedSession(OperationSession[ThreadedOperation]):
    """Implements `EngineSession` on one connection, which `end` closes."""

    gone = "Invalid session Id: the session no longer exists."
    unknown = "Results have expired: the statement no longer exists on the engine."

    def __init__(self, connection: DriverConnection, threads: DriverThreads, *, user_id: int) -> None:
        super().__init__()
        self._connection = connection
        self._threads = threads
        self._user_id = user_id
        self._lost = False

    @property
    def takes_rows(self) -> bool:
        return self._connection.takes_rows

    async def is_alive(self) -> bool:
        return not self._left and self._is_connected()

    async def end(self) -> None:
        """Cancel the running statement and close the connection. Idempotent."""
        if self._left:
            return
        await self._close_operation()
        self._left = True
        if self._operation is not None and self._operation.is_running:
            # The driver call has not returned yet, so the connection is closed when it does.
            self._operation.call.add_done_callback(lambda _: self._connection.close())
        else:
            await self._threads.control(self._connection.close)

    async def _start(self, statement: str | BoundStatement, context: StatementContext) -> ThreadedOperation:  # noqa: ARG002 the engine has no use for it yet
        return ThreadedOperation(self._connection, self._threads, statement, user_id=self._user_id)

    def _token(self, operation: ThreadedOperation) -> str:  # noqa: ARG002 no other process continues it
        return uuid4().hex

    def _is_connected(self) -> bool:
        return not self._lost and self._connection.is_usable

    async def _close_operation(self) -> None:
        """Close the statement. Mark the session as lost if the driver call does not return in time."""
        if self._operation is not None and not self._left:
            await self._operation.close()
            self._lost = self._lost or self._operation.is_running


class ConnectionOwner(Protocol):
    """A session or loader with its own connection."""

    async def end(self) -> None:
        """Cancel running work and close the connection. Idempotent, limited in time."""
        ...


ConnectionT = TypeVar("ConnectionT", bound=DriverConnection)
OwnerT = TypeVar("OwnerT", bound=ConnectionOwner)


class ThreadedSessions:
    """One engine's open sessions and the threads that serve them. The engine must call `close`."""

    def __init__(self, name: str, *, max_statements: int = STATEMENT_THREADS) -> None:
        self.threads = DriverThreads(name, max_statements=max_statements)
        self._open: set[ConnectionOwner] = set()

    def session(
        self, connect: Callable[[], DriverConnection], *, user_id: int, within_s: float | None = None
    ) -> AbstractAsyncContextManager[ThreadedSession]:
        """Open a session on a new connection. See `opened` for the time limit and errors."""
        new_session = partial(ThreadedSession, threads=self.threads, user_id=user_id)
        return self.opened(connect, new_session, within_s=within_s)

    @asynccontextmanager
    async def opened(
        self, connect: Callable[[], ConnectionT], use: Callable[[ConnectionT], OwnerT], *, within_s: float | None = None
    ) -> AsyncGenerator[OwnerT]:
        """Open a connection in a thread, and yield the session or loader that `use` creates on it.

        Leaving the context ends that session or loader.

        Raises the errors from `connect`, and EngineUnavailable if connecting takes longer than `within_s`.
        """
        try:
            async with asyncio.timeout(within_s):
                connection = await self.threads.control(connect, undo=lambda late: late.close())
        except TimeoutError:
            raise EngineUnavailable("The connection attempt timed out.") from None
        opened = use(connection)
        self._open.add(opened)
        try:
            yield opened
        finally:
            await asyncio.shield(opened.end())
            self._open.discard(opened)

    async def close(self) -> None:
        """End open sessions and loaders, then stop the threads. Idempotent."""
        for opened in list(self._open):
            await opened.end()
        await self.threads.close()


class TableWriter(ABC):
    """Creates and fills tables over one connection.

    Methods are called in a thread, one at a time, and raise only EngineError. `interrupt` has an effect only while
    `allow_interrupt` permits interrupts.
    """

    def __init__(self, connection: DriverConnection) -> None:
        self._driver = connection
        self._interrupt_lock = threading.Lock()
        self._may_interrupt = False

    @abstractmethod
    def exists(self, table: TableName) -> bool:
        """Return whether a table or view with that name exists."""
        ...

    @abstractmethod
    def write(self, load: TableLoad, batches: Iterator[pa.RecordBatch]) -> int:
        """Create the table or append to it, and return the number of rows.

        After a failure, no rows are visible except perhaps in the staging table.
        """
        ...

    @abstractmethod
    def drop(self, table: TableName) -> None:
        """Drop a table if it exists."""
        ...

    def interrupt(self) -> None:
        """Stop `write`, unless it is performing its last step or rolling back.

        Callable from any thread. Returns immediately.
        """
        with self._interrupt_lock:
            if self._may_interrupt:
                self._driver.interrupt()

    def close(self) -> None:
        """Close the connection. Called when no call is in progress. Idempotent."""
        self._driver.close()

    def allow_interrupt(self, *, is_allowed: bool) -> None:
        with self._interrupt_lock:
            self._may_interrupt = is_allowed


class LoadStopped(Exception):
    """Raised in the thread that waits for a load's next batches, to report that the load has ended."""
