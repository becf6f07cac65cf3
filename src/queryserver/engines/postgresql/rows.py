"""Converts rows from the server's messages to Arrow columns, without a Python object for each value (ADR 83).

A row is a DataRow message: a kind, a length and the number of fields, then each field's length (-1 for NULL) and bytes.
A column is converted at once: the positions of its fields in all rows are an Arrow array, and the bytes at these
positions are copied together by Arrow's `take`. The machine must be little-endian, as Arrow's wheels are.
"""

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from queryserver.engines.record_batches import ColumnReader
from queryserver.errors.statements import StatementRejected
from queryserver.formats.arrow import kernels

_POSITION = pa.int32()
"""The type of a byte position. Rows that are converted together have less than 2 GiB: a few MiB and one more row."""
_WORD = struct.Struct("!i")
_WORD_BYTES = pa.scalar(_WORD.size, _POSITION)
_NO_BYTES = pa.scalar(0, _POSITION)
_HEAD_BYTES = 7
_MAX_PLAIN_ROWS = 32
"""Up to this number of rows, a loop over the fields takes less time than the calls of Arrow."""
_PADDING = bytes(8)
"""Follows the last row, because the bytes after a NULL are read like a value before its length is examined."""
_EVEN = pa.array(range(0, 20_000, 2), _POSITION)
"""The even numbers for the largest usual chunk of rows. Making them takes as long as converting five columns."""


