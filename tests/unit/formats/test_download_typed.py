"""Downloads as Parquet and Arrow: types, and a common schema for chunks of different types (Contract editor 8.2)."""

import io
from datetime import date, datetime
from decimal import Decimal

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fakes.downloads import StoredTables, column, downloaded, one_column

from queryserver.formats.arrow import ResultType as R
from queryserver.formats.download.encoder import DownloadFormat

FORMATS = [DownloadFormat.PARQUET, DownloadFormat.ARROW]


async def read(source: StoredTables, wanted: DownloadFormat) -> pa.Table:
    stored = await downloaded(source, wanted)
    if wanted is DownloadFormat.PARQUET:
        return pq.ParquetFile(io.BytesIO(stored)).read()
    return pa.ipc.open_stream(stored).read_all()


def parts(kind: R, *arrays: pa.Array) -> StoredTables:
    return StoredTables([column("c", kind)], [pa.table([array], names=["c"]) for array in arrays])


@pytest.mark.item(54)
@pytest.mark.parametrize("wanted", FORMATS)
@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, None], pa.int8()),
        pa.array([2**64 - 1], pa.uint64()),
        pa.array([1.5, float("nan"), None], pa.float32()),
        pa.array([True, None]),
        pa.array([Decimal("12.50"), None], pa.decimal128(10, 2)),
        pa.array([Decimal("12.50")], pa.decimal256(60, 2)),
        pa.array([datetime(2024, 1, 31, 1, 2, 3, 4), None], pa.timestamp("us")),  # noqa: DTZ001 a naive timestamp
        pa.array([1], pa.timestamp("ns", "UTC")),
        pa.array([date(2024, 1, 31), None]),
        pa.array([b"\0\xff", b"", None]),
        pa.array(["é😀\0", "", None]),
        pa.array([[1, None], [], None], pa.list_(pa.int64())),
        pa.array([{"a": 1, "b": [None]}], pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])),
        pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
    ],
    ids=lambda array: str(array.type),
)
async def test_types_and_values_are_kept(wanted, array):
    table = await read(one_column(array, R.STRING), wanted)
    assert table.schema.field("c").type.equals(array.type)
    assert repr(table["c"].to_pylist()) == repr(array.to_pylist())


@pytest.mark.parametrize("wanted", FORMATS)
@pytest.mark.parametrize(
    ("array", "kind", "expected"),
    [
        (pa.array([1], pa.timestamp("s")), pa.timestamp("us"), [datetime(1970, 1, 1, 0, 0, 1)]),  # noqa: DTZ001 as above
        (pa.array(["a", "b", None]).dictionary_encode(), pa.string(), ["a", "b", None]),
        (pa.array(["a"], pa.large_string()), pa.string(), ["a"]),
        (pa.array(["a"], pa.string_view()), pa.string(), ["a"]),
        (pa.array([b"ab"], pa.binary(2)), pa.binary(), [b"ab"]),
        (pa.array([1.5], pa.float16()), pa.float32(), [1.5]),
        (pa.array([Decimal(1200)], pa.decimal128(10, -2)), pa.string(), ["1200"]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else None,
)
async def test_other_types_become_the_nearest_portable_type(wanted, array, kind, expected):
    table = await read(one_column(array, R.STRING), wanted)
    assert table.schema.field("c").type.equals(kind)
    assert table["c"].to_pylist() == expected


@pytest.mark.parametrize("wanted", FORMATS)
async def test_types_unknown_to_parquet_become_text(wanted):
    dense = pa.UnionArray.from_dense(
        pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32()), [pa.array([7]), pa.array(["x"])]
    )
    table = await read(one_column(dense, R.UNION), wanted)
    assert table["c"].to_pylist() == ["7", "x"]
    nested = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), dense)
    table = await read(one_column(nested, R.ARRAY), wanted)
    assert table["c"].to_pylist() == ['[7,"x"]']


@pytest.mark.parametrize("wanted", FORMATS)
async def test_integers_in_a_declared_float_column_become_floats(wanted):
    mixed = pa.UnionArray.from_dense(
        pa.array([0, 1, 0], pa.int8()), pa.array([0, 0, 1], pa.int32()), [pa.array([5, None]), pa.array([5.25])]
    )
    table = await read(parts(R.DOUBLE, mixed, pa.array([7])), wanted)
    assert table.schema.field("c").type.equals(pa.float64())
    assert table["c"].to_pylist() == [5.0, 5.25, None, 7.0]
    assert (await read(parts(R.STRING, mixed), wanted))["c"].to_pylist() == ["5", "5.25", None]


