"""Parameter values written as literals, and read back by real parsers (ADR 61)."""

import datetime as dt
import re
from collections.abc import Generator
from decimal import Decimal
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryserver.sql.literals import DUCKDB, HIVE, IMPALA, MYSQL, SPARKSQL, TRINO, Literals
from queryserver.sql.parameters import Parameter, read_parameters

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))
PLAIN = re.compile(r"'[^'\\$]*'")


def one(given: object) -> Parameter:
    return read_parameters([given]).by_position[0]


@pytest.fixture(scope="module")
def database() -> Generator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


@given(TEXTS)
def test_text_round_trips_through_duckdb(database: duckdb.DuckDBPyConnection, text: str):
    assert database.sql(f"SELECT {DUCKDB.write(0, one(text))}").fetchall() == [(text,)]


_NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none()
)


@given(_NUMBERS)
def test_number_round_trips_through_duckdb(database: duckdb.DuckDBPyConnection, value: Any):
    kind = {int: "bigint", float: "double", bool: "boolean"}.get(type(value), "double")
    for given_value in (value, {"type": kind, "value": value}):
        assert database.sql(f"SELECT {DUCKDB.write(0, one(given_value))}").fetchall() == [(value,)]


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**20), max_value=10**20))
def test_decimal_round_trips_through_duckdb(database: duckdb.DuckDBPyConnection, value: Decimal):
    parameter = one({"type": "decimal", "value": format(value, "f")})
    assert database.sql(f"SELECT {DUCKDB.write(0, parameter)}").fetchall() == [(value,)]


@given(st.datetimes(), st.binary())
def test_times_and_bytes_round_trip_through_duckdb(
    database: duckdb.DuckDBPyConnection, moment: dt.datetime, content: bytes
):
    values = [Parameter(None, value) for value in (moment, moment.date(), moment.time(), content)]
    literals = ", ".join(DUCKDB.write(0, value) for value in values)
    assert database.sql(f"SELECT {literals}").fetchall() == [(moment, moment.date(), moment.time(), content)]


@given(TEXTS)
def test_quoted_literals_contain_no_escape_characters(text: str):
    """A string that Hive, Impala or Spark could misread is written as the hexadecimal digits of its UTF-8 bytes."""
    for literals in (HIVE, SPARKSQL, IMPALA):
        written = literals.write(0, one(text))
        if "unhex" in written:
            assert f"'{text.encode().hex()}'" in written
        else:
            assert written == f"'{text}'"
            assert PLAIN.fullmatch(written)


@pytest.mark.parametrize(("literals", "given", "expected"), [
    (HIVE, "O'Brien", "CAST(unhex('4f27427269656e') AS STRING)"),
    (HIVE, "${env:HOME}", "CAST(unhex('247b656e763a484f4d457d') AS STRING)"),
    (HIVE, -5, "(-5)"),
    (HIVE, 2**40, "CAST('1099511627776' AS BIGINT)"),
    (HIVE, {"type": "decimal", "value": "-1.50"}, "CAST('-1.50' AS DECIMAL(3,2))"),
    (HIVE, {"type": "decimal", "value": "1e3"}, "CAST('1000' AS DECIMAL(4,0))"),
    (HIVE, {"type": "double", "value": "NaN"}, "CAST('NaN' AS DOUBLE)"),
    (IMPALA, {"type": "double", "value": "-Infinity"}, "CAST('-inf' AS DOUBLE)"),
    (IMPALA, {"type": "timestamp", "value": "2024-01-31T10:20:30"}, "CAST('2024-01-31 10:20:30' AS TIMESTAMP)"),
    (SPARKSQL, {"type": "timestamp_tz", "value": "2024-01-31 10:20:30+02"}, "TIMESTAMP '2024-01-31 08:20:30+00:00'"),
    (HIVE, {"type": "date", "value": None}, "CAST(NULL AS DATE)"),
    (HIVE, None, "NULL"),
    (HIVE, [1, [2], None], None),
    (HIVE, [1, None], "array(1, NULL)"),
    (TRINO, ["a'b"], "ARRAY['a''b']"),
    (MYSQL, "O'Brien\\", "_utf8mb4 X'4f27427269656e5c'"),
    (MYSQL, 1.5, "1.5e0"),
    (MYSQL, -1e-5, "(-1e-05)"),
    (MYSQL, {"type": "decimal", "value": "-1.50"}, "(-1.50)"),
    (MYSQL, {"type": "date", "value": None}, "NULL"),
])  # fmt: skip
def test_literal_has_the_form_of_its_dialect(literals: Literals, given: object, expected: str | None):
    if expected is None:
        with pytest.raises(Exception, match="different types"):
            one(given)
    else:
        assert literals.write(0, one(given)) == expected
