"""Errors of DuckDB, and results of very many columns."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pytest
from tests.cases import each

from queryserver.engines.duckdb.connection import (
    DuckdbAnswer,
    DuckdbConnection,
    opening_errors,
    statement_errors,
    take_wide_place,
)
from queryserver.engines.threaded import Interrupted
from queryserver.errors.statements import EngineError, EngineUnavailable, SessionLost, StatementRejected

CLASSES = sorted(
    {
        member
        for member in vars(duckdb).values()
        if isinstance(member, type) and issubclass(member, Exception) and member is not duckdb.Warning  # PEP 249's
    },
    key=lambda member: member.__name__,
)
MEANINGS: dict[type[Exception], type[EngineError]] = {
    duckdb.InterruptException: Interrupted,
    duckdb.ConnectionException: SessionLost,
}


def test_the_driver_has_the_exceptions_that_we_walk() -> None:
    assert len(CLASSES) >= 28


@each("raised", CLASSES)
def test_every_exception_of_a_statement_becomes_a_domain_error(raised: type[Exception]) -> None:
    with pytest.raises(EngineError) as caught, statement_errors(None):
        raise raised("Some Error: what happened")
    assert type(caught.value) is MEANINGS.get(raised, StatementRejected)


@each("raised", CLASSES)
def test_every_exception_of_opening_means_that_the_engine_is_unavailable(raised: type[Exception]) -> None:
    with pytest.raises(EngineUnavailable), opening_errors():
        raise raised("Some Error: /srv/data/x.duckdb held by PID 42")


def test_arrow_s_reader_hands_on_what_the_engine_says() -> None:
    with pytest.raises(StatementRejected, match=r"^Invalid Input Error: boom$"), statement_errors(None):
        raise OSError("Invalid Input Error: boom")
    with pytest.raises(Interrupted), statement_errors(None):
        raise OSError("INTERRUPT Error: Interrupted!")


def test_paths_and_traces_are_cut() -> None:
    text = 'IO Error: no room in "/srv/data/x.duckdb"\n\nStack Trace:\n/usr/lib/x.so(+0x1)'
    with pytest.raises(StatementRejected) as caught, statement_errors(Path("/srv/data")):
        raise duckdb.IOException(text)
    assert caught.value.message == 'IO Error: no room in "x.duckdb"'


_WIDE = "SELECT " + ", ".join(f"range AS c{number}" for number in range(600)) + " FROM range(3)"


def opened(user_id: int) -> DuckdbConnection:
    return DuckdbConnection(duckdb.connect(":memory:"), Path("/nowhere"), user_id=user_id)


def rows(answer: DuckdbAnswer) -> int:
    return sum(batch.num_rows for batch in answer.next_batches())


def test_a_second_result_of_a_user_waits_for_the_first() -> None:
    first, second = opened(7001), opened(7001)
    answer = first.run(_WIDE)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(second.run, _WIDE)
        assert rows(answer) == 3
        assert not waiting.done()
        answer.close()
        following = waiting.result(timeout=60)
    assert rows(following) == 3
    following.close()
    first.close()
    second.close()


def test_a_result_that_is_never_closed_is_not_waited_for_for_ever() -> None:
    first, second = opened(7002), opened(7002)
    answer = first.run(_WIDE)
    with pytest.raises(StatementRejected, match="500 columns"):
        take_wide_place(7002, wait_s=0.01)
    answer.close()
    second.run(_WIDE).close()
    first.close()
    second.close()


def test_a_failing_statement_frees_its_place() -> None:
    first = opened(7003)
    with pytest.raises(StatementRejected):
        first.run(_WIDE.replace("range AS c0", "CAST('x' || range AS INTEGER) AS c0"))
    first.run(_WIDE).close()
    first.close()
