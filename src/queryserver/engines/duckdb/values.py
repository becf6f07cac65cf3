"""Reads DuckDB's rows as record batches. Values that Arrow's types cannot represent become text in DuckDB's format."""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import zip_longest
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from duckdb.sqltypes import DuckDBPyType

from queryserver.engines.catalog_queries import identifier
from queryserver.engines.duckdb.failures import without_excerpt
from queryserver.engines.record_batches import BATCH_BYTES, calendar_date, clock_text, slice_batch
from queryserver.errors.statements import RowTooLarge, StatementRejected, cell_too_large
from queryserver.formats.arrow import (
    ROW_SIZE_FACTOR,
    Column,
    ResultType,
    first_oversized_row,
    first_oversized_value,
    member_types,
    text_union,
    with_members,
)

_RESULT_TYPES = {
    name: result
    for result, names in {
        ResultType.BOOLEAN: "boolean",
        ResultType.TINYINT: "tinyint",
        ResultType.SMALLINT: "smallint, utinyint",
        ResultType.INT: "integer, usmallint",
        ResultType.BIGINT: "bigint, uinteger, ubigint",
        ResultType.FLOAT: "float",
        ResultType.DOUBLE: "double",
        ResultType.DECIMAL: "decimal, hugeint, uhugeint",
        ResultType.STRING: "varchar, uuid, enum, time, bit",
        ResultType.DATE: "date",
        ResultType.TIMESTAMP: "timestamp, timestamp_s, timestamp_ms, timestamp_ns",
        ResultType.TIMESTAMP_TZ: "timestamp with time zone",
        ResultType.INTERVAL_DAY_TIME: "interval",
        ResultType.BINARY: "blob",
        ResultType.ARRAY: "list, array",
        ResultType.MAP: "map",
        ResultType.STRUCT: "struct, tuple",
        ResultType.UNION: "union",
        ResultType.NULL: "null",
    }.items()
    for name in names.split(", ")
}

MAX_LEVELS = 60
"""Maximum nesting depth of a column's type."""

_NESTED = frozenset({"list", "array", "map", "struct", "tuple", "union"})

# Types whose values Arrow would corrupt (UHUGEINT overflows, TIMETZ loses its zone) or for which Arrow has no text
# format.
_AS_TEXT = frozenset({"uhugeint", "enum", "time with time zone", "bit", "bignum", "interval", "variant", "geometry"})


def result_type(native: DuckDBPyType) -> ResultType:
    return _RESULT_TYPES.get(native.id, ResultType.USER_DEFINED)


def require_shallow(types: Sequence[DuckDBPyType]) -> None:
    """Reject a type that is nested deeper than results allow (Arrow's own limit is 64 levels).

    Raises StatementRejected.
    """
    level = list(types)
    for _ in range(MAX_LEVELS):
        level = [child for native in level for _, child in child_types(native)]
        if not level:
            return
    raise StatementRejected(f"Not implemented Error: a column's type is nested deeper than {MAX_LEVELS} levels.")


