"""Converts Parquet files to JSON Lines, one row group at a time.

Runs in the confined worker process, because a file of a few hundred bytes can decompress to gigabytes.
"""

import io
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from io import IOBase

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from queryserver.errors.files import DecompressionFailed, DecompressionLimit
from queryserver.formats.arrow import Column, ResultType, decoded_bytes, split_batch, without_dictionaries
from queryserver.formats.download.encoder import JsonLinesEncoder
from queryserver.formats.unpacking import OUTPUT_BYTES

_BATCH_BYTES = 1024 * 1024
_MAX_BATCH_ROWS = 1024
# Total size of the read buffers, of which each column has one.
_BUFFERS_BYTES = 32 * 1024 * 1024
_MIN_BUFFER_BYTES = 16 * 1024
_FEW_COLUMNS = 64
_MANY_COLUMNS = 500
"""With up to this many columns, a row group needs little memory."""
_MAX_SMALL_GROUP_CELLS = 1024 * 1024
_DICTIONARY_ENCODINGS = frozenset({"PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE", "BIT_PACKED"})
_MAGIC, _TAIL = b"PAR1", bytes(4)
"""A file begins and ends with the magic bytes. The metadata size is stored just before the final magic bytes."""
_ARROW_TYPES = b"ARROW:schema"
_MAX_METADATA_ITEMS = 1_000_000
_MAX_METADATA_BYTES = 16 * 1024 * 1024


def parquet_lines(file: IOBase) -> Generator[bytes]:
    """Yield the rows as JSON Lines, in pieces of about 64 KiB. Keys are in column order, and values in raw form.

    Reads `file` at arbitrary offsets. Errors of `file` are not translated. Raises DecompressionFailed,
    DecompressionLimit.
    """
    try:
        metadata = _metadata(file)
        yield from _encode(file, metadata)
    except pa.ArrowMemoryError:
        raise DecompressionLimit("Displaying the file exceeds the memory limit.") from None
    except pa.ArrowException as error:
        first_line = str(error).partition("\n")[0][:200]
        raise DecompressionFailed(f"The Parquet data cannot be read: {first_line}") from None
    except (OSError, OverflowError, ValueError):
        raise DecompressionFailed("The Parquet data is corrupt.") from None


def open_parquet(file: IOBase) -> pq.ParquetFile:
    """Open a file with limits on the memory for metadata and read buffers. Raises ArrowException, OSError."""
    return _open(file, _metadata(file))


