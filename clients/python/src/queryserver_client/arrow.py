"""Decodes an Arrow IPC stream as its bytes arrive. Needs pyarrow, which is imported when a stream is read.

pyarrow's own reader pulls bytes from a blocking file. Here, the bytes are pushed: each message is collected in a buffer
of exactly its size, and the record batch is a view of that buffer, so each byte is copied only once.
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
_GROUP_BYTES = 2 * 1024 * 1024
_GROUP_MESSAGES = 16
"""A thread decodes messages in groups of at least _GROUP_BYTES received bytes, or of _GROUP_MESSAGES messages.

A decompressed message takes about 256 KiB.
"""
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


class MessageReader:
    """Splits the bytes of a stream into messages, including their prefixes."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._message: bytearray | None = None
        self._filled = 0
        self.is_ended = False
        """Whether the end marker has arrived. A stream that ends without it was truncated."""

    def feed(self, chunk: bytes) -> Iterator[bytearray]:
        """Yield the messages that this chunk completes."""
        view = memoryview(chunk)
        while view and not self.is_ended:
            if self._message is None:
                view = self._take_head(view)
            else:
                taken = min(len(view), len(self._message) - self._filled)
                self._message[self._filled : self._filled + taken] = view[:taken]
                self._filled += taken
                view = view[taken:]
            if self._message is not None and self._filled == len(self._message):
                yield self._message
                self._message = None

    def _take_head(self, view: memoryview) -> memoryview:
        """Read the prefix and the metadata, which contains the body length. Return the remaining bytes of the chunk."""
        view = self._collect(view, _PREFIX_BYTES)
        if len(self._head) < _PREFIX_BYTES:
            return view
        mark, length = struct.unpack_from("<II", self._head)
        if mark != _CONTINUED or length > _MAX_METADATA_BYTES:
            raise ConnectionLost("the response is not an Arrow stream", is_sent=True)
        if length == 0:
            self.is_ended = True
            return view
        view = self._collect(view, _PREFIX_BYTES + length)
        if len(self._head) == _PREFIX_BYTES + length:
            body = _body_length(memoryview(self._head)[_PREFIX_BYTES:])
            self._filled = len(self._head)
            self._message = bytearray(self._filled + body)
            self._message[: self._filled] = self._head
            self._head.clear()
        return view

    def _collect(self, view: memoryview, wanted: int) -> memoryview:
        missing = max(0, wanted - len(self._head))
        self._head += view[:missing]
        return view[missing:]


async def batches(chunks: AsyncGenerator[bytes, None]) -> "AsyncGenerator[pa.Schema | pa.RecordBatch, None]":
    """Yield the schema, then the batches. Raises ConnectionLost if the stream is corrupt or has no end marker.

    While further bytes arrive, threads decompress the earlier batches, a few MiB per thread. Memory holds only the
    batches in progress. If the stream fails, the batches that arrived before the failure are yielded first.
    """
    reader, failures = MessageReader(), list[QueryserverError]()
    async with (
        aclosing(BatchDecoder(optional("pyarrow", "arrow"))) as unpacking,
        aclosing(_before_failure(chunks, failures)) as good,
    ):
        async for chunk in good:
            for message in reader.feed(chunk):
                if unpacking.schema is None:
                    yield unpacking.begin(message)
                else:
                    unpacking.add(message)
            while unpacking.has_turn:
                for batch in await unpacking.first():
                    yield batch
        while unpacking.is_busy:
            for batch in await unpacking.first():
                yield batch
    if failures:
        raise failures[0]
    if not reader.is_ended:
        raise ConnectionLost("the Arrow stream ended prematurely", is_sent=True)


async def _before_failure(
    chunks: AsyncGenerator[bytes, None], failures: list[QueryserverError]
) -> AsyncGenerator[bytes, None]:
    """Yield the received chunks. If the stream fails, append the error to `failures` instead of raising it."""
    try:
        async for chunk in chunks:
            yield chunk
    except QueryserverError as error:
        failures.append(error)


class BatchDecoder:
    """Decodes messages in threads, and returns the batches in order."""

    def __init__(self, pa: Any) -> None:
        self._pa = pa
        self.schema: Any = None
        self._collected: list[bytearray] = []
        self._collected_bytes = 0
        self._under_way: deque[asyncio.Task[list[Any]]] = deque()

    async def aclose(self) -> None:
        """Discard the batches in progress. Threads that are already running finish by themselves."""
        for work in self._under_way:
            work.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.gather(*self._under_way, return_exceptions=True)

    @property
    def has_turn(self) -> bool:
        """Whether `first` should be called before more messages are added.

        This is the case if its batches are ready or if too many threads are running.
        """
        return bool(self._under_way) and (len(self._under_way) > _AT_ONCE or self._under_way[0].done())

    @property
    def is_busy(self) -> bool:
        return bool(self._under_way or self._collected)

    def begin(self, message: bytearray) -> Any:
        """Decode and return the schema, which is the first message."""
        with _damage():
            self.schema = self._pa.ipc.read_schema(self._pa.ipc.read_message(self._pa.py_buffer(message)))
        return self.schema

    def add(self, message: bytearray) -> None:
        """Add a message to the current group. A complete group is passed to a thread."""
        self._collected.append(message)
        self._collected_bytes += len(message)
        if self._collected_bytes >= _GROUP_BYTES or len(self._collected) >= _GROUP_MESSAGES:
            call = partial(self._unpacked, *self._collect())
            work = anyio.to_thread.run_sync(call, abandon_on_cancel=True)
            self._under_way.append(asyncio.create_task(work, name="queryserver-unpacking"))

    async def first(self) -> list[Any]:
        """Return the batches of the oldest group of messages, in order."""
        if self._under_way:
            return await self._under_way.popleft()
        return self._unpacked(*self._collect())

    def _collect(self) -> list[bytearray]:
        collected = self._collected
        self._collected, self._collected_bytes = [], 0
        return collected

    def _unpacked(self, *messages: bytearray) -> list[Any]:
        ipc = self._pa.ipc
        with _damage():
            return [ipc.read_record_batch(ipc.read_message(self._pa.py_buffer(one)), self.schema) for one in messages]


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
