"""The contract of read-only statements (Contract editor 4.9), as one test suite for every engine adapter.

Each test runs one known way around read-only modes: in a session of its own, each statement with a context that is
`read_only`. Afterward another session compares the data with what it was before. An engine that does not declare
`enforces_read_only` relies on the strict rule about kinds of statements, which is then applied before each statement,
as `statements/submission.py` does.

An adapter's test class inherits `ReadOnlyContract` and declares `read_only`: how to create a table, what to compare,
and the engine's own ways around.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from tests.contract.engine_basis import NO_OPTIONS, USER, EngineBasis
from tests.contract.engine_driving import Answer, ended, read, run

from queryserver.engines.protocol import Engine, EngineSession, OperationState, StatementContext
from queryserver.errors.statements import EngineError, StatementRejected
from queryserver.sql.classification import read_only_refusal
from queryserver.sql.markers import BoundStatement, StatementParameters
from queryserver.sql.parameters import read_parameter_rows, read_parameters

READ_ONLY = StatementContext(user="ada", operation_id="0b5f6a2e", connector="docs", read_only=True)
ROWS = 3
"""The number of rows in the table before each test."""


@dataclass(frozen=True, slots=True)
class Bypass:
    """A known way around a read-only mode. In all texts, `{t}` is the table.

    `before` are statements that may change data: a user runs them earlier in the same session.
    """

    name: str
    statements: tuple[str, ...]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    """Statements that clean up what `before` has made, run last in another session."""
    values: tuple[Any, ...] = ()
    """The values of the markers `?` in `statements`."""
    rows: tuple[tuple[Any, ...], ...] = ()
    """The values of several rows, in place of `values`."""
    is_refused: bool = True
    """Whether at least one of the statements fails. Otherwise they must only have no effect."""
    probes: tuple[str, ...] = ()
    """Queries whose results must be the same before and after, in addition to those of the engine."""


@dataclass(frozen=True, slots=True)
class ReadOnlyFacts:
    """How an engine's tests create and compare data. In all texts, `{t}` is the name of a table."""

    setup: tuple[str, ...] = ("CREATE TABLE {t} (a integer)", "INSERT INTO {t} VALUES (1), (2), (3)")
    probes: tuple[str, ...] = ("SELECT a FROM {t} ORDER BY a",)
    """Queries whose results must be the same before and after: the rows, and the names of all objects."""
    cleanup: tuple[str, ...] = ("DROP TABLE {t}",)
    bypasses: tuple[Bypass, ...] = ()
    """The engine's own ways around, in addition to `COMMON`."""
    reads: tuple[str, ...] = ()
    """Statements that must run, and return rows, although they are read-only."""
    insert: str = "INSERT INTO {t} VALUES ({n})"
    """Adds a row with the number `{n}`."""
    lacking: Mapping[str, str] = field(default_factory=dict[str, str])
    """The names of common ways around that this engine's tests leave out, with reasons."""


