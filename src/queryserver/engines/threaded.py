"""Sessions over blocking drivers, in bounded threads."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Protocol, TypeVar
from uuid import uuid4

import pyarrow as pa

from queryserver.engines.protocol import OperationHandle, OperationState, OperationStatus
from queryserver.errors.statements import EngineError, EngineUnavailable, OutcomeUnknown, SessionLost, StatementRejected
from queryserver.formats.columns import Column
from queryserver.platform.limits import FairPlaces

Answered = TypeVar("Answered")

_CONTROL_THREADS = 2

NO_USER = 0
"""For work of the server itself."""

_LEAST_SHARE = 2
"""Threads of one user where there are few."""

STATEMENT_THREADS = 24
"""One for each statement that a process runs on one connector (16), and for each look at its metadata (8)."""


_NICENESS = 10
"""Of threads and processes that work on statements outside of Python: the event loop runs first."""


def lower_priority(number: int | None = None, *, niceness: int = _NICENESS) -> None:
    """Of the thread or process with that number of the system, by default of the calling thread and those that it
    starts. Nothing happens where the system knows no priority of threads, or does not permit it.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, number or threading.get_native_id(), niceness)


def with_lower_priority(call: Callable[[], Answered]) -> Answered:
    """What `call` gives. It runs in a thread of its own, and so the threads that it starts inherit the priority.

    Only for libraries whose threads never run Python.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="low-priority", initializer=lower_priority) as thread:
        return thread.submit(call).result()


class DriverThreads:
    """Threads of one engine: `max_statements` for statements, a few more so that opening and closing never wait.

    One user's statements have half of the threads at most, and a free thread goes to the waiting user who has the
    fewest. A thread counts as its user's until the driver has let go of it, also when its session has been left.
    To be closed by its owner once nothing runs any more.
    """

    def __init__(self, name: str, *, max_statements: int) -> None:
        # At the priority of the event loop: a thread with a lower one would hold the interpreter lock while it waits
        # for the processor, and the loop with it (stalls of 0.5 s were measured on two busy cores).
        self._statements = ThreadPoolExecutor(max_statements, thread_name_prefix=f"{name}-statement")
        share = max(max_statements // 2, min(max_statements, _LEAST_SHARE))
        self._places = FairPlaces(max_statements, per_user=share, max_waiting=None, wait_s=None)
        self._waiting = set[asyncio.Task[None]]()
        self._control = ThreadPoolExecutor(_CONTROL_THREADS, thread_name_prefix=f"{name}-control")
        self._counting = threading.Lock()
        self._busy = 0
        self._closed = False

    @property
    def busy(self) -> int:
        """Calls into the driver on behalf of statements that are under way."""
        return self._busy

    def start(self, call: Callable[[], Answered], *, user_id: int) -> Future[Answered]:
        """Run a piece of a user's statement once the user has a thread. Raises EngineUnavailable after `close`."""
        self._check_open()
        outcome = Future[Answered]()
        waiting = asyncio.create_task(self._placed(outcome, call, user_id), name="statement waits for a thread")
        self._waiting.add(waiting)
        waiting.add_done_callback(partial(self._waited, outcome))
        outcome.add_done_callback(lambda ended: waiting.cancel() if ended.cancelled() else None)
        return outcome

    async def control(
        self, call: Callable[[], Answered], *, undo: Callable[[Answered], object] | None = None
    ) -> Answered:
        """Run a short call. When the caller gives up waiting, `undo` is done to what the call still gives."""
        self._check_open()
        running = self._control.submit(call)
        waiting = asyncio.wrap_future(running)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            waiting.add_done_callback(_forget)
            if undo is not None:
                running.add_done_callback(partial(_undo, undo))
            raise

    async def close(self) -> None:
        """Wait for calls under way, end the threads. Idempotent."""
        self._closed = True
        for waiting in list(self._waiting):
            waiting.cancel()
        for pool in (self._statements, self._control):
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)

    async def _placed(self, outcome: Future[Answered], call: Callable[[], Answered], user_id: int) -> None:
        """Take a place, and give it back when the call has ended. `outcome` is settled in any case."""
        await self._places.take(user_id)
        if self._closed or not outcome.set_running_or_notify_cancel():
            self._places.give_back(user_id)
            outcome.cancel()
            return
        loop = asyncio.get_running_loop()
        running = self._statements.submit(self._counted, call)
        running.add_done_callback(lambda ended: self._ended(loop, outcome, ended, user_id))

    def _waited(self, outcome: Future[Answered], waiting: asyncio.Task[None]) -> None:
        self._waiting.discard(waiting)
        if waiting.cancelled():  # perhaps before its first step
            outcome.cancel()

    def _ended(
        self, loop: asyncio.AbstractEventLoop, outcome: Future[Answered], ended: Future[Answered], user_id: int
    ) -> None:
        """In the thread of the call."""
        with suppress(RuntimeError):  # the loop is closed: there is nobody who waits for a place
            loop.call_soon_threadsafe(self._places.give_back, user_id)
        if ended.cancelled():
            outcome.set_exception(EngineUnavailable("The engine is closed."))
        elif (error := ended.exception()) is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(ended.result())

    def _check_open(self) -> None:
        if self._closed:
            raise EngineUnavailable("The engine is closed.")

    def _counted(self, call: Callable[[], Answered]) -> Answered:
        with self._counting:
            self._busy += 1
        try:
            return call()
        finally:
            with self._counting:
                self._busy -= 1


