"""Decodes an Arrow IPC stream as its bytes arrive. Needs pyarrow, which is imported when a stream is read.

pyarrow's own reader pulls bytes from a blocking file. Here, the bytes are pushed: they are copied once, into groups of
complete messages. Each group begins with the schema, so that pyarrow can read it in a thread like a stream of its own.
"""

import asyncio
import importlib
import struct
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from queryserver_client.errors import ConnectionLost, ConversionFailed, MissingPackage, QueryserverError, is_panic

if TYPE_CHECKING:
    import pyarrow as pa

_CONTINUED = 0xFFFFFFFF
_PREFIX_BYTES = 8
_MAX_METADATA_BYTES = 256 * 1024 * 1024
_AT_ONCE = 2
"""Number of decoding threads per stream. They run in parallel, because Arrow releases the GIL while decompressing."""
_GROUP_BYTES = 1024 * 1024
"""Size of a group in bytes, unless a single message is larger."""
_GROUP_MESSAGES = 16
"""The maximum number of messages in a group, because a decompressed message takes about 256 KiB."""
_DIGITS_OF_POLARS = 38
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31 as days since 1970-01-01."""
_BODY_LENGTH_FIELD = 3
"""Index of bodyLength among the fields in Arrow's Message.fbs: version, header_type, header, bodyLength."""


