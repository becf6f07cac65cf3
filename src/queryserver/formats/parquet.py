"""Parquet as JSON Lines, row group by row group.

Runs in the confined worker process: a file of some hundred bytes may unpack to gigabytes.
"""

import io
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from io import IOBase

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from queryserver.errors.files import DecompressionFailed, DecompressionLimit
from queryserver.formats.arrow import without_dictionaries
from queryserver.formats.columns import Column, ResultType
from queryserver.formats.download.texts import JsonLinesEncoder
from queryserver.formats.unpacking import OUTPUT_BYTES
from queryserver.formats.value_sizes import decoded_bytes, split_batch

_BATCH_BYTES = 1024 * 1024
_MAX_BATCH_ROWS = 1024
# A buffer for each column that is read.
_BUFFERS_BYTES = 32 * 1024 * 1024
_MIN_BUFFER_BYTES = 16 * 1024
_FEW_COLUMNS = 64
_MANY_COLUMNS = 500
"""The memory of files of fewer columns does not matter."""
_MOST_CELLS = 1024 * 1024
_OF_DICTIONARIES = frozenset({"PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE", "BIT_PACKED"})
_MAGIC, _TAIL = b"PAR1", bytes(4)
"""A file begins and ends with the mark; before that at the end stands the size of the metadata."""
_ARROW_TYPES = b"ARROW:schema"
_MAX_METADATA_ITEMS = 1_000_000
_MAX_METADATA_BYTES = 16 * 1024 * 1024


def parquet_lines(file: IOBase) -> Generator[bytes]:
    """The rows as JSON Lines in pieces of some 64 KiB, keys in column order, values in their raw forms.

    `file` is read at any place, as far as needed, and may raise anything of its own. Raises DecompressionFailed,
    DecompressionLimit.
    """
    try:
        metadata = _metadata(file)
        yield from _encoded(file, metadata)
    except pa.ArrowMemoryError:
        raise DecompressionLimit("The file needs more memory to be shown than there is.") from None
    except pa.ArrowException as error:
        first_line = str(error).partition("\n")[0][:200]
        raise DecompressionFailed(f"The parquet data cannot be read: {first_line}") from None
    except (OSError, OverflowError, ValueError):
        raise DecompressionFailed("The parquet data are broken.") from None


def open_parquet(file: IOBase) -> pq.ParquetFile:
    """The file with bounds on what its metadata and its reading may take. Raises ArrowException, OSError."""
    return _opened(file, _metadata(file))


