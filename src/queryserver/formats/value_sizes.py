"""Computes the sizes of Arrow values, finds oversized values and rows, and splits batches by size."""

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import types

from queryserver.formats.arrow import is_binary, is_text, kernels, union_offsets

Rows = TypeVar("Rows", bound=pa.RecordBatch | pa.Table)

ROW_SIZE_FACTOR = 2
"""Maximum size of a row, as a multiple of the maximum size of a cell (`editor.cell_max_bytes`)."""
MEMBER_BYTES = 8
"""Minimum size of a member of a list, map or struct. It is added to the size of a string, binary or nested member."""
STRUCT_BYTES = 32
"""Overhead of a struct, in addition to the sizes of its members and field names."""
_LENGTH = pa.int64()


def has_nested_types(schema: pa.Schema) -> bool:
    """Return whether computed value sizes can exceed the `nbytes` of their column."""
    return any(map(_is_nested, schema.types))


def first_oversized_value(batch: pa.RecordBatch, limit_bytes: int) -> tuple[int, int] | None:
    """Return the row and column, both from 0, of the first value larger than the limit; None if there is none."""
    found = None
    for column, array in enumerate(batch.columns):
        # `nbytes` of a plain column is known without reading it, and no value of the column is larger.
        if array.nbytes <= limit_bytes and not _is_nested(array.type):
            continue
        if (row := _first_above(value_sizes(array), limit_bytes)) is not None:
            found = min(found, (row, column)) if found else (row, column)
    return found


def first_oversized_row(batch: pa.RecordBatch, limit_bytes: int) -> int | None:
    """Return the first row, from 0, whose values exceed the limit in total; None if there is none."""
    if batch.nbytes <= limit_bytes and not has_nested_types(batch.schema):
        return None
    return _first_above(row_sizes(batch), limit_bytes)


def row_sizes(batch: pa.RecordBatch) -> pa.Array:
    """Return the size of each row in bytes."""
    return _sum([value_sizes(array) for array in batch.columns], batch.num_rows)


def split_batch(batch: Rows, most_bytes: int, bytes_of: Callable[[Any], int] = attrgetter("nbytes")) -> Iterator[Rows]:
    """Slice a batch, without copying, into parts of at most `most_bytes` each, or of a single row."""
    if batch.num_rows <= 1 or sum(map(bytes_of, batch.columns)) <= most_bytes:
        yield batch
        return
    half = batch.num_rows // 2
    yield from split_batch(batch.slice(0, half), most_bytes, bytes_of)
    yield from split_batch(batch.slice(half), most_bytes, bytes_of)


def decoded_bytes(array: pa.Array | pa.ChunkedArray) -> int:
    """Estimate the size of the values after decoding dictionaries."""
    if isinstance(array, pa.ChunkedArray):
        return sum(map(decoded_bytes, array.chunks))
    kind = array.type
    # For view types, `nbytes` of a slice includes the text of the whole array.
    if types.is_dictionary(kind) or types.is_string_view(kind) or types.is_binary_view(kind):
        return kernels.sum(value_sizes(array)).as_py() or 0
    return array.nbytes


def value_sizes(array: pa.Array) -> pa.Array:
    """Return the size of each value in bytes. NULL counts as 0, or as its slot if the type has a fixed size."""
    kind: Any = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return value_sizes(array.storage)
    if types.is_dictionary(kind):
        return kernels.fill_null(value_sizes(array.dictionary).take(array.indices), 0)
    if types.is_run_end_encoded(kind):
        runs = pa.RunEndEncodedArray.from_arrays(array.run_ends, value_sizes(array.values))
        return kernels.run_end_decode(runs).slice(array.offset, len(array))
    if types.is_fixed_size_binary(kind):
        return _constant(kind.byte_width, len(array))
    if is_text(kind) or is_binary(kind):
        return _lengths(array)
    if types.is_union(kind):
        members = [value_sizes(array.field(number)).to_pylist() for number in range(kind.num_fields)]
        sizes = dict(zip(kind.type_codes, members, strict=True))
        return pa.array([sizes[code][place] for code, place in zip(*union_offsets(array), strict=True)], _LENGTH)
    if types.is_struct(kind):
        names = sum(len(field.name.encode(errors="replace")) for field in kind.fields)
        members = [_member_sizes(array.field(number)) for number in range(kind.num_fields)]
        return kernels.add(_sum(members, len(array)), STRUCT_BYTES + names)
    if types.is_map(kind):
        return _list_sizes(array, kernels.add(_member_sizes(array.keys), _member_sizes(array.items)))
    if types.is_nested(kind):
        return _list_sizes(array, _member_sizes(array.values))
    return _constant(1 if types.is_null(kind) else max(kind.bit_width // 8, 1), len(array))


def _member_sizes(array: pa.Array) -> pa.Array:
    sizes = value_sizes(array)
    if is_text(array.type) or is_binary(array.type) or _is_nested(array.type):
        return kernels.add(sizes, MEMBER_BYTES)
    return kernels.max_element_wise(sizes, MEMBER_BYTES)


def _list_sizes(array: Any, items: pa.Array) -> pa.Array:
    """Return the sum of the item sizes for each list of `array`."""
    kind = array.type
    if types.is_fixed_size_list(kind):
        places = range(array.offset, array.offset + len(array))
        starts = pa.array([place * kind.list_size for place in places], _LENGTH)
        ends = kernels.add(starts, kind.list_size)
    elif types.is_list_view(kind) or types.is_large_list_view(kind):
        starts, ends = array.offsets, kernels.add(array.offsets, array.sizes)
    else:
        starts, ends = array.offsets[:-1], array.offsets[1:]
    ends_before = pa.concat_arrays([_constant(0, 1), kernels.cumulative_sum(items)])
    return kernels.subtract(ends_before.take(ends), ends_before.take(starts))


def _lengths(array: pa.Array) -> pa.Array:
    if types.is_string_view(array.type) or types.is_binary_view(array.type):
        array = array.cast(pa.large_binary())
    return kernels.fill_null(kernels.binary_length(array), 0).cast(_LENGTH)


def _is_nested(kind: pa.DataType) -> bool:
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _is_nested(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _is_nested(kind.storage_type)
    if types.is_union(kind):  # a union value is a value of one of its members
        return any(_is_nested(kind.field(number).type) for number in range(kind.num_fields))
    return types.is_nested(kind)


def _sum(sizes: list[pa.Array], rows: int) -> pa.Array:
    total = _constant(0, rows)
    for one in sizes:
        total = kernels.add(total, one)
    return total


def _constant(value: int, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, _LENGTH), rows)


def _first_above(sizes: pa.Array, limit: int) -> int | None:
    row = kernels.index(kernels.greater(sizes, limit), value=True).as_py()
    return None if row < 0 else row