def optional(package: str, extra: str) -> Any:
    """Import an optional package. Raises MissingPackage, whose message contains the install command."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingPackage(package, extra) from error


def frame(table: "pa.Table", options: "Mapping[str, Any]") -> Any:
    """Return a table as a pandas DataFrame. By default, an integer column with nulls keeps an integer type."""
    exact: dict[int, Any] = {}
    if not options.keys() & {"types_mapper", "integer_object_nulls"}:
        pa, pd = importlib.import_module("pyarrow"), importlib.import_module("pandas")
        table = _with_days_of_pandas(pa, table)
        for place, column in enumerate(table.columns):
            is_wanted = table.column_names[place] not in (options.get("categories") or ())
            if column.null_count and pa.types.is_integer(column.type) and is_wanted:
                name = str(column.type).replace("uint", "UInt").replace("int", "Int")
                kind = pd.api.types.pandas_dtype(name)
                exact[place] = column.to_pandas(types_mapper={column.type: kind}.get)
    made = table.to_pandas(**options)
    for place, column in exact.items():
        made.isetitem(place, column)
    return made


def _with_days_of_pandas(pa: Any, table: "pa.Table") -> "pa.Table":
    """Return the table with date columns that exceed the years 1 to 9999 (Python's range) converted to timestamps."""
    for place, field in enumerate(table.schema):
        if pa.types.is_date32(field.type):
            days = table.column(place).cast(pa.int32())
            extremes = importlib.import_module("pyarrow.compute").min_max(days).as_py()
            if extremes["min"] is not None and (extremes["min"] < _FIRST_DAY or extremes["max"] > _LAST_DAY):
                table = table.set_column(place, field.name, table.column(place).cast(pa.timestamp("s")))
    return table


def _has_39_digits(pa: Any, column: Any) -> bool:
    """Return whether a column has, or may have, decimals with more digits than polars supports.

    DuckDB sends HUGEINT as decimal(38, 0), although its values may have 39 digits.
    """
    if pa.types.is_decimal256(column.type):
        return True
    if not pa.types.is_decimal128(column.type) or column.type.precision < _DIGITS_OF_POLARS:
        return False
    extremes = importlib.import_module("pyarrow.compute").min_max(column).as_py()
    return any(one is not None and len(one.as_tuple().digits) > _DIGITS_OF_POLARS for one in extremes.values())


def polars_frame(table: "pa.Table", convert: "Callable[[pa.Table], Any] | None" = None) -> Any:
    """Return a table as a polars DataFrame, with decimals of more than 38 digits as strings. Raises ConversionFailed.

    `convert` defaults to polars' `from_arrow`.
    """
    pa = importlib.import_module("pyarrow")
    take: Any = optional("polars", "polars").from_arrow if convert is None else convert
    for place, field in enumerate(table.schema):
        if _has_39_digits(pa, table.column(place)):
            texts = [None if value is None else format(value, "f") for value in table.column(place).to_pylist()]
            table = table.set_column(place, field.name, pa.chunked_array([pa.array(texts, pa.string())]))
    try:
        return take(table)
    except BaseException as error:
        # A polars panic is a BaseException but not an Exception, so it would bypass handlers and stop the event loop.
        if not is_panic(error):
            raise
        message = f"polars cannot hold this result: {error}"
        raise ConversionFailed(message) from error


class MessageGroups:
    """Collects the bytes of a stream in groups of complete messages, each after a copy of the schema message."""

    def __init__(self, pa: Any) -> None:
        self._pa = pa
        self.is_ended = False
        """Whether the end marker has arrived. A stream that ends without it was truncated."""
        self.schema = b""
        """The first message of the stream, once it is complete."""
        self._wanted = _PREFIX_BYTES
        """Number of bytes of the next message that must arrive before more is known about it."""
        self._begin(b"")

    def feed(self, chunk: bytes) -> "Iterator[pa.Buffer]":
        """Yield the schema message, and then the groups, that this chunk completes."""
        view = memoryview(chunk)
        while view and not self.is_ended:
            taken = min(len(view), len(self._block) - self._filled)
            self._block[self._filled : self._filled + taken] = view[:taken]
            self._filled += taken
            view = view[taken:]
            while self._has_more():
                if not self.schema:
                    self.schema = bytes(self._block[: self._whole])
                    yield self._pa.py_buffer(self.schema)
                    continue
                self._messages += 1
                if self._messages == _GROUP_MESSAGES:
                    yield from self.rest()
            if self._filled == len(self._block):
                yield from self.rest()

    def rest(self) -> "Iterator[pa.Buffer]":
        """Yield the complete messages that belong to no group yet, if there are any."""
        group, has_messages = self._buffer.slice(0, self._whole), self._messages > 0
        if self._whole < _GROUP_BYTES // 8:  # the batches of a small group must not keep a large buffer in memory
            group = self._pa.py_buffer(bytes(self._block[: self._whole]))
        self._begin(self._block[self._whole : self._filled])
        if has_messages:
            yield group

    def _begin(self, incomplete: "bytes | memoryview") -> None:
        """Begin a group whose first message is incomplete."""
        self._whole = len(self.schema)
        self._filled = self._whole + len(incomplete)
        self._buffer = self._pa.allocate_buffer(max(_GROUP_BYTES, self._whole + self._wanted, self._filled))
        self._block = memoryview(self._buffer).cast("B")
        self._block[: self._whole] = self.schema
        self._block[self._whole : self._filled] = incomplete
        self._messages = 0

    def _has_more(self) -> bool:
        """Move past one message, and return True, if it is complete and not the end marker."""
        arrived = self._filled - self._whole
        if self.is_ended or arrived < self._wanted:
            return False
        mark, length = struct.unpack_from("<II", self._block, self._whole)
        if mark != _CONTINUED or length > _MAX_METADATA_BYTES:
            raise ConnectionLost("the response is not an Arrow stream", is_sent=True)
        if length == 0:
            self.is_ended = True
            return False
        self._wanted = _PREFIX_BYTES + length
        if arrived < self._wanted:
            return False
        body_bytes = _body_length(self._block[self._whole + _PREFIX_BYTES : self._whole + self._wanted])
        if body_bytes < 0:
            raise ConnectionLost("the Arrow stream is corrupt", is_sent=True)
        self._wanted += body_bytes
        if arrived < self._wanted:
            return False
        self._whole += self._wanted
        self._wanted = _PREFIX_BYTES
        return True


async def batches(chunks: AsyncGenerator[bytes, None]) -> "AsyncGenerator[pa.Schema | pa.RecordBatch, None]":
    """Yield the schema, then the batches. Raises ConnectionLost if the stream is corrupt or has no end marker.

    While further bytes arrive, threads decompress the earlier batches, a few MiB per thread. Memory holds only the
    batches in progress. If the stream fails, the batches that arrived before the failure are yielded first.
    """
    pa, failures, is_begun = optional("pyarrow", "arrow"), list[QueryserverError](), False
    async with aclosing(BatchDecoder(pa)) as decoder, aclosing(_groups(MessageGroups(pa), chunks, failures)) as groups:
        async for group in groups:
            if not is_begun:
                is_begun = True
                yield decoder.schema(group)
                continue
            decoder.add(group)
            while decoder.has_turn:
                for batch in await decoder.first():
                    yield batch
        while decoder.is_busy:
            for batch in await decoder.first():
                yield batch
    if failures:
        raise failures[0]


async def _groups(
    collected: MessageGroups, chunks: AsyncGenerator[bytes, None], failures: list[QueryserverError]
) -> "AsyncGenerator[pa.Buffer, None]":
    """Yield the schema message and the groups. If the stream fails, append the error to `failures` instead of raising
    it.
    """
    try:
        async for chunk in chunks:
            for group in collected.feed(chunk):
                yield group
        if not collected.is_ended:
            raise ConnectionLost("the Arrow stream ended prematurely", is_sent=True)
    except QueryserverError as error:
        failures.append(error)
    for group in collected.rest():
        yield group


class BatchDecoder:
    """Decodes groups of messages in threads, and returns their batches in order."""

    def __init__(self, pa: Any) -> None:
        self._pa = pa
        # Each group has its own thread. Arrow's threads for the columns of a batch would take 40 % more CPU time.
        self._options = pa.ipc.IpcReadOptions(use_threads=False)
        self._under_way: deque[asyncio.Task[list[Any]]] = deque()

    async def aclose(self) -> None:
        """Discard the batches in progress. Threads that are already running finish by themselves."""
        for work in self._under_way:
            work.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.gather(*self._under_way, return_exceptions=True)

    @property
    def has_turn(self) -> bool:
        """Whether `first` should be called before more groups are added.

        This is the case if its batches are ready or if too many threads are running.
        """
        return self.is_busy and (len(self._under_way) > _AT_ONCE or self._under_way[0].done())

    @property
    def is_busy(self) -> bool:
        return bool(self._under_way)

    def schema(self, message: "pa.Buffer") -> "pa.Schema":
        with _damage():
            return self._pa.ipc.read_schema(message)

    def add(self, group: "pa.Buffer") -> None:
        """Pass a group to a thread."""
        work = anyio.to_thread.run_sync(partial(self._decoded, group), abandon_on_cancel=True)
        self._under_way.append(asyncio.create_task(work, name="queryserver-unpacking"))

    async def first(self) -> "list[pa.RecordBatch]":
        """Return the batches of the oldest group."""
        return await self._under_way.popleft()

    def _decoded(self, group: "pa.Buffer") -> "list[pa.RecordBatch]":
        with _damage(), self._pa.ipc.open_stream(group, options=self._options) as reader:
            return list(reader)


@contextmanager
def _damage() -> Generator[None, None, None]:
    """Translate the errors that pyarrow raises for invalid data (OSError or a ValueError) to ConnectionLost."""
    try:
        yield
    except (OSError, ValueError) as error:
        message = f"the Arrow stream is corrupt: {error}"
        raise ConnectionLost(message, is_sent=True) from error


def _body_length(metadata: memoryview) -> int:
    """Return `bodyLength` from the flatbuffer `Message`; 0 if the field is missing."""
    (table,) = struct.unpack_from("<I", metadata, 0)
    (to_vtable,) = struct.unpack_from("<i", metadata, table)
    vtable = table - to_vtable
    (vtable_bytes,) = struct.unpack_from("<H", metadata, vtable)
    place = 4 + 2 * _BODY_LENGTH_FIELD
    if place >= vtable_bytes:
        return 0
    (offset,) = struct.unpack_from("<H", metadata, vtable + place)
    return struct.unpack_from("<q", metadata, table + offset)[0] if offset else 0
