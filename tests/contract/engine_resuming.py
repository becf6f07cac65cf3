"""The contract of engines whose running statements survive the loss of their client (`ResumableEngine`)."""

import asyncio
from contextlib import aclosing

import pytest
from tests.contract.engine_basis import NO_OPTIONS, USER, EngineBasis
from tests.contract.engine_driving import ended, read, rows_of, started

from queryserver.engines.protocol import Engine, EngineSession, OperationState, ResumableEngine, ResumableSession
from queryserver.errors.statements import OutcomeUnknown

ROWS = 60_000


def resumable(session: EngineSession) -> ResumableSession:
    """Assert that the session is a `ResumableSession`, and return it."""
    assert isinstance(session, ResumableSession)
    return session


def resuming(engine: Engine) -> ResumableEngine:
    """Assert that the engine is a `ResumableEngine`, and return it."""
    assert isinstance(engine, ResumableEngine)
    return engine


@pytest.mark.item(25)
@pytest.mark.capability("Survives a queryserver restart")
class ResumingContract(EngineBasis):
    """The tests for reattaching to a running statement. Adapters that support this inherit them in addition to
    `EngineContract`.
    """

    async def test_running_statement_survives_its_client(self, engine: Engine) -> None:
        async with engine.session(USER, NO_OPTIONS) as session:
            handle = await session.submit(self.facts.slow_sql)
            await started(session, handle)
            token = resumable(session).resume_token(handle)
            resumable(session).detach()
        await self.eventually_at_work(engine)
        async with resuming(engine).reattach(USER, NO_OPTIONS, token, rows_read=0) as (again, found):
            assert not (await again.poll(found)).state.is_terminal
            await again.cancel(found)
            assert (await ended(again, found)).state is OperationState.CANCELED
        await self.eventually_idle(engine)

    async def test_result_is_read_by_another_client(self, engine: Engine) -> None:
        async with engine.session(USER, NO_OPTIONS) as session:
            handle = await session.submit(self.facts.rows_sql(ROWS))
            await session.poll(handle)
            token = resumable(session).resume_token(handle)
            resumable(session).detach()
        async with resuming(engine).reattach(USER, NO_OPTIONS, token, rows_read=0) as (again, found):
            status = await ended(again, found)
            assert (status.state, status.has_result_set) == (OperationState.FINISHED, True)
            assert len(await again.columns(found)) == 1
            assert [row[0] for row in await read(again, found)] == list(range(ROWS))

    async def test_rows_resume_after_the_last_row_read(self, engine: Engine) -> None:
        given: list[object] = []
        async with engine.session(USER, NO_OPTIONS) as session:
            handle = await session.submit(self.facts.rows_sql(ROWS))
            await ended(session, handle)
            async with aclosing(session.batches(handle)) as batches:  # type: ignore[type-var]
                while len(given) < 100:
                    given += [row[0] for row in rows_of(await anext(batches))]
                token = resumable(session).resume_token(handle)
                resumable(session).detach()
        async with resuming(engine).reattach(USER, NO_OPTIONS, token, rows_read=len(given)) as (again, found):
            await ended(again, found)
            given += [row[0] for row in await read(again, found)]
        assert given == list(range(ROWS))

    async def test_reattached_statement_ends_with_its_second_client(self, engine: Engine) -> None:
        async with engine.session(USER, NO_OPTIONS) as session:
            handle = await session.submit(self.facts.slow_sql)
            await started(session, handle)
            token = resumable(session).resume_token(handle)
            resumable(session).detach()
        async with resuming(engine).reattach(USER, NO_OPTIONS, token, rows_read=0):
            pass
        await self.eventually_idle(engine)

    async def test_finished_statement_has_unknown_outcome(self, engine: Engine) -> None:
        async with engine.session(USER, NO_OPTIONS) as session:
            handle = await session.submit(self.facts.rows_sql(3))
            await ended(session, handle)
            token = resumable(session).resume_token(handle)
        with pytest.raises(OutcomeUnknown, match=r"^Results have expired"):
            await followed_to_its_end(engine, token)


async def followed_to_its_end(engine: Engine, token: str) -> None:
    """Reattach and wait for completion; raise the error if the status reports a failure."""
    async with asyncio.timeout(30), resuming(engine).reattach(USER, NO_OPTIONS, token, rows_read=0) as (again, found):
        status = await ended(again, found)
        if status.error is not None:
            raise status.error
