"""The rows of one statement, chunk by chunk, through a portal of the server.

A portal lives only inside a transaction: one is opened around it, unless the session has one open already.
"""

import asyncio

from asyncpg.cursor import Cursor
from asyncpg.prepared_stmt import PreparedStatement

from queryserver.engines.postgresql.errors import statement_errors
from queryserver.engines.postgresql.wire import Connection
from queryserver.engines.streamed_operation import Rows


class Portal:
    """Open from `start` until its last row is read or `end` is called."""

    def __init__(self, connection: Connection, statement: PreparedStatement) -> None:
        self._connection = connection
        self._statement = statement
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
        """Up to `count` rows; fewer are the last ones, and then what the statement did is committed."""
        async with self._in_use:
            if not self.is_open:
                return ()
            with statement_errors(started=True):
                if self._cursor is None:
                    self._cursor = await self._statement.cursor()
                rows: Rows = await self._cursor.fetch(count)
            self.rows_read += len(rows)
            if len(rows) < count:
                await self._end("COMMIT")
            return rows

    async def end(self, *, commit: bool) -> None:
        """Give up the remaining rows. What the statement did so far is kept or undone. Idempotent."""
        async with self._in_use:
            if self.is_open:
                await self._end("COMMIT" if commit else "ROLLBACK")

    async def _end(self, verb: str) -> None:
        self.is_open = False
        if self._owns_transaction and not self._connection.is_closed():
            with statement_errors(started=True):
                await self._connection.execute(verb)
