"""The engine contract for the fake engine that service tests use."""

from collections.abc import AsyncGenerator, Mapping
from typing import ClassVar

import pytest
from tests.contract.engine_contract import NO_OPTIONS, USER, EngineContract
from tests.contract.engine_driving import operation, run
from tests.contract.engine_facts import Change, EngineFacts, SessionState, TypeFact
from tests.contract.engine_parameters import lacking
from tests.fakes.engine import FakeEngine

from queryserver.engines.protocol import Engine
from queryserver.formats.arrow import ResultType

FACTS = EngineFacts(
    slow_sql="sleep 30",
    rows_sql="rows {}".format,
    wide_rows_sql="rows {} wide {}".format,
    text_sql="text {}".format,
    bad_table_sql="fail no such table: t",
    bad_table_message="no such table: t",
    misspelled_at=None,
    types=(TypeFact("integer", "values 7 null", ResultType.BIGINT, "integer", 7),),
    changes=(
        Change("ddl"),
        Change("change 3", rows=3),
        Change("change 0", rows=0),
        Change("rows 2", has_result_set=True),
    ),
    session_state=(SessionState("variable", "set x 1", "get x", "1"),),
    unknown_database="no_such_database",
    known_database="main",
    duplicate_columns_sql="columns a a",
    no_rows_sql="columns a b then rows 0",
    fails_midway_sql="rows 100000 then fail boom",
    nothing_sql=("", "  \n"),
)


class TestFakeEngine(EngineContract):
    facts: ClassVar[EngineFacts] = FACTS
    known_failures: ClassVar[Mapping[str, pytest.MarkDecorator]] = lacking(
        pytest.mark.never("the scripts of the fake have no values")
    )

    @pytest.fixture
    async def engine(self) -> AsyncGenerator[FakeEngine]:
        engine = FakeEngine()
        yield engine
        await engine.close()

    @pytest.fixture
    def unreachable_engine(self) -> FakeEngine:
        engine = FakeEngine()
        engine.reachable = False
        return engine

    async def running_statements(self, engine: Engine) -> int:
        assert isinstance(engine, FakeEngine)
        return engine.running


async def test_fake_counts_engine_calls() -> None:
    engine = FakeEngine()
    async with engine.session(USER, NO_OPTIONS) as session:
        async with operation(session, "sleep 30") as handle:
            await session.cancel(handle)
            await session.cancel(handle)
        await run(session, "rows 3")
    assert engine.executions == ["sleep 30", "rows 3"]
    assert (engine.cancels, engine.sessions_opened, engine.running) == (1, 1, 0)
    await engine.close()
