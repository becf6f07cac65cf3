"""Loads Arrow batches into PostgreSQL tables: COPY fills a staging table that is visible only in its transaction.

Before the commit, the staging table is renamed to the target, or its rows are inserted into the target. Any failure,
even a crash of this server, rolls everything back, so nothing needs to be recorded in the ledger.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyarrow import csv

from queryserver.engines import loader
from queryserver.engines.catalog_queries import identifier, qualified
from queryserver.engines.postgresql.connection import PostgresqlConnection
from queryserver.engines.postgresql.errors import replace_cancellation, statement_errors
from queryserver.engines.postgresql.transactions import naming, statement_name
from queryserver.engines.postgresql.wire import RefusalTap
from queryserver.engines.protocol import LoadLedger, TableLoad, TableName
from queryserver.errors.statements import EngineError, StatementRejected

# The server silently truncates longer names.
_refuse_truncated_names = partial(
    loader.refuse_long_names, max_size=63, unit="bytes", size=lambda name: len(name.encode())
)
_DROP_S = 30.0
_COMMIT_S = 60.0
_PIECE_BYTES = 512 * 1024
# All names are qualified, because users' types and tables may come first in the session's search_path.
_SCHEMA = "COALESCE($1::pg_catalog.text, pg_catalog.current_schema()::pg_catalog.text)"
_TARGET = f"""
    SELECT place.schema, COALESCE(c.relkind IN ('r', 'p', 'v', 'm', 'f'), false) AS is_there,
        c.relkind = 'r' AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits AS i WHERE i.inhrelid = c.oid) AS is_plain
    FROM (SELECT {_SCHEMA} AS schema) AS place
    LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname = place.schema
    LEFT JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = $2::pg_catalog.text
"""
# Types whose names are not keywords, so the server would look them up in the session's search_path.
_NO_KEYWORDS = frozenset({"TEXT", "DATE", "BYTEA", "JSONB", "UUID"})
_AS_COPY_READS = csv.WriteOptions(include_header=False, batch_size=16_384, quoting_style="needed")
"""Options that quote all strings and write NULL as an empty unquoted field, so that COPY can distinguish '' from
NULL.
"""


@dataclass(frozen=True, slots=True)
class _ExistingTable:
    """The object that has the table's name, if there is one."""

    schema: str | None
    """The schema that contains the table or would contain a new one; None if no schema is selected."""
    is_there: bool
    is_plain: bool | None
    """Whether the object is a plain table, which may be replaced; None if no object has the name.

    Partitioned tables and partitions are not plain: dropping the former would also drop its partitions, and dropping
    the latter would delete rows of its parent.
    """

    @property
    def required_schema(self) -> str:
        if self.schema is None:
            raise StatementRejected("no schema has been selected to create in")
        return self.schema

    def refuse_replacing(self, load: TableLoad) -> None:
        """Raise StatementRejected if the load would replace an object that is not a plain table.

        The server itself refuses to drop tables with dependent objects.
        """
        if load.replace and self.is_plain is False:
            raise loader.not_plain_table_error(load.target)


