"""The contract of every table loader (engines/protocol.py, Contract importer 13.4, 13.5), as one test suite.

Each adapter has a test class that inherits `LoadingContract`, declares its `loading_facts`, and provides the fixture
`engine`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import count

import psutil
import pyarrow as pa
import pytest
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import run
from tests.contract.loading_basis import (
    CHUNK_TEXT,
    INT64,
    STRING,
    LoadingBasis,
    MemoryLedger,
    batch_of,
    comparable,
    failing,
    numbered,
    staging_of,
    stream,
)
from tests.contract.loading_facts import DECIMAL, VALUES
from tests.contract.result_loading import ResultLoading

from queryserver.engines.protocol import Engine, TableLoad, TableLoader, TableName
from queryserver.errors.statements import EngineError, StatementRejected
from queryserver.formats.arrow import BaseType, ColumnType

MIB = 1024 * 1024
TYPES = {base: DECIMAL if base is BaseType.DECIMAL else ColumnType(base) for base in VALUES}


class RowsBroke(Exception):
    """An error that the tests' batches raise."""


class LoadingContract(ResultLoading, LoadingBasis):
    """The loader tests. Each adapter has a test class that inherits them."""

    @pytest.mark.capability("Tables from files")
    async def test_values_of_all_types_arrive_unchanged(self, engine: Engine, loader: TableLoader, target: TableName):
        """Loads one table with a column of each type, containing extreme values and NULL."""
        columns = [self.column("n", INT64)]
        columns += [self.column(base.value, kind) for base, kind in TYPES.items()]
        load = self.load_of(target, *columns)
        values = [list(self.loading_facts.values_of(base)) for base in TYPES]
        rows = [
            (place, *(column[place] if place < len(column) else None for column in values))
            for place in range(max(map(len, values)) + 1)
        ]
        assert await self.load(loader, load, batch_of(load, rows)) == len(rows)
        assert await self.rows(engine, load) == [comparable(row, load.columns) for row in rows]

    @pytest.mark.capability("Tables from files")
    async def test_columns_with_only_nulls_are_loaded(self, engine: Engine, loader: TableLoader, target: TableName):
        """Loads a single column for each kind of encoding. A row that contains only a NULL must not be read as an empty
        line or a string.
        """
        for kind in (STRING, ColumnType(BaseType.NULL), INT64):
            load = self.load_of(TableName(None, f"{target.name}_x"), self.column("only", kind))
            assert await self.load(loader, load, batch_of(load, [(None,), (None,)])) == 2
            assert await self.run(engine, self.loading_facts.select_sql, load.target) == [(None,), (None,)]
            await loader.drop(load.target)

    @pytest.mark.capability("A failed import leaves nothing")
    async def test_unrepresentable_values_are_refused(self, engine: Engine, loader: TableLoader, target: TableName):
        for base, value, words in self.loading_facts.refused:
            load = self.load_of(target, self.column("n", INT64), self.column("c", TYPES[base]))
            with pytest.raises(StatementRejected, match=words):
                await self.load(loader, load, batch_of(load, [(1, value)]))
            assert await self.missing(engine, load.target, load.staging)

    @pytest.mark.capability("Tables from files")
    async def test_large_texts_are_loaded(self, engine: Engine, loader: TableLoader, target: TableName):
        load = self.load_of(target)
        rows = [(place, letter * self.loading_facts.long_text) for place, letter in enumerate("a'\\")]
        assert await self.load(loader, load, *(batch_of(load, [row]) for row in rows)) == len(rows)
        assert await self.rows(engine, load) == rows

    @pytest.mark.capability("Tables from files")
    @pytest.mark.importer(53)
    @pytest.mark.importer(57)
    @pytest.mark.security("T23")
    async def test_unusual_names_are_accepted(self, engine: Engine, loader: TableLoader, target: TableName):
        """Covers unusual table names, and unusual column names in a single table."""
        names = self.loading_facts.names
        load = self.load_of(target, *(self.column(name, INT64) for name in names))
        await self.load(loader, load, batch_of(load, [tuple(range(len(names)))]))
        async with engine.session(USER, NO_OPTIONS) as session:
            answer = await run(session, self.loading_facts.select_sql.format(t=self.loading_facts.sql_name(target)))
        assert [column.name for column in answer.columns] == list(names)
        assert answer.rows == [tuple(range(len(names)))]

    @pytest.mark.capability("Tables from files")
    @pytest.mark.importer(53)
    async def test_unusual_table_names_are_accepted(self, engine: Engine, loader: TableLoader):
        facts = self.loading_facts
        for name in facts.names if facts.table_names is None else facts.table_names:
            load = self.load_of(TableName(None, name))
            try:
                await self.load(loader, load, numbered(load, 1, 2))
                assert await loader.exists(load.target)
                assert await self.rows(engine, load) == [(1, "x"), (2, "x")]
            finally:
                await loader.drop(load.target)
            assert not await loader.exists(load.target)

    @pytest.mark.capability("A failed import leaves nothing")
    async def test_names_unsupported_by_the_engine_are_refused(
        self, engine: Engine, loader: TableLoader, target: TableName
    ):
        """Names that are too long are refused rather than truncated, because two of them could become the same name."""
        longest = self.loading_facts.longest_name
        names = ["a" * length for length in (128, (longest or 0) + 1) if longest and length > longest]
        facts = self.loading_facts
        for name in (*names, *facts.refused_names, *facts.refused_tables):
            load = self.load_of(TableName(None, name))
            with pytest.raises(StatementRejected):
                await self.load(loader, load, numbered(load, 1, 2))
            assert await self.missing(engine, load.staging)
        for name in (*names, *self.loading_facts.refused_names, *self.loading_facts.refused_columns):
            load = self.load_of(target, self.column(name, INT64))
            with pytest.raises(StatementRejected):
                await self.load(loader, load, batch_of(load, [(1,)]))
            assert await self.missing(engine, load.target, load.staging)

    @pytest.mark.capability("Tables from files")
    async def test_long_names_are_kept_whole(self, engine: Engine, loader: TableLoader):
        stem = "a" * (min(self.loading_facts.longest_name or 128, 128) - 1)
        loads = [self.load_of(TableName(None, stem + end), self.column(stem + end, INT64)) for end in "xy"]
        try:
            for load in loads:
                await self.load(loader, load, batch_of(load, [(7,)]))
            for load in loads:
                assert await self.run(engine, self.loading_facts.select_sql, load.target) == [(7,)]
        finally:
            for load in loads:
                await loader.drop(load.target)

    @pytest.mark.capability("Tables from files")
    async def test_loading_zero_batches_creates_an_empty_table(
        self, engine: Engine, loader: TableLoader, target: TableName
    ):
        load = self.load_of(target)
        assert await self.load(loader, load) == 0
        assert await self.rows(engine, load) == []
        assert await loader.exists(target)
        assert await self.load(loader, self.load_of(target, append=True), batch_of(load, [])) == 0

    @pytest.mark.capability("A failed import leaves nothing")
    @pytest.mark.importer(55)
    async def test_existing_table_is_refused_and_unchanged(
        self, engine: Engine, loader: TableLoader, target: TableName
    ):
        load = self.load_of(target)
        await self.load(loader, load, numbered(load, 1, 2))
        again = self.load_of(target)
        with pytest.raises(StatementRejected, match=r"(?i)exist"):
            await self.load(loader, again, numbered(load, 10, 2))
        assert await self.rows(engine, load) == [(1, "x"), (2, "x")]
        assert await self.missing(engine, again.staging)

    @pytest.mark.capability("Tables from files")
    async def test_view_counts_as_an_existing_table(self, engine: Engine, loader: TableLoader, target: TableName):
        if self.loading_facts.view_sql is None:
            pytest.skip("the engine requires a table to create a view")
        make, drop = self.loading_facts.view_sql
        await self.run(engine, make, target)
        try:
            assert await loader.exists(target)
            load = self.load_of(target)
            with pytest.raises(StatementRejected):
                await self.load(loader, load, numbered(load, 1, 2))
            assert await self.missing(engine, load.staging)
        finally:
            await self.run(engine, drop, target)

    @pytest.mark.capability("Tables from files")
    async def test_table_of_another_session_is_visible(self, engine: Engine, loader: TableLoader, target: TableName):
        assert not await loader.exists(target)
        await self.run(engine, self.loading_facts.create_sql, target)
        assert await loader.exists(target)
        await self.run(engine, self.loading_facts.drop_sql, target)
        assert not await loader.exists(target)

    @pytest.mark.capability("Tables from files")
    @pytest.mark.importer(55)
    async def test_append_adds_rows(self, engine: Engine, loader: TableLoader, target: TableName):
        load = self.load_of(target)
        await self.load(loader, load, numbered(load, 1, 2))
        more = self.load_of(target, append=True)
        assert await self.load(loader, more, numbered(more, 3, 1), numbered(more, 4, 1)) == 2
        assert await self.rows(engine, load) == [(1, "x"), (2, "x"), (3, "x"), (4, "x")]
        assert await self.missing(engine, more.staging)

    @pytest.mark.capability("Tables from files")
    async def test_append_matches_columns_by_name(self, engine: Engine, loader: TableLoader, target: TableName):
        """Columns in another order are matched by name, and an omitted column becomes NULL."""
        load = self.load_of(target)
        await self.load(loader, load, numbered(load, 1, 1))
        swapped = self.load_of(target, self.column("s", STRING), self.column("n", INT64), append=True)
        await self.load(loader, swapped, batch_of(swapped, [("y", 2)]))
        fewer = self.load_of(target, self.column("n", INT64), append=True)
        await self.load(loader, fewer, batch_of(fewer, [(3,)]))
        assert await self.rows(engine, load) == [(1, "x"), (2, "y"), (3, None)]

    @pytest.mark.capability("Tables from files")
    async def test_table_is_replaced_as_a_whole(self, engine: Engine, loader: TableLoader, target: TableName):
        """The new table may have other columns. It replaces the old one only after all rows have arrived; nothing of
        the old table or of the staging table remains.
        """
        if not self.loading_facts.replaces:
            old, new = self.load_of(target), self.load_of(target, replace=True)
            await self.load(loader, old, numbered(old, 7, 1))
            with pytest.raises(StatementRejected):
                await self.load(loader, new, numbered(new, 1, 2))
            assert await self.rows(engine, old) == [(7, "x")]
            return
        old = self.load_of(target, self.column("a", INT64))
        await self.load(loader, old, batch_of(old, [(7,)]))
        broken, ledger = self.load_of(target, replace=True), MemoryLedger()
        with pytest.raises(RowsBroke):
            await loader.load(broken, failing(numbered(broken, 1, 100), error=RowsBroke()), ledger)
        assert not ledger.open
        assert await self.rows(engine, old) == [(7,)]
        new, ledger = self.load_of(target, replace=True), MemoryLedger()
        assert await loader.load(new, stream(numbered(new, 1, 2)), ledger) == 2
        assert not ledger.open
        assert await self.rows(engine, new) == [(1, "x"), (2, "x")]
        left = [TableName(None, f"{new.staging.name.lstrip(mark)}{end}") for mark in ("", "_") for end in ("", "_old")]
        assert await self.missing(engine, *left)

    @pytest.mark.capability("Tables from files")
    async def test_replacing_missing_table_creates_it(self, engine: Engine, loader: TableLoader, target: TableName):
        load = self.load_of(target, replace=True)
        if self.loading_facts.replaces:
            await self.load(loader, load, numbered(load, 1, 2))
            assert await self.rows(engine, load) == [(1, "x"), (2, "x")]

    @pytest.mark.capability("A failed import leaves nothing")
    async def test_view_is_never_replaced(self, engine: Engine, loader: TableLoader, target: TableName):
        if self.loading_facts.view_sql is None:
            pytest.skip("the engine requires a table to create a view")
        make, drop = self.loading_facts.view_sql
        await self.run(engine, make, target)
        try:
            before = await self.run(engine, self.loading_facts.select_sql, target)
            load = self.load_of(target, replace=True)
            with pytest.raises(StatementRejected):
                await self.load(loader, load, numbered(load, 1, 2))
            assert await self.run(engine, self.loading_facts.select_sql, target) == before
            assert await self.missing(engine, load.staging)
        finally:
            await self.run(engine, drop, target)

    @pytest.mark.capability("A failed import leaves nothing")
    async def test_append_to_a_missing_table_is_refused(self, engine: Engine, loader: TableLoader, target: TableName):
        load = self.load_of(target, append=True)
        with pytest.raises(StatementRejected):
            await self.load(loader, load, numbered(load, 1, 1))
        assert await self.missing(engine, target, load.staging)

    @pytest.mark.capability("A failed import leaves nothing")
    @pytest.mark.importer(55)
    async def test_failed_append_keeps_existing_rows(self, engine: Engine, loader: TableLoader, target: TableName):
        load = self.load_of(target, self.column("n", INT64), self.column("s", STRING, nullable=False))
        await self.load(loader, load, numbered(load, 1, 2))
        more = self.load_of(target, append=True)
        with pytest.raises(RowsBroke):
            await loader.load(more, failing(numbered(more, 3, 1000), error=RowsBroke()), MemoryLedger())
        if self.loading_facts.has_not_null:
            with pytest.raises(StatementRejected):
                await self.load(loader, more, numbered(more, 3, 1000), batch_of(more, [(9, None)]))
        assert await self.rows(engine, load) == [(1, "x"), (2, "x")]
        assert await self.missing(engine, more.staging)

    @pytest.mark.capability("A failed import leaves nothing")
    @pytest.mark.importer(54)
    async def test_null_in_not_null_column_leaves_no_table(
        self, engine: Engine, loader: TableLoader, target: TableName
    ):
        if not self.loading_facts.has_not_null:
            pytest.skip("the engine has no NOT NULL constraint")
        load = self.load_of(target, self.column("n", INT64), self.column("s", STRING, nullable=False))
        with pytest.raises(StatementRejected):
            await self.load(loader, load, numbered(load, 1, 1000), batch_of(load, [(9, None)]))
        assert await self.missing(engine, load.target, load.staging)
        await self.load(loader, load, numbered(load, 1, 2))
        assert await self.rows(engine, load) == [(1, "x"), (2, "x")]

    @pytest.mark.capability("A failed import leaves nothing")
    @pytest.mark.parametrize(
        "error", [RowsBroke("broke"), OSError("broke"), TimeoutError("broke"), ValueError("broke")]
    )
    async def test_failing_batches_leave_no_tables(
        self, engine: Engine, loader: TableLoader, target: TableName, error: Exception
    ):
        """The loader must raise the same error object, even if the driver handles such errors itself."""
        load, ledger = self.load_of(target), MemoryLedger()
        with pytest.raises(type(error)) as raised:
            await loader.load(load, failing(numbered(load, 1, self.loading_facts.batch_rows), error=error), ledger)
        assert raised.value is error
        assert not ledger.open
        assert await self.missing(engine, load.target, load.staging)
        await self.eventually_idle(engine)
        await self.load(loader, self.load_of(target), numbered(load, 1, 2))
        assert await self.rows(engine, load) == [(1, "x"), (2, "x")]

    @pytest.mark.capability("A failed import leaves nothing")
    @pytest.mark.importer(56)
    @pytest.mark.parametrize("state", ["waiting for rows", "loading", "appending"])
    async def test_canceled_load_leaves_no_tables(self, engine: Engine, target: TableName, state: str):
        load, ledger, sent = self.load_of(target, append=state == "appending"), MemoryLedger(), asyncio.Event()
        if load.append:
            await self.run(engine, self.loading_facts.create_n_sql, target)
            load = self.load_of(target, self.column("n", INT64), append=True)

        async def batches() -> AsyncIterator[pa.RecordBatch]:
            for number in count():
                start, each = number * self.loading_facts.batch_rows, self.loading_facts.batch_rows
                columns = [pa.array(range(start, start + each), pa.int64()), pa.array([CHUNK_TEXT] * each)]
                names = [column.name for column in load.columns]
                yield pa.RecordBatch.from_arrays(columns[: len(names)], names=names)
                if number == 3:
                    sent.set()
                    if state == "waiting for rows":
                        await asyncio.Event().wait()

        async with self.loading(engine) as loader:
            work = asyncio.create_task(loader.load(load, batches(), ledger))
            async with asyncio.timeout(60):
                await sent.wait()
            await asyncio.sleep(0.05)
            work.cancel()
            async with asyncio.timeout(60):
                with pytest.raises(asyncio.CancelledError):
                    await work
            assert not ledger.open
            await self.eventually_idle(engine)
        assert await self.missing(engine, load.staging)
        assert await self.missing(engine, load.target) is not load.append
        if load.append:
            assert await self.rows(engine, load) == []

    @pytest.mark.capability("A failed import leaves nothing")
    async def test_engine_works_after_many_cancels(self, engine: Engine, target: TableName):
        """No connection remains busy, and a later load contains no rows of a canceled one."""
        for pause_s in (0, 0.001, 0.005, 0.02):
            load, ledger = self.load_of(target), MemoryLedger()
            async with self.loading(engine) as loader:
                batches = stream(*(numbered(load, place * 1000, 1000) for place in range(20)))
                work = asyncio.create_task(loader.load(load, batches, ledger))
                await asyncio.sleep(pause_s)
                work.cancel()
                with suppress(asyncio.CancelledError):
                    await work
            assert not ledger.open
            await self.drop(engine, target)
        await self.eventually_idle(engine)
        load = self.load_of(target)
        async with self.loading(engine) as loader:
            await self.load(loader, load, numbered(load, 1, 2))
        assert await self.rows(engine, load) == [(1, "x"), (2, "x")]

    @pytest.mark.capability("A failed import leaves nothing")
    async def test_ledger_records_staging_table_before_creation_and_after_removal(
        self, engine: Engine, loader: TableLoader, target: TableName
    ):
        load = self.load_of(target)

        async def nothing_yet(table: TableName) -> None:
            if table == load.staging:
                assert await self.missing(engine, load.staging, load.target)

        ledger = MemoryLedger(nothing_yet)
        await loader.load(load, stream(numbered(load, 1, 2)), ledger)
        assert {table for _, table in ledger.calls} <= {load.staging, load.target}
        assert bool(ledger.calls) is self.loading_facts.uses_ledger
        for table in {table for _, table in ledger.calls}:
            assert [call for call, called in ledger.calls if called == table] == ["add", "remove"]
        assert not ledger.open
        assert await self.missing(engine, load.staging)

    @pytest.mark.capability("A failed import leaves nothing")
    async def test_no_staging_table_is_created_without_ledger_entry(
        self, engine: Engine, loader: TableLoader, target: TableName
    ):
        load = self.load_of(target)

        async def out_of_reach(_table: TableName) -> None:
            raise RowsBroke

        if not self.loading_facts.uses_ledger:
            assert await loader.load(load, stream(numbered(load, 1, 2)), MemoryLedger(out_of_reach)) == 2
            assert await self.missing(engine, load.staging)
            return
        with pytest.raises(RowsBroke):
            await loader.load(load, stream(numbered(load, 1, 2)), MemoryLedger(out_of_reach))
        assert await self.missing(engine, load.staging, load.target)

    @pytest.mark.capability("A failed import leaves nothing")
    @pytest.mark.importer(56)
    async def test_orphaned_staging_table_is_dropped(self, engine: Engine, loader: TableLoader, target: TableName):
        """A session that did not create the table can drop it; dropping a missing table succeeds."""
        staging = staging_of(target)
        await self.run(engine, self.loading_facts.create_sql, staging)
        await self.run(engine, self.loading_facts.insert_sql, staging)
        assert await loader.exists(staging)
        await loader.drop(staging)
        assert not await loader.exists(staging)
        await loader.drop(staging)

    @pytest.mark.capability("A failed import leaves nothing")
    async def test_one_of_two_loads_of_a_table_succeeds(self, engine: Engine, target: TableName):
        async def load_one(text: str) -> TableLoad | EngineError:
            async with self.loading(engine) as loader:
                load = self.load_of(target)
                ledger = MemoryLedger()
                try:
                    await loader.load(load, stream(*(numbered(load, n * 500, 500, text) for n in range(4))), ledger)
                except EngineError as error:
                    return error
                finally:
                    assert not ledger.open
                return load

        async with asyncio.timeout(100):
            ends = await asyncio.gather(load_one("a"), load_one("b"))
        won = [load for load in ends if isinstance(load, TableLoad)]
        lost = [error for error in ends if isinstance(error, EngineError)]
        assert len(won) == len(lost) == 1
        assert isinstance(lost[0], StatementRejected)
        assert {row[1] for row in await self.rows(engine, won[0])} == {"a" if ends[0] is won[0] else "b"}

    @pytest.mark.capability("Tables from files")
    async def test_table_is_loaded_into_another_database(self, engine: Engine, loader: TableLoader, target: TableName):
        facts = self.loading_facts
        if facts.database is None:
            pytest.skip("the engine has only one database")
        async with engine.session(USER, NO_OPTIONS) as session:
            for sql in facts.database_sql:
                await run(session, sql.format(d=facts.quoted(facts.database)))
        there = TableName(facts.database, target.name)
        load = self.load_of(there)
        try:
            await self.load(loader, load, numbered(load, 1, 2))
            assert await loader.exists(there)
            assert not await loader.exists(target)
            more = self.load_of(there, append=True)
            await self.load(loader, more, numbered(more, 3, 1))
            assert await self.rows(engine, load) == [(1, "x"), (2, "x"), (3, "x")]
            assert await self.missing(engine, load.staging, more.staging)
        finally:
            await loader.drop(there)
        assert not await loader.exists(there)

    @pytest.mark.capability("A failed import leaves nothing")
    async def test_missing_database_is_refused(self, loader: TableLoader, target: TableName):
        for database in ("no_such_database", self.loading_facts.passing_database):
            load = self.load_of(TableName(database or "no_such_database", target.name))
            with pytest.raises(EngineError):
                await self.load(loader, load, numbered(load, 1, 2))

    @pytest.mark.capability("A failed import leaves nothing")
    async def test_read_only_connector_refuses_to_load(self, engine: Engine, reading_engine: Engine, target: TableName):
        await self.run(engine, self.loading_facts.create_sql, target)
        async with self.loading(reading_engine) as reader:
            assert await reader.exists(target)
            load = self.load_of(TableName(None, f"{target.name}_new"))
            for refused in (load, self.load_of(target, append=True)):
                ledger = MemoryLedger()
                with pytest.raises(StatementRejected, match="read"):
                    await reader.load(refused, stream(numbered(refused, 1, 2)), ledger)
                assert not ledger.calls
            with pytest.raises(StatementRejected, match="read"):
                await reader.drop(target)
        assert await self.missing(engine, load.target)
        assert not await self.missing(engine, target)

    @pytest.mark.capability("Tables from files")
    @pytest.mark.importer(57)
    async def test_sql_in_cells_is_never_executed(self, engine: Engine, loader: TableLoader, target: TableName):
        victim = TableName(None, f"{target.name}_v")
        quoted = self.loading_facts.sql_name(victim)
        texts = [
            f"{mark}); DROP TABLE {quoted}; {end}" for mark in ("'", '"', "\\'", "''", "") for end in ("--", "#", "/*")
        ]
        await self.run(engine, self.loading_facts.create_sql, victim)
        load = self.load_of(target)
        try:
            await self.load(loader, load, batch_of(load, list(enumerate(texts))))
            assert [text for _, text in await self.rows(engine, load)] == texts
            assert await loader.exists(victim)
        finally:
            await loader.drop(victim)

    @pytest.mark.capability("Tables from files")
    async def test_many_rows_are_loaded_in_bounded_memory(self, engine: Engine, loader: TableLoader, target: TableName):
        load, process = self.load_of(target), psutil.Process()
        each, total, peak = self.loading_facts.batch_rows, self.loading_facts.many_rows, 0

        async def batches() -> AsyncIterator[pa.RecordBatch]:
            nonlocal peak
            for start in range(0, total, each):
                yield numbered(load, start, min(each, total - start), CHUNK_TEXT)
                peak = max(peak, process.memory_info().rss)

        warm = self.load_of(TableName(None, f"{target.name}_w"))
        await self.load(loader, warm, numbered(warm, 0, each, CHUNK_TEXT))
        await loader.drop(warm.target)
        before = process.memory_info().rss
        assert await loader.load(load, batches(), MemoryLedger()) == total
        assert peak - before < 64 * MIB
        counted = await self.run(engine, self.loading_facts.count_sql, target)
        assert [int(value) for value in counted[0]] == [total]
