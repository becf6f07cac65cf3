"""An engine session over a driver that blocks: each call into the driver runs in one of the engine's threads."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol, TypeVar
from uuid import uuid4

import pyarrow as pa

from queryserver.domain.errors.statements import (
    EngineError,
    EngineUnavailable,
    OutcomeUnknown,
    SessionLost,
    StatementRejected,
)
from queryserver.domain.result import Column
from queryserver.engines.threads import DriverThreads
from queryserver.interfaces.engine import OperationHandle, OperationState, OperationStatus

STOP_S = 5.0
"""How long a stop may take before the session is given up."""

_PRESS_S = 0.05

Answered = TypeVar("Answered")


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
        """See the Protocol."""
        if self._operation is not None:
            await self.close(self._operation.handle)
        if not await self.is_alive():
            raise SessionLost("Invalid session Id: the session is gone.")
        operation = _Operation()
        self._start(operation, partial(self._run, operation, statement), operation.settled.set)
        self._operation = operation
        return operation.handle

    async def poll(self, handle: OperationHandle, *, wait_s: float = 0) -> OperationStatus:
        """See the Protocol."""
        operation = self._known(handle)
        if wait_s > 0:
            await _within(operation.settled, wait_s)
        return self._status(operation)

    async def columns(self, handle: OperationHandle) -> tuple[Column, ...]:
        """See the Protocol."""
        answer = self._known(handle).answer
        return (answer.columns if answer is not None else None) or ()

    async def batches(self, handle: OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        """See the Protocol."""
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
        """See the Protocol."""
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