COMMON = (
    Bypass("insert", ("INSERT INTO {t} VALUES (4)",)),
    Bypass("update", ("UPDATE {t} SET a = 9",)),
    Bypass("delete", ("DELETE FROM {t}",)),
    Bypass("lower_case", ("delete from {t}",)),
    Bypass("merge", ("MERGE INTO {t} USING (SELECT 1 AS b) s ON {t}.a = s.b WHEN MATCHED THEN DELETE",)),
    Bypass("truncate", ("TRUNCATE TABLE {t}",)),
    Bypass("drop", ("DROP TABLE {t}",)),
    Bypass("alter", ("ALTER TABLE {t} RENAME TO {t}_x",)),
    Bypass("create", ("CREATE TABLE {t}_x (a integer)",)),
    Bypass("create_as", ("CREATE TABLE {t}_x AS SELECT * FROM {t}",)),
    Bypass("create_view", ("CREATE VIEW {t}_v AS SELECT * FROM {t}",)),
    Bypass("block_comment_first", ("/* SELECT 1 */ DELETE FROM {t}",)),
    Bypass("line_comment_first", ("-- SELECT 1\nDELETE FROM {t}",)),
    Bypass("comments_first", ("/* a */ -- b\n/* c */\n\t DELETE FROM {t}",)),
    # A query where comments do not nest.
    Bypass("nested_comment_first", ("/* /* */ SELECT 1 -- */ DELETE FROM {t}",), is_refused=False),
    Bypass("comment_in_keyword", ("DELETE/**/FROM/**/{t}",)),
    Bypass("semicolon_first", ("; DELETE FROM {t}",)),
    Bypass("parenthesis_first", ("(DELETE FROM {t})",)),
    Bypass("two_statements", ("SELECT 1; DELETE FROM {t}",)),
    Bypass("commit_and_drop", ("COMMIT; DROP TABLE {t}",)),
    Bypass("commit_then_drop", ("COMMIT", "DROP TABLE {t}")),
    Bypass("rollback_and_delete", ("SELECT 1; ROLLBACK; DELETE FROM {t}; COMMIT",)),
    Bypass("own_transaction", ("BEGIN", "DELETE FROM {t}", "COMMIT")),
    Bypass("with_delete", ("WITH d AS (DELETE FROM {t} RETURNING a) SELECT * FROM d",)),
    Bypass("with_before_delete", ("WITH d AS (SELECT 1 AS b) DELETE FROM {t} WHERE a IN (SELECT b FROM d)",)),
    Bypass("with_before_insert", ("WITH d AS (SELECT 7 AS a) INSERT INTO {t} SELECT a FROM d",)),
    Bypass("explain_analyze", ("EXPLAIN ANALYZE DELETE FROM {t}",)),
    Bypass("explain_analyze_with", ("EXPLAIN ANALYZE WITH d AS (SELECT 1) DELETE FROM {t}",)),
    Bypass("select_into", ("SELECT * INTO {t}_x FROM {t}",)),
    Bypass("from_insert", ("FROM {t} INSERT INTO {t} SELECT a",)),
    Bypass("execute_prepared", ("PREPARE gone FROM DELETE FROM {t}", "EXECUTE gone")),
    Bypass("call", ("CALL no_such_procedure()",)),
    Bypass("set", ("SET transaction_read_only = off", "DELETE FROM {t}")),
    Bypass("markers", ("DELETE FROM {t} WHERE a = ?",), values=(1,)),
    Bypass("markers_in_with", ("WITH d AS (DELETE FROM {t} WHERE a = ? RETURNING a) SELECT * FROM d",), values=(1,)),
    Bypass("rows_of_markers", ("INSERT INTO {t} VALUES (?)",), rows=((7,), (8,))),
)
"""What got around the read-only modes of other programs, in words that at least one engine accepts."""


