"""Downloads as CSV, TSV and JSON Lines (Contract editor 8.2)."""

import csv
import io
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.downloads import StoredTables, column, downloaded, one_column

from queryserver.formats.arrow import ResultType as R
from queryserver.formats.cells import cell_values
from queryserver.formats.download.encoder import DownloadFormat


async def lines(array: pa.Array, kind: R, *, wanted=DownloadFormat.CSV, guard=False) -> list[str]:
    """Download the array together with a boolean column, and return the encoded values of the array."""
    separator = "," if wanted is DownloadFormat.CSV else "\t"
    table = pa.table([pa.repeat(True, len(array)), array], names=["b", "c"])
    source = StoredTables([column("b", R.BOOLEAN), column("c", kind)], [table])
    text = (await downloaded(source, wanted, guard=guard)).decode()
    assert text.startswith(f"b{separator}c\r\n")
    assert text.endswith("\r\n")
    return [line.removeprefix(f"true{separator}") for line in text.removesuffix("\r\n").split("\r\n")[1:]]


@pytest.mark.item(54)
async def test_csv_has_a_header_row_crlf_and_no_byte_order_mark():
    table = pa.table({"id": [1, 2], "name": ["blue pen", None]})
    source = StoredTables([column("id", R.BIGINT), column("a name", R.STRING)], [table])
    assert await downloaded(source, DownloadFormat.CSV) == b"id,a name\r\n1,blue pen\r\n2,\r\n"


async def test_csv_without_rows_is_its_header():
    source = StoredTables([column("a", R.BIGINT), column('b,"', R.STRING)], [])
    assert await downloaded(source, DownloadFormat.CSV) == b'a,"b,"""\r\n'


@pytest.mark.item(54)
async def test_null_is_empty_and_empty_text_is_quoted():
    for wanted in (DownloadFormat.CSV, DownloadFormat.TSV):
        assert await lines(pa.array(["", None, "NULL", " "]), R.STRING, wanted=wanted) == ['""', "", "NULL", " "]


@pytest.mark.parametrize("wanted", [DownloadFormat.CSV, DownloadFormat.TSV])
@pytest.mark.parametrize(
    "array", [pa.array([1, None, 3, None]), pa.array(["1", "", "3", None])], ids=lambda array: str(array.type)
)
async def test_null_in_a_single_column_is_quoted(wanted, array):
    """An unquoted NULL would produce an empty line, which readers skip (`tests/api/test_field_values.py`)."""
    assert await downloaded(one_column(array, R.BIGINT), wanted) == b'c\r\n1\r\n""\r\n3\r\n""\r\n'


async def test_text_is_quoted_only_if_necessary():
    values = ["plain", "a,b", 'say "hi"', "two\nlines", "cr\ronly", "tab\there", "é😀", "'", "a;b"]
    text = await downloaded(one_column(pa.array(values), R.STRING), DownloadFormat.CSV)
    assert text.decode() == (
        'c\r\nplain\r\n"a,b"\r\n"say ""hi"""\r\n"two\nlines"\r\n"cr\ronly"\r\ntab\there\r\né😀\r\n\'\r\na;b\r\n'
    )
    text = await downloaded(one_column(pa.array(values), R.STRING), DownloadFormat.TSV)
    assert text.decode() == (
        'c\r\nplain\r\na,b\r\n"say ""hi"""\r\n"two\nlines"\r\n"cr\ronly"\r\n"tab\there"\r\né😀\r\n\'\r\na;b\r\n'
    )


async def test_tsv_separates_cells_by_tabs():
    table = pa.table({"a": [1, None], "b": ["x", "y"], "c": [None, True]})
    source = StoredTables([column("a", R.INT), column("b", R.STRING), column("c", R.BOOLEAN)], [table])
    assert await downloaded(source, DownloadFormat.TSV) == b"a\tb\tc\r\n1\tx\t\r\n\ty\ttrue\r\n"


