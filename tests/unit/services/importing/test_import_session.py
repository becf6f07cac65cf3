"""An import as the runner follows it (imports/running.py)."""

import asyncio

import pytest

from queryserver.engines.protocol import OperationState
from queryserver.errors.files import FileCorrupt
from queryserver.errors.statements import EngineUnavailable
from queryserver.imports.running import Imported, ImportReport, ImportSession

DONE = Imported(3, 2, 1, "t")


async def test_an_import_ends_with_one_row() -> None:
    async def work(report: ImportReport) -> Imported:
        report.lines.append("Read 3 rows.")
        return DONE

    async with ImportSession.opened(work) as session:
        handle = await session.submit("CREATE TABLE t (a INT)")
        status = await session.poll(handle, wait_s=5)
        assert (status.state, status.has_result_set) == (OperationState.FINISHED, True)
        assert [column.name for column in await session.columns(handle)] == [
            "rows_read", "rows_loaded", "rows_bad", "table",
        ]  # fmt: skip
        rows = [row for batch in [batch async for batch in session.batches(handle)] for row in batch.to_pylist()]
        assert rows == [{"rows_read": 3, "rows_loaded": 2, "rows_bad": 1, "table": "t"}]
        assert await session.logs(handle, start=0) == ["Read 3 rows."]
        assert await session.logs(handle, start=1) == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineUnavailable("away"), "engine_unavailable"),
        (FileCorrupt("broken"), "rejected"),
        (ZeroDivisionError("ours"), "engine_error"),
    ],
)
async def test_what_goes_wrong_is_an_outcome(error: Exception, code: str) -> None:
    async def work(report: ImportReport) -> Imported:
        raise error

    async with ImportSession.opened(work) as session:
        status = await session.poll(await session.submit(""), wait_s=5)
    assert status.state is OperationState.FAILED
    assert status.error is not None
    assert status.error.code == code
    assert "ours" not in status.error.message


async def test_a_cancel_waits_for_the_clean_up_and_a_second_one_does_not_disturb_it() -> None:
    begun, cleaned = asyncio.Event(), asyncio.Event()

    async def work(report: ImportReport) -> Imported:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            cleaned.set()
        return DONE

    async with ImportSession.opened(work) as session:
        handle = await session.submit("")
        await begun.wait()
        await asyncio.gather(session.cancel(handle), session.cancel(handle))
        assert cleaned.is_set()
        assert (await session.poll(handle)).state is OperationState.CANCELED


@pytest.mark.importer(56)
async def test_whoever_leaves_the_session_waits_for_the_clean_up_even_when_canceled() -> None:
    begun, cleaned = asyncio.Event(), asyncio.Event()

    async def work(report: ImportReport) -> Imported:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)
            cleaned.set()
        return DONE

    async def follow() -> None:
        async with ImportSession.opened(work) as session:
            await session.submit("")
            await asyncio.Event().wait()

    follower = asyncio.create_task(follow())
    await begun.wait()
    for _ in range(3):
        follower.cancel()
        await asyncio.sleep(0.02)
    with pytest.raises(asyncio.CancelledError):
        await follower
    assert cleaned.is_set()


@pytest.mark.importer(56)
async def test_a_cancel_that_comes_after_the_table_is_there_does_not_deny_it() -> None:
    published = asyncio.Event()

    async def work(report: ImportReport) -> Imported:
        report.done = DONE
        published.set()
        await asyncio.Event().wait()
        return DONE

    async with ImportSession.opened(work) as session:
        handle = await session.submit("")
        await published.wait()
        await session.cancel(handle)
        assert (await session.poll(handle)).state is OperationState.FINISHED
        assert len([batch async for batch in session.batches(handle)]) == 1
