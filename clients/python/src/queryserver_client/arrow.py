"""An Arrow IPC stream, decoded as its bytes come. Needs pyarrow, which is imported when a stream is read.

pyarrow's own reader pulls from a blocking file. Here the bytes are pushed: each message is collected in a buffer of its
size, and the batch is a view on it, so every byte is copied once and memory holds one message.
"""

import importlib
import struct
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from queryserver_client.errors import ConnectionLost, MissingPackage

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

_CONTINUED = 0xFFFFFFFF
_PREFIX_BYTES = 8
_MOST_METADATA = 256 * 1024 * 1024
_THREADS = 2
"""For one stream: to unpack is work of Arrow, which runs beside Python."""
_GROUP_BYTES = 2 * 1024 * 1024
"""Packed: what a thread unpacks at a time."""
_BODY_LENGTH_FIELD = 3
"""Message.fbs of Arrow: version, header_type, header, bodyLength."""


def optional(package: str, extra: str) -> Any:
    """An optional package. Raises MissingPackage, which names what to install."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingPackage(package, extra) from error


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
    """The schema, then the batches. Raises ConnectionLost when the stream ends before its mark.

    While bytes come, threads unpack the batches before, some MiB in each; memory holds as many as are under way.
    """
    pa = optional("pyarrow", "arrow")
    reader, schema = MessageReader(), None
    with Unpacking(pa) as unpacking:
        async for chunk in chunks:
            for message in reader.feed(chunk):
                if schema is None:
                    schema = pa.ipc.read_schema(pa.ipc.read_message(pa.py_buffer(message)))
                    yield schema
                else:
                    unpacking.add(message, schema)
            while unpacking.is_full:
                for batch in await unpacking.first():
                    yield batch
        while unpacking.is_busy:
            for batch in await unpacking.first():
                yield batch
    if not reader.is_ended:
        raise ConnectionLost("the Arrow stream ended before its mark", is_sent=True)


class Unpacking:
    """Messages on their way to batches, in order, by threads that end with the stream."""

    def __init__(self, pa: Any) -> None:
        self._pa = pa
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="queryserver-arrow")
        self._collected: list[bytearray] = []
        self._collected_bytes = 0
        self._schema: Any = None
        self._under_way: deque[Future[list[Any]]] = deque()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_error: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def is_full(self) -> bool:
        return len(self._under_way) > _THREADS

    @property
    def is_busy(self) -> bool:
        return bool(self._under_way or self._collected)

    def add(self, message: bytearray, schema: Any) -> None:
        """Take a message, which is unpacked with others."""
        self._schema = schema
        self._collected.append(message)
        self._collected_bytes += len(message)
        if self._collected_bytes >= _GROUP_BYTES:
            self._start()

    async def first(self) -> list[Any]:
        """The batches of the oldest messages, in order."""
        if not self._under_way:
            self._start()
        work = self._under_way.popleft()
        return work.result() if work.done() else await anyio.to_thread.run_sync(work.result, abandon_on_cancel=True)

    def _start(self) -> None:
        self._under_way.append(self._threads.submit(self._unpacked, self._collected, self._schema))
        self._collected, self._collected_bytes = [], 0

    def _unpacked(self, messages: list[bytearray], schema: Any) -> list[Any]:
        ipc = self._pa.ipc
        return [ipc.read_record_batch(ipc.read_message(self._pa.py_buffer(one)), schema) for one in messages]


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