INSTANT = datetime(2024, 1, 31, 10, 20, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("array", "kind", "expected"),
    [
        (pa.array([-(2**63), 2**63 - 1, None]), R.BIGINT, ["-9223372036854775808", "9223372036854775807", ""]),
        (pa.array([2**64 - 1], pa.uint64()), R.BIGINT, ["18446744073709551615"]),
        (pa.array([True, False, None]), R.BOOLEAN, ["true", "false", ""]),
        (pa.array([29.0, 1.5, -0.0, 0.1, None]), R.DOUBLE, ["29.0", "1.5", "-0.0", "0.1", ""]),
        (pa.array([float("nan"), float("inf"), float("-inf")]), R.DOUBLE, ["NaN", "Infinity", "-Infinity"]),
        (pa.array([1.1, 16777216.0], pa.float32()), R.FLOAT, ["1.1", "16777216.0"]),
        (pa.array([Decimal("12.5"), Decimal(-1), None], pa.decimal128(10, 2)), R.DECIMAL, ["12.50", "-1.00", ""]),
        (
            pa.array([Decimal(0), Decimal("1e-10"), Decimal("-1.5")], pa.decimal128(20, 10)),
            R.DECIMAL,
            ["0.0000000000", "0.0000000001", "-1.5000000000"],
        ),
        (pa.array([Decimal(10**50)], pa.decimal256(60, 2)), R.DECIMAL, [f"{10**50}.00"]),
        (pa.array([Decimal(1200)], pa.decimal128(10, -2)), R.DECIMAL, ["1200"]),
        (pa.array([date(2024, 1, 31), None]), R.DATE, ["2024-01-31", ""]),
        (pa.array([date(2024, 1, 31)], pa.date64()), R.DATE, ["2024-01-31"]),
        (pa.array([time(10, 20, 30), time(1, 2, 3, 40)]), R.STRING, ["10:20:30", "01:02:03.000040"]),
        (pa.array([time(10, 20, 30)], pa.time32("s")), R.STRING, ["10:20:30"]),
        (pa.array([86_400_000_000, 1, None], pa.time64("us")), R.STRING, ["24:00:00", "00:00:00.000001", ""]),
        (pa.array([86_400 * 10**9, 0], pa.time64("ns")), R.STRING, ["24:00:00", "00:00:00"]),
        (pa.array([86_400], pa.time32("s")), R.STRING, ["24:00:00"]),
        (
            pa.array([datetime(2024, 1, 31, 10, 20, 30), datetime(1, 1, 1, 0, 0, 0, 1), None]),  # noqa: DTZ001 a naive timestamp
            R.TIMESTAMP,
            ["2024-01-31 10:20:30", "0001-01-01 00:00:00.000001", ""],
        ),
        (pa.array([-1], pa.timestamp("s")), R.TIMESTAMP, ["1969-12-31 23:59:59"]),
        (pa.array([2**62], pa.timestamp("us")), R.TIMESTAMP, ["148108-07-06 14:00:27.387904"]),
        (pa.array([2**31 - 1, 0], pa.date32()), R.DATE, ["infinity", "1970-01-01"]),
        (pa.array([0, 1, 2]), R.BOOLEAN, ["false", "true", "2"]),
        (
            pa.array([1500, 2000], pa.timestamp("ms")),
            R.TIMESTAMP,
            ["1970-01-01 00:00:01.500000", "1970-01-01 00:00:02"],
        ),
        (pa.array([1], pa.timestamp("ns")), R.TIMESTAMP, ["1970-01-01 00:00:00.000000001"]),
        (pa.array([INSTANT], pa.timestamp("us", "UTC")), R.TIMESTAMP_TZ, ["2024-01-31 10:20:30+00:00"]),
        (
            pa.array([INSTANT, INSTANT.replace(month=7, microsecond=5), None], pa.timestamp("us", "Europe/Berlin")),
            R.TIMESTAMP_TZ,
            ["2024-01-31 11:20:30+01:00", "2024-07-31 12:20:30.000005+02:00", ""],
        ),
        (
            pa.array([-500_000], pa.timestamp("us", "America/St_Johns")),
            R.TIMESTAMP_TZ,
            ["1969-12-31 20:29:59.500000-03:30"],
        ),
        (pa.array([b"\x00\xff", b"", None]), R.BINARY, ["AP8=", '""', ""]),
        (pa.nulls(2), R.STRING, ["", ""]),
        (pa.array([[1, None], [], None]), R.ARRAY, ['"[1,null]"', "[]", ""]),
        (pa.array([{"a": 1, "b": "x"}, None]), R.STRUCT, ['"{""a"":1,""b"":""x""}"', ""]),
        (pa.array(["a", "b,c", None]).dictionary_encode(), R.STRING, ["a", '"b,c"', ""]),
        (pa.array(["a", None], pa.large_string()), R.STRING, ["a", ""]),
        (pa.array(["a", None], pa.string_view()), R.STRING, ["a", ""]),
    ],
)
async def test_values_have_the_raw_text_form(array, kind, expected):
    assert await lines(array, kind) == expected


async def test_union_values_keep_their_own_form():
    union = pa.UnionArray.from_dense(
        pa.array([0, 1, 2], pa.int8()),
        pa.array([0, 0, 0], pa.int32()),
        [pa.array([-7]), pa.array(["=x"]), pa.array([b"\xff"])],
    )
    assert await lines(union, R.STRING) == ["-7", "=x", "/w=="]
    assert await lines(union, R.STRING, guard=True) == ["-7", "'=x", "/w=="]