def child_types(native: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    if native.id not in _NESTED:
        return []
    return [(name, child) for name, child in native.children if isinstance(child, DuckDBPyType)]


def _readable_type(native: DuckDBPyType) -> str:
    """Return the type to which values must be cast so that Arrow can represent them.

    Return the type itself if no cast is necessary.
    """
    match native.id:
        case kind if kind in _AS_TEXT:
            return "VARCHAR"
        case "list":
            return f"{_element_type(native, 0)}[]"
        case "array":
            return f"{_element_type(native, 0)}[{dict(native.children)['size']}]"
        case "map":
            return f"MAP({_element_type(native, 0)}, {_element_type(native, 1)})"
        case "struct":
            return _readable_members(native, "STRUCT", child_types(native))
        case "tuple" if child_types(native):
            fields = (f"field{place} {_element_type(native, place)}" for place in range(len(native.children)))
            return f"STRUCT({', '.join(fields)})"
        case "union":
            return _readable_members(native, "UNION", child_types(native)[1:])  # the first child is the tag
        case _:
            return str(native)


def _element_type(native: DuckDBPyType, place: int) -> str:
    return _readable_type(child_types(native)[place][1])


def _readable_members(native: DuckDBPyType, word: str, members: list[tuple[str, DuckDBPyType]]) -> str:
    # Each member is computed once, because computing it twice at each level would take exponential time.
    carried = [(name, _readable_type(child), child) for name, child in members]
    if all(text == str(child) for _, text, child in carried):
        return str(native)
    return f"{word}({', '.join(f'{identifier(name)} {text}' for name, text, _ in carried)})"


_DAY_S = 86_400
_FIRST_DAY = -719_162  # 0001-01-01
_LAST_DAY = 2_932_896  # 9999-12-31
_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_UHUGEINT = pa.decimal256(39, 0)
_INFINITY_TICKS = {"date": 2**31 - 1, "timestamp": 2**63 - 1}


def correct_batch(
    batch: pa.RecordBatch, columns: tuple[Column, ...], natives: Sequence[DuckDBPyType | None] = ()
) -> pa.RecordBatch:
    """Return the batch with the names of `columns`, out-of-range dates as text (`text_union`), and dense unions.

    Dates from year 1 to 9999 are in range. `natives` contains DuckDB's types for columns that are read as text or have
    members that are read as text, and None for all other columns.
    """
    arrays = [_corrected(*one) for one in zip_longest(batch.columns, natives)]
    return pa.RecordBatch.from_arrays(arrays, names=[one.name for one in columns])


def is_read_as_text(native: DuckDBPyType) -> bool:
    """Return whether values are read as text although their final Arrow type is not text."""
    return native.id == "uhugeint" or any(is_read_as_text(child) for _, child in child_types(native))


def _corrected(array: pa.Array, native: DuckDBPyType | None = None) -> pa.Array:
    kind = array.type
    if native is not None and native.id == "uhugeint":
        return array.cast(_UHUGEINT)
    if pa.types.is_date32(kind):
        return _with_text_outside_calendar(array, array.view(pa.int32()), _FIRST_DAY, _LAST_DAY, _date_text)
    if pa.types.is_timestamp(kind):
        return _corrected_timestamps(array)
    if pa.types.is_union(kind):
        return _dense_union(array, native)
    if pa.types.is_nested(kind) and (native is not None or _has_dates(kind)):
        natives = [child for _, child in child_types(native)] if native is not None else None

        def correct_members(members: pa.Array, place: int) -> pa.Array:
            return _corrected(members, natives[place] if natives else None)

        return with_members(array, correct_members)
    return array


def _has_dates(kind: pa.DataType) -> bool:
    """Return whether nested values contain dates or timestamps."""
    return any(
        pa.types.is_date(one) or pa.types.is_timestamp(one) or (pa.types.is_nested(one) and _has_dates(one))
        for one in member_types(kind)
    )


def _corrected_timestamps(array: pa.Array) -> pa.Array:
    per_s = _UNITS[array.type.unit]
    first, last = _FIRST_DAY * _DAY_S * per_s, (_LAST_DAY + 1) * _DAY_S * per_s - 1
    suffix = "" if array.type.tz is None else "+00"
    int64 = 2**63 - 1
    return _with_text_outside_calendar(
        array,
        array.view(pa.int64()),
        max(first, -int64 + 1),
        min(last, int64 - 1),
        lambda ticks: _timestamp_text(ticks, per_s, suffix),
    )


def _with_text_outside_calendar(
    array: pa.Array, ticks: pa.Array, first: int, last: int, text: Callable[[int], str]
) -> pa.Array:
    """Convert the values outside [first, last] to text. Return the array unchanged if there are none."""
    earliest, latest = _extremes(ticks)
    if earliest is None or (earliest >= first and latest <= last):
        return array
    outside = [tick is not None and not first <= tick <= last for tick in ticks.to_pylist()]
    texts = [text(tick) if out else None for tick, out in zip(ticks.to_pylist(), outside, strict=True)]
    inside = pc.call_function("if_else", [pa.array(outside), pa.scalar(None, array.type), array])
    return text_union(inside, pa.array(texts, pa.string()))


def _extremes(array: pa.Array) -> tuple[Any, Any]:
    extremes = pc.call_function("min_max", [array]).as_py()
    return extremes["min"], extremes["max"]


def _dense_union(array: pa.Array, native: DuckDBPyType | None) -> pa.Array:
    """Convert a sparse union to a dense union. DuckDB's unions are sparse: each member has a full-length child."""
    if array.type.mode == "dense":
        return array
    natives = [child for _, child in child_types(native)[1:]] if native is not None else []  # the first is the tag
    members = [array.field(number) for number in range(array.type.num_fields)]
    children = [_corrected(*one) for one in zip_longest(members, natives)]
    names = [array.type.field(number).name for number in range(array.type.num_fields)]
    # `type_codes` ignores a slice's offset.
    codes = pa.Array.from_buffers(pa.int8(), len(array), [None, array.buffers()[1]], offset=array.offset)
    value_offsets = pa.array(range(len(codes)), pa.int32())
    return pa.UnionArray.from_dense(pa.array(codes.to_pylist(), pa.int8()), value_offsets, children, names)


def _date_text(day: int) -> str:
    if abs(day) == _INFINITY_TICKS["date"]:
        return "infinity" if day > 0 else "-infinity"
    text, is_bc = calendar_date(day)
    return f"{text} (BC)" if is_bc else text


def _timestamp_text(ticks: int, per_s: int, suffix: str) -> str:
    if abs(ticks) == _INFINITY_TICKS["timestamp"]:
        return "infinity" if ticks > 0 else "-infinity"
    seconds, fraction = divmod(ticks, per_s)
    day, second = divmod(seconds, _DAY_S)
    digits = f".{fraction:0{len(str(per_s)) - 1}d}".rstrip("0") if fraction else ""
    return f"{_date_text(day)} {clock_text(second)}{digits}{suffix}"


def readable(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """Return the same rows with types that Arrow can represent; the relation itself if it already has such types."""
    shown = [_readable_column(number, native) for number, native in enumerate(relation.types, start=1)]
    if not any(text.startswith("CAST") for text in shown):
        return relation
    return relation.project(", ".join(f"{text} AS c{number}" for number, text in enumerate(shown, start=1)))


def _readable_column(number: int, native: DuckDBPyType) -> str:
    carried = _readable_type(native)
    return f"#{number}" if carried == str(native) else f"CAST(#{number} AS {carried})"


def has_own_size(native: DuckDBPyType) -> bool:
    """Return whether all values of the type have the same size."""
    if native.id in {"varchar", "blob", "list", "map", "array", "bignum", "variant", "geometry"}:
        return False
    return all(has_own_size(child) for _, child in child_types(native))


def require_small(batch: pa.RecordBatch, columns: tuple[Column, ...], cell_max_bytes: int, rows_before: int) -> None:
    """Reject a value or row above its size limit before it leaves the engine. Raises cell_too_large, RowTooLarge.

    Only batches above the limit are inspected. Members of nested values are checked with the whole result (`Spool`).
    """
    if batch.nbytes <= cell_max_bytes:
        return
    if (cell := first_oversized_value(batch, cell_max_bytes)) is not None:
        row, column = cell
        raise cell_too_large(limit_bytes=cell_max_bytes, row=rows_before + row, column=columns[column].name)
    if (row := first_oversized_row(batch, ROW_SIZE_FACTOR * cell_max_bytes)) is not None:
        raise RowTooLarge(limit_bytes=ROW_SIZE_FACTOR * cell_max_bytes, row=rows_before + row)


_SMALL_BYTES = 1024 * 1024
"""Maximum average size of the batches that are concatenated, which copies them."""


class DuckdbAnswer:
    """Reads a statement's rows through Arrow. One batch is read ahead, so that errors are reported early.

    `around` wraps each driver call. `natives` is passed on to `correct_batch`.
    """

    def __init__(
        self,
        *,
        columns: tuple[Column, ...] | None = None,
        modified_rows: int | None = None,
        reader: pa.RecordBatchReader | None = None,
        natives: Sequence[DuckDBPyType | None] = (),
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
        cell_max_bytes: int = 0,
    ) -> None:
        self.columns = columns
        self.modified_rows = modified_rows
        self._reader = reader
        self._natives = natives
        self._around = around
        self._cell_max_bytes = cell_max_bytes
        self._rows = 0
        self.on_close: Callable[[], None] = lambda: None
        self._ahead: pa.RecordBatch | None = None
        try:
            with around():
                self._ahead = self._next()
        except BaseException:  # the connection accepts no statement while a reader is open
            self.close()
            raise

    def hide_excerpts(self) -> None:
        """Omit the statement excerpt from the errors of later batches too, because it contains parameter values."""
        around = self._around

        @contextmanager
        def hidden() -> Generator[None]:
            with without_excerpt(), around():
                yield

        self._around = hidden

    def next_batches(self) -> Sequence[pa.RecordBatch]:
        with self._around():
            batches, size = list[pa.RecordBatch](), 0
            while self._ahead is not None:
                size += self._ahead.nbytes
                if batches and size > BATCH_BYTES:
                    break
                batches.append(self._ahead)
                self._ahead = self._next()
            return [
                piece
                for batch in _concatenated(batches, size)
                for piece in slice_batch(correct_batch(batch, self.columns or (), self._natives))
            ]

    def close(self) -> None:
        """Close the reader, which would otherwise block the connection's next statement."""
        reader, self._reader, self._ahead = self._reader, None, None
        if reader is not None:
            reader.close()
        self.on_close()

    def _next(self) -> pa.RecordBatch | None:
        if self._reader is None:
            return None
        for batch in self._reader:
            if batch.num_rows:
                require_small(batch, self.columns or (), self._cell_max_bytes, self._rows)
                self._rows += batch.num_rows
                return batch
        return None


def _concatenated(batches: Sequence[pa.RecordBatch], size_bytes: int) -> Sequence[pa.RecordBatch]:
    """Concatenate small batches, because each batch costs some 50 µs downstream.

    Batches with sparse unions stay separate, because Arrow cannot concatenate them.
    """
    if len(batches) < 2 or size_bytes > _SMALL_BYTES * len(batches):
        return batches
    try:
        return [pa.concat_batches(batches)]
    except pa.ArrowNotImplementedError:
        return batches
