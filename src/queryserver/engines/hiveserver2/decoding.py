"""Columns as they come over the wire, as Arrow; a column is turned as a whole."""

import pyarrow as pa

from queryserver.engines.hiveserver2.protocol.messages import MalformedMessage
from queryserver.engines.hiveserver2.protocol.rows import TColumn, TRowSet, TTypeId
from queryserver.engines.hiveserver2.types import WireColumn
from queryserver.formats.cells_kernels import kernels

_ZERO_FRACTION = r"\.0+( |$)"


def record_batch(rows: TRowSet, columns: tuple[WireColumn, ...]) -> pa.RecordBatch:
    """The rows of one answer. Raises MalformedMessage when they do not fit the columns."""
    found = rows.columns or []
    if not found:
        return pa.RecordBatch.from_arrays([pa.array([], one.arrow) for one in columns], _names(columns))
    if len(found) != len(columns):
        raise MalformedMessage("the rows have other columns than the result")
    arrays = [_array(values, one) for values, one in zip(found, columns, strict=True)]
    if len({len(array) for array in arrays}) > 1:
        raise MalformedMessage("columns of different length")
    return pa.RecordBatch.from_arrays(arrays, _names(columns))


def _names(columns: tuple[WireColumn, ...]) -> list[str]:
    return [one.column.name for one in columns]


def _array(values: TColumn, declared: WireColumn) -> pa.Array:
    if (text := values.string_val) is not None:
        raw = pa.array(text.values, pa.binary(), mask=null_mask(text.nulls, len(text.values)))
        return _from_text(raw, declared)
    if (binary := values.binary_val) is not None:
        return pa.array(binary.values, pa.binary(), mask=null_mask(binary.nulls, len(binary.values)))
    numbers = (
        (values.bool_val, pa.bool_()),
        (values.byte_val, pa.int8()),
        (values.i16_val, pa.int16()),
        (values.i32_val, pa.int32()),
        (values.i64_val, pa.int64()),
        (values.double_val, pa.float32() if declared.type_id == TTypeId.FLOAT else pa.float64()),
    )
    for column, kind in numbers:
        if column is not None:
            return pa.array(column.values, kind, mask=null_mask(column.nulls, len(column.values)))
    raise MalformedMessage("a column without values")


def null_mask(nulls: bytes, length: int) -> pa.BooleanArray | None:
    """True where a value is NULL; None when none is. The bits begin with the lowest and may be fewer than values."""
    if not nulls.strip(b"\0"):
        return None
    # Arrow keeps booleans in the same way.
    bits = nulls.ljust((length + 7) // 8, b"\0")
    return pa.BooleanArray.from_buffers(pa.bool_(), length, [None, pa.py_buffer(bits)])


def _from_text(raw: pa.Array, declared: WireColumn) -> pa.Array:
    if pa.types.is_binary(declared.arrow):
        return raw
    text = _utf8(raw)
    if pa.types.is_string(declared.arrow):
        is_zoned = declared.type_id == TTypeId.TIMESTAMP_LOCAL_TZ
        return kernels.replace_substring_regex(text, _ZERO_FRACTION, r"\1") if is_zoned else text
    return _typed(text, declared.arrow)


def _utf8(raw: pa.Array) -> pa.Array:
    """The bytes as text; what is no UTF-8 gets replacement characters."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if one is None else one.decode("utf-8", "replace") for one in raw.to_pylist()]
        return pa.array(texts, pa.string())


def _typed(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values that the texts stand for; where one has none (a year beyond Arrow, say), all stay text."""
    kinds = [kind, pa.timestamp("ns")] if pa.types.is_timestamp(kind) else [kind]
    for one in kinds:
        try:
            return text.cast(one)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            continue
    return kernels.replace_substring_regex(text, _ZERO_FRACTION, r"\1") if pa.types.is_timestamp(kind) else text
