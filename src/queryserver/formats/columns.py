"""Results as values: columns and their types (Contract editor 6.3), truncation, segments, and the sizes of values.

`kernels` are Arrow's compute functions, which pyarrow makes when it is imported, where no type checker sees them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from threading import Semaphore
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute
from pyarrow import types

kernels: Any = pyarrow.compute

ROW_CELLS = 2
"""A row may be as large as so many of the largest cells (`editor.cell_max_bytes`)."""

MANY_COLUMNS = 500
"""The memory of results of fewer columns does not matter."""
MEMBER_BYTES = 8
"""Of each member of a list, map or struct: at least this much, and besides the bytes of text, binary and lists."""
STRUCT_BYTES = 32
"""Of each struct, besides its members and the names of its fields."""

_NAME_CHARACTERS = 1000
_TEXT_CHARACTERS = 10_000
_PIECE_BYTES = 1024 * 1024
_LENGTH = pa.int64()
_WIDE_WORK = Semaphore()


class ResultType(StrEnum):
    """`meta.type`: one list of names for every dialect."""

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
"""Types whose values Arrow holds as the engines mean them; those of the others are text unless an engine knows more."""


def is_text(kind: pa.DataType) -> bool:
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def is_binary(kind: pa.DataType) -> bool:
    plain = types.is_binary(kind) or types.is_large_binary(kind)
    return plain or types.is_fixed_size_binary(kind) or types.is_binary_view(kind)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a result. `native_type` is the engine's own type text."""

    name: str
    type: ResultType
    native_type: str
    comment: str = ""


