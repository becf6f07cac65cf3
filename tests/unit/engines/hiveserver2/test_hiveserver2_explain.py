"""Spark answers EXPLAIN of what it refuses with its complaint in place of the plan."""

import pytest

from queryserver.engines.hiveserver2.variants import SPARKSQL

REFUSED = "[TABLE_OR_VIEW_NOT_FOUND] The table or view `t` cannot be found.; line 1 pos 22;\n'Project [*]"


@pytest.mark.item(56)
@pytest.mark.parametrize(
    "before",
    ["== Physical Plan ==\norg.apache.spark.sql.AnalysisException: ", "Error occurred during query planning: \n"],
)
def test_a_complaint_in_place_of_a_plan_is_known(before: str) -> None:
    failure = SPARKSQL.capabilities.explain_failure
    assert failure is not None
    found = failure.match(before + REFUSED)
    assert found is not None
    assert (before + REFUSED)[found.end() :].strip() == REFUSED


@pytest.mark.item(56)
def test_a_plan_is_none() -> None:
    failure = SPARKSQL.capabilities.explain_failure
    assert failure is not None
    plan = "== Physical Plan ==\n*(1) Project [a.b.SomeException:  AS x#1]\n+- *(1) Scan OneRowRelation[]"
    assert failure.match(plan) is None
