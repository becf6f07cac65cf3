"""Values are sent to the server and returned without any loss of digits (issue 20, section 3)."""

import datetime as dt
import json
import math
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from queryserver_client import Column
from queryserver_client.encoding import encode, encode_parameters
from queryserver_client.scalars import timestamp
from queryserver_client.values import decode_rows

UTC = dt.UTC
MIDNIGHT = {"type": "timestamp", "value": "2024-01-31 00:00:00"}
MOMENT = dt.datetime(2024, 1, 31, 10, 20, 30, 500, UTC)


class Color(str, Enum):  # noqa: UP042
    RED = "red"


class Size(IntEnum):
    LARGE = 3


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (None, None),
        (True, True),
        (7, 7),
        (2**53 - 1, 2**53 - 1),
        (2**53, {"type": "bigint", "value": "9007199254740992"}),
        (-(2**63), {"type": "bigint", "value": "-9223372036854775808"}),
        (2**63, {"type": "decimal", "value": "9223372036854775808"}),
        (-(2**70), {"type": "decimal", "value": "-1180591620717411303424"}),
        (0.1, 0.1),
        (math.nan, {"type": "double", "value": "NaN"}),
        (-math.inf, {"type": "double", "value": "-Infinity"}),
        ("é'; --", "é'; --"),
        (Decimal("12.50"), {"type": "decimal", "value": "12.50"}),
        (Decimal("1E+20"), {"type": "decimal", "value": "100000000000000000000"}),
        (dt.date(2024, 1, 31), {"type": "date", "value": "2024-01-31"}),
        (dt.time(10, 20, 30), {"type": "time", "value": "10:20:30"}),
        (MOMENT, {"type": "timestamp_tz", "value": "2024-01-31 10:20:30.000500+00:00"}),
        (MOMENT.replace(tzinfo=None), {"type": "timestamp", "value": "2024-01-31 10:20:30.000500"}),
        (b"\x00\xff", {"type": "binary", "value": "AP8="}),
        (bytearray(b"a"), {"type": "binary", "value": "YQ=="}),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ((1, None, Decimal(2)), [1, None, {"type": "decimal", "value": "2"}]),
        (np.int64(5), 5),
        (np.float32(0.5), 0.5),
        (np.array([1, 2]), [1, 2]),
        (np.datetime64("2024-01-31T10:20:30.0005", "ns"), {"type": "timestamp", "value": "2024-01-31 10:20:30.000500"}),
        (np.datetime64(1, "ns"), {"type": "timestamp", "value": "1970-01-01 00:00:00.000000001"}),
        (pd.Timestamp(1, unit="ns"), {"type": "timestamp", "value": "1970-01-01 00:00:00.000000001"}),
        (pd.NA, None),
        (np.datetime64("2024-01-31"), {"type": "date", "value": "2024-01-31"}),
        (np.datetime64("NaT"), None),
        (np.array(["2024-01-31", "NaT"], "datetime64[ns]"), [MIDNIGHT, None]),
        (pd.Series([pd.Timestamp("2024-01-31"), pd.NaT]), [MIDNIGHT, None]),
        (pd.NaT, None),
        (Color.RED, "red"),
        (Size.LARGE, 3),
        (pa.array([1, None]), [1, None]),
        (pa.scalar(3), 3),
    ],
)
def test_python_values_are_sent_without_loss(value: Any, sent: Any):
    assert encode(value) == sent
    json.dumps(encode(value), allow_nan=False)


def test_parameters_are_a_list_or_named():
    assert encode_parameters((1, "a")) == [1, "a"]
    assert encode_parameters({"id": 2**60}) == {"id": {"type": "bigint", "value": str(2**60)}}
    with pytest.raises(TypeError, match=r"\[value\]"):
        encode_parameters("abc")
    with pytest.raises(TypeError, match="object"):
        encode_parameters([object()])
    for length in (np.timedelta64(1, "ns"), np.array([1], "timedelta64[ns]")):
        with pytest.raises(TypeError, match="timedelta64"):
            encode_parameters([length])


