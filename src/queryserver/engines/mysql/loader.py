"""Loads Arrow batches into MySQL tables: multi-row INSERTs fill a staging table, which is then renamed or copied.

DDL commits implicitly in MySQL, so other clients see the staging table until it is renamed or dropped.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute
from asyncmy.converters import escape_str

from queryserver.engines import loader
from queryserver.engines.catalog_queries import Row, backquoted, read_rows
from queryserver.engines.protocol import EngineSession, LoadColumn, LoadLedger, TableLoad, TableName
from queryserver.errors.statements import EngineError, OutcomeUnknown, SessionLost, StatementRejected
from queryserver.sql.literals import mysql_text as literal

_kernels: Any = pyarrow.compute

_STATEMENT_BYTES = 1024 * 1024
_RESERVED_BYTES = 64 * 1024
"""Space reserved for the statement text around the rows."""


@dataclass(frozen=True, slots=True)
class RowWriter:
    """Formats rows as `(…)` for INSERT.

    `escape` escapes a string for use between quotes in the session. Raises StatementRejected for NaN, infinity, and
    rows larger than the server accepts.
    """

    escape: Callable[[str], str]
    max_row_bytes: int

    def write(self, batch: pa.RecordBatch) -> list[bytes]:
        """Format the rows in order. Numbers and times are quoted too; the server converts them to the column type."""
        literals = [
            self._literals(name, column) for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        values = _kernels.binary_join_element_wise(*literals, ",")
        rows = _kernels.binary_join_element_wise("(", values, ")", "").cast(pa.binary()).to_pylist()
        if (size := max(map(len, rows), default=0)) > self.max_row_bytes - _RESERVED_BYTES:
            raise StatementRejected(
                f"A row of {size} bytes exceeds the server's max_allowed_packet of {self.max_row_bytes} bytes."
            )
        return rows

    def _literals(self, name: str, column: pa.Array) -> pa.Array:
        kind = column.type
        if pa.types.is_string(kind):
            escaped = [None if text is None else self.escape(text) for text in column.to_pylist()]
            return _kernels.fill_null(pa.array(escaped, pa.string()), "NULL")
        if pa.types.is_binary(kind):
            return _kernels.fill_null(loader.hex_texts(column, prefix="X'", suffix="'"), "NULL")
        if pa.types.is_floating(kind) and not _kernels.all(_kernels.is_finite(column)).as_py():
            raise StatementRejected(f'Column "{name}": MySQL does not support NaN or infinity.')
        if pa.types.is_boolean(kind):
            column = column.cast(pa.int8())
        text = loader.duration_text(column) if pa.types.is_duration(kind) else column.cast(pa.string())
        return _kernels.fill_null(_kernels.binary_join_element_wise("'", text, "'", ""), "NULL")


_LAST_STEP_S = 60.0
_STRICT = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'"
_HIGHEST_NAME_CHARACTER = "\uffff"


class MysqlLoader(loader.StatementLoader):
    """Implements `TableLoader`. `fresh_session` opens a similar session for the cleanup if `session` is lost."""

    mark = "`"

    def __init__(
        self,
        session: EngineSession,
        executor: Executor,
        fresh_session: Callable[[], AbstractAsyncContextManager[EngineSession]],
        *,
        read_only: bool,
    ) -> None:
        super().__init__(session, executor, read_only=read_only)
        self._fresh_session = fresh_session

    async def drop(self, table: TableName) -> None:
        try:
            await super().drop(table)
        except (SessionLost, OutcomeUnknown):  # retrying is safe, because DROP TABLE IF EXISTS is idempotent
            async with self._fresh_session() as session:
                await loader.execute(session, f"DROP TABLE IF EXISTS {self.qualified_name(table)}")

    async def exists(self, table: TableName) -> bool:
        found = await self._rows(
            "SELECT table_name, @@lower_case_table_names FROM information_schema.tables"
            f" WHERE {_table_condition(table)}"
        )
        # information_schema compares case- and accent-insensitively, even if table names are case-sensitive.
        return any(
            name == table.name if cases == 0 else name.casefold() == table.name.casefold() for name, cases in found
        )

    async def is_view(self, table: TableName) -> bool:
        kinds = await self._rows(f"SELECT table_type FROM information_schema.tables WHERE {_table_condition(table)}")
        return any(kind != "BASE TABLE" for (kind,) in kinds)

    async def refuse_existing(self, load: TableLoad) -> None:
        """Also refuse to append to a table without transactions, and to replace a table that foreign keys reference."""
        table = load.target
        await super().refuse_existing(load)
        if load.append and ("NO",) in await self._rows(
            "SELECT transactions FROM information_schema.tables AS t JOIN information_schema.engines AS e"
            f" ON e.engine = t.engine WHERE {_table_condition(table)}"
        ):
            raise StatementRejected(
                f'Rows cannot be added atomically: the storage engine of "{table.name}" has no transactions.'
            )
        if load.replace and await self._rows(
            "SELECT 1 FROM information_schema.key_column_usage"
            f" WHERE {_table_condition(table, 'referenced_table')} AND NOT ({_table_condition(table)})"
        ):
            raise StatementRejected(f'Foreign keys of other tables refer to "{table.name}", so it cannot be replaced.')

    def check_names(self, load: TableLoad) -> None:
        for name in (load.target.name, *(column.name for column in load.columns)):
            if max(name) > _HIGHEST_NAME_CHARACTER:  # the server would replace such characters with `?`
                text = f'The name "{name[:40]}" contains a character above U+FFFF, which MySQL cannot store.'
                raise StatementRejected(text)

    def qualified_name(self, table: TableName) -> str:
        return backquoted(table.database, table.name) if table.database else backquoted(table.name)

    async def create(self, table: TableName, columns: Sequence[LoadColumn]) -> Sequence[str]:
        await loader.execute(self._session, _STRICT)
        ((max_row_bytes,),) = await self._rows("SELECT @@max_allowed_packet")
        self._row_writer = RowWriter(escape_str, max_row_bytes)  # escapes as required by the mode set by `_STRICT`
        self.max_statement_bytes = min(max_row_bytes - _RESERVED_BYTES, _STATEMENT_BYTES)
        definitions = loader.column_definitions(columns, backquoted)
        # With utf8mb4, the table accepts all characters, whatever the database's default character set is.
        sql = f"CREATE TABLE {self.qualified_name(table)} ({definitions}) DEFAULT CHARACTER SET utf8mb4"
        await loader.execute(self._session, sql)
        return [column.declared for column in columns]

    def writer(self, columns: Sequence[LoadColumn], types: Sequence[str]) -> loader.RowsWriter:  # noqa: ARG002 literals fit every type
        return self._row_writer.write

    def insert(self, load: TableLoad, types: Sequence[str], rows: Sequence[bytes]) -> str:  # noqa: ARG002 as above
        return f"INSERT INTO {self.qualified_name(load.staging)} VALUES {b','.join(rows).decode()}"

    async def rename(self, table: TableName, name: TableName) -> bool:
        await self._last_step(f"RENAME TABLE {self.qualified_name(table)} TO {self.qualified_name(name)}")
        return True

    async def _append(self, load: TableLoad, staging: loader.Staging) -> None:
        """Copy the rows in a transaction, so that a cancellation before the commit undoes even a completed copy."""
        await loader.execute(self._session, "START TRANSACTION")
        try:
            await super()._append(load, staging)
        except BaseException:  # includes cancellation: dropping the staging table would commit
            await loader.run_to_completion(self._roll_back(staging))
            raise
        await staging.publish(self._last_step("COMMIT"), consumes_table=False)

    async def _roll_back(self, staging: loader.Staging) -> None:
        """Roll back. If that fails on a live connection, leave the staging table in the ledger."""
        try:
            async with asyncio.timeout(_LAST_STEP_S):
                with suppress(EngineError):  # a late interrupt cancels this statement instead of the next
                    await loader.execute(self._session, "DO 0")
                await loader.execute(self._session, "ROLLBACK")
        except (EngineError, TimeoutError):
            staging.is_cleared = await self._session.is_alive()

    async def _swap(self, load: TableLoad, ledger: LoadLedger) -> None:
        """Swap the tables in a single atomic RENAME, then drop the old table."""
        await self.refuse_existing(load)  # the target may have become a view since the first check
        old = TableName(load.staging.database, f"{load.staging.name}_old")
        source, target = self.qualified_name(load.staging), self.qualified_name(load.target)
        async with loader.staging_table(old, ledger, partial(self.drop, old)):
            await self._last_step(f"RENAME TABLE {target} TO {self.qualified_name(old)}, {source} TO {target}")

    async def _last_step(self, sql: str) -> None:
        try:
            async with asyncio.timeout(_LAST_STEP_S):
                await loader.execute(self._session, sql)
        except TimeoutError:
            raise OutcomeUnknown("MySQL did not confirm the last step in time.") from None

    async def _rows(self, sql: str) -> list[Row]:
        return await read_rows(self._session, sql)


def _table_condition(table: TableName, prefix: str = "table") -> str:
    """Return the SQL condition that selects one table in information_schema."""
    database = literal(table.database) if table.database else "DATABASE()"
    return f"{prefix}_schema = {database} AND {prefix}_name = {literal(table.name)}"