@pytest.mark.item(54)
@pytest.mark.security("T5")
async def test_guard_prefixes_formulas_with_a_quote():
    values = ["=1+1", "+1", "-1", "@x", "\tx", "\rx", "x=1", "", None, " =1", '=HYPERLINK("a","b")']
    assert await lines(pa.array(values), R.STRING, guard=True) == [
        "'=1+1",
        "'+1",
        "'-1",
        "'@x",
        "'\tx",
        '"\'\rx"',
        "x=1",
        '""',
        "",
        " =1",
        '"\'=HYPERLINK(""a"",""b"")"',
    ]
    assert (await lines(pa.array(values), R.STRING))[:3] == ["=1+1", "+1", "-1"]


@pytest.mark.security("T5")
async def test_guard_spares_numbers_but_not_text_in_number_columns():
    assert await lines(pa.array([-1, 1]), R.BIGINT, guard=True) == ["-1", "1"]
    assert await lines(pa.array([float("-inf"), -1.5]), R.DOUBLE, guard=True) == ["-Infinity", "-1.5"]
    texts = pa.array(["-12.50", "-1e5", "=1+1", "-1+1", "-cmd"])
    assert await lines(texts, R.DECIMAL, guard=True) == ["-12.50", "-1e5", "'=1+1", "'-1+1", "'-cmd"]


@pytest.mark.security("T5")
async def test_guard_applies_to_the_header_and_to_tsv():
    source = StoredTables([column("=1+1", R.STRING)], [pa.table({"c": ["@x"]})])
    assert await downloaded(source, DownloadFormat.CSV, guard=True) == b"'=1+1\r\n'@x\r\n"
    assert await downloaded(source, DownloadFormat.TSV, guard=True) == b"'=1+1\r\n'@x\r\n"


cells = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@pytest.mark.parametrize(("wanted", "separator"), [(DownloadFormat.CSV, ","), (DownloadFormat.TSV, "\t")])
@given(rows=st.lists(st.tuples(cells, cells), min_size=1))
async def test_csv_reader_reads_the_same_text(wanted, separator, rows):
    columns = [column("a", R.STRING), column("b", R.STRING)]
    table = pa.table({name: [row[i] for row in rows] for i, name in enumerate("ab")})
    text = (await downloaded(StoredTables(columns, [table]), wanted)).decode()
    read = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True))
    assert read == [["a", "b"], *map(list, rows)]


@given(numbers=st.lists(st.floats(), min_size=1))
async def test_floats_round_trip(numbers):
    read = await lines(pa.array(numbers), R.DOUBLE)
    assert [repr(float(text)) for text in read] == [repr(number) for number in numbers]


@given(numbers=st.lists(st.decimals(-(10**9), 10**9, places=12), min_size=1))
async def test_decimals_keep_their_scale_and_have_no_exponent(numbers):
    assert await lines(pa.array(numbers, pa.decimal128(30, 12)), R.DECIMAL) == [f"{n:.12f}" for n in numbers]


@given(moments=st.lists(st.datetimes(), min_size=1))
async def test_timestamps_match_python(moments):
    assert await lines(pa.array(moments, pa.timestamp("us")), R.TIMESTAMP) == [str(moment) for moment in moments]


async def values(array: pa.Array, kind: R) -> list:
    text = (await downloaded(one_column(array, kind), DownloadFormat.NDJSON)).decode()
    assert text.endswith("\n")
    return [json.loads(line)["c"] for line in text.removesuffix("\n").split("\n")]


@pytest.mark.item(54)
async def test_row_is_one_object_on_one_line():
    table = pa.table({"id": [1, 2], "name": ['say "hi"\n', None]})
    source = StoredTables([column("id", R.BIGINT), column('a "name"', R.STRING)], [table])
    assert await downloaded(source, DownloadFormat.NDJSON) == (
        b'{"id":1,"a \\"name\\"":"say \\"hi\\"\\n"}\n{"id":2,"a \\"name\\"":null}\n'
    )


async def test_ndjson_without_rows_is_an_empty_file():
    assert await downloaded(StoredTables([column("a", R.BIGINT)], []), DownloadFormat.NDJSON) == b""


async def test_repeated_names_are_numbered_without_collisions():
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
async def test_ndjson_values_have_the_raw_form(array, kind, expected):
    assert await values(array, kind) == expected


@given(texts=st.lists(st.none() | st.text(st.characters(codec="utf-8")), min_size=1))
async def test_ndjson_text_round_trips(texts):
    assert await values(pa.array(texts, pa.string()), R.STRING) == texts


BROKEN_TEXT = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.array([0, 2, 4], pa.int32()).buffers()[1], pa.py_buffer(b"a\xff\xc3\xa9")]
)


@pytest.mark.parametrize(
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
async def test_download_values_equal_page_values(array, kind):
    """Pages and downloads both use the raw form, but pages encode value by value and downloads column by column."""
    assert await values(array, kind) == cell_values(array, column("c", kind))
