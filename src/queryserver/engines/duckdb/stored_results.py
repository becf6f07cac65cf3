"""Presents stored results as tables that DuckDB can scan repeatedly, in parallel, and with only the columns it needs.

A dataset is the only Arrow source that can be scanned twice and to which DuckDB pushes down columns and filters. It
reads Arrow's IPC file format, while the store uses the streaming format. The file format is the stream enclosed by a
magic number and a footer that locates each batch. A stored piece is therefore presented as a file with both added,
without copying the piece. Rows whose types differ from the table's types are converted first, one piece at a time.
"""

import os
import struct
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import types

from queryserver import errors
from queryserver.engines.process.calls import RemoteResult
from queryserver.errors.base import QueryServerError
from queryserver.formats.arrow import Column, is_binary, is_text, is_text_union, member_types, text_union_value_type
from queryserver.formats.download.columnar import cast_batch, common_schema
from queryserver.platform.caches import LruCache

MAGIC = b"ARROW1"
_FILE_HEADER = MAGIC + b"\0\0"
_STREAM_OFFSET = len(_FILE_HEADER)
"""Offset of the stream in a file of this format."""
_SIZE_BYTES = 1 << 40
"""Nominal size of every piece's file, regardless of its content."""
_PREFIX = struct.Struct("<Ii")
"""The prefix of each message's metadata in a stream: FFFFFFFF and the metadata's size in bytes."""
_CONTINUATION = 0xFFFFFFFF
_END_BYTES = 8
_HEAD_BYTES = 64 * 1024
_FIRST_BYTES = 4096
_MAX_CONCURRENT_HEADS = 8
_METADATA_BYTES = 2048
"""Number of bytes first read for a batch's metadata. This suffices for most batches; others need a second read."""

# Field numbers in Arrow's Message.fbs and File.fbs, and the header type of a record batch.
_VERSION, _HEADER_TYPE, _HEADER, _BODY_LENGTH = range(4)
_RECORD_BATCH = 3

_CACHE_BYTES = 64 * 1024 * 1024
"""Size of the cache for pieces that are not in local files and for converted pieces."""
_MIN_OPEN_FILES = 8
_MAX_PREFETCHED_FILES = 128
_FILE_WEIGHT = _CACHE_BYTES // 128
"""Weight of an open file in this cache. It limits a result to 128 open files."""


class _PieceSource(Protocol):
    """The source of a piece's bytes."""

    weight: int

    def read(self, start: int, length: int) -> bytes: ...


class _FileSource:
    """A file that is closed when it is no longer referenced."""

    weight = _FILE_WEIGHT

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, start: int, length: int) -> bytes:
        # The file is not memory-mapped, because address space is limited and a truncated file would crash the process.
        return os.pread(self._descriptor, length, start)

    def __del__(self) -> None:
        os.close(self._descriptor)


class _MemorySource:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self.weight = len(content)

    def read(self, start: int, length: int) -> bytes:
        return self._content[start : start + length]


class _Pieces:
    """The bytes of one result's pieces. Callable from any thread."""

    def __init__(self, result: RemoteResult) -> None:
        self._result = result
        self._are_files: bool | None = None
        self._files = dict[int, _FileSource]()
        """Files that were opened together with a requested file and have not been used yet."""
        self._lock = Lock()

    def opened(self, number: int) -> _PieceSource:
        """Return the source of one piece's bytes. Raises domain errors."""
        if self._are_files is not False and (file := self._file(number)) is not None:
            return file
        return _MemorySource(self._result.read(number, 0, self._result.pieces[number].size_bytes))

    def _file(self, number: int) -> _FileSource | None:
        with self._lock:
            if (file := self._files.pop(number, None)) is None:
                opened = {at: _FileSource(one) for at, one in enumerate(self._result.files(number), start=number)}
                file = opened.pop(number, None)
                self._are_files = file is not None
                self._files |= opened
                # The oldest files were opened for another scan, which has advanced further.
                for unused in list(self._files)[:-_MAX_PREFETCHED_FILES]:
                    del self._files[unused]
            return file

    def clear(self) -> None:
        """Close the files that were opened but not read."""
        with self._lock:
            self._files.clear()

    def schema_messages(self) -> Sequence[bytes]:
        """Return the schema message of each piece. Raises domain errors."""
        numbers = range(len(self._result.pieces))
        first = [self._schema_message(number) for number in numbers[:1]]  # this read shows whether the pieces are files
        if self._are_files is not False:
            schema_messages, files = first, dict[int, _FileSource]()
            for number in numbers[1:]:
                if (file := self._file(number)) is None:
                    raise errors.ServiceUnavailable("The result store cannot be reached.")
                schema_messages.append(_read_schema_message(file.read))
                if len(files) < _MAX_PREFETCHED_FILES:
                    files[number] = file  # for the first scan
            self._files = files
            return schema_messages
        with ThreadPoolExecutor(_MAX_CONCURRENT_HEADS, thread_name_prefix="result-heads") as threads:
            return first + list(threads.map(self._schema_message, numbers[1:]))

    def _schema_message(self, number: int) -> bytes:
        """Read the schema message of the first piece, or of a piece that is not in a file.

        A small piece is read completely.
        """
        is_small = self._result.pieces[number].size_bytes <= _HEAD_BYTES
        read = self.opened(number).read if is_small or self._are_files is not False else partial(self._read, number)
        return _read_schema_message(read)

    def _read(self, number: int, start: int, length: int) -> bytes:
        return self._result.read(number, start, start + length)


