"""The raw and Hue forms of Arrow values, and the ends of pages (Contract editor 6.3)."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import orjson
import pyarrow as pa
import pytest

from queryserver.formats import cells
from queryserver.formats.arrow import Column, ResultType
from queryserver.formats.cells import cell_values, render_page


def column(result_type: ResultType = ResultType.STRING) -> Column:
    return Column("c", result_type, "")


def raw(array: pa.Array | pa.ChunkedArray, result_type: ResultType = ResultType.STRING) -> list[object]:
    return cell_values(array, column(result_type))


def hue(array: pa.Array, result_type: ResultType = ResultType.STRING) -> list[object]:
    return cell_values(array, column(result_type), escape=True)


def rendered(array: pa.Array) -> bytes:
    return render_page([pa.table({"c": array})], columns=[column()], escape=False, max_bytes=1 << 20).json


@pytest.mark.item(26)
def test_null_and_the_text_null_differ_in_raw_form():
    assert rendered(pa.array([None, "NULL"])) == b'[[null],["NULL"]]'


@pytest.mark.item(26)
@pytest.mark.parametrize(
    "kind",
    [
        *(pa.null(), pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.decimal128(9, 2)),
        *(
            pa.string(),
            pa.large_string(),
            pa.string_view(),
            pa.binary(),
            pa.large_binary(),
            pa.binary(2),
            pa.binary_view(),
        ),
        *(pa.date32(), pa.date64(), pa.time32("s"), pa.time64("ns"), pa.timestamp("us"), pa.timestamp("ns", "UTC")),
        *(pa.timestamp("s", "Europe/Berlin"), pa.duration("ms"), pa.month_day_nano_interval(), pa.list_(pa.int8())),
        *(pa.large_list(pa.string()), pa.list_(pa.int8(), 2), pa.list_view(pa.int8()), pa.map_(pa.string(), pa.int8())),
        *(pa.struct([("a", pa.int8())]), pa.dictionary(pa.int8(), pa.string()), pa.uuid(), pa.json_(), pa.bool8()),
    ],
    ids=str,
)
def test_null_of_every_type_is_none(kind: pa.DataType):
    nulls = (
        pa.ExtensionArray.from_storage(kind, pa.nulls(3, kind.storage_type))
        if isinstance(kind, pa.BaseExtensionType)
        else pa.nulls(3, kind)
    )
    assert raw(nulls) == [None] * 3
    assert raw(nulls.slice(1, 1)) == [None]
    assert raw(nulls.slice(3)) == []
    assert hue(nulls) == ["NULL"] * 3
    assert raw(pa.chunked_array([], kind)) == []


@pytest.mark.item(27)
@pytest.mark.parametrize(
    ("array", "json"),
    [
        (pa.array([9223372036854775807, -(2**63)]), b"[[9223372036854775807],[-9223372036854775808]]"),
        (pa.array([2**64 - 1], pa.uint64()), b"[[18446744073709551615]]"),
        (pa.array([-128, None], pa.int8()), b"[[-128],[null]]"),
        (pa.array([Decimal(10**30)], pa.decimal128(38, 0)), b'[["1000000000000000000000000000000"]]'),
        (pa.array([1.5, 29.0, 1e20, -0.0, 5e-324]), b"[[1.5],[29.0],[1e+20],[-0.0],[5e-324]]"),
        (pa.array([0.1, 29.0, 16777216.0, None], pa.float32()), b"[[0.1],[29.0],[16777216.0],[null]]"),
        (pa.array([1.5, None], pa.float16()), b"[[1.5],[null]]"),
        (pa.array([math.nan, math.inf, -math.inf, None, 1.0]), b'[["NaN"],["Infinity"],["-Infinity"],[null],[1.0]]'),
        (pa.array([math.nan, math.inf, -math.inf], pa.float32()), b'[["NaN"],["Infinity"],["-Infinity"]]'),
    ],
)
def test_numbers_keep_all_digits(array: pa.Array, json: bytes):
    assert rendered(array) == json


@pytest.mark.item(27)
@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("12.5", pa.decimal128(10, 2), "12.50"),
        ("-0.01", pa.decimal64(10, 2), "-0.01"),
        ("7", pa.decimal32(5, 0), "7"),
        ("0", pa.decimal128(38, 10), "0.0000000000"),
        ("1E-38", pa.decimal128(38, 38), "0." + "0" * 37 + "1"),
        ("-3E-9", pa.decimal256(76, 9), "-0.000000003"),
        ("12300", pa.decimal128(10, -2), "12300"),
    ],
)
def test_decimals_have_the_declared_scale_and_no_exponent(value: str, kind: pa.DataType, expected: str):
    array = pa.array([Decimal(value), None], kind)
    assert raw(array, ResultType.DECIMAL) == [expected, None]
    assert hue(array, ResultType.DECIMAL) == [expected, "NULL"]


@pytest.mark.item(31)
def test_declared_type_overrides_integers():
    assert raw(pa.array([1, None]), ResultType.DECIMAL) == ["1", None]
    assert raw(pa.array([0, 1, 2, None]), ResultType.BOOLEAN) == [False, True, 2, None]
    assert hue(pa.array([0, 1]), ResultType.BOOLEAN) == [False, True]


@pytest.mark.item(28)
@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([date(2024, 1, 31), date(1, 1, 1)]), ["2024-01-31", "0001-01-01"]),
        (pa.array([date(2024, 2, 29)], pa.date64()), ["2024-02-29"]),
        (pa.array([37230, 0], pa.time32("s")), ["10:20:30", "00:00:00"]),
        (pa.array([37230500, 1000], pa.time32("ms")), ["10:20:30.500000", "00:00:01"]),
        (pa.array([37230000001], pa.time64("us")), ["10:20:30.000001"]),
        (pa.array([1, 10_000, 10**9], pa.time64("ns")), ["00:00:00.000000001", "00:00:00.000010", "00:00:01"]),
        (pa.array([0, 1706696430], pa.timestamp("s")), ["1970-01-01 00:00:00", "2024-01-31 10:20:30"]),
        (
            pa.array([1500, 2000, -1], pa.timestamp("ms")),
            ["1970-01-01 00:00:01.500000", "1970-01-01 00:00:02", "1969-12-31 23:59:59.999000"],
        ),
        (pa.array([1, None, 10**6], pa.timestamp("us")), ["1970-01-01 00:00:00.000001", None, "1970-01-01 00:00:01"]),
        (pa.array([1000, 10**9], pa.timestamp("ns")), ["1970-01-01 00:00:00.000001", "1970-01-01 00:00:01"]),
        (
            pa.array([1, 120, 10**9], pa.timestamp("ns")),
            ["1970-01-01 00:00:00.000000001", "1970-01-01 00:00:00.00000012", "1970-01-01 00:00:01"],
        ),
        (pa.array([-62135596800], pa.timestamp("s")), ["0001-01-01 00:00:00"]),
        (pa.array([datetime(2024, 1, 31, 10, 20, 30, tzinfo=UTC)]), ["2024-01-31 10:20:30+00:00"]),
        (pa.array([1, None], pa.timestamp("us", "Etc/UTC")), ["1970-01-01 00:00:00.000001+00:00", None]),
        (
            pa.array([0, 15724800, None], pa.timestamp("s", "Europe/Berlin")),
            ["1970-01-01 01:00:00+01:00", "1970-07-02 01:00:00+01:00", None],
        ),
        (
            pa.array([1721000000, 1705000000], pa.timestamp("s", "Europe/Berlin")),
            ["2024-07-15 01:33:20+02:00", "2024-01-11 20:06:40+01:00"],
        ),
        (pa.array([-4 * 10**9], pa.timestamp("s", "Europe/Berlin")), ["1843-03-31 17:46:48+00:53:28"]),
        (pa.array([0], pa.timestamp("s", "-02:30")), ["1969-12-31 21:30:00-02:30"]),
        (pa.array([0], pa.timestamp("s", "Atlantis/Capital")), ["1970-01-01 00:00:00+00:00"]),
        (
            pa.array([93784, -93784, 172800, 0, None], pa.duration("s")),
            ["1 day 02:03:04", "-1 day -02:03:04", "2 days", "00:00:00", None],
        ),
        (pa.array([1500, -1], pa.duration("ms")), ["00:00:01.5", "-00:00:00.001"]),
        (
            pa.array(
                [(14, 3, 4_500_000_000), (-14, 0, 0), (0, 1, -7200 * 10**9), (0, 0, 0), None],
                pa.month_day_nano_interval(),
            ),
            ["1 year 2 months 3 days 00:00:04.5", "-1 year -2 months", "1 day -02:00:00", "00:00:00", None],
        ),
    ],
)
def test_temporal_values_are_written_as_text(array: pa.Array, expected: list[str]):
    assert raw(array) == expected


def test_infinite_dates_and_timestamps_are_written_as_infinity():
    days = pa.array([2**31 - 1, -(2**31) + 1, None], pa.int32())
    assert raw(days.view(pa.date32())) == ["infinity", "-infinity", None]
    ticks = pa.array([2**63 - 1, -(2**63) + 1, 0, None])
    assert raw(ticks.view(pa.timestamp("us"))) == ["infinity", "-infinity", "1970-01-01 00:00:00", None]
    assert raw(ticks.view(pa.timestamp("us", "UTC"))) == ["infinity", "-infinity", "1970-01-01 00:00:00+00:00", None]


@pytest.mark.parametrize("eras", [100, 1_000, 14_000, -100, -14_000])
@pytest.mark.parametrize("day", [date(2000, 2, 29), date(2100, 2, 28), date(2023, 12, 31), date(2399, 3, 1)])
def test_years_beyond_arrow_limits_are_written_as_text(day: date, eras: int):
    """The expected dates follow from the period of the calendar: 400 years, or 146,097 days."""
    days = (day - date(1970, 1, 1)).days + eras * 146_097
    expected = f"{day.year + 400 * eras:04d}{day:-%m-%d}"
    assert raw(pa.array([days], pa.int32()).view(pa.date32())) == [expected]
    if abs(eras) <= 100:
        assert raw(pa.array([days * 86_400_000 + 3_723_004]).view(pa.timestamp("ms"))) == [
            f"{expected} 01:02:03.004000"
        ]


@pytest.mark.item(28)
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(2), pa.binary_view()])
def test_binary_is_base64_in_raw_form_and_text_in_hue_form(kind: pa.DataType):
    array = pa.array([b"<\xff", None], kind)
    assert raw(array, ResultType.BINARY) == ["PP8=", None]
    assert hue(array, ResultType.BINARY) == ["&lt;\ufffd", "NULL"]


@pytest.mark.item(28)
@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([[1, None], [], None]), [[1, None], [], None]),
        (pa.array([["a"]], pa.large_list(pa.string())), [["a"]]),
        (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)), [[1, 2], None, [3, 4]]),
        (pa.ListViewArray.from_arrays([2, 0], [1, 3], pa.array([1, 2, 3])), [[3], [1, 2, 3]]),
        (pa.array([[math.nan, 0.5]], pa.list_(pa.float32())), [["NaN", 0.5]]),
        (pa.array([[Decimal("1.5")]], pa.list_(pa.decimal128(5, 2))), [["1.50"]]),
        (pa.array([[date(2024, 1, 31)]]), [["2024-01-31"]]),
        (pa.array([[b"\xff"]]), [["/w=="]]),
        (pa.array([[[1], None]]), [[[1], None]]),
        (pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int8())), [{"a": 1}, {}, None]),
        (pa.array([[(1, "x"), (2, None)]], pa.map_(pa.int8(), pa.string())), [{"1": "x", "2": None}]),
        (pa.array([[(True, 1)]], pa.map_(pa.bool_(), pa.int8())), [{"true": 1}]),
        (
            pa.array([{"b": 1, "a": [0]}, None], pa.struct([("b", pa.int8()), ("a", pa.list_(pa.timestamp("s")))])),
            [{"b": 1, "a": ["1970-01-01 00:00:00"]}, None],
        ),
        (pa.StructArray.from_arrays([pa.array([1]), pa.array(["x"])], ["", ""]), [{"field0": 1, "field1": "x"}]),
        (pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), [{"a": 1, "a_2": 2}]),
        (pa.array([{}, {}], pa.struct([])), [{}, {}]),
        (
            pa.UnionArray.from_sparse(
                pa.array([5, 7], pa.int8()), [pa.array([1, 2]), pa.array(["x", "y"])], ["a", "b"], [5, 7]
            ),
            [1, "y"],
        ),
        (
            pa.UnionArray.from_dense(
                pa.array([1, 0, 1], pa.int8()), pa.array([1, 0, 0], pa.int32()), [pa.array([1.5]), pa.array(["x", "y"])]
            ),
            ["y", 1.5, "x"],
        ),
    ],
)
def test_nested_values_are_native(array: pa.Array, expected: list[object]):
    assert raw(array) == expected
    assert raw(array.slice(1)) == expected[1:]
    assert raw(pa.chunked_array([array, array.slice(1)])) == expected + expected[1:]


@pytest.mark.item(28)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[1,{"a":null}]', [1, {"a": None}]),
        ("[1, 2", "[1, 2"),
        ("", ""),
        ("[NaN]", "[NaN]"),
        ("[18446744073709551616, 1234567890123456789]", ["18446744073709551616", 1234567890123456789]),
        (f"[{'9' * 5000}]", ["9" * 5000]),
        ('["\\ud800", 1234567890123456789]', '["\\ud800", 1234567890123456789]'),
        ("[NaN, 1234567890123456789]", "[NaN, 1234567890123456789]"),
        ("[" * 300 + "]" * 300, "[" * 300 + "]" * 300),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_complex_values_given_as_json_text_are_parsed(text: str, expected: object):
    for result_type in (ResultType.ARRAY, ResultType.MAP, ResultType.STRUCT, ResultType.UNION):
        assert raw(pa.array([text, None]), result_type) == [expected, None]
    assert raw(pa.array([text]), ResultType.STRING) == [text]
    orjson.dumps(raw(pa.array([text]), ResultType.ARRAY))


def test_wrapped_arrays_render_as_their_content():
    words = pa.array(["a", None, "a"])
    assert raw(words.dictionary_encode()) == ["a", None, "a"]
    assert raw(pa.RunEndEncodedArray.from_arrays([2, 3], [1.5, None])) == [1.5, 1.5, None]
    assert hue(pa.array([1.5, 1.5]).dictionary_encode()) == ["1.5", "1.5"]
    uuid = UUID("12345678-1234-5678-1234-567812345678")
    assert raw(pa.array([uuid, None], pa.uuid())) == [str(uuid), None]
    assert raw(pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":1}']))) == ['{"a":1}']
    assert raw(pa.ExtensionArray.from_storage(pa.bool8(), pa.array([2, 0, None], pa.int8()))) == [True, False, None]


def test_invalid_utf8_gets_replacement_characters():
    offsets = pa.py_buffer(b"\0\0\0\0\2\0\0\0\3\0\0\0")
    array = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"a\xffb")])
    assert raw(array) == ["a\ufffd", "b"]


@pytest.mark.item(5)
@pytest.mark.item(29)
def test_text_is_unchanged_in_raw_form():
    text = "<b>&\"' x\n\t\\ % + é 😀 \u2028 \x00"
    assert orjson.loads(rendered(pa.array([text]))) == [[text]]


@pytest.mark.item(29)
@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array(["<b>&\"' x", None, "&lt;"]), ["&lt;b&gt;&amp;&quot;&#x27;&nbsp;x", "NULL", "&amp;lt;"]),
        (pa.array([29.0, 1e20, math.nan, math.inf, -math.inf, None]), ["29.0", "1e+20", "nan", "inf", "-inf", "NULL"]),
        (pa.array([0.1], pa.float32()), ["0.1"]),
        (pa.array([1, None]), [1, "NULL"]),
        (pa.array([True]), [True]),
        (pa.array([0], pa.timestamp("s")), ["1970-01-01&nbsp;00:00:00"]),
        (pa.array([[1, 0.5], None]), ["[1.0,0.5]", "NULL"]),
        (pa.array([{"a": "<"}]), ["{&quot;a&quot;:&quot;&lt;&quot;}"]),
        (
            pa.UnionArray.from_dense(
                pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32()), [pa.array([1.5]), pa.array([b"<"])]
            ),
            ["1.5", "&lt;"],
        ),
    ],
)
def test_hue_form(array: pa.Array, expected: list[object]):
    assert hue(array) == expected


@pytest.mark.item(29)
def test_complex_column_given_as_json_text_has_the_hue_form():
    assert hue(pa.array(['{"a": [1, 2]}']), ResultType.MAP) == ["{&quot;a&quot;:[1,2]}"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[12345678901234567890.123456789]", ["12345678901234567890.123456789"]),
        ('{"a":{"b":[1.2345678901234567890]}}', {"a": {"b": ["1.2345678901234567890"]}}),
        ("[0.1,1.10,-2.5E-7,1e100,0.30000000000000004]", [0.1, 1.1, -2.5e-07, 1e100, 0.30000000000000004]),
        ("[0.10000000000000001]", ["0.10000000000000001"]),
        ("[1e400,1e-400,1e99999999999999999999]", ["1e400", "1e-400", "1e99999999999999999999"]),
        ("[9007199254740993.0]", ["9007199254740993.0"]),
        ("[9007199254740993]", [9007199254740993]),
    ],
)
def test_numbers_in_json_text_keep_their_digits(text: str, expected: object):
    assert raw(pa.array([text]), ResultType.ARRAY) == [expected]


def table(rows: int, text: str = "x") -> pa.Table:
    return pa.table({"id": pa.array(range(rows), pa.int64()), "text": pa.array([text] * rows, pa.string())})


COLUMNS = [Column("id", ResultType.BIGINT, "bigint"), Column("text", ResultType.STRING, "string")]


def test_batches_of_a_page_may_differ_in_arrow_types():
    batches = [
        pa.table({"a": pa.array([1], pa.int8()), "b": pa.nulls(1)}),
        pa.table({"a": pa.array([2**40]), "b": pa.array(["x"]).dictionary_encode()}).to_batches()[0],
        pa.table({"a": pa.array([], pa.int8()), "b": pa.array([], pa.string())}),
        pa.concat_tables([pa.table({"a": [n], "b": ["y"]}) for n in (3, 4)]),
    ]
    page = render_page(batches, columns=COLUMNS, escape=False, max_bytes=1000)
    assert page.json == b'[[1,null],[1099511627776,"x"],[3,"y"],[4,"y"]]'
    assert page.rows == 4


@pytest.mark.item(30)
def test_page_without_rows_is_an_empty_array():
    for batches in ([], [table(0)]):
        page = render_page(batches, columns=COLUMNS, escape=False, max_bytes=1000)
        assert (page.json, page.rows) == (b"[]", 0)


def test_rows_without_columns_are_empty_arrays():
    batch = pa.table({"a": [1, 2]}).select([])
    assert render_page([batch], columns=[], escape=False, max_bytes=1000).rows == batch.num_rows


@pytest.mark.parametrize("max_bytes", [1, 7, 8, 9, 15, 16, 17, 40, 100, 10_000])
def test_page_ends_before_the_row_that_would_exceed_its_size(max_bytes: int):
    whole = orjson.dumps([[n, "x"] for n in range(12)])
    batches = [table(12).slice(0, 5), table(12).slice(5)]
    page = render_page(batches, columns=COLUMNS, escape=False, max_bytes=max_bytes)
    assert orjson.loads(page.json) == orjson.loads(whole)[: page.rows]
    assert len(page.json) == page.size_bytes
    assert len(page.json) <= max_bytes or page.rows == 0
    assert page.is_cut == (page.rows < 12)
    if page.rows < 12:
        following = orjson.dumps(orjson.loads(whole)[: page.rows + 1])
        assert len(following) > max_bytes


@pytest.mark.parametrize(
    "encode", [lambda text: text, lambda text: text.dictionary_encode(), lambda text: text.cast(pa.string_view())]
)
def test_wide_page_is_rendered_in_blocks(encode):
    batch = pa.table({"id": pa.array(range(300), pa.int64()), "text": encode(pa.array(["y" * 100_000] * 300))})
    page = render_page([batch], columns=COLUMNS, escape=False, max_bytes=12_000_000)
    assert page.rows == 119
    assert len(page.json) <= 12_000_000
    assert [row[0] for row in orjson.loads(page.json)] == list(range(119))


@pytest.mark.parametrize(
    ("text", "escape"), [("x" * 6_000_000, False), ("\0" * 3_000_000, False), ("'" * 3_000_000, True)]
)
def test_row_above_the_limit_is_not_rendered(text, escape, monkeypatch) -> None:
    batch = pa.table({"id": [1, 2], "text": ["small", text]})
    rendered = cells.cell_values

    def small_values(array: pa.ChunkedArray, column: Column, **form: bool) -> list[object]:
        assert array.nbytes < 1000
        return rendered(array, column, **form)

    monkeypatch.setattr(cells, "cell_values", small_values)
    page = render_page([batch], columns=COLUMNS, escape=escape, max_bytes=5_000_000)
    assert (page.rows, page.is_cut) == (1, True)


@pytest.mark.parametrize("shape", ["slice", "chunks"])
def test_slices_and_chunks_render_their_own_rows(shape: str):
    whole = pa.table({"id": [1, 2, 3, 4], "text": pa.array([["a"], None, [], ["b", "c"]])})
    batch = whole.slice(1, 3) if shape == "slice" else pa.concat_tables([whole.slice(1, 1), whole.slice(2, 2)])
    page = render_page([batch], columns=COLUMNS, escape=False, max_bytes=1000)
    assert page.json == b'[[2,null],[3,[]],[4,["b","c"]]]'


class TestBigNumbers:
    """Numbers beyond 2**53 become strings if the client requests it (Contract editor 6.3)."""

    LARGE = 2**63 - 1

    def as_text(self, array: pa.Array, result_type: ResultType, *, escape: bool = False) -> list[object]:
        return cell_values(array, column(result_type), escape=escape, big_numbers_as_text=True)

    def test_wide_integer_column_is_all_text(self):
        array = pa.array([1, None, -self.LARGE], pa.int64())
        assert self.as_text(array, ResultType.BIGINT) == ["1", None, str(-self.LARGE)]
        assert self.as_text(array, ResultType.BIGINT, escape=True) == ["1", "NULL", str(-self.LARGE)]
        assert self.as_text(pa.array([2**64 - 1], pa.uint64()), ResultType.BIGINT) == [str(2**64 - 1)]
        encoded = pa.array([self.LARGE, self.LARGE]).dictionary_encode()
        assert self.as_text(pa.chunked_array([encoded]), ResultType.BIGINT) == [str(self.LARGE)] * 2

    def test_narrow_integers_and_doubles_stay_numbers(self):
        for kind in (ResultType.INT, ResultType.SMALLINT, ResultType.TINYINT):
            assert self.as_text(pa.array([1, 2]), kind) == [1, 2]
        assert self.as_text(pa.array([1, 0]), ResultType.BOOLEAN) == [True, False]
        assert self.as_text(pa.array([1.5]), ResultType.DOUBLE) == [1.5]
        decimal = pa.array([Decimal("12.50")], pa.decimal128(10, 2))
        assert self.as_text(decimal, ResultType.DECIMAL) == raw(decimal, ResultType.DECIMAL) == ["12.50"]

    def test_integers_in_other_columns_are_text_beyond_double_precision(self):
        array = pa.array([2**53 - 1, 2**53, None, -(2**53) + 1, -(2**53)])
        assert self.as_text(array, ResultType.STRING) == [2**53 - 1, str(2**53), None, -(2**53) + 1, str(-(2**53))]
        assert self.as_text(array.slice(2, 2), ResultType.STRING) == [None, -(2**53) + 1]
        for empty in (array.slice(0, 0), pa.array([None], pa.int64())):
            assert self.as_text(empty, ResultType.STRING) == [None] * len(empty)

    def test_nested_members_follow_their_type(self):
        kind = pa.struct([("a", pa.int64()), ("b", pa.int32()), ("c", pa.list_(pa.int64()))])
        array = pa.array([{"a": 1, "b": 2, "c": [self.LARGE, None]}], kind)
        assert self.as_text(array, ResultType.STRUCT) == [{"a": "1", "b": 2, "c": [str(self.LARGE), None]}]
        pairs = pa.array([[(self.LARGE, 1)]], pa.map_(pa.int64(), pa.int64()))
        assert self.as_text(pairs, ResultType.MAP) == [{str(self.LARGE): "1"}]
        union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["x", "y"])])
        assert self.as_text(union, ResultType.UNION) == ["1", "y"]

    def test_nested_values_given_as_text_follow_their_digits(self):
        array = pa.array([f'{{"a": [1, {2**53 - 1}, {2**53}, -{2**53}, {"9" * 30}], "b": 1.5}}', "no json"])
        found = [1, 2**53 - 1, str(2**53), f"-{2**53}", "9" * 30]
        assert self.as_text(array, ResultType.STRUCT) == [{"a": found, "b": 1.5}, "no json"]
        assert raw(pa.array([f"[{2**53}]"]), ResultType.ARRAY) == [[2**53]]

    def test_page_uses_the_requested_number_form(self):
        page = render_page(
            [pa.table({"c": pa.array([1])})],
            columns=[column(ResultType.BIGINT)],
            escape=False,
            max_bytes=100,
            big_numbers_as_text=True,
        )
        assert page.json == b'[["1"]]'
