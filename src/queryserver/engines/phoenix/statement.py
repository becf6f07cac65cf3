"""One statement on an Avatica connection.

A query that is asked for its first rows while somebody stops the statement may answer with fewer rows as if they were
all: whatever rows come after a stop signal are therefore dropped.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from queryserver.domain.errors.statements import EngineError, OutcomeUnknown, SessionLost, StatementRejected
from queryserver.domain.result import Column
from queryserver.engines.keywords import first_keyword
from queryserver.engines.phoenix.connection import Connection
from queryserver.engines.phoenix.declared import declare
from queryserver.engines.phoenix.errors import Phase, avatica_errors
from queryserver.engines.phoenix.messages import Executed, Frame, Missing, ServerError
from queryserver.engines.phoenix.values import RowReader
from queryserver.engines.streamed_operation import Rows, Stopped

FIRST_ROWS = 4
"""In the first frame: nobody knows yet how wide they are, and the Query Server holds several copies of a frame."""

_READS = frozenset({"SELECT", "WITH", "EXPLAIN"})
_CHANGES_ROWS = frozenset({"UPSERT", "DELETE"})
_STOPPED_S = 1.5
"""How long a request may go on after the server has confirmed the stop."""

Answered = TypeVar("Answered")


class PhoenixStatement:
    """A StatementSource."""

    def __init__(self, connection: Connection, sql: str) -> None:
        self.columns: tuple[Column, ...] = ()
        self.modified_rows: int | None = None
        self.log_lines: Sequence[str] = ()
        self.is_open = False
        self._connection = connection
        self._sql = sql
        self._keyword = first_keyword(sql, line_comments=("--", "//"))
        self._statement: int | None = None
        self._reader = RowReader(())
        self._ready: Sequence[bytes] = ()
        self._is_read = False
        self._rows_read = 0
        self._stop_sent = False
        self._stopped = asyncio.Event()

    async def execute(self, go_on: Callable[[], None]) -> None:
        go_on()
        if self._connection.is_lost:
            raise SessionLost("The Phoenix session is gone; the statement was not started.")
        self._statement = await self._connection.new_statement()
        try:
            go_on()
            executed = await self._unless_stopped(self._connection.execute(self._statement, self._sql, rows=FIRST_ROWS))
        except EngineError:
            await self._release()
            raise
        self.is_open = bool(executed.columns)
        self._take(executed)
        if not self.is_open:
            await self._release()

    async def fetch(self, count: int) -> Rows:
        if not self.is_open:
            return ()
        if not self._ready and not self._is_read:
            self._keep(await self._next_frame(count))
        rows, self._ready = self._ready, ()
        self._rows_read += len(rows)
        if self._stop_sent:
            raise Stopped
        if self._is_read:
            await self.end(keep=True)
        return rows

    def read(self, rows: Rows) -> pa.RecordBatch:
        with avatica_errors(Phase.SENT):
            return self._reader.read([bytes(row) for row in rows])

    async def interrupt(self) -> None:
        if self._statement is None or self._stopped.is_set() or self._connection.is_lost:
            return
        # Before it is sent: what answers first may be the request that it cuts short.
        self._stop_sent = True
        if await self._connection.stop():
            self._stopped.set()

    def was_interrupted(self, error: EngineError) -> bool:
        unknown = isinstance(error.__cause__, Missing | ServerError)
        return self._stop_sent and (unknown or isinstance(error, StatementRejected))

    async def end(self, *, keep: bool) -> None:  # noqa: ARG002 a change is committed before its count comes
        self.is_open = False
        self._ready = ()
        await self._release()

    async def _next_frame(self, count: int) -> Frame:
        if self._statement is None:
            raise OutcomeUnknown("The engine no longer knows this statement.")
        return await self._unless_stopped(self._connection.fetch(self._statement, offset=self._rows_read, rows=count))

    async def _release(self) -> None:
        statement, self._statement = self._statement, None
        if statement is not None and not self._connection.is_lost and not self._stopped.is_set():
            await self._connection.close_statement(statement)

    async def _unless_stopped(self, exchange: Coroutine[Any, Any, Answered]) -> Answered:
        """What the exchange gives. It is given up when the statement is stopped meanwhile and no answer comes: it would
        go on waiting for a server that does nothing more.
        """
        request = asyncio.create_task(exchange, name="exchange")
        stop = asyncio.create_task(self._stopped.wait(), name="stop")
        try:
            await asyncio.wait({request, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not request.done():
                await asyncio.wait({request}, timeout=_STOPPED_S)
            if request.done():
                return request.result()
            if self._keyword in _READS:
                raise Stopped
            raise OutcomeUnknown("Phoenix did not stop in time; the statement may or may not have taken effect.")
        finally:
            for task in (request, stop):
                task.cancel()
            await asyncio.wait({request, stop})

    def _take(self, executed: Executed) -> None:
        declared = [declare(column) for column in executed.columns]
        self.columns = tuple(column.column for column in declared)
        self._reader = RowReader(declared)
        if not declared and self._keyword in _CHANGES_ROWS:
            self.modified_rows = executed.update_count
        self._keep(executed.frame)

    def _keep(self, frame: Frame) -> None:
        self._ready = frame.rows
        self._is_read = frame.done or not frame.rows
