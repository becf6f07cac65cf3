"""Tables of MySQL from Arrow batches: INSERT statements of many rows into a staging table, which is then renamed.

Definitions commit by themselves there, so other clients see the staging table until it is renamed or dropped.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute

from queryserver.engines import loading
from queryserver.engines.catalog_queries import backquoted
from queryserver.engines.mysql.connection import MysqlConnection, literal, statement_errors
from queryserver.engines.protocol import LoadLedger, TableLoad, TableName
from queryserver.errors.statements import StatementRejected

_kernels: Any = pyarrow.compute

_STATEMENT_BYTES = 1024 * 1024
_ROOM_FOR_THE_REST = 64 * 1024
"""For what stands around the rows of a statement."""


@dataclass(frozen=True, slots=True)
class RowWriter:
    """Writes rows as `(…)` for INSERT.

    `escape` gives a text between quotes, safe in the session it is for. Raises StatementRejected for what MySQL cannot
    hold: NaN, infinity, a row larger than the server takes.
    """

    escape: Callable[[str], str]
    largest_bytes: int

    def write(self, batch: pa.RecordBatch) -> list[bytes]:
        """The rows in order. Numbers and times are between quotes too: the server reads them by the column's type."""
        literals = [
            self._literals(name, column) for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        values = _kernels.binary_join_element_wise(*literals, ",")
        rows = _kernels.binary_join_element_wise("(", values, ")", "").cast(pa.binary()).to_pylist()
        if (size := max(map(len, rows), default=0)) > self.largest_bytes - _ROOM_FOR_THE_REST:
            raise StatementRejected(
                f"A row of {size} bytes is more than the server takes: its max_allowed_packet is"
                f" {self.largest_bytes} bytes."
            )
        return rows

    def _literals(self, name: str, column: pa.Array) -> pa.Array:
        kind = column.type
        if pa.types.is_string(kind):
            escaped = [None if text is None else self.escape(text) for text in column.to_pylist()]
            return _kernels.fill_null(pa.array(escaped, pa.string()), "NULL")
        if pa.types.is_binary(kind):
            return _kernels.fill_null(loading.hex_texts(column, before="X'", behind="'"), "NULL")
        if pa.types.is_floating(kind) and not _kernels.all(_kernels.is_finite(column)).as_py():
            raise StatementRejected(f'Column "{name}": MySQL has neither NaN nor infinity.')
        if pa.types.is_boolean(kind):
            column = column.cast(pa.int8())
        text = loading.duration_text(column) if pa.types.is_duration(kind) else column.cast(pa.string())
        return _kernels.fill_null(_kernels.binary_join_element_wise("'", text, "'", ""), "NULL")


DROP_S = 25.0
_LAST_STEP_S = 60.0
_STRICT = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'"
_LAST_CHARACTER_OF_NAMES = "\uffff"


class MysqlLoader:
    """A TableLoader. After a cancel its connection is closed; only `drop` works then.

    `interrupt_thread` sends the stop signal to a thread of the server; `on_other_connection` does work on a second one.
    """

    def __init__(
        self,
        connection: MysqlConnection,
        executor: Executor,
        *,
        interrupt_thread: Callable[[int], Awaitable[None]],
        on_other_connection: Callable[[Callable[[MysqlConnection], Awaitable[object]]], Awaitable[None]],
        read_only: bool,
    ) -> None:
        self._connection = connection
        self._executor = executor
        self._interrupt_thread = interrupt_thread
        self._on_other_connection = on_other_connection
        self._read_only = read_only

    async def exists(self, table: TableName) -> bool:
        found = await self._rows(
            f"SELECT table_name, @@lower_case_table_names FROM information_schema.tables WHERE {_is(table)}"
        )
        # The server compares without regard to case and accents there, whatever it does with names of tables.
        names = [((name or b"").decode(), cases == b"0") for name, cases in found]
        return any(
            name == table.name if has_case else name.casefold() == table.name.casefold() for name, has_case in names
        )

    async def load(self, load: TableLoad, batches: AsyncIterator[pa.RecordBatch], ledger: LoadLedger) -> int:
        loading.refuse_changes(read_only=self._read_only)
        for name in (load.target.name, *(column.name for column in load.columns)):
            if max(name) > _LAST_CHARACTER_OF_NAMES:  # the server would put `?` in the place of such characters
                text = f'The name "{name[:40]}" has a character beyond U+FFFF, which MySQL cannot keep.'
                raise StatementRejected(text)
        exists = await self.exists(load.target)
        loading.refuse_target(load, exists=exists)
        if load.append:
            await self._refuse_partial_changes(load.target)
        elif exists:
            await self._refuse_replacing(load.target)
        with loading.rows_failures():
            async with loading.staged(load.staging, ledger, partial(self.drop, load.staging)) as staging:
                return await self._load(load, batches, staging, ledger)

    async def drop(self, table: TableName) -> None:
        loading.refuse_changes(read_only=self._read_only)
        sql = f"DROP TABLE IF EXISTS {_place(table)}"
        if self._connection.is_closed():
            await self._on_other_connection(lambda connection: connection.run(sql))
            return
        with statement_errors(started=True):
            async with self._stopping(), asyncio.timeout(DROP_S):
                await self._connection.run(sql)

    async def _load(
        self, load: TableLoad, batches: AsyncIterator[pa.RecordBatch], staging: loading.Staging, ledger: LoadLedger
    ) -> int:
        source = _place(load.staging)
        with statement_errors(started=True):
            async with self._stopping():
                await self._connection.run(_STRICT)
                # Whatever the database's own characters are, the table takes all.
                columns = loading.column_definitions(load.columns, backquoted)
                await self._connection.run(f"CREATE TABLE {source} ({columns}) DEFAULT CHARACTER SET utf8mb4")
                rows = await self._insert(source, batches)
                if load.append:
                    await self._connection.run("START TRANSACTION")
                    names = ", ".join(backquoted(column.name) for column in load.columns)
                    copy = f"INSERT INTO {_place(load.target)} ({names}) SELECT {names} FROM {source}"
                    await self._connection.run(copy)
            if load.append:
                await staging.publish(self._last_step("COMMIT"), takes_it=False)
            elif load.replace and await self.exists(load.target):
                await self._refuse_replacing(load.target)  # it may have become a view meanwhile
                await staging.publish(self._swap(load, source, ledger))
            else:
                await staging.publish(self._last_step(f"RENAME TABLE {source} TO {_place(load.target)}"))
        return rows

    async def _swap(self, load: TableLoad, source: str, ledger: LoadLedger) -> None:
        """Both renamings are one step. The old table is dropped then."""
        old = TableName(load.staging.database, f"{load.staging.name}_old")
        target = _place(load.target)
        async with loading.staged(old, ledger, partial(self.drop, old)):
            await self._last_step(f"RENAME TABLE {target} TO {_place(old)}, {source} TO {target}")

    async def _insert(self, source: str, batches: AsyncIterator[pa.RecordBatch]) -> int:
        ((largest,),) = await self._ask("SELECT @@max_allowed_packet")
        writer, rows = RowWriter(self._connection.escape, int(largest or 0)), 0
        async with loading.read_ahead(batches, writer.write, self._executor) as written:
            async for group in loading.statements_of(
                written, min(writer.largest_bytes - _ROOM_FOR_THE_REST, _STATEMENT_BYTES)
            ):
                await self._connection.run(f"INSERT INTO {source} VALUES {b','.join(group).decode()}")
                rows += self._connection.affected_rows()
        return rows

    async def _last_step(self, sql: str) -> None:
        async with asyncio.timeout(_LAST_STEP_S):
            await self._connection.run(sql)

    async def _refuse_partial_changes(self, table: TableName) -> None:
        """Raises StatementRejected where the table keeps the first rows of an INSERT that fails at a later one."""
        found = await self._rows(
            "SELECT transactions FROM information_schema.tables AS t JOIN information_schema.engines AS e"
            f" ON e.engine = t.engine WHERE {_is(table)}"
        )
        if (b"NO",) in found:
            raise StatementRejected(
                f'Table "{table.name}" is of a storage engine without transactions: rows cannot be added all or none.'
            )

    async def _refuse_replacing(self, table: TableName) -> None:
        """Raises StatementRejected for a view, and for a table with foreign keys to it, which would follow it."""
        kinds = await self._rows(f"SELECT table_type FROM information_schema.tables WHERE {_is(table)}")
        keys = await self._rows(
            "SELECT 1 FROM information_schema.key_column_usage"
            f" WHERE {_is(table, 'referenced_table')} AND NOT ({_is(table)})"
        )
        if any(kind != b"BASE TABLE" for (kind,) in kinds):
            raise loading.no_table(table)
        if keys:
            raise StatementRejected(f'Keys of other tables refer to "{table.name}", so it cannot be replaced.')

    async def _rows(self, sql: str) -> list[tuple[bytes | None, ...]]:
        with statement_errors(started=False):
            async with self._stopping():
                return await self._ask(sql)

    async def _ask(self, sql: str) -> list[tuple[bytes | None, ...]]:
        await self._connection.start(sql)
        found = await self._connection.rows(1000)
        await self._connection.drain()
        return found

    @asynccontextmanager
    async def _stopping(self) -> AsyncGenerator[None]:
        """Around statements: a cancel stops the one under way at the server, and ends the connection."""

        async def stop() -> None:
            if not self._connection.is_closed():
                await self._interrupt_thread(self._connection.thread_id())
            await self._connection.shut()

        try:
            yield
        except asyncio.CancelledError:
            await asyncio.shield(stop())
            raise


def _place(table: TableName) -> str:
    return backquoted(table.database, table.name) if table.database else backquoted(table.name)


def _is(table: TableName, prefix: str = "table") -> str:
    """The condition of information_schema for one table."""
    database = literal(table.database) if table.database else "DATABASE()"
    return f"{prefix}_schema = {database} AND {prefix}_name = {literal(table.name)}"
