"""Dates beyond Arrow's calendar read as DuckDB itself writes them."""

import datetime as dt
from functools import cache

import duckdb
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from queryserver.engines.duckdb.values import sound
from queryserver.formats.columns import Column, ResultType

COLUMN = (Column("v", ResultType.DATE, ""),)


def written(array: pa.Array) -> list[object]:
    return sound(pa.RecordBatch.from_arrays([array], names=["v"]), COLUMN).column(0).to_pylist()


@cache
def database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def answers(sql: str, values: list[int]) -> list[str]:
    return [text for (text,) in database().execute(sql, [values]).fetchall()]


@given(days=st.lists(st.integers(-2_000_000, 4_000_000), min_size=1, max_size=50))
def test_days_read_as_the_engine_writes_them(days: list[int]) -> None:
    texts = answers("SELECT (DATE '1970-01-01' + d::INTEGER)::DATE::VARCHAR FROM (SELECT unnest(?) AS d)", days)
    assert [str(value) for value in written(pa.array(days, pa.int32()).view(pa.date32()))] == texts


@given(ticks=st.lists(st.integers(-(10**17), 5 * 10**17), min_size=1, max_size=50))
def test_instants_read_as_the_engine_writes_them(ticks: list[int]) -> None:
    texts = answers("SELECT make_timestamp(t)::VARCHAR FROM (SELECT unnest(?::BIGINT[]) AS t)", ticks)
    values = written(pa.array(ticks, pa.int64()).view(pa.timestamp("us")))
    for value, text in zip(values, texts, strict=True):
        assert text == (engine_text(value) if isinstance(value, dt.datetime) else value)


def engine_text(value: dt.datetime) -> str:
    return value.isoformat(" ").rstrip("0").rstrip(".") if value.microsecond else value.isoformat(" ")


def test_infinity_is_told_in_every_unit() -> None:
    for unit in ("s", "ms", "us", "ns"):
        array = pa.array([2**63 - 1, 0, None, -(2**63 - 1)], pa.int64()).view(pa.timestamp(unit))
        values = written(array)
        assert (values[0], values[2], values[3]) == ("infinity", None, "-infinity")
    assert written(pa.array([2**31 - 1, None], pa.int32()).view(pa.date32())) == ["infinity", None]


def test_plain_dates_keep_their_plain_type() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), None])], names=["v"])
    assert sound(batch, COLUMN).schema.field(0).type == pa.date32()


def test_a_sliced_union_keeps_its_rows() -> None:
    codes, members = pa.array([0, 1, 0], pa.int8()), [pa.array([1, None, 3]), pa.array([None, "b", None])]
    sparse = pa.UnionArray.from_sparse(codes, members, ["n", "s"])
    batch = pa.RecordBatch.from_arrays([sparse], names=["v"])
    assert sound(batch.slice(1), COLUMN).column(0).to_pylist() == ["b", 3]
