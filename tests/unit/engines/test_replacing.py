"""A table that makes way where the engine renames one table at a time (engines/loading.py)."""

from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from tests.contract.loading_basis import MemoryLedger, stream

from queryserver.engines.loading import StatementLoader, Written
from queryserver.engines.protocol import LoadColumn, TableLoad, TableName
from queryserver.errors.statements import EngineError, EngineUnavailable, OutcomeUnknown, StatementRejected
from queryserver.imports.model import BaseType, ColumnType

TARGET, STAGING, OLD = (TableName(None, name) for name in ("t", "_qs_import_1", "qs_import_1_old"))
LOAD = TableLoad(TARGET, STAGING, (LoadColumn("n", ColumnType(BaseType.INT64), "BIGINT"),), replace=True)


class MemoryLoader(StatementLoader):
    """Tables by name, each with a word for what is in it. `failures`: what renamings raise, by their number from 1.

    With a second `True` the renaming takes place before it fails.
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
        """All may be."""

    def quoted(self, name: str) -> str:
        return name

    def place(self, table: TableName) -> str:
        return table.name

    def writer(self, columns: Sequence[LoadColumn], types: Sequence[str]) -> Callable[[pa.RecordBatch], Written]:
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


async def test_the_old_table_is_dropped_once_the_new_one_has_its_name():
    loader = MemoryLoader()
    tables, ledger = await loaded(loader)
    assert tables == {"t": "new"}
    # Until then the ledger, from which tables are dropped after a crash, does not know the old table.
    assert ledger.told.index(("made", OLD)) > ledger.told.index(("made", STAGING))
    assert not ledger.open


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("error", [StatementRejected("no"), EngineUnavailable("gone")])
async def test_a_renaming_that_fails_leaves_the_old_table(number: int, error: EngineError):
    assert await refused(MemoryLoader((number, error, False)), type(error)) == {"t": "old"}


async def test_a_renaming_whose_answer_is_lost():
    lost = OutcomeUnknown("lost")
    assert await refused(MemoryLoader((1, lost, True)), OutcomeUnknown) == {"t": "old"}
    tables, ledger = await loaded(MemoryLoader((2, lost, True)))
    assert (tables, ledger.open) == ({"t": "new"}, set())


async def test_an_old_table_that_cannot_get_its_name_back_stays_and_is_named():
    loader = MemoryLoader((2, StatementRejected("no"), False), (3, EngineUnavailable("gone"), False))
    with pytest.raises(OutcomeUnknown, match='may now be called "qs_import_1_old"'):
        await loader.load(LOAD, stream(), ledger := MemoryLedger())
    assert (loader.tables, ledger.open) == ({OLD: "old"}, set())


async def test_a_table_that_another_load_makes_between_the_renamings_stays():
    loader = MemoryLoader((2, StatementRejected("exists"), False))
    rename = loader.rename

    async def overtaken(table: TableName, name: TableName) -> bool:
        is_renamed = await rename(table, name)
        loader.tables[TARGET] = "of another"
        return is_renamed

    loader.rename = overtaken  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown, match='the old one is now "qs_import_1_old"'):
        await loader.load(LOAD, stream(), ledger := MemoryLedger())
    assert (loader.tables, ledger.open) == ({TARGET: "of another", OLD: "old"}, set())


async def test_without_renaming_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(MemoryLoader, "renames", False)
    assert await refused(MemoryLoader(), StatementRejected) == {"t": "old"}


async def test_a_view_is_not_replaced():
    loader: Any = MemoryLoader()
    loader.tables[TARGET] = "view"
    assert await refused(loader, StatementRejected) == {"t": "view"}
