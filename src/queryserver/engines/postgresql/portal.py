"""The rows of one statement, chunk by chunk, through a portal of the server.

A portal lives only inside a transaction: one is opened around it, unless the session has one open already.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from asyncpg.cursor import Cursor
from asyncpg.prepared_stmt import PreparedStatement

from queryserver.engines.postgresql.errors import statement_errors
from queryserver.engines.postgresql.refusals import refusals
from queryserver.engines.postgresql.wire import Connection
from queryserver.engines.streamed_operation import Rows


class Portal:
    """Open from `start` until its last row is read or `end` is called."""

    def __init__(self, connection: Connection, statement: PreparedStatement, columns: Sequence[str] = ()) -> None:
        self._connection = connection
        self._statement = statement
        self._columns = columns
        self._cursor: Cursor | None = None
        self._owns_transaction = False
        self._in_use = asyncio.Lock()
        self.is_open = True
        self.rows_read = 0

    async def start(self) -> None:
        """Open the transaction. Nothing is executed before the first `fetch`. Raises as `statement_errors`."""
        with statement_errors(started=False):
            if not self._connection.is_in_transaction():
                await self._connection.execute("BEGIN")
                self._owns_transaction = True

    async def fetch(self, count: int) -> Rows:
        """Up to `count` rows, and only as many as weigh some MiB. After the last ones the statement is committed.

        Raises cell_too_large, RowTooLarge.
        """
        async with self._in_use:
            if not self.is_open:
                return ()
            rows = await self._next(count)
            self.rows_read += len(rows)
            if not self._connection.guard.was_cut and len(rows) < count:
                await self._end("COMMIT")
            return rows

    async def _next(self, count: int) -> Rows:
        guard = self._connection.guard
        with refusals(guard, self._columns, self.rows_read), statement_errors(started=True):
            if self._cursor is None:
                self._cursor = await self._statement.cursor()
            cursor: Any = self._cursor
            guard.begin_chunk()
            try:
                rows: Rows = await cursor.fetch(count)
            finally:
                guard.end_chunk()
            if guard.was_cut:
                # asyncpg takes a short chunk for the last one.
                cursor._exhausted = False  # noqa: SLF001 nothing public says so
            return rows

    async def end(self, *, commit: bool) -> None:
        """Give up the remaining rows. What the statement did so far is kept or undone. Idempotent."""
        async with self._in_use:
            if self.is_open:
                await self._end("COMMIT" if commit else "ROLLBACK")

    async def _end(self, verb: str) -> None:
        self.is_open = False
        self._connection.guard.drop_rest()
        if self._owns_transaction and not self._connection.is_closed():
            with statement_errors(started=True):
                await self._connection.execute(verb)
