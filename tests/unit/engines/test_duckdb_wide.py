"""Results of very many columns on DuckDB: a user reads one at a time."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pytest

from queryserver.engines.duckdb.connection import DuckdbAnswer, DuckdbConnection, take_wide_place
from queryserver.errors.statements import StatementRejected

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
