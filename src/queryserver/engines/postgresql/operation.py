"""One statement on one connection, from its text to its last row."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any

import asyncpg
import pyarrow as pa
from asyncpg.prepared_stmt import PreparedStatement

from queryserver.domain.errors import EngineError, StatementRejected
from queryserver.domain.result import Column
from queryserver.engines.chunks import ChunkSize, pieces
from queryserver.engines.postgresql.declared import columns, declare
from queryserver.engines.postgresql.errors import statement_errors
from queryserver.engines.postgresql.portal import Portal, Rows
from queryserver.engines.postgresql.values import RowReader
from queryserver.engines.postgresql.wire import Connection
from queryserver.interfaces.engine import OperationState, OperationStatus

_CANCEL_S = 10.0
_CANCEL_AGAIN_S = 0.5
_END_S = 5.0
_FEW_CELLS = 2_000
_MAX_LOG_LINES = 10_000
_COMMAND_TAG = re.compile(r"(?:INSERT \d+|UPDATE|DELETE|MERGE|SELECT) (\d+)")
_COPY_STREAM = re.compile(r"\b(?:FROM\s+STDIN|TO\s+STDOUT)\b", re.IGNORECASE)
_CHANGES_ROWS = ("INSERT", "UPDATE", "DELETE", "MERGE")


class _Stopped(StatementRejected):
    """The statement was canceled before its next step was sent."""

    def __init__(self) -> None:
        super().__init__("canceling statement due to user request")


class Operation:
    """A statement that runs, or ran, on `connection`; nobody else may use the connection until `close`.

    `interrupt` sends the stop signal to a server process; `executor` turns rows into Arrow.
    """

    def __init__(
        self, connection: Connection, sql: str, *, interrupt: Callable[[int], Awaitable[None]], executor: Executor
    ) -> None:
        self.columns: tuple[Column, ...] = ()
        self.log_lines: list[str] = []
        self._connection = connection
        self._sql = sql
        self._interrupt = interrupt
        self._executor = executor
        self._reader: RowReader | None = None
        self._portal: Portal | None = None
        self._chunk = ChunkSize()
        self._first: Rows = ()
        self._ahead: asyncio.Task[Rows] | None = None
        self._tag = ""
        self._error: EngineError | None = None
        self._cancel_asked = False
        self._canceled = False
        self._abandoned = False
        connection.on_notice = self._log
        self._start = asyncio.create_task(self._run(), name="postgresql statement")

    @property
    def in_doubt(self) -> bool:
        """The connection must not serve another session: a stop signal or an answer may still be on its way to it."""
        return self._cancel_asked or self._abandoned or self.is_running

    @property
    def is_running(self) -> bool:
        """The server is at work for this statement."""
        return bool(self._unfinished())

    async def status(self, wait_s: float) -> OperationStatus:
        """The present status, the terminal one if it comes within `wait_s`."""
        if wait_s > 0 and not self._start.done():
            await asyncio.wait({self._start}, timeout=wait_s)
        if not self._start.done():
            return OperationStatus(OperationState.RUNNING)
        self._start.result()
        if self._canceled:
            return OperationStatus(OperationState.CANCELED)
        if self._error is not None:
            return OperationStatus(OperationState.FAILED, error=self._error)
        has_rows = bool(self.columns)
        return OperationStatus(OperationState.FINISHED, has_result_set=has_rows, modified_rows=self._modified_rows())

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The rows. The next chunk is on its way while one is turned into Arrow."""
        rows, self._first = self._first, ()
        while rows:
            self._ahead = asyncio.create_task(self._fetch(), name="postgresql rows")
            batch = await self._batch(rows)
            self._chunk.learn(batch)
            for piece in pieces(batch):
                yield piece
            rows = await self._ahead
        if self._error is not None:
            raise self._error
        if self._canceled:
            raise _Stopped

    async def cancel(self) -> None:
        """Stop the statement at the server; nothing happens once it has ended there."""
        if not self.is_running and not self._has_open_portal():
            return
        self._cancel_asked = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_CANCEL_S):
                while tasks := self._unfinished():
                    # A signal that meets the server between two messages of a statement is lost: hence again.
                    await self._interrupt(self._connection.get_server_pid())
                    await asyncio.wait(tasks, timeout=_CANCEL_AGAIN_S)
                if self._has_open_portal():
                    self._canceled = True
                    await self._end_portal(commit=False)

    async def close(self) -> None:
        """Free the portal and the transaction around it; a statement that still runs is stopped."""
        if not self._start.done():
            await self.cancel()
        tasks = self._unfinished()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_END_S)
        await self._end_portal(commit=self._error is None)
        if self._ahead is not None and self._ahead.done() and not self._ahead.cancelled():
            self._ahead.exception()
        self._first = ()

    async def _run(self) -> None:
        try:
            await self._execute()
        except EngineError as error:
            self._error = error
            self._canceled = isinstance(error, _Stopped) or (
                self._cancel_asked and isinstance(error.__cause__, asyncpg.QueryCanceledError)
            )
            await self._end_portal(commit=False)

    async def _execute(self) -> None:
        if first_keyword(self._sql) == "COPY" and _COPY_STREAM.search(self._sql):
            raise StatementRejected("COPY FROM STDIN and COPY TO STDOUT need a stream, which a statement here has not")
        with statement_errors(started=False):
            statement, fields = await self._connection.prepare_described(self._sql)
            if statement.get_parameters():
                raise StatementRejected("there is no parameter $1")
            declared = await declare(self._connection, fields) if fields else ()
        self.columns = columns(fields, declared)
        self._reader = RowReader([field.name for field in fields], declared)
        self._go_on()
        if not fields or first_keyword(self._sql) == "CALL":
            # A procedure may commit, which the server refuses inside our transaction; its result is one row.
            await self._execute_whole(statement)
        else:
            self._portal = Portal(self._connection, statement)
            await self._portal.start()
            self._first = await self._fetch()

    async def _execute_whole(self, statement: PreparedStatement) -> None:
        with statement_errors(started=True):
            self._first = await statement.fetch()
        self._tag = statement.get_statusmsg() or ""

    async def _fetch(self) -> Rows:
        self._go_on()
        return await self._portal.fetch(self._chunk.rows) if self._portal is not None else ()

    async def _batch(self, rows: Rows) -> pa.RecordBatch:
        reader = self._reader
        if reader is None:
            raise StatementRejected("the statement has no result set")
        if len(rows) * len(self.columns) <= _FEW_CELLS:
            return reader.read(rows)
        return await asyncio.get_running_loop().run_in_executor(self._executor, reader.read, rows)

    def _go_on(self) -> None:
        if self._cancel_asked:
            raise _Stopped

    def _has_open_portal(self) -> bool:
        return self._portal is not None and self._portal.is_open

    async def _end_portal(self, *, commit: bool) -> None:
        if self._portal is not None:
            self._abandoned = True
            with suppress(EngineError, TimeoutError):
                async with asyncio.timeout(_END_S):
                    await self._portal.end(commit=commit)
                self._abandoned = False

    def _unfinished(self) -> set[asyncio.Task[Any]]:
        return {task for task in (self._start, self._ahead) if task is not None and not task.done()}

    def _modified_rows(self) -> int | None:
        """From the command tag; asyncpg gives none for a portal, but there every changed row was returned."""
        if match := _COMMAND_TAG.match(self._tag):
            return int(match[1])
        if self._portal is None or self._portal.is_open or first_keyword(self._sql) not in _CHANGES_ROWS:
            return None
        return self._portal.rows_read

    def _log(self, line: str) -> None:
        if len(self.log_lines) < _MAX_LOG_LINES:
            self.log_lines.append(line)


_COMMENT_MARKS = re.compile(r"/\*|\*/")


def first_keyword(sql: str) -> str:
    """The first word of a statement in upper case, behind blanks, brackets and comments (which may nest)."""
    position = 0
    while position < len(sql):
        if sql[position].isspace() or sql[position] == "(":
            position += 1
        elif sql.startswith("--", position):
            position = (sql.find("\n", position) + 1) or len(sql)
        elif sql.startswith("/*", position):
            position = _behind_comment(sql, position)
        else:
            break
    word = re.compile(r"\w*").match(sql, position)
    return word[0].upper() if word else ""


def _behind_comment(sql: str, position: int) -> int:
    depth = 0
    for mark in _COMMENT_MARKS.finditer(sql, position):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(sql)
