"""The contract of every engine adapter (engines/protocol.py), as one test suite.

Each adapter has a test class that inherits `EngineContract`, declares its `facts`, and provides the fixtures `engine`
and `unreachable_engine`. Its `known_failures` map a test name to a mark (`notimpl`, `notyet` or `never`) with a reason.
If a marked test passes, the run fails (conftest.py).
"""

import asyncio
import time
from contextlib import aclosing

import psutil
import pytest
from tests.cases import every_case
from tests.contract.engine_basis import NO_OPTIONS, STOP_S, USER
from tests.contract.engine_driving import Footprint, count_rows, ended, failure, operation, patient_poll, run, started
from tests.contract.engine_facts import SessionState
from tests.contract.engine_parameters import ParameterContract
from tests.contract.engine_stopping import StoppingContract
from tests.tasks import tasks_begun
from tests.timing import at_best, soon

from queryserver.engines.protocol import Engine, EngineSession, OperationState, SessionOptions
from queryserver.errors.statements import EngineUnavailable, StatementRejected
from queryserver.sql.positions import position_of

MIB = 1024 * 1024
AWKWARD_TEXT = "Zoë 🐘 日本 ' '' \" \\ \\n % %s %(x)s {y} :z ? $1 `b` -- /* \t\n end"


class EngineContract(ParameterContract, StoppingContract):
    """The engine tests. Each adapter has a test class that inherits them."""

    @pytest.mark.item(10)
    @pytest.mark.capability("Run and follow")
    async def test_submit_returns_before_slow_statement_finishes(self, session: EngineSession) -> None:
        async def submit() -> tuple[float, None]:
            begun = time.monotonic()
            async with operation(session, self.facts.slow_sql) as handle:
                took_s = time.monotonic() - begun
                assert not (await session.poll(handle)).state.is_terminal
            return took_s, None

        await at_best(submit, below_s=self.facts.submit_within_s)

    @pytest.mark.capability("Run and follow")
    async def test_poll_without_wait_returns_immediately(self, session: EngineSession) -> None:
        async def ten_times() -> None:
            for _ in range(10):
                await session.poll(handle)

        async with operation(session, self.facts.slow_sql) as handle:
            await soon(ten_times, within_s=1)

    @pytest.mark.capability("Run and follow")
    async def test_poll_of_running_statement_waits_as_requested(self, session: EngineSession) -> None:
        async def wait() -> None:
            begun = time.monotonic()
            status = await patient_poll(session, handle, wait_s=0.3)
            assert time.monotonic() - begun > 0.27
            assert status.state in {OperationState.PENDING, OperationState.RUNNING}

        async with operation(session, self.facts.slow_sql) as handle:
            await soon(wait, within_s=2.5)

    @pytest.mark.capability("Run and follow")
    async def test_poll_returns_early_when_statement_finishes(self, session: EngineSession) -> None:
        async def poll() -> tuple[float, OperationState]:
            async with operation(session, self.facts.rows_sql(3)) as handle:
                begun = time.monotonic()
                status = await patient_poll(session, handle, wait_s=20)
                return time.monotonic() - begun, status.state

        assert await at_best(poll, below_s=10) is OperationState.FINISHED

    @pytest.mark.capability("Progress")
    async def test_progress_is_percentage_or_unknown(self, engine: Engine, session: EngineSession) -> None:
        async with operation(session, self.facts.slow_sql) as handle:
            await started(session, handle)
            progress = (await session.poll(handle)).progress
            assert progress is None or 0 <= progress <= 100
            assert engine.capabilities.reports_progress == (progress is not None)

    @pytest.mark.capability("Run and follow")
    async def test_logs_are_lines(self, session: EngineSession) -> None:
        async with operation(session, self.facts.rows_sql(3)) as handle:
            await ended(session, handle)
            lines = await session.logs(handle, start=0)
            assert all(isinstance(line, str) and "\n" not in line for line in lines)
            # Hive writes its last log line only after it has reported completion.
            later = await session.logs(handle, start=len(lines))
            again = list(await session.logs(handle, start=0))
            assert again[: len(lines) + len(later)] == [*lines, *later]

    @pytest.mark.capability("Run and follow")
    async def test_rows_keep_engine_order(self, session: EngineSession) -> None:
        answer = await run(session, self.facts.rows_sql(25_000))
        assert [row[0] for row in answer.rows] == list(range(25_000))
        assert len(answer.columns) == 1

    @pytest.mark.capability("Run and follow")
    async def test_query_has_result_set_and_modifies_no_rows(self, session: EngineSession) -> None:
        answer = await run(session, self.facts.rows_sql(2))
        assert answer.status.state is OperationState.FINISHED
        assert answer.status.has_result_set
        assert not answer.status.modified_rows

    @pytest.mark.capability("Run and follow")
    async def test_empty_result_still_has_columns(self, session: EngineSession) -> None:
        answer = await run(session, self.facts.no_rows_sql)
        assert [column.name for column in answer.columns] == ["a", "b"]
        assert answer.rows == []

    @pytest.mark.capability("Run and follow")
    async def test_column_names_may_repeat(self, session: EngineSession) -> None:
        answer = await run(session, self.facts.duplicate_columns_sql)
        assert [column.name for column in answer.columns] == ["a", "a"]
        assert answer.rows == [(1, 2)]

    @pytest.mark.item(31)
    @pytest.mark.capability("Columns and values with their types")
    async def test_type_names_follow_contract(self, session: EngineSession) -> None:
        assert self.facts.types
        with every_case() as attempt:
            for fact in self.facts.types:
                with attempt(fact.name):
                    for statement in fact.setup:
                        await run(session, statement)
                    answer = await run(session, fact.sql)
                    [column] = answer.columns
                    assert (column.type, column.native_type) == (fact.type, fact.native_type)
                    assert answer.rows == [(fact.value,), (None,)]
                    assert type(answer.cell) is type(fact.value)

    @pytest.mark.capability("Large results in flat memory")
    async def test_wide_rows_make_small_batches(self, session: EngineSession) -> None:
        async with operation(session, self.facts.wide_rows_sql(64, 1_000_000)) as handle:
            await ended(session, handle)
            seen = [(batch.num_rows, batch.nbytes) async for batch in session.batches(handle)]
        assert sum(rows for rows, _ in seen) == 64
        assert max(size for _, size in seen) <= 8 * MIB

    @pytest.mark.item(34)
    @pytest.mark.capability("Large results in flat memory")
    @pytest.mark.slow
    async def test_memory_stays_flat_while_a_large_result_passes(self, session: EngineSession) -> None:
        process, rows, peak = psutil.Process(), 0, 0
        await run(session, self.facts.wide_rows_sql(20_000, 200))
        before = process.memory_info().rss
        async with operation(session, self.facts.wide_rows_sql(self.facts.many_rows, 200)) as handle:
            await ended(session, handle)
            async for batch in session.batches(handle):
                rows += batch.num_rows
                peak = max(peak, process.memory_info().rss)
        assert rows == self.facts.many_rows
        assert peak - before < 100 * MIB

    @pytest.mark.capability("Abandoned statements are stopped")
    async def test_partially_read_result_frees_the_session(self, engine: Engine, session: EngineSession) -> None:
        async with operation(session, self.facts.rows_sql(50_000_000)) as handle:
            await ended(session, handle)
            async with aclosing(session.batches(handle)) as batches:  # type: ignore[type-var]
                first = await anext(batches)
            assert first.num_rows > 0
        await self.eventually_idle(engine)
        assert not await session.is_alive() or (await run(session, self.facts.rows_sql(1))).rows == [(0,)]

    @pytest.mark.capability("Abandoned statements are stopped")
    async def test_unread_result_frees_the_session(self, engine: Engine, session: EngineSession) -> None:
        async with operation(session, self.facts.rows_sql(50_000_000)) as handle:
            await ended(session, handle)
        await self.eventually_idle(engine)
        assert not await session.is_alive() or (await run(session, self.facts.rows_sql(1))).rows == [(0,)]

    @pytest.mark.capability("Abandoned statements are stopped")
    async def test_canceled_reader_frees_the_session(self, engine: Engine) -> None:
        """The reading task is canceled while it reads batches."""
        is_reading = asyncio.Event()

        async def read_all(session: EngineSession) -> None:
            async with operation(session, self.facts.rows_sql(50_000_000)) as handle:
                await ended(session, handle)
                async for _ in session.batches(handle):
                    is_reading.set()

        async with engine.session(USER, NO_OPTIONS) as session:
            reader = asyncio.create_task(read_all(session))
            await asyncio.wait_for(is_reading.wait(), 30)
            reader.cancel()
            async with asyncio.timeout(STOP_S):
                await asyncio.gather(reader, return_exceptions=True)
        await self.eventually_idle(engine)

    @pytest.mark.item(14)
    @pytest.mark.capability("Changes are counted and committed")
    async def test_changes_report_modified_rows(self, session: EngineSession, table: str) -> None:
        for change in self.facts.changes:
            answer = await run(session, change.sql.replace("{t}", table))
            assert answer.status.state is OperationState.FINISHED, change.sql
            assert answer.status.has_result_set == change.has_result_set, change.sql
            assert answer.status.modified_rows == change.rows, change.sql

    @pytest.mark.capability("Changes are counted and committed")
    async def test_change_is_visible_to_the_next_session(self, engine: Engine, table: str) -> None:
        """Each statement is committed before the engine reports its completion."""
        for change in self.facts.changes:
            async with engine.session(USER, NO_OPTIONS) as session:
                await run(session, change.sql.replace("{t}", table))

    @pytest.mark.item(15)
    @pytest.mark.capability("Errors in the engine's own words")
    async def test_unknown_table_is_reported_with_the_engine_message(self, session: EngineSession) -> None:
        error = await failure(session, self.facts.bad_table_sql)
        assert isinstance(error, StatementRejected)
        assert self.facts.bad_table_message in error.message
        self.assert_tidy(error)

    @pytest.mark.capability("Errors in the engine's own words")
    async def test_syntax_error_has_position(self, session: EngineSession) -> None:
        sql = self.facts.misspelled_sql
        error = await failure(session, sql)
        assert isinstance(error, StatementRejected)
        found = position_of(error.location, sql)
        assert (found and (found.line, found.column)) == self.facts.misspelled_at, error.message

    @pytest.mark.capability("Errors in the engine's own words")
    async def test_session_stays_usable_after_failed_statement(self, session: EngineSession) -> None:
        await failure(session, self.facts.bad_table_sql)
        assert await session.is_alive()
        assert (await run(session, self.facts.rows_sql(1))).rows == [(0,)]

    @pytest.mark.capability("Errors in the engine's own words")
    async def test_failed_statement_stays_failed(self, session: EngineSession) -> None:
        try:
            handle = await session.submit(self.facts.bad_table_sql)
        except StatementRejected:
            return
        first, second = await ended(session, handle), await session.poll(handle)
        assert first.state is second.state is OperationState.FAILED
        assert first.error is not None
        assert not first.has_result_set
        await session.close(handle)

    @pytest.mark.capability("Errors in the engine's own words")
    async def test_failure_during_fetch_ends_the_rows(self, session: EngineSession) -> None:
        if self.facts.fails_midway_sql is None:
            pytest.skip("no statement of this engine fails after its first rows")
        async with operation(session, self.facts.fails_midway_sql) as handle:
            assert (await ended(session, handle)).state is OperationState.FINISHED
            with pytest.raises(StatementRejected) as caught:
                await count_rows(session, handle)
        self.assert_tidy(caught.value)
        assert not await session.is_alive() or (await run(session, self.facts.rows_sql(1))).rows == [(0,)]

    @pytest.mark.capability("Unknown databases and settings are refused")
    async def test_unknown_database_is_refused(self, engine: Engine) -> None:
        for name in (self.facts.unknown_database, self.facts.unknown_database + "\"'`; DROP TABLE x"):
            with pytest.raises(StatementRejected) as caught:
                async with engine.session(USER, SessionOptions(database=name)):
                    pass
            self.assert_tidy(caught.value)

    @pytest.mark.capability("Unknown databases and settings are refused")
    async def test_known_database_is_accepted(self, engine: Engine) -> None:
        async with engine.session(USER, SessionOptions(database=self.facts.known_database)) as session:
            assert (await run(session, self.facts.rows_sql(1))).rows == [(0,)]

    @pytest.mark.security("T11")
    @pytest.mark.capability("Unknown databases and settings are refused")
    async def test_unknown_setting_is_refused(self, engine: Engine) -> None:
        options = SessionOptions(settings={"no_such_setting = 1; DROP TABLE x": "1"})
        with pytest.raises(StatementRejected) as caught:
            async with engine.session(USER, options):
                pass
        self.assert_tidy(caught.value)

    @pytest.mark.item(50)
    @pytest.mark.capability("State of a session")
    async def test_session_state_is_isolated(self, engine: Engine, session: EngineSession) -> None:
        assert self.facts.session_state
        for state in self.facts.session_state:
            await run(session, state.make)
            assert (await run(session, state.look)).cell == state.value, state.name
            async with engine.session(USER, NO_OPTIONS) as other:
                assert await self._look(other, state) != state.value, state.name

    async def _look(self, session: EngineSession, state: SessionState) -> object:
        try:
            return (await run(session, state.look)).cell
        except StatementRejected:
            return None

    @pytest.mark.capability("Many sessions side by side")
    async def test_sessions_work_concurrently(self, engine: Engine, session: EngineSession) -> None:
        async with operation(session, self.facts.slow_sql) as handle:
            await started(session, handle)
            async with engine.session(USER, NO_OPTIONS) as other, asyncio.timeout(STOP_S):
                assert len((await run(other, self.facts.rows_sql(1000))).rows) == 1000
            assert not (await session.poll(handle)).state.is_terminal

    @pytest.mark.capability("Many sessions side by side")
    async def test_event_loop_stays_responsive_while_engine_works(self, session: EngineSession) -> None:
        async def worst_of_many() -> tuple[float, None]:
            worst = 0.0
            async with operation(session, self.facts.slow_sql) as handle:
                for _ in range(20):
                    begun = time.monotonic()
                    await asyncio.sleep(0.01)
                    worst = max(worst, time.monotonic() - begun)
                await session.cancel(handle)
            return worst, None

        await at_best(worst_of_many, below_s=0.5)

    @pytest.mark.capability("Many sessions side by side")
    @pytest.mark.slow
    async def test_many_sessions_leave_nothing_behind(self, engine: Engine) -> None:
        with tasks_begun() as begun:
            for _ in range(20):
                await self._short_session(engine)
            before = Footprint.now(begun)
            for _ in range(self.facts.many_sessions):
                await self._short_session(engine)
            after = Footprint.now(begun)
        assert after.tasks <= before.tasks
        assert after.threads <= before.threads + 10  # a thread pool may still grow up to its limit
        assert after.files <= before.files + 2
        await self.eventually_idle(engine)

    async def _short_session(self, engine: Engine) -> None:
        async with engine.session(USER, NO_OPTIONS) as session:
            assert (await run(session, self.facts.rows_sql(1))).rows == [(0,)]

    @pytest.mark.item(5)
    @pytest.mark.capability("Any text, up to a megabyte")
    async def test_awkward_text_round_trips(self, session: EngineSession) -> None:
        assert (await run(session, self.facts.text_sql(AWKWARD_TEXT))).rows == [(AWKWARD_TEXT,)]

    @pytest.mark.capability("Any text, up to a megabyte")
    async def test_statement_may_be_a_megabyte_long(self, session: EngineSession) -> None:
        text = "x" * 1_000_000
        assert (await run(session, self.facts.text_sql(text))).rows == [(text,)]

    @pytest.mark.capability("Any text, up to a megabyte")
    async def test_empty_statement_is_harmless(self, session: EngineSession) -> None:
        for text in self.facts.nothing_sql:
            try:
                assert not (await run(session, text)).status.has_result_set, text
            except StatementRejected as error:
                self.assert_tidy(error)
        assert (await run(session, self.facts.rows_sql(1))).rows == [(0,)]

    @pytest.mark.capability("Run and follow")
    async def test_ping_of_healthy_engine_succeeds(self, engine: Engine) -> None:
        await engine.ping()

    @pytest.mark.item(70)
    @pytest.mark.capability("An unreachable engine is reported in time")
    async def test_unreachable_engine_is_reported(self, unreachable_engine: Engine) -> None:
        with pytest.raises(EngineUnavailable) as caught:
            async with asyncio.timeout(60), unreachable_engine.session(USER, NO_OPTIONS):
                pass
        self.assert_tidy(caught.value)
        with pytest.raises(EngineUnavailable) as caught:
            async with asyncio.timeout(60):
                await unreachable_engine.ping()
        self.assert_tidy(caught.value)

    @pytest.mark.capability("Run and follow")
    async def test_engine_close_is_idempotent(self, engine: Engine) -> None:
        await engine.ping()
        await engine.close()
        await engine.close()

    @pytest.mark.capability("Run and follow")
    async def test_closed_engine_opens_no_session(self, engine: Engine) -> None:
        await engine.close()
        with pytest.raises(EngineUnavailable):
            async with engine.session(USER, NO_OPTIONS):
                pass
