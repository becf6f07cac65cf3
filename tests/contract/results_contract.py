"""The contract of every ResultStore; each adapter has a test class that inherits `ResultStoreContract`."""

import asyncio
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from queryserver.errors.files import PathNotFound
from queryserver.results.segments import ResultStore, decode_schema

STATEMENTS = [UUID(int=n) for n in range(3)]
"""Ids with a common prefix, like ids created at the same time."""


def mixed_table(rows: int) -> pa.Table:
    """Return a table with a column of every type that engines return."""
    values = range(rows)
    return pa.table(
        {
            "whole": pa.array([None if n % 5 == 0 else n for n in values], pa.int64()),
            "name": pa.array([None if n % 7 == 0 else "é😀\0"[: n % 4] for n in values], pa.string()),
            "price": pa.array([Decimal(n).scaleb(-2) for n in values], pa.decimal128(20, 2)),
            "at": pa.array([datetime(2024, 1, 31, tzinfo=UTC)] * rows, pa.timestamp("us", "UTC")),
            "day": pa.array([date(2024, 1, 31)] * rows),
            "bytes": pa.array([bytes([n % 256]) for n in values], pa.binary()),
            "list": pa.array([[n, None] for n in values], pa.list_(pa.int32())),
            "map": pa.array([[("k", n)] for n in values], pa.map_(pa.string(), pa.int64())),
            "struct": pa.array([{"a": n} for n in values], pa.struct([("a", pa.int8() if rows < 100 else pa.int64())])),
            "union": pa.UnionArray.from_sparse(
                pa.array([n % 2 for n in values], pa.int8()),
                [pa.array(values, pa.int64()), pa.array([str(n) for n in values], pa.string())],
            ),
            "null": pa.nulls(rows),
        }
    )


def numbered(start: int, rows: int) -> pa.Table:
    return pa.table({"n": pa.array(range(start, start + rows), pa.int64())})


