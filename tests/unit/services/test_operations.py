"""A statement that an engine has, for as long as somebody wants it."""

import asyncio

import pytest
from tests.fakes.engine import FakeEngine, FakeSession

from queryserver.engines.protocol import OperationHandle
from queryserver.engines.sessions import submitted
from queryserver.errors.statements import EngineUnavailable, StatementRejected


class Unreachable(FakeSession):
    """Cannot be told to stop."""

    async def cancel(self, handle: OperationHandle) -> None:
        raise EngineUnavailable("no answer")


async def test_leaving_frees_the_statement_without_stopping_it() -> None:
    engine = FakeEngine()
    session = FakeSession(engine)
    handle = await session.submit("rows 3")
    async with submitted(session, handle):
        await session.poll(handle, wait_s=5)
    assert session._operation is not None
    assert (session._operation.is_closed, engine.cancels) == (True, 0)


async def test_leaving_early_stops_it_even_when_the_task_is_canceled() -> None:
    engine = FakeEngine()
    session = FakeSession(engine)
    handle = await session.submit("sleep 30")
    inside = asyncio.Event()

    async def work() -> None:
        async with submitted(session, handle):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (task.cancelled(), session.is_running, engine.cancels) == (True, False, 1)


async def test_what_is_left_to_another_runner_goes_on() -> None:
    engine = FakeEngine()
    session = FakeSession(engine)
    handle = await session.submit("sleep 30")
    with pytest.raises(StatementRejected):
        async with submitted(session, handle, is_left=lambda: True):
            raise StatementRejected("detached")
    assert (session.is_running, engine.cancels) == (True, 0)
    await session.end()


async def test_an_engine_that_cannot_be_told_does_not_hide_why_the_work_ended() -> None:
    session = Unreachable(FakeEngine())
    handle = await session.submit("sleep 30")
    with pytest.raises(StatementRejected, match="the reason"):
        async with submitted(session, handle):
            raise StatementRejected("the reason")
    assert not session.is_running
