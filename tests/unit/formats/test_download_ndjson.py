"""NDJSON: one object per row in the raw form (Contract editor 8.2, 6.3)."""

import json
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each
from tests.fakes.downloads import StoredTables, column, downloaded, one_column

from queryserver.formats.cells import cell_values
from queryserver.formats.columns import ResultType as R
from queryserver.formats.download.encoder import DownloadFormat


async def values(array: pa.Array, kind: R) -> list:
    text = (await downloaded(one_column(array, kind), DownloadFormat.NDJSON)).decode()
    assert text.endswith("\n")
    return [json.loads(line)["c"] for line in text.removesuffix("\n").split("\n")]


@pytest.mark.item(54)
async def test_a_row_is_one_object_on_one_line():
    table = pa.table({"id": [1, 2], "name": ['say "hi"\n', None]})
    source = StoredTables([column("id", R.BIGINT), column('a "name"', R.STRING)], [table])
    assert await downloaded(source, DownloadFormat.NDJSON) == (
        b'{"id":1,"a \\"name\\"":"say \\"hi\\"\\n"}\n{"id":2,"a \\"name\\"":null}\n'
    )


async def test_a_result_without_rows_is_an_empty_file():
    assert await downloaded(StoredTables([column("a", R.BIGINT)], []), DownloadFormat.NDJSON) == b""


async def test_repeated_names_are_numbered_and_take_nobodys_name():
    names = ["a", "a", "a_2", "a", "b"]
    table = pa.table([[n] for n in range(5)], names=names)
    source = StoredTables([column(name, R.BIGINT) for name in names], [table])
    assert await downloaded(source, DownloadFormat.NDJSON) == b'{"a":0,"a_3":1,"a_2":2,"a_4":3,"b":4}\n'


@pytest.mark.parametrize(
    ("array", "kind", "expected"),
    [
        (pa.array([2**63 - 1, None]), R.BIGINT, [2**63 - 1, None]),
        (
            pa.array([29.0, 1e20, float("nan"), float("inf"), float("-inf")]),
            R.DOUBLE,
            [29.0, 1e20, "NaN", "Infinity", "-Infinity"],
        ),
        (pa.array([True, None]), R.BOOLEAN, [True, None]),
        (pa.array([7]), R.DECIMAL, ["7"]),
        (pa.array([Decimal("12.5"), None], pa.decimal128(10, 2)), R.DECIMAL, ["12.50", None]),
        (pa.array([datetime(2024, 1, 31, tzinfo=UTC)]), R.TIMESTAMP_TZ, ["2024-01-31 00:00:00+00:00"]),
        (pa.array([b"\xff", None]), R.BINARY, ["/w==", None]),
        (pa.array([[1, None], None]), R.ARRAY, [[1, None], None]),
        (pa.array([{"a": [1], "b": None}]), R.STRUCT, [{"a": [1], "b": None}]),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), R.MAP, [{"k": 1}]),
        (pa.array(["[1, 2]", "no json"]), R.ARRAY, [[1, 2], "no json"]),
        (pa.array(["[1, 2]"]), R.STRING, ["[1, 2]"]),
        (pa.array(["a", "b\t"]).dictionary_encode(), R.STRING, ["a", "b\t"]),
        (pa.nulls(1), R.STRING, [None]),
    ],
)
async def test_values_have_the_raw_form(array, kind, expected):
    assert await values(array, kind) == expected


@given(texts=st.lists(st.none() | st.text(st.characters(codec="utf-8")), min_size=1))
async def test_texts_are_read_back_the_same(texts):
    assert await values(pa.array(texts, pa.string()), R.STRING) == texts


BROKEN_TEXT = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.array([0, 2, 4], pa.int32()).buffers()[1], pa.py_buffer(b"a\xff\xc3\xa9")]
)


@each(
    ("array", "kind"),
    [
        *((pa.array([1500, 2_000_000, None, -1], pa.timestamp(unit)), R.TIMESTAMP) for unit in ("s", "ms", "us", "ns")),
        *(
            (pa.array([1500, None, -1, 10**15], pa.timestamp("us", zone)), R.TIMESTAMP_TZ)
            for zone in ("UTC", "Europe/Berlin", "America/St_Johns", "+05:30", "Nowhere/Town")
        ),
        (pa.array([2**63 - 1, 1 - 2**63, 2**62], pa.timestamp("us")), R.TIMESTAMP),
        (pa.array([2**63 - 1, 0], pa.timestamp("us", "UTC")), R.TIMESTAMP_TZ),
        (pa.array([2**31 - 1, -(2**31), 10**7, 0], pa.date32()), R.DATE),
        (pa.array([0, 500], pa.time32("ms")), R.STRING),
        (pa.array([0, 500], pa.time64("us")), R.STRING),
        (pa.array([0, 500], pa.time64("ns")), R.STRING),
        (pa.array([0, 500, 10**12], pa.duration("us")), R.INTERVAL_DAY_TIME),
        (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), R.INTERVAL_DAY_TIME),
        (pa.array([1.1, 0.1, 1e20, 3e38], pa.float32()), R.FLOAT),
        (pa.array([1.5, float("nan")], pa.float16()), R.FLOAT),
        (pa.array([1e16, 123456789012345678.0, 5e-324]), R.DOUBLE),
        (pa.array([Decimal(0), Decimal("1e-9")], pa.decimal128(20, 9)), R.DECIMAL),
        (pa.array([0, 1, 2]), R.BOOLEAN),
        (pa.array([2**62]), R.DECIMAL),
        (pa.array([b"ab"], pa.binary(2)), R.BINARY),
        (BROKEN_TEXT, R.STRING),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else value.name,
)
async def test_a_download_holds_what_a_page_shows(array, kind):
    """Both write the raw form, a page value by value, a download by whole columns."""
    assert await values(array, kind) == cell_values(array, column("c", kind))
