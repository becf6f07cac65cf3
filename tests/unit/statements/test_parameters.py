"""Parameter values of a script, which are validated before anything is recorded (docs/clients.md)."""

import pytest
from pydantic import SecretStr

from queryserver.errors.base import InvalidParameter
from queryserver.identity.keys import AesSealer, Keyring, SecretKey
from queryserver.sql.literals import HIVE, SPARKSQL
from queryserver.sql.markers import StatementParameters, count_markers
from queryserver.sql.parameters import MAX_VALUES, read_parameters
from queryserver.statements.session_options import ParameterSealer, check_parameters

LONG = "x" * 100_000
DIALECT = "hive"


def check(statement: str, values: object) -> None:
    given = read_parameters(values)
    places = count_markers([statement], DIALECT, 0, named=given.are_named)
    check_parameters(given, places, HIVE.support)


@pytest.mark.parametrize(("times", "values"), [
    (100, {"a": LONG}),
    (MAX_VALUES, {"a": 1}),
    (MAX_VALUES, [1] * MAX_VALUES),
])  # fmt: skip
def test_value_may_be_used_by_many_markers(times: int, values: object):
    check("select " + ",".join([":a" if isinstance(values, dict) else "?"] * times), values)


@pytest.mark.parametrize(("kind", "value", "says"), [
    ("timestamp_tz", "0001-01-01T00:00:00+01:00", "not valid for its type timestamp_tz"),
    ("timestamp_tz", "9999-12-31 23:59:59.999999-00:01", "not valid for its type timestamp_tz"),
    ("timestamp_tz", "0000-01-01T00:00:00Z", "not valid for its type timestamp_tz"),
    ("decimal", 10**30, "send decimals as strings"),
    ("decimal", -(2**63) - 1, "send decimals as strings"),
    ("decimal", 12.5, "send decimals as strings"),
    ("decimal", True, "not valid for its type decimal"),
])  # fmt: skip
def test_value_that_cannot_be_transmitted_is_rejected(kind: str, value: object, says: str):
    for given in ({"type": kind, "value": value}, [{"type": kind, "value": value}]):
        with pytest.raises(InvalidParameter, match=says):
            read_parameters([given])


def test_extreme_valid_values_are_accepted():
    values = [
        {"type": "timestamp_tz", "value": "0001-01-01T00:00:00-01:00"},
        {"type": "timestamp_tz", "value": "9999-12-31 23:59:59.999999Z"},
        {"type": "decimal", "value": 2**63 - 1},
        {"type": "decimal", "value": "9" * 38},
    ]
    given = read_parameters(values)
    literals = [SPARKSQL.write(0, one) for one in given.by_position]
    assert literals[0] == "TIMESTAMP '0001-01-01 01:00:00+00:00'"
    assert literals[2] == "CAST('9223372036854775807' AS DECIMAL(19,0))"
    book = ParameterSealer(AesSealer(Keyring(SecretKey.derive(SecretStr("k" * 40)))))
    assert book.unseal(book.seal(StatementParameters(given))).values == given


@pytest.mark.parametrize(("times", "value", "says"), [
    (300, LONG, "16777216 bytes"),
    (9_000, ["x" * 2_000], "16777216 bytes"),
    (MAX_VALUES + 1, 1, f"{MAX_VALUES + 1} parameter markers"),
])  # fmt: skip
def test_expanded_size_of_repeated_values_is_limited(times: int, value: object, says: str):
    """For engines that cannot bind values, the value is written again at every marker."""
    with pytest.raises(InvalidParameter, match=says) as refused:
        check("select :b," + ",".join([":a"] * (times - 1)), {"a": value, "b": value})
    assert LONG[:20] not in str(refused.value)
