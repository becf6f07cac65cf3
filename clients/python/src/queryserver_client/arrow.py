"""An Arrow IPC stream, decoded as its bytes come. Needs pyarrow, which is imported when a stream is read.

pyarrow's own reader pulls from a blocking file. Here the bytes are pushed: each message is collected in a buffer of its
size, and the batch is a view on it, so every byte is copied once and memory holds one message.
"""

import importlib
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from queryserver_client.errors import ConnectionLost, MissingPackage

if TYPE_CHECKING:
    import pyarrow as pa

_CONTINUED = 0xFFFFFFFF
_PREFIX_BYTES = 8
_MOST_METADATA = 256 * 1024 * 1024
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


async def batches(chunks: AsyncGenerator[bytes, None]) -> "AsyncIterator[pa.Schema | pa.RecordBatch]":
    """The schema, then the batches. Raises ConnectionLost when the stream ends before its mark."""
    pa = optional("pyarrow", "arrow")
    reader, schema = MessageReader(), None
    async for chunk in chunks:
        for message in reader.feed(chunk):
            read = pa.ipc.read_message(pa.py_buffer(message))
            if schema is None:
                schema = pa.ipc.read_schema(read)
                yield schema
            else:
                yield pa.ipc.read_record_batch(read, schema)
    if not reader.is_ended:
        raise ConnectionLost("the Arrow stream ended before its mark", is_sent=True)


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
