"""One statement at the server: followed, read, stopped, freed."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from queryserver.domain.errors.statements import EngineError, EngineTimeout, OutcomeUnknown, StatementRejected
from queryserver.domain.result import Column, ResultType
from queryserver.engines.hiveserver2.errors import (
    CALL_FAILURES,
    Purpose,
    call_errors,
    check,
    clean_message,
    domain_error,
)
from queryserver.engines.hiveserver2.fetching import Fetcher
from queryserver.engines.hiveserver2.logs import OperationLog
from queryserver.engines.hiveserver2.progress import percentage, summary_percentage
from queryserver.engines.hiveserver2.protocol.calls import (
    TGetOperationStatusReq,
    TGetOperationStatusResp,
    TOperationReq,
)
from queryserver.engines.hiveserver2.protocol.methods import (
    CANCEL_OPERATION,
    CLOSE_IMPALA_OPERATION,
    CLOSE_OPERATION,
    GET_OPERATION_STATUS,
    GET_RESULT_SET_METADATA,
)
from queryserver.engines.hiveserver2.protocol.status import TOperationHandle, TOperationState, TSessionHandle
from queryserver.engines.hiveserver2.repeating import has_tasks, keeps_rows
from queryserver.engines.hiveserver2.types import wire_column
from queryserver.engines.hiveserver2.variants import Variant
from queryserver.engines.hiveserver2.wire import Wire
from queryserver.interfaces.engine import OperationState, OperationStatus

_POLL_S = (0.02, 0.05, 0.1, 0.2, 0.5)
"""Pauses between looks where the server answers at once."""

_STATES = {
    TOperationState.INITIALIZED: OperationState.PENDING,
    TOperationState.PENDING: OperationState.PENDING,
    TOperationState.RUNNING: OperationState.RUNNING,
}
CANCELED = "The statement was canceled."


class Operation:
    """Follows its statement from its start in a task of its own, so that nobody who asks has to wait for the server.

    `rows_read`: the statement was started by another process, which has read so many rows.
    """

    def __init__(
        self,
        wire: Wire,
        session: TSessionHandle,
        handle: TOperationHandle,
        variant: Variant,
        *,
        rows_read: int | None = None,
    ) -> None:
        self._wire = wire
        self._session = session
        self._handle = handle
        self._variant = variant
        self._fetcher = Fetcher(
            wire,
            handle,
            tells_more=variant.tells_more_rows,
            can_repeat=self._can_repeat,
            skip=rows_read or 0,
            again=rows_read is not None,
        )
        first = OperationState.RUNNING if variant.long_polls else OperationState.PENDING
        self._status = OperationStatus(first, progress=0 if variant.capabilities.reports_progress else None)
        self._log = OperationLog(wire, handle, by_rpc=variant.logs_by_rpc)
        self._had_tasks = False
        self._cancel_asked = False
        self._closed = False
        self._stopping: asyncio.Task[None] | None = None
        self._following = asyncio.create_task(self._follow(), name="statement")

    @property
    def is_running(self) -> bool:
        """The server is at work for it, as far as is known."""
        return not self._following.done()

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns of the result."""
        return tuple(one.column for one in self._fetcher.columns)

    async def status(self, wait_s: float) -> OperationStatus:
        """The last known status; waits up to `wait_s` for the terminal one."""
        if wait_s > 0 and self.is_running:
            await asyncio.wait({self._following}, timeout=wait_s)
        if not (self.is_running or self._status.state.is_terminal or self._following.cancelled()):
            # A fault of ours must not look like a statement that runs for ever.
            self._following.result()
        return self._status

    async def logs(self, start: int) -> Sequence[str]:
        """Log lines from number `start` on."""
        if not self._closed:
            await self._log.read()
        return self._log.lines[start:]

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The rows."""
        try:
            async for batch in self._fetcher.batches():
                yield batch
        except EngineError as error:
            if self._cancel_asked:
                raise StatementRejected(CANCELED) from error
            raise
        if self._status.state is OperationState.CANCELED:
            # The end that the server told may be of what was cut off.
            raise StatementRejected(CANCELED)

    async def cancel(self) -> None:
        """Stop it at the server; nothing happens once it has ended there and its rows are read."""
        if self.is_running:
            self._cancel_asked = True
            await self._stop()
        elif self._status.has_result_set and not self._fetcher.is_exhausted and not self._closed:
            # A statement that has FINISHED is no longer canceled by servers, only closed.
            self._cancel_asked = True
            self._status = OperationStatus(OperationState.CANCELED)
            await self._free()
            # Rows that are on their way would be requested again and again while the network is broken.
            await self._fetcher.close()

    async def close(self) -> None:
        """Free what the server holds for it; what still runs is stopped. Idempotent."""
        if self.is_running and not self._cancel_asked:
            await self.cancel()
        await self._free()
        await self.leave()

    async def leave(self) -> None:
        """Give up all tasks; the server is told nothing."""
        self._closed = True
        tasks = {task for task in (self._following, self._stopping) if task is not None and not task.done()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
            if not self._status.state.is_terminal:
                left = OutcomeUnknown("The engine did not stop in time; the statement was left to itself.")
                self._status = OperationStatus(OperationState.FAILED, error=left)
        await self._fetcher.close()

    async def _stop(self) -> None:
        """Send the stop, until it is answered or the statement has ended.

        Tez in local mode answers only when its task has ended: nobody waits so long.
        """
        if self._stopping is None or self._stopping.done():
            self._stopping = asyncio.create_task(self._send_stop(), name="cancel")
        ends = {self._stopping, self._following}
        await asyncio.wait(ends, timeout=self._wire.limits.end_s, return_when=asyncio.FIRST_COMPLETED)

    async def _send_stop(self) -> None:
        with suppress(*CALL_FAILURES):
            request = TOperationReq(operation_handle=self._handle)
            await self._wire.call_until_answered(CANCEL_OPERATION, request, limit_s=self._wire.limits.execute_s)

    async def _free(self) -> None:
        if self._closed:
            return
        self._closed = True
        with suppress(*CALL_FAILURES):
            request = TOperationReq(operation_handle=self._handle)
            await self._wire.call(CLOSE_OPERATION, request, limit_s=self._wire.limits.end_s)

    async def _follow(self) -> None:
        """Look at the statement until its end; what goes wrong becomes its status."""
        try:
            with call_errors(Purpose.FOLLOW):
                await self._look_until_end()
        except EngineError as error:
            self._status = OperationStatus(OperationState.FAILED, error=error)

    async def _look_until_end(self) -> None:
        looks = 0
        while True:
            reply = await self._look()
            state = reply.operation_state
            if state not in _STATES:
                self._had_tasks = has_tasks(reply)
                await self._end(reply)
                return
            # Nobody fetches rows before the end.
            self._fetcher.may_have_moved = False
            self._status = replace(
                self._status, state=_STATES[TOperationState(state)], progress=await self._progress(reply)
            )
            if not self._variant.long_polls:
                await asyncio.sleep(_POLL_S[min(looks, len(_POLL_S) - 1)])
                looks += 1

    async def _can_repeat(self) -> bool:
        """Whether the server gives the rows from the first one again."""
        return self._had_tasks or await keeps_rows(self._wire, self._session, self._variant)

    async def _look(self) -> TGetOperationStatusResp:
        """The server's answer. The call changes nothing, so it is repeated while the network is broken."""
        request = TGetOperationStatusReq(operation_handle=self._handle, get_progress_update=True)
        reply = await self._wire.call_until_answered(GET_OPERATION_STATUS, request, limit_s=self._wire.limits.status_s)
        check(reply.status)
        return reply

    async def _progress(self, reply: TGetOperationStatusResp) -> int | None:
        before = self._status.progress
        if self._variant.progress_by_summary:
            return max(await summary_percentage(self._wire, self._session, self._handle) or 0, before or 0)
        return percentage(reply.progress_update, before)

    async def _end(self, reply: TGetOperationStatusResp) -> None:
        match reply.operation_state:
            case TOperationState.FINISHED:
                self._status = await self._finished(reply)
            case TOperationState.CANCELED:
                self._status = OperationStatus(OperationState.CANCELED)
            case TOperationState.CLOSED if self._cancel_asked:
                self._status = OperationStatus(OperationState.CANCELED)
            case TOperationState.TIMEDOUT:
                message = clean_message(reply.error_message or "") or "The engine's time limit ended the statement."
                self._status = OperationStatus(OperationState.FAILED, error=EngineTimeout(message))
            case TOperationState.CLOSED:
                raise OutcomeUnknown("Results have expired: the statement was closed at the engine.")
            case _:
                self._status = self._failed(reply)

    def _failed(self, reply: TGetOperationStatusResp) -> OperationStatus:
        message = clean_message(reply.error_message or "") or "The engine failed without a reason."
        if self._cancel_asked:
            return OperationStatus(OperationState.CANCELED)
        return OperationStatus(OperationState.FAILED, error=domain_error(message, Purpose.FOLLOW))

    async def _finished(self, reply: TGetOperationStatusResp) -> OperationStatus:
        has_result_set = self._handle.has_result_set if reply.has_result_set is None else reply.has_result_set
        if has_result_set:
            has_result_set = await self._describe()
        modified = None if has_result_set else await self._modified_rows(reply)
        return OperationStatus(OperationState.FINISHED, has_result_set=has_result_set, modified_rows=modified)

    async def _describe(self) -> bool:
        """Read the columns; False when there is no result set after all."""
        request = TOperationReq(operation_handle=self._handle)
        reply = await self._wire.call_until_answered(
            GET_RESULT_SET_METADATA, request, limit_s=self._wire.limits.other_s
        )
        check(reply.status)
        described = reply.schema.columns if reply.schema is not None else []
        self._fetcher.columns = tuple(map(wire_column, described))
        placeholder = Column(self._variant.empty_result_column or "", ResultType.STRING, "string")
        if self.columns != (placeholder,):
            return bool(self.columns)
        return await self._fetcher.peek()

    async def _modified_rows(self, reply: TGetOperationStatusResp) -> int | None:
        if self._variant.close_tells_rows:
            return await self._close_and_count()
        count = reply.num_modified_rows
        return count if count is not None and count >= 0 else None

    async def _close_and_count(self) -> int | None:
        """Close it as Impala does; its log is read before, for it goes with it."""
        await self._log.read()
        self._closed = True
        request = TOperationReq(operation_handle=self._handle)
        reply = await self._wire.call(CLOSE_IMPALA_OPERATION, request, limit_s=self._wire.limits.other_s)
        check(reply.status)
        if reply.dml_result is None:
            return None
        return sum(reply.dml_result.rows_modified.values()) + sum((reply.dml_result.rows_deleted or {}).values())
