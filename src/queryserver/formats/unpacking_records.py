"""Parquet as JSON Lines, row group by row group. Work for a thread that may wait for the file."""

import bz2
import io
import lzma
import math
import struct
import zlib
from base64 import b64encode
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial
from io import IOBase
from types import MappingProxyType
from typing import Any, BinaryIO, cast

import cramjam
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from fastavro import parse_schema, schemaless_reader
from fastavro.read import LOGICAL_READERS
from fastavro.schema import SchemaParseException

from queryserver.errors.base import InvalidJson
from queryserver.errors.files import CodecNotAvailable, DecompressionFailed, DecompressionLimit
from queryserver.formats import columns as wide_work
from queryserver.formats.columns import MANY_COLUMNS, Column, ResultType
from queryserver.formats.download import texts as kernels
from queryserver.formats.download.delimited import JsonLinesEncoder
from queryserver.formats.unpacking import OUTPUT_BYTES
from queryserver.platform.text import parse_json

_BATCH_BYTES = 1024 * 1024
_MAX_BATCH_ROWS = 1024
# A buffer for each column that is read.
_BUFFERS_BYTES = 32 * 1024 * 1024
_MIN_BUFFER_BYTES = 16 * 1024
_FEW_COLUMNS = 64
_MOST_CELLS = 1024 * 1024
_MAX_METADATA_ITEMS = 1_000_000
_MAX_METADATA_BYTES = 16 * 1024 * 1024


def parquet_lines(file: IOBase) -> Generator[bytes]:
    """The rows as JSON Lines in pieces of some 64 KiB, keys in column order, values in their raw forms.

    `file` is read at any place, as far as needed, and may raise anything of its own. Raises DecompressionFailed.
    """
    try:
        yield from _lines(file)
    except pa.ArrowException as error:
        raise DecompressionFailed(f"The parquet data cannot be read: {_first_line(error)}") from None
    except (OSError, OverflowError, ValueError):
        raise DecompressionFailed("The parquet data are broken.") from None


def _lines(file: IOBase) -> Iterator[bytes]:
    metadata = _metadata(file)
    if metadata.num_columns <= MANY_COLUMNS:
        yield from _encoded(file, metadata)
        return
    end = wide_work.begin()
    try:
        yield from _encoded(file, metadata)
    finally:
        end()


def open_parquet(file: IOBase) -> pq.ParquetFile:
    """The file with bounds on what its metadata and its reading may take. Raises ArrowException, OSError."""
    return _opened(file, _metadata(file))