def _forget(ended: asyncio.Future[Answered]) -> None:
    """Nobody waits for the outcome any more, be it an error."""
    if not ended.cancelled():
        ended.exception()


def _undo(undo: Callable[[Answered], object], ended: Future[Answered]) -> None:
    if not ended.cancelled() and ended.exception() is None:
        undo(ended.result())


STOP_S = 5.0
"""How long a stop may take before the session is given up."""

_PRESS_S = 0.05


class Interrupted(StatementRejected):
    """The driver ended a call because `interrupt` told it to."""

    def __init__(self) -> None:
        super().__init__("The statement was stopped.")


class DriverAnswer(Protocol):
    """What a statement gave. Each method is called in a thread, one at a time, and raises EngineError only."""

    @property
    def columns(self) -> tuple[Column, ...] | None:
        """Columns of the result set, None without one."""
        ...

    @property
    def modified_rows(self) -> int | None:
        """Final once all batches are read."""
        ...

    def next_batches(self) -> Sequence[pa.RecordBatch]:
        """The next rows, a few MiB at most; empty at the end."""
        ...

    def close(self) -> None:
        """Free the driver's objects. Idempotent."""
        ...


class DriverConnection(Protocol):
    """One connection. `run` is called in a thread, one at a time, and raises EngineError only."""

    def run(self, statement: str) -> DriverAnswer:
        """Run a statement up to its first rows, or to its end."""
        ...

    def interrupt(self) -> None:
        """Stop the call under way. From any thread, at any time, returns at once; no effect between calls."""
        ...

    def progress(self) -> int | None:
        """0..100 of the call under way. From any thread, returns at once."""
        ...

    @property
    def is_usable(self) -> bool:
        """Whether it can take another statement."""
        ...

    def close(self) -> None:
        """Called once nothing runs. Idempotent."""
        ...


class _Operation:
    """One statement of the session."""

    def __init__(self) -> None:
        self.handle = OperationHandle(uuid4().hex)
        self.began = False
        self.stop_asked = False
        self.read_to_end = False
        self.answer: DriverAnswer | None = None
        self.error: EngineError | None = None
        self.call: Future[None] | None = None
        self.settled = asyncio.Event()

    @property
    def is_calling(self) -> bool:
        """A thread is, or will be, inside the driver."""
        return self.call is not None and not self.call.done()