class PostgresqlLoader:
    """Implements `TableLoader`. A canceled load closes the connection."""

    def __init__(
        self,
        connection: PostgresqlConnection,
        executor: Executor,
        *,
        read_only: bool,
        tags: bool = True,
        canceled: Callable[[], EngineError] | None = None,
    ) -> None:
        """`tags` and `canceled` are those of `PostgresqlEngine`."""
        self._tags = tags
        self._canceled = canceled
        self._connection = connection
        self._executor = executor
        self._read_only = read_only

    async def exists(self, table: TableName) -> bool:
        return (await self._find(table)).is_there

    async def load(self, load: TableLoad, batches: AsyncIterator[pa.RecordBatch], ledger: LoadLedger) -> int:
        del ledger
        names = [load.target.database or "", load.target.name, *[column.name for column in load.columns]]
        loader.require_writable(read_only=self._read_only)
        _refuse_truncated_names(names)
        if load.target.database is not None and load.target.database.startswith("pg_temp"):
            raise loader.session_database_error(load.target.database)
        found = await self._find(load.target)
        schema = found.required_schema
        found.refuse_replacing(load)
        loader.refuse_target(load, exists=found.is_there)
        try:
            with replace_cancellation(self._canceled):
                return await self._load(load, schema, batches)
        except asyncio.CancelledError:
            # A cancel request may still be on its way to the server process, which must not serve another session.
            await asyncio.shield(self._roll_back(then_disconnect=True))
            raise
        except loader.BatchesFailed as error:
            await asyncio.shield(self._roll_back())
            raise error.reason from error.reason.__cause__
        except BaseException:
            await asyncio.shield(self._roll_back())
            raise

    async def drop(self, table: TableName) -> None:
        loader.require_writable(read_only=self._read_only)
        _refuse_truncated_names([table.database or "", table.name])
        schema = (await self._find(table)).required_schema
        with statement_errors(started=True):
            await self._connection.execute(f"DROP TABLE IF EXISTS {qualified(schema, table.name)}", timeout=_DROP_S)

    async def _find(self, table: TableName) -> "_ExistingTable":
        with statement_errors(started=False):
            [row] = await self._connection.fetch(_TARGET, table.database, table.name, timeout=_DROP_S)
        return _ExistingTable(*row)

    async def _load(self, load: TableLoad, schema: str, batches: AsyncIterator[pa.RecordBatch]) -> int:
        kind = "UNLOGGED TABLE" if load.append else "TABLE"
        resolved = [
            replace(one, declared=f"pg_catalog.{one.declared.lower()}") if one.declared in _NO_KEYWORDS else one
            for one in load.columns
        ]
        source, target = qualified(schema, load.staging.name), qualified(schema, load.target.name)
        columns = loader.column_definitions(resolved, identifier)
        # The DROP TABLE in these steps has no CASCADE, so it fails for a view, and for a table with dependent views or
        # foreign keys.
        steps = loader.publishing_steps(load, source, target)
        with statement_errors(started=True):
            begin = f"BEGIN ISOLATION LEVEL READ COMMITTED{self._naming(load)}"
            await self._connection.execute(f"{begin}; CREATE {kind} {source} ({columns})")
            rows = await self._copy(load, schema, batches)
            if load.replace:
                (await self._find(load.target)).refuse_replacing(load)
            await self._connection.execute("; ".join(steps))
            await loader.run_to_completion(self._connection.execute("COMMIT", timeout=_COMMIT_S))
        return rows

    def _naming(self, load: TableLoad) -> str:
        """Return what follows BEGIN so that the server's views show the load until the end of the transaction."""
        return naming(statement_name(load.context)) if self._tags and not self._connection.keeps_own_name() else ""

    async def _copy(self, load: TableLoad, schema: str, batches: AsyncIterator[pa.RecordBatch]) -> int:
        with self._connection.watched() as tap:
            async with loader.read_ahead(batches, _encode, self._executor) as encoded:
                tag = await self._connection.copy_to_table(
                    load.staging.name,
                    schema_name=schema,
                    source=_pieces(encoded, tap),
                    format="csv",
                    encoding="utf-8",
                    # Allowed because no other transaction sees the table. Frozen rows need no vacuuming later.
                    freeze=True,
                )
        return int(tag.removeprefix("COPY "))

    async def _roll_back(self, *, then_disconnect: bool = False) -> None:
        """Roll back the transaction, or close the connection if that fails."""
        if not self._connection.is_closed() and (not await self._connection.end_transaction() or then_disconnect):
            await self._connection.disconnect()


def _encode(batch: pa.RecordBatch) -> pa.Buffer:
    """Encode the rows in COPY's CSV format."""
    columns = list(batch.columns)
    for number, column in enumerate(columns):
        if pa.types.is_duration(column.type):
            columns[number] = loader.duration_text(column)
        elif pa.types.is_binary(column.type):
            columns[number] = loader.hex_texts(column, prefix="\\x")
    sink = pa.BufferOutputStream()
    csv.write_csv(pa.RecordBatch.from_arrays(columns, names=batch.schema.names), sink, _AS_COPY_READS)
    return sink.getvalue()


async def _pieces(encoded: AsyncIterator[pa.Buffer], tap: RefusalTap) -> AsyncGenerator[memoryview]:
    """Yield the data in chunks; stop once the server has rejected a row."""
    async for buffer in encoded:
        view = memoryview(buffer)
        for start in range(0, len(view), _PIECE_BYTES):
            if tap.has_refused:
                return
            yield view[start : start + _PIECE_BYTES]
