"""Arrow helpers: type predicates, dictionaries, unions, nested arrays, and tables as bytes.

A text union is a dense union with two members. It represents values that the Arrow type of a column cannot hold:
infinite dates, years before 1 and after 9999, NaN decimals. The first member contains the values that fit the type, the
second the engine's text of all others. Its type codes are not used by unions that engines declare. Cells show the
engine's text, and files have the column's type, whatever its values (Contract editor 8.2).
"""

import operator
import re
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyarrow import types

kernels: Any = pyarrow.compute
"""Arrow's compute functions. pyarrow creates them at import time, so type checkers do not know them."""
_CHUNK_BYTES = 1024 * 1024

_TEXT_UNION_CODES = [100, 101]
"""Type codes of the values and of the texts. The codes of other unions start at 0."""
_DATE_OR_TIMESTAMP = re.compile(
    r"(\d+)-(\d\d)-(\d\d)( \(BC\))?(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?"
    r"(Z|[+-]\d\d(?::\d\d){0,2})?)?( BC| \(BC\))?"
)
_OFFSET_TYPE = pa.int32()
_TICKS_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY_S = 86_400
_DAYS_OF_400_YEARS = 146_097


def is_text(kind: pa.DataType) -> bool:
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def is_binary(kind: pa.DataType) -> bool:
    plain = types.is_binary(kind) or types.is_large_binary(kind)
    return plain or types.is_fixed_size_binary(kind) or types.is_binary_view(kind)


def without_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Decode the dictionary arrays of a batch to plain arrays."""
    is_dictionary = types.is_dictionary
    if not any(map(is_dictionary, batch.schema.types)):
        return batch
    arrays = [array.dictionary_decode() if is_dictionary(array.type) else array for array in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def union_offsets(array: pa.Array) -> tuple[list[int], list[int]]:
    """Return, for each row of a union, the type code of its member and the index of its value in that member."""
    # The attributes `type_codes` and `offsets` ignore the offset of a slice (pyarrow 26): they start at the first row.
    _, codes_buffer, *rest = array.buffers()
    codes = pa.Array.from_buffers(pa.int8(), len(array), [None, codes_buffer], offset=array.offset).to_pylist()
    if array.type.mode != "dense":
        return codes, list(range(len(codes)))
    places = pa.Array.from_buffers(pa.int32(), len(array), [None, rest[0]], offset=array.offset)
    return codes, places.to_pylist()


def text_union(values: pa.Array, texts: pa.Array) -> pa.Array:
    """Build a text union that has the text where `texts` is not NULL (`values` is NULL there), otherwise the value."""
    codes = kernels.if_else(kernels.is_valid(texts), _TEXT_UNION_CODES[1], _TEXT_UNION_CODES[0]).cast(pa.int8())
    places = pa.array(range(len(codes)), _OFFSET_TYPE)
    return pa.UnionArray.from_dense(codes, places, [values, texts], type_codes=_TEXT_UNION_CODES)


def is_text_union(kind: pa.DataType) -> bool:
    """Return whether the type is a text union (see the module docstring)."""
    return types.is_union(kind) and list(kind.type_codes) == _TEXT_UNION_CODES


def text_union_value_type(kind: pa.DataType) -> pa.DataType:
    return kind.field(0).type


def text_union_to_native(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert a text union to dates or timestamps of type `kind`. Infinities become the extreme numbers of the type.

    DuckDB represents infinities in the same way, in Arrow and in Parquet. Raises ValueError if a text is neither a date
    nor a timestamp, or if `kind` cannot represent it.
    """
    codes, places = union_offsets(array)
    usual, texts = (
        array.field(number).take(
            pa.array([p if c == code else None for c, p in zip(codes, places, strict=True)], _OFFSET_TYPE)
        )
        for number, code in enumerate(_TEXT_UNION_CODES)
    )
    storage = pa.int32() if types.is_date32(kind) else pa.int64()
    read = _reader(kind)
    numbers = pa.array([None if text is None else read(text) for text in texts.to_pylist()], storage)
    return kernels.coalesce(numbers, usual.cast(kind).view(storage)).view(kind)


def _reader(kind: pa.DataType) -> Callable[[str], int]:
    if types.is_date32(kind):
        return lambda text: _number(text, 2**31 - 1, lambda day, _: day)
    if types.is_timestamp(kind):
        per_s = _TICKS_PER_S[kind.unit]
        return lambda text: _number(text, 2**63 - 1, lambda day, clock: _ticks(day, clock, per_s))
    message = f"{kind} cannot represent values such as NaN"
    raise ValueError(message)