def parquet_batches(parquet: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    """Yield all rows in batches of about 1 MiB, without dictionary arrays. Raises the errors of `open_parquet`."""
    for number in range(parquet.metadata.num_row_groups):
        for batch in _batches(parquet, number):
            yield from map(without_dictionaries, split_batch(batch, 2 * _BATCH_BYTES, decoded_bytes))


def _metadata(file: IOBase) -> pq.FileMetaData:
    """Read the metadata. The stored Arrow schema is ignored if it requires dictionaries that Arrow cannot read."""
    parquet = _with_limits(file)
    metadata = parquet.metadata
    if not any(map(_has_dictionaries, parquet.schema_arrow.types)) or not _columns_without_dictionary(metadata):
        return metadata
    file.seek(-metadata.serialized_size - len(_TAIL) - len(_MAGIC), io.SEEK_END)
    footer = file.read().replace(_ARROW_TYPES, _ARROW_TYPES.lower())
    return _with_limits(io.BytesIO(_MAGIC + footer)).metadata


def _with_limits(file: IOBase) -> pq.ParquetFile:
    return pq.ParquetFile(
        file, thrift_container_size_limit=_MAX_METADATA_ITEMS, thrift_string_size_limit=_MAX_METADATA_BYTES
    )


def _has_dictionaries(kind: pa.DataType) -> bool:
    return types.is_dictionary(kind) or any(_has_dictionaries(kind.field(at).type) for at in range(kind.num_fields))


def _columns_without_dictionary(metadata: pq.FileMetaData) -> set[int]:
    """Return the string and binary columns with an encoding that Arrow cannot read into dictionaries."""
    numbers = [
        number for number in range(metadata.num_columns) if metadata.schema.column(number).physical_type == "BYTE_ARRAY"
    ]
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return {
        number
        for group in groups
        for number in numbers
        if not _DICTIONARY_ENCODINGS.issuperset(group.column(number).encodings)
    }


def _open(file: IOBase, metadata: pq.FileMetaData) -> pq.ParquetFile:
    buffer_bytes = min(max(_BUFFERS_BYTES // max(metadata.num_columns, 1), _MIN_BUFFER_BYTES), _BATCH_BYTES)
    return pq.ParquetFile(
        _with_wide_reads(file, metadata, buffer_bytes),
        metadata=metadata,
        # Keeps dictionary-encoded values compact: a string of 1 MiB that is repeated in a million rows takes 1 MiB.
        read_dictionary=_dictionary_columns(metadata),
        buffer_size=buffer_bytes,
        pre_buffer=False,
        coerce_int96_timestamp_unit="us",
        thrift_container_size_limit=_MAX_METADATA_ITEMS,
        thrift_string_size_limit=_MAX_METADATA_BYTES,
    )


def _encode(file: IOBase, metadata: pq.FileMetaData) -> Iterator[bytes]:
    parquet = _open(file, metadata)
    encoder = JsonLinesEncoder(tuple(Column(name, ResultType.STRING, "") for name in parquet.schema_arrow.names))
    for part in parquet_batches(parquet):
        made = encoder.rows(part) if part.num_columns else b"{}\n" * part.num_rows
        for start in range(0, len(made), OUTPUT_BYTES):
            yield made[start : start + OUTPUT_BYTES]


def _batches(parquet: pq.ParquetFile, number: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one row group. Small row groups with many columns are read a few hundred columns at a time.

    For each column that is read at the same time, Arrow needs a reader of about 6 KiB and a buffer.
    """
    metadata, names = parquet.metadata, parquet.schema_arrow.names
    group = metadata.row_group(number)
    columns = metadata.num_columns
    is_small = group.num_rows * columns <= _MAX_SMALL_GROUP_CELLS and group.total_byte_size <= _BUFFERS_BYTES // 2
    # Columns can be selected by name only if none is nested and all names are distinct.
    is_flat = len(set(names)) == columns and not any("." in name for name in names)
    if columns <= _MANY_COLUMNS or not is_small or not is_flat:
        yield from parquet.iter_batches(_batch_rows(group), [number], use_threads=False)
        return
    arrays: list[pa.ChunkedArray] = []
    for start in range(0, columns, _MANY_COLUMNS):
        chosen = names[start : start + _MANY_COLUMNS]
        arrays += parquet.read_row_group(number, columns=chosen, use_threads=False).columns
    yield from pa.Table.from_arrays(arrays, names=names).to_batches(_batch_rows(group))


def _with_wide_reads(file: IOBase, metadata: pq.FileMetaData, buffer_bytes: int) -> IOBase:
    """Wrap a file that has many short columns, so that it is read in larger pieces. Raises DecompressionLimit.

    Columns that are longer than their buffers are read one buffer at a time; larger pieces would be read repeatedly.
    """
    columns = metadata.num_columns
    if columns <= _FEW_COLUMNS or not metadata.num_row_groups:
        return file
    longest = max(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    if longest // columns <= buffer_bytes:
        return _WindowedFile(file, _BATCH_BYTES)
    if columns * buffer_bytes > 2 * _BUFFERS_BYTES:
        raise DecompressionLimit(
            f"The Parquet file has {columns} columns; with columns of this size, at most"
            f" {2 * _BUFFERS_BYTES // buffer_bytes} columns can be displayed."
        )
    return file


class SeekableFile(io.RawIOBase, ABC):
    """Base class for files with a read position."""

    def __init__(self) -> None:
        super().__init__()
        self._position = 0

    @abstractmethod
    def _end(self, offset: int) -> int:
        """Return the position that is `offset` bytes (usually negative) from the end of the file."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        at_end = whence == io.SEEK_END
        self._position = max(
            self._end(offset) if at_end else offset + (self._position if whence == io.SEEK_CUR else 0), 0
        )
        return self._position


class _WindowedFile(SeekableFile):
    """Reads a file at least `window_bytes` at a time: 20,000 columns of a few bytes would need 20,000 store reads.

    Does not close the underlying file.
    """

    def __init__(self, file: io.IOBase, window_bytes: int) -> None:
        super().__init__()
        self._file: io.RawIOBase = file  # type: ignore[assignment]
        self._window_bytes = window_bytes
        self._window = b""
        self._window_start = 0
        self._position = file.tell()

    def _end(self, offset: int) -> int:
        return self._file.seek(offset, io.SEEK_END)

    def read(self, size: int = -1, /) -> bytes:
        begin = self._position - self._window_start
        if size < 0 or not 0 <= begin <= len(self._window) - size:
            self._file.seek(self._position)
            self._window = self._file.read(size if size < 0 else max(size, self._window_bytes)) or b""
            self._window_start, begin = self._position, 0
        piece = self._window[begin:] if size < 0 else self._window[begin : begin + size]
        self._position += len(piece)
        return piece


def _dictionary_columns(metadata: pq.FileMetaData) -> list[str]:
    """Return the columns that can be read as dictionaries: strings and binary values at the top level."""
    schema, without_dictionary = metadata.schema, _columns_without_dictionary(metadata)
    return [
        column.path
        for number, column in enumerate(map(schema.column, range(len(schema))))
        if column.physical_type == "BYTE_ARRAY"
        and column.converted_type in {"UTF8", "NONE"}
        and "." not in column.path
        and column.max_repetition_level == 0
        and number not in without_dictionary
    ]


def _batch_rows(group: pq.RowGroupMetaData) -> int:
    """Return the number of rows in a batch of about 1 MiB, at most 1024.

    The number of columns also limits it, because repeated values take few bytes in the file but memory in each row.
    """
    by_size = _BATCH_BYTES * group.num_rows // max(group.total_byte_size, 1)
    by_places = _BATCH_BYTES // max(group.num_columns, 1)
    return max(min(by_size, by_places, _MAX_BATCH_ROWS), 1)
