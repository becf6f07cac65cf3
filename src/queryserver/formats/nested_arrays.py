"""Nested arrays taken apart and put together again: members change, which rows hold which of them does not."""

import operator
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyarrow import types

from queryserver.formats.arrow import kernels
from queryserver.formats.cells import field_names


def member_types(kind: Any) -> list[pa.DataType]:
    """The types of the members of a struct, a map (key, then item), a list or a union."""
    if types.is_map(kind):
        return [kind.key_type, kind.item_type]
    if types.is_struct(kind) or types.is_union(kind):
        return [kind.field(number).type for number in range(kind.num_fields)]
    return [kind.value_type]


def with_members(array: Any, changed: Callable[[pa.Array, int], pa.Array]) -> pa.Array:
    """The same structs, maps or lists of changed members; `changed` gets all members of one place, and its number.

    Lists of a fixed length become lists; fields of structs get the names that cells have (Contract editor 6.3). The
    array itself when all of that changes nothing.
    """
    kind, mask = array.type, array.is_null()
    if types.is_struct(kind):
        members = [array.field(number) for number in range(kind.num_fields)]
        new = [changed(member, number) for number, member in enumerate(members)]
        names = field_names(kind)
        if names == [field.name for field in kind.fields] and all(map(operator.is_, members, new)):
            return array
        return pa.StructArray.from_arrays(new, names=names, mask=mask)
    if types.is_map(kind):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        keys, items = (part.slice(first, last - first) for part in (array.keys, array.items))
        offsets = kernels.subtract(array.offsets, first)
        new_keys, new_items = changed(keys, 0), changed(items, 1)
        if new_keys is keys and new_items is items:
            return array
        return pa.MapArray.from_arrays(offsets, new_keys, new_items, mask=mask)
    # Not the offsets of the array: a list that is NULL may have items, and one of a fixed length has them always.
    sizes = kernels.fill_null(kernels.list_value_length(array), 0).cast(pa.int64())
    ends = pa.concat_arrays([pa.array([0], pa.int64()), kernels.cumulative_sum(sizes)])
    items = array.flatten()
    new = changed(items, 0)
    if new is items and (types.is_list(kind) or types.is_large_list(kind)):
        return array
    if types.is_large_list(kind) or types.is_large_list_view(kind):
        return pa.LargeListArray.from_arrays(ends, new, mask=mask)
    return pa.ListArray.from_arrays(ends.cast(pa.int32()), new, mask=mask)
