"""One statement on a PostgreSQL connection.

A statement without result set runs outside a transaction block, so that it commits by itself and `VACUUM` or
`CREATE DATABASE` work. The rows of all others are read through a portal.
"""

import re
from collections.abc import Awaitable, Callable

import asyncpg
import pyarrow as pa
from asyncpg.prepared_stmt import PreparedStatement

from queryserver.domain.errors.statements import EngineError, StatementRejected
from queryserver.domain.result import Column
from queryserver.engines.keywords import first_keyword
from queryserver.engines.log_lines import KeptLines
from queryserver.engines.postgresql.declared import columns, declare
from queryserver.engines.postgresql.errors import statement_errors
from queryserver.engines.postgresql.portal import Portal
from queryserver.engines.postgresql.refusals import refusals
from queryserver.engines.postgresql.values import RowReader
from queryserver.engines.postgresql.wire import Connection, Field
from queryserver.engines.streamed_operation import Rows

_COMMAND_TAG = re.compile(r"(?:INSERT \d+|UPDATE|DELETE|MERGE|SELECT) (\d+)")
_COPY_STREAM = re.compile(r"\b(?:FROM\s+STDIN|TO\s+STDOUT)\b", re.IGNORECASE)
_CHANGES_ROWS = ("INSERT", "UPDATE", "DELETE", "MERGE")


class PostgresqlStatement:
    """A StatementSource. `interrupt_process` sends the stop signal to a server process."""

    def __init__(
        self,
        connection: Connection,
        sql: str,
        interrupt_process: Callable[[int], Awaitable[None]],
        *,
        read_only: bool = False,
    ) -> None:
        self.columns: tuple[Column, ...] = ()
        self.log_lines = KeptLines()
        self._connection = connection
        self._sql = sql
        self._keyword = first_keyword(sql)
        self._interrupt_process = interrupt_process
        self._read_only = read_only
        self._reader = RowReader((), ())
        self._portal: Portal | None = None
        self._whole: Rows = ()
        self._tag = ""
        connection.on_notice = self._log

    @property
    def is_open(self) -> bool:
        return self._portal is not None and self._portal.is_open

    @property
    def modified_rows(self) -> int | None:
        """From the command tag; asyncpg gives none for a portal, but there every changed row was returned."""
        if match := _COMMAND_TAG.match(self._tag):
            return int(match[1])
        if self._portal is None or self._portal.is_open or self._keyword not in _CHANGES_ROWS:
            return None
        return self._portal.rows_read

    async def execute(self, go_on: Callable[[], None]) -> None:
        if self._keyword == "COPY" and _COPY_STREAM.search(self._sql):
            raise StatementRejected("COPY FROM STDIN and COPY TO STDOUT are not supported: there is no stream")
        go_on()
        if self._read_only:
            # Anew for each statement: one before it may have switched the default off by set_config().
            with statement_errors(started=False):
                await self._connection.execute("SET default_transaction_read_only = on")
        statement, fields = await self._prepare()
        go_on()
        if not fields or self._keyword == "CALL":
            # A procedure may commit, which the server refuses inside a transaction of ours; its result is one row.
            guard = self._connection.guard
            with refusals(guard, [field.name for field in fields]), statement_errors(started=True):
                self._whole = await statement.fetch()
            self._tag = statement.get_statusmsg() or ""
        else:
            self._portal = Portal(self._connection, statement, [field.name for field in fields])
            await self._portal.start()

    async def fetch(self, count: int) -> Rows:
        if self._portal is not None:
            return await self._portal.fetch(count)
        rows, self._whole = self._whole, ()
        return rows if self.columns else ()

    def read(self, rows: Rows) -> pa.RecordBatch:
        return self._reader.read(rows)

    async def interrupt(self) -> None:
        if not self._connection.is_closed():
            await self._interrupt_process(self._connection.get_server_pid())

    def was_interrupted(self, error: EngineError) -> bool:
        return isinstance(error.__cause__, asyncpg.QueryCanceledError)

    async def end(self, *, keep: bool) -> None:
        if self._portal is not None:
            await self._portal.end(commit=keep)

    async def _prepare(self) -> tuple[PreparedStatement, tuple[Field, ...]]:
        with statement_errors(started=False):
            statement, fields = await self._connection.prepare_described(self._sql)
            if statement.get_parameters():
                raise StatementRejected("there is no parameter $1")
            declared = await declare(self._connection, fields) if fields else ()
        self.columns = columns(fields, declared)
        self._reader = RowReader([field.name for field in fields], declared)
        return statement, fields

    def _log(self, line: str) -> None:
        self.log_lines.keep(line)