class ThreadedSession:
    """An `EngineSession`. Made and ended by `threaded_session`."""

    def __init__(self, connection: DriverConnection, threads: DriverThreads, *, user_id: int) -> None:
        self._connection = connection
        self._threads = threads
        self._user_id = user_id
        self._operation: _Operation | None = None
        self._lost = False
        self._over = False

    async def submit(self, statement: str) -> OperationHandle:
        if self._operation is not None:
            await self.close(self._operation.handle)
        if not await self.is_alive():
            raise SessionLost("Invalid session Id: the session is gone.")
        operation = _Operation()
        self._start(operation, partial(self._run, operation, statement), operation.settled.set)
        self._operation = operation
        return operation.handle

    async def poll(self, handle: OperationHandle, *, wait_s: float = 0) -> OperationStatus:
        operation = self._known(handle)
        if wait_s > 0:
            await _within(operation.settled, wait_s)
        return self._status(operation)

    async def columns(self, handle: OperationHandle) -> tuple[Column, ...]:
        answer = self._known(handle).answer
        return (answer.columns if answer is not None else None) or ()

    async def batches(self, handle: OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        operation = self._known(handle)
        while not operation.read_to_end:
            for batch in await self._read(operation):
                yield batch

    async def logs(self, handle: OperationHandle, *, start: int) -> Sequence[str]:  # noqa: ARG002 nothing to tell
        """These engines tell none."""
        return ()

    async def cancel(self, handle: OperationHandle) -> None:
        """See the Protocol. Waits up to `STOP_S` until the driver has let go, so that no stop is lost."""
        operation = self._operation
        if operation is None or operation.handle != handle or self._is_over(operation):
            return
        operation.stop_asked = True
        await self._stop_call(operation)

    async def close(self, handle: OperationHandle) -> None:
        """See the Protocol. A driver that does not let go in time loses its session."""
        operation = self._operation
        if operation is None or operation.handle != handle or self._over:
            return
        if operation.is_calling:
            operation.stop_asked = True
            await self._stop_call(operation)
        if operation.is_calling:
            self._lost = True
            return
        operation.read_to_end = True
        if operation.answer is not None:
            await self._threads.control(operation.answer.close)

    async def is_alive(self) -> bool:
        return not self._lost and self._connection.is_usable

    async def end(self) -> None:
        """Stop what runs and close the connection. Idempotent."""
        if self._over:
            return
        operation = self._operation
        if operation is not None:
            await self.close(operation.handle)
        self._lost = self._over = True
        if operation is not None and operation.call is not None and operation.is_calling:
            # The thread that is still inside the driver closes the connection when it comes out.
            operation.call.add_done_callback(lambda _: self._connection.close())
        else:
            await self._threads.control(self._connection.close)

    def _known(self, handle: OperationHandle) -> _Operation:
        if self._operation is None or self._operation.handle != handle:
            raise OutcomeUnknown("Results have expired: the engine does not know this statement.")
        return self._operation

    def _is_over(self, operation: _Operation) -> bool:
        return not operation.is_calling and (operation.error is not None or not _has_rows_left(operation))

    def _status(self, operation: _Operation) -> OperationStatus:
        if operation.error is not None:
            return _failed(operation, operation.error)
        if not operation.settled.is_set():
            state = OperationState.RUNNING if operation.began else OperationState.PENDING
            return OperationStatus(state, progress=self._connection.progress() if operation.began else None)
        answer = operation.answer
        if answer is None:
            raise _defect(operation)
        return OperationStatus(
            OperationState.FINISHED, has_result_set=answer.columns is not None, modified_rows=answer.modified_rows
        )

    def _start(self, operation: _Operation, call: Callable[[], None], ended: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        operation.call = self._threads.start(call, user_id=self._user_id)
        operation.call.add_done_callback(lambda _: loop.call_soon_threadsafe(ended))

    def _run(self, operation: _Operation, statement: str) -> None:
        operation.began = True
        try:
            if operation.stop_asked:
                raise Interrupted
            operation.answer = self._connection.run(statement)
        except EngineError as error:
            operation.error = error

    async def _read(self, operation: _Operation) -> Sequence[pa.RecordBatch]:
        if operation.answer is None:
            raise OutcomeUnknown("Results have expired: the statement has no rows to read.")
        if operation.stop_asked:
            operation.error = operation.error or Interrupted()
            raise operation.error
        ended, batches = asyncio.Event(), list[pa.RecordBatch]()
        self._start(operation, partial(self._next_batches, operation, operation.answer, batches), ended.set)
        await ended.wait()  # `cancel` and `close` bound the wait: they make the driver come back
        if operation.error is not None:
            raise operation.error
        if operation.call is not None:
            operation.call.result()
        operation.read_to_end = not batches
        return batches

    def _next_batches(self, operation: _Operation, answer: DriverAnswer, batches: list[pa.RecordBatch]) -> None:
        try:
            if operation.stop_asked:
                raise Interrupted
            batches.extend(answer.next_batches())
        except EngineError as error:
            operation.error = error

    async def _stop_call(self, operation: _Operation) -> None:
        """Press until the driver lets go: an interrupt that comes just before a call begins has no effect."""
        if operation.call is not None and operation.call.cancel():
            operation.error = operation.error or Interrupted()
            return
        give_up = asyncio.get_running_loop().time() + STOP_S
        while operation.is_calling and asyncio.get_running_loop().time() < give_up:
            self._connection.interrupt()
            await _ended(operation.call, _PRESS_S)


def _has_rows_left(operation: _Operation) -> bool:
    return operation.answer is not None and operation.answer.columns is not None and not operation.read_to_end


def _defect(operation: _Operation) -> BaseException:
    error = operation.call.exception() if operation.call is not None else None
    return error or AssertionError("a statement ended without an answer")


def _failed(operation: _Operation, error: EngineError) -> OperationStatus:
    if operation.stop_asked and isinstance(error, Interrupted):
        return OperationStatus(OperationState.CANCELED)
    return OperationStatus(OperationState.FAILED, error=error)


async def _within(event: asyncio.Event, wait_s: float) -> None:
    try:
        async with asyncio.timeout(wait_s):
            await event.wait()
    except TimeoutError:
        return


async def _ended(call: Future[None] | None, wait_s: float) -> None:
    if call is not None:
        await asyncio.wait({asyncio.wrap_future(call)}, timeout=wait_s)


class Opened(Protocol):
    """What has a connection of its own: a session, or another user of the driver."""

    async def end(self) -> None:
        """Stop what runs and close the connection. Limited in time, idempotent."""
        ...


ConnectionT = TypeVar("ConnectionT", bound=DriverConnection)
OpenedT = TypeVar("OpenedT", bound=Opened)


class ThreadedSessions:
    """The open sessions of one engine, and the threads that serve them. To be closed by the engine."""

    def __init__(self, name: str, *, max_statements: int) -> None:
        self.threads = DriverThreads(name, max_statements=max_statements)
        self._open: set[Opened] = set()

    @asynccontextmanager
    async def session(
        self, connect: Callable[[], DriverConnection], *, user_id: int, within_s: float | None = None
    ) -> AsyncGenerator[ThreadedSession]:
        """Open a connection in a thread; leaving ends its work and closes it.

        Raises what `connect` raises, and EngineUnavailable when that takes longer than `within_s`.
        """
        new_session = partial(ThreadedSession, threads=self.threads, user_id=user_id)
        async with self.opened(connect, new_session, within_s=within_s) as session:
            yield session

    @asynccontextmanager
    async def opened(
        self,
        connect: Callable[[], ConnectionT],
        use: Callable[[ConnectionT], OpenedT],
        *,
        within_s: float | None = None,
    ) -> AsyncGenerator[OpenedT]:
        """The same for what else uses a connection."""
        try:
            async with asyncio.timeout(within_s):
                connection = await self.threads.control(connect, undo=_close)
        except TimeoutError:
            raise EngineUnavailable("No connection could be made in time.") from None
        opened = use(connection)
        self._open.add(opened)
        try:
            yield opened
        finally:
            await asyncio.shield(opened.end())
            self._open.discard(opened)

    async def close(self) -> None:
        """End what is still open, then the threads. Idempotent."""
        for opened in list(self._open):
            await opened.end()
        await self.threads.close()


def _close(connection: DriverConnection) -> None:
    connection.close()