def parquet_parts(parquet: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    """All rows in batches of some 1 MiB, texts as texts. Raises as `open_parquet`."""
    for number in range(parquet.metadata.num_row_groups):
        for batch in _batches(parquet, number):
            yield from map(without_dictionaries, split_batch(batch, 2 * _BATCH_BYTES, decoded_bytes))


def _metadata(file: IOBase) -> pq.FileMetaData:
    """The metadata; without the Arrow types that the writer noted where these ask for what Arrow cannot read."""
    parquet = _with_limits(file)
    metadata = parquet.metadata
    if not any(map(_has_dictionaries, parquet.schema_arrow.types)) or not _of_values(metadata):
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


def _of_values(metadata: pq.FileMetaData) -> set[int]:
    """Columns of texts and bytes of which a part is in an encoding that Arrow reads as values only."""
    numbers = [
        number for number in range(metadata.num_columns) if metadata.schema.column(number).physical_type == "BYTE_ARRAY"
    ]
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return {
        number
        for group in groups
        for number in numbers
        if not _OF_DICTIONARIES.issuperset(group.column(number).encodings)
    }


def _opened(file: IOBase, metadata: pq.FileMetaData) -> pq.ParquetFile:
    buffer_bytes = min(max(_BUFFERS_BYTES // max(metadata.num_columns, 1), _MIN_BUFFER_BYTES), _BATCH_BYTES)
    return pq.ParquetFile(
        _wide(file, metadata, buffer_bytes),
        metadata=metadata,
        # Values of dictionaries stay there: a text of 1 MiB in a million rows takes 1 MiB.
        read_dictionary=_plain_texts(metadata),
        buffer_size=buffer_bytes,
        pre_buffer=False,
        coerce_int96_timestamp_unit="us",
        thrift_container_size_limit=_MAX_METADATA_ITEMS,
        thrift_string_size_limit=_MAX_METADATA_BYTES,
    )


def _encoded(file: IOBase, metadata: pq.FileMetaData) -> Iterator[bytes]:
    parquet = _opened(file, metadata)
    encoder = JsonLinesEncoder(tuple(Column(name, ResultType.STRING, "") for name in parquet.schema_arrow.names))
    for part in parquet_parts(parquet):
        made = encoder.rows(part) if part.num_columns else b"{}\n" * part.num_rows
        for start in range(0, len(made), OUTPUT_BYTES):
            yield made[start : start + OUTPUT_BYTES]


def _batches(parquet: pq.ParquetFile, number: int) -> Iterator[pa.RecordBatch]:
    """The rows of one row group. Few rows of many columns are read some columns at a time.

    Arrow keeps a reader of some 6 KiB, and a buffer, for each column that it reads at once.
    """
    metadata, names = parquet.metadata, parquet.schema_arrow.names
    group = metadata.row_group(number)
    columns = metadata.num_columns
    is_small = group.num_rows * columns <= _MOST_CELLS and group.total_byte_size <= _BUFFERS_BYTES // 2
    # Whether each column can be named by itself: none is nested, and no two have one name.
    is_flat = len(set(names)) == columns and not any("." in name for name in names)
    if columns <= _MANY_COLUMNS or not is_small or not is_flat:
        yield from parquet.iter_batches(_rows(group), [number], use_threads=False)
        return
    arrays: list[pa.ChunkedArray] = []
    for start in range(0, columns, _MANY_COLUMNS):
        chosen = names[start : start + _MANY_COLUMNS]
        arrays += parquet.read_row_group(number, columns=chosen, use_threads=False).columns
    yield from pa.Table.from_arrays(arrays, names=names).to_batches(_rows(group))


def _wide(file: IOBase, metadata: pq.FileMetaData, buffer_bytes: int) -> IOBase:
    """The file, read in larger pieces where its columns are short. Raises DecompressionLimit.

    A column that is longer than its buffer is read a buffer at a time: then larger pieces would be read repeatedly.
    """
    columns = metadata.num_columns
    if columns <= _FEW_COLUMNS or not metadata.num_row_groups:
        return file
    longest = max(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    if longest // columns <= buffer_bytes:
        return _NearReads(file, _BATCH_BYTES)
    if columns * buffer_bytes > 2 * _BUFFERS_BYTES:
        raise DecompressionLimit(
            f"The parquet file has {columns} columns; of files with as many values at most"
            f" {2 * _BUFFERS_BYTES // buffer_bytes} columns can be shown."
        )
    return file


class SeekableFile(io.RawIOBase, ABC):
    """A file that is read from `_place` on."""

    def __init__(self) -> None:
        super().__init__()
        self._place = 0

    @abstractmethod
    def _end(self, offset: int) -> int:
        """A place relative to the end of the file."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        at_end = whence == io.SEEK_END
        self._place = max(self._end(offset) if at_end else offset + (self._place if whence == io.SEEK_CUR else 0), 0)
        return self._place


class _NearReads(SeekableFile):
    """A file that is read `window_bytes` at a time: 20,000 columns of a few bytes are 20,000 reads of a store else.

    The file below is closed by its owner.
    """

    def __init__(self, file: io.IOBase, window_bytes: int) -> None:
        super().__init__()
        self._file: io.RawIOBase = file  # type: ignore[assignment]
        self._window_bytes = window_bytes
        self._window = b""
        self._window_start = 0
        self._place = file.tell()

    def _end(self, offset: int) -> int:
        return self._file.seek(offset, io.SEEK_END)

    def read(self, size: int = -1, /) -> bytes:
        begin = self._place - self._window_start
        if size < 0 or not 0 <= begin <= len(self._window) - size:
            self._file.seek(self._place)
            self._window = self._file.read(size if size < 0 else max(size, self._window_bytes)) or b""
            self._window_start, begin = self._place, 0
        piece = self._window[begin:] if size < 0 else self._window[begin : begin + size]
        self._place += len(piece)
        return piece


def _plain_texts(metadata: pq.FileMetaData) -> list[str]:
    """Columns that can be read as dictionaries: texts and bytes that are not part of something else."""
    schema, of_values = metadata.schema, _of_values(metadata)
    return [
        column.path
        for number, column in enumerate(map(schema.column, range(len(schema))))
        if column.physical_type == "BYTE_ARRAY"
        and column.converted_type in {"UTF8", "NONE"}
        and "." not in column.path
        and column.max_repetition_level == 0
        and number not in of_values
    ]


def _rows(group: pq.RowGroupMetaData) -> int:
    """Rows of a batch of some 1 MiB. What repeats takes hardly any bytes in the file, but a place for each value."""
    by_size = _BATCH_BYTES * group.num_rows // max(group.total_byte_size, 1)
    by_places = _BATCH_BYTES // max(group.num_columns, 1)
    return max(min(by_size, by_places, _MAX_BATCH_ROWS), 1)
