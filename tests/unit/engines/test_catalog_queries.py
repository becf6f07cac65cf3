"""Catalog queries: quoting of names and literals, matching of names, and conversion of metadata rows."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from tests.fakes.engine import FakeEngine
from tests.timing import until

from queryserver.engines.catalog_queries import (
    Folding,
    build_summaries,
    escaped_literal,
    identifier,
    literal,
    match_name,
    name_candidates,
    qualified,
    read_rows,
)
from queryserver.engines.protocol import EngineSession, SessionOptions, TableSummary
from queryserver.errors.statements import EngineUnavailable, SessionLost, StatementRejected
from queryserver.identity.model import User

USER = User(id=1, username="ada")


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def session(engine: FakeEngine) -> AsyncGenerator[EngineSession]:
    async with engine.session(USER, SessionOptions()) as session:
        yield session


async def test_all_rows_are_returned_as_tuples(session: EngineSession) -> None:
    assert await read_rows(session, "rows 4500") == [(number,) for number in range(4500)]


async def test_row_limit_is_respected(session: EngineSession) -> None:
    assert len(await read_rows(session, "rows 4500", max_rows=2100)) == 2100


async def test_statement_without_result_set_has_no_rows(session: EngineSession) -> None:
    assert await read_rows(session, "ddl") == []


async def test_statement_failure_is_raised(session: EngineSession) -> None:
    with pytest.raises(StatementRejected, match="no such thing"):
        await read_rows(session, "fail no such thing")
    with pytest.raises(StatementRejected, match="half way"):
        await read_rows(session, "rows 5000 then fail half way")


async def test_canceling_reader_cancels_statement(engine: FakeEngine, session: EngineSession) -> None:
    reading = asyncio.create_task(read_rows(session, "sleep 30"))
    await until(lambda: engine.running)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert engine.cancels == 1
    assert engine.running == 0


async def test_lost_session_becomes_engine_unavailable(engine: FakeEngine) -> None:
    async with engine.session(USER, SessionOptions()) as session:
        pass
    with pytest.raises(SessionLost):
        await session.submit("rows 1")
    with pytest.raises(EngineUnavailable):
        await read_rows(session, "rows 1")


@pytest.mark.item(61)
@pytest.mark.parametrize(("wanted", "folding", "chosen"),
    [("Items", Folding.LOWER, "Items"), ("ITems", Folding.LOWER, "items"), ("iTEMS", Folding.UPPER, "ITEMS"),
    ("iTEMS", Folding.CASELESS, None), ("ORDERS", Folding.CASELESS, "Orders"), ("orders", Folding.LOWER, None),
    ("orders", Folding.UPPER, None), ("none", Folding.CASELESS, None)])  # fmt: skip
def test_exact_name_is_preferred_over_folded_name(wanted: str, folding: Folding, chosen: str | None) -> None:
    assert match_name(wanted, ["items", "Items", "ITEMS", "Orders"], folding) == chosen
    assert match_name(wanted, iter(["items", "Items", "ITEMS", "Orders"]), folding) == chosen


def test_spellings_contain_each_name_once() -> None:
    assert name_candidates("items", Folding.LOWER) == ("items",)
    assert name_candidates("Items", Folding.LOWER) == ("Items", "items")
    assert name_candidates("Items", Folding.CASELESS) == ("Items",)


async def test_other_tasks_run_while_rows_become_summaries() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    made = await build_summaries([(f"t{number}",) for number in range(20_000)], lambda row: TableSummary(row[0]))
    counting.cancel()
    assert [one.name for one in made] == [f"t{number}" for number in range(20_000)]
    assert turns >= 9


@pytest.mark.item(62)
def test_identifier_cannot_break_out_of_quotes() -> None:
    assert identifier('x"; DROP TABLE t; --') == '"x""; DROP TABLE t; --"'
    assert identifier("a`b", mark="`") == "`a``b`"
    assert qualified("a.b", "c`d", mark="`") == "`a.b`.`c``d`"


@pytest.mark.item(62)
def test_literal_cannot_break_out_of_quotes() -> None:
    assert literal("o'brien") == "'o''brien'"
    assert literal("back\\'slash") == "'back\\''slash'"
    assert escaped_literal("back\\'slash") == "'back\\\\\\'slash'"
