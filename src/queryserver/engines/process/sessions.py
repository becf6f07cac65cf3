"""Sessions on a database that an engine process has open."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import uuid4

import pyarrow as pa
import structlog

from queryserver.engines.blocking_drivers import Interrupted
from queryserver.engines.estimates import CostEstimate
from queryserver.engines.process.channel import AsyncChannel, ChannelClosed, Frame
from queryserver.engines.process.engine_process import EndCause, EngineProcess
from queryserver.engines.process.messages import (
    BatchReader,
    adopt_rendered_message,
    decode_columns,
    decode_error,
    decode_estimate,
    encode_context,
    packed,
    read_count,
)
from queryserver.engines.process.pool import ProcessLosses
from queryserver.engines.process.requests import SessionRequests
from queryserver.engines.protocol import NO_CONTEXT, OperationState, OperationStatus, SessionOptions, StatementContext
from queryserver.engines.sessions import OperationSession
from queryserver.errors.base import QueryServerError
from queryserver.errors.statements import EngineError, OutcomeUnknown, SessionLost, engine_process_lost
from queryserver.formats.arrow import Column
from queryserver.platform.fair_queue import FairSemaphore
from queryserver.sql.markers import BoundStatement

log = structlog.get_logger(__name__)

STOP_S = 5.0
"""How long a statement may take to stop before its process is killed."""
_INTERRUPT_INTERVAL_S = 0.1
_TRACE_CHARACTERS = 10_000

Read = TypeVar("Read")


@dataclass(slots=True)
class Connection:
    """One session of a process. Handles one request at a time."""

    process: EngineProcess
    number: int
    channel: AsyncChannel
    user_id: int
    slots: FairSemaphore
    """The engine's slots, shared fairly among users. A request occupies a slot while the process works on it."""
    losses: ProcessLosses
    requests: SessionRequests | None = None
    """Handles the process's calls for this session."""
    request: int = 0
    """The number of the latest request."""
    statement: str | BoundStatement = field(default="", repr=False)
    """The running statement."""
    context: StatementContext = NO_CONTEXT
    """The running statement's context."""
    is_gone: bool = False
    """Whether the session's database is lost, for example an in-memory database after an internal error."""

    @property
    def is_usable(self) -> bool:
        return not (self.is_gone or self.channel.is_closed or self.process.has_ended)

    async def send(self, kind: str, *contents: bytes, **fields: Any) -> None:
        """Send a request. Raises SessionLost if the process has ended.

        A process does not start a request that it received incompletely, so this error means that the request was not
        started.
        """
        self.request += 1
        try:
            await self.channel.send({"kind": kind, "request": self.request, **fields}, *contents)
        except ChannelClosed:
            raise SessionLost("Invalid session Id: the session no longer exists.") from None

    async def received(self) -> Frame:
        """Receive the next frame of a reply.

        Raises the domain error that the reply contains, or the error for a lost process if the process ends.
        """
        self.process.running[self.number] = self.context
        try:
            frame = await self.channel.receive()
        except ChannelClosed:
            error = await self.process.failure()
            self._note_loss()
            raise error from None
        finally:
            self.process.running.pop(self.number, None)
        if frame.kind == "defect":
            trace = str(frame.message.get("trace"))[:_TRACE_CHARACTERS]
            log.error("engine process failed", trace=trace, operation_id=self.context.operation_id)
            raise RuntimeError("The engine process failed while running the statement.")
        if (error := frame.message.get("error")) is not None:
            self.is_gone = frame.message.get("gone") is True
            if frame.message.get("ends") is True:
                self.process.record_end(EndCause.FAILED, self.number)
                self._note_loss()
            raise self.decode(lambda: self._reported_error(error, frame))
        return frame

    def decode(self, read: Callable[[], Read]) -> Read:
        """Decode a frame with `read`. Kill the process if the frame is invalid, and raise engine_process_lost."""
        try:
            return read()
        except ChannelClosed:
            self.process.kill(EndCause.BROKEN, self.number)
            self._note_loss()
            raise engine_process_lost() from None

    def _reported_error(self, error: Mapping[str, Any], frame: Frame) -> QueryServerError:
        adopt_rendered_message(self.statement, frame.message.get("written"))
        return decode_error(error)

    def _note_loss(self) -> None:
        if share := self.process.loss_share(self.number):
            self.losses.note(self.user_id, share)

    async def stop(self, call: "asyncio.Task[None] | asyncio.Task[Frame]") -> None:
        """Interrupt the call repeatedly until it has ended. Kill the process if this takes longer than `STOP_S`."""
        deadline = asyncio.get_running_loop().time() + STOP_S
        while not call.done():
            if self.requests is not None:  # in each iteration, because the next read may block too
                self.requests.interrupt()
            if asyncio.get_running_loop().time() >= deadline:
                self.process.kill(EndCause.UNRESPONSIVE, self.number)
            else:
                self.process.interrupt(self.number, self.request)
            await asyncio.wait({call}, timeout=_INTERRUPT_INTERVAL_S)

    async def leave(self) -> None:
        """Wait until the process has closed the session. Kill the process if this takes longer than `STOP_S`."""
        if self.channel.is_closed:
            return
        try:
            async with asyncio.timeout(STOP_S):
                await self.channel.finished()
        except TimeoutError:
            self.process.kill(EndCause.UNRESPONSIVE, self.number)


