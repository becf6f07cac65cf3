"""Tracks one statement on the server: reads its status, log and rows, cancels it and closes it."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from queryserver.engines.hiveserver2 import messages, structs
from queryserver.engines.hiveserver2.connection import Wire
from queryserver.engines.hiveserver2.errors import (
    CALL_FAILURES,
    MAX_LINE_CHARACTERS,
    LogFilter,
    Purpose,
    call_errors,
    clean_message,
    domain_error,
    without,
)
from queryserver.engines.hiveserver2.fetcher import Fetcher, log_lines, wire_column
from queryserver.engines.hiveserver2.variants import Hs2Variant
from queryserver.engines.protocol import OperationState, OperationStatus
from queryserver.engines.sessions import MAX_LOG_LINES
from queryserver.errors.statements import EngineError, EngineTimeout, OutcomeUnknown, StatementRejected
from queryserver.formats.arrow import Column, ResultType

_MAX_LOG_CHARACTERS = 8 * 1024 * 1024
_STEP_CHARACTERS = 32 * 1024  # filtering this many characters (at least one line) blocks the event loop for some 20 ms


class OperationLog:
    """Reads and cleans a statement's log lines.

    If `by_rpc` is set, each server call returns the whole log; otherwise, it returns only new lines. Lines beyond
    MAX_LOG_LINES or 8 Mi characters are dropped.
    """

    def __init__(self, wire: Wire, handle: structs.TOperationHandle, *, by_rpc: bool) -> None:
        self._wire = wire
        self._handle = handle
        self._by_rpc = by_rpc
        self._reading = asyncio.Lock()
        self._is_first = True  # the server's read position is unknown, so read the whole log
        self._filter = LogFilter()
        self._characters = 0
        self._is_full = False
        self._whole = (0, 0)  # length and hash of the last log text returned by GetLog
        self.lines: list[str] = []

    async def read(self) -> None:
        """Read new log lines into `lines`. Errors are ignored, because a missing log must not fail the statement."""
        async with self._reading:
            if self._is_full:
                return
            with suppress(EngineError):
                if self._by_rpc:
                    with call_errors(Purpose.FOLLOW):
                        request = structs.TOperationReq(operation_handle=self._handle)
                        reply = await self._wire.call(messages.GET_LOG, request, limit_s=self._wire.limits.other_s)
                    text = reply.log or ""
                    if (whole := (len(text), hash(text))) != self._whole:
                        await self._take(text.splitlines(), is_whole=True)
                        self._whole = whole
                else:
                    # The lines in a lost reply are not sent again, so the next call reads the whole log.
                    is_whole, self._is_first = self._is_first, True
                    lines = await log_lines(self._wire, self._handle, first=is_whole)
                    await self._take(lines, is_whole=is_whole)
                    self._is_first = False

    async def _take(self, lines: Sequence[str], *, is_whole: bool) -> None:
        if is_whole:
            self._filter, self._characters = LogFilter(), 0
        shown = [] if is_whole else self.lines
        filtered, is_full = 0, False
        for line in lines:
            if is_full := len(shown) >= MAX_LOG_LINES or self._characters >= _MAX_LOG_CHARACTERS:
                break
            if (clean := self._filter.line(line)) is not None:
                shown.append(clean)
                self._characters += len(clean)
            filtered += min(len(line), MAX_LINE_CHARACTERS)
            if filtered >= _STEP_CHARACTERS:
                filtered = 0
                await asyncio.sleep(0)
        self.lines, self._is_full = shown, is_full


def percentage(update: structs.TProgressUpdateResp | None, before: int | None) -> int | None:
    """Return the progress in percent, at least `before`. Return `before` if the server reports no progress."""
    if update is None or update.status == 2:  # NOT_AVAILABLE
        return before
    share = update.progressed_percentage
    return before if math.isnan(share) else max(before or 0, round(100 * min(max(share, 0.0), 1.0)))


def ran_tasks(reply: structs.TGetOperationStatusResp) -> bool:
    """Return whether the statement ran tasks (Hive only). If it did, its rows are stored in files."""
    try:
        return bool(json.loads(reply.task_status or "[]"))
    except (ValueError, RecursionError):
        return False


async def retains_rows(wire: Wire, session: structs.TSessionHandle, variant: Hs2Variant) -> bool:
    """Return whether the session keeps result rows, according to its settings; False if the setting cannot be read.

    Always True for servers without such a setting, because they report an error if they cannot return rows again.
    """
    if variant.row_retention_setting is None:
        return True
    setting, retaining_values = variant.row_retention_setting
    with suppress(*CALL_FAILURES):
        values = await _setting(wire, session, setting)
        return bool(values) and values[-1].rpartition("=")[2].lower() in retaining_values
    return False


async def _setting(wire: Wire, session: structs.TSessionHandle, name: str) -> list[str]:
    """Run `SET name` and return the first row of the result: one cell `name=value`, or a name and a value."""
    limit_s = wire.limits.other_s
    request = structs.TExecuteStatementReq(session_handle=session, statement=f"SET {name}", run_async=False)
    started = await wire.call_with_retries(messages.EXECUTE_STATEMENT, request, limit_s=limit_s)
    if started.operation_handle is None:
        return []
    handle = started.operation_handle
    first, rows = structs.TFetchOrientation.FIRST, structs.FetchType.ROWS
    fetch = structs.TFetchResultsReq(operation_handle=handle, orientation=first, max_rows=10, fetch_type=rows)
    try:
        reply = await wire.call_with_retries(messages.FETCH_RESULTS, fetch, limit_s=limit_s)
    finally:
        with suppress(*CALL_FAILURES):
            close = structs.TOperationReq(operation_handle=handle)
            await wire.call(messages.CLOSE_OPERATION, close, limit_s=wire.limits.end_s)
    columns = (reply.results.columns if reply.results is not None else None) or []
    texts = [one.string_val.values for one in columns if one.string_val is not None]
    return [values[0].decode("utf-8", "replace") for values in texts if values]


_POLL_PAUSES_S = (0.02, 0.05, 0.1, 0.2, 0.5)  # for servers that reply to polls without waiting
_STATES = {
    structs.TOperationState.INITIALIZED: OperationState.PENDING,
    structs.TOperationState.PENDING: OperationState.PENDING,
    structs.TOperationState.RUNNING: OperationState.RUNNING,
}
CANCELED = "The statement was canceled."


class Hs2Operation:
    """Polls a statement's status in a background task, so that reading the status requires no server call.

    If another process started the statement, `rows_read` is the number of rows that it has already read. `hidden` is
    text that was added to the statement and that errors must not quote.
    """

    def __init__(
        self,
        wire: Wire,
        session: structs.TSessionHandle,
        handle: structs.TOperationHandle,
        variant: Hs2Variant,
        *,
        rows_read: int | None = None,
        hidden: str = "",
    ) -> None:
        self._wire = wire
        self._session = session
        self.handle = handle
        self._request = structs.TOperationReq(operation_handle=handle)
        self._variant = variant
        self._hidden = hidden
        self._fetcher = Fetcher(
            wire,
            handle,
            has_reliable_more_rows=variant.has_reliable_more_rows,
            can_repeat=self._can_repeat,
            skip=rows_read or 0,
            again=rows_read is not None,
        )
        first = OperationState.RUNNING if variant.long_polls else OperationState.PENDING
        self._status = OperationStatus(first, progress=0 if variant.capabilities.reports_progress else None)
        self._log = OperationLog(wire, handle, by_rpc=variant.logs_by_rpc)
        self._had_tasks = False
        self._cancel_requested = False
        self._closed = False
        self._stopping: asyncio.Task[None] | None = None
        self._following = asyncio.create_task(self._follow(), name="statement")

    @property
    def is_running(self) -> bool:
        return not self._following.done()

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(one.column for one in self._fetcher.columns)

    async def status(self, wait_s: float) -> OperationStatus:
        """Return the last known status, after waiting up to `wait_s` for a terminal one."""
        if wait_s > 0 and self.is_running:
            await asyncio.wait({self._following}, timeout=wait_s)
        if not (self.is_running or self._status.state.is_terminal or self._following.cancelled()):
            # Raise an unexpected exception; otherwise the statement would seem to run forever.
            self._following.result()
        return self._status

    async def logs(self, start: int) -> Sequence[str]:
        if not self._closed:
            await self._log.read()
        return self._log.lines[start:]

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        try:
            async for batch in self._fetcher.batches():
                yield batch
        except EngineError as error:
            if self._cancel_requested:
                raise StatementRejected(CANCELED) from error
            raise
        if self._status.state is OperationState.CANCELED:
            # The rows may be incomplete because of the cancellation.
            raise StatementRejected(CANCELED)

    async def cancel(self) -> None:
        """Cancel the statement on the server, unless it has ended and all rows have been read."""
        if self.is_running:
            self._cancel_requested = True
            if self._stopping is None or self._stopping.done():
                self._stopping = asyncio.create_task(self._send_cancel(), name="cancel")
            # Limit the wait, because Tez in local mode replies only after its task has ended.
            ends = {self._stopping, self._following}
            await asyncio.wait(ends, timeout=self._wire.limits.end_s, return_when=asyncio.FIRST_COMPLETED)
        elif self._status.has_result_set and not self._fetcher.is_exhausted and not self._closed:
            # The server can no longer cancel a FINISHED statement, only close it.
            self._cancel_requested = True
            self._status = OperationStatus(OperationState.CANCELED)
            await self._close_at_server()
            # Stop fetching, which would otherwise be retried if the network is down.
            await self._fetcher.close()

    async def close(self) -> None:
        """Free the statement's resources on the server; cancel the statement first if it is running. Idempotent."""
        if self.is_running and not self._cancel_requested:
            await self.cancel()
        await self._close_at_server()
        await self.leave()

    async def leave(self) -> None:
        """Stop all tasks without calling the server."""
        self._closed = True
        tasks = {task for task in (self._following, self._stopping) if task is not None and not task.done()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
            if not self._status.state.is_terminal:
                left = OutcomeUnknown("The engine did not cancel the statement in time; it may still be running.")
                self._status = OperationStatus(OperationState.FAILED, error=left)
        await self._fetcher.close()

    async def _send_cancel(self) -> None:
        with suppress(*CALL_FAILURES):
            await self._wire.call_with_retries(
                messages.CANCEL_OPERATION, self._request, limit_s=self._wire.limits.execute_s
            )

    async def _close_at_server(self) -> None:
        if self._closed:
            return
        self._closed = True
        with suppress(*CALL_FAILURES):
            await self._wire.call(messages.CLOSE_OPERATION, self._request, limit_s=self._wire.limits.end_s)

    async def _follow(self) -> None:
        """Poll the statement until it ends. Store a failure as its status."""
        try:
            with call_errors(Purpose.FOLLOW):
                polls = 0
                while not await self._poll():
                    if not self._variant.long_polls:
                        await asyncio.sleep(_POLL_PAUSES_S[min(polls, len(_POLL_PAUSES_S) - 1)])
                        polls += 1
        except EngineError as error:
            self._status = OperationStatus(OperationState.FAILED, error=error)

    async def _poll(self) -> bool:
        """Update status and progress; return True once the statement has ended."""
        request = structs.TGetOperationStatusReq(operation_handle=self.handle, get_progress_update=True)
        reply = await self._wire.call_with_retries(
            messages.GET_OPERATION_STATUS, request, limit_s=self._wire.limits.status_s
        )
        state = reply.operation_state
        if state not in _STATES:
            self._had_tasks = ran_tasks(reply)
            await self._end(reply)
            return True
        # Rows are fetched only after the statement has ended, so no other process can have moved the cursor yet.
        self._fetcher.cursor_may_have_moved = False
        before = self._status.progress
        if self._variant.progress_by_summary:
            progress = max(await self._summary_percentage() or 0, before or 0)
        else:
            progress = percentage(reply.progress_update, before)
        self._status = replace(self._status, state=_STATES[structs.TOperationState(state)], progress=progress)
        return False

    async def _summary_percentage(self) -> int | None:
        """Return the percentage of scan ranges that Impala has read; None if Impala reports none.

        This request also needs the session handle.
        """
        request = structs.TGetExecSummaryReq(operation_handle=self.handle, session_handle=self._session)
        try:
            reply = await self._wire.call(messages.GET_EXEC_SUMMARY, request, limit_s=self._wire.limits.other_s)
        except CALL_FAILURES:
            return None
        progress = reply.summary.progress if reply.summary is not None else None
        if progress is None or not progress.total_scan_ranges or progress.num_completed_scan_ranges is None:
            return None
        return min(100 * progress.num_completed_scan_ranges // progress.total_scan_ranges, 100)

    async def _can_repeat(self) -> bool:
        """Return whether the server can return the rows again from the start."""
        return self._had_tasks or await retains_rows(self._wire, self._session, self._variant)

    async def _end(self, reply: structs.TGetOperationStatusResp) -> None:
        state = reply.operation_state
        message = without(self._hidden, clean_message(reply.error_message or ""))
        if state == structs.TOperationState.FINISHED:
            self._status = await self._finished(reply)
        elif state == structs.TOperationState.TIMEDOUT:
            error = EngineTimeout(message or "The statement exceeded the engine's time limit.")
            self._status = OperationStatus(OperationState.FAILED, error=error)
        elif state == structs.TOperationState.CANCELED or self._cancel_requested:
            self._status = OperationStatus(OperationState.CANCELED)
        elif state == structs.TOperationState.CLOSED:
            raise OutcomeUnknown("Results have expired: the statement was closed on the engine.")
        else:
            failure = domain_error(message or "The statement failed without an error message.", Purpose.FOLLOW)
            self._status = OperationStatus(OperationState.FAILED, error=failure)

    async def _finished(self, reply: structs.TGetOperationStatusResp) -> OperationStatus:
        has_result_set = self.handle.has_result_set if reply.has_result_set is None else reply.has_result_set
        if has_result_set:
            has_result_set = await self._describe()
        modified = reply.num_modified_rows
        if has_result_set or (modified is not None and modified < 0):
            modified = None
        if not has_result_set and self._variant.close_returns_row_count:
            # CloseImpalaOperation discards the log, so read the log first.
            await self._log.read()
            self._closed = True
            closed = await self._wire.call(
                messages.CLOSE_IMPALA_OPERATION, self._request, limit_s=self._wire.limits.other_s
            )
            counts = closed.dml_result
            modified = counts and sum(counts.rows_modified.values()) + sum((counts.rows_deleted or {}).values())
        return OperationStatus(OperationState.FINISHED, has_result_set=has_result_set, modified_rows=modified)

    async def _describe(self) -> bool:
        """Read the columns. Return False if it turns out that there is no result set."""
        reply = await self._wire.call_with_retries(
            messages.GET_RESULT_SET_METADATA, self._request, limit_s=self._wire.limits.other_s
        )
        described = reply.schema.columns if reply.schema is not None else []
        self._fetcher.columns = tuple(map(wire_column, described))
        placeholder = Column(self._variant.empty_result_column or "", ResultType.STRING, "string")
        if self.columns != (placeholder,):
            return bool(self.columns)
        return await self._fetcher.peek()
