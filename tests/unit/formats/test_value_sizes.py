"""The sizes of Arrow values, and the first values and rows that exceed a size limit."""

import pyarrow as pa
import pytest

from queryserver.formats.arrow import (
    MEMBER_BYTES,
    STRUCT_BYTES,
    first_oversized_row,
    first_oversized_value,
    value_sizes,
)

TEXT = "x" * 100

CASES = {
    "string": (pa.array(["a", None, TEXT]), [1, 0, 100]),
    "large_string": (pa.array(["a", None, TEXT], pa.large_string()), [1, 0, 100]),
    "string_view": (pa.array(["a", None, TEXT], pa.string_view()), [1, 0, 100]),
    "binary": (pa.array([b"a", None, b"bc"]), [1, 0, 2]),
    "fixed_binary": (pa.array([b"ab", None, b"cd"], pa.binary(2)), [2, 2, 2]),
    "dictionary": (pa.array(["a", None, TEXT]).dictionary_encode(), [1, 0, 100]),
    "integer": (pa.array([1, None, 3]), [8, 8, 8]),
    "boolean": (pa.array([True, None, False]), [1, 1, 1]),
    "decimal": (pa.array([1, None, 2]).cast(pa.decimal128(38, 2)), [16, 16, 16]),
    "list": (pa.array([["a", "bb"], None, [TEXT]]), [3 + 2 * MEMBER_BYTES, 0, 100 + MEMBER_BYTES]),
    "list_of_nothing": (pa.array([[None, None], None, []], pa.list_(pa.null())), [2 * MEMBER_BYTES, 0, 0]),
    "list_view": (
        pa.array([["a"], None, [TEXT]], pa.list_view(pa.string())),
        [1 + MEMBER_BYTES, 0, 100 + MEMBER_BYTES],
    ),
    "fixed_list": (pa.array([["a"], None, [TEXT]], pa.list_(pa.string(), 1)), [9, 8, 108]),
    "map": (pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())), [17, 0, 0]),
    "struct": (pa.array([{"name": "a"}, None, {"name": TEXT}]), [STRUCT_BYTES + 4 + 8 + size for size in (1, 0, 100)]),
    "runs": (pa.RunEndEncodedArray.from_arrays([2, 3], pa.array(["a", TEXT])), [1, 1, 100]),
    "union": (
        pa.UnionArray.from_dense(
            pa.array([0, 0, 1], pa.int8()), pa.array([0, 1, 0], pa.int32()), [pa.array([1, None]), pa.array([TEXT])]
        ),
        [8, 8, 100],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values_have_their_sizes(name: str) -> None:
    array, sizes = CASES[name]
    assert value_sizes(array).to_pylist() == sizes
    assert value_sizes(array.slice(1)).to_pylist() == sizes[1:]
    assert value_sizes(array.slice(2, 0)).to_pylist() == []


def test_first_large_value_is_found_by_row_then_column() -> None:
    batch = pa.record_batch({"a": ["", "", TEXT], "b": ["", TEXT, TEXT], "c": [1, 2, 3]})
    assert first_oversized_value(batch, 99) == (1, 1)
    assert first_oversized_value(batch.slice(2), 99) == (0, 0)
    assert first_oversized_value(batch, 100) is None
    assert first_oversized_row(batch, 199) == 2
    assert first_oversized_row(batch, 216) is None


def test_list_members_without_arrow_bytes_still_count() -> None:
    batch = pa.record_batch({"a": pa.array([[None] * 1000], pa.list_(pa.null()))})
    assert first_oversized_value(batch, 1000) == (0, 0)
    batch = pa.record_batch({"a": pa.array([[True] * 1000])})
    assert first_oversized_value(batch, 1000) == (0, 0)
