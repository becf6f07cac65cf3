"""Arrow helpers: column types, value sizes, type predicates, dictionaries, unions, and tables as bytes.

A text union is a dense union with two members. It represents values that the Arrow type of a column cannot hold:
infinite dates, years before 1 or after 9999, and NaN decimals. The first member contains the values that fit the type.
The second contains the engine's text for all other values. Its type codes are not used by unions that engines declare.
Cells show the engine's text, and files have the column's type, whatever its values (Contract editor 8.2).
"""

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from operator import attrgetter
from typing import Any, TypeVar

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

Rows = TypeVar("Rows", bound=pa.RecordBatch | pa.Table)

ROW_SIZE_FACTOR = 2
"""Maximum size of a row, as a multiple of the maximum size of a cell (`editor.cell_max_bytes`)."""
MEMBER_BYTES = 8
"""Minimum size of a member of a list, map or struct. It is added to the size of a string, binary or nested member."""
STRUCT_BYTES = 32
"""Overhead of a struct, in addition to the sizes of its members and field names."""
_LENGTH = pa.int64()


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

    DuckDB represents infinities in the same way, in Arrow and in Parquet. Raises ValueError if a string is neither a
    date nor a timestamp, or if `kind` cannot represent it.
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
        message = "a text value is neither a date nor a timestamp"
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
    """Return unique names for a struct's fields. Unnamed fields are called `field0`, …, and repeated names get the
    suffixes `_2`, `_3`, …
    """
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
    # The offsets are computed from the lengths, because those of a NULL list may still span items, and fixed-size lists
    # have no offsets.
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
        raise ValueError("The Zstandard frames are corrupt.") from error
    return made


class BaseType(StrEnum):
    """Column types, independent of SQL dialects (Contract importer 12.4)."""

    INT8 = "Int8"
    INT16 = "Int16"
    INT32 = "Int32"
    INT64 = "Int64"
    UINT8 = "UInt8"
    UINT16 = "UInt16"
    UINT32 = "UInt32"
    UINT64 = "UInt64"
    FLOAT32 = "Float32"
    FLOAT64 = "Float64"
    DECIMAL = "Decimal"
    BOOLEAN = "Boolean"
    DATE = "Date"
    DATETIME = "Datetime"
    TIME = "Time"
    DURATION = "Duration"
    STRING = "String"
    NULL = "Null"
    BINARY = "Binary"
    ARRAY = "Array"
    STRUCT = "Struct"
    OBJECT = "Object"


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type of a column.

    Only `DECIMAL` has `precision` and `scale`. `length` limits a `STRING`, in characters; None means no limit.
    """

    base: BaseType
    precision: int | None = None
    scale: int | None = None
    length: int | None = None


STRING = ColumnType(BaseType.STRING)
NULL = ColumnType(BaseType.NULL)


_MAX_NAME_CHARACTERS = 1000
_MAX_TEXT_CHARACTERS = 10_000


class ResultType(StrEnum):
    """Values of `meta.type`, which are the same for all dialects."""

    BOOLEAN = "BOOLEAN_TYPE"
    TINYINT = "TINYINT_TYPE"
    SMALLINT = "SMALLINT_TYPE"
    INT = "INT_TYPE"
    BIGINT = "BIGINT_TYPE"
    FLOAT = "FLOAT_TYPE"
    DOUBLE = "DOUBLE_TYPE"
    DECIMAL = "DECIMAL_TYPE"
    STRING = "STRING_TYPE"
    VARCHAR = "VARCHAR_TYPE"
    CHAR = "CHAR_TYPE"
    DATE = "DATE_TYPE"
    TIMESTAMP = "TIMESTAMP_TYPE"
    TIMESTAMP_TZ = "TIMESTAMPLOCALTZ_TYPE"
    INTERVAL_YEAR_MONTH = "INTERVAL_YEAR_MONTH_TYPE"
    INTERVAL_DAY_TIME = "INTERVAL_DAY_TIME_TYPE"
    BINARY = "BINARY_TYPE"
    ARRAY = "ARRAY_TYPE"
    MAP = "MAP_TYPE"
    STRUCT = "STRUCT_TYPE"
    UNION = "UNION_TYPE"
    NULL = "NULL_TYPE"
    USER_DEFINED = "USER_DEFINED_TYPE"


PLAIN_TYPES: Mapping[ResultType, pa.DataType] = {
    ResultType.BOOLEAN: pa.bool_(),
    ResultType.TINYINT: pa.int8(),
    ResultType.SMALLINT: pa.int16(),
    ResultType.INT: pa.int32(),
    ResultType.BIGINT: pa.int64(),
    ResultType.FLOAT: pa.float32(),
    ResultType.DOUBLE: pa.float64(),
    ResultType.DATE: pa.date32(),
    ResultType.TIMESTAMP: pa.timestamp("us"),
    ResultType.BINARY: pa.binary(),
}
"""Arrow types that represent the values exactly. Values of other types are strings, unless an engine has a better Arrow
type.
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a result. `native_type` is the type name as reported by the engine."""

    name: str
    type: ResultType
    native_type: str
    comment: str = ""


def limit_texts(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Truncate names to 1,000 characters, and type names and comments to 10,000.

    Some engines use the text of an expression as its column name: in SQLite, the name of `1 /* 9 MB */` has 9 MB and
    would be stored twice.
    """
    return tuple(
        Column(
            _shorten(column.name, _MAX_NAME_CHARACTERS),
            column.type,
            _shorten(column.native_type, _MAX_TEXT_CHARACTERS),
            _shorten(column.comment, _MAX_TEXT_CHARACTERS),
        )
        for column in columns
    )


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


@dataclass(frozen=True, slots=True)
class CellForm:
    """How cells are written in a response (Contract editor 6.3)."""

    is_escaped: bool = False
    big_numbers_as_text: bool = False
    """Whether numbers that may exceed the precision of a double are written as strings."""


NUMBERS_AS_TEXT = frozenset(
    ResultType(f"{name}_TYPE") for name in ("BIGINT", "DECIMAL", "ARRAY", "MAP", "STRUCT", "UNION")
)
"""Types of columns in which `big_numbers_as_text` turns every 64-bit integer and decimal into a string."""


def has_nested_types(schema: pa.Schema) -> bool:
    """Return whether computed value sizes can exceed the `nbytes` of their column."""
    return any(map(_is_nested, schema.types))


def first_oversized_value(batch: pa.RecordBatch, limit_bytes: int) -> tuple[int, int] | None:
    """Return the row and column, both from 0, of the first value larger than the limit, or None if there is none."""
    found = None
    for column, array in enumerate(batch.columns):
        # `nbytes` of a plain column is known without reading it, and no value of the column is larger.
        if array.nbytes <= limit_bytes and not _is_nested(array.type):
            continue
        if (row := _first_above(value_sizes(array), limit_bytes)) is not None:
            found = min(found, (row, column)) if found else (row, column)
    return found


def first_oversized_row(batch: pa.RecordBatch, limit_bytes: int) -> int | None:
    """Return the first row, from 0, whose values exceed the limit in total, or None if there is none."""
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
