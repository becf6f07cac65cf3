"""Converts rows from the server's messages to Arrow columns, without a Python object for each value (ADR 82).

A row is a DataRow message: a kind, a length and the number of fields, then each field's length (-1 for NULL) and bytes.
A column is converted at once: the positions of its fields in all rows are an Arrow array, and the bytes at these
positions are copied together by Arrow's `take`. The rows have less than 2 GiB: a few MiB and one more row. The machine
must be little-endian, like those for which pyarrow has wheels.
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

UTF_8 = "utf-8"
_POSITION = pa.int64()
_WORD = struct.Struct("!i")
_WORD_BYTES = pa.scalar(_WORD.size, _POSITION)
_NO_BYTES = pa.scalar(0, _POSITION)
_HEAD_BYTES = pa.scalar(7, _POSITION)
_UPPER_HALF = pa.scalar(2**32, _POSITION)
_CODES = {1: "b", 2: "h", 4: "i", 8: "q"}
"""The codes of `array` for numbers of so many bytes."""
_MAX_PLAIN_ROWS = 100
"""Up to this number of rows, a loop over the fields takes less time than the calls of Arrow."""
_MAX_BYTES = 2**31 - 1
_EVEN = pa.array(range(0, 20_000, 2), pa.int32())
"""The even numbers for the largest usual chunk of rows. Making them takes as long as converting five columns."""


class WireRows:
    """The bytes of complete rows, as received."""

    def __init__(self) -> None:
        self.pieces = list[bytes]()
        self.starts = array("q")
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


def wire_columns(rows: WireRows, formats: Sequence[WireFormat], *, encoding: str = UTF_8) -> Iterator[pa.Array]:
    """Yield the columns in order. `encoding` is the codec of strings.

    Raises pa.ArrowInvalid if a string is not valid UTF-8, StatementRejected if a row lacks described fields.
    """
    data = b"".join(rows.pieces)
    if encoding != UTF_8:
        as_bytes = [_BYTES if one is _STRING else one for one in formats]
        for column, one in zip(wire_columns(rows, as_bytes), formats, strict=True):
            yield _decoded(column, encoding) if one is _STRING else column
        return
    if len(rows) <= _MAX_PLAIN_ROWS:
        yield from _plain_columns(data, rows.starts, formats)
        return
    fields = _Fields(data, rows.starts)
    for one in formats:
        yield fields.strings(one.arrow) if one.number is None else fields.numbers(one.arrow, one.number.size)


def wire_batch(
    rows: WireRows,
    names: Sequence[str],
    formats: Sequence[WireFormat],
    readers: Sequence[ColumnReader],
    *,
    encoding: str = UTF_8,
) -> pa.RecordBatch:
    """Convert rows to an Arrow batch. Raises StatementRejected for a value that its column cannot represent."""
    arrays, values = list[pa.Array](), wire_columns(rows, formats, encoding=encoding)
    for name, reader in zip(names, readers, strict=True):
        try:
            array = next(values)
        except pa.ArrowInvalid as error:
            refusal = f'column "{name}" contains text that is not valid {encoding.upper()}: convert the column to bytea'
            raise StatementRejected(refusal) from error
        arrays.append(reader.read(array))
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _decoded(values: pa.Array, encoding: str) -> pa.Array:
    try:
        return pa.array([None if one is None else one.decode(encoding) for one in values.to_pylist()], pa.string())
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(str(error)) from error


def _row_ends(data: bytes, starts: "array[int]") -> "array[int]":
    return starts[1:] + array("q", [len(data)]) if starts else starts


def _malformed_row() -> StatementRejected:
    return StatementRejected("PostgreSQL sent a row that does not have the described fields.")


def _plain_columns(data: bytes, starts: "array[int]", formats: Sequence[WireFormat]) -> Iterator[pa.Array]:
    columns = [list[Any]() for _ in formats]
    for start, end in zip(starts, _row_ends(data, starts), strict=True):
        at = start + _HEAD_BYTES.as_py()
        for column, one in zip(columns, formats, strict=True):
            size = _WORD.unpack_from(data, at)[0] if at + _WORD.size <= end else end
            at += _WORD.size
            if at + size > end or (one.number is not None and size not in (one.number.size, -1)):
                raise _malformed_row()
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
        if len(data) > _MAX_BYTES:
            raise _malformed_row()
        self._data = pa.py_buffer(data)
        self._count = count = len(starts)
        self._at = kernels.add(_numbers(starts, _POSITION), _HEAD_BYTES)
        self._ends = _numbers(_row_ends(data, starts), _POSITION)
        self._even = _EVEN.slice(0, count) if count <= len(_EVEN) else pa.array(range(0, 2 * count, 2), pa.int32())

    def strings(self, kind: pa.DataType) -> pa.Array:
        found = self._take_values(self._lengths(self._take_lengths()), kind)
        if kind == pa.string():
            found.validate(full=True)
        return found

    def numbers(self, kind: pa.DataType, size: int) -> pa.Array:
        words, valid = self._take_lengths(), None
        if words == _WORD.pack(size) * self._count:
            begin = self._at
            self._at = kernels.add(begin, pa.scalar(size, _POSITION))
            found = self._gather(begin, self._at, pa.binary())
        else:
            lengths = self._lengths(words)
            valid = kernels.greater_equal(lengths, _NO_BYTES)
            if set(kernels.unique(lengths).to_pylist()) - {-1, size}:
                raise _malformed_row()
            found = self._take_values(lengths, pa.binary()).fill_null(bytes(size))
        values = array(_CODES[size], _bytes_of(found, self._count * size))
        values.byteswap()
        return _numbers(values, kind, valid=valid)

    def _take_lengths(self) -> bytes:
        """Return the bytes of all lengths, and move on to the values."""
        begin = self._at
        self._at = kernels.add(begin, _WORD_BYTES)
        return _bytes_of(self._gather(begin, self._at, pa.binary()), self._count * _WORD.size)

    def _lengths(self, words: bytes) -> pa.Array:
        lengths = array("i", words)
        lengths.byteswap()
        return _numbers(lengths, pa.int32()).cast(_POSITION)

    def _take_values(self, lengths: pa.Array, kind: pa.DataType) -> pa.Array:
        """Return values of any lengths, and move on to the next column."""
        begin, taken = self._at, self._even
        if kernels.min(lengths).as_py() < 0:
            taken = kernels.if_else(kernels.less(lengths, _NO_BYTES), pa.scalar(None, taken.type), taken)
            lengths = kernels.max_element_wise(lengths, _NO_BYTES)
        self._at = kernels.add(begin, lengths)
        return self._gather(begin, self._at, kind, taken)

    def _gather(self, begin: pa.Array, end: pa.Array, kind: pa.DataType, taken: pa.Array | None = None) -> pa.Array:
        """Copy the bytes from each `begin` to its `end`.

        All data is regarded as an array of strings, in which every second string is wanted, and the others lie between
        them. Its bounds are pairs of 32-bit numbers, made as one 64-bit number each. Arrow does not check them.
        """
        if not kernels.all(kernels.less_equal(end, self._ends)).as_py():
            raise _malformed_row()
        bounds = kernels.add(kernels.multiply(end, _UPPER_HALF), begin).buffers()[1]
        everything = pa.Array.from_buffers(kind, 2 * self._count - 1, [None, bounds, self._data])
        return everything.take(self._even if taken is None else taken)


def _bytes_of(values: pa.Array, size: int) -> bytes:
    return memoryview(values.buffers()[2])[:size].tobytes()


def _numbers(values: "array[Any]", kind: pa.DataType, *, valid: pa.Array | None = None) -> pa.Array:
    validity = None if valid is None else valid.buffers()[1]
    stored = pa.uint8() if kind == pa.bool_() else kind
    found = pa.Array.from_buffers(stored, len(values), [validity, pa.py_buffer(memoryview(values))])
    return found if stored == kind else found.cast(kind)