class ProcessOperation:
    """One statement of a session in an engine process."""

    def __init__(self, connection: Connection, statement: str | BoundStatement, context: StatementContext) -> None:
        self._connection = connection
        self._statement = statement
        self._context = context
        self._reader = BatchReader(0)
        self._columns: tuple[Column, ...] | None = None
        self._modified_rows: int | None = None
        self._has_slot = self._is_open = self._is_ahead = self._was_stopped = self._read_to_end = False
        self._error: QueryServerError | None = None
        self._call = asyncio.create_task(self._run_in_slot(self._run), name="statement")

    @property
    def is_running(self) -> bool:
        return not self._call.done()

    @property
    def columns(self) -> tuple[Column, ...]:
        return self._columns or ()

    async def status(self, wait_s: float) -> OperationStatus:
        if wait_s > 0 and not self._call.done():
            await asyncio.wait({self._call}, timeout=wait_s)
        if self._columns is None and not self._call.done():
            if not self._has_slot:
                return OperationStatus(OperationState.PENDING)
            progress = await self._connection.process.progress(self._connection.number)
            return OperationStatus(OperationState.RUNNING, progress=progress)
        if self._call.done() and not self._call.cancelled():
            self._call.result()  # re-raises an unexpected exception
        if self._error is not None:
            is_stopped = isinstance(self._error, Interrupted) or self._connection.process.was_unresponsive
            if self._was_stopped and is_stopped:
                return OperationStatus(OperationState.CANCELED)
            if not isinstance(self._error, EngineError):
                raise self._error
            return OperationStatus(OperationState.FAILED, error=self._error)
        return OperationStatus(
            OperationState.FINISHED, has_result_set=self._columns is not None, modified_rows=self._modified_rows
        )

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        if self._columns is None:
            raise OutcomeUnknown("Results have expired: the statement has no rows to read.")
        while not self._read_to_end:
            for batch in await self._next():
                yield batch

    async def logs(self, start: int) -> Sequence[str]:
        requests = self._connection.requests
        return () if requests is None else requests.warnings[start:]

    async def cancel(self) -> None:
        has_rows_left = self._is_open and self._columns is not None and not self._read_to_end
        if self.is_running or (self._error is None and has_rows_left):
            await self._stop()

    async def close(self) -> None:
        """Cancel the statement, or discard its remaining rows."""
        if self.is_running:
            await self._stop()
        self._read_to_end = True
        if self._is_open and self._connection.is_usable:
            self._is_open = False
            self._call = asyncio.create_task(self._run_in_slot(self._close), name="statement close")
            if not self._is_ahead:  # no request is in progress
                await asyncio.wait({self._call}, timeout=_INTERRUPT_INTERVAL_S)
            await self._connection.stop(self._call)
        if self._connection.requests is not None:
            await self._connection.requests.close()

    async def _run_in_slot(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` in one of the user's slots. A domain error is stored for `status`."""
        try:
            async with self._connection.slots.slot(self._connection.user_id):
                self._has_slot = True
                await work()
        except QueryServerError as error:
            self._error = self._error or error
        finally:
            self._has_slot = False

    async def _run(self) -> None:
        connection = self._connection
        connection.statement, connection.context = self._statement, self._context
        if connection.requests is not None:
            connection.requests.begin(read_only=self._context.read_only)
        self._is_open = True
        await connection.send("run", packed(self._statement), context=encode_context(self._context))
        frame = await connection.received()
        if (columns := frame.message.get("columns")) is not None:
            self._columns = connection.decode(lambda: decode_columns(columns))
            self._reader = BatchReader(len(self._columns))
            self._is_ahead = True
        self._modified_rows = read_count(frame, "modified_rows")

    async def _next(self) -> Sequence[pa.RecordBatch]:
        """Read the next rows, and request the rows after them so that the process prepares those in the meantime."""
        if self._error is None and self._was_stopped:
            self._error = Interrupted()
        if self._error is not None:
            raise self._error
        batches = list[pa.RecordBatch]()

        async def read() -> None:
            self._is_ahead = False
            frame = await self._connection.received()
            self._connection.decode(lambda: batches.extend(self._reader.batches(frame)))
            self._modified_rows = read_count(frame, "modified_rows")
            if batches:
                await self._connection.send("next")
                self._is_ahead = True

        self._call = asyncio.create_task(self._run_in_slot(read), name="statement rows")
        await asyncio.wait({self._call})
        if self._error is not None:
            raise self._error
        self._call.result()
        self._read_to_end = not batches
        return batches

    async def _close(self) -> None:
        if self._is_ahead:
            self._is_ahead = False
            with suppress(EngineError):  # discards rows read ahead, or their error
                await self._connection.received()
        if self._connection.is_usable:
            await self._connection.send("close")
            await self._connection.received()

    async def _stop(self) -> None:
        self._was_stopped = True
        if not self._has_slot and self._call.cancel():
            await asyncio.wait({self._call})
            self._error = self._error or Interrupted()
            return
        await self._connection.stop(self._call)


@asynccontextmanager
async def open_connection(
    process: EngineProcess,
    user_id: int,
    options: SessionOptions,
    *,
    slots: FairSemaphore,
    losses: ProcessLosses,
    requests: SessionRequests | None = None,
    is_loader: bool = False,
) -> AsyncGenerator[tuple[Connection, Frame]]:
    """Open a session in a process. Yield the session's connection and first frame. Raises domain errors."""
    answer = None if requests is None else requests.answer
    try:
        async with process.session(user_id, options, answer, is_loader=is_loader) as (number, channel, first):
            yield Connection(process, number, channel, user_id, slots, losses, requests), first
    finally:
        if requests is not None:
            await requests.close()


class ProcessSession(OperationSession[ProcessOperation]):
    """Implements `EngineSession` on one connection, which `end` closes."""

    gone = "Invalid session Id: the session no longer exists."
    unknown = "Results have expired: the statement no longer exists on the engine."

    def __init__(self, connection: Connection, *, takes_rows: bool) -> None:
        super().__init__()
        self._connection = connection
        self.takes_rows = takes_rows

    async def end(self) -> None:
        """Cancel the running statement and close the connection. Limited in time. Idempotent."""
        if not self._left:
            await self._close_operation()
            self._left = True
            await self._connection.leave()

    async def estimate(self, statement: str | BoundStatement) -> CostEstimate | None:
        """Estimate what the statement would read, in one of the user's slots.

        If the caller is canceled, the process stops the request first, so that the session stays usable.
        """
        connection = self._connection
        async with connection.slots.slot(connection.user_id):
            request = asyncio.create_task(self._estimate(statement), name="estimate")
            try:
                await asyncio.wait({request})
            except asyncio.CancelledError:
                await asyncio.shield(connection.stop(request))
                raise
            finally:
                if connection.requests is not None:
                    await connection.requests.close()
            return decode_estimate(request.result())

    async def _estimate(self, statement: str | BoundStatement) -> Frame:
        connection = self._connection
        connection.statement, connection.context = statement, NO_CONTEXT
        if connection.requests is not None:
            connection.requests.begin(read_only=True)
        await connection.send("estimate", packed(statement))
        return await connection.received()

    async def _start(self, statement: str | BoundStatement, context: StatementContext) -> ProcessOperation:
        return ProcessOperation(self._connection, statement, context)

    def _token(self, operation: ProcessOperation) -> str:  # noqa: ARG002 no other process continues it
        return uuid4().hex

    def _is_connected(self) -> bool:
        return self._connection.is_usable
