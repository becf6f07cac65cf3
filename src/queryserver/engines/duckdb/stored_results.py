"""A stored result as a table that DuckDB scans as often as it wants, with the columns that it needs and in parallel.

DuckDB hands columns and filters to an Arrow dataset, and to nothing else that can be scanned twice. A dataset reads the
file form of Arrow IPC, and the store has the stream form: the file form is the stream between a magic number and a
footer, which names the place of each batch. So a stored piece is read as a file that has both, without a copy of it.
Rows of other types than the table has are converted first, a piece at a time.
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
from queryserver.engines.process.result_calls import CalledResult
from queryserver.errors.base import QueryServerError
from queryserver.formats.columns import Column, is_binary, is_text
from queryserver.formats.download.columnar import common_schema, fitted
from queryserver.formats.nested_arrays import member_types
from queryserver.formats.odd_values import is_odd, usual_type
from queryserver.platform.lru_cache import LruCache

MAGIC = b"ARROW1"
_BEGINNING = MAGIC + b"\0\0"
_FIRST = len(_BEGINNING)
"""Where the stream begins in the file form."""
_SIZE_BYTES = 1 << 40
"""Of the file form of each piece, whatever it holds."""
_PREFIX = struct.Struct("<Ii")
"""Before the metadata of each message of a stream: FFFFFFFF, and how many bytes they have."""
_CONTINUATION = 0xFFFFFFFF
_END_BYTES = 8
_HEAD_BYTES = 64 * 1024
_FIRST_BYTES = 4096
_HEADS_AT_ONCE = 8
_METADATA_BYTES = 2048
"""Of most batches; a longer one is read by a second call."""

# Positions of fields in Arrow's Message.fbs and File.fbs, and the type of a record batch there.
_VERSION, _HEADER_TYPE, _HEADER, _BODY_LENGTH = range(4)
_RECORD_BATCH = 3

_OPEN_BYTES = 64 * 1024 * 1024
"""Of pieces that are in no file of this machine, and of converted ones, held for further reads."""
_LEAST_OPEN = 8
_WAITING_FILES = 128
_FILE_WEIGHT = _OPEN_BYTES // 128
"""At most so many files of a result are open."""


class _Bytes(Protocol):
    """What a piece is read from."""

    weight: int

    def read(self, start: int, length: int) -> bytes: ...


class _File:
    """A file, closed when no one reads it any more."""

    weight = _FILE_WEIGHT

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, start: int, length: int) -> bytes:
        # Not mapped: the addresses of the process are limited, and a file that was cut would end it.
        return os.pread(self._descriptor, length, start)

    def __del__(self) -> None:
        os.close(self._descriptor)


class _Memory:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self.weight = len(content)

    def read(self, start: int, length: int) -> bytes:
        return self._content[start : start + length]


class _Pieces:
    """The bytes of the pieces of one result. Any thread may read."""

    def __init__(self, result: CalledResult) -> None:
        self._result = result
        self._are_files: bool | None = None
        self._files = dict[int, _File]()
        """Opened together with one that was wanted."""
        self._lock = Lock()

    def opened(self, number: int) -> _Bytes:
        """Raises domain errors."""
        if self._are_files is not False and (file := self._file(number)) is not None:
            return file
        return _Memory(self._result.read(number, 0, self._result.pieces[number].size_bytes))

    def _file(self, number: int) -> _File | None:
        with self._lock:
            if (found := self._files.pop(number, None)) is None:
                opened = {place: _File(one) for place, one in enumerate(self._result.files(number), start=number)}
                found = opened.pop(number, None)
                self._are_files = found is not None
                self._files |= opened
                for place in list(self._files)[:-_WAITING_FILES]:  # of another scan, which has gone on
                    del self._files[place]
            return found

    def clear(self) -> None:
        """Close the files that were opened and not read."""
        with self._lock:
            self._files.clear()

    def heads(self) -> Sequence[bytes]:
        """The message of the schema of each piece. Raises domain errors."""
        numbers = range(len(self._result.pieces))
        first = [self._head(number) for number in numbers[:1]]  # by it is known whether they are files
        if self._are_files is not False:
            heads, files = first, dict[int, _File]()
            for number in numbers[1:]:
                if (file := self._file(number)) is None:
                    raise errors.ServiceUnavailable("The result store cannot be reached.")
                heads.append(_head_of(file.read))
                if len(files) < _WAITING_FILES:
                    files[number] = file  # for the first scan
            self._files = files
            return heads
        with ThreadPoolExecutor(_HEADS_AT_ONCE, thread_name_prefix="result-heads") as threads:
            return first + list(threads.map(self._head, numbers[1:]))

    def _head(self, number: int) -> bytes:
        """Of one that is in no file, unless it is the first; a small one is read at once."""
        is_small = self._result.pieces[number].size_bytes <= _HEAD_BYTES
        read = self.opened(number).read if is_small or self._are_files is not False else partial(self._read, number)
        return _head_of(read)

    def _read(self, number: int, start: int, length: int) -> bytes:
        return self._result.read(number, start, start + length)


def _head_of(read: Callable[[int, int], bytes]) -> bytes:
    head = read(0, _FIRST_BYTES)
    needed = _message_bytes(head)
    return head[:needed] if len(head) >= needed else read(0, needed)


class StoredResultTable:
    """The rows of an open result; `dataset` is what DuckDB takes. `close` it when no scan goes on any more."""

    def __init__(self, result: CalledResult) -> None:
        """Reads the schema of each piece. Raises domain errors."""
        self.failure: QueryServerError | None = None
        """What a scan failed with: DuckDB shows only its text."""
        if not result.columns:
            raise errors.ResultRefused("A result without columns cannot be read as a table.")
        self._result = result
        self._pieces = _Pieces(result)
        self._lock = Lock()
        self._is_closed = False
        # As many as a scan reads side by side stay, whatever their size: each is read in many parts.
        self._open = LruCache[int, _Bytes](_OPEN_BYTES, weigh=lambda one: one.weight, least=_LEAST_OPEN)
        numbers = range(len(result.pieces))
        heads = self._pieces.heads()
        known = {head: pa.ipc.read_schema(pa.py_buffer(head)).remove_metadata() for head in set(heads)}
        self._schemas = [known[head] for head in heads]
        self.schema = table_schema(result.columns, known.values())
        form = ds.IpcFileFormat()
        self._files = [PieceFile(self, number) for number in numbers]
        fragments = [form.make_fragment(pa.PythonFile(file, "r")) for file in self._files]
        self.dataset = ds.FileSystemDataset(fragments, self.schema, form)

    def close(self) -> None:
        """Raises domain errors of the server, for which it is closed, too."""
        # The dataset holds files that hold this: a circle through Arrow, where no collector of Python sees it.
        self._is_closed = True
        del self.dataset
        with self._lock:
            self._open.clear()
            for file in self._files:
                file.forget()
        self._pieces.clear()
        self._result.close()

    def open(self, file: "PieceFile") -> "tuple[_Bytes, int]":
        """A piece as a stream of this schema, and its size; the same bytes at each call. Raises domain errors.

        Files that were not opened for long must open again.
        """
        if self._is_closed:
            raise errors.StorageError("The result is closed.")
        number = file.number
        opened = self._pieces.opened(number)
        size_bytes = self._result.pieces[number].size_bytes
        if self._schemas[number].types != self.schema.types:
            opened = _Memory(self._as_wanted(opened.read(0, size_bytes)))
            size_bytes = opened.weight
        with self._lock:
            for dropped in self._open.put(number, opened):
                self._files[dropped].forget()
        return opened, size_bytes

    def _as_wanted(self, stored: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.open_stream(stored) as rows, pa.ipc.new_stream(sink, self.schema) as writer:
            for batch in rows:
                writer.write_batch(fitted(batch, self._result.columns, self.schema))
        return sink.getvalue().to_pybytes()


class PieceFile:
    """One piece in the file form of Arrow IPC, as a file of Python. One thread at a time calls it.

    Each batch is read by two or three calls: what they take, every scan takes a thousand times. A dataset asks for the
    size at once, and for bytes when it scans. So that nothing is fetched before, all pieces have one size, with a gap
    between the stream and the footer that no one reads.
    """

    closed = False

    def __init__(self, table: StoredResultTable, number: int) -> None:
        self.number = number
        self._table = table
        self._at = 0
        self._stored: _Bytes | None = None
        self._stream_end = 0
        self._tail = b""

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        """Other scans read it again."""

    def forget(self) -> None:
        """Let go of the bytes, until the next read."""
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
        """Raises OSError; the failure of the table says why."""
        stored, start = self._stored or self._opened(), self._at
        stop = _SIZE_BYTES if size < 0 else min(start + size, _SIZE_BYTES)
        if start >= _FIRST and stop <= self._stream_end:
            found = stored.read(start - _FIRST, stop - start)
        elif start >= (tail := _SIZE_BYTES - len(self._tail)):
            found = self._tail[start - tail : stop - tail]
        else:
            found = _BEGINNING[start:stop]
        if len(found) != stop - start:
            raise self._failure(errors.StorageError("A stored segment is incomplete."))
        self._at = stop
        return found

    def read_buffer(self, size: int) -> pa.Buffer:
        """Arrow takes the bytes without a copy."""
        return pa.py_buffer(self.read(size))

    def _opened(self) -> _Bytes:
        try:
            stored, size_bytes = self._table.open(self)
            if not self._tail:
                self._stream_end = _FIRST + size_bytes
                self._tail = footer(self._table.schema, batch_places(stored, size_bytes))
        except QueryServerError as error:
            raise self._failure(error) from error
        except (pa.ArrowException, struct.error) as error:
            raise self._failure(errors.StorageError("Stored rows are damaged.")) from error
        self._stored = stored
        return stored

    def _failure(self, error: QueryServerError) -> OSError:
        self._table.failure = self._table.failure or error
        return OSError(error.message)


@dataclass(frozen=True, slots=True)
class BatchPlace:
    """Where a record batch begins in a stream, with its prefix, and the bytes of its metadata and of its rows."""

    start: int
    metadata_bytes: int
    body_bytes: int


def batch_places(stored: _Bytes, size_bytes: int) -> Sequence[BatchPlace]:
    """The batches of a stream, by the prefixes and metadata of its messages. Raises StorageError."""
    found = list[BatchPlace]()
    at = _message_bytes(stored.read(0, _PREFIX.size))
    while at < size_bytes - _END_BYTES:
        head = stored.read(at, _METADATA_BYTES)
        whole = _message_bytes(head)
        if whole > len(head):
            head = stored.read(at, whole)
        kind, body_bytes = _header_of(memoryview(head)[_PREFIX.size : whole])
        if kind != _RECORD_BATCH:
            raise errors.StorageError("A stored segment has something else than rows.")
        found.append(BatchPlace(at, whole, body_bytes))
        at += whole + body_bytes
    if at != size_bytes - _END_BYTES:
        raise errors.StorageError("A stored segment is incomplete.")
    return found


def footer(schema: pa.Schema, places: Sequence[BatchPlace]) -> bytes:
    """What stands behind the stream in the file form: a FlatBuffer (Arrow's File.fbs: Footer), its size, and the end.

    Places in the file count its first eight bytes. The schema is that of a whole message behind the table: distances
    in a FlatBuffer are relative, and lead forward.
    """
    message = schema.serialize().to_pybytes()[_PREFIX.size :]
    version, header = _table_field(message, _VERSION), _table_field(message, _HEADER)
    schema_at = header + struct.unpack_from("<I", message, header)[0]
    table, count_at, blocks_at = 16, 36, 40
    size_bytes = blocks_at + 24 * len(places)
    made = bytearray(size_bytes) + message
    struct.pack_into("<I", made, 0, table)
    # The table of its fields: its size and that of the table, then the places of version, schema, none, batches.
    struct.pack_into("<HHHHHH", made, 4, 12, 16, 12, 4, 0, 8)
    struct.pack_into("<iII", made, table, table - 4, size_bytes + schema_at - (table + 4), count_at - (table + 8))
    struct.pack_into("<h", made, table + 12, struct.unpack_from("<h", message, version)[0] if version else 0)
    struct.pack_into("<I", made, count_at, len(places))
    for number, place in enumerate(places):
        start = _FIRST + place.start
        struct.pack_into("<qi4xq", made, blocks_at + 24 * number, start, place.metadata_bytes, place.body_bytes)
    return bytes(made) + struct.pack("<i", len(made)) + MAGIC


def _message_bytes(head: bytes) -> int:
    """The size of a message with its prefix, of its first bytes. Raises StorageError."""
    if len(head) < _PREFIX.size:
        raise errors.StorageError("A stored segment is incomplete.")
    continuation, metadata_bytes = _PREFIX.unpack_from(head)
    if continuation != _CONTINUATION or metadata_bytes <= 0:
        raise errors.StorageError("Stored rows are damaged.")
    return _PREFIX.size + metadata_bytes


def _header_of(message: memoryview) -> tuple[int, int]:
    """The type of a message, and the bytes of its body."""
    kind, body = _table_field(message, _HEADER_TYPE), _table_field(message, _BODY_LENGTH)
    return message[kind] if kind else 0, struct.unpack_from("<q", message, body)[0] if body else 0


def _table_field(message: bytes | memoryview, number: int) -> int:
    """Where a field of the root table of a FlatBuffer is; 0: it has its default value."""
    (root,) = struct.unpack_from("<I", message, 0)
    (distance,) = struct.unpack_from("<i", message, root)
    (size,) = struct.unpack_from("<H", message, root - distance)
    at = 4 + 2 * number
    (offset,) = struct.unpack_from("<H", message, root - distance + at) if at < size else (0,)
    return root + offset if offset else 0


def table_schema(columns: tuple[Column, ...], schemas: Iterable[pa.Schema]) -> pa.Schema:
    """A schema that DuckDB scans and that all rows fit into without loss: the types that they have, where it can.

    Else those of a Parquet file (Contract editor 8.2), or text. Names are unique, also without regard to case.
    """
    schemas = list(schemas)
    common = common_schema(columns, schemas)
    names = _unique([field.name for field in common])
    kinds = [
        _scanned({schema.field(place).type for schema in schemas}, field.type) for place, field in enumerate(common)
    ]
    return pa.schema(list(zip(names, kinds, strict=True)))


def _scanned(kinds: set[pa.DataType], common: pa.DataType) -> pa.DataType:
    if len(kinds) == 1 and _is_scannable(kind := next(iter(kinds))):
        return kind
    # NaN of a decimal is a text, for which a decimal has no place.
    if any(map(_has_odd_decimals, kinds)):
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


def _has_odd_decimals(kind: pa.DataType) -> bool:
    if is_odd(kind):
        return types.is_decimal(usual_type(kind))
    return types.is_nested(kind) and any(map(_has_odd_decimals, member_types(kind)))


def _unique(names: Sequence[str]) -> list[str]:
    """As `unique_names`, without regard to case: DuckDB has none."""
    taken, seen = {name.casefold() for name in names}, set[str]()
    found = list[str]()
    for name in names:
        chosen, number = name, 2
        while chosen.casefold() in seen or (number > 2 and chosen.casefold() in taken):
            chosen, number = f"{name}_{number}", number + 1
        seen.add(chosen.casefold())
        found.append(chosen)
    return found
