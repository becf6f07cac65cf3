"""What an export into a table does before it writes, and at its end (Contract exports 8.7, 8.9)."""

import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from tests.unit.statements.driving import ANA, CONNECTOR

from queryserver.engines.protocol import LoadLedger, TableLoad, TableName
from queryserver.errors.base import QueryServerError
from queryserver.errors.statements import OutcomeUnknown
from queryserver.exports.tables import IfExists, TableDestination, TableExports, TableSink
from queryserver.formats.arrow import Column, ResultType
from queryserver.imports.repository import StatementLedger, UnfinishedTable
from queryserver.statements.job_session import JobReport
from queryserver.statements.model import Assignment, Claim

TARGET = TableName("shop", "sales")


@dataclass
class Unfinished:
    """The recorded tables of one statement, in memory."""

    tables: list[TableName] = field(default_factory=list[TableName])

    async def of_statement(self, statement_id: UUID) -> Sequence[TableName]:
        return list(self.tables)

    async def add(self, unfinished: UnfinishedTable) -> None:
        self.tables.append(unfinished.table)

    async def remove(self, statement_id: UUID, table: TableName) -> None:
        self.tables.remove(table)


@dataclass
class Loader:
    """A database in memory. `load` publishes the rows after the last batch."""

    tables: dict[TableName, list[Any]] = field(default_factory=dict[TableName, list[Any]])
    loads: list[TableLoad] = field(default_factory=list[TableLoad])

    async def exists(self, table: TableName) -> bool:
        return table in self.tables

    async def drop(self, table: TableName) -> None:
        self.tables.pop(table, None)

    async def load(self, load: TableLoad, batches: AsyncIterator[pa.RecordBatch], ledger: LoadLedger) -> int:
        rows = [row async for batch in batches for row in batch.to_pylist()]
        self.loads.append(load)
        self.tables[load.target] = [*(self.tables.get(load.target, []) if load.append else []), *rows]
        return len(rows)


@dataclass(frozen=True, eq=False)
class Sink(TableSink):
    """A sink whose loader is in memory."""

    memory: Loader = field(default_factory=Loader)

    @asynccontextmanager
    async def loader(self) -> AsyncIterator[Any]:
        yield self.memory


def sink(
    unfinished: Unfinished, memory: Loader, *, if_exists: IfExists = IfExists.ERROR, publishes: bool = True
) -> Sink:
    async def begin_publishing(claim: Claim) -> bool:
        assert claim.fence == 7
        return publishes

    nothing: Any = None
    exports = TableExports(
        connectors=nothing, users=nothing, credentials=nothing, lookups=nothing, reader=nothing,
        unfinished=cast("Any", unfinished), threads=ThreadPoolExecutor(1), try_acquire=nothing,
        begin_publishing=begin_publishing,
    )  # fmt: skip
    destination = TableDestination("fake", TARGET.database, TARGET.name, if_exists)
    claim = Claim(uuid4(), "me", 7)
    ledger = StatementLedger(cast("Any", unfinished), claim.statement_id, ANA.id, "fake")
    assignment = Assignment(
        claim, ANA.id, "fake", "fake", "", None, {}, 1, False, False, 10, time.monotonic() + 60,
        destination=destination.stored(),
    )  # fmt: skip
    connector = replace(CONNECTOR, dialect="sqlite")
    return Sink(exports, assignment, ANA, destination, connector, ledger, memory=memory)


async def rows(*numbers: int) -> AsyncIterator[pa.RecordBatch]:
    for number in numbers:
        yield pa.RecordBatch.from_arrays([pa.array([number])], names=["n"])


COLUMNS = (Column("n", ResultType.BIGINT, "bigint"),)


@pytest.mark.exports(21)
async def test_tables_of_an_earlier_attempt_are_dropped_first() -> None:
    """An engine that cannot rename tables fills the target under its own name, so the target itself may be left."""
    staging = TableName("shop", "_qs_import_1_6")
    unfinished = Unfinished([staging, TARGET])
    memory = Loader({staging: [1], TARGET: [1], TableName("shop", "other"): [9]})
    await sink(unfinished, memory).check(cast("Any", memory))
    assert (list(memory.tables), unfinished.tables) == ([TableName("shop", "other")], [])


@pytest.mark.exports(19)
async def test_existing_table_is_refused_unless_rows_are_appended() -> None:
    memory = Loader({TARGET: [{"n": 1}]})
    with pytest.raises(QueryServerError) as caught:
        await sink(Unfinished(), memory).check(cast("Any", memory))
    assert caught.value.code == "table_exists"
    appending = sink(Unfinished(), memory, if_exists=IfExists.APPEND)
    await appending.check(cast("Any", memory))
    summary = await appending.write(COLUMNS, rows(2, 3), JobReport())
    assert (summary.rows, memory.tables[TARGET]) == (2, [{"n": 1}, {"n": 2}, {"n": 3}])


@pytest.mark.exports(23)
async def test_nothing_is_published_without_the_claim() -> None:
    memory, report = Loader(), JobReport()
    with pytest.raises(OutcomeUnknown):
        await sink(Unfinished(), memory, publishes=False).write(COLUMNS, rows(1, 2), report)
    assert (memory.tables, report.summary) == ({}, None)


async def test_each_attempt_has_its_own_staging_table_and_reports_a_summary() -> None:
    memory, report = Loader(), JobReport()
    await sink(Unfinished(), memory).write(COLUMNS, rows(1, 2), report)
    [load] = memory.loads
    assert load.staging.name.endswith("_7")
    assert report.summary is not None
    assert report.summary.to_pylist() == [
        {"rows": 2, "bytes": None, "files": None, "path": None, "table": "shop.sales",
         "schema": '[{"name": "n", "type": "INTEGER"}]'},
    ]  # fmt: skip