def parquet_parts(parquet: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    """All rows in batches of some 1 MiB, texts as texts. Raises as `open_parquet`."""
    for number in range(parquet.metadata.num_row_groups):
        for batch in _batches(parquet, number):
            yield from _small(batch)


def _metadata(file: IOBase) -> pq.FileMetaData:
    return pq.ParquetFile(
        file, thrift_container_size_limit=_MAX_METADATA_ITEMS, thrift_string_size_limit=_MAX_METADATA_BYTES
    ).metadata


def _opened(file: IOBase, metadata: pq.FileMetaData) -> pq.ParquetFile:
    buffer_bytes = min(max(_BUFFERS_BYTES // max(metadata.num_columns, 1), _MIN_BUFFER_BYTES), _BATCH_BYTES)
    return pq.ParquetFile(
        _wide(file, metadata, buffer_bytes),
        metadata=metadata,
        # Values of dictionaries stay there: a text of 1 MiB in a million rows takes 1 MiB.
        read_dictionary=_plain_texts(metadata.schema),
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
    if columns <= MANY_COLUMNS or not is_small or not _is_flat(names, columns):
        yield from parquet.iter_batches(_rows(group), [number], use_threads=False)
        return
    arrays: list[pa.ChunkedArray] = []
    for start in range(0, columns, MANY_COLUMNS):
        chosen = names[start : start + MANY_COLUMNS]
        arrays += parquet.read_row_group(number, columns=chosen, use_threads=False).columns
    yield from pa.Table.from_arrays(arrays, names=names).to_batches(_rows(group))


def _is_flat(names: list[str], columns: int) -> bool:
    """Whether each column can be named by itself: none is nested, and no two have one name."""
    return len(set(names)) == columns and not any("." in name for name in names)


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


class _NearReads(io.RawIOBase):
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

    def readable(self) -> bool:
        """True: this is all it can do."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move; nothing is read."""
        if whence == io.SEEK_END:
            self._place = self._file.seek(offset, io.SEEK_END)
        else:
            self._place = max(offset + (self._place if whence == io.SEEK_CUR else 0), 0)
        return self._place

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes. Raises what the file raises."""
        begin = self._place - self._window_start
        if size < 0 or not 0 <= begin <= len(self._window) - size:
            self._file.seek(self._place)
            self._window = self._file.read(size if size < 0 else max(size, self._window_bytes)) or b""
            self._window_start, begin = self._place, 0
        piece = self._window[begin:] if size < 0 else self._window[begin : begin + size]
        self._place += len(piece)
        return piece


def _plain_texts(schema: pq.ParquetSchema) -> list[str]:
    """Columns of texts and bytes that are not part of something else: others cannot be read as dictionaries."""
    columns = [schema.column(number) for number in range(len(schema))]
    return [
        column.path
        for column in columns
        if column.physical_type == "BYTE_ARRAY" and column.converted_type in {"UTF8", "NONE"} and not _is_part(column)
    ]


def _is_part(column: pq.ColumnSchema) -> bool:
    return "." in column.path or column.max_repetition_level > 0


def _rows(group: pq.RowGroupMetaData) -> int:
    """Rows of a batch of some 1 MiB. What repeats takes hardly any bytes in the file, but a place for each value."""
    by_size = _BATCH_BYTES * group.num_rows // max(group.total_byte_size, 1)
    by_places = _BATCH_BYTES // max(group.num_columns, 1)
    return max(min(by_size, by_places, _MAX_BATCH_ROWS), 1)


def _small(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in parts that take some 1 MiB without dictionaries."""
    if batch.num_rows > 1 and _whole_bytes(batch) > 2 * _BATCH_BYTES:
        half = batch.num_rows // 2
        yield from _small(batch.slice(0, half))
        yield from _small(batch.slice(half))
        return
    arrays = [array.dictionary_decode() if pa.types.is_dictionary(array.type) else array for array in batch.columns]
    yield pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _whole_bytes(batch: pa.RecordBatch) -> int:
    """What the rows take when each value of a dictionary stands where it is used."""
    return sum(
        kernels.total(kernels.byte_lengths(array.dictionary).take(array.indices)) or 0
        if pa.types.is_dictionary(array.type)
        else array.nbytes
        for array in batch.columns
    )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_MAX_VARINT_BYTES = 10
_RAW_DEFLATE = -15
_METADATA = parse_schema({"type": "map", "values": "bytes"})

_FLOAT = struct.Struct("<f")
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 timestamps of imports have no zone
_DIGITS_OF_A_FLOAT = range(6, 10)
_MAX_DECIMAL_BYTES = 1024
_MAX_SCALE = 1000


class AvroFile:
    """A file that is open at its beginning. It needs `read` alone."""

    def __init__(self, file: BinaryIO) -> None:
        """Raises DecompressionFailed, CodecNotAvailable."""
        self._file = file
        if file.read(len(_MAGIC)) != _MAGIC:
            raise DecompressionFailed("The file holds no avro data.")
        with _broken_data():
            metadata = cast("Mapping[str, bytes]", schemaless_reader(file, _METADATA, None))
        self._sync = file.read(_SYNC_BYTES)
        if len(self._sync) < _SYNC_BYTES:
            raise DecompressionFailed("The avro header breaks off.")
        codec = metadata.get("avro.codec", b"null").decode(errors="replace")
        if codec not in _CODECS:
            raise CodecNotAvailable(f"This server cannot read avro files that are packed with {codec[:20]}.")
        self._unpack = _CODECS[codec]
        try:
            self.schema: Any = parse_json(metadata.get("avro.schema", b"").decode(errors="replace"))
            self._shown = parse_schema(_shown_schema(self.schema))
        except (SchemaParseException, InvalidJson, LookupError, TypeError, ValueError, AttributeError):
            raise DecompressionFailed("The avro schema is broken.") from None
        except RecursionError:
            raise DecompressionFailed("The avro schema is nested too deeply.") from None

    def lines(self) -> Iterator[bytes]:
        """The values, a line each, with its end. Raises DecompressionFailed."""
        while (count := self._next_count()) is not None:
            with _broken_data():
                packed = cast("bytes", schemaless_reader(self._file, "bytes", None))
            block = io.BytesIO(self._unpacked(packed))
            for _ in range(count):
                with _broken_data():
                    value = schemaless_reader(block, self._shown, None, handle_unicode_errors="replace")
                    line = orjson.dumps(value, default=_base64, option=orjson.OPT_APPEND_NEWLINE)
                yield line
            if block.read(1):
                raise DecompressionFailed("The avro data are broken: a block is longer than its records.")
            if self._file.read(_SYNC_BYTES) != self._sync:
                raise DecompressionFailed("The avro data are broken: a block lacks its mark.")

    def _next_count(self) -> int | None:
        """How many values the next block has; None behind the last block."""
        head = self._file.read(1)
        while head and head[-1] & 0x80 and len(head) < _MAX_VARINT_BYTES:
            byte = self._file.read(1)
            if not byte:
                break
            head += byte
        if not head:
            return None
        with _broken_data():
            count = cast("int", schemaless_reader(io.BytesIO(head), "long", None))
        if count < 0:
            raise DecompressionFailed("The avro data hold a negative length.")
        return count

    def _unpacked(self, packed: bytes) -> bytes:
        try:
            return self._unpack(packed)
        except (zlib.error, OSError, EOFError, ValueError, lzma.LZMAError, cramjam.DecompressionError):
            raise DecompressionFailed("The avro data are broken: a block cannot be unpacked.") from None


@contextmanager
def _broken_data() -> Generator[None]:
    """What fastavro and orjson raise for values that cannot be."""
    try:
        yield
    except (EOFError, LookupError, OverflowError, TypeError, ValueError, struct.error):
        raise DecompressionFailed("The avro data are broken, or end too early.") from None
    except RecursionError:
        raise DecompressionFailed("A record of the file is nested too deeply.") from None


def _snappy(block: bytes) -> bytes:
    """Behind the data of the block stands the CRC-32 of what they unpack to."""
    unpacked = bytes(cramjam.snappy.decompress_raw(block[:-4]))
    if zlib.crc32(unpacked) != int.from_bytes(block[-4:]):
        raise ValueError(block[-4:])
    return unpacked


_CODECS: Mapping[str, Callable[[bytes], bytes]] = MappingProxyType(
    {
        "null": bytes,
        "deflate": lambda block: zlib.decompress(block, _RAW_DEFLATE),
        "snappy": _snappy,
        "bzip2": bz2.decompress,
        "xz": lzma.decompress,
        "zstandard": lambda block: bytes(cramjam.zstd.decompress(block)),
    }
)


def _shown_schema(schema: Any) -> Any:
    """The schema with the logical types of `_FORMS` and without any other, without defaults, aliases and texts."""
    if isinstance(schema, str):
        return {"type": schema, "logicalType": _form(schema, "")} if schema in {"float", "double"} else schema
    if isinstance(schema, list):
        return [_shown_schema(branch) for branch in cast("list[Any]", schema)]
    declared = cast("Mapping[str, Any]", schema)
    kind = declared["type"]
    if not isinstance(kind, str):
        return _shown_schema(kind)
    named = {key: declared[key] for key in ("name", "namespace") if key in declared}
    match kind:
        case "record" | "error":
            fields = [{"name": field["name"], "type": _shown_schema(field["type"])} for field in declared["fields"]]
            return {"type": "record", **named, "fields": fields}
        case "enum":
            return {"type": kind, **named, "symbols": declared["symbols"]}
        case "array":
            return {"type": kind, "items": _shown_schema(declared["items"])}
        case "map":
            return {"type": kind, "values": _shown_schema(declared["values"])}
        case _:
            return _shown_plain(kind, declared, named)


def _shown_plain(kind: str, declared: Mapping[str, Any], named: Mapping[str, Any]) -> Any:
    """Of primitive types, of fixed ones and of names of others."""
    size = {"size": declared["size"]} if kind == "fixed" else {}
    form = _form(kind, str(declared.get("logicalType", "")))
    scale = declared.get("scale", 0)
    is_form = f"{kind}-{form}" in _FORMS
    if kind in {"bytes", "fixed"} and is_form and type(scale) is int and 0 <= scale <= _MAX_SCALE:
        return {"type": kind, **named, **size, "logicalType": form, "scale": scale}
    if kind == "fixed":
        return {"type": kind, **named, **size}
    return {"type": kind, "logicalType": form} if is_form and kind != "bytes" else _shown_schema(kind)


def _form(kind: str, logical: str) -> str:
    """The name of our own for a logical type: fastavro's readers of the others do not come into play."""
    return f"shown-{kind if kind in {'float', 'double'} else logical}"


def _base64(content: Any) -> str:
    return b64encode(cast("bytes", content)).decode()


def _float(value: float, *_schemas: object) -> object:
    if math.isfinite(value):
        for digits in _DIGITS_OF_A_FLOAT:
            shorter = float(f"{value:.{digits}g}")
            if _reads_back(shorter, value):
                return _double(shorter)
    return _double(value)


def _reads_back(shorter: float, value: float) -> bool:
    try:
        return _FLOAT.unpack(_FLOAT.pack(shorter))[0] == value
    except OverflowError:
        return False


def _double(value: float, *_schemas: object) -> object:
    if math.isfinite(value):
        return orjson.Fragment(repr(value))
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _decimal(content: bytes, schema: Mapping[str, Any], _reader_schema: object) -> str | bytes:
    """A decimal in big-endian two's complement."""
    if len(content) > _MAX_DECIMAL_BYTES:
        return content
    number = Decimal(int.from_bytes(content, "big", signed=True)).as_tuple()
    return f"{Decimal((number.sign, number.digits, -schema['scale'])):f}"


def _date(days: int, *_schemas: object) -> str | int:
    try:
        return str(date(1970, 1, 1) + timedelta(days=days))
    except OverflowError:
        return days


def _clock(value: int, *_schemas: object, per_second: int) -> str | int:
    try:
        moment = _EPOCH + timedelta(microseconds=value * (1_000_000 // per_second))
    except OverflowError:
        return value
    return str(moment.time()) if moment.date() == _EPOCH.date() else value


def _timestamp(value: int, *_schemas: object, per_second: int, zone: str) -> str | int:
    seconds, fraction = divmod(value, per_second)
    try:
        moment = _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        return value
    digits = 9 if per_second > 1_000_000 else 6
    shown = f".{fraction * 10**digits // per_second:0{digits}}" if fraction else ""
    return f"{moment}{shown}{zone}"


_UNITS = {"millis": 1000, "micros": 1_000_000, "nanos": 1_000_000_000}
_FORMS: dict[str, Callable[..., Any]] = {
    "float-shown-float": _float,
    "double-shown-double": _double,
    "bytes-shown-decimal": _decimal,
    "fixed-shown-decimal": _decimal,
    "int-shown-date": _date,
    "int-shown-time-millis": partial(_clock, per_second=1000),
    "long-shown-time-micros": partial(_clock, per_second=1_000_000),
    **{
        f"long-shown-{local}timestamp-{unit}": partial(_timestamp, per_second=per_second, zone=zone)
        for local, zone in (("", "+00:00"), ("local-", ""))
        for unit, per_second in _UNITS.items()
    },
}
"""By type and logical type; any other logical type is shown as its type."""
LOGICAL_READERS.update(_FORMS)
