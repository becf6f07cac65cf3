"""Reads Phoenix's metadata and loads its tables.

Columns are read with a metadata request of the Query Server, and all other metadata from SYSTEM tables. SYSTEM.CATALOG
does not contain the columns that a view inherits from its table; only the driver behind the Query Server adds them.
"""

import asyncio
import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

import pyarrow as pa

from queryserver import errors
from queryserver.engines import catalog_queries as queries
from queryserver.engines import loader
from queryserver.engines.phoenix.connection import PhoenixConnection
from queryserver.engines.phoenix.protocol import Phase, avatica_errors, parameter_rows, with_row_numbers
from queryserver.engines.phoenix.statement import native_type, row_values
from queryserver.engines.protocol import (
    ColumnStatistics,
    DatabaseDescription,
    EngineSession,
    FunctionDescription,
    LoadColumn,
    LoadLedger,
    TableColumn,
    TableDescription,
    TableKind,
    TableLoad,
    TableName,
    TableSummary,
)

# Column indexes in the result of java.sql.DatabaseMetaData.getColumns, including three columns that Phoenix appends.
_SCHEMA, _TABLE, _NAME, _TYPE, _SIZE, _DIGITS, _NULLABLE, _DEFAULT, _POSITION, _KEY = 1, 2, 3, 5, 6, 8, 10, 12, 16, 28
_UPDATABLE = 3  # a value of VIEW_TYPE
# Selects the rows that describe tables, not columns, column families, or links to other tables or indexes.
_TABLE_ROWS = "TENANT_ID IS NULL AND COLUMN_NAME IS NULL AND COLUMN_FAMILY IS NULL AND TABLE_TYPE IN ('u', 'v', 's')"


class PhoenixCatalog(queries.SessionCatalog):
    """Implements `Catalog`. A database is a schema; `""` is the schema with an empty name, which always exists."""

    nested_refusal = "Phoenix cannot read individual array elements."

    def __init__(self, session: EngineSession, connection: PhoenixConnection) -> None:
        super().__init__(session)
        self._connection = connection

    async def databases(self) -> Sequence[str]:
        rows = await self._rows("SELECT DISTINCT TABLE_SCHEM FROM SYSTEM.CATALOG WHERE TENANT_ID IS NULL")
        return sorted({name or "" for (name,) in rows} | {""})

    async def database(self, database: str) -> DatabaseDescription:
        return DatabaseDescription(await self._schema(database))

    async def tables(self, database: str) -> Sequence[TableSummary]:
        schema = await self._schema(database)
        where = f"{_in_schema(schema)} AND {_TABLE_ROWS}"
        rows = await self._rows(f"SELECT TABLE_NAME, TABLE_TYPE FROM SYSTEM.CATALOG WHERE {where}")
        return [TableSummary(name, TableKind.of(is_view=kind == "v")) for name, kind in rows]

    async def table(self, database: str, table: str) -> TableDescription:
        schema = await self._schema(database)
        names = ", ".join(map(queries.escaped_literal, queries.name_candidates(table, queries.Folding.UPPER)))
        rows = await self._rows(
            "SELECT TABLE_NAME, TABLE_TYPE, VIEW_TYPE FROM SYSTEM.CATALOG"
            f" WHERE {_in_schema(schema)} AND TABLE_NAME IN ({names}) AND {_TABLE_ROWS}"
        )
        found = {name: (kind, view_type) for name, kind, view_type in rows}
        name = queries.match_name(table, found, queries.Folding.UPPER)
        if name is None:
            raise errors.TableNotFound(schema, table)
        kind, view_type = found[name]
        return TableDescription(
            database=schema,
            name=name,
            columns=await self._columns(schema, name),
            kind=TableKind.of(is_view=kind == "v"),
            support_updates=view_type == _UPDATABLE if kind == "v" else True,
            statistics={} if kind == "v" else await self._statistics(schema, name),
        )

    async def column_statistics(self, table: TableDescription, column: str) -> ColumnStatistics:  # noqa: ARG002 there are none
        return ColumnStatistics(message="Phoenix has no column statistics.")

    async def functions(self, database: str | None) -> Sequence[FunctionDescription]:
        """Return an empty list. Phoenix does not list built-in functions, and user-defined functions have no schema."""
        if database is not None:
            await self._schema(database)
        return []

    async def function(self, database: str | None, name: str) -> FunctionDescription | None:  # noqa: ARG002 as above
        return None

    def analyze_statement(self, table: TableDescription, column: str | None) -> str:
        if column is not None:
            raise errors.NotSupported("Phoenix can only analyze whole tables.")
        return f"UPDATE STATISTICS {self._full_name(table)}"

    async def _schema(self, wanted: str) -> str:
        """Return the schema's name as stored in the catalog. Raises database_not_found."""
        if not wanted:
            return ""
        names = ", ".join(map(queries.escaped_literal, queries.name_candidates(wanted, queries.Folding.UPPER)))
        rows = await self._rows(
            f"SELECT DISTINCT TABLE_SCHEM FROM SYSTEM.CATALOG WHERE TENANT_ID IS NULL AND TABLE_SCHEM IN ({names})"
        )
        found = queries.match_name(wanted, [name for (name,) in rows], queries.Folding.UPPER)
        if found is None:
            raise errors.database_not_found(wanted)
        return found

    async def _columns(self, schema: str, table: str) -> tuple[TableColumn, ...]:
        rows = list[queries.Row]()
        try:
            with queries.metadata_errors(), avatica_errors(Phase.OPENING):
                async for row in self._connection.columns_of(schema, table):
                    rows.append(tuple(row_values(row)))
        except (errors.OutcomeUnknown, errors.SessionLost) as error:
            raise errors.EngineUnavailable(error.message) from error
        # The request takes LIKE patterns, in which `_` matches any character, so rows of other tables may match too.
        own = [row for row in rows if (row[_SCHEMA] or "", row[_TABLE]) == (schema, table)]
        return tuple(
            TableColumn(
                name=row[_NAME],
                type=native_type(row[_TYPE], row[_SIZE], row[_DIGITS]),
                nullable=bool(row[_NULLABLE]),
                default=row[_DEFAULT],
                primary_key=row[_KEY] is not None,
            )
            for row in sorted(own, key=lambda row: row[_POSITION])
        )

    async def _statistics(self, schema: str, table: str) -> Mapping[str, str]:
        """Return the estimates that UPDATE STATISTICS stored. It stores none for small tables."""
        physical = [f"{schema}:{table}", f"{schema}.{table}"] if schema else [table]
        names = ", ".join(map(queries.escaped_literal, physical))
        rows = await self._rows(
            "SELECT SUM(GUIDE_POSTS_ROW_COUNT), SUM(GUIDE_POSTS_WIDTH) FROM SYSTEM.STATS"
            f" WHERE PHYSICAL_NAME IN ({names}) GROUP BY COLUMN_FAMILY"
        )
        if not rows:
            return {}
        return {"numRows": str(max(row[0] or 0 for row in rows)), "totalSize": str(sum(row[1] or 0 for row in rows))}


