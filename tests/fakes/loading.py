"""A `FakeEngine` with in-memory tables, for tests of imports.

It accepts further statements. A table name is `"a"` or `"main"."a"`, in which each part is a JSON string:

    table "t"                 returns the rows of a table
    count "t"                 returns the number of rows in a table
    make table "t"            creates an empty table with a column `a`
    make table n "t"          creates an empty table with a column `n`
    make view "t"             creates a view
    fill "t"                  adds a row in which every column is 1
    drop "t"                  drops a table
    make database "d"         creates a database
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pyarrow as pa
from tests.fakes.engine import FakeEngine, FakeSession

from queryserver.engines.protocol import (
    NO_CONTEXT,
    EngineCapabilities,
    EngineSession,
    LoadLedger,
    OperationHandle,
    OperationState,
    OperationStatus,
    SessionOptions,
    StatementContext,
    TableLoad,
    TableLoader,
    TableName,
)
from queryserver.errors.statements import EngineUnavailable, SessionLost, StatementDenied, StatementRejected
from queryserver.formats.arrow import Column, ResultType
from queryserver.formats.conversion import arrow_type
from queryserver.identity.model import User

_STATEMENT = re.compile(r"(table|count|make table|make table n|make view|make database|fill|drop) (\".*\")", re.DOTALL)
_PART = re.compile(r'"(?:[^"\\]|\\.)*"')
_MAX_NAME_LENGTH = 128


def quoted(name: str) -> str:
    """Quote a table name for the statements of the fake engine."""
    return json.dumps(name)


@dataclass
class StoredTable:
    """A table, or a view if `is_view` is set."""

    schema: pa.Schema
    batches: list[pa.RecordBatch] = field(default_factory=list)
    is_view: bool = False

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)


class FakeLoadingEngine(FakeEngine):
    """A FakeEngine that stores loaded tables in `tables` by name, and counts loads in `loads`.

    If `read_only` is set, the engine refuses to create tables. If `refuse_drops` is set, all drops fail because the
    engine is unavailable.
    """

    def __init__(
        self, *, capabilities: EngineCapabilities | None = None, dialect: str = "fake", read_only: bool = False
    ) -> None:
        super().__init__(capabilities=capabilities, dialect=dialect)
        self.tables: dict[TableName, StoredTable] = {}
        self.read_only = read_only
        self.refuse_drops = False
        self.loads = 0
        self._held_after: int | None = None
        self._released = asyncio.Event()

    def hold(self, *, after: int = 0) -> None:
        """Make each load wait for `release` after it has received `after` batches."""
        self._held_after = after
        self._released.clear()

    def release(self) -> None:
        """Let current and future loads continue."""
        self._held_after = None
        self._released.set()

    async def take_turn(self, taken: int) -> None:
        """Wait until a load that has received `taken` batches may continue."""
        await asyncio.sleep(0)  # other tasks may run between two batches, as with a real engine
        if self._held_after is not None and taken >= self._held_after:
            await self._released.wait()

    @asynccontextmanager
    async def session(self, user: User, options: SessionOptions) -> AsyncGenerator[EngineSession]:
        async with super().session(user, options) as session:
            assert isinstance(session, FakeSession)
            yield TablesSession(self, session)

    @asynccontextmanager
    async def loader(self, user: User, options: SessionOptions) -> AsyncGenerator[TableLoader]:
        async with super().session(user, options) as session:
            yield FakeLoader(self, session)

    def find(self, table: TableName) -> StoredTable | None:
        return self.tables.get(self.place(table))

    def place(self, table: TableName) -> TableName:
        """Return the table name qualified by its database. Raises StatementRejected if the database is unknown."""
        database = table.database or "main"
        if database not in self.databases:
            raise StatementRejected(f"unknown database {database}")
        return TableName(database, table.name)


class FakeLoader:
    """Implements `TableLoader`. Rows are first loaded into a staging table, which all users can see."""

    def __init__(self, engine: FakeLoadingEngine, session: EngineSession) -> None:
        self._engine = engine
        self._session = session

    async def exists(self, table: TableName) -> bool:
        await self._check()
        return self._engine.find(table) is not None

    async def load(self, load: TableLoad, batches: AsyncIterator[pa.RecordBatch], ledger: LoadLedger) -> int:
        await self._check()
        self._refuse(load)
        target, staging = self._engine.place(load.target), self._engine.place(load.staging)
        await ledger.add(load.staging)
        table = self._engine.tables[staging] = StoredTable(_schema(load))
        self._engine.loads += 1
        try:
            async for batch in batches:
                await self._engine.take_turn(len(table.batches))
                _check_nulls(load, batch)
                table.batches.append(batch)
            self._publish(load, target, table)
        finally:
            if not self._engine.refuse_drops:
                del self._engine.tables[staging]
                await ledger.remove(load.staging)
        return table.rows

    async def drop(self, table: TableName) -> None:
        await self._check()
        if self._engine.read_only:
            raise StatementDenied("The fake engine is for reading only.")
        if self._engine.refuse_drops:
            raise EngineUnavailable("The fake engine drops nothing just now.")
        self._engine.tables.pop(self._engine.place(table), None)

    async def _check(self) -> None:
        await self._engine.ping()
        if not await self._session.is_alive():
            raise SessionLost("Invalid session Id: the session no longer exists.")

    def _refuse(self, load: TableLoad) -> None:
        if self._engine.read_only:
            raise StatementDenied("The fake engine is for reading only.")
        for name in (load.target.name, *(column.name for column in load.columns)):
            if len(name) > _MAX_NAME_LENGTH:
                raise StatementRejected(f"The name {name[:40]} is too long.")
        self._refuse_target(load)

    def _refuse_target(self, load: TableLoad) -> StoredTable | None:
        found = self._engine.find(load.target)
        if found is not None and load.replace and found.is_view:
            raise StatementRejected(f"{load.target.name} is a view")
        if found is not None and not load.append and not load.replace:
            raise StatementRejected(f"table {load.target.name} already exists")
        if load.append and (found is None or found.is_view):
            raise StatementRejected(f"there is no table {load.target.name}")
        return found

    def _publish(self, load: TableLoad, target: TableName, staging_table: StoredTable) -> None:
        """Check and change the target table. No other task can run meanwhile, because nothing is awaited."""
        found = self._refuse_target(load)
        if found is None or load.replace:
            self._engine.tables[target] = StoredTable(staging_table.schema, list(staging_table.batches))
            return
        if unknown := set(staging_table.schema.names) - set(found.schema.names):
            raise StatementRejected(f"there is no column {min(unknown)}")
        added = [_fitted(batch, found.schema) for batch in staging_table.batches]
        found.batches += added


class TablesSession:
    """A session that executes the statements about tables. All other statements are passed to the wrapped session."""

    def __init__(self, engine: FakeLoadingEngine, session: FakeSession) -> None:
        self._engine = engine
        self._session = session
        self._handle = OperationHandle("")
        self._answer: StoredTable | None = None
        self._count = 0

    async def submit(self, statement: str, context: StatementContext = NO_CONTEXT) -> OperationHandle:
        found = _STATEMENT.fullmatch(statement)
        if found is None:
            self._answer = None
            return await self._session.submit(statement, context)
        self._answer = self._run(found[1], [json.loads(part) for part in _PART.findall(found[2])])
        self._count += 1
        self._handle = OperationHandle(f"fake-table-{self._count}")
        return self._handle

    async def poll(self, handle: OperationHandle, *, wait_s: float = 0) -> OperationStatus:
        if handle != self._handle:
            return await self._session.poll(handle, wait_s=wait_s)
        return OperationStatus(OperationState.FINISHED, has_result_set=self._answer is not None)

    async def columns(self, handle: OperationHandle) -> tuple[Column, ...]:
        if handle != self._handle or self._answer is None:
            return await self._session.columns(handle)
        return tuple(Column(name, ResultType.STRING, "") for name in self._answer.schema.names)

    async def batches(self, handle: OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        if handle != self._handle or self._answer is None:
            async for batch in self._session.batches(handle):
                yield batch
            return
        for batch in self._answer.batches:
            yield batch

    async def logs(self, handle: OperationHandle, *, start: int) -> Sequence[str]:
        return () if handle == self._handle else await self._session.logs(handle, start=start)

    async def cancel(self, handle: OperationHandle) -> None:
        await self._session.cancel(handle)

    async def close(self, handle: OperationHandle) -> None:
        await self._session.close(handle)

    async def is_alive(self) -> bool:
        return await self._session.is_alive()

    def _run(self, verb: str, names: Sequence[str]) -> StoredTable | None:
        if verb == "make database":
            self._engine.databases |= {names[0]}
            return None
        name = self._engine.place(TableName(names[0] if len(names) > 1 else None, names[-1]))
        if verb.startswith("make"):
            columns = pa.schema([("n" if verb == "make table n" else "a", pa.int64())])
            self._engine.tables[name] = StoredTable(columns, is_view=verb == "make view")
            return None
        table = self._engine.tables.get(name)
        if table is None:
            raise StatementRejected(f"there is no table {name.name}")
        return self._run_on(verb, name, table)

    def _run_on(self, verb: str, name: TableName, table: StoredTable) -> StoredTable | None:
        if verb == "table":
            return table
        if verb == "count":
            counted = pa.record_batch({"count": pa.array([table.rows], pa.int64())})
            return StoredTable(counted.schema, [counted])
        if verb == "fill":
            table.batches.append(pa.RecordBatch.from_pylist([dict.fromkeys(table.schema.names, 1)], table.schema))
        else:
            del self._engine.tables[name]
        return None


def _schema(load: TableLoad) -> pa.Schema:
    return pa.schema([pa.field(c.name, arrow_type(c.type), nullable=c.nullable) for c in load.columns])


def _check_nulls(load: TableLoad, batch: pa.RecordBatch) -> None:
    for column, values in zip(load.columns, batch.columns, strict=True):
        if not column.nullable and values.null_count:
            raise StatementRejected(f"column {column.name} must not be null")


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Match the columns of a batch to an existing table's schema by name: reorder and cast them, and fill missing
    columns with NULL.
    """
    given, rows = batch.schema.names, batch.num_rows
    arrays = [
        batch.column(place.name).cast(place.type) if place.name in given else pa.nulls(rows, place.type)
        for place in schema
    ]
    for place, values in zip(schema, arrays, strict=True):
        if not place.nullable and values.null_count:
            raise StatementRejected(f"column {place.name} must not be null")
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
