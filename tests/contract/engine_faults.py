"""How every adapter responds when the connection to its engine fails (Contract editor 1.5, 3.4).

A test class that inherits `FaultsContract` provides `facts`, the fixture `server` (host and port of a real engine) and
the fixture `engine_at`, which makes an engine for another port on this machine. In tests with "silence" in their name,
the connect timeout of this engine must be at most 3 s. A proxy between the adapter and the engine breaks the
connection, and the tests check which error the adapter raises, and how soon.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import ClassVar

import pytest
from tests.contract.engine_basis import NO_OPTIONS, USER, EngineBasis
from tests.contract.engine_driving import ended, operation, read, run, started
from tests.engines.fault_proxy import Fault, FaultProxy, fault_proxy
from tests.tasks import tasks_begun
from tests.timing import until

from queryserver.engines.protocol import Engine, EngineSession, OperationHandle, SessionOptions
from queryserver.errors.statements import EngineError, EngineTimeout, EngineUnavailable, OutcomeUnknown, SessionLost

_MANY_ROWS = 200_000
_SOME_BYTES = 100_000
"""The number of response bytes that include the first rows but only a small part of the result."""
_LOST = (OutcomeUnknown, EngineTimeout)
_NOT_SENT = (SessionLost, EngineUnavailable)
BREAKS = (Fault.RESET, Fault.CUT, Fault.GARBAGE)


@pytest.mark.capability("A broken connection is reported in time")
class FaultsContract(EngineBasis):
    """The broken-connection tests. Each test starts with an engine behind a proxy that forwards all traffic."""

    limit_s: ClassVar[float] = 60.0
    """Time limit for the outcome of a call, in seconds. It exceeds the adapters' own timeouts to allow for a busy
    machine.
    """
    session_options: ClassVar[SessionOptions] = NO_OPTIONS
    reconnects: ClassVar[bool] = False
    """Whether the adapter can continue after a lost connection, so that all rows may still arrive."""

    @pytest.fixture
    async def proxy(self, server: tuple[str, int]) -> AsyncGenerator[FaultProxy]:
        async with fault_proxy(*server) as proxy:
            yield proxy

    @pytest.fixture
    async def engine(self, proxy: FaultProxy, engine_at: Callable[[int], Engine]) -> AsyncGenerator[Engine]:
        """Yield the engine; after each test, check that all connections are closed and no task is still running."""
        with tasks_begun() as begun:
            engine = engine_at(proxy.port)
            yield engine
            await engine.close()
            await proxy.closed()
            assert not [repr(task) for task in begun.left() if task.get_name() != "fault proxy"]

    @pytest.fixture
    def is_at_engine(self) -> Callable[[], Awaitable[bool]]:
        """Return a function that checks whether a slow statement has reached the engine. The default returns True,
        because waiting with `started` is sufficient for most adapters.
        """

        async def at_once() -> bool:
            return True

        return at_once

    async def works_again(self, engine: Engine, proxy: FaultProxy) -> None:
        """Restore the connection and check that a statement in a new session succeeds."""
        await proxy.listen()
        async with asyncio.timeout(self.limit_s), engine.session(USER, self.session_options) as session:
            assert (await run(session, self.facts.rows_sql(3))).rows == [(0,), (1,), (2,)]

    async def not_opened(self, engine: Engine) -> EngineError:
        """Return the error that is raised while a session is opened and a statement is run. Some adapters connect only
        when the statement is run.
        """
        async with asyncio.timeout(self.limit_s):
            with pytest.raises(EngineError) as raised:
                async with engine.session(USER, self.session_options) as session:
                    await run(session, self.facts.rows_sql(1))
        return raised.value

    @pytest.mark.item(70)
    async def test_engine_without_listener_is_unavailable(self, engine: Engine, proxy: FaultProxy) -> None:
        await proxy.die()
        error = await self.not_opened(engine)
        assert isinstance(error, EngineUnavailable)
        self.assert_tidy(error)
        async with asyncio.timeout(self.limit_s):
            with pytest.raises(EngineUnavailable):
                await engine.ping()
        await self.works_again(engine, proxy)

    @pytest.mark.item(70)
    @pytest.mark.parametrize("fault", [*BREAKS, Fault.SILENCE], ids=lambda fault: fault.name.lower())
    async def test_engine_with_unusable_connection_is_unavailable(
        self, engine: Engine, proxy: FaultProxy, fault: Fault
    ) -> None:
        proxy.set_fault(fault)
        error = await self.not_opened(engine)
        assert isinstance(error, EngineUnavailable)
        self.assert_tidy(error)
        await self.works_again(engine, proxy)

    @pytest.mark.parametrize("fault", BREAKS, ids=lambda fault: fault.name.lower())
    async def test_truncated_greeting_fails_connection(self, engine: Engine, proxy: FaultProxy, fault: Fault) -> None:
        proxy.set_fault(fault, after_bytes=3)
        assert isinstance(await self.not_opened(engine), EngineUnavailable)
        await self.works_again(engine, proxy)

    async def test_engine_crash_during_query_leaves_outcome_unknown(
        self, engine: Engine, proxy: FaultProxy, is_at_engine: Callable[[], Awaitable[bool]]
    ) -> None:
        async with (
            asyncio.timeout(self.limit_s),
            engine.session(USER, self.session_options) as session,
            operation(session, self.facts.slow_sql) as handle,
        ):
            await started(session, handle)
            await until(is_at_engine)
            await proxy.die()
            status = await ended(session, handle, within_s=self.limit_s)
            assert isinstance(status.error, _LOST)
            self.assert_tidy(status.error)
        await self.works_again(engine, proxy)

    @pytest.mark.parametrize("fault", BREAKS)
    async def test_broken_connection_during_query_leaves_outcome_unknown(
        self, engine: Engine, proxy: FaultProxy, fault: Fault
    ) -> None:
        async with asyncio.timeout(self.limit_s), engine.session(USER, self.session_options) as session:
            proxy.set_fault(fault, after_bytes=5)
            error = await self._broken(session, self.facts.rows_sql(_MANY_ROWS))
            assert error is None or isinstance(error, _LOST + _NOT_SENT), error
        await self.works_again(engine, proxy)

    @pytest.mark.parametrize("fault", BREAKS)
    async def test_broken_connection_during_fetch_never_passes_partial_rows_as_complete(
        self, engine: Engine, proxy: FaultProxy, fault: Fault
    ) -> None:
        async with asyncio.timeout(self.limit_s), engine.session(USER, self.session_options) as session:
            proxy.set_fault(fault, after_bytes=_SOME_BYTES)
            error = await self._broken(session, self.facts.rows_sql(_MANY_ROWS))
            assert error is None or isinstance(error, _LOST), error
        await self.works_again(engine, proxy)

    async def test_engine_crash_during_fetch_leaves_outcome_unknown(self, engine: Engine, proxy: FaultProxy) -> None:
        async with (
            asyncio.timeout(self.limit_s),
            engine.session(USER, self.session_options) as session,
            operation(session, self.facts.rows_sql(5_000_000)) as handle,
        ):
            await ended(session, handle)
            with pytest.raises(_LOST):  # noqa: PT012 the first batch may still arrive
                async for _ in session.batches(handle):
                    await proxy.die()
        await self.works_again(engine, proxy)

    async def test_engine_crash_between_statements_is_noticed_without_waiting(
        self, engine: Engine, proxy: FaultProxy
    ) -> None:
        async with asyncio.timeout(self.limit_s), engine.session(USER, self.session_options) as session:
            await run(session, self.facts.rows_sql(1))
            await proxy.die()
            with pytest.raises(_NOT_SENT + _LOST):
                await run(session, self.facts.rows_sql(1))
        await self.works_again(engine, proxy)

    @pytest.mark.slow
    async def test_unanswered_statement_can_be_abandoned_in_time(self, engine: Engine, proxy: FaultProxy) -> None:
        async with asyncio.timeout(self.limit_s * 2):
            async with engine.session(USER, self.session_options) as session:
                proxy.set_fault(Fault.SILENCE)
                await self._left_in_time(session, self.facts.rows_sql(_MANY_ROWS))
        await self.works_again(engine, proxy)

    @pytest.mark.slow
    async def test_unanswered_fetch_can_be_abandoned_in_time(self, engine: Engine, proxy: FaultProxy) -> None:
        async with asyncio.timeout(self.limit_s * 2):
            async with engine.session(USER, self.session_options) as session:
                proxy.set_fault(Fault.SILENCE, after_bytes=_SOME_BYTES)
                await self._left_in_time(session, self.facts.rows_sql(5_000_000))
        await self.works_again(engine, proxy)

    async def test_response_in_small_chunks_arrives_complete(self, engine: Engine, proxy: FaultProxy) -> None:
        proxy.set_fault(Fault.FRAGMENTS)
        async with asyncio.timeout(self.limit_s), engine.session(USER, self.session_options) as session:
            answer = await run(session, self.facts.rows_sql(2_000))
        assert answer.rows == [(number,) for number in range(2_000)]

    async def _broken(self, session: EngineSession, sql: str) -> EngineError | None:
        """Return the error of `sql`, or None if the adapter reconnected and returned all rows."""
        try:
            rows = (await run(session, sql)).rows
        except EngineError as error:
            self.assert_tidy(error)
            return error
        assert self.reconnects
        assert [row[0] for row in rows] == list(range(len(rows)))
        assert len(rows) == _MANY_ROWS
        return None

    async def _left_in_time(self, session: EngineSession, sql: str) -> None:
        """Check that a task that waits for the statement ends in time after cancel and close, even if both of these
        calls time out.
        """
        try:
            async with asyncio.timeout(self.limit_s):
                handle = await session.submit(sql)
        except _LOST + _NOT_SENT:
            return
        reader = asyncio.create_task(self._wait_for_rows(session, handle))
        await asyncio.sleep(0.1)
        async with asyncio.timeout(self.limit_s):
            await session.cancel(handle)
            await session.close(handle)
        reader.cancel()
        async with asyncio.timeout(self.limit_s):
            await asyncio.gather(reader, return_exceptions=True)

    async def _wait_for_rows(self, session: EngineSession, handle: OperationHandle) -> None:
        status = await ended(session, handle, within_s=self.limit_s)
        if status.has_result_set:
            await read(session, handle)
