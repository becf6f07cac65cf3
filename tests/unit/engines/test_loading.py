"""What loaders share: the end of a staging table, the last step, rows read ahead, values as texts."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pyarrow as pa
import pytest
from tests.contract.loading_basis import MemoryLedger

from queryserver.engines.loading import (
    RowsFailed,
    duration_text,
    plain_decimals,
    read_ahead,
    staged,
    without_zero_fraction,
)
from queryserver.engines.protocol import TableName
from queryserver.errors.statements import EngineUnavailable

STAGING = TableName(None, "_qs_import_1")


async def nothing() -> None:
    await asyncio.sleep(0)


async def test_a_staging_table_that_cannot_be_dropped_stays_in_the_ledger() -> None:
    async def drop() -> None:
        raise EngineUnavailable("out of reach")

    ledger = MemoryLedger()
    with pytest.raises(KeyError):
        async with staged(STAGING, ledger, drop):
            raise KeyError
    assert ledger.open == {STAGING}


async def test_a_cancel_that_meets_the_ledger_leaves_nothing_in_it() -> None:
    """A broken call may have written the table down all the same."""
    telling, go_on, drops = asyncio.Event(), asyncio.Event(), 0

    async def told(_table: TableName) -> None:
        telling.set()
        await go_on.wait()

    async def drop() -> None:
        nonlocal drops
        drops += 1

    async def load() -> None:
        async with staged(STAGING, ledger, drop):
            await asyncio.sleep(0)
            pytest.fail("the load goes on")

    ledger = MemoryLedger(on_made=told)
    loading = asyncio.create_task(load())
    await telling.wait()
    loading.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert ledger.told == [("made", STAGING), ("settled", STAGING)]
    assert drops == 1


@pytest.mark.parametrize(("takes_it", "dropped"), [(True, 0), (False, 1)])
async def test_a_published_table_is_dropped_only_where_it_stayed(takes_it: bool, dropped: int) -> None:
    drops = 0

    async def drop() -> None:
        nonlocal drops
        drops += 1

    ledger = MemoryLedger()
    async with staged(STAGING, ledger, drop) as staging:
        await staging.publish(nothing(), takes_it=takes_it)
    assert drops == dropped
    assert ledger.told == [("made", STAGING), ("settled", STAGING)]


async def test_a_cancel_that_meets_the_last_step_comes_after_the_load() -> None:
    """The rows are there: to say that they were not would be wrong."""
    stepping, go_on, loaded = asyncio.Event(), asyncio.Event(), False

    async def last_step() -> None:
        stepping.set()
        await go_on.wait()

    async def load() -> None:
        async with staged(STAGING, ledger, nothing) as staging:
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


async def test_a_cancel_that_meets_a_last_step_that_fails_is_a_cancel() -> None:
    stepping = asyncio.Event()

    async def last_step() -> None:
        stepping.set()
        await asyncio.sleep(0.05)
        raise EngineUnavailable("out of reach")

    async def load() -> None:
        async with staged(STAGING, ledger, nothing) as staging:
            await staging.publish(last_step())

    ledger = MemoryLedger()
    work = asyncio.create_task(load())
    await stepping.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert not ledger.open


async def test_few_batches_are_read_ahead() -> None:
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


async def test_what_batches_raise_is_told_apart_from_the_engine_s_errors() -> None:
    async def batches() -> AsyncIterator[pa.RecordBatch]:
        yield pa.record_batch({"n": [1]})
        raise OSError("the store is gone")

    with ThreadPoolExecutor(1) as executor, pytest.raises(RowsFailed) as raised:
        async with read_ahead(batches(), lambda batch: batch.num_rows, executor) as converted:
            assert [rows async for rows in converted] == []
    assert str(raised.value.reason) == "the store is gone"


def test_durations_as_texts() -> None:
    durations = [dt.timedelta(0), None, dt.timedelta(hours=30), dt.timedelta(microseconds=-1), dt.timedelta(days=100)]
    texts = duration_text(pa.array(durations, pa.duration("us")))
    assert texts.to_pylist() == ["00:00:00", None, "30:00:00", "-00:00:00.000001", "2400:00:00"]


def test_times_as_texts() -> None:
    times = pa.array(["10:20:30.000000", "10:20:30.000100", None, "10:20:00.000000"])
    assert without_zero_fraction(times).to_pylist() == ["10:20:30", "10:20:30.000100", None, "10:20:00"]


def test_decimals_as_texts_have_no_exponent() -> None:
    decimals = pa.array([Decimal("0.0000000001"), None, Decimal("-1.5"), Decimal(0)], pa.decimal128(38, 10))
    assert plain_decimals(decimals).to_pylist() == ["0.0000000001", None, "-1.5000000000", "0.0000000000"]