def _in_schema(schema: str, column: str = "TABLE_SCHEM") -> str:
    return f"{column} = {queries.escaped_literal(schema)}" if schema else f"{column} IS NULL"


ROW_ID = "row_id"
_BATCH_BYTES = 512 * 1024
_GAP_BITS = 44  # size of the random gap that keeps concurrent appends from assigning the same numbers
_CLAIM_S = 300
"""A claim lasts at least this long. After a crash, it blocks the table name for at most twice as long."""
_MAX_RELEASED_CLAIMS = 20


class PhoenixLoader:
    """Implements `TableLoader`. A database is a schema; "" is the schema with an empty name. Names keep their case."""

    def __init__(
        self, session: EngineSession, connection: PhoenixConnection, executor: Executor, *, schema: str, read_only: bool
    ) -> None:
        self._session = session
        self._connection = connection
        self._executor = executor
        self._schema = schema
        self._read_only = read_only

    async def exists(self, table: TableName) -> bool:
        sql = (
            f"SELECT 1 FROM SYSTEM.CATALOG WHERE TENANT_ID IS NULL AND {_in_schema(self._schema_of(table))}"
            f" AND TABLE_NAME = {queries.escaped_literal(table.name)} AND COLUMN_NAME IS NULL AND COLUMN_FAMILY IS NULL"
        )
        return bool(await queries.read_rows(self._session, sql, max_rows=1))

    async def load(self, load: TableLoad, batches: AsyncIterator[pa.RecordBatch], ledger: LoadLedger) -> int:
        """Create a table or append to it. Also raises StatementRejected if several rows would have the same key."""
        loader.require_writable(read_only=self._read_only)
        _check_names(load)
        if load.replace:
            raise errors.StatementRejected("Phoenix cannot rename tables, so tables cannot be replaced.")
        loader.refuse_target(load, exists=await self.exists(load.target))
        return await (self._append if load.append else self._create_and_fill)(load, batches, ledger)

    async def drop(self, table: TableName) -> None:
        loader.require_writable(read_only=self._read_only)
        await loader.execute(self._session, f"DROP TABLE IF EXISTS {self._quoted(table)}")

    async def _create_and_fill(
        self, load: TableLoad, batches: AsyncIterator[pa.RecordBatch], ledger: LoadLedger
    ) -> int:
        key_column = next((column.name for column in load.columns if not column.nullable), None)
        added = None if key_column is not None else _free_name(ROW_ID, load.columns)

        async def create() -> None:
            async with self._claim_name(load.target):
                await self._create(load.target, load.columns, key=key_column or "", added=added)

        async with loader.created_table(load.target, create, ledger, partial(self.drop, load.target)) as filled:
            rows = await self._fill(load.target, load.columns, batches, numbers=added)
            if key_column is not None:
                count = await self._single_value(f"SELECT COUNT(*) FROM {self._quoted(load.target)}")
                if int(str(count)) != rows:
                    message = f'Column "{key_column}" cannot be the key, because it contains duplicate values.'
                    raise errors.StatementRejected(message)
            filled.is_gone = True
        return rows

    async def _append(self, load: TableLoad, batches: AsyncIterator[pa.RecordBatch], ledger: LoadLedger) -> int:
        numbers = _free_name(ROW_ID, load.columns)
        async with loader.staging_table(load.staging, ledger, partial(self.drop, load.staging)):
            await self._create(load.staging, load.columns, key="", added=numbers)
            rows = await self._fill(load.staging, load.columns, batches, numbers=numbers)
            await self._upsert_from_staging(load, rows, numbers)
        return rows

    async def _upsert_from_staging(self, load: TableLoad, rows: int, numbers: str) -> None:
        column_names = [column.name for column in load.columns]
        target = await PhoenixCatalog(self._session, self._connection).table(
            self._schema_of(load.target), load.target.name
        )
        keys = [column.name for column in target.columns if column.primary_key]
        to = source = ", ".join(map(queries.identifier, column_names))
        if len(keys) == 1 and keys[0].startswith(ROW_ID) and keys[0] not in column_names:
            # An import has created the table, so continue its row numbers.
            last = await self._single_value(
                f"SELECT MAX({queries.identifier(keys[0])}) FROM {self._quoted(load.target)}"
            )
            start = int(str(last or 0)) + 1 + secrets.randbits(_GAP_BITS)
            to, source = f"{to}, {queries.identifier(keys[0])}", f"{source}, {queries.identifier(numbers)} + {start}"
        else:
            await self._refuse_repeated(load, keys, rows)
        staging = self._quoted(load.staging)
        await loader.execute(
            self._session, f"UPSERT INTO {self._quoted(load.target)} ({to}) SELECT {source} FROM {staging}"
        )

    async def _refuse_repeated(self, load: TableLoad, keys: Sequence[str], rows: int) -> None:
        """Raise StatementRejected for duplicate keys, because Phoenix silently overwrites rows that have the same
        key.
        """
        if not keys or not set(keys) <= {column.name for column in load.columns}:
            return  # Phoenix itself rejects rows without a key
        names = ", ".join(map(queries.identifier, keys))
        staging, target = self._quoted(load.staging), self._quoted(load.target)
        distinct = await self._single_value(f"SELECT COUNT(*) FROM (SELECT {names} FROM {staging} GROUP BY {names})")
        same = " AND ".join(f"s.{queries.identifier(key)} = t.{queries.identifier(key)}" for key in keys)
        shared = await self._single_value(
            f"SELECT /*+ USE_SORT_MERGE_JOIN */ COUNT(*) FROM {staging} AS s INNER JOIN {target} AS t ON {same}"
        )
        if distinct != rows or shared:
            raise errors.StatementRejected(f"Rows cannot be added, because of duplicate keys ({', '.join(keys)}).")

    @asynccontextmanager
    async def _claim_name(self, table: TableName) -> AsyncGenerator[None]:
        """Claim the name of a new table by creating sequences, so that no other server imports into it concurrently.

        Both the current and the next time slot are claimed, so that claims made around a slot change conflict. Raises
        StatementRejected if another import holds a claim.
        """
        slot = int(time.time()) // _CLAIM_S
        async with AsyncExitStack() as claims:
            claims.push_async_callback(self._drop_orphaned_claims, table, slot - 1)
            for name in (_claim(table, slot + ahead) for ahead in (0, 1)):
                sequence = self._quoted(TableName(table.database, name))
                try:
                    await loader.execute(self._session, f"CREATE SEQUENCE {sequence}")
                except errors.StatementDenied:
                    break  # Users who may not create sequences can still create tables.
                except errors.StatementRejected as error:
                    if re.search(r"ERROR 1200\b", error.message):
                        message = (
                            f'Another import is creating table "{table.name}", or failed while creating it. If it'
                            " failed, retry in ten minutes."
                        )
                        raise errors.StatementRejected(message) from None
                    raise
                # Release only claims that are certainly ours. A claim with an unknown outcome expires with its slot.
                claims.push_async_callback(self._release, sequence)
            yield

    async def _drop_orphaned_claims(self, table: TableName, slot: int) -> None:
        """Drop orphaned claims for slots before `slot`. Requires the privilege to list sequences."""
        least = _claim(table, 0)
        where = _in_schema(self._schema_of(table), "SEQUENCE_SCHEMA")
        # Until 2065 slots have seven digits, so their text order is their numeric order.
        sql = (
            f'SELECT SEQUENCE_NAME FROM SYSTEM."SEQUENCE" WHERE TENANT_ID IS NULL AND {where}'
            f" AND SEQUENCE_NAME >= {queries.escaped_literal(least)}"
            f" AND SEQUENCE_NAME < {queries.escaped_literal(_claim(table, slot))}"
        )
        with suppress(errors.EngineError):
            for (name,) in await queries.read_rows(self._session, sql, max_rows=_MAX_RELEASED_CLAIMS):
                if name.removeprefix(least[:-1]).isdecimal():  # other names belong to tables with the same prefix
                    await self._release(self._quoted(TableName(table.database, name)))

    async def _release(self, sequence: str) -> None:
        with suppress(errors.EngineError):
            await loader.execute(self._session, f"DROP SEQUENCE IF EXISTS {sequence}")

    async def _create(self, table: TableName, columns: Sequence[LoadColumn], *, key: str, added: str | None) -> None:
        parts = list[str]()
        for column in columns:
            kind = "INTEGER" if column.declared == "INT" else column.declared  # Phoenix has no type INT
            parts.append(
                f"{queries.identifier(column.name)} {kind}{' NOT NULL PRIMARY KEY' if column.name == key else ''}"
            )
        if added is not None:
            parts.append(f"{queries.identifier(added)} BIGINT NOT NULL PRIMARY KEY")
        await loader.execute(self._session, f"CREATE TABLE {self._quoted(table)} ({', '.join(parts)})")

    async def _fill(
        self,
        table: TableName,
        columns: Sequence[LoadColumn],
        batches: AsyncIterator[pa.RecordBatch],
        *,
        numbers: str | None,
    ) -> int:
        """Insert all rows. `numbers` is the column that receives the row numbers."""
        column_names = [column.name for column in columns]
        names = column_names if numbers is None else [*column_names, numbers]
        listed, marks = ", ".join(map(queries.identifier, names)), ", ".join("?" * len(names))
        statement = await self._connection.prepare(f"UPSERT INTO {self._quoted(table)} ({listed}) VALUES ({marks})")
        total = 0
        try:
            async with loader.read_ahead(batches, partial(parameter_rows, column_names), self._executor) as written:
                async for rows in loader.group_rows(written, _BATCH_BYTES):
                    await self._connection.execute_batch(
                        statement, with_row_numbers(rows, total + 1) if numbers else rows
                    )
                    total += len(rows)
        except asyncio.CancelledError:
            # The server continues with a batch after the client disconnects, until the Avatica connection is closed.
            await asyncio.shield(self._connection.stop())
            raise
        await self._connection.close_statement(statement)
        return total

    async def _single_value(self, sql: str) -> object:
        (row,) = await queries.read_rows(self._session, sql)
        return row[0]

    def _schema_of(self, table: TableName) -> str:
        return self._schema if table.database is None else table.database

    def _quoted(self, table: TableName) -> str:
        return queries.qualified(*filter(None, (self._schema_of(table), table.name)))


def _claim(table: TableName, slot: int) -> str:
    """Return the name of the sequence that claims a table name for a time slot."""
    return f"_qs_import_{table.name}_{slot}"


def _check_names(load: TableLoad) -> None:
    """Raise StatementRejected for names that cannot be quoted, or that HBase would reject later."""
    if not re.fullmatch(r"[\w-]+", load.target.name):
        raise errors.StatementRejected(
            f'"{load.target.name}" is not a valid table name: Phoenix allows only letters, digits, _ and -.'
        )
    for column in load.columns:
        if '"' in column.name:
            raise errors.StatementRejected(
                f"'{column.name}' is not a valid column name: Phoenix cannot escape its quotation mark."
            )


def _free_name(wanted: str, columns: Sequence[LoadColumn]) -> str:
    taken = {column.name for column in columns}
    number, name = 1, wanted
    while name in taken:
        number, name = number + 1, f"{wanted}_{number + 1}"
    return name