@pytest.mark.parametrize(
    ("kind", "native", "cell", "value"),
    [
        ("DECIMAL_TYPE", "numeric(10,2)", "12.50", Decimal("12.50")),
        ("DECIMAL_TYPE", "HUGEINT", "170141183460469231731687303715884105727", 2**127 - 1),
        ("DOUBLE_TYPE", "DOUBLE", "Infinity", math.inf),
        ("DOUBLE_TYPE", "DOUBLE", 0.1, 0.1),
        ("DATE_TYPE", "date", "2024-01-31", dt.date(2024, 1, 31)),
        ("DATE_TYPE", "date", "infinity", "infinity"),
        ("DATE_TYPE", "date", "0000-00-00", "0000-00-00"),
        ("STRING_TYPE", "time without time zone", "10:20:30.5", dt.time(10, 20, 30, 500_000)),
        ("STRING_TYPE", "time", "838:59:59", "838:59:59"),
        ("STRING_TYPE", "text", "10:20:30", "10:20:30"),
        ("TIMESTAMP_TYPE", "timestamp", "2024-01-31 10:20:30.000500", MOMENT.replace(tzinfo=None)),
        ("TIMESTAMP_TYPE", "timestamp", "2024-01-31 10:20:30.000000001", "2024-01-31 10:20:30.000000001"),
        ("TIMESTAMP_TYPE", "timestamp", "2024-01-31 10:20:30.500000000", dt.datetime(2024, 1, 31, 10, 20, 30, 500_000)),  # noqa: DTZ001
        ("TIMESTAMPLOCALTZ_TYPE", "timestamptz", "2024-01-31 10:20:30.000500+00", MOMENT),
        ("TIMESTAMPLOCALTZ_TYPE", "timestamp with time zone", "2024-01-31 10:20:30.000500 UTC", MOMENT),
        ("BINARY_TYPE", "BLOB", "AP8=", b"\x00\xff"),
        ("BINARY_TYPE", "BLOB", "no base64!", "no base64!"),
        ("BIGINT_TYPE", "bigint", 9223372036854775807, 9223372036854775807),
        ("ARRAY_TYPE", "DECIMAL(10,2)[]", ["1.50", None], [Decimal("1.50"), None]),
        ("ARRAY_TYPE", "INTEGER[3][]", [[1], [2]], [[1], [2]]),
        ("ARRAY_TYPE", "timestamp(3) with time zone[]", ["2024-01-31 10:20:30.000500+00"], [MOMENT]),
        (
            "ARRAY_TYPE",
            "array(row(a decimal(10,2), b date))",
            [{"a": "1.50", "b": None}],
            [{"a": Decimal("1.50"), "b": None}],
        ),
        (
            "STRUCT_TYPE",
            'STRUCT("a b" DATE, c VARCHAR)',
            {"a b": "2024-01-31", "c": "2024-01-31"},
            {"a b": dt.date(2024, 1, 31), "c": "2024-01-31"},
        ),
        ("MAP_TYPE", "map<string,array<decimal(10,2)>>", {"x": ["1.50"]}, {"x": [Decimal("1.50")]}),
        ("MAP_TYPE", "MAP(VARCHAR, DATE)", {"x": "2024-01-31"}, {"x": dt.date(2024, 1, 31)}),
        ("STRUCT_TYPE", "my_composite", {"a": "1.50"}, {"a": "1.50"}),
        ("STRUCT_TYPE", "STRUCT(a DECIMAL(10,2)", {"a": "1.50"}, {"a": "1.50"}),
        ("UNION_TYPE", "UNION(n DECIMAL(4,1), t VARCHAR)", "1.5", "1.5"),
    ],
)
def test_cells_become_python_values(kind: str, native: str, cell: Any, value: Any):
    (row,) = decode_rows([[cell, None]], [Column("a", kind, native), Column("b", kind, native)])
    assert row == (value, None)
    assert type(row[0]) is type(value)


def test_named_zones_become_zones():
    assert timestamp("2024-07-31 10:20:30 Europe/Berlin") == dt.datetime(
        2024, 7, 31, 10, 20, 30, tzinfo=ZoneInfo("Europe/Berlin")
    )
    assert timestamp("2024-07-31 10:20:30-09:30").utcoffset() == dt.timedelta(hours=-9.5)
    assert timestamp("2024-07-31 10:20:30 Nowhere/At_all") == "2024-07-31 10:20:30 Nowhere/At_all"
