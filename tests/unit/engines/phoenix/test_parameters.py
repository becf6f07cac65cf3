"""The parameter values that Phoenix accepts, and the SQL that is written for them (ADR 61)."""

import pytest

from queryserver.engines.phoenix.protocol import PARAMETERS, mark
from queryserver.errors.base import InvalidParameter
from queryserver.sql.parameters import read_parameters


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"type": "time", "value": "10:20:30.0001"}, "its time is more precise than milliseconds"),
        ({"type": "timestamp", "value": "1500-01-01 00:00:00.0001"}, "its date is before 1583"),
        ([], "empty arrays are not supported"),
        ([None, None], "only arrays of strings can contain NULL"),
        ([1, None], "only arrays of strings can contain NULL"),
        ([["a"], ["b"]], "arrays can contain only numbers, strings, dates and times"),
        ([{"type": "binary", "value": "AP8="}], "arrays can contain only numbers, strings, dates and times"),
        ([{"type": "date", "value": "1582-10-14"}], "dates in arrays must be later than 1582"),
        ([{"type": "time", "value": "10:20:30.0001"}], "its time is more precise than milliseconds"),
        ([{"type": "timestamp", "value": "2024-01-31 10:20:30.1234"}], "its time is more precise than milliseconds"),
    ],
)
def test_value_unsupported_by_phoenix_is_refused_with_reason(value: object, reason: str):
    with pytest.raises(
        InvalidParameter, match=f"parameters: 2 has a value that this connector cannot represent: .*{reason}"
    ):
        PARAMETERS.require(read_parameters([1, value]))


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("it's", "?"),
        (None, "?"),
        ({"type": "array", "value": None}, "?"),
        ([1, -5], "ARRAY[CAST(1 AS BIGINT), CAST(-5 AS BIGINT)]"),
        ([1, 2.5], "ARRAY[CAST(1.0 AS DOUBLE), CAST(2.5 AS DOUBLE)]"),
        ([1, {"type": "decimal", "value": "1.50"}], "ARRAY[CAST(1 AS DECIMAL), CAST(1.50 AS DECIMAL)]"),
        (["it's", "a\\'b", None], r"ARRAY['it''s', 'a\\''b', NULL]"),
    ],
)
def test_arrays_become_literals_and_other_values_are_bound(value: object, written: str):
    parameters = read_parameters([value])
    PARAMETERS.require(parameters)
    assert mark(0, parameters.by_position[0]) == written
