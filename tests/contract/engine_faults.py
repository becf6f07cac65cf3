"""What every adapter does when the line to its engine breaks (Contract editor 1.5, 3.4).

Inherited by a test class that gives `facts`, the fixture `server` (host and port of a real engine) and the fixture
`engine_at` (makes the engine for another port of this machine; in tests with "silence" in their name its connect limit
is at most 3 s). The proxy between them breaks the line; what the adapter then says, and how soon, is the rule.
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
"""Enough of the answer for the first rows, far from all of it."""
_LOST = (OutcomeUnknown, EngineTimeout)
_NOT_SENT = (SessionLost, EngineUnavailable)
BREAKS = (Fault.RESET, Fault.CUT, Fault.GARBAGE)


@pytest.mark.capability("A broken connection is reported in time")
class FaultsContract(EngineBasis):
    """Each test begins with an engine behind a proxy that passes everything on."""

    limit_s: ClassVar[float] = 60.0
    """By when the outcome must be there: longer than the adapter's own limits, on a busy machine too."""
    session_options: ClassVar[SessionOptions] = NO_OPTIONS
    reconnects: ClassVar[bool] = False
    """The protocol survives the loss of a connection: then the rows may also arrive whole."""

    @pytest.fixture
    async def proxy(self, server: tuple[str, int]) -> AsyncGenerator[FaultProxy]:
        async with fault_proxy(*server) as proxy:
            yield proxy

    @pytest.fixture
    async def engine(self, proxy: FaultProxy, engine_at: Callable[[int], Engine]) -> AsyncGenerator[Engine]:
        """After each test: every connection is closed, and no task is left."""
        with tasks_begun() as begun:
            engine = engine_at(proxy.port)
            yield engine
            await engine.close()
            await proxy.closed()
            assert not [repr(task) for task in begun.left() if task.get_name() != "fault proxy"]

    @pytest.fixture
    def is_at_engine(self) -> Callable[[], Awaitable[bool]]:
        """Whether the engine has begun a slow statement; for engines that are not asked, `started` says so."""

        async def at_once() -> bool:
            return True

        return at_once

    async def works_again(self, engine: Engine, proxy: FaultProxy) -> None:
        """The line is whole again, and so is the next statement in a new session."""
        await proxy.listen()
        async with asyncio.timeout(self.limit_s), engine.session(USER, self.session_options) as session:
            assert (await run(session, self.facts.rows_sql(3))).rows == [(0,), (1,), (2,)]

    async def not_opened(self, engine: Engine) -> EngineError:
        """The error of a session that cannot be opened; adapters may connect at the first statement."""
        async with asyncio.timeout(self.limit_s):
            with pytest.raises(EngineError) as raised:
                async with engine.session(USER, self.session_options) as session:
                    await run(session, self.facts.rows_sql(1))
        return raised.value

    @pytest.mark.item(70)
    async def test_an_engine_that_does_not_listen_is_unavailable(self, engine: Engine, proxy: FaultProxy) -> None:
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
    async def test_an_engine_that_cannot_be_talked_to_is_unavailable(
        self, engine: Engine, proxy: FaultProxy, fault: Fault
    ) -> None:
        proxy.set_fault(fault)
        error = await self.not_opened(engine)
        assert isinstance(error, EngineUnavailable)
        self.assert_tidy(error)
        await self.works_again(engine, proxy)

    @pytest.mark.parametrize("fault", BREAKS, ids=lambda fault: fault.name.lower())
    async def test_half_a_greeting_is_no_connection(self, engine: Engine, proxy: FaultProxy, fault: Fault) -> None:
        proxy.set_fault(fault, after_bytes=3)
        assert isinstance(await self.not_opened(engine), EngineUnavailable)
        await self.works_again(engine, proxy)

    async def test_an_engine_that_dies_in_mid_query_leaves_the_outcome_unknown(
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
    async def test_a_line_that_breaks_in_mid_query_leaves_the_outcome_unknown(
        self, engine: Engine, proxy: FaultProxy, fault: Fault
    ) -> None:
        async with asyncio.timeout(self.limit_s), engine.session(USER, self.session_options) as session:
            proxy.set_fault(fault, after_bytes=5)
            error = await self._broken(session, self.facts.rows_sql(_MANY_ROWS))
            assert error is None or isinstance(error, _LOST + _NOT_SENT), error
        await self.works_again(engine, proxy)

    @pytest.mark.parametrize("fault", BREAKS)
    async def test_a_line_that_breaks_in_mid_fetch_never_gives_part_of_the_rows_as_all(
        self, engine: Engine, proxy: FaultProxy, fault: Fault
    ) -> None:
        async with asyncio.timeout(self.limit_s), engine.session(USER, self.session_options) as session:
            proxy.set_fault(fault, after_bytes=_SOME_BYTES)
            error = await self._broken(session, self.facts.rows_sql(_MANY_ROWS))
            assert error is None or isinstance(error, _LOST), error
        await self.works_again(engine, proxy)

    async def test_an_engine_that_dies_in_mid_fetch_leaves_the_outcome_unknown(
        self, engine: Engine, proxy: FaultProxy
    ) -> None:
        async with (
            asyncio.timeout(self.limit_s),
            engine.session(USER, self.session_options) as session,
            operation(session, self.facts.rows_sql(5_000_000)) as handle,
        ):
            await ended(session, handle)
            with pytest.raises(_LOST):  # noqa: PT012 the first batch may come
                async for _ in session.batches(handle):
                    await proxy.die()
        await self.works_again(engine, proxy)

    async def test_an_engine_that_died_between_statements_is_not_waited_for(
        self, engine: Engine, proxy: FaultProxy
    ) -> None:
        async with asyncio.timeout(self.limit_s), engine.session(USER, self.session_options) as session:
            await run(session, self.facts.rows_sql(1))
            await proxy.die()
            with pytest.raises(_NOT_SENT + _LOST):
                await run(session, self.facts.rows_sql(1))
        await self.works_again(engine, proxy)

    @pytest.mark.slow
    async def test_silence_after_sending_can_be_left_in_time(self, engine: Engine, proxy: FaultProxy) -> None:
        async with asyncio.timeout(self.limit_s * 2):
            async with engine.session(USER, self.session_options) as session:
                proxy.set_fault(Fault.SILENCE)
                await self._left_in_time(session, self.facts.rows_sql(_MANY_ROWS))
        await self.works_again(engine, proxy)

    @pytest.mark.slow
    async def test_silence_in_mid_fetch_can_be_left_in_time(self, engine: Engine, proxy: FaultProxy) -> None:
        async with asyncio.timeout(self.limit_s * 2):
            async with engine.session(USER, self.session_options) as session:
                proxy.set_fault(Fault.SILENCE, after_bytes=_SOME_BYTES)
                await self._left_in_time(session, self.facts.rows_sql(5_000_000))
        await self.works_again(engine, proxy)

    async def test_answers_in_small_pieces_are_whole_in_the_end(self, engine: Engine, proxy: FaultProxy) -> None:
        proxy.set_fault(Fault.FRAGMENTS)
        async with asyncio.timeout(self.limit_s), engine.session(USER, self.session_options) as session:
            answer = await run(session, self.facts.rows_sql(2_000))
        assert answer.rows == [(number,) for number in range(2_000)]

    async def _broken(self, session: EngineSession, sql: str) -> EngineError | None:
        """The error that `sql` ends with; None when the adapter connected again and all rows came."""
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
        """Whoever waits for the statement comes back once it is canceled and closed."""
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
