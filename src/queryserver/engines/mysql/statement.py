"""One statement on a MySQL connection.

The server sends a result as fast as it is read and cannot be told to stop on the same connection: what nobody wants any
more is ended by KILL QUERY from a second one, and the little that is still on its way is read and dropped.
"""

from collections.abc import Awaitable, Callable

import pyarrow as pa

from queryserver.domain.errors.statements import EngineError, SessionLost
from queryserver.domain.result import Column
from queryserver.engines.keywords import first_keyword
from queryserver.engines.mysql.declared import declare
from queryserver.engines.mysql.errors import INTERRUPTED, number_of, statement_errors
from queryserver.engines.mysql.values import RowReader
from queryserver.engines.mysql.wire import Connection
from queryserver.engines.streamed_operation import Rows

_CHANGES_ROWS = frozenset({"INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD"})
"""With `RETURNING` (MariaDB) the rows of the result are the changed ones."""


class MysqlStatement:
    """A StatementSource. `interrupt_thread` sends the stop signal to a connection of the server."""

    def __init__(
        self,
        connection: Connection,
        sql: str,
        interrupt_thread: Callable[[int], Awaitable[None]],
        *,
        read_only: bool = False,
    ) -> None:
        self.columns: tuple[Column, ...] = ()
        self.modified_rows: int | None = None
        self.log_lines: list[str] = []
        self.is_open = False
        self._connection = connection
        self._sql = sql
        self._keyword = first_keyword(sql, line_comments=("--", "#"))
        self._interrupt_thread = interrupt_thread
        self._read_only = read_only
        self._reader = RowReader(())
        self._rows_read = 0

    async def execute(self, go_on: Callable[[], None]) -> None:
        go_on()
        if self._connection.is_closed():
            raise SessionLost("The MySQL session is gone; the statement was not started.")
        if self._read_only:
            # Anew for each statement: one before it may have switched it off inside a comment that MySQL executes.
            with statement_errors(started=False):
                await self._connection.run("SET SESSION TRANSACTION READ ONLY")
        with statement_errors(started=True):
            await self._connection.start(self._sql)
            declared = [declare(field) for field in self._connection.fields]
            self.columns = tuple(column.column for column in declared)
            self._reader = RowReader(declared)
            self.is_open = bool(declared)
            if not declared:
                await self._finish(self._connection.affected_rows())

    async def fetch(self, count: int) -> Rows:
        if not self.is_open:
            return ()
        with statement_errors(started=True):
            rows = await self._connection.rows(count)
            self._rows_read += len(rows)
            if self._connection.has_ended:
                self.is_open = False
                await self._finish(self._rows_read)
        return rows

    def read(self, rows: Rows) -> pa.RecordBatch:
        return self._reader.read(rows)

    async def interrupt(self) -> None:
        if not self._connection.is_closed():
            await self._interrupt_thread(self._connection.thread_id())

    def was_interrupted(self, error: EngineError) -> bool:
        return number_of(error.__cause__) == INTERRUPTED

    async def end(self, *, keep: bool) -> None:  # noqa: ARG002 a change is complete before its first row comes
        if not self.is_open:
            return
        self.is_open = False
        await self.interrupt()
        try:
            with statement_errors(started=True):
                await self._connection.drain()
                # The signal came too late to be answered: this takes it off the next statement.
                await self._connection.run("DO 0")
        except EngineError as error:
            if not self.was_interrupted(error):
                raise

    async def _finish(self, rows: int) -> None:
        """Everything is read: what is left are the count and the warnings."""
        if self._keyword in _CHANGES_ROWS or (self._keyword == "WITH" and not self.columns):
            self.modified_rows = rows
        self.log_lines += await self._connection.take_warnings()