class ResultStoreContract:
    @pytest.fixture
    async def results(self) -> ResultStore:
        """Provide an empty store; overridden by each adapter's test class."""
        raise NotImplementedError

    @pytest.mark.parametrize("rows", [0, 1, 1000])
    async def test_stored_segment_round_trips(self, results, rows):
        statement_id, table = uuid4(), mixed_table(rows)
        segment = await results.append(statement_id, fence=1, number=0, start_row=0, table=table)
        read = await results.read(statement_id, fence=1, number=0)
        assert read.schema.equals(table.schema)
        assert read.to_pylist() == table.to_pylist()
        assert (segment.number, segment.start_row, segment.rows) == (0, 0, rows)

    async def test_slice_is_stored_without_the_other_rows(self, results):
        statement_id, table = uuid4(), mixed_table(2000)
        part = table.slice(1500, 10)
        segment = await results.append(statement_id, fence=1, number=7, start_row=1500, table=part)
        assert (await results.read(statement_id, fence=1, number=7)).to_pylist() == part.to_pylist()
        whole = await results.append(statement_id, fence=1, number=8, start_row=0, table=table)
        assert (segment.number, segment.start_row, segment.rows) == (7, 1500, 10)
        assert segment.size_bytes < whole.size_bytes

    async def test_schema_is_read_without_rows(self, results):
        statement_id, table = uuid4(), mixed_table(100)
        await results.append(statement_id, fence=1, number=0, start_row=0, table=table)
        assert decode_schema(await results.head(statement_id, fence=1, number=0)).equals(table.schema)

    async def test_any_range_of_stored_rows_is_read(self, results):
        statement_id, table = uuid4(), mixed_table(3000)
        segment = await results.append(statement_id, fence=1, number=0, start_row=0, table=table)
        size, step = segment.size_bytes, segment.size_bytes // 3
        parts = [
            await results.part(statement_id, start, start + step, fence=1, number=0) for start in range(0, size, step)
        ]
        stored = b"".join(parts)
        assert len(stored) == size
        assert stored.startswith(await results.head(statement_id, fence=1, number=0))
        assert pa.ipc.open_stream(stored).read_all().to_pylist() == table.to_pylist()

    async def test_schema_of_thousands_of_columns_is_read(self, results):
        statement_id, table = uuid4(), pa.table({f"a column of number {n}": [n] for n in range(3000)})
        await results.append(statement_id, fence=1, number=0, start_row=0, table=table)
        assert decode_schema(await results.head(statement_id, fence=1, number=0)).equals(table.schema)

    async def test_missing_segment_is_not_found(self, results):
        statement_id = uuid4()
        await results.append(statement_id, fence=2, number=1, start_row=0, table=numbered(0, 1))
        for fence, number in ((2, 0), (1, 1), (3, 1), (2, 2)):
            with pytest.raises(PathNotFound):
                await results.read(statement_id, fence=fence, number=number)
            with pytest.raises(PathNotFound):
                await results.head(statement_id, fence=fence, number=number)
            with pytest.raises(PathNotFound):
                await results.part(statement_id, 0, 9, fence=fence, number=number)
        with pytest.raises(PathNotFound):
            await results.read(uuid4(), fence=2, number=1)

    @pytest.mark.item(106)
    async def test_missing_or_shortened_segment_is_noticed_without_reading(self, results):
        statement_id = uuid4()
        assert await results.has_all(statement_id, [])
        segments = [
            await results.append(statement_id, fence=1, number=number, start_row=number, table=numbered(number, 1))
            for number in range(3)
        ]
        segments = [replace(one, fence=1) for one in segments]
        assert await results.has_all(statement_id, segments)
        assert await results.has_all(statement_id, segments[:2])
        assert not await results.has_all(statement_id, [*segments, replace(segments[2], number=3)])
        assert not await results.has_all(statement_id, [replace(segments[0], fence=2), *segments[1:]])
        assert not await results.has_all(
            statement_id, [replace(one, size_bytes=one.size_bytes + 1) for one in segments]
        )
        assert not await results.has_all(uuid4(), segments)

    async def test_successor_never_overwrites_predecessor_bytes(self, results):
        statement_id = uuid4()
        for fence in (1, 2):
            await results.append(statement_id, fence=fence, number=0, start_row=0, table=numbered(fence, 3))
        assert (await results.read(statement_id, fence=1, number=0)).to_pylist() == numbered(1, 3).to_pylist()
        assert (await results.read(statement_id, fence=2, number=0)).to_pylist() == numbered(2, 3).to_pylist()

    async def test_append_is_idempotent(self, results):
        statement_id = uuid4()
        first = await results.append(statement_id, fence=1, number=0, start_row=0, table=numbered(0, 3))
        again = await results.append(statement_id, fence=1, number=0, start_row=0, table=numbered(0, 3))
        assert first == again
        assert (await results.read(statement_id, fence=1, number=0)).num_rows == 3

    async def test_delete_removes_all_fences_of_one_statement(self, results):
        mine, other = uuid4(), uuid4()
        for statement_id in (mine, other):
            for fence in (1, 2):
                await results.append(statement_id, fence=fence, number=0, start_row=0, table=numbered(0, 1))
                await results.read(statement_id, fence=fence, number=0)
        await results.delete(mine)
        for fence in (1, 2):
            with pytest.raises(PathNotFound):
                await results.read(mine, fence=fence, number=0)
            assert (await results.read(other, fence=fence, number=0)).num_rows == 1

    async def test_delete_is_idempotent(self, results):
        statement_id = uuid4()
        await results.delete(statement_id)
        await results.append(statement_id, fence=1, number=0, start_row=0, table=numbered(0, 1))
        await asyncio.gather(*(results.delete(statement_id) for _ in range(4)))
        await results.delete(statement_id)

    async def test_many_statements_work_concurrently(self, results):
        ids = [uuid4() for _ in range(40)]

        async def spool(n: int, statement_id: UUID) -> None:
            for number in range(3):
                table = numbered(n * 100 + number, 5)
                await results.append(statement_id, fence=1, number=number, start_row=number * 5, table=table)

        await asyncio.gather(*(spool(n, statement_id) for n, statement_id in enumerate(ids)))
        for n, statement_id in enumerate(ids):
            for number in range(3):
                read = await results.read(statement_id, fence=1, number=number)
                assert read.to_pylist() == numbered(n * 100 + number, 5).to_pylist()

    async def test_ping_can_be_repeated(self, results):
        await results.ping()
        await results.ping()

    # Hypothesis runs all examples on one store, so each example first empties it. Several test classes run this method,
    # which Hypothesis would otherwise report.
    @settings(
        examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]
    )
    @given(
        steps=st.lists(
            st.one_of(
                st.tuples(st.just("append"), st.sampled_from(STATEMENTS), st.integers(1, 3), st.integers(0, 20)),
                st.tuples(st.just("page"), st.sampled_from(STATEMENTS), st.integers(0, 30), st.integers(1, 30)),
                st.tuples(st.just("delete"), st.sampled_from(STATEMENTS), st.just(0), st.just(0)),
            ),
            max_size=25,
        )
    )
    async def test_pages_across_segments_equal_list_slices(self, results, steps):
        """Model-based test: `record` lists the appended segments, and `model` lists the expected rows."""
        for statement_id in STATEMENTS:
            await results.delete(statement_id)
        model = {statement_id: [] for statement_id in STATEMENTS}
        record = {statement_id: [] for statement_id in STATEMENTS}
        for step, statement_id, first, second in steps:
            rows, segments = model[statement_id], record[statement_id]
            if step == "append":
                table = numbered(len(rows) * 10, second)
                number = len(segments)
                segment = await results.append(
                    statement_id, fence=first, number=number, start_row=len(rows), table=table
                )
                segments.append((first, segment))
                rows.extend(table["n"].to_pylist())
            elif step == "page":
                page = []
                for fence, segment in segments:
                    table = await results.read(statement_id, fence=fence, number=segment.number)
                    page += table.slice(max(0, first - segment.start_row))["n"].to_pylist()
                assert page[:second] == rows[first : first + second]
            else:
                await results.delete(statement_id)
                rows.clear()
                segments.clear()