class WireRows:
    """The bytes of complete rows, as received."""

    def __init__(self) -> None:
        self.pieces = list[bytes]()
        self.starts = array("i")
        """The position of each row in the joined pieces."""
        self.size = 0

    def __len__(self) -> int:
        return len(self.starts)

    def add(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self.size += len(piece)


@dataclass(frozen=True, slots=True)
class WireFormat:
    """How the fields of a column are encoded: a number in network byte order, or the bytes of a string or binary."""

    arrow: pa.DataType
    number: struct.Struct | None = None


_INT, _BIGINT = WireFormat(pa.int32(), struct.Struct("!i")), WireFormat(pa.int64(), struct.Struct("!q"))
_BYTES, _STRING = WireFormat(pa.binary()), WireFormat(pa.string())
_FORMATS = {
    16: WireFormat(pa.bool_(), struct.Struct("!?")),
    17: _BYTES,
    20: _BIGINT,
    21: WireFormat(pa.int16(), struct.Struct("!h")),
    23: _INT,
    26: WireFormat(pa.uint32(), struct.Struct("!I")),
    700: WireFormat(pa.float32(), struct.Struct("!f")),
    701: WireFormat(pa.float64(), struct.Struct("!d")),
    1082: _INT,
    1114: _BIGINT,
    1184: _BIGINT,
    2249: _BYTES,
}


def wire_format(type_oid: int) -> WireFormat:
    """Return the format in which a connection requests a type: binary for numbers, dates and times, otherwise text."""
    return _FORMATS.get(type_oid, _STRING)


def wire_columns(rows: WireRows, formats: Sequence[WireFormat]) -> Iterator[pa.Array]:
    """Yield the columns in order. Raises pa.ArrowInvalid if a string is not valid UTF-8."""
    data = b"".join([*rows.pieces, _PADDING])
    if len(rows) <= _MAX_PLAIN_ROWS:
        yield from _plain_columns(data, rows.starts, formats)
        return
    fields = _Fields(data, rows.starts)
    for one in formats:
        yield fields.strings(one.arrow) if one.number is None else fields.numbers(one.arrow, one.number.size)


def wire_batch(
    rows: WireRows, names: Sequence[str], formats: Sequence[WireFormat], readers: Sequence[ColumnReader]
) -> pa.RecordBatch:
    """Convert rows to an Arrow batch. Raises StatementRejected for a value that its column cannot represent."""
    arrays, values = list[pa.Array](), wire_columns(rows, formats)
    for name, reader in zip(names, readers, strict=True):
        try:
            array = next(values)
        except pa.ArrowInvalid as error:
            refusal = f'column "{name}" contains text that is not valid UTF-8: convert the column to bytea'
            raise StatementRejected(refusal) from error
        arrays.append(reader.read(array))
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _plain_columns(data: bytes, starts: Sequence[int], formats: Sequence[WireFormat]) -> Iterator[pa.Array]:
    columns = [list[Any]() for _ in formats]
    for start in starts:
        at = start + _HEAD_BYTES
        for column, one in zip(columns, formats, strict=True):
            (size,) = _WORD.unpack_from(data, at)
            at += _WORD.size
            if size < 0:
                column.append(None)
                continue
            column.append(data[at : at + size] if one.number is None else one.number.unpack_from(data, at)[0])
            at += size
    for column, one in zip(columns, formats, strict=True):
        yield pa.array(column, one.arrow)


class _Fields:
    """The fields of one column in all rows. Reading a column moves on to the next one."""

    def __init__(self, data: bytes, starts: "array[int]") -> None:
        self._data = pa.py_buffer(data)
        self._count = len(starts)
        self._at = kernels.add(_numbers(starts, _POSITION), pa.scalar(_HEAD_BYTES, _POSITION))
        is_usual = self._count <= len(_EVEN)
        self._even = _EVEN.slice(0, self._count) if is_usual else pa.array(range(0, 2 * self._count, 2), _POSITION)

    def strings(self, kind: pa.DataType) -> pa.Array:
        found = self._values(self._lengths(), kind)
        if kind == pa.string():
            found.validate(full=True)
        return found

    def numbers(self, kind: pa.DataType, size: int) -> pa.Array:
        found = self._gather(self._at, kernels.add(self._at, pa.scalar(_WORD.size + size, _POSITION)))
        raw = memoryview(found.buffers()[2])[: self._count * (_WORD.size + size)]
        if (values := _without_lengths(raw, size, self._count)) is not None:
            self._at = kernels.add(self._at, pa.scalar(_WORD.size + size, _POSITION))
            return _numbers(values, kind)
        lengths = self._lengths()
        filled = self._values(lengths, pa.binary()).fill_null(bytes(size))
        values = array(_CODES[size], memoryview(filled.buffers()[2])[: self._count * size].tobytes())
        if size > 1:
            values.byteswap()
        return _numbers(values, kind, valid=kernels.greater_equal(lengths, _NO_BYTES))

    def _lengths(self) -> pa.Array:
        words = self._gather(self._at, kernels.add(self._at, _WORD_BYTES))
        lengths = array("i", memoryview(words.buffers()[2])[: self._count * _WORD.size].tobytes())
        lengths.byteswap()
        return _numbers(lengths, _POSITION)

    def _values(self, lengths: pa.Array, kind: pa.DataType) -> pa.Array:
        begin, taken = kernels.add(self._at, _WORD_BYTES), self._even
        if kernels.min(lengths).as_py() < 0:
            taken = kernels.if_else(kernels.less(lengths, _NO_BYTES), pa.scalar(None, _POSITION), taken)
            lengths = kernels.max_element_wise(lengths, _NO_BYTES)
        self._at = kernels.add(begin, lengths)
        return self._gather(begin, self._at, kind, taken)

    def _gather(
        self, begin: pa.Array, end: pa.Array, kind: pa.DataType | None = None, taken: pa.Array | None = None
    ) -> pa.Array:
        """Copy the bytes from each `begin` to its `end`.

        All data is regarded as an array of strings, in which every second string is wanted, and the others lie between
        them.
        """
        bounds = bytearray(2 * _WORD.size * self._count)
        places = memoryview(bounds).cast("i")
        places[0::2] = memoryview(begin.buffers()[1])[: len(bounds) // 2].cast("i")
        places[1::2] = memoryview(end.buffers()[1])[: len(bounds) // 2].cast("i")
        buffers = [None, pa.py_buffer(bounds), self._data]
        everything = pa.Array.from_buffers(kind or pa.binary(), 2 * self._count - 1, buffers)
        return everything.take(self._even if taken is None else taken)


_CODES = {1: "b", 2: "h", 4: "i", 8: "q"}


def _without_lengths(raw: memoryview, size: int, count: int) -> "array[int] | None":
    """Return the values of fields that all have a length and a number of `size` bytes. None if one of them is NULL."""
    code = _CODES[min(size, _WORD.size)]
    parts = array(code, raw.tobytes())
    each, in_length = len(parts) // count, _WORD.size // parts.itemsize
    parts.byteswap()
    for place, expected in enumerate(array(code, _WORD.pack(size))):
        wanted = array(code, [expected])
        wanted.byteswap()
        if parts[place::each].tobytes() != wanted.tobytes() * count:
            return None
    if each == in_length + 1:
        return parts[in_length::each]
    values = array(code, bytes(size * count))
    values[0::2], values[1::2] = parts[in_length + 1 :: each], parts[in_length::each]
    return values


def _numbers(values: "array[Any]", kind: pa.DataType, *, valid: pa.Array | None = None) -> pa.Array:
    validity = None if valid is None else valid.buffers()[1]
    stored = pa.uint8() if kind == pa.bool_() else kind
    count = len(values) * values.itemsize // (stored.bit_width // 8)
    found = pa.Array.from_buffers(stored, count, [validity, pa.py_buffer(memoryview(values))])
    return found.cast(kind)
