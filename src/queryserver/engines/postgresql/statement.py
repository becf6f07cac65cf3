"""One statement on a PostgreSQL connection.

A statement without result set runs outside a transaction block, so that it commits by itself and `VACUUM` or
`CREATE DATABASE` work. The rows of all others are read through a portal.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import asyncpg
import pyarrow as pa
from asyncpg.cursor import Cursor
from asyncpg.prepared_stmt import PreparedStatement

from queryserver.engines.postgresql.connection import Connection, Field, refusals
from queryserver.engines.postgresql.errors import statement_errors
from queryserver.engines.postgresql.nested import (
    NESTED,
    Unfit,
    dimensions_of,
    native_as_text,
    read_native,
    read_nested,
    with_fields,
)
from queryserver.engines.postgresql.types import DeclaredType, Kind, columns, declare
from queryserver.engines.sessions import Rows
from queryserver.engines.statement_texts import KeptLines, first_keyword
from queryserver.errors.statements import EngineError, StatementRejected
from queryserver.formats.columns import Column


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


Values = Sequence[Any]


class ColumnReader:
    """Reads one column, chunk by chunk."""

    def __init__(self, name: str, declared: DeclaredType) -> None:
        self._name = name
        self._declared = declared
        self._read: Callable[[Values], pa.Array] | None = None

    def read(self, values: Values) -> pa.Array:
        """The next values. Raises StatementRejected for one that does not fit what the first chunk decided."""
        try:
            if self._read is None:
                self._read = _reader_for(self._declared, values)
            return self._read(values)
        except Unfit as error:
            message = (
                f'column "{self._name}" holds a value that type {self._declared.name} cannot carry'
                f" (infinity, NaN, BC, another array dimension) after rows that could: cast the column to text"
            )
            raise StatementRejected(message) from error


def _reader_for(declared: DeclaredType, first: Values) -> Callable[[Values], pa.Array]:
    try:
        read = _typed_reader(declared, first)
        read(first)
    except Unfit:
        return partial(native_as_text, declared)
    return read


def _typed_reader(declared: DeclaredType, first: Values) -> Callable[[Values], pa.Array]:
    if declared.kind is Kind.RECORD:
        declared = with_fields(declared, first)
    if declared.kind not in NESTED:
        return partial(read_native, declared)
    dimensions = dimensions_of(declared, first) if declared.kind is Kind.ARRAY else 1
    return partial(read_nested, declared, dimensions=max(dimensions, 1))


class RowReader:
    """Reads the rows of one result."""

    def __init__(self, names: Sequence[str], declared: Sequence[DeclaredType]) -> None:
        self._names = list(names)
        self._readers = [ColumnReader(name, kind) for name, kind in zip(names, declared, strict=True)]

    def read(self, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        """The next rows as one batch."""
        by_column: Sequence[Values] = list(zip(*rows, strict=True)) or [()] * len(self._readers)
        arrays = [reader.read(values) for reader, values in zip(self._readers, by_column, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=self._names)


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
