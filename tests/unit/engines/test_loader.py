"""Loading through SQL statements: values as literals, staging tables, and table replacement."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from tests.contract.loading_basis import MemoryLedger, stream

from queryserver.engines.loader import (
    BatchesFailed,
    StatementLoader,
    WrittenRows,
    duration_text,
    plain_decimals,
    read_ahead,
    staging_table,
    without_zero_fraction,
)
from queryserver.engines.protocol import LoadColumn, TableLoad, TableName
from queryserver.errors.statements import EngineError, EngineUnavailable, OutcomeUnknown, StatementRejected
from queryserver.formats.arrow import BaseType, ColumnType

STAGING = TableName(None, "_qs_import_1")


async def nothing() -> None:
    await asyncio.sleep(0)


async def test_staging_table_that_cannot_be_dropped_stays_in_ledger() -> None:
    async def drop() -> None:
        raise EngineUnavailable("out of reach")

    ledger = MemoryLedger()
    with pytest.raises(KeyError):
        async with staging_table(STAGING, ledger, drop):
            raise KeyError
    assert ledger.open == {STAGING}


async def test_cancellation_during_ledger_call_leaves_ledger_empty() -> None:
    """The interrupted call may already have recorded the table, so the entry must be removed."""
    telling, go_on, drops = asyncio.Event(), asyncio.Event(), 0

    async def told(_table: TableName) -> None:
        telling.set()
        await go_on.wait()

    async def drop() -> None:
        nonlocal drops
        drops += 1

    async def load() -> None:
        async with staging_table(STAGING, ledger, drop):
            await asyncio.sleep(0)
            pytest.fail("the load goes on")

    ledger = MemoryLedger(on_add=told)
    loading = asyncio.create_task(load())
    await telling.wait()
    loading.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert ledger.calls == [("add", STAGING), ("remove", STAGING)]
    assert drops == 1


@pytest.mark.parametrize(("consumes_table", "dropped"), [(True, 0), (False, 1)])
async def test_published_staging_table_is_dropped_only_if_it_remains(consumes_table: bool, dropped: int) -> None:
    drops = 0

    async def drop() -> None:
        nonlocal drops
        drops += 1

    ledger = MemoryLedger()
    async with staging_table(STAGING, ledger, drop) as staging:
        await staging.publish(nothing(), consumes_table=consumes_table)
    assert drops == dropped
    assert ledger.calls == [("add", STAGING), ("remove", STAGING)]


async def test_cancellation_during_last_step_takes_effect_after_the_load() -> None:
    """The rows are already stored at this point, so the load must not be reported as canceled."""
    stepping, go_on, loaded = asyncio.Event(), asyncio.Event(), False

    async def last_step() -> None:
        stepping.set()
        await go_on.wait()

    async def load() -> None:
        async with staging_table(STAGING, ledger, nothing) as staging:
            await staging.publish(last_step())

    async def caller() -> None:
        nonlocal loaded
        await load()
        loaded = True
        await asyncio.sleep(60)

    ledger = MemoryLedger()
    work = asyncio.create_task(caller())
    await stepping.wait()
    work.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert loaded
    assert not ledger.open


async def test_cancellation_during_failing_last_step_is_reported_as_canceled() -> None:
    stepping = asyncio.Event()

    async def last_step() -> None:
        stepping.set()
        await asyncio.sleep(0.05)
        raise EngineUnavailable("out of reach")

    async def load() -> None:
        async with staging_table(STAGING, ledger, nothing) as staging:
            await staging.publish(last_step())

    ledger = MemoryLedger()
    work = asyncio.create_task(load())
    await stepping.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert not ledger.open


async def test_only_few_batches_are_read_ahead() -> None:
    taken = 0

    async def batches() -> AsyncIterator[pa.RecordBatch]:
        nonlocal taken
        for taken in range(1, 11):
            yield pa.record_batch({"n": [taken]})

    numbers = list[int]()
    with ThreadPoolExecutor(1) as executor:
        async with read_ahead(batches(), lambda batch: batch["n"][0].as_py(), executor) as converted:
            async for number in converted:
                await asyncio.sleep(0.01)
                numbers.append(number)
                assert taken <= number + 2
    assert numbers == list(range(1, 11))


async def test_batch_source_error_is_distinguished_from_engine_errors() -> None:
    async def batches() -> AsyncIterator[pa.RecordBatch]:
        yield pa.record_batch({"n": [1]})
        raise OSError("the store is gone")

    with ThreadPoolExecutor(1) as executor, pytest.raises(BatchesFailed) as raised:
        async with read_ahead(batches(), lambda batch: batch.num_rows, executor) as converted:
            assert [rows async for rows in converted] == []
    assert str(raised.value.reason) == "the store is gone"


def test_durations_become_text() -> None:
    durations = [dt.timedelta(0), None, dt.timedelta(hours=30), dt.timedelta(microseconds=-1), dt.timedelta(days=100)]
    texts = duration_text(pa.array(durations, pa.duration("us")))
    assert texts.to_pylist() == ["00:00:00", None, "30:00:00", "-00:00:00.000001", "2400:00:00"]


def test_zero_fractions_are_removed_from_time_text() -> None:
    times = pa.array(["10:20:30.000000", "10:20:30.000100", None, "10:20:00.000000"])
    assert without_zero_fraction(times).to_pylist() == ["10:20:30", "10:20:30.000100", None, "10:20:00"]


def test_decimal_text_has_no_exponent() -> None:
    decimals = pa.array([Decimal("0.0000000001"), None, Decimal("-1.5"), Decimal(0)], pa.decimal128(38, 10))
    assert plain_decimals(decimals).to_pylist() == ["0.0000000001", None, "-1.5000000000", "0.0000000000"]


TARGET, STAGING, OLD = (TableName(None, name) for name in ("t", "_qs_import_1", "qs_import_1_old"))
LOAD = TableLoad(TARGET, STAGING, (LoadColumn("n", ColumnType(BaseType.INT64), "BIGINT"),), replace=True)


class MemoryLoader(StatementLoader):
    """A loader that stores a single word as the content of each table.

    `failures` describes the renames that fail. Each entry gives the number of the rename, starting at 1; the error; and
    whether the table is renamed before the error is raised.
    """

    max_statement_bytes = 1000
    renames: ClassVar[bool] = True

    def __init__(self, *failures: tuple[int, EngineError, bool]) -> None:
        super().__init__(None, ThreadPoolExecutor(1), read_only=False)  # type: ignore[arg-type]
        self.tables = {TARGET: "old"}
        self.failures = {number: (error, is_done) for number, error, is_done in failures}
        self.renamed = 0

    async def exists(self, table: TableName) -> bool:
        return table in self.tables

    async def drop(self, table: TableName) -> None:
        self.tables.pop(table, None)

    async def rename(self, table: TableName, name: TableName) -> bool:
        self.renamed += 1
        error, is_done = self.failures.get(self.renamed, (None, True))
        if self.renames and is_done:
            assert name not in self.tables
            self.tables[name] = self.tables.pop(table)
        if error is not None:
            raise error
        return self.renames

    async def is_view(self, table: TableName) -> bool:
        return self.tables[table] == "view"

    async def create(self, table: TableName, columns: Sequence[LoadColumn]) -> Sequence[str]:
        self.tables[table] = "new"
        return [column.declared for column in columns]

    async def _fill(self, load: TableLoad, types: Sequence[str], batches: AsyncIterator[pa.RecordBatch]) -> int:
        return 1

    def check_names(self, load: TableLoad) -> None:
        """Accept every name."""

    def quoted(self, name: str) -> str:
        return name

    def qualified_name(self, table: TableName) -> str:
        return table.name

    def writer(self, columns: Sequence[LoadColumn], types: Sequence[str]) -> Callable[[pa.RecordBatch], WrittenRows]:
        raise NotImplementedError

    def insert(self, load: TableLoad, types: Sequence[str], rows: Sequence[bytes]) -> str:
        raise NotImplementedError


async def loaded(loader: MemoryLoader) -> tuple[dict[str, str], MemoryLedger]:
    ledger = MemoryLedger()
    assert await loader.load(LOAD, stream(), ledger) == 1
    return {table.name: content for table, content in loader.tables.items()}, ledger


async def refused(loader: MemoryLoader, error: type[EngineError]) -> dict[str, str]:
    ledger = MemoryLedger()
    with pytest.raises(error):
        await loader.load(LOAD, stream(), ledger)
    assert not ledger.open
    return {table.name: content for table, content in loader.tables.items()}


async def test_old_table_is_dropped_after_new_table_takes_its_name():
    loader = MemoryLoader()
    tables, ledger = await loaded(loader)
    assert tables == {"t": "new"}
    # After a crash, the tables in the ledger are dropped, so the old table is recorded only after its replacement.
    assert ledger.calls.index(("add", OLD)) > ledger.calls.index(("add", STAGING))
    assert not ledger.open


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("error", [StatementRejected("no"), EngineUnavailable("gone")])
async def test_failed_rename_keeps_old_table(number: int, error: EngineError):
    assert await refused(MemoryLoader((number, error, False)), type(error)) == {"t": "old"}


async def test_lost_rename_reply_leaves_one_complete_table():
    lost = OutcomeUnknown("lost")
    assert await refused(MemoryLoader((1, lost, True)), OutcomeUnknown) == {"t": "old"}
    tables, ledger = await loaded(MemoryLoader((2, lost, True)))
    assert (tables, ledger.open) == ({"t": "new"}, set())


async def test_old_table_that_cannot_be_renamed_back_is_kept_and_reported():
    loader = MemoryLoader((2, StatementRejected("no"), False), (3, EngineUnavailable("gone"), False))
    with pytest.raises(OutcomeUnknown, match='may now be named "qs_import_1_old"'):
        await loader.load(LOAD, stream(), ledger := MemoryLedger())
    assert (loader.tables, ledger.open) == ({OLD: "old"}, set())


async def test_table_created_by_another_load_between_renames_is_kept():
    loader = MemoryLoader((2, StatementRejected("exists"), False))
    rename = loader.rename

    async def overtaken(table: TableName, name: TableName) -> bool:
        is_renamed = await rename(table, name)
        loader.tables[TARGET] = "of another"
        return is_renamed

    loader.rename = overtaken  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown, match='the old one is now named "qs_import_1_old"'):
        await loader.load(LOAD, stream(), ledger := MemoryLedger())
    assert (loader.tables, ledger.open) == ({TARGET: "of another", OLD: "old"}, set())


async def test_engine_without_rename_replaces_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(MemoryLoader, "renames", False)
    assert await refused(MemoryLoader(), StatementRejected) == {"t": "old"}


async def test_view_is_not_replaced():
    loader: Any = MemoryLoader()
    loader.tables[TARGET] = "view"
    assert await refused(loader, StatementRejected) == {"t": "view"}
