"""Short network outages for engines whose sessions outlive a connection: running statements must survive them.

A test class that inherits `BreaksContract` provides `facts`, `running_statements`, the fixture `server` (host and port
of the engine) and the fixture `engine_at`, which makes an engine for another port on this machine. A proxy between the
adapter and the engine breaks the connections.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import ClassVar

import pyarrow as pa
import pytest
from tests.contract.engine_basis import NO_OPTIONS, USER, EngineBasis
from tests.contract.engine_driving import ended, operation, rows_of, started
from tests.engines.fault_proxy import FaultProxy, fault_proxy

from queryserver.engines.protocol import Engine, OperationState
from queryserver.errors.statements import StatementRejected

_PROMPTLY_S = 30.0
"""Time limit for operations that take at most 3 s on an idle machine (Limits.end_s). The statements run for longer."""


@pytest.mark.capability("A broken connection is reported in time")
class BreaksContract(EngineBasis):
    """The network-outage tests. Each test starts with an engine behind a proxy that forwards all traffic."""

    break_s: ClassVar[float] = 3.0
    sleep_sql: ClassVar[Callable[[int], str]]
    """Returns a statement that runs for the given number of seconds and then returns one row."""
    many_rows: ClassVar[int] = 60_000

    @pytest.fixture
    async def proxy(self, server: tuple[str, int]) -> AsyncGenerator[FaultProxy]:
        async with fault_proxy(*server) as proxy:
            yield proxy

    @pytest.fixture
    async def engine(self, proxy: FaultProxy, engine_at: Callable[[int], Engine]) -> AsyncGenerator[Engine]:
        engine = engine_at(proxy.port)
        yield engine
        await engine.close()

    async def broken(self, proxy: FaultProxy) -> None:
        """Reset all connections and accept no new ones for `break_s`."""
        await proxy.die()
        await asyncio.sleep(self.break_s)
        await proxy.listen()

    async def test_running_statement_survives_break(self, engine: Engine, proxy: FaultProxy) -> None:
        sql = type(self).sleep_sql(round(self.break_s) + 12)  # still running after the outage
        async with engine.session(USER, NO_OPTIONS) as session, operation(session, sql) as handle:
            await started(session, handle)
            await self.broken(proxy)
            assert not (await session.poll(handle)).state.is_terminal
            status = await ended(session, handle, within_s=60)
            assert (status.state, status.error) == (OperationState.FINISHED, None)
            assert len([row async for batch in session.batches(handle) for row in rows_of(batch)]) == 1

    async def test_statement_that_finishes_during_break_is_not_lost(self, engine: Engine, proxy: FaultProxy) -> None:
        async with engine.session(USER, NO_OPTIONS) as session, operation(session, type(self).sleep_sql(2)) as handle:
            await started(session, handle)
            await self.broken(proxy)
            assert (await ended(session, handle, within_s=60)).state is OperationState.FINISHED

    async def test_rows_fetched_during_break_arrive_exactly_once(self, engine: Engine, proxy: FaultProxy) -> None:
        async with (
            engine.session(USER, NO_OPTIONS) as session,
            operation(session, self.facts.rows_sql(self.many_rows)) as handle,
        ):
            await ended(session, handle)
            given, breaking = list[object](), None
            async for batch in session.batches(handle):
                given += [row[0] for row in rows_of(batch)]
                if breaking is None and len(given) > 500:
                    breaking = asyncio.create_task(self.broken(proxy))
                    await asyncio.sleep(0.1)
            assert breaking is not None
            await breaking
        assert given == list(range(self.many_rows))

    async def test_cancel_during_break_returns_promptly_and_takes_effect(
        self, engine: Engine, proxy: FaultProxy
    ) -> None:
        async with engine.session(USER, NO_OPTIONS) as session:
            handle = await session.submit(self.facts.slow_sql)
            await started(session, handle)
            await proxy.die()
            begun = time.monotonic()
            await session.cancel(handle)
            assert time.monotonic() - begun < _PROMPTLY_S
            await proxy.listen()
            assert (await ended(session, handle)).state is OperationState.CANCELED
            await session.close(handle)
        await self.eventually_idle(engine)

    async def test_cancel_ends_a_reader_that_waits_for_rows(self, engine: Engine, proxy: FaultProxy) -> None:
        async with engine.session(USER, NO_OPTIONS) as session:
            handle = await session.submit(self.facts.rows_sql(1_000_000))
            await ended(session, handle)
            batches = session.batches(handle)
            await anext(batches)
            await proxy.die()
            reading = asyncio.create_task(_read_all(batches))
            await asyncio.sleep(0.2)
            assert not reading.done()
            async with asyncio.timeout(_PROMPTLY_S):
                await session.cancel(handle)
                with pytest.raises(StatementRejected, match="canceled"):
                    await reading
            await proxy.listen()

    async def test_leaving_during_break_returns_promptly_and_leaves_nothing(
        self, engine: Engine, proxy: FaultProxy
    ) -> None:
        async with engine.session(USER, NO_OPTIONS) as session:
            handle = await session.submit(self.facts.slow_sql)
            await started(session, handle)
            await proxy.die()
            begun = time.monotonic()
        assert time.monotonic() - begun < 2 * _PROMPTLY_S
        await proxy.listen()
        await self.eventually_idle(engine)

    async def test_engine_close_does_not_wait_for_network(self, engine: Engine, proxy: FaultProxy) -> None:
        async with engine.session(USER, NO_OPTIONS) as session, operation(session, type(self).sleep_sql(5)) as handle:
            await started(session, handle)
            await proxy.die()
            await asyncio.sleep(0.5)
            begun = time.monotonic()
        await engine.close()
        assert time.monotonic() - begun < 3 * _PROMPTLY_S
        await proxy.listen()


async def _read_all(batches: AsyncIterator[pa.RecordBatch]) -> None:
    async for _ in batches:
        pass