@pytest.mark.parametrize("wanted", FORMATS)
@pytest.mark.parametrize(
    ("kind", "arrays", "common", "expected"),
    [
        (R.BIGINT, [pa.array([1], pa.int8()), pa.array([2**40])], pa.int64(), [1, 2**40]),
        (R.BIGINT, [pa.array([1], pa.uint8()), pa.array([-1], pa.int8())], pa.int64(), [1, -1]),
        (
            R.BIGINT,
            [pa.array([2**64 - 1], pa.uint64()), pa.array([-1])],
            pa.decimal128(20, 0),
            [Decimal(2**64 - 1), Decimal(-1)],
        ),
        (R.BIGINT, [pa.nulls(1), pa.array([1])], pa.int64(), [None, 1]),
        (R.DOUBLE, [pa.array([1]), pa.array([1.5])], pa.float64(), [1.0, 1.5]),
        (R.STRING, [pa.array([2**60 + 1]), pa.array([1.5])], pa.string(), [str(2**60 + 1), "1.5"]),
        (R.BIGINT, [pa.array([1]), pa.array(["x"]), pa.array([b"\xff"])], pa.string(), ["1", "x", "/w=="]),
        (
            R.DECIMAL,
            [pa.array([Decimal("1.5")], pa.decimal128(10, 2)), pa.array([Decimal("0.125")], pa.decimal128(5, 4))],
            pa.decimal128(12, 4),
            [Decimal("1.5000"), Decimal("0.1250")],
        ),
        (
            R.DECIMAL,
            [pa.array([Decimal("1.5")], pa.decimal128(10, 2)), pa.array(["NaN"])],
            pa.string(),
            ["1.50", "NaN"],
        ),
        (R.DATE, [pa.array([date(2024, 1, 31)]), pa.array(["infinity"])], pa.string(), ["2024-01-31", "infinity"]),
        (R.ARRAY, [pa.array([[]], pa.list_(pa.null())), pa.array([[1]])], pa.list_(pa.int64()), [[], [1]]),
        (R.ARRAY, [pa.array([[1]]), pa.array([{"a": 1}])], pa.string(), ["[1]", '{"a":1}']),
        (R.BOOLEAN, [pa.array([True]), pa.array(["x"])], pa.string(), ["true", "x"]),
    ],
)
async def test_parts_of_different_types_get_a_lossless_common_type(wanted, kind, arrays, common, expected):
    table = await read(parts(kind, *arrays), wanted)
    assert table.schema.field("c").type.equals(common)
    assert table["c"].to_pylist() == expected


@pytest.mark.parametrize("wanted", FORMATS)
@pytest.mark.parametrize(("kind", "declared"),
    [(R.BIGINT, pa.int64()), (R.DOUBLE, pa.float64()), (R.BOOLEAN, pa.bool_()), (R.DATE, pa.date32()),
    (R.TIMESTAMP, pa.timestamp("us")), (R.BINARY, pa.binary()), (R.DECIMAL, pa.string()),
    (R.ARRAY, pa.string())])  # fmt: skip
async def test_declared_type_applies_without_values(wanted, kind, declared):
    for source in (parts(kind), parts(kind, pa.nulls(2))):
        table = await read(source, wanted)
        assert table.schema.field("c").type.equals(declared)
        assert table["c"].to_pylist() == [None] * source.rows


@pytest.mark.parametrize("wanted", FORMATS)
async def test_repeated_names_are_numbered(wanted):
    table = pa.table([[1], [2], [3]], names=["a", "a", "b"])
    source = StoredTables([column(name, R.BIGINT) for name in ("a", "a", "b")], [table])
    assert (await read(source, wanted)).to_pylist() == [{"a": 1, "a_2": 2, "b": 3}]


@pytest.mark.parametrize("wanted", FORMATS)
async def test_all_rows_are_present_in_order(wanted):
    tables = [
        pa.table({"n": range(start, start + 1000), "text": ["x" * 2000] * 1000}) for start in range(0, 30_000, 1000)
    ]
    source = StoredTables([column("n", R.BIGINT), column("text", R.STRING)], tables)
    assert (await read(source, wanted))["n"].to_pylist() == list(range(30_000))


async def test_row_groups_have_a_useful_size():
    tables = [pa.table({"text": [f"{n:0>2000}" for n in range(1000)]})] * 20
    stored = await downloaded(StoredTables([column("text", R.STRING)], tables), DownloadFormat.PARQUET)
    metadata = pq.ParquetFile(io.BytesIO(stored)).metadata
    sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert sum(sizes) == 20_000
    assert 2 <= len(sizes) <= 4


def of_duckdb(sql: str) -> pa.Array:
    """Return a column of a DuckDB result, because pyarrow cannot create a map with keys of type null."""
    return duckdb.connect().sql(sql).to_arrow_table().column(0).combine_chunks()


@pytest.mark.parametrize("wanted", FORMATS)
@pytest.mark.parametrize(("sql", "expected"),
    [("SELECT MAP {}", []), ("SELECT [MAP {}]", [[]]), ("SELECT {'a': MAP {}, 'b': 1}", {"a": [], "b": 1}),
    ("SELECT [NULL]", [None])])  # fmt: skip
async def test_types_without_a_known_member_are_writable(wanted, sql, expected):
    table = await read(one_column(of_duckdb(sql), R.MAP), wanted)
    assert table["c"].to_pylist() == [expected]


@pytest.mark.parametrize("wanted", FORMATS)
async def test_initially_empty_map_takes_the_type_of_later_maps(wanted):
    table = await read(parts(R.MAP, of_duckdb("SELECT MAP {}"), of_duckdb("SELECT MAP {'a': 1}")), wanted)
    assert table.schema.field("c").type == pa.map_(pa.string(), pa.int32())
    assert table["c"].to_pylist() == [[], [("a", 1)]]
