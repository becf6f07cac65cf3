"""An Arrow IPC stream, decoded as its bytes come. Needs pyarrow, which is imported when a stream is read.

pyarrow's own reader pulls from a blocking file. Here the bytes are pushed: each message is collected in a buffer of its
size, and the batch is a view on it, so every byte is copied once and memory holds one message.
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
_MOST_METADATA = 256 * 1024 * 1024
_AT_ONCE = 2
"""Threads for one stream: to unpack is work of Arrow, which runs beside Python."""
_GROUP_BYTES = 2 * 1024 * 1024
_GROUP_MESSAGES = 16
"""What a thread unpacks at a time: so many bytes as they came, or messages, of 256 KiB each when they are unpacked."""
_DIGITS_OF_POLARS = 38
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31 as days since 1970-01-01."""
_BODY_LENGTH_FIELD = 3
"""Message.fbs of Arrow: version, header_type, header, bodyLength."""


def optional(package: str, extra: str) -> Any:
    """An optional package. Raises MissingPackage, which names what to install."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingPackage(package, extra) from error


def frame(table: "pa.Table", options: "Mapping[str, Any]") -> Any:
    """A table as a DataFrame of pandas, integers with nulls as integers unless the options say otherwise."""
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
    """Columns of dates outside of the years 1 to 9999 as timestamps: dates of Python do not reach so far."""
    for place, field in enumerate(table.schema):
        if pa.types.is_date32(field.type):
            days = table.column(place).cast(pa.int32())
            extremes = importlib.import_module("pyarrow.compute").min_max(days).as_py()
            if extremes["min"] is not None and (extremes["min"] < _FIRST_DAY or extremes["max"] > _LAST_DAY):
                table = table.set_column(place, field.name, table.column(place).cast(pa.timestamp("s")))
    return table


def _has_39_digits(pa: Any, column: Any) -> bool:
    """Whether decimals have, or may have, more digits than polars reads: HUGEINT of DuckDB is decimal(38, 0)."""
    if pa.types.is_decimal256(column.type):
        return True
    if not pa.types.is_decimal128(column.type) or column.type.precision < _DIGITS_OF_POLARS:
        return False
    extremes = importlib.import_module("pyarrow.compute").min_max(column).as_py()
    return any(one is not None and len(one.as_tuple().digits) > _DIGITS_OF_POLARS for one in extremes.values())


def polars_frame(table: "pa.Table", convert: "Callable[[pa.Table], Any] | None" = None) -> Any:
    """A table as a DataFrame of polars, decimals of more than 38 digits as text. Raises ConversionFailed.

    `convert`: by default `from_arrow` of polars.
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
        # Its panics are no Exception, so they would pass all handlers of the program, and end the loop they run in.
        if not is_panic(error):
            raise
        message = f"polars cannot hold this result: {error}"
        raise ConversionFailed(message) from error


class MessageReader:
    """Cuts the bytes of a stream into its messages, each with its prefix."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._message: bytearray | None = None
        self._filled = 0
        self.is_ended = False
        """Whether the mark of the end came: a stream without it was cut."""

    def feed(self, chunk: bytes) -> Iterator[bytearray]:
        """The messages that are complete with this chunk."""
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
        """Prefix and metadata, which name the length of the body."""
        view = self._collect(view, _PREFIX_BYTES)
        if len(self._head) < _PREFIX_BYTES:
            return view
        mark, length = struct.unpack_from("<II", self._head)
        if mark != _CONTINUED or length > _MOST_METADATA:
            raise ConnectionLost("the answer is not an Arrow stream", is_sent=True)
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
    """The schema, then the batches. Raises ConnectionLost when the stream is damaged or ends before its mark.

    While bytes come, threads unpack the batches before, some MiB in each; memory holds as many as are under way. An
    error comes behind the batches that were there before it.
    """
    reader, failures = MessageReader(), list[QueryserverError]()
    async with (
        aclosing(Unpacking(optional("pyarrow", "arrow"))) as unpacking,
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
        raise ConnectionLost("the Arrow stream ended before its mark", is_sent=True)


async def _before_failure(
    chunks: AsyncGenerator[bytes, None], failures: list[QueryserverError]
) -> AsyncGenerator[bytes, None]:
    """What came; why nothing follows is put into `failures`."""
    try:
        async for chunk in chunks:
            yield chunk
    except QueryserverError as error:
        failures.append(error)


class Unpacking:
    """Messages on their way to batches, in order, in threads."""

    def __init__(self, pa: Any) -> None:
        self._pa = pa
        self.schema: Any = None
        self._collected: list[bytearray] = []
        self._collected_bytes = 0
        self._under_way: deque[asyncio.Task[list[Any]]] = deque()

    async def aclose(self) -> None:
        """Let go of what nobody waits for. A thread that has begun ends by itself."""
        for work in self._under_way:
            work.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.gather(*self._under_way, return_exceptions=True)

    @property
    def has_turn(self) -> bool:
        """Whether `first` has its batches already, or should be waited for before more is taken."""
        return bool(self._under_way) and (len(self._under_way) > _AT_ONCE or self._under_way[0].done())

    @property
    def is_busy(self) -> bool:
        return bool(self._under_way or self._collected)

    def begin(self, message: bytearray) -> Any:
        """The schema, of the first message."""
        with _damage():
            self.schema = self._pa.ipc.read_schema(self._pa.ipc.read_message(self._pa.py_buffer(message)))
        return self.schema

    def add(self, message: bytearray) -> None:
        """Take a message, which is unpacked with others."""
        self._collected.append(message)
        self._collected_bytes += len(message)
        if self._collected_bytes >= _GROUP_BYTES or len(self._collected) >= _GROUP_MESSAGES:
            call = partial(self._unpacked, *self._collect())
            work = anyio.to_thread.run_sync(call, abandon_on_cancel=True)
            self._under_way.append(asyncio.create_task(work, name="queryserver-unpacking"))

    async def first(self) -> list[Any]:
        """The batches of the oldest messages, in order."""
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
    """What pyarrow says of bytes that are no Arrow: OSError, or a ValueError of its own."""
    try:
        yield
    except (OSError, ValueError) as error:
        message = f"the Arrow stream is damaged: {error}"
        raise ConnectionLost(message, is_sent=True) from error


def _body_length(metadata: memoryview) -> int:
    """`bodyLength` of the flatbuffer Message; a field that is not there is 0."""
    (table,) = struct.unpack_from("<I", metadata, 0)
    (to_vtable,) = struct.unpack_from("<i", metadata, table)
    vtable = table - to_vtable
    (vtable_bytes,) = struct.unpack_from("<H", metadata, vtable)
    place = 4 + 2 * _BODY_LENGTH_FIELD
    if place >= vtable_bytes:
        return 0
    (offset,) = struct.unpack_from("<H", metadata, vtable + place)
    return struct.unpack_from("<q", metadata, table + offset)[0] if offset else 0
