"""Which values a script takes, before anything of it is recorded (docs/clients.md)."""

import pytest
from tests.cases import each

from queryserver.errors.base import InvalidParameter
from queryserver.sql.literals import HIVE
from queryserver.sql.parameters import MOST_VALUES, read_parameters
from queryserver.sql.places import script_places
from queryserver.statements.parameters import checked

LONG = "x" * 100_000
DIALECT = "hive"


def check(statement: str, values: object) -> None:
    given = read_parameters(values)
    places = script_places([statement], DIALECT, 0, named=given.are_named)
    checked(given, places, HIVE.support)


@each("times, values", [
    (100, {"a": LONG}),
    (MOST_VALUES, {"a": 1}),
    (MOST_VALUES, [1] * MOST_VALUES),
])  # fmt: skip
def test_a_value_may_stand_in_many_places(times: int, values: object):
    check("select " + ",".join([":a" if isinstance(values, dict) else "?"] * times), values)


@each("times, value, says", [
    (300, LONG, "16777216 bytes"),
    (9_000, ["x" * 2_000], "16777216 bytes"),
    (MOST_VALUES + 1, 1, f"{MOST_VALUES + 1} places"),
])  # fmt: skip
def test_many_places_do_not_multiply_a_value_without_bound(times: int, value: object, says: str):
    """Engines that bind no values get the value again in each of its places."""
    with pytest.raises(InvalidParameter, match=says) as refused:
        check("select :b," + ",".join([":a"] * (times - 1)), {"a": value, "b": value})
    assert LONG[:20] not in str(refused.value)