def _read_schema_message(read: Callable[[int, int], bytes]) -> bytes:
    head = read(0, _FIRST_BYTES)
    needed = _message_bytes(head)
    return head[:needed] if len(head) >= needed else read(0, needed)


class StoredResultTable:
    """Presents an open result's rows as `dataset`, which DuckDB scans. Must be closed, but not during a scan."""

    def __init__(self, result: RemoteResult) -> None:
        """Read the schema of each piece. Raises domain errors."""
        self.failure: QueryServerError | None = None
        """The error of a failed scan, of which DuckDB reports only the text."""
        if not result.columns:
            raise errors.ResultRefused("A result without columns cannot be read as a table.")
        self._result = result
        self._pieces = _Pieces(result)
        self._lock = Lock()
        self._is_closed = False
        # A scan reads each piece in many parts, so the pieces that it reads concurrently stay cached regardless of
        # size.
        self._open = LruCache[int, _PieceSource](_CACHE_BYTES, weigh=lambda one: one.weight, min_values=_MIN_OPEN_FILES)
        numbers = range(len(result.pieces))
        schema_messages = self._pieces.schema_messages()
        known = {head: pa.ipc.read_schema(pa.py_buffer(head)).remove_metadata() for head in set(schema_messages)}
        self._schemas = [known[head] for head in schema_messages]
        self.schema = table_schema(result.columns, known.values())
        form = ds.IpcFileFormat()
        self._files = [PieceFile(self, number) for number in numbers]
        fragments = [form.make_fragment(pa.PythonFile(file, "r")) for file in self._files]
        self.dataset = ds.FileSystemDataset(fragments, self.schema, form)

    @property
    def size_bytes(self) -> int:
        """The size of the pieces as they are stored."""
        return sum(piece.size_bytes for piece in self._result.pieces)

    def close(self) -> None:
        """Close the result on the server. The table is closed even if this raises a domain error."""
        # The dataset references files that reference this table: a cycle through Arrow that Python cannot collect.
        self._is_closed = True
        del self.dataset
        with self._lock:
            self._open.clear()
            for file in self._files:
                file.forget()
        self._pieces.clear()
        self._result.close()

    def open(self, file: "PieceFile") -> "tuple[_PieceSource, int]":
        """Open a piece as a stream with the table's schema, and return the source of its bytes and its size.

        Every call for a piece yields the same bytes. A piece that was evicted from the cache must be opened again.
        Raises domain errors.
        """
        if self._is_closed:
            raise errors.StorageError("The result is closed.")
        number = file.number
        opened = self._pieces.opened(number)
        size_bytes = self._result.pieces[number].size_bytes
        if self._schemas[number].types != self.schema.types:
            opened = _MemorySource(self._with_table_schema(opened.read(0, size_bytes)))
            size_bytes = opened.weight
        with self._lock:
            for dropped in self._open.put(number, opened):
                self._files[dropped].forget()
        return opened, size_bytes

    def _with_table_schema(self, stored: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.open_stream(stored) as rows, pa.ipc.new_stream(sink, self.schema) as writer:
            for batch in rows:
                writer.write_batch(cast_batch(batch, self._result.columns, self.schema))
        return sink.getvalue().to_pybytes()


class PieceFile:
    """Presents one piece as a Python file object in Arrow's IPC file format. Used by one thread at a time.

    Each batch takes two or three calls, so a scan makes thousands of calls and the cost of each matters. A dataset
    requests a file's size when it is created, but bytes only when scanning. To avoid fetching anything earlier, all
    pieces report the same size, with an unused gap between the stream and the footer.
    """

    closed = False

    def __init__(self, table: StoredResultTable, number: int) -> None:
        self.number = number
        self._table = table
        self._at = 0
        self._stored: _PieceSource | None = None
        self._stream_end = 0
        self._tail = b""

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing, because other scans may read the piece again."""

    def forget(self) -> None:
        """Free the bytes until the next read."""
        self._stored = None

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return _SIZE_BYTES

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: _SIZE_BYTES}
        self._at = base[whence] + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Read bytes at the current offset. Raises OSError, whose cause is stored in the table's `failure`."""
        stored, start = self._stored or self._opened(), self._at
        stop = _SIZE_BYTES if size < 0 else min(start + size, _SIZE_BYTES)
        if start >= _STREAM_OFFSET and stop <= self._stream_end:
            content = stored.read(start - _STREAM_OFFSET, stop - start)
        elif start >= (tail := _SIZE_BYTES - len(self._tail)):
            content = self._tail[start - tail : stop - tail]
        else:
            content = _FILE_HEADER[start:stop]
        if len(content) != stop - start:
            raise self._failure(errors.StorageError("A stored segment is incomplete."))
        self._at = stop
        return content

    def read_buffer(self, size: int) -> pa.Buffer:
        """Read bytes into a buffer that Arrow uses without copying."""
        return pa.py_buffer(self.read(size))

    def _opened(self) -> _PieceSource:
        try:
            stored, size_bytes = self._table.open(self)
            if not self._tail:
                self._stream_end = _STREAM_OFFSET + size_bytes
                self._tail = footer(self._table.schema, batch_locations(stored, size_bytes))
        except QueryServerError as error:
            raise self._failure(error) from error
        except (pa.ArrowException, struct.error) as error:
            raise self._failure(errors.StorageError("Stored rows are corrupt.")) from error
        self._stored = stored
        return stored

    def _failure(self, error: QueryServerError) -> OSError:
        self._table.failure = self._table.failure or error
        return OSError(error.message)


@dataclass(frozen=True, slots=True)
class BatchLocation:
    """The offset of a record batch, including its prefix, in a stream, and the sizes of its metadata and body."""

    start: int
    metadata_bytes: int
    body_bytes: int


def batch_locations(stored: _PieceSource, size_bytes: int) -> Sequence[BatchLocation]:
    """Locate a stream's batches from the prefixes and metadata of its messages. Raises StorageError."""
    locations = list[BatchLocation]()
    at = _message_bytes(stored.read(0, _PREFIX.size))
    while at < size_bytes - _END_BYTES:
        head = stored.read(at, _METADATA_BYTES)
        whole = _message_bytes(head)
        if whole > len(head):
            head = stored.read(at, whole)
        kind, body_bytes = _header_of(memoryview(head)[_PREFIX.size : whole])
        if kind != _RECORD_BATCH:
            raise errors.StorageError("A stored segment contains data other than rows.")
        locations.append(BatchLocation(at, whole, body_bytes))
        at += whole + body_bytes
    if at != size_bytes - _END_BYTES:
        raise errors.StorageError("A stored segment is incomplete.")
    return locations


def footer(schema: pa.Schema, batches: Sequence[BatchLocation]) -> bytes:
    """Build the bytes after the stream: a FlatBuffer (Arrow's File.fbs: Footer), its size, and the magic number.

    Offsets in the file include its first eight bytes. The FlatBuffer's root table is followed by a complete schema
    message, into which the table points. This works because offsets in a FlatBuffer are relative and point forward.
    """
    message = schema.serialize().to_pybytes()[_PREFIX.size :]
    version, header = _table_field(message, _VERSION), _table_field(message, _HEADER)
    schema_at = header + struct.unpack_from("<I", message, header)[0]
    table, count_at, blocks_at = 16, 36, 40
    size_bytes = blocks_at + 24 * len(batches)
    content = bytearray(size_bytes) + message
    struct.pack_into("<I", content, 0, table)
    # The vtable: its size and the table's size, then the offsets of version, schema, dictionaries (none) and batches.
    struct.pack_into("<HHHHHH", content, 4, 12, 16, 12, 4, 0, 8)
    struct.pack_into("<iII", content, table, table - 4, size_bytes + schema_at - (table + 4), count_at - (table + 8))
    struct.pack_into("<h", content, table + 12, struct.unpack_from("<h", message, version)[0] if version else 0)
    struct.pack_into("<I", content, count_at, len(batches))
    for number, batch in enumerate(batches):
        start = _STREAM_OFFSET + batch.start
        struct.pack_into("<qi4xq", content, blocks_at + 24 * number, start, batch.metadata_bytes, batch.body_bytes)
    return bytes(content) + struct.pack("<i", len(content)) + MAGIC


def _message_bytes(head: bytes) -> int:
    """Return a message's size, including its prefix, from its first bytes. Raises StorageError."""
    if len(head) < _PREFIX.size:
        raise errors.StorageError("A stored segment is incomplete.")
    continuation, metadata_bytes = _PREFIX.unpack_from(head)
    if continuation != _CONTINUATION or metadata_bytes <= 0:
        raise errors.StorageError("Stored rows are corrupt.")
    return _PREFIX.size + metadata_bytes


def _header_of(message: memoryview) -> tuple[int, int]:
    """Return a message's header type and its body size in bytes."""
    kind, body = _table_field(message, _HEADER_TYPE), _table_field(message, _BODY_LENGTH)
    return message[kind] if kind else 0, struct.unpack_from("<q", message, body)[0] if body else 0


def _table_field(message: bytes | memoryview, number: int) -> int:
    """Return the offset of a field in a FlatBuffer's root table; 0 if the field has its default value."""
    (root,) = struct.unpack_from("<I", message, 0)
    (distance,) = struct.unpack_from("<i", message, root)
    (size,) = struct.unpack_from("<H", message, root - distance)
    at = 4 + 2 * number
    (offset,) = struct.unpack_from("<H", message, root - distance + at) if at < size else (0,)
    return root + offset if offset else 0


def table_schema(columns: tuple[Column, ...], schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return a schema that DuckDB can scan and that represents all rows without loss.

    Columns keep their own types where possible. Otherwise they get the types used in a Parquet file (Contract editor
    8.2), or text. Names are unique regardless of case.
    """
    schemas = list(schemas)
    common = common_schema(columns, schemas)
    names = _unique_names([field.name for field in common])
    kinds = [_scan_type({schema.field(at).type for schema in schemas}, field.type) for at, field in enumerate(common)]
    return pa.schema(list(zip(names, kinds, strict=True)))


def _scan_type(kinds: set[pa.DataType], common: pa.DataType) -> pa.DataType:
    if len(kinds) == 1 and _is_scannable(kind := next(iter(kinds))):
        return kind
    # A decimal NaN is stored as text, which a decimal column cannot hold.
    if any(map(_has_unrepresentable_decimals, kinds)):
        return pa.string()
    return common if _is_scannable(common) else pa.string()


def _is_scannable(kind: Any) -> bool:
    if types.is_struct(kind):
        names = [field.name.casefold() for field in kind.fields]
        return bool(names) and len(set(names)) == len(names) and all(map(_is_scannable, member_types(kind)))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        return all(map(_is_scannable, member_types(kind)))
    if types.is_floating(kind):
        return not types.is_float16(kind)
    return (
        any(test(kind) for test in (types.is_boolean, types.is_integer, types.is_decimal128, types.is_date32))
        or types.is_timestamp(kind)
        or types.is_time(kind)
        or ((is_text(kind) or is_binary(kind)) and not (types.is_string_view(kind) or types.is_binary_view(kind)))
    )


def _has_unrepresentable_decimals(kind: pa.DataType) -> bool:
    if is_text_union(kind):
        return types.is_decimal(text_union_value_type(kind))
    return types.is_nested(kind) and any(map(_has_unrepresentable_decimals, member_types(kind)))


def _unique_names(names: Sequence[str]) -> list[str]:
    """Make names unique like `unique_names`, but regardless of case, because DuckDB ignores case."""
    taken, used = {name.casefold() for name in names}, set[str]()
    unique = list[str]()
    for name in names:
        chosen, number = name, 2
        while chosen.casefold() in used or (number > 2 and chosen.casefold() in taken):
            chosen, number = f"{name}_{number}", number + 1
        used.add(chosen.casefold())
        unique.append(chosen)
    return unique
