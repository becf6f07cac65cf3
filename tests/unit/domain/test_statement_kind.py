"""What the first words of a statement tell, and what a read-only connector makes of it."""

import pytest

from queryserver.sql.splitter import changes_data, refusal_where_read_only

COLUMNS = ", ".join(f"updated_at_{number}, ⌘{number}" for number in range(30_000))
LONG_QUERY = f"with a as (select 1) select {COLUMNS} from a"


@pytest.mark.parametrize(
    "text",
    ["select 1", "WITH a AS (SELECT 1) SELECT * FROM a", "-- x\n(values (1))", LONG_QUERY],
    ids=["select", "with", "values", "long"],
)
def test_a_query_runs_where_nothing_may_be_changed(text: str):
    assert not changes_data(text, "postgresql")
    assert refusal_where_read_only(text, "postgresql") is None


@pytest.mark.parametrize(
    "text",
    [
        "delete from t",
        "with a as (DELETE from t returning *) select * from a",
        "explain analyze Update t set a = 1",
        LONG_QUERY + " union all select 1; merge into t",
        "with \ud800 as (insert into t values (1) returning 1) select 1",
    ],
    ids=["delete", "with", "explain", "long", "half-a-pair"],
)
def test_a_change_is_refused_where_nothing_may_be_changed(text: str):
    assert changes_data(text, "postgresql")
    assert refusal_where_read_only(text, "postgresql") == "This connector is read-only."


@pytest.mark.parametrize(
    "text",
    ["with a as (select 1) select " + "a, " * 400_000, "--" + "x" * 70_000 + "\nselect 1"],
    ids=["long", "late-word"],
)
def test_a_statement_that_is_too_long_to_be_sure_of_is_refused_with_the_reason(text: str):
    told = refusal_where_read_only(text, "postgresql")
    assert told is not None
    assert "too long" in told