def _number(text: str, infinite: int, number: Callable[[int, Sequence[str | None]], int]) -> int:
    if text in ("infinity", "-infinity"):
        return infinite if text[0] != "-" else -infinite
    found = _DATE_OR_TIMESTAMP.fullmatch(text)
    if found is None:
        message = "a text is neither a date nor a timestamp"
        raise ValueError(message)
    year, month, day, before, hour, minute, second, fraction, zone, behind = found.groups()
    day_number = _day(1 - int(year) if before or behind else int(year), int(month), int(day))
    made = number(day_number, (hour, minute, second, fraction, zone))
    if abs(made) > infinite:
        message = "a timestamp exceeds 64 bits"
        raise ValueError(message)
    return made


def _day(year: int, month: int, day: int) -> int:
    """Return the number of days since 1970-01-01 in the proleptic Gregorian calendar, for any year."""
    cycles = (year - 2000) // 400
    return (
        date(year - 400 * cycles, month, day).toordinal() - date(1970, 1, 1).toordinal() + cycles * _DAYS_OF_400_YEARS
    )


def _offset_s(zone: str | None) -> int:
    """Parse a UTC offset such as `+02` or `-03:30:15`. `Z` and None mean UTC."""
    if zone is None or zone == "Z":
        return 0
    size = sum(int(part) * unit for part, unit in zip(zone[1:].split(":"), (3600, 60, 1), strict=False))
    return -size if zone[0] == "-" else size


def _ticks(day: int, clock: Sequence[str | None], per_s: int) -> int:
    hour, minute, second, fraction, zone = clock
    seconds = day * _DAY_S + int(hour or 0) * 3600 + int(minute or 0) * 60 + int(second or 0)
    return (seconds - _offset_s(zone)) * per_s + int(Decimal(f"0.{fraction or 0}") * per_s)


def field_names(kind: pa.StructType) -> list[str]:
    """Return unique names for a struct's fields: unnamed fields are `field0`, …; repeated names get `_2`, `_3`, …"""
    names: dict[str, None] = {}
    for index in range(kind.num_fields):
        wanted = name = kind.field(index).name or f"field{index}"
        number = 2
        while name in names:
            name, number = f"{wanted}_{number}", number + 1
        names[name] = None
    return list(names)


def member_types(kind: Any) -> list[pa.DataType]:
    """Return the member types of a struct, map (key, then item), list or union."""
    if types.is_map(kind):
        return [kind.key_type, kind.item_type]
    if types.is_struct(kind) or types.is_union(kind):
        return [kind.field(number).type for number in range(kind.num_fields)]
    return [kind.value_type]


def with_members(array: Any, changed: Callable[[pa.Array, int], pa.Array]) -> pa.Array:
    """Rebuild an array of structs, maps or lists from converted member arrays.

    `changed` receives a member array and its index and returns the new member array. Fixed-size lists become lists, and
    struct fields get the names used in cells (Contract editor 6.3). Returns `array` itself if nothing changes.
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
    # Computed from the lengths, because the offsets of a NULL list may still span items, and fixed-size lists have no
    # offsets.
    sizes = kernels.fill_null(kernels.list_value_length(array), 0).cast(pa.int64())
    ends = pa.concat_arrays([pa.array([0], pa.int64()), kernels.cumulative_sum(sizes)])
    items = array.flatten()
    new = changed(items, 0)
    if new is items and (types.is_list(kind) or types.is_large_list(kind)):
        return array
    if types.is_large_list(kind) or types.is_large_list_view(kind):
        return pa.LargeListArray.from_arrays(ends, new, mask=mask)
    return pa.ListArray.from_arrays(ends.cast(pa.int32()), new, mask=mask)


def encode(table: pa.Table) -> bytes:
    """Write the table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def decode(stream: bytes) -> pa.Table:
    """Read a table from an Arrow IPC stream. The table shares memory with `stream`."""
    with pa.ipc.open_stream(stream) as reader:
        return reader.read_all()


def unpack_zstandard(packed: bytes, *, max_bytes: int) -> bytearray:
    """Decompress Zstandard frames, stopping shortly after `max_bytes`. Raises ValueError if the frames are corrupt."""
    made, piece = bytearray(), bytearray(_CHUNK_BYTES)
    try:
        with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
            # `read` would leak its buffer if the data is corrupt.
            while len(made) <= max_bytes and (size := stream.readinto(piece)):
                made += memoryview(piece)[:size]
    except (pa.ArrowException, OSError) as error:
        raise ValueError("The zstandard frames are broken.") from error
    return made