class ReadOnlyContract(EngineBasis):
    """The tests of read-only statements. Each adapter has a test class that inherits them."""

    read_only: ClassVar[ReadOnlyFacts]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "bypass" in metafunc.fixturenames:
            cases = [*(one for one in COMMON if one.name not in self.read_only.lacking), *self.read_only.bypasses]
            metafunc.parametrize("bypass", cases, ids=[one.name for one in cases])

    @pytest.fixture
    async def filled(self, engine: Engine, table: str) -> AsyncGenerator[str]:
        """Return the name of a table with `ROWS` rows."""
        await self._run_each(engine, self.read_only.setup, table)
        yield table
        for sql in self.read_only.cleanup:
            with suppress(EngineError):
                await self._run_each(engine, [sql], table)

    @pytest.mark.item(111)
    async def test_read_only_statement_changes_nothing(self, engine: Engine, filled: str, bypass: Bypass) -> None:
        probes = (*self.read_only.probes, *bypass.probes)
        failures = list[EngineError]()
        async with engine.session(USER, NO_OPTIONS) as session:
            for sql in bypass.before:
                await run(session, sql.replace("{t}", filled))
            before = await self._facts(engine, probes, filled)
            for sql in bypass.statements:
                try:
                    await self.run_read_only(engine, session, self._statement(engine, bypass, sql, filled))
                except EngineError as error:
                    failures.append(error)
        after = await self._facts(engine, probes, filled)
        for sql in bypass.after:
            with suppress(EngineError):
                await self._run_each(engine, [sql], filled)
        assert after == before
        assert failures or not bypass.is_refused
        for error in failures:
            self.assert_tidy(error)

    @pytest.mark.item(112)
    async def test_read_only_statement_may_read(self, engine: Engine, filled: str) -> None:
        async with engine.session(USER, NO_OPTIONS) as session:
            for sql in (f"SELECT a FROM {filled}", *self.read_only.reads):
                text = sql.replace("{t}", filled)
                assert (await self.run_read_only(engine, session, text)).rows, text

    @pytest.mark.item(112)
    async def test_read_only_statement_reads_many_rows(self, engine: Engine) -> None:
        async with engine.session(USER, NO_OPTIONS) as session:
            answer = await self.run_read_only(engine, session, self.facts.rows_sql(25_000))
        assert [row[0] for row in answer.rows] == list(range(25_000))

    @pytest.mark.item(112)
    async def test_session_may_change_data_after_read_only_statements(self, engine: Engine, filled: str) -> None:
        """After one that was read to its end, one that was left in the middle, and one that failed."""
        first, second, third = (self.read_only.insert.replace("{n}", str(number)) for number in (4, 5, 6))
        async with engine.session(USER, NO_OPTIONS) as session:
            await self.run_read_only(engine, session, self.facts.rows_sql(3))
            await run(session, first.replace("{t}", filled))
            handle = await session.submit(self.facts.rows_sql(200_000), READ_ONLY)
            await ended(session, handle)
            await session.close(handle)
            await run(session, second.replace("{t}", filled))
            with pytest.raises(EngineError):
                await self.run_read_only(engine, session, f"DELETE FROM {filled}")
            await run(session, third.replace("{t}", filled))
        found = await self._facts(engine, [f"SELECT count(*) FROM {filled}"], filled)
        assert found == [[(ROWS + 3,)]]

    async def run_read_only(self, engine: Engine, session: EngineSession, sql: str | BoundStatement) -> Answer:
        """Run a statement as the service runs a read-only one, and read all its rows. Raises EngineError."""
        text = sql if isinstance(sql, str) else sql.statement
        if not engine.capabilities.enforces_read_only:
            refusal = read_only_refusal(text, engine.dialect, strict=True, rule="read-only")
            if refusal is not None:
                raise StatementRejected(refusal)
        handle = await session.submit(sql, READ_ONLY)
        try:
            status = await ended(session, handle)
            if status.error is not None:
                raise status.error
            if not status.has_result_set:
                return Answer(status, (), [])
            columns, rows = await session.columns(handle), await read(session, handle)
            final = await session.poll(handle)
            assert final.state is OperationState.FINISHED
            return Answer(final, columns, rows)
        finally:
            await session.cancel(handle)
            await session.close(handle)

    async def refused(self, engine: Engine, session: EngineSession, sql: str) -> str:
        """Return the message of a read-only statement that must fail."""
        with pytest.raises(StatementRejected) as caught:
            await self.run_read_only(engine, session, sql)
        return caught.value.message

    def _statement(self, engine: Engine, bypass: Bypass, sql: str, table: str) -> str | BoundStatement:
        text = sql.replace("{t}", table)
        if bypass.rows:
            values = read_parameter_rows([list(row) for row in bypass.rows])
        elif bypass.values:
            values = read_parameters(list(bypass.values))
        else:
            return text
        return BoundStatement(text, engine.dialect, StatementParameters(values))

    async def _facts(self, engine: Engine, probes: Sequence[str], table: str) -> list[list[tuple[Any, ...]]]:
        async with engine.session(USER, NO_OPTIONS) as session:
            return [(await run(session, sql.replace("{t}", table))).rows for sql in probes]

    async def _run_each(self, engine: Engine, statements: Sequence[str], table: str) -> None:
        async with engine.session(USER, NO_OPTIONS) as session:
            for sql in statements:
                await run(session, sql.replace("{t}", table))