def bounded(columns: Sequence[Column]) -> tuple[Column, ...]:
    """The same columns with texts of at most 1,000 (names) and 10,000 characters.

    Some engines name an expression by its own text: SQLite's name of `1 /* 9 MB */` has 9 MB, and is stored twice.
    """
    return tuple(
        Column(
            _cut(column.name, _NAME_CHARACTERS),
            column.type,
            _cut(column.native_type, _TEXT_CHARACTERS),
            _cut(column.comment, _TEXT_CHARACTERS),
        )
        for column in columns
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


@dataclass(frozen=True, slots=True)
class CellForm:
    """How the cells of an answer are written (Contract editor 6.3)."""

    is_escaped: bool = False
    big_numbers_as_text: bool = False
    """Numbers that may have more digits than a double keeps are text."""


NUMBERS_AS_TEXT = frozenset(
    ResultType(f"{name}_TYPE") for name in ("BIGINT", "DECIMAL", "ARRAY", "MAP", "STRUCT", "UNION")
)
"""Types of columns whose integers of 64 bits, and decimals, are text with `big_numbers_as_text`: all of them."""


class TruncationReason(StrEnum):
    """Which cap cut the stored result (Contract editor 6.4)."""

    ROW_LIMIT = "row_limit"
    BYTE_LIMIT = "byte_limit"


class LimitSource(StrEnum):
    """Where the row limit of a statement comes from."""

    DEFAULT = "default"
    """The setting `editor.default_limit`, which `editor.enforce_default_limit` puts in force."""
    CALLER = "caller"
    """The field `limit` of the call."""
    MAXIMUM = "maximum"
    """The setting `editor.result_max_rows`."""


@dataclass(frozen=True, slots=True)
class Truncation:
    reason: TruncationReason
    limit_source: LimitSource | None = None
    """None: not known, for statements that an earlier version recorded."""

    @property
    def by(self) -> str:
        """The field or setting that has to be larger for more rows."""
        if self.reason is TruncationReason.BYTE_LIMIT:
            return "result_max_bytes"
        match self.limit_source:
            case LimitSource.DEFAULT:
                return "default_limit"
            case LimitSource.MAXIMUM:
                return "result_max_rows"
            case _:
                return "limit"

    @property
    def is_asked_for(self) -> bool:
        """Whether the caller's own `limit` cut the result."""
        return self.by == "limit"

    def message(self, *, rows: int, max_rows: int, max_bytes: int, may_change: bool) -> str:
        """What was cut and why, and how to get more rows.

        `may_change`: the statement may have changed data, so that sending it again may change them again.
        """
        kept = f"Only the first {rows} rows were kept: "
        match self.by:
            case "result_max_bytes":
                kept += f"a result has at most {max_bytes} bytes on this server (editor.result_max_bytes)."
                advice = "select fewer columns or rows."
            case "result_max_rows":
                kept += f"a result has at most {max_rows} rows on this server (editor.result_max_rows)."
                advice = "run several statements, each for a part of them."
            case "default_limit":
                kept += "the default limit of this server (editor.default_limit)."
                advice = f"execute the statement with limit=… (up to {max_rows})."
            case _ if rows >= max_rows:
                return kept + "the limit of the call."
            case _:
                kept += "the limit of the call."
                advice = f"execute the statement with a larger limit (up to {max_rows})."
        if may_change:
            return f"{kept} The statement was carried out in full. If it only reads data, {advice}"
        return f"{kept} To get more, {advice}"


@dataclass(frozen=True, slots=True)
class Segment:
    """One stored piece of a result: rows [start_row, start_row + rows), `size_bytes` long in the store.

    `fence` is that of the runner that stored it.
    """

    number: int
    start_row: int
    rows: int
    size_bytes: int
    fence: int = 0


def encode(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def decode(stream: bytes) -> pa.Table:
    """The opposite of `encode`; shares memory with `stream`."""
    with pa.ipc.open_stream(stream) as reader:
        return reader.read_all()


def begin_wide_work(*, wait_s: float = 10.0) -> Callable[[], None]:
    """Wait, at most so long, for earlier work on results of MANY_COLUMNS: one at a time, for its memory.

    Call the returned function once the work has ended. Further calls do nothing.
    """
    held = [_WIDE_WORK] if _WIDE_WORK.acquire(timeout=wait_s) else []

    def end() -> None:
        if held:
            held.pop().release()

    return end


def unpack_zstandard(packed: bytes, *, max_bytes: int) -> bytearray:
    """What frames unpack to; reading ends soon behind `max_bytes`. Raises ValueError for broken ones."""
    made, piece = bytearray(), bytearray(_PIECE_BYTES)
    try:
        with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
            # Not `read`: Arrow never frees what it had read when the data turn out to be broken.
            while len(made) <= max_bytes and (size := stream.readinto(piece)):
                made += memoryview(piece)[:size]
    except (pa.ArrowException, OSError) as error:
        raise ValueError("The zstandard frames are broken.") from error
    return made


def has_nested(schema: pa.Schema) -> bool:
    """Whether values of a column may count more than the column's own bytes."""
    return any(map(_is_nested, schema.types))


def first_large_value(batch: pa.RecordBatch, limit_bytes: int) -> tuple[int, int] | None:
    """Row and column of the first value above the limit, both from 0; None when there is none."""
    found = None
    for column, array in enumerate(batch.columns):
        # A plain column's own size is known without reading it, and is never below the size of one of its values.
        if array.nbytes <= limit_bytes and not _is_nested(array.type):
            continue
        if (row := _first_above(value_sizes(array), limit_bytes)) is not None:
            found = min(found, (row, column)) if found else (row, column)
    return found


def first_large_row(batch: pa.RecordBatch, limit_bytes: int) -> int | None:
    """The first row, from 0, whose values are together above the limit; None when there is none."""
    if batch.nbytes <= limit_bytes and not has_nested(batch.schema):
        return None
    return _first_above(row_sizes(batch), limit_bytes)


def row_sizes(batch: pa.RecordBatch) -> pa.Array:
    return _sum([value_sizes(array) for array in batch.columns], batch.num_rows)


Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


def parts(batch: Rows, most_bytes: int, bytes_of: Callable[[Any], int] = attrgetter("nbytes")) -> Iterator[Rows]:
    """The batch in order, cut without copying into parts of at most so many bytes, or of one row."""
    if batch.num_rows <= 1 or sum(map(bytes_of, batch.columns)) <= most_bytes:
        yield batch
        return
    half = batch.num_rows // 2
    yield from parts(batch.slice(0, half), most_bytes, bytes_of)
    yield from parts(batch.slice(half), most_bytes, bytes_of)


def plain_bytes(array: pa.Array | pa.ChunkedArray) -> int:
    """What the values take as plain Arrow values, about: each as if it were in no dictionary."""
    if isinstance(array, pa.ChunkedArray):
        return sum(map(plain_bytes, array.chunks))
    kind = array.type
    # `nbytes` of a slice counts the text of the whole array behind a view.
    if types.is_dictionary(kind) or types.is_string_view(kind) or types.is_binary_view(kind):
        return kernels.sum(value_sizes(array)).as_py() or 0
    return array.nbytes


def without_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    is_dictionary = types.is_dictionary
    if not any(map(is_dictionary, batch.schema.types)):
        return batch
    arrays = [array.dictionary_decode() if is_dictionary(array.type) else array for array in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def value_sizes(array: pa.Array) -> pa.Array:
    """Bytes of each value; NULL may count 0 or what its place takes."""
    kind: Any = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return value_sizes(array.storage)
    if types.is_dictionary(kind):
        return kernels.fill_null(value_sizes(array.dictionary).take(array.indices), 0)
    if types.is_run_end_encoded(kind):
        runs = pa.RunEndEncodedArray.from_arrays(array.run_ends, value_sizes(array.values))
        return kernels.run_end_decode(runs).slice(array.offset, len(array))
    if types.is_fixed_size_binary(kind):
        return _same(kind.byte_width, len(array))
    if is_text(kind) or is_binary(kind):
        return _lengths(array)
    if types.is_union(kind):
        members = [value_sizes(array.field(number)).to_pylist() for number in range(kind.num_fields)]
        sizes = dict(zip(kind.type_codes, members, strict=True))
        return pa.array([sizes[code][place] for code, place in zip(*union_places(array), strict=True)], _LENGTH)
    if types.is_struct(kind):
        names = sum(len(field.name.encode(errors="replace")) for field in kind.fields)
        members = [_member_sizes(array.field(number)) for number in range(kind.num_fields)]
        return kernels.add(_sum(members, len(array)), STRUCT_BYTES + names)
    if types.is_map(kind):
        return _list_sizes(array, kernels.add(_member_sizes(array.keys), _member_sizes(array.items)))
    if types.is_nested(kind):
        return _list_sizes(array, _member_sizes(array.values))
    return _same(1 if types.is_null(kind) else max(kind.bit_width // 8, 1), len(array))


def union_places(array: pa.UnionArray) -> tuple[list[int], list[int]]:
    """For each row the code of its member and the place of its value in that member."""
    # Not `type_codes` and `offsets`: pyarrow 26 gives those of the first rows also for a slice of later ones.
    _, codes_buffer, *rest = array.buffers()
    codes = pa.Array.from_buffers(pa.int8(), len(array), [None, codes_buffer], offset=array.offset).to_pylist()
    if array.type.mode != "dense":
        return codes, list(range(len(codes)))
    places = pa.Array.from_buffers(pa.int32(), len(array), [None, rest[0]], offset=array.offset)
    return codes, places.to_pylist()


def _member_sizes(array: pa.Array) -> pa.Array:
    sizes = value_sizes(array)
    if is_text(array.type) or is_binary(array.type) or _is_nested(array.type):
        return kernels.add(sizes, MEMBER_BYTES)
    return kernels.max_element_wise(sizes, MEMBER_BYTES)


def _list_sizes(array: Any, items: pa.Array) -> pa.Array:
    """Sums of the sizes of the child's items, as `array` divides them into lists."""
    kind = array.type
    if types.is_fixed_size_list(kind):
        places = range(array.offset, array.offset + len(array))
        starts = pa.array([place * kind.list_size for place in places], _LENGTH)
        ends = kernels.add(starts, kind.list_size)
    elif types.is_list_view(kind) or types.is_large_list_view(kind):
        starts, ends = array.offsets, kernels.add(array.offsets, array.sizes)
    else:
        starts, ends = array.offsets[:-1], array.offsets[1:]
    ends_before = pa.concat_arrays([_same(0, 1), kernels.cumulative_sum(items)])
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
    if types.is_union(kind):  # in each row it is one of its members
        return any(_is_nested(kind.field(number).type) for number in range(kind.num_fields))
    return types.is_nested(kind)


def _sum(sizes: list[pa.Array], rows: int) -> pa.Array:
    total = _same(0, rows)
    for one in sizes:
        total = kernels.add(total, one)
    return total


def _same(value: int, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, _LENGTH), rows)


def _first_above(sizes: pa.Array, limit: int) -> int | None:
    row = kernels.index(kernels.greater(sizes, limit), value=True).as_py()
    return None if row < 0 else row
