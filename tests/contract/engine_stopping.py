"""The part of the engine contract that tests how statements are canceled and released."""

import asyncio
import time

import pytest
from tests.contract.engine_basis import NO_OPTIONS, STOP_S, USER, EngineBasis
from tests.contract.engine_driving import ended, operation, patient_poll, read, run, started

from queryserver.engines.protocol import Engine, EngineSession, OperationState
from queryserver.errors.statements import EngineError, SessionLost


class StoppingContract(EngineBasis):
    """The `EngineContract` tests for canceling and releasing statements."""

    @pytest.mark.item(36)
    @pytest.mark.capability("Cancel reaches the engine")
    async def test_cancel_reaches_engine(self, engine: Engine, session: EngineSession) -> None:
        async with operation(session, self.facts.slow_sql) as handle:
            await started(session, handle)
            await self.eventually_at_work(engine)
            await session.cancel(handle)
            assert (await ended(session, handle, within_s=STOP_S)).state is OperationState.CANCELED
        await self.eventually_idle(engine)

    @pytest.mark.capability("Cancel reaches the engine")
    async def test_cancel_twice_is_harmless(self, session: EngineSession) -> None:
        async with operation(session, self.facts.slow_sql) as handle:
            await started(session, handle)
            async with asyncio.timeout(STOP_S):
                await asyncio.gather(session.cancel(handle), session.cancel(handle))
                await session.cancel(handle)
            assert (await ended(session, handle, within_s=STOP_S)).state is OperationState.CANCELED
            await session.cancel(handle)

    @pytest.mark.capability("Cancel reaches the engine")
    async def test_cancel_right_after_submit_is_not_lost(self, engine: Engine) -> None:
        for pause_s in (0, 0, 0.001, 0.003, 0.01):
            async with engine.session(USER, NO_OPTIONS) as session, operation(session, self.facts.slow_sql) as handle:
                await asyncio.sleep(pause_s)
                await session.cancel(handle)
                assert (await ended(session, handle, within_s=STOP_S)).state is OperationState.CANCELED

    @pytest.mark.capability("Cancel reaches the engine")
    async def test_cancel_wakes_waiting_poll(self, session: EngineSession) -> None:
        async with operation(session, self.facts.slow_sql) as handle:
            waiting = asyncio.create_task(patient_poll(session, handle, wait_s=20))
            await started(session, handle)
            begun = time.monotonic()
            await session.cancel(handle)
            assert (await waiting).state is OperationState.CANCELED
            assert time.monotonic() - begun < STOP_S

    @pytest.mark.capability("Cancel reaches the engine")
    async def test_canceled_session_is_usable_or_reports_its_loss(self, session: EngineSession) -> None:
        async with operation(session, self.facts.slow_sql) as handle:
            await started(session, handle)
            await session.cancel(handle)
            await ended(session, handle, within_s=STOP_S)
        if await session.is_alive():
            assert (await run(session, self.facts.rows_sql(1))).rows == [(0,)]
        else:
            with pytest.raises(SessionLost):
                await session.submit(self.facts.rows_sql(1))

    @pytest.mark.capability("Cancel reaches the engine")
    async def test_cancel_after_completion_changes_nothing(self, session: EngineSession) -> None:
        async with operation(session, self.facts.rows_sql(5)) as handle:
            await ended(session, handle)
            rows = await read(session, handle)
            await session.cancel(handle)
            assert (await session.poll(handle)).state is OperationState.FINISHED
        assert len(rows) == 5
        assert (await run(session, self.facts.rows_sql(1))).rows == [(0,)]

    @pytest.mark.capability("Cancel reaches the engine")
    async def test_cancel_ends_the_reading_of_rows(self, engine: Engine) -> None:
        async with (
            engine.session(USER, NO_OPTIONS) as session,
            operation(session, self.facts.rows_sql(500_000_000)) as handle,
        ):
            await ended(session, handle)
            is_reading = asyncio.Event()

            async def read_all() -> None:
                async for _ in session.batches(handle):
                    is_reading.set()

            reader = asyncio.create_task(read_all())
            await asyncio.wait_for(is_reading.wait(), 30)
            async with asyncio.timeout(STOP_S):
                await session.cancel(handle)
                with pytest.raises(EngineError):
                    await reader
        await self.eventually_idle(engine)

    @pytest.mark.capability("Abandoned statements are stopped")
    async def test_close_twice_is_harmless(self, session: EngineSession) -> None:
        handle = await session.submit(self.facts.rows_sql(5))
        await ended(session, handle)
        await session.close(handle)
        await session.close(handle)
        assert (await run(session, self.facts.rows_sql(1))).rows == [(0,)]

    @pytest.mark.item(39)
    @pytest.mark.capability("Abandoned statements are stopped")
    async def test_close_stops_running_statement(self, engine: Engine, session: EngineSession) -> None:
        handle = await session.submit(self.facts.slow_sql)
        await started(session, handle)
        async with asyncio.timeout(STOP_S):
            await session.close(handle)
        await self.eventually_idle(engine)

    @pytest.mark.capability("Abandoned statements are stopped")
    async def test_leaving_session_stops_its_statement(self, engine: Engine) -> None:
        async with asyncio.timeout(30 + 3 * STOP_S):
            async with engine.session(USER, NO_OPTIONS) as session:
                handle = await session.submit(self.facts.slow_sql)
                await started(session, handle)
                await self.eventually_at_work(engine)
        await self.eventually_idle(engine)
        assert not await session.is_alive()

    @pytest.mark.capability("Abandoned statements are stopped")
    async def test_closed_session_accepts_no_statement(self, engine: Engine) -> None:
        async with engine.session(USER, NO_OPTIONS) as session:
            pass
        assert not await session.is_alive()
        with pytest.raises(SessionLost):
            await session.submit(self.facts.rows_sql(1))
