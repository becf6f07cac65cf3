"""Sends the rows of a statement to its destination, in place of storing them as its result.

The runner uses this session in place of the one whose rows it reads. The statement's result is a summary.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from queryserver import errors
from queryserver.engines.protocol import EngineSession, OperationHandle, OperationState, StatementContext
from queryserver.errors.base import QueryServerError
from queryserver.errors.files import InsufficientStorage
from queryserver.errors.statements import (
    EngineError,
    EngineUnavailable,
    SessionLost,
    StatementRejected,
    rejected_by_rule,
)
from queryserver.exports.model import SUMMARY_COLUMNS, RowSink
from queryserver.identity.model import User
from queryserver.sql.markers import BoundStatement
from queryserver.statements.job_session import JobReport, JobSession
from queryserver.statements.model import Assignment
from queryserver.statements.states import LimitSource
from queryserver.statements.stored_session import StoredSession

SinkOpener: TypeAlias = Callable[[Assignment, User], AbstractAsyncContextManager[RowSink]]
"""Opens the destination of a statement, with the rights of its user. Raises QueryServerError."""

_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Exports:
    """Runs statements that have a destination. `sinks` are the destinations by their `kind`."""

    sinks: Mapping[str, SinkOpener]

    def session(
        self, assignment: Assignment, user: User, source: EngineSession
    ) -> AbstractAsyncContextManager[EngineSession]:
        """Open the session that reads the rows of `source` and writes them to the destination of the statement."""
        return JobSession.opened(SUMMARY_COLUMNS, partial(self._export, assignment, user, source), source)

    async def _export(
        self,
        assignment: Assignment,
        user: User,
        source: EngineSession,
        statement: str | BoundStatement,
        context: StatementContext,
        report: JobReport,
    ) -> None:
        opener = self.sinks.get((assignment.destination or {}).get("kind", ""))
        if opener is None:
            raise rejected_by_rule("This server does not know the destination of this statement.")
        limit = assignment.row_limit if assignment.limit_source is LimitSource.CALLER else None
        _require_whole(assignment, source)
        # Opened first: a destination that cannot be written is refused before the statement is sent.
        async with _outcomes(), opener(assignment, user) as sink:
            handle = await source.submit(statement, context)
            try:
                logs = _SourceLogs(source, handle, report)
                await _wait_for_rows(source, handle, logs, report)
                columns = await source.columns(handle)
                async with aclosing(_first_rows(source.batches(handle), limit, report)) as batches:
                    with _sent():
                        summary = await sink.write(columns, batches, report)
                with suppress(EngineError):
                    report.scanned_bytes = (await source.poll(handle)).scanned_bytes
                report.summary = summary.batch
                with suppress(EngineError):
                    await logs.pass_on()
            except BaseException:  # including CancelledError: the engine must not keep running the statement
                with suppress(EngineError):
                    await asyncio.shield(source.cancel(handle))
                raise
            finally:
                await asyncio.shield(source.close(handle))


def _require_whole(assignment: Assignment, source: EngineSession) -> None:
    """Raise an error for a stored result that a limit of the server has truncated, unless the caller allows it."""
    allowed = (assignment.destination or {}).get("allow_truncated", False)
    if isinstance(source, StoredSession) and source.source.warning and not allowed:
        raise errors.recreate_error(
            StatementRejected,
            "truncated",
            f"{source.source.warning} To export the rows that were kept, add allow_truncated=true.",
        )


@contextmanager
def _sent() -> Generator[None]:
    """Keep a failure of the destination from looking like one before the statement was sent, which is sent again."""
    try:
        yield
    except (EngineUnavailable, SessionLost) as error:
        raise errors.recreate_error(StatementRejected, error.code, error.message, error.details) from error


@asynccontextmanager
async def _outcomes() -> AsyncGenerator[None]:
    """Turn all errors into outcomes of the statement, with their codes."""
    try:
        yield
    except (EngineError, InsufficientStorage):
        raise
    except QueryServerError as error:
        raise errors.recreate_error(StatementRejected, error.code, error.message, error.details) from error


@dataclass(slots=True)
class _SourceLogs:
    """Passes the log lines of the source on to the log of the export."""

    source: EngineSession
    handle: OperationHandle
    report: JobReport
    seen: int = 0

    async def pass_on(self) -> None:
        lines = await self.source.logs(self.handle, start=self.seen)
        self.seen += len(lines)
        self.report.lines.extend(lines)


async def _wait_for_rows(source: EngineSession, handle: OperationHandle, logs: _SourceLogs, report: JobReport) -> None:
    """Wait until the source has rows, and pass on its log lines. Raises EngineError if the statement has none."""
    while True:
        status = await source.poll(handle, wait_s=_POLL_S)
        report.progress = 50 if status.progress is None else min(status.progress, 99)
        await logs.pass_on()
        if status.state.is_terminal:
            break
    if status.state is OperationState.FAILED:
        raise status.error or EngineError("The statement failed.")
    if status.state is OperationState.CANCELED:
        raise EngineError("The statement was canceled in the engine.")
    if not status.has_result_set:
        raise rejected_by_rule("The statement has no result set, so nothing was exported.")


async def _first_rows(
    batches: AsyncIterator[pa.RecordBatch], limit: int | None, report: JobReport
) -> AsyncGenerator[pa.RecordBatch]:
    """Yield the batches up to the row limit, report their size, and close them."""
    left = limit
    try:
        async for batch in batches:
            report.row_bytes += batch.nbytes
            if left is not None and batch.num_rows >= left:
                yield batch.slice(0, left)
                return
            left = None if left is None else left - batch.num_rows
            yield batch
    finally:
        if isinstance(batches, AsyncGenerator):
            await batches.aclose()
